"""Looks at every state of the server, as the witness of real servers does, and by its rules; its ledger keeps books.

Whose turn it is: who is preempted for whom, which pod gets devices that come free, and how long an urgent one waits.

**Preemption.** No pod of lower priority keeps devices from a pod that waits, where pods are preempted.

**Turns.** When devices come free, the pod with the highest priority has them first, then the oldest one. When all is at
rest a pod finishes. What waits then is compared with what runs afterwards. A pod that still waits was passed over if
one that comes after it runs, and could give way to it: both needed as many devices, and nothing on that node but the
other pod is in its way. All that they need has to come free in one moment: while a pod's condition is written, or while
it loses a conflict, others overtake it. Therefore pods that want room on a node are left out, gangs, which need several
devices at once, pods that have devices for another claim, and pods of claims that several name; and the one that
finishes has a single claim.

**Urgency.** The urgent pod has a higher priority than all others. It could have a place as long as there is a node on
which it fits beside pods that may not be preempted, or that take long to finish. If it could for ``BOUND_SECONDS`` in
one go, it has to be bound, whatever the tenants below do. The bound is what the page on preemption says: an attempt
each ten seconds; 35 seconds for victims that take longer, of which there is one round; and the grace period of those
that do not.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Final, TypeVar

from dra_api.values import parse_time
from dra_kube import (
    DEVICE_CLASSES,
    LEASES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from dra_ledger import Ledger
from dra_ledger.basics import DeviceId
from dra_operator.cache import Cluster
from dra_operator.scheduling.preemption import OVERDUE_SECONDS, PREEMPTION_PATIENCE_SECONDS
from fake_api import Call, FakeStore, key_of
from histories.neighbours import is_passing, not_attached
from histories.rest import (
    HOLD,
    gang_of,
    has_room_for_gang,
    is_of_gang,
    overdrawn,
    places_for,
    usual_amount,
    waits,
    wish_of,
)
from histories.script import CAPACITY, GANG, GANG_SIZE, OTHER, ROOM, collisions, is_running, rules_of
from histories.server import LEASE, NAMESPACE, START
from objects import Obj, devices_of, users_of
from witness import State, leaks, seen_claim, seen_pod, violations


def priority_of(pod: Obj) -> int:
    return int(pod["spec"].get("priority", 0))


def is_preempted(pod: Obj) -> bool:
    """Whether the pod says that it ends for another one."""
    conditions = pod["status"].get("conditions") or ()
    return any(it.get("reason") == "PreemptionByScheduler" for it in conditions)


def faults_of_preemption(store: FakeStore) -> Iterator[str]:
    """One line for each pod that waits for what pods of lower priority have, or that has a place kept in vain."""
    for pod in filter(waits, store.of(PODS)):
        if node := pod["status"].get("nominatedNodeName"):
            yield f"pod {key_of(pod)} waits for node {node}, on which no pod is ending"
        if is_of_gang(pod) or pod["spec"]["schedulerName"] == OTHER or holds_devices(store, pod):
            continue
        for node in store.of(NODES):
            name = node["metadata"]["name"]
            victims = [it for it in store.of(PODS) if may_end(it, name, pod)]
            if victims and name in places_for(without(store, victims), pod):
                names = ", ".join(map(key_of, victims))
                yield f"pod {key_of(pod)} waits, though it could run on {name} if {names} ended"
    yield from _of_gang(store)


def _of_gang(store: FakeStore) -> Iterator[str]:
    """A gang waits for what pods of lower priority have, on whatever nodes; its pods have the same one."""
    waiting, _ = gang_of(store)
    if not waiting or any(holds_devices(store, pod) for pod in waiting):
        return
    names = [node["metadata"]["name"] for node in store.of(NODES)]
    victims = [it for it in store.of(PODS) if any(may_end(it, name, waiting[0]) for name in names)]
    if victims and has_room_for_gang(without(store, victims)):
        yield f"the gang waits, though it could run if {', '.join(map(key_of, victims))} ended"


def may_end(victim: Obj, node: str, pod: Obj) -> bool:
    """Whether the pod runs on the node, and may end for another one."""
    is_there = victim["spec"].get("nodeName") == node and is_running(victim)
    shares_claim = bool(_named_claims(victim) & _named_claims(pod))
    is_ours = victim["spec"]["schedulerName"] != OTHER
    return is_there and is_ours and not shares_claim and priority_of(victim) < priority_of(pod)


def holds_devices(store: FakeStore, pod: Obj) -> bool:
    """Whether it has devices: no pod ends for one that still does."""
    return any(pod["metadata"]["uid"] in _uids_of_users(claim) for claim in store.of(RESOURCE_CLAIMS))


def _named_claims(pod: Obj) -> set[str]:
    return {it["resourceClaimName"] for it in pod["spec"].get("resourceClaims") or () if "resourceClaimName" in it}


def without(store: FakeStore, victims: list[Obj]) -> FakeStore:
    """The cluster without the victims, and without the claims that no pod uses then."""
    left, uids = FakeStore(), {it["metadata"]["uid"] for it in victims}
    left.objects = {
        where: obj
        for where, obj in store.objects.items()
        if obj["metadata"]["uid"] not in uids and not _ends_with(obj, uids)
    }
    return left


def _ends_with(claim: Obj, uids: set[str]) -> bool:
    users = _uids_of_users(claim)
    return bool(users) and users <= uids and HOLD not in (claim["metadata"].get("finalizers") or ())


def _uids_of_users(claim: Obj) -> set[str]:
    return {user["uid"] for user in users_of(claim)}


def who_waits(store: FakeStore) -> dict[str, tuple[int, ...]]:
    """The pods that may be compared, by uid, and how much of devices each needs."""
    wishes = {pod["metadata"]["uid"]: wish_of(store, pod) for pod in store.of(PODS) if waits(pod) and _is_simple(pod)}
    having = {user["uid"] for claim in store.of(RESOURCE_CLAIMS) for user in users_of(claim)}
    lacking = ((uid, wish) for uid, wish in wishes.items() if wish is not None and not wish.says and uid not in having)
    return {uid: wish.amounts for uid, wish in lacking if wish.amounts}


def _is_simple(pod: Obj) -> bool:
    entries = pod["spec"].get("resourceClaims") or ()
    has_own = not any("resourceClaimName" in entry for entry in entries)
    return has_own and not is_of_gang(pod) and pod["spec"]["schedulerName"] != OTHER and not rules_of(pod) & ROOM


def who_finishes(store: FakeStore) -> str | None:
    """The key of a pod that runs and holds one claim with devices, if there is one."""
    held = Counter(user["uid"] for claim in store.of(RESOURCE_CLAIMS) if devices_of(claim) for user in users_of(claim))
    running = (pod for pod in store.of(PODS) if is_running(pod) and held[pod["metadata"]["uid"]] == 1)
    return next(map(key_of, running), None)


def passed_over(store: FakeStore, waited: dict[str, tuple[int, ...]]) -> Iterator[str]:
    """Who still waits although its turn was earlier; ``waited`` is what ``who_waits`` said before."""
    pods = [pod for pod in store.of(PODS) if pod["metadata"]["uid"] in waited]
    for pod in filter(waits, pods):
        for other in filter(is_running, pods):
            need = {waited[each["metadata"]["uid"]] for each in (pod, other)}
            if _turn(pod) < _turn(other) and len(need) == 1 and _could_run_instead(store, pod, other):
                yield f"pod {key_of(pod)} waits, though its turn was before that of {key_of(other)}, which runs"


def _could_run_instead(store: FakeStore, pod: Obj, other: Obj) -> bool:
    """Whether there is a place on the other's node for the pod, if the other is not there and has no claims."""
    left, uid = FakeStore(), other["metadata"]["uid"]
    left.objects = {
        where: obj
        for where, obj in store.objects.items()
        if obj["metadata"]["uid"] != uid and not any(user["uid"] == uid for user in users_of(obj))
    }
    return other["spec"]["nodeName"] in places_for(left, pod)


