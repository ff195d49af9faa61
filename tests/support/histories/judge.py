"""Looks at every state of the server, as the witness of real servers does, and by its rules; its ledger keeps books."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from dra_kube import DEVICE_CLASSES, LEASES, PERSISTENT_VOLUME_CLAIMS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_ledger import Ledger
from dra_ledger.basics import DeviceId
from dra_operator.cache import Cluster
from fake_api import Call, FakeStore, key_of
from objects import Obj
from witness import State, leaks, seen_claim, seen_pod, violations

from .neighbours import is_passing, not_attached
from .node_rules import collisions, is_running
from .rest import devices_of, is_of_gang, overdrawn, usual_amount, waits
from .script import CAPACITY, GANG, GANG_SIZE, OTHER
from .server import LEASE, NAMESPACE
from .turns import is_preempted, priority_of

KINDS: Final = {RESOURCE_CLAIMS: "ResourceClaim", RESOURCE_SLICES: "ResourceSlice", DEVICE_CLASSES: "DeviceClass"}


class Bookkeeper:
    """``findings`` has what was ever wrong, each thing once."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self.findings: dict[str, None] = {}

    def changed(self, event: str, resource: Resource, obj: Obj) -> None:
        """Another state: a claim is among the holders of each of its devices, or has gone from them."""
        if resource not in KINDS:
            return
        named = {"apiVersion": "resource.k8s.io/v1", "kind": KINDS[resource], **obj}
        self._ledger.feed({"type": event, "object": named})
        if resource is RESOURCE_CLAIMS:
            held = self._ledger.holders(obj["metadata"]["namespace"])
            said = {f"{entry.pool}/{entry.name}" for entry, holder in held if holder.key == key_of(obj)}
            has = set(devices_of(obj)) if event != "DELETED" else set()
            if said != has:
                self.findings[f"the ledger says that claim {key_of(obj)} has {said}, not {has}"] = None

    def faults(self, cluster: Cluster) -> Iterator[str]:
        """At rest: where the ledger and the operator differ about devices in use."""
        yield from self.findings
        claims = {claim.metadata.uid: claim.key for claim in cluster.claims}
        held = {
            (str(DeviceId.of(result)), claims.get(uid, uid))
            for uid, allocation in cluster.allocated_devices.holders()
            for result in allocation.results
            if not result.admin_access
        }
        said = {(entry.id, holder.key) for entry, holder in self._ledger.holders()}
        if held != said:
            yield f"the operator says {sorted(held - said)}, the ledger {sorted(said - held)}"


T = TypeVar("T")
LATE_SECONDS = 30.0
"""So late at most the operator may see that a pod is gone."""


