"""All pods of one node: follows the API and keeps one worker per pod UID."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from dra_api.codec import DecodeError
from dra_kube import PODS, Gone, KubeError

from dra_devcluster.agent.containers.container import Node
from dra_devcluster.agent.spec.pod import RunPod

from .pod_worker import PodWorker

logger = logging.getLogger(__name__)
Json = dict[str, Any]
_RETRY_SECONDS = 1.0
_WATCH_PAUSE_SECONDS = 0.05  # in case the server ends every watch at once


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
        selector = f"spec.nodeName={self._node.name}"
        try:
            while True:
                try:
                    await self._follow(selector)
                except Gone:
                    continue
                except KubeError as error:
                    logger.warning("node %s: watching the pods failed: %s", self._node.name, error)
                    await asyncio.sleep(_RETRY_SECONDS)
                except Exception:  # the workers must continue, even if the API server sent nonsense
                    logger.exception("node %s: watching the pods failed unexpectedly", self._node.name)
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _follow(self, selector: str) -> None:
        objects, revision = await self._node.api.list(PODS, fieldSelector=selector)
        await self._replace(objects)
        while True:
            async for event in self._node.api.watch(PODS, resource_version=revision, fieldSelector=selector):
                revision = event.object["metadata"]["resourceVersion"]
                if event.type == "DELETED":
                    self._remove(event.object["metadata"]["uid"])
                elif event.type != "BOOKMARK":
                    self._update(event.object)
            await asyncio.sleep(_WATCH_PAUSE_SECONDS)

    async def _replace(self, objects: list[Json]) -> None:
        listed = {obj["metadata"]["uid"] for obj in objects}
        for uid in [uid for uid in self._workers if uid not in listed]:
            self._remove(uid)
        for obj in objects:
            self._update(obj)
        if not self.synced.is_set():
            for uid in self._node.runtime.pods() - listed:
                await self._node.runtime.remove_pod(uid)
        self.synced.set()

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