def _turn(pod: Obj) -> tuple[int, str]:
    return -pod["spec"].get("priority", 0), pod["metadata"]["creationTimestamp"]


URGENT: Final = "99-high"
"""What stands behind the kind in the name of the urgent pod; no other one has this priority."""
TURN_SECONDS = 10.0
QUICK_SECONDS = 20.0
"""The longest grace period of pods that do not outlast the operator's patience."""
BOUND_SECONDS: Final = PREEMPTION_PATIENCE_SECONDS + OVERDUE_SECONDS + 3 * TURN_SECONDS + QUICK_SECONDS + 5.0


class Urgency:
    """``watch`` until cancelled. ``longest``: so many seconds in one go the pod could have had a place."""

    def __init__(self, store: FakeStore) -> None:
        self._store = store
        self.longest = 0.0
        self.finding = ""

    async def watch(self) -> None:
        """Look each second, until something is wrong."""
        now = asyncio.get_running_loop().time
        since: float | None = None
        while not self.finding:
            pod = next((it for it in self._store.of(PODS) if f"-{URGENT}" in it["metadata"]["name"]), None)
            if pod is None or not self._could_have_a_place(pod, now()):
                since = None
            else:
                since = now() if since is None else since
                self.longest = max(self.longest, now() - since)
                if self.longest > BOUND_SECONDS:
                    self.finding = f"pod {key_of(pod)} waits, though it could run for {BOUND_SECONDS:g} s in one go"
            await asyncio.sleep(1.0)

    def _could_have_a_place(self, pod: Obj, now: float) -> bool:
        if not waits(pod):
            return False
        if holds_devices(self._store, pod):  # it has to be bound with them, or to have others
            return True
        for node in self._store.of(NODES):
            name = node["metadata"]["name"]
            quick = [it for it in self._store.of(PODS) if may_end(it, name, pod) and _is_quick(it, now)]
            if name in places_for(without(self._store, quick), pod):
                return True
        return False


def _is_quick(pod: Obj, now: float) -> bool:
    """Return whether the pod is gone soon, if it is deleted now or has been. A gang ends as a whole, on all nodes."""
    ends = parse_time(pod["metadata"].get("deletionTimestamp"))
    if ends is not None:
        return ends - START - timedelta(seconds=now) <= timedelta(seconds=PREEMPTION_PATIENCE_SECONDS)
    return not is_of_gang(pod) and pod["spec"].get("terminationGracePeriodSeconds", 0) <= QUICK_SECONDS


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
                self._had_devices.update({it["uid"]: now for it in users_of(obj) if it["name"].startswith(f"{GANG}-")})
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
            if uid in _uids_of_users(claim) and (devices := not_attached(claim)) and not self.pardons:
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