class Judge:
    """``changed`` is told of every change at the server. ``findings`` has what was ever wrong, each thing once.

    While it ``pardons`` nothing is a finding.
    """

    def __init__(self) -> None:
        self.server: FakeStore
        self._state = State()
        self.findings: dict[str, None] = {}
        self._bound: set[str] = set()
        self._placed: set[str] = set()
        self._ended: set[str] = set()
        self._had_devices: dict[str, float] = {}
        """When a pod of a gang had devices last, by its UID."""
        self._waited: dict[str, tuple[int, float]] = {}
        """Priorities of pods that wait or waited for a node, and when they did last, by their UID."""
        self._same_gang: dict[str, str] = {}
        """Names of the pods of the gang that ran when one of them ended for another one, by their UID."""
        self.pardons = False
        self.bookkeeper = Bookkeeper()

    def changed(self, event: str, resource: Resource, obj: Obj) -> None:
        """Another state."""
        self.bookkeeper.changed(event, resource, obj)
        if resource is PODS and _is_too_early(self.server, obj):
            self.findings[f"pod {key_of(obj)} is bound, its volume is not"] = None
        if resource is PODS:
            self._look_at_priorities(event, obj)
            self._look_at_attachments(event, obj)
        if resource is PODS and event != "DELETED" and not self.pardons:
            self.findings.update(dict.fromkeys(collisions(self.server, obj)))
        if resource is RESOURCE_CLAIMS or resource is PODS:
            self._look_at_gang(event, resource, obj)
        if resource is RESOURCE_CLAIMS and not self.pardons and usual_amount(self.server) != CAPACITY:
            self.findings.update(dict.fromkeys(overdrawn(self.server)))
        if self._enter(event, resource, obj) and not self.pardons:
            found = (finding for finding in violations(self._state) if not is_passing(finding))
            self.findings.update(dict.fromkeys(found))

    def _look_at_gang(self, event: str, resource: Resource, obj: Obj) -> None:
        """A pod of a gang is bound only if all that the gang needs have devices, or had them a moment ago: a pod that
        is deleted meanwhile is seen late."""
        now = asyncio.get_running_loop().time()
        if resource is RESOURCE_CLAIMS:
            if devices_of(obj):
                users = obj["status"].get("reservedFor") or ()
                self._had_devices.update({it["uid"]: now for it in users if it["name"].startswith(f"{GANG}-")})
        elif is_of_gang(obj) and obj["spec"].get("nodeName") and event != "DELETED":
            uid, there = obj["metadata"]["uid"], {it["metadata"]["uid"] for it in self.server.of(PODS)}
            having = {it for it, at in self._had_devices.items() if it in there or now - at < LATE_SECONDS}
            if len(having | {uid}) < GANG_SIZE and uid not in self._bound and not self.pardons:
                self.findings[f"pod {key_of(obj)} is bound, and no other pod of its gang has devices"] = None
            self._bound.add(uid)

    def _look_at_attachments(self, event: str, obj: Obj) -> None:
        """A pod is bound only when its devices are attached, by what the server has in this moment."""
        uid, node = obj["metadata"]["uid"], obj["spec"].get("nodeName")
        if not node or event == "DELETED" or uid in self._placed:
            return
        self._placed.add(uid)
        for claim in self.server.of(RESOURCE_CLAIMS) if obj["spec"]["schedulerName"] != OTHER else ():
            users = [it["uid"] for it in (claim.get("status") or {}).get("reservedFor") or ()]
            if uid in users and (devices := not_attached(claim)) and not self.pardons:
                self.findings[f"pod {key_of(obj)} is bound, and not attached are {', '.join(devices)}"] = None

    def _look_at_priorities(self, event: str, obj: Obj) -> None:
        """A pod ends for another one only if one of higher priority waits, or did a moment ago: it is seen late."""
        now, uid, priority = asyncio.get_running_loop().time(), obj["metadata"]["uid"], priority_of(obj)
        was_waiting = self._waited.get(uid, (0, 0.0))[1] == math.inf
        if event != "DELETED" and waits(obj):
            self._waited[uid] = priority, math.inf
        elif was_waiting:
            self._waited[uid] = priority, now
        if is_preempted(obj) and uid not in self._ended and not self.pardons:
            self._ended.add(uid)
            if is_of_gang(obj):
                self._same_gang.update(_running_gang(self.server))
            if not any(other > priority and now - at < LATE_SECONDS for other, at in self._waited.values()):
                self.findings[f"pod {key_of(obj)} is preempted, and no pod of higher priority waits"] = None

    @property
    def preempted(self) -> int:
        """How many pods have ended for others."""
        return len(self._ended)

    def halves(self) -> list[str]:
        """Pods of a gang that run at rest, though another one of it has ended for a pod of higher priority."""
        left = _running_gang(self.server)
        stay = sorted(name for uid, name in self._same_gang.items() if uid in left and not self.pardons)
        return [f"pod {name} runs, though a pod of its gang was preempted" for name in stay]

    def written(self, call: Call, sender: str) -> None:
        """A candidate for the lease writes. It must hold the lease, or have held it last."""
        lease = self.server.objects.get((LEASES, NAMESPACE, LEASE))
        holder = lease["spec"]["holderIdentity"] if lease is not None else ""
        if holder not in ("", sender) and not self.pardons:
            self.findings[f"{sender} writes ({' '.join(filter(None, call))}), though {holder} leads"] = None

    def begin_again(self, objects: Iterable[tuple[Resource, Obj]]) -> None:
        """The server has an older state."""
        self._state = State()
        for resource, obj in objects:
            self._enter("ADDED", resource, obj)

    def leaks(self) -> list[str]:
        """What is left over now."""
        return list(leaks(self._state))

    def _enter(self, event: str, resource: Resource, obj: Obj) -> bool:
        """Whether that is a new state, as far as the rules look."""
        uid = obj["metadata"]["uid"]
        if resource == PODS:
            return _put(self._state.pods, uid, None if event == "DELETED" else seen_pod(obj))
        if resource == RESOURCE_CLAIMS:
            return _put(self._state.claims, uid, None if event == "DELETED" else seen_claim(obj))
        return False


def _running_gang(server: FakeStore) -> dict[str, str]:
    pods = (pod for pod in server.of(PODS) if is_of_gang(pod) and is_running(pod))
    return {
        pod["metadata"]["uid"]: key_of(pod)
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"] and not is_preempted(pod)
    }


def _is_too_early(server: FakeStore, pod: Obj) -> bool:
    if not pod["spec"].get("volumes") or not pod["spec"].get("nodeName"):
        return False
    return not server[PERSISTENT_VOLUME_CLAIMS, key_of(pod)]["spec"].get("volumeName")


def _put(known: dict[str, T], uid: str, seen: T | None) -> bool:
    before = known.pop(uid, None)
    if seen is not None:
        known[uid] = seen
    return before != seen
