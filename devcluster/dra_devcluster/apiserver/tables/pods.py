"""The line of a pod: the states of its containers in READY, STATUS and RESTARTS.

STATUS starts from the phase. The first unfinished init container overrides it, otherwise the last container with a
reason does; deletion overrides them all.
"""

from datetime import datetime
from typing import Any

from dra_api.values import parse_time

from dra_devcluster.apiserver.tables.parts import age, human_duration

from .parts import Json


def pod_cells(pod: Json, now: datetime) -> list[Any]:
    """Name, ready, status, restarts, age; wide: IP, node, nominated node, readiness gates."""
    spec, status, metadata = pod.get("spec") or {}, pod.get("status") or {}, pod["metadata"]
    summary = _Summary(spec, status, metadata)
    gates = spec.get("readinessGates") or []
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or []}
    met = sum(conditions.get(gate.get("conditionType")) == "True" for gate in gates)
    ips = status.get("podIPs") or [{}]
    return [
        metadata.get("name", ""),
        f"{summary.ready}/{summary.total}",
        summary.text,
        summary.restarts_text(now),
        age(metadata.get("creationTimestamp"), now),
        ips[0].get("ip") or status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        f"{met}/{len(gates)}" if gates else "<none>",
    ]


def completion(pod: Json) -> list[Json]:
    """The row condition by which kubectl knows a finished pod."""
    phase = (pod.get("status") or {}).get("phase")
    if phase == "Succeeded":
        message = "The pod has completed successfully."
    elif phase == "Failed":
        message = "The pod failed."
    else:
        return []
    return [{"type": "Completed", "status": "True", "reason": phase, "message": message}]


class _Summary:
    def __init__(self, spec: Json, status: Json, metadata: Json) -> None:
        self.sidecars = {c["name"] for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"}
        self.total = len(spec.get("containers") or []) + len(self.sidecars)
        self.ready = self.restarts = 0
        self.last_restart: datetime | None = None
        conditions = {c.get("type"): c for c in status.get("conditions") or []}
        self.text = status.get("reason") or status.get("phase") or ""
        if conditions.get("PodScheduled", {}).get("reason") == "SchedulingGated":
            self.text = "SchedulingGated"
        initializing = self._init_containers(status, len(spec.get("initContainers") or []))
        if not initializing or conditions.get("Initialized", {}).get("status") == "True":
            self._containers(status, ready=conditions.get("Ready", {}).get("status") == "True")
        if metadata.get("deletionTimestamp"):
            if status.get("reason") == "NodeLost":
                self.text = "Unknown"
            elif status.get("phase") not in ("Succeeded", "Failed"):
                self.text = "Terminating"

    def restarts_text(self, now: datetime) -> str:
        if not self.restarts or self.last_restart is None:
            return str(self.restarts)
        return f"{self.restarts} ({human_duration((now - self.last_restart).total_seconds())} ago)"

    def _count(self, container: Json) -> None:
        self.restarts += container.get("restartCount") or 0
        finished = parse_time(((container.get("lastState") or {}).get("terminated") or {}).get("finishedAt"))
        if finished and (self.last_restart is None or finished > self.last_restart):
            self.last_restart = finished

    def _init_containers(self, status: Json, count: int) -> bool:
        """Whether the pod is still (or for ever) initializing; sets the text if so."""
        for index, container in enumerate(status.get("initContainerStatuses") or []):
            self._count(container)
            state = container.get("state") or {}
            ended, waiting = state.get("terminated"), state.get("waiting") or {}
            if ended and not ended.get("exitCode"):
                continue
            if container.get("name") in self.sidecars and container.get("started"):
                self.ready += bool(container.get("ready"))
                continue
            if ended:
                self.text = "Init:" + _ending(ended)
            elif waiting.get("reason") not in (None, "", "PodInitializing"):
                self.text = "Init:" + waiting["reason"]
            else:
                self.text = f"Init:{index}/{count}"
            return True
        return False

    def _containers(self, status: Json, ready: bool) -> None:
        # From here on only containers that keep running count as restarted.
        self.restarts, self.last_restart = 0, None
        for container in status.get("initContainerStatuses") or []:
            if container.get("name") in self.sidecars:
                self._count(container)
        running = False
        for container in reversed(status.get("containerStatuses") or []):
            self._count(container)
            state = container.get("state") or {}
            if (state.get("waiting") or {}).get("reason"):
                self.text = state["waiting"]["reason"]
            elif state.get("terminated") is not None:
                self.text = _ending(state["terminated"])
            elif container.get("ready") and state.get("running") is not None:
                running = True
                self.ready += 1
        if self.text == "Completed" and running:
            self.text = "Running" if ready else "NotReady"


def _ending(terminated: Json) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    signal = terminated.get("signal")
    return f"Signal:{signal}" if signal else f"ExitCode:{terminated.get('exitCode', 0)}"
