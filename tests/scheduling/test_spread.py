"""Topology spread constraints with ``whenUnsatisfiable: DoNotSchedule``."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.core import Pod
from dra_operator.scheduling import NoPlace
from dra_operator.scheduling.rules import ClusterEvent
from dra_operator.scheduling.rules.pod_topology_spread import SPREAD
from dra_operator.scheduling.rules.rule import Direction, PodsChange
from dra_operator.scheduling.state import LoadedNode, Obstacle
from neighbour_lab import DB, HOST, REQUIRED, WEB, expression, pod, spread, three_nodes, with_residents
from placement_lab import allocator, decide, labelled, node

APP = {"app": "web"}
ZONES = [("a1", {HOST: "a1", "zone": "a"}), ("a2", {HOST: "a2", "zone": "a"}), ("b1", {HOST: "b1", "zone": "b"})]
ZONES += [("c1", {HOST: "c1", "zone": "c"}), ("x1", {HOST: "x1"})]


def comes(*constraints: dict[str, Any], labels: dict[str, str] | None = None, **spec: Any) -> Pod:
    return pod("comes", APP if labels is None else labels, topologySpreadConstraints=list(constraints), **spec)


def webs(*nodes: str, **fields: Any) -> list[Pod]:
    """A pod of the app on each of these nodes."""
    return [pod(f"web-{number}", {**APP, **fields.pop("more", {})}, on=on, **fields) for number, on in enumerate(nodes)]


def rev(number: str, *nodes: str) -> list[Pod]:
    return [pod(f"rev-{number}-{on}", {**APP, "rev": number}, on=on) for on in nodes]


ONLY_AB = {
    "nodeAffinity": {
        REQUIRED: {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}]
        }
    }
}
LIKE = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Like"}]}]}}}
CASES: dict[str, tuple[Pod, list[Pod], str]] = {
    "none yet": (comes(spread(WEB)), [], "a1 a2 b1 c1"),
    "where there are fewest": (comes(spread(WEB)), webs("a1", "b1"), "c1"),
    "where there is one more than the fewest, with a skew of two": (
        comes(spread(WEB, skew=2)),
        webs("a1", "a2", "b1"),
        "b1 c1",
    ),
    "pods of other apps do not count": (comes(spread(WEB)), [pod("db", {"app": "db"}, on="a1")], "a1 a2 b1 c1"),
    "pods of other namespaces do not count": (comes(spread(WEB)), webs("a1", namespace="other"), "a1 a2 b1 c1"),
    "pods in deletion do not count": (comes(spread(WEB)), webs("a1", leaving=True), "a1 a2 b1 c1"),
    "a pod that does not count itself": (comes(spread(DB)), [pod("db", {"app": "db"}, on="a1")], "a1 a2 b1 c1"),
    "a pod that does not count itself, behind the skew": (
        comes(spread(DB)),
        [pod("db", {"app": "db"}, on="a1"), pod("db2", {"app": "db"}, on="a2")],
        "b1 c1",
    ),
    "by node": (comes(spread(WEB, HOST)), webs("a1", "b1"), "a2 c1 x1"),
    "two constraints": (comes(spread(WEB), spread(WEB, HOST, 2)), webs("a1", "a1", "b1"), "c1"),
    "nodes that lack the label of another constraint count for none": (
        comes(spread(WEB), spread(WEB, HOST)),
        [*webs("a1", "b1", "c1"), pod("x", APP, on="x1")],
        "a2",
    ),
    "an empty selector counts no pod": (comes(spread({})), webs("a1", "a2"), "a1 a2 b1 c1"),
    "no selector counts no pod": (comes(spread()), webs("a1", "a2"), "a1 a2 b1 c1"),
    "fewer domains than wanted: the fewest counts as none": (
        comes(spread(WEB, minDomains=4)),
        webs("a1", "b1", "c1"),
        "",
    ),
    "as many domains as wanted": (comes(spread(WEB, minDomains=3)), webs("a1", "b1", "c1"), "a1 a2 b1 c1"),
    "domains that the pod may not go to do not count": (
        comes(spread(WEB), nodeSelector={"zone": "a"}),
        webs("a1", "a2"),
        "a1 a2",
    ),
    "they do if affinity is ignored": (
        comes(spread(WEB, nodeAffinityPolicy="Ignore"), nodeSelector={"zone": "a"}),
        webs("a1", "a2"),
        "",
    ),
    "by node affinity": (comes(spread(WEB), affinity=ONLY_AB), webs("a1", "b1"), "a1 a2 b1"),
    "matchLabelKeys": (
        comes(spread(WEB, matchLabelKeys=["rev"]), labels={**APP, "rev": "2"}),
        [*rev("1", "a1", "a2", "b1"), *rev("2", "c1")],
        "a1 a2 b1",
    ),
    "matchLabelKeys that the pod lacks": (comes(spread(WEB, matchLabelKeys=["rev"])), webs("a1", "b1"), "c1"),
    "an expression": (comes(spread(expression("Exists"))), [*webs("a1"), pod("d", {"app": "db"}, on="b1")], "c1"),
    "ScheduleAnyway keeps no node away": (
        comes(spread(WEB, whenUnsatisfiable="ScheduleAnyway")),
        webs("a1", "a2"),
        "a1 a2 b1 c1 x1",
    ),
}


@pytest.mark.rule("NR-11", "NR-12", "NR-13")
@pytest.mark.parametrize("name", CASES)
def test_pods_are_spread(name: str) -> None:
    incoming, pods_by_node, expected = CASES[name]
    nodes = with_residents(ZONES, pods_by_node)
    rules = nodes.rules_between(incoming)
    wanted = incoming.spec.node_selector or {}
    affine = incoming.spec.affinity is None
    fits = [
        name
        for name, labels in ZONES
        if rules.obstacle(labelled(labels)) is None
        and wanted.items() <= labels.items()
        and (affine or labels.get("zone") in ("a", "b"))
    ]
    assert " ".join(fits) == expected


@pytest.mark.rule("NR-12")
@pytest.mark.parametrize(
    ("policy", "tolerations", "expected"),
    [
        pytest.param(None, [], ["a1", "a2"], id="tainted domains count"),
        pytest.param("Honor", [], ["a1", "a2", "b1"], id="unless taints are honored"),
        pytest.param("Honor", [{"key": "t", "operator": "Exists"}], ["a1", "a2"], id="and not tolerated"),
    ],
)
def test_taints_are_ignored_or_honored(
    policy: str | None, tolerations: list[dict[str, str]], expected: list[str]
) -> None:
    nodes = three_nodes()
    nodes.put(node("b1", labels={"zone": "b"}, spec={"taints": [{"key": "t", "effect": "NoSchedule"}]}))
    nodes.put(node("c1", labels={"zone": "c"}))
    for it in webs("c1", "b1", "b1"):
        nodes.pods_by_node.put(it, it.spec.node_name)
    more: dict[str, Any] = {} if policy is None else {"nodeTaintsPolicy": policy}
    rules = nodes.rules_between(comes(spread(WEB, **more), tolerations=tolerations))
    assert [name for name in ("a1", "a2", "b1") if rules.obstacle(labelled({"zone": name[0]})) is None] == expected


@pytest.mark.rule("NR-12")
def test_a_cordoned_node_counts_even_if_taints_are_honored() -> None:
    """That a node is unschedulable is no taint by itself; the node controller adds one."""
    nodes = three_nodes(*webs("a1"))
    nodes.put(node("b1", labels={"zone": "b"}, spec={"unschedulable": True}))
    rules = nodes.rules_between(comes(spread(WEB, nodeTaintsPolicy="Honor")))
    assert rules.obstacle(labelled({"zone": "a"})) == Obstacle(SPREAD, "zone")


def test_a_node_affinity_that_cannot_be_understood_lets_no_node_count() -> None:
    rules = three_nodes(*webs("a1", "a2")).rules_between(comes(spread(WEB), affinity=LIKE))
    assert rules.obstacle(labelled({"zone": "a"})) is None, "no domain counts, so the pod itself is the only one"


@pytest.mark.rule("NR-13", "NR-14")
def test_a_pod_that_cannot_be_spread_waits_for_pods_that_count_and_for_domains() -> None:
    nodes = three_nodes(*webs("a1", "b1"))
    nodes.put(node("b1", labels={HOST: "b1", "zone": "b"}, spec={"unschedulable": True}))
    nodes.pods_by_node.remove("uid-web-1")
    nodes.put(node("x1", labels={}))
    answer = decide(comes(spread(WEB)), [], nodes, allocator())
    assert isinstance(answer, NoPlace)
    rule = "node(s) didn't match pod topology spread constraints"
    assert answer.message == (
        f"0/4 nodes are available: 2 {rule} (topology key zone), "
        f"1 {rule} (missing required label zone), 1 node(s) were unschedulable"
    )
    (hint,) = (it for it in answer.hints if isinstance(it, PodsChange))
    assert (hint.turn, ClusterEvent.NODE_GONE in answer.hints) == (Direction.ANY, True)
    (web,), (leaving,), (other,) = webs("a1"), webs("a1", leaving=True), webs("a1", namespace="other")
    assert hint.helped_by(web, leaving, nodes.pods_by_node), "it counts no more"
    assert hint.helped_by(None, web, nodes.pods_by_node)
    assert not hint.helped_by(None, leaving, nodes.pods_by_node)
    assert not hint.helped_by(None, other, nodes.pods_by_node)


def test_pods_placed_one_after_the_other_stay_within_the_skew() -> None:
    nodes = with_residents(ZONES[:4], [])
    for number in range(12):
        incoming = pod(f"p{number}", APP, topologySpreadConstraints=[spread(WEB)])
        chosen = next(
            state.name
            for state in sorted(nodes, key=lambda it: it.name)
            if nodes.rules_between(incoming).obstacle(state) is None
        )
        nodes.pods_by_node.put(incoming, chosen)
    counts = nodes.rules_between(comes(spread(WEB))).counts(Obstacle(SPREAD, "zone"))
    assert counts == {"a": 4, "b": 4, "c": 4}


def test_a_domain_that_comes_or_goes_changes_the_fewest() -> None:
    nodes = three_nodes(*webs("a1", "b1"))
    incoming = comes(spread(WEB))
    assert nodes.rules_between(incoming).obstacle(labelled({"zone": "a"})) is None
    nodes.put(node("c1", labels={"zone": "c"}))
    assert nodes.rules_between(incoming).obstacle(labelled({"zone": "a"})) == Obstacle(SPREAD, "zone")
    nodes.remove("c1")
    assert nodes.rules_between(incoming).obstacle(labelled({"zone": "a"})) is None
    assert isinstance(nodes.get("a1"), LoadedNode)
