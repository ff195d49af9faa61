"""Pods that wait for a rule between pods are woken by what can help them, and by nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from controllers_world import keys_of
from dra_api.codec import convert
from dra_api.core import Namespace, Node, Pod
from dra_api.resource import ResourceClaim
from dra_operator.cache import NONE, Cluster, Key, Wide
from dra_operator.cache.key import FEW_PODS
from dra_operator.scheduling import NoPlace, decided, plan
from dra_operator.scheduling.cycle.pre_filter import CycleState, pre_filter
from neighbour_lab import DB, WEB, away, near, spread, term
from placement_lab import allocator, labelled

X = {"matchLabels": {"team": "x"}}
TIME = datetime(2026, 1, 1, tzinfo=UTC)
WAITS = Key("placement", "ns/waits")


def pod(name: str, version: int, labels: dict[str, str] | None = None, node: str = "", **more: Any) -> Pod:
    meta: dict[str, Any] = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    meta |= {"labels": labels or {}, **more.pop("metadata", {})}
    spec = {"schedulerName": "dra-scheduler", "nodeName": node, **more.pop("spec", {})}
    return convert(Pod, {"metadata": meta, "spec": spec, **more})


def node(name: str, version: int = 1, **labels: str) -> Node:
    meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version), "labels": labels}
    return convert(Node, {"metadata": meta, "status": {"allocatable": {"pods": "10"}}})


def namespace(name: str, version: int, **labels: str) -> Namespace:
    return convert(Namespace, {"metadata": {"name": name, "resourceVersion": str(version), "labels": labels}})


def waiting(spec: dict[str, Any], labels: dict[str, str] | None, *pods_by_node: Pod) -> Cluster:
    """A cluster of one node, with a pod that was tried and waits for what its attempt found to be missing."""
    devices = allocator()
    cluster = Cluster(devices.inventory)
    cluster.apply(node("n1", zone="a"))
    for it in pods_by_node:
        cluster.apply(it)
    waits = pod("waits", 1, labels, spec=spec)
    cluster.apply(waits)
    found = pre_filter(waits, cluster.snapshot(devices, TIME))
    assert isinstance(found, CycleState)
    answer = decided(plan(found))
    assert isinstance(answer, NoPlace), "it would not have to wait"
    cluster.set_wake_conditions("ns/waits", NONE._replace(nodes=True, hints=answer.hints))
    return cluster


FOLLOWS = {"affinity": near(term(DB))}
AVOIDS = {"affinity": away(term(DB))}
WITH_LABELS = {"app": "web"}
DB_HERE = pod("db", 2, {"app": "db"}, "n1")
REPELLER = pod("there", 2, {}, "n1", spec={"affinity": away(term(WEB))})
Setting = tuple[dict[str, Any], dict[str, str] | None, tuple[Pod, ...]]
AFFINE: Setting = (FOLLOWS, None, ())
ANTI: Setting = (AVOIDS, None, (DB_HERE,))
REPELLED: Setting = ({}, WITH_LABELS, (REPELLER,))
OF_NAMESPACES: Setting = ({"affinity": near(term(DB, namespaceSelector=X))}, None, ())
SPREADS = {"topologySpreadConstraints": [spread(WEB, minDomains=2)]}
SPREAD: Setting = (SPREADS, WITH_LABELS, (pod("web", 2, WITH_LABELS, "n1"),))
DONE = {"status": {"phase": "Succeeded"}}
GONE = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}

CHANGES: dict[str, tuple[Setting, Any, bool]] = {
    "a neighbour comes": (AFFINE, pod("db", 2, {"app": "db"}, "n1"), True),
    "a neighbour is not on a node yet": (AFFINE, pod("db", 2, {"app": "db"}), False),
    "another pod comes": (AFFINE, pod("web", 2, {"app": "web"}, "n1"), False),
    "a neighbour that is done already comes": (AFFINE, pod("db", 2, {"app": "db"}, "n1", **DONE), False),
    "a pod gets the labels": ((FOLLOWS, None, (pod("db", 2, {}, "n1"),)), pod("db", 3, {"app": "db"}, "n1"), True),
    "a pod gets other labels": ((FOLLOWS, None, (pod("db", 2, {}, "n1"),)), pod("db", 3, {"x": "y"}, "n1"), False),
    "labels of a namespace, asked for by no rule": (AFFINE, namespace("ns", 2, team="x"), False),
    "labels of a namespace": (OF_NAMESPACES, namespace("ns", 2, team="x"), True),
    "the pod to avoid ends": (ANTI, pod("db", 3, {"app": "db"}, "n1", **DONE), True),
    "the pod to avoid loses its labels": (ANTI, pod("db", 3, {}, "n1"), True),
    "the pod to avoid is asked to end": (ANTI, pod("db", 3, {"app": "db"}, "n1", **GONE), False),
    "another pod to avoid comes": (ANTI, pod("other", 3, {"app": "db"}, "n1"), False),
    "a pod that counts is asked to end": (SPREAD, pod("web", 3, WITH_LABELS, "n1", **GONE), True),
    "a pod that counts loses its labels": (SPREAD, pod("web", 3, {}, "n1"), True),
    "another pod that counts comes": (SPREAD, pod("more", 3, WITH_LABELS, "n1"), True),
    "a pod that does not count comes": (SPREAD, pod("db", 3, {"app": "db"}, "n1"), False),
    "a node of another domain comes": (SPREAD, node("n2", zone="b"), True),
    "what keeps it away ends": (REPELLED, pod("there", 3, {}, "n1", **DONE), True),
    "what keeps it away gets labels": (
        REPELLED,
        pod("there", 3, {"x": "y"}, "n1", spec={"affinity": away(term(WEB))}),
        False,
    ),
}


@pytest.mark.rule("NR-07", "NR-14")
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_wakes_a_waiting_pod_if_it_can_help(name: str) -> None:
    (spec, labels, pods_by_node), change, helps = CHANGES[name]
    cluster = waiting(spec, labels, *pods_by_node)
    assert (WAITS in keys_of(cluster.apply(change))) is helps


GOING: dict[str, tuple[Setting, type[Any], str, bool]] = {
    "the pod to avoid": (ANTI, Pod, "ns/db", True),
    "a pod that counts": (SPREAD, Pod, "ns/web", True),
    "the node of a pod that counts": (SPREAD, Node, "n1", True),
    "what keeps it away": (REPELLED, Pod, "ns/there", True),
    "the node of the pod to avoid": (ANTI, Node, "n1", True),
    "a node, while a neighbour is missing": (AFFINE, Node, "n1", False),
}


@pytest.mark.rule("NR-07", "NR-14")
@pytest.mark.parametrize("name", GOING)
def test_what_goes_wakes_a_waiting_pod_if_that_can_help(name: str) -> None:
    (spec, labels, pods_by_node), kind, key, helps = GOING[name]
    cluster = waiting(spec, labels, *pods_by_node)
    assert (WAITS in keys_of(cluster.delete(kind, key))) is helps


def test_a_pod_on_its_way_to_a_node_counts_as_there() -> None:
    cluster = waiting(*AFFINE[:2])
    comes = pod("db", 2, {"app": "db"})
    cluster.apply(comes)
    assert WAITS in keys_of(cluster.assume_placed(comes, "n1"))
    assert WAITS not in keys_of(cluster.apply(pod("db", 3, {"app": "db"}, "n1"))), "no news when it arrives"


def test_a_pod_that_does_not_arrive_is_one_less() -> None:
    comes = pod("db", 2, {"app": "db"})
    cluster = waiting({"affinity": away(term(DB, namespaces=["ns"]))}, None, DB_HERE)
    cluster.apply(pod("second", 2, {"app": "db"}))
    cluster.assume_placed(comes, "n1")
    second = pod("second", 2, {"app": "db"})
    assert WAITS not in keys_of(cluster.assume_placed(second, "n1"))
    assert WAITS in keys_of(cluster.forget_placed(second))


def test_a_pod_that_is_gone_before_it_arrived_is_one_less() -> None:
    cluster = waiting(*ANTI[:2], DB_HERE)
    second = pod("second", 2, {"app": "db"})
    cluster.apply(second)
    cluster.assume_placed(second, "n1")
    assert WAITS in keys_of(cluster.delete(Pod, "ns/second"))


def test_a_pod_that_waits_no_more_is_not_woken() -> None:
    cluster = waiting(*AFFINE[:2])
    cluster.delete(Pod, "ns/waits")
    assert WAITS not in keys_of(cluster.apply(pod("db", 2, {"app": "db"}, "n1")))


def test_a_pod_is_not_in_its_own_way_while_it_is_placed_again() -> None:
    cluster = Cluster(allocator().inventory)
    cluster.apply(node("n1", zone="a"))
    alone = pod("alone", 1, {"app": "db"}, spec=AVOIDS)
    cluster.apply(alone)
    cluster.assume_placed(alone, "n1")
    rules = cluster.loaded_nodes().rules_between(alone)
    assert rules.obstacle(labelled({"zone": "a"})) is not None
    with cluster.without_load_of(alone):
        assert rules.obstacle(labelled({"zone": "a"})) is None
    assert rules.obstacle(labelled({"zone": "a"})) is not None


@pytest.mark.parametrize("users", [FEW_PODS, FEW_PODS + 1])
def test_many_pods_that_name_one_claim_are_looked_at_in_rounds_when_it_changes(users: int) -> None:
    """Its owners are for the tenant to change, as often as he likes."""
    cluster = Cluster(allocator().inventory)
    entry = [{"name": "shared", "resourceClaimName": "shared"}]
    for number in range(users):
        cluster.apply(pod(f"p{number}", 1, spec={"resourceClaims": entry}))
    meta = {"namespace": "ns", "name": "shared", "uid": "u"}
    cluster.apply(convert(ResourceClaim, {"metadata": {**meta, "resourceVersion": "1"}}))
    owned = {"resourceVersion": "2", "ownerReferences": [{"kind": "Pod", "name": "p0", "uid": "o"}]}
    changed = cluster.apply(convert(ResourceClaim, {"metadata": {**meta, **owned}}))
    hints = [it for it, key in zip(changed, keys_of(changed), strict=True) if key.controller == "placement"]
    assert len(hints) == users
    assert {isinstance(hint, Wide) for hint in hints} == {users > FEW_PODS}


@pytest.mark.parametrize("preempts", [True, False])
def test_a_claim_that_lost_a_pod_wakes_pods_that_may_preempt_its_other_users(preempts: bool) -> None:
    """Pods may come and go at a shared claim all the time: that must not have all waiting pods tried again."""

    def shared(version: int, *users: str) -> ResourceClaim:
        result = {"request": "req", "driver": "gpu.example.com", "pool": "p", "device": "d"}
        consumers = [{"resource": "pods", "name": it, "uid": f"uid-{it}"} for it in users]
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": consumers}
        meta = {"namespace": "ns", "name": "shared", "uid": "uid-shared", "resourceVersion": str(version)}
        return convert(ResourceClaim, {"metadata": meta, "status": status})

    cluster = Cluster(allocator().inventory)
    cluster.nominated_pods.is_on = preempts
    cluster.apply(pod("user", 1, node="n1", spec={"priority": 5}))
    for name, rank in (("above", 6), ("equal", 5)):
        uses = [{"name": "own", "resourceClaimName": f"of-{name}"}]
        cluster.apply(pod(name, 1, spec={"priority": rank, "resourceClaims": uses}))
        cluster.set_wake_conditions(f"ns/{name}", NONE._replace(freed=frozenset({"gpu.example.com"})))
    cluster.apply(shared(1, "user", "gone"))
    woken = keys_of(cluster.apply(shared(2, "user")))
    assert (Key("placement", "ns/above") in woken, Key("placement", "ns/equal") in woken) == (preempts, False)
