"""The status of a pod as a kubelet reports it (phase, conditions, container states), and its writes.

The status follows from the state of each container, without I/O: plain dicts in the shape of the API. ``changes`` keeps
only the differences from the pod, so an unchanged status is not written. The changes of one pod are written in the
order in which they happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dra_api.values import now
from dra_kube import PODS, Api, Conflict, NotFound

from dra_devcluster.agent.containers.runtime import ContainerRecord, ContainerState, Waiting
from dra_devcluster.agent.spec import RunContainer, RunPod

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a pod for another reason than its containers' exit codes."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PodView:
    """All data of the status. ``over`` is set when no container will run again and all claims are unprepared.

    ``resources`` is the health of the devices of regular containers. ``unready`` and ``unstarted`` are the containers
    that their probes see so.
    """

    pod: RunPod
    states: Mapping[str, ContainerState]
    waiting: Mapping[str, Waiting]
    resources: Mapping[str, list[Json]] = field(default_factory=dict)
    unready: Set[str] = frozenset()
    unstarted: Set[str] = frozenset()
    has_sandbox: bool = False
    over: bool = False
    ending: Ending | None = None

    def is_running(self, container: RunContainer) -> bool:
        state = self.states.get(container.name)
        return state is not None and state.current.exit_code is None

    def exit_code(self, container: RunContainer) -> int | None:
        """The latest exit code; None while it runs, waits for a restart, or never ran."""
        state = self.states.get(container.name)
        return None if state is None or container.name in self.waiting else state.current.exit_code

    def is_ready(self, container: RunContainer) -> bool:
        """Regular containers and sidecars are ready while they run, unless a readiness probe says otherwise."""
        return self.is_running(container) and container.name not in self.unready

    def has_started(self, container: RunContainer) -> bool:
        """Whether the container runs and its startup probe has succeeded."""
        return self.is_running(container) and container.name not in self.unstarted

    def is_initialized(self, container: RunContainer) -> bool:
        """Whether an init container is done, or a sidecar has started."""
        return self.has_started(container) if container.is_sidecar else self.exit_code(container) == 0


def status_of(view: PodView, address: str, start_time: str) -> Json:
    """The fields of the status that belong to the node, except the conditions' times."""
    pod = view.pod
    status: Json = {
        "phase": phase(view),
        "conditions": conditions(view),
        "hostIP": address,
        "hostIPs": [{"ip": address}],
        "startTime": start_time,
        "containerStatuses": [_container_status(view, one) for one in pod.spec.containers or ()],
    }
    for kind, some in (("init", pod.spec.init_containers), ("ephemeral", pod.spec.ephemeral_containers)):
        if some:
            status[f"{kind}ContainerStatuses"] = [_container_status(view, one) for one in some]
    if view.has_sandbox:
        status |= {"podIP": address, "podIPs": [{"ip": address}]}
    if view.over and view.ending is not None:
        status |= {"reason": view.ending.reason, "message": view.ending.message}
    return status


def phase(view: PodView) -> str:
    """Pending until all containers have run, then Running; terminal only when all is over (kubelet-manager.md 8)."""
    regular = view.pod.spec.containers or ()
    if view.pod.is_terminal:
        return view.pod.status.phase  # from an earlier report of this node, or set by another client
    if view.over:
        succeeded = view.ending is None and all(view.exit_code(container) == 0 for container in regular)
        return "Succeeded" if succeeded else "Failed"
    started = all(container.name in view.states for container in regular)
    initialized = all(view.is_initialized(one) for one in view.pod.spec.init_containers or () if not one.is_sidecar)
    # A phase never goes back: a pod that ran may wait for a restart of its containers.
    return "Running" if (started and initialized) or view.pod.status.phase == "Running" else "Pending"


def conditions(view: PodView) -> list[Json]:
    """The five conditions that a node reports."""
    final = phase(view) if view.over else ""
    regular = view.pod.spec.containers or ()
    return [
        _condition("PodReadyToStartContainers", view.has_sandbox and not view.over),
        _initialized(view, final),
        _ready("Ready", view, regular, final),
        _ready("ContainersReady", view, regular, final),
        _condition("PodScheduled", True),
    ]


def changes(desired: Json, actual: Json, now: str) -> Json:
    """A strategic merge patch for the status: fields that differ, conditions that differ with their times."""
    known = {condition.get("type"): condition for condition in actual.get("conditions") or ()}
    dated = (_dated(condition, known.get(condition["type"]), now) for condition in desired["conditions"])
    changed = [update for update in dated if update is not None]
    patch = {key: value for key, value in desired.items() if key != "conditions" and actual.get(key) != value}
    return patch | ({"conditions": changed} if changed else {})


def _dated(condition: Json, known: Json | None, now: str) -> Json | None:
    if known is None:
        return condition | {"lastTransitionTime": now}
    if all(known.get(key) == condition.get(key) for key in ("status", "reason", "message")):
        return None
    same = known.get("status") == condition["status"]
    cleared = {key: None for key in ("reason", "message") if key in known and key not in condition}
    return condition | cleared | {"lastTransitionTime": known.get("lastTransitionTime") if same else now}


