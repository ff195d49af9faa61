"""All pods of one node, and the life of each, from its arrival to its removal.

`Pods` follows the API and keeps one `PodWorker` per pod UID. The worker takes these steps::

    volumes -> prepare claims -> init containers -> containers -> stop them -> unprepare claims
                                                         -> terminal status -> (deleted:) remove the object

Whatever ends a pod (its containers are done, it is deleted, its deadline passes, it vanishes from the API)
leads to the same last steps. The worker reports a terminal status and removes the object only after the claims are
unprepared (kubelet-manager.md section 8). It repeats failing steps until they succeed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from dra_api.codec import DecodeError, convert
from dra_api.meta import ObjectVersion
from dra_api.values import now
from dra_kube import PODS, Change, Conflict, Gone, KubeError, NotFound, Pauses, Reflector

from dra_devcluster.agent.containers.container import ContainerWorker, Node
from dra_devcluster.agent.errors import ClaimError, NetworkError, VolumeError
from dra_devcluster.agent.pod_network import can_be_relayed
from dra_devcluster.agent.pod_status import Ending, PodReporter, PodView
from dra_devcluster.agent.spec import RunPod, server_address
from dra_devcluster.agent.storage import PodVolumes
from dra_devcluster.background import cancelled

logger = logging.getLogger(__name__)
Json = dict[str, Any]
_DEADLINE = Ending("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")


class PodWorker:
    """Runs one pod from start to end. Raises DecodeError for a pod that cannot be read."""

    def __init__(self, node: Node, obj: Json) -> None:
        self.pod = convert(RunPod, obj)
        self._obj = obj
        self._node = node
        self._uid = self.pod.metadata.uid
        folder = node.runtime.volumes_folder(self._uid)
        self._volumes = PodVolumes(node.api, node.address, node.paths, lambda: self.pod, folder)
        self._containers: dict[str, ContainerWorker] = {}
        self._new_containers = asyncio.Event()
        self._start_time = (obj.get("status") or {}).get("startTime") or now()
        self._was_over = self.pod.is_terminal
        self._over = self._was_over
        self._ending: Ending | None = None
        self._changed = asyncio.Event()
        self._stopping: list[asyncio.Task[None]] = []
        self._must_end = asyncio.Event()
        self._deleted = asyncio.Event()
        self._gone = asyncio.Event()
        self._reporter = PodReporter(
            node.api, node.address, self._start_time, view=self._view, known=lambda: self._obj, take=self.update
        )
        self._take(obj)

    # --- what the API says ---

    def update(self, obj: Json) -> None:
        """The pod changed. Objects older than the latest known are ignored. Raises DecodeError."""
        if _version(obj) >= _version(self._obj):
            self._take(obj)

    def removed(self) -> None:
        """The object is gone, because ``run`` deleted it or by a forced deletion."""
        self._gone.set()
        self._deleted.set()
        self._must_end.set()

    def _take(self, obj: Json) -> None:
        pod = convert(RunPod, obj)
        if _inputs(pod) != _inputs(self.pod):
            self._changed.set()
        hurry = self._stopping and pod.grace_seconds < self.pod.grace_seconds
        self.pod, self._obj = pod, obj
        if hurry:
            self._stopping.append(asyncio.create_task(self._stop_all(pod.grace_seconds)))
        for container in pod.all_containers:
            if container.name not in self._containers:
                worker = ContainerWorker(self._node, lambda: self.pod, container, self._volumes, self.refresh)
                self._containers[container.name] = worker
                self._new_containers.set()
        if pod.metadata.deletion_timestamp is not None:
            self._deleted.set()
        if pod.metadata.deletion_timestamp is not None or pod.is_terminal:
            self._must_end.set()

    def waiting_reason(self, container: str) -> str:
        """Why a container that never ran does not run, in one word. Raises KeyError for an unknown container."""
        waiting = self._containers[container].waiting
        return waiting.reason if waiting else "ContainerCreating"

    # --- life ---

    async def run(self) -> None:
        """Run the pod; returns when the object is gone."""
        reporting = asyncio.create_task(self._keep_reporting(), name=f"status of pod {self.pod.key}")
        try:
            if not self._must_end.is_set():
                await self._live_until_end()
            await self._stop_containers()
            await self._repeat(
                lambda: self._node.manager.unprepare(self._uid, self.pod),
                lambda error: logger.warning("pod %s: unprepare dynamic resources: %s", self.pod.key, error),
            )
            await self._reporter.finish(reporting)
        finally:
            await cancelled(reporting)
        await self._node.runtime.close_sandbox(self._uid)
        self._over = True
        if not self._was_over:
            await self._persist(self._reporter.report)
        await self._deleted.wait()
        await self._persist(self._delete)
        await self._gone.wait()

    async def _live_until_end(self) -> None:
        live = asyncio.create_task(self._live(), name=f"pod {self.pod.key}")
        end = asyncio.create_task(self._must_end.wait())
        try:
            done, _ = await asyncio.wait({live, end}, timeout=self._seconds_left(), return_when=asyncio.FIRST_COMPLETED)
            if not done:
                self._ending = _DEADLINE
            elif live in done:
                live.result()
        finally:
            await cancelled(live, end)

    async def _live(self) -> None:
        """Prepare, then containers; returns when all have ended for good."""
        self.refresh()
        fresh = not self._node.runtime.has_sandbox(self._uid)
        if fresh and self._ended_before():
            return
        await self._repeat(self._volumes.set_up, self._mount_failed)
        if fresh:
            await self._repeat(lambda: self._node.manager.prepare(self.pod), self._prepare_failed)
            await self._open_sandbox()
        sidecars: list[asyncio.Task[int]] = []
        tasks: list[asyncio.Task[int]] = []
        beside = [asyncio.create_task(work()) for work in (self._refresh_volumes, self._run_ephemeral)]
        try:
            if not await self._initialize(fresh, sidecars):
                return
            tasks += [
                asyncio.create_task(self._containers[container.name].run(is_init=False))
                for container in self.pod.spec.containers or ()
            ]
            await asyncio.gather(*tasks)
        finally:
            await cancelled(*beside, *tasks, *sidecars)

    def _ended_before(self) -> bool:
        """Whether all containers ended for good under an earlier node agent."""
        spec = self.pod.spec
        init = [self._containers[one.name] for one in spec.init_containers or () if not one.is_sidecar]
        failed = any(
            worker.record is not None and worker.record.exit_code and not worker.wants_start(is_init=True)
            for worker in init
        )
        regular = [self._containers[container.name] for container in spec.containers or ()]
        return failed or not any(worker.wants_start(is_init=False) for worker in regular)

    async def _initialize(self, fresh: bool, sidecars: list[asyncio.Task[int]]) -> bool:
        """Init containers one after the other; False when one has failed for good.

        In a new sandbox those that are done run again, unless the restart policy forbids it: an API server then
        refuses a status in which an ended container runs.
        """
        again = fresh and self.pod.spec.restart_policy in ("", "Always")
        for container in self.pod.spec.init_containers or ():
            worker = self._containers[container.name]
            if container.is_sidecar:
                sidecars.append(asyncio.create_task(worker.run(is_init=True)))
                await worker.started.wait()
            elif await worker.run(is_init=True, again=again) != 0:
                return False
        return True

    def _mount_failed(self, error: Exception) -> None:
        self._node.events.warning(self.pod, "FailedMount", str(error))

    def _prepare_failed(self, error: Exception) -> None:
        message = f"Failed to prepare dynamic resources: {error}"
        self._node.events.warning(self.pod, "FailedPrepareDynamicResources", message)

    async def _refresh_volumes(self) -> None:
        """Write the content of volumes anew from time to time; what fails keeps its old content."""
        while True:
            await asyncio.sleep(self._node.settings.volume_period)
            try:
                await self._volumes.refresh()
            except VolumeError as error:
                self._mount_failed(error)

    async def _run_ephemeral(self) -> None:
        """Run the containers that a person adds to the running pod, each once."""
        running: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                self._new_containers.clear()
                for container in self.pod.spec.ephemeral_containers or ():
                    if container.name not in running:
                        running[container.name] = asyncio.create_task(self._containers[container.name].run_once())
                await self._new_containers.wait()
        finally:
            await cancelled(*running.values())

    async def _open_sandbox(self) -> None:
        """A network of its own for a pod that has ports, unless the API server could not be reached from there."""
        runtime, server = self._node.runtime, server_address(self._node.api)
        try:
            own = self.pod.has_ports and can_be_relayed(server[0])
            await runtime.open_sandbox(self._uid, server if own else None)
        except NetworkError as error:
            message = f"The pod shares the ports of this machine, which forbids network namespaces: {error}"
            self._node.events.warning(self.pod, "NotCarriedOut", message)
            await runtime.open_sandbox(self._uid)

    # --- end ---

    async def _stop_containers(self) -> None:
        """Within the grace period; a repeated deletion may shorten it while this runs."""
        self._stopping.append(asyncio.create_task(self._stop_all(self.pod.grace_seconds)))
        try:
            while not all(task.done() for task in self._stopping):
                await asyncio.gather(*self._stopping)
        finally:
            await cancelled(*self._stopping)
            self._stopping.clear()
        self.refresh()

    async def _stop_all(self, grace: float) -> None:
        """Regular containers together, then sidecars in reverse order."""
        loop, spec = asyncio.get_running_loop(), self.pod.spec
        deadline = loop.time() + grace
        regular = (*(spec.containers or ()), *(spec.ephemeral_containers or ()))
        await asyncio.gather(*(self._stop(container.name, grace) for container in regular))
        for container in reversed(self.pod.spec.init_containers or ()):
            await self._stop(container.name, max(0.0, deadline - loop.time()))

    async def _stop(self, name: str, grace: float) -> None:
        if self._node.runtime.is_running(self._uid, name):
            self._node.events.normal(self.pod, "Killing", f"Stopping container {name}", name)
            await self._containers[name].prober.stop(grace)

    async def _delete(self) -> None:
        if self._gone.is_set():
            return
        meta = self.pod.metadata
        with suppress(NotFound, Conflict):
            await self._node.api.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_seconds=0)

    # --- status ---

    def refresh(self) -> None:
        """Something that the status shows may have changed."""
        self._reporter.dirty.set()

    async def _keep_reporting(self) -> None:
        while True:
            await self._reporter.dirty.wait()
            self._reporter.dirty.clear()
            await self._persist(self._reporter.report)

    async def _persist(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat a step until it succeeds or the pod is gone."""
        while not self._gone.is_set():
            try:
                await step()
                return
            except (KubeError, DecodeError) as error:
                logger.warning("pod %s: %s", self.pod.key, error)
            except Exception:  # a bug in one report must not end the reports of a pod that lives on
                logger.exception("pod %s: unexpected failure, will be retried", self.pod.key)
            await self._pause()

    def _view(self) -> PodView:
        runtime, names = self._node.runtime, list(self._containers)
        states = {name: runtime.state(self._uid, name) for name in names}
        return PodView(
            pod=self.pod,
            states={name: state for name, state in states.items() if state is not None},
            resources={
                container.name: self._node.manager.resources_status(self.pod, container)
                for container in self.pod.spec.containers or ()
            },
            unready={name for name, worker in self._containers.items() if not worker.prober.ready},
            unstarted={name for name, worker in self._containers.items() if not worker.prober.started},
            waiting={name: worker.waiting for name, worker in self._containers.items() if worker.waiting},
            has_sandbox=runtime.has_sandbox(self._uid),
            over=self._over,
            ending=self._ending,
        )

    # --- time ---

    async def _repeat(self, step: Callable[[], Awaitable[None]], failed: Callable[[Exception], None]) -> None:
        """Repeat a step until it succeeds."""
        while True:
            try:
                return await step()
            except (ClaimError, VolumeError) as error:
                failed(error)
                await self._pause()

    async def _pause(self) -> None:
        """Wait for the next attempt: the retry period, or less when the pod changes."""
        self._changed.clear()
        # Pods that fail for one reason, a plugin that is away for example, are not all tried again at once.
        seconds = self._node.settings.pod_retry * (1 + random.random() / 2)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def _seconds_left(self) -> float | None:
        limit = self.pod.spec.active_deadline_seconds
        if limit is None:
            return None
        passed = datetime.now(UTC) - datetime.fromisoformat(self._start_time)
        return max(0.0, limit - passed.total_seconds())


