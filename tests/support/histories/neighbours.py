"""Who else changes things.

Kubelets end pods, the garbage collector deletes what has no owner any more, another scheduler binds its pods when no
gate holds them back, and a provisioner makes volumes on the nodes that were selected.

The ``Rival`` is another scheduler that gives devices of the same driver to pods of its own, as kube-scheduler does. It
decides by what the server has, and writes that up to ``LAG`` seconds later, whatever became of the device meanwhile: so
a claim of the operator's may hold the device as well, and has to give way. Its claims are made, and released, by the
operator.

The ``Attacher`` is a driver's controller that attaches devices once they are allocated, where pods are bound after that
only. It says of each allocated device by its conditions that it is attached, or broken, or it says nothing: then the
operator gives the device up ten minutes later. In good weather each device is attached, also those of which it said
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeVarTuple

from dra_kube import (
    DEVICE_CLASSES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Conflict,
    NotFound,
    Resource,
)
from fake_api import key_of
from objects import Obj, results_of
from volume_lab import bind_volumes

from .rest import free_devices
from .script import ATTACHED, BROKEN, OTHER, RIVAL
from .server import Server, Weather

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


class Neighbour:
    """Goes by what the server has; nothing befalls it."""

    def __init__(self, weather: Weather, server: Server) -> None:
        self._weather, self.server = weather, server
        self._loop = asyncio.get_running_loop()
        self.busy = 0
        """What it is about to do."""

    def changed(self, event: str, resource: Resource, obj: Obj) -> None:
        """Hear of a change at the server."""

    def look_at_everything(self) -> None:
        """After the server went back in time, and in good weather."""

    def _later(self, seconds: float, what: Callable[[*Ts], None], *args: *Ts) -> None:
        self.busy += 1
        self._loop.call_later(seconds, self._act, what, args)

    def _act(self, what: Callable[..., None], args: tuple[object, ...]) -> None:
        self.busy -= 1
        what(*args)


class Rival(Neighbour):
    """Another scheduler."""

    def __init__(self, weather: Weather, server: Server) -> None:
        super().__init__(weather, server)
        self._pods: set[str] = set()
        self._underway: dict[str, _Decided] = {}
        self._is_awake = False
        self._turns = 0

    def changed(self, event: str, resource: Resource, obj: Obj) -> None:
        """Look at its pods again, if it has any."""
        if resource is PODS:
            is_mine = is_rival(obj) and event != "DELETED" and not obj["spec"].get("nodeName")
            (self._pods.add if is_mine else self._pods.discard)(key_of(obj))
        if self._pods and resource in (PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, NODES, DEVICE_CLASSES):
            self._wake()

    def look_at_everything(self) -> None:
        self._pods = {key_of(pod) for pod in self.server.of(PODS) if is_rival(pod) and not pod["spec"].get("nodeName")}
        self._wake()

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._later(self._within(0.2), self._decide)

    def _within(self, most: float) -> float:
        self._turns += 1
        return most * self._weather.chance("rival", self._turns)

    def _decide(self) -> None:
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
                self._later(self._within(LAG), self._write, decided)
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
    return bool(pod["spec"]["schedulerName"] == OTHER and pod["metadata"]["name"].startswith(RIVAL))


def is_passing(finding: str) -> bool:
    """Whether this is how it has to be for a moment: a claim of the rival's holds a device, and ours gives way."""
    is_clash = "is held by" in finding or "is allocated to claim" in finding
    return is_clash and f"ns/{RIVAL}" in finding and not finding.endswith("of running pods")


FAILURES = 0.2
SILENCE = 0.15
MOST_SECONDS = 4.0


class Attacher(Neighbour):
    """A driver's controller that attaches devices."""

    _allocations = 0

    def changed(self, event: str, resource: Resource, obj: Obj) -> None:
        """A claim may have new devices."""
        if resource is RESOURCE_CLAIMS and event != "DELETED" and any(unready(obj)):
            self._allocations += 1
            chance = self._weather.chance("attach", self._allocations)
            self._later(0.05 + MOST_SECONDS * chance**3, self._look, key_of(obj), obj["metadata"]["uid"])

    def look_at_everything(self) -> None:
        for claim in self.server.of(RESOURCE_CLAIMS):
            self.changed("MODIFIED", RESOURCE_CLAIMS, claim)

    def _look(self, key: str, uid: str) -> None:
        claim = self.server.objects.get((RESOURCE_CLAIMS, "ns", key.removeprefix("ns/")))
        if claim is None or claim["metadata"]["uid"] != uid or not any(unready(claim)):
            return
        since = claim["status"]["allocation"].get("allocationTimestamp")
        for device in list(unready(claim)):
            dice = 1.0 if self._weather.is_over else self._weather.chance("attached", uid, since, *device.values())
            if dice >= FAILURES + SILENCE:
                self._report(key, device, ATTACHED)
            elif dice < FAILURES:
                self._report(key, device, BROKEN)

    def _report(self, key: str, device: Obj, kind: str) -> None:
        condition = {"type": kind, "status": "True", "reason": "Seen", "message": kind}

        def edit(claim: Obj) -> None:
            others = [it for it in claim["status"].get("devices") or () if _id(it) != device]
            claim["status"]["devices"] = [*others, {**device, "conditions": [condition]}]

        self.server.change(RESOURCE_CLAIMS, key, edit)