def _condition(kind: str, true: bool, reason: str = "", message: str = "") -> Json:
    condition = {"type": kind, "status": "True" if true else "False"}
    return condition | ({"reason": reason} if reason else {}) | ({"message": message} if message else {})


def _initialized(view: PodView, final: str) -> Json:
    missing = [one.name for one in view.pod.spec.init_containers or () if not view.is_initialized(one)]
    if final == "Succeeded":
        return _condition("Initialized", True, "PodCompleted")
    if missing:
        message = f"containers with incomplete status: {_names(missing)}"
        return _condition("Initialized", False, "ContainersNotInitialized", message)
    return _condition("Initialized", True)


def _ready(kind: str, view: PodView, regular: Iterable[RunContainer], final: str) -> Json:
    if final:
        return _condition(kind, False, "PodCompleted" if final == "Succeeded" else "PodFailed")
    sidecars = [one for one in view.pod.spec.init_containers or () if one.is_sidecar]
    unready = [one.name for one in (*sidecars, *regular) if not view.is_ready(one)]
    if unready:
        message = f"containers with unready status: {_names(unready)}"
        return _condition(kind, False, "ContainersNotReady", message)
    return _condition(kind, True)


def _names(names: Iterable[str]) -> str:
    return f"[{' '.join(names)}]"


def _container_status(view: PodView, container: RunContainer) -> Json:
    state = view.states.get(container.name)
    is_init = container in (view.pod.spec.init_containers or ())
    ready = view.is_initialized(container) if is_init and not container.is_sidecar else view.is_ready(container)
    status: Json = {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "ready": ready,
        "started": view.has_started(container),
        "restartCount": state.current.attempt if state else 0,
        "state": _current(view, container, state),
        "lastState": {},
    }
    if resources := view.resources.get(container.name):
        status["allocatedResourcesStatus"] = resources
    if state is None:
        return status
    status["containerID"] = f"local://{state.current.id}"
    # A container that waits for its restart shows its latest run as the last one.
    last = state.current if container.name in view.waiting else state.previous
    if last is not None and last.exit_code is not None:
        status["lastState"] = {"terminated": _terminated(last)}
    return status


def _current(view: PodView, container: RunContainer, state: ContainerState | None) -> Json:
    waiting = view.waiting.get(container.name)
    if waiting is not None and not view.over:
        return {"waiting": {"reason": waiting.reason} | ({"message": waiting.message} if waiting.message else {})}
    if state is None:
        if view.over:
            return {"terminated": _NEVER_RAN}
        uninitialized = container not in (view.pod.spec.init_containers or ()) and view.pod.spec.init_containers
        return {"waiting": {"reason": "PodInitializing" if uninitialized else "ContainerCreating"}}
    if state.current.exit_code is None:
        return {"running": {"startedAt": state.current.started_at}}
    return {"terminated": _terminated(state.current)}


_NEVER_RAN = {
    "exitCode": 137,
    "reason": "ContainerStatusUnknown",
    "message": "The container could not be located when the pod was terminated",
}


def _terminated(record: ContainerRecord) -> Json:
    return {
        "exitCode": record.exit_code,
        "reason": "Error" if record.exit_code else "Completed",
        "startedAt": record.started_at,
        "finishedAt": record.finished_at,
        "containerID": f"local://{record.id}",
    }


class PodReporter:
    """``view`` returns the pod as it should be reported, ``known`` the object as last seen; ``take`` gets the object
    that the API server returns.
    """

    def __init__(
        self,
        api: Api,
        address: str,
        start_time: str,
        *,
        view: Callable[[], PodView],
        known: Callable[[], Json],
        take: Callable[[Json], None],
    ) -> None:
        self.dirty = asyncio.Event()
        self._api = api
        self._address = address
        self._start_time = start_time
        self._view = view
        self._known = known
        self._take = take
        self._writing = asyncio.Lock()

    async def report(self) -> None:
        """Write the differences between the desired and the known status, if there are any.

        Raises KubeError, but not for a pod that is gone or was replaced by another one of its name.
        """
        async with self._writing:
            obj = self._known()
            meta = obj["metadata"]
            desired = status_of(self._view(), self._address, self._start_time)
            patch = changes(desired, obj.get("status") or {}, now())
            if not patch:
                return
            body = {"metadata": {"uid": meta["uid"]}, "status": patch}
            place = (meta["name"], body, meta["namespace"])
            with suppress(NotFound, Conflict):
                self._take(await self._api.patch(PODS, *place, kind="strategic", subresource="status"))

    async def finish(self, reporting: asyncio.Task[None]) -> None:
        """End the task that reports, but not during a write: a write that is cut off may arrive after the next one."""
        async with self._writing:
            reporting.cancel()