def _inputs(pod: RunPod) -> Iterable[Any]:
    """The fields of a pod by which others influence the node."""
    meta, status = pod.metadata, pod.status
    return (
        pod.spec,
        meta.labels,
        meta.annotations,
        meta.deletion_timestamp,
        status.resource_claim_statuses,
        status.extended_resource_claim_status,
    )


def _version(obj: Json) -> int:
    version = obj["metadata"].get("resourceVersion", "")
    return int(version) if version.isdigit() else 0


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
            await cancelled(*self._tasks.values())

    def _known(self) -> list[ObjectVersion]:
        """The pods here, as old as can be: all of them came from the API server, and none is newer than a list."""
        known = (worker.pod.metadata for worker in self._workers.values())
        return [ObjectVersion(meta.name, meta.uid, "0", meta.namespace) for meta in known]

    async def _receive(self, change: Change) -> None:
        if not change.is_end:
            self._update(change.object())
        elif worker := self._workers.get(change.version.uid):
            worker.removed()

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

    async def _work(self, uid: str, worker: PodWorker) -> None:
        try:
            await worker.run()
        except Exception:
            logger.exception("pod %s: unexpected failure, the pod is no longer managed", worker.pod.key)
            await self._node.runtime.kill_pod(uid)
            return
        del self._workers[uid], self._tasks[uid]
        await self._node.runtime.remove_pod(uid)
