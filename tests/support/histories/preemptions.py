"""Who ends for whom: of a pod that waits no pod of lower priority is in the way, where pods end for others."""

from __future__ import annotations

from collections.abc import Iterator

from dra_kube import NODES, PODS, RESOURCE_CLAIMS
from fake_store import FakeStore, key_of
from objects import Obj

from .node_rules import is_running
from .rest import HOLD, gang_of, has_room_for_gang, is_of_gang, places_for, waits
from .script import OTHER


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
    return any(pod["metadata"]["uid"] in _users(claim) for claim in store.of(RESOURCE_CLAIMS))


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
    users = _users(claim)
    return bool(users) and users <= uids and HOLD not in (claim["metadata"].get("finalizers") or ())


def _users(claim: Obj) -> set[str]:
    return {user["uid"] for user in (claim.get("status") or {}).get("reservedFor") or ()}
