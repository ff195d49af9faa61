"""All pods of one node: follows the API and keeps one worker per pod UID."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from dra_api.codec import DecodeError
from dra_api.meta import ObjectVersion
from dra_kube import PODS, Change, Gone, Pauses, Reflector

from dra_devcluster.agent.containers.container import Node
from dra_devcluster.agent.spec.pod import RunPod

from .pod_worker import PodWorker

logger = logging.getLogger(__name__)
Json = dict[str, Any]
_WATCH_PAUSE_SECONDS = 0.05
_LONGEST_WATCH_PAUSE_SECONDS = 1.0


class Pods:
    """Feeds the workers. ``synced`` is set once all pods of the node have been seen."""

    def __init__(self, node: Node) -> None:
        self.synced = asyncio.Event()
        self._node = node
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def active(self) -> set[str]:
        """UIDs of the pods whose workers handle their claims."""
        return {uid for uid, task in self._tasks.items() if not task.done()}

    def running(self) -> list[RunPod]:
        """The pods that have not ended."""
        return [worker.pod for worker in self._workers.values() if not worker.pod.is_terminal]

    def find(self, namespace: str, name: str) -> PodWorker | None:
        """The worker of the pod of that name; of several, the latest."""
        for worker in reversed(self._workers.values()):
            meta = worker.pod.metadata
            if (meta.namespace, meta.name) == (namespace, name):
                return worker
        return None

    def refresh(self, uids: Iterable[str]) -> None:
        """The status of these pods may have changed; pods that are not here are fine."""
        for uid in uids:
            if uid in self._workers:
                self._workers[uid].refresh()

    async def run(self) -> None:
        """Follow the API until cancelled; then the workers end as well, without touching their pods."""
        reflector = Reflector(
            self._node.api,
            PODS,
            self._receive,
            knows=self._known,
            listed=self._listed,
            failed=self._failed,
            pauses=Pauses(_WATCH_PAUSE_SECONDS, _LONGEST_WATCH_PAUSE_SECONDS),
            fieldSelector=f"spec.nodeName={self._node.name}",
        )
        try:
            await reflector.run()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _known(self) -> list[ObjectVersion]:
        """The pods here, as old as can be: all of them came from the API server, and none is newer than a list."""
        known = (worker.pod.metadata for worker in self._workers.values())
        return [ObjectVersion(meta.name, meta.uid, "0", meta.namespace) for meta in known]

    async def _receive(self, change: Change) -> None:
        if change.is_end:
            self._remove(change.version.uid)
        else:
            self._update(change.object())

    async def _listed(self, _: str) -> None:
        if not self.synced.is_set():
            for uid in self._node.runtime.pods() - self._workers.keys():
                await self._node.runtime.remove_pod(uid)
        self.synced.set()

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, Gone):
            logger.warning("node %s: watching the pods failed: %s", self._node.name, error)

    def _update(self, obj: Json) -> None:
        uid = obj["metadata"]["uid"]
        try:
            if uid in self._workers:
                self._workers[uid].update(obj)
            else:
                worker = self._workers[uid] = PodWorker(self._node, obj)
                self._tasks[uid] = asyncio.create_task(self._work(uid, worker), name=f"pod {worker.pod.key}")
        except DecodeError as error:
            meta = obj["metadata"]
            logger.error("pod %s/%s cannot be read and is ignored: %s", meta["namespace"], meta["name"], error)

    def _remove(self, uid: str) -> None:
        if uid in self._workers:
            self._workers[uid].removed()

    async def _work(self, uid: str, worker: PodWorker) -> None:
        try:
            await worker.run()
        except Exception:
            logger.exception("pod %s: unexpected failure, the pod is no longer managed", worker.pod.key)
            await self._node.runtime.kill_pod(uid)
            return
        del self._workers[uid], self._tasks[uid]
        await self._node.runtime.remove_pod(uid)
