"""Whose turn it is when devices come free: the pod with the highest priority first, then the oldest.

When all is at rest a pod finishes. What waits then is compared with what runs afterwards. A pod that still waits was
passed over if one that comes after it runs, and could give way to it: both needed as many devices, and nothing on that
node but the other pod is in its way. All that they need has to come free in one moment: while a pod's condition is
written, or while it loses a conflict, others overtake it. So pods that want room on a node are left out, gangs, which
need several devices at once, pods that have devices for another claim, and pods of claims that several name; and the
one that finishes has a single claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dra_kube import PODS, RESOURCE_CLAIMS
from fake_store import FakeStore, key_of
from objects import Obj

from .node_rules import ROOM, is_running, rules_of
from .rest import devices_of, is_of_gang, places_for, waits, wish_of
from .script import OTHER


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