def unready(claim: Obj) -> Iterator[Obj]:
    """Devices of the claim that have to be attached, and of which it is not said that they are, or that they are
    broken."""
    status = claim.get("status") or {}
    said = {tuple(_id(it).values()) for it in status.get("devices") or () if it.get("conditions")}
    for result in results_of(claim):
        if result.get("bindingConditions") and tuple(_id(result).values()) not in said:
            yield _id(result)


def not_attached(claim: Obj) -> list[str]:
    """Devices of the claim that have to be attached, and are not said to be."""
    status = claim.get("status") or {}
    attached = [
        _id(it)
        for it in status.get("devices") or ()
        if [condition["type"] for condition in it["conditions"]] == [ATTACHED]
    ]
    results = results_of(claim)
    return [f"{it['pool']}/{it['device']}" for it in results if it.get("bindingConditions") and _id(it) not in attached]


def _id(result: Obj) -> Obj:
    return {name: result[name] for name in ("driver", "pool", "device", "shareID") if name in result}


SLOWEST_SECONDS = 150.0
"""That a pod takes to end whose grace period is as long or longer; far more than a victim is waited for."""


class Others(Neighbour):
    """Kubelets, garbage collector, provisioner, and the scheduler of pods without devices of ours."""

    def changed(self, event: str, resource: Resource, obj: Obj) -> None:
        meta = obj["metadata"]
        if resource == PODS and event != "DELETED" and "deletionTimestamp" in meta:
            self._soon(meta["uid"], obj, self._end_pod, self._grace(obj))
        elif resource == PODS and event != "DELETED" and _is_for_the_other(obj):
            self._soon("schedule", obj, self._schedule)
        elif resource == PODS and event == "DELETED":
            for claim in self.server.of(RESOURCE_CLAIMS):
                self._soon(meta["uid"], claim, self._collect)
        elif resource is PERSISTENT_VOLUME_CLAIMS and not obj["spec"].get("volumeName"):
            self._soon("provision", obj, self._provision)
        elif resource == RESOURCE_CLAIMS and event == "ADDED":
            self._soon(meta["uid"], obj, self._collect)

    def look_at_everything(self) -> None:
        """After the server went back in time."""
        for pod in self.server.of(PODS):
            self.changed("ADDED", PODS, pod)
        for resource in (RESOURCE_CLAIMS, PERSISTENT_VOLUME_CLAIMS):
            for claim in self.server.of(resource):
                self.changed("ADDED", resource, claim)

    def _grace(self, pod: Obj) -> float:
        """How long its containers take to end."""
        grace: float = pod["spec"].get("terminationGracePeriodSeconds", 0)
        return min(grace * self._weather.chance("grace", pod["metadata"]["uid"]), SLOWEST_SECONDS)

    def _soon(self, why: str, obj: Obj, what: Callable[[Obj], None], more: float = 0.0) -> None:
        chance = self._weather.chance("neighbour", why, obj["metadata"]["uid"])
        self._later(0.02 + 1.5 * chance + more, what, obj)

    def _schedule(self, obj: Obj) -> None:
        """To the node of its devices, which is the only one that its affinity allows."""
        current = self._current(obj)
        if current is None or not _is_for_the_other(current):
            return
        required = current["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (field,) = required["nodeSelectorTerms"][0]["matchFields"]
        self.server.change(PODS, key_of(obj), lambda pod: pod["spec"].update(nodeName=field["values"][0]))

    def _provision(self, obj: Obj) -> None:
        """The volumes of all claims for which a node was selected."""
        bind_volumes(self.server)

    def _end_pod(self, obj: Obj) -> None:
        if self._current(obj) is not None:
            self.server.drop(PODS, key_of(obj))

    def _current(self, pod: Obj) -> Obj | None:
        """The pod as the server has it, if it is still the same."""
        current = self.server.objects.get((PODS, pod["metadata"]["namespace"], pod["metadata"]["name"]))
        return current if current is not None and current["metadata"]["uid"] == pod["metadata"]["uid"] else None

    def _collect(self, obj: Obj) -> None:
        owners = obj["metadata"].get("ownerReferences") or []
        alive = {pod["metadata"]["uid"] for pod in self.server.of(PODS)}
        if owners and not any(owner["uid"] in alive for owner in owners):
            with suppress(NotFound, Conflict):
                self.server.deleted(RESOURCE_CLAIMS, obj["metadata"]["name"], "ns", uid=obj["metadata"]["uid"])


def _is_for_the_other(pod: Obj) -> bool:
    """Whether it came through the gate, so that the other scheduler places it now."""
    spec = pod["spec"]
    is_open = not spec.get("schedulingGates") and not spec.get("nodeName")
    is_placed_by_it = spec["schedulerName"] == OTHER and not is_rival(pod)
    return is_placed_by_it and is_open and "deletionTimestamp" not in pod["metadata"]
