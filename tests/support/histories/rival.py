"""Another scheduler that gives devices of the same driver to pods of its own, as kube-scheduler does.

It decides by what the server has, and writes that up to ``LAG`` seconds later, whatever became of the device meanwhile:
so a claim of the operator's may hold the device as well, and has to give way. Its claims are made, and released, by the
operator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeVarTuple

from dra_kube import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from fake_store import key_of
from objects import Obj

from .rest import free_devices
from .script import OTHER, RIVAL
from .server import Server
from .weather import Weather

Ts = TypeVarTuple("Ts")
LAG = 0.9
"""Less than what the operator grants it (``TimeSettings.grace``)."""
FINALIZER = "resource.kubernetes.io/delete-protection"
REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no device"}


class _Decided(NamedTuple):
    """A pod, its claim, and the device for it; ``life`` is that of the server."""

    pod: Obj
    claim: Obj
    node: str
    device: str
    life: int


class Rival:
    """``changed`` is told of every change at the server."""

    def __init__(self, weather: Weather) -> None:
        self._weather = weather
        self._loop = asyncio.get_running_loop()
        self._pods: set[str] = set()
        self._underway: dict[str, _Decided] = {}
        self._is_awake = False
        self._turns = 0
        self.server: Server
        self.busy = 0

    def changed(self, event: str, resource: Resource, obj: Obj) -> None:
        """It looks at its pods again, if it has any."""
        if resource is PODS:
            is_mine = is_rival(obj) and event != "DELETED" and not obj["spec"].get("nodeName")
            (self._pods.add if is_mine else self._pods.discard)(key_of(obj))
        if self._pods and resource in (PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, NODES, DEVICE_CLASSES):
            self._wake()

    def look_at_everything(self) -> None:
        """After the server went back in time."""
        self._pods = {key_of(pod) for pod in self.server.of(PODS) if is_rival(pod) and not pod["spec"].get("nodeName")}
        self._wake()

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._later(0.2, self._decide)

    def _later(self, most: float, what: Callable[[*Ts], None], *args: *Ts) -> None:
        self.busy += 1
        self._turns += 1
        seconds = most * self._weather.chance("rival", self._turns)
        self._loop.call_later(seconds, what, *args)

    def _decide(self) -> None:
        self.busy -= 1
        self._is_awake = False
        taken = {decided.device for decided in self._underway.values()}
        for key in sorted(self._pods):
            pod = self.server[PODS, key]
            claim = self._claim_of(pod)
            if pod["metadata"]["uid"] in self._underway or claim is None or "deletionTimestamp" in pod["metadata"]:
                continue
            free = ((node, device) for node, devices in free_devices(self.server).items() for device in devices)
            node, device = next(((node, device) for node, device in free if device not in taken), ("", ""))
            if device and self.server.of(DEVICE_CLASSES):
                taken.add(device)
                self._underway[pod["metadata"]["uid"]] = decided = _Decided(pod, claim, node, device, self.server.life)
                self._later(LAG, self._write, decided)
            elif not pod["status"].get("conditions"):
                self.server.change(PODS, key, lambda pod: pod["status"].update(conditions=[REFUSED]))

    def _claim_of(self, pod: Obj) -> Obj | None:
        """The claim that was made for it, or that it names, if it may be allocated."""
        entries = (*pod["spec"]["resourceClaims"], *(pod["status"].get("resourceClaimStatuses") or ()))
        names = [entry["resourceClaimName"] for entry in entries if "resourceClaimName" in entry]
        claim = self.server.objects.get((RESOURCE_CLAIMS, "ns", names[0])) if names else None
        if claim is None or "deletionTimestamp" in claim["metadata"] or claim.get("status", {}).get("allocation"):
            return None
        return claim

    def _write(self, decided: _Decided) -> None:
        """What was decided, if pod and claim are still there for it; the device may be taken."""
        self.busy -= 1
        pod = decided.pod
        self._underway.pop(pod["metadata"]["uid"], None)
        now = self.server.objects.get((PODS, "ns", pod["metadata"]["name"]))
        is_same = now is not None and now["metadata"]["uid"] == pod["metadata"]["uid"]
        if now is None or not is_same or "deletionTimestamp" in now["metadata"] or decided.life != self.server.life:
            return
        claim = self._claim_of(now)
        if claim is None or claim["metadata"]["uid"] != decided.claim["metadata"]["uid"]:
            self._wake()
            return
        self.server.change(RESOURCE_CLAIMS, key_of(claim), lambda claim: _allocate(claim, now, decided.device))
        self.server.change(PODS, key_of(pod), lambda pod: pod["spec"].update(nodeName=decided.node))


def _allocate(claim: Obj, pod: Obj, device: str) -> None:
    pool, _, name = device.partition("/")
    result = {"request": "req", "driver": "gpu.example.com", "pool": pool, "device": name}
    users = [{"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}]
    claim["metadata"]["finalizers"] = [FINALIZER]
    claim["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": users}


def is_rival(pod: Obj) -> bool:
    """Whether the other scheduler gives it devices as well."""
    return bool(pod["spec"]["schedulerName"] == OTHER and pod["metadata"]["name"].startswith(RIVAL))


def is_passing(finding: str) -> bool:
    """Whether this is how it has to be for a moment: a claim of the rival's holds a device, and ours gives way."""
    is_clash = "is held by" in finding or "is allocated to claim" in finding
    return is_clash and f"ns/{RIVAL}" in finding and not finding.endswith("of running pods")
