"""Whose turn it is: who is preempted for whom, which pod gets devices that come free, and how long an urgent one waits.

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
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from dra_api.values import parse_time
from dra_kube import NODES, PODS, RESOURCE_CLAIMS
from dra_operator.scheduling.preemption import OVERDUE_SECONDS, PREEMPTION_PATIENCE_SECONDS
from fake_api import FakeStore, key_of
from objects import Obj

from .node_rules import ROOM, is_running, rules_of
from .rest import HOLD, devices_of, gang_of, has_room_for_gang, is_of_gang, places_for, waits, wish_of
from .script import OTHER
from .server import START


def priority_of(pod: Obj) -> int:
    """The higher comes first."""
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
    return {user["uid"] for user in (claim.get("status") or {}).get("reservedFor") or ()}


def who_waits(store: FakeStore) -> dict[str, tuple[int, ...]]:
    """The pods that may be compared, by uid, and how much of devices each needs."""
    wishes = {pod["metadata"]["uid"]: wish_of(store, pod) for pod in store.of(PODS) if waits(pod) and _is_simple(pod)}
    having = {user["uid"] for claim in store.of(RESOURCE_CLAIMS) for user in _users(claim)}
    lacking = ((uid, wish) for uid, wish in wishes.items() if wish is not None and not wish.says and uid not in having)
    return {uid: wish.amounts for uid, wish in lacking if wish.amounts}


def _is_simple(pod: Obj) -> bool:
    entries = pod["spec"].get("resourceClaims") or ()
    has_own = not any("resourceClaimName" in entry for entry in entries)
    return has_own and not is_of_gang(pod) and pod["spec"]["schedulerName"] != OTHER and not rules_of(pod) & ROOM


def who_finishes(store: FakeStore) -> str | None:
    """The key of a pod that runs and holds one claim with devices, if there is one."""
    held = Counter(user["uid"] for claim in store.of(RESOURCE_CLAIMS) if devices_of(claim) for user in _users(claim))
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
        if obj["metadata"]["uid"] != uid and not any(user["uid"] == uid for user in _users(obj))
    }
    return other["spec"]["nodeName"] in places_for(left, pod)


def _users(claim: Obj) -> list[Obj]:
    return (claim.get("status") or {}).get("reservedFor") or []


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
