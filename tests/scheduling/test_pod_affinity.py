"""Required affinity and anti-affinity of a pod that comes, to pods that are on nodes."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.core import Pod
from dra_operator.scheduling import NoPlace
from dra_operator.scheduling.rules import ClusterEvent
from dra_operator.scheduling.rules.inter_pod_affinity import POD_AFFINITY, POD_ANTI_AFFINITY, REPELLED
from dra_operator.scheduling.rules.node_rules import RESOURCE
from dra_operator.scheduling.rules.pod_topology_spread import SPREAD
from dra_operator.scheduling.rules.rule import Direction, PodsChange
from dra_operator.scheduling.state import LoadedNode
from dra_operator.scheduling.state.obstacle import Obstacle, Reason
from neighbour_lab import DB, HOST, WEB, away, expression, goes_to, near, pod, spread, term, three_nodes
from placement_lab import allocator, decide, labelled, node

RACK = {"rack": "r1"}
X = {"matchLabels": {"team": "x"}}


def comes(affinity: dict[str, Any], labels: dict[str, str] | None = None, **fields: Any) -> Pod:
    return pod("comes", labels, affinity=affinity, **fields)


def db(name: str = "db", on: str = "b1", labels: dict[str, str] | None = None, **fields: Any) -> Pod:
    return pod(name, {"app": "db", **(labels or {})}, on=on, **fields)


AFFINITY: dict[str, tuple[Pod, list[Pod], str | None]] = {
    "near a pod": (comes(near(term(DB, HOST))), [db()], "b1"),
    "in the domain of a pod": (comes(near(term(DB))), [db(on="a2")], "a1"),
    "not without such a pod": (comes(near(term(DB))), [], None),
    "not near other pods": (comes(near(term(WEB))), [db()], None),
    "not by a label that no node has": (comes(near(term(DB, "rack"))), [db()], None),
    "not near a pod on an unknown node": (comes(near(term(DB))), [db(on="gone")], None),
    "near a pod that is being deleted": (comes(near(term(DB))), [db(leaving=True)], "b1"),
    "not near a pod of another namespace": (comes(near(term(DB))), [db(namespace="other")], None),
    "near a pod of a namespace that is named": (
        comes(near(term(DB, namespaces=["other"]))),
        [db(namespace="other")],
        "b1",
    ),
    "not in its own namespace if others are named": (comes(near(term(DB, namespaces=["other"]))), [db()], None),
    "in every namespace": (comes(near(term(DB, namespaceSelector={}))), [db(namespace="no-labels")], "b1"),
    "in namespaces with labels": (comes(near(term(DB, namespaceSelector=X))), [db(namespace="x")], "b1"),
    "not in namespaces with other labels": (comes(near(term(DB, namespaceSelector=X))), [db(namespace="other")], None),
    "not in its own namespace if it is not selected": (comes(near(term(DB, namespaceSelector=X))), [db()], None),
    "in named and selected namespaces": (
        comes(near(term(DB, namespaces=["other"], namespaceSelector=X))),
        [db(namespace="other")],
        "b1",
    ),
    "without a selector near nothing": (comes(near(term())), [db()], None),
    "with an empty selector near anything": (comes(near(term({}))), [db()], "b1"),
    "one pod must meet all terms": (
        comes(near(term(DB), term(expression("Exists", key="tier")))),
        [db(), pod("tier", {"tier": "x"}, on="b1")],
        None,
    ),
    "one pod meets all terms": (
        comes(near(term(DB), term(expression("Exists", key="tier"), HOST))),
        [db(labels={"tier": "x"})],
        "b1",
    ),
    "each term in its own topology": (
        comes(near(term(DB), term(DB, HOST))),
        [db(on="a2")],
        "a2",
    ),
    "the first of a group goes anywhere": (comes(near(term(WEB)), {"app": "web"}), [], "a1"),
    "the first of a group goes anywhere with the label": (comes(near(term(WEB, "rack")), {"app": "web"}), [], None),
    "the first of a group, while pods of it are on no known node": (
        comes(near(term(WEB)), {"app": "web"}),
        [pod("web", {"app": "web"}, on="gone")],
        "a1",
    ),
    "the second of a group goes to the first": (
        comes(near(term(WEB)), {"app": "web"}),
        [pod("web", {"app": "web"}, on="b1")],
        "b1",
    ),
    "the first of a group by one term only": (comes(near(term(WEB), term(DB))), [], None),
    "of a group in another namespace": (comes(near(term(WEB, namespaces=["x"])), {"app": "web"}), [], None),
    "matchLabelKeys": (
        comes(near(term({"matchLabels": {}}, HOST, matchLabelKeys=["rev"])), {"rev": "2"}),
        [db("old", on="a1", labels={"rev": "1"}), db("new", on="b1", labels={"rev": "2"})],
        "b1",
    ),
    "mismatchLabelKeys": (
        comes(near(term(DB, HOST, mismatchLabelKeys=["rev"])), {"rev": "2"}),
        [db("old", on="b1", labels={"rev": "1"}), db("new", on="a1", labels={"rev": "2"})],
        "b1",
    ),
    "matchLabelKeys that the pod does not have": (comes(near(term(DB, matchLabelKeys=["rev"]))), [db()], "b1"),
    "matchLabelKeys that the server has merged before the label changed": (
        comes(near(term(expression("In", "1", key="rev"), HOST, matchLabelKeys=["rev"])), {"rev": "2"}),
        [db("old", on="b1", labels={"rev": "1"})],
        "b1",
    ),
}
ANTI: dict[str, tuple[Pod, list[Pod], str | None]] = {
    "not on the node": (comes(away(term(DB, HOST))), [db(on="a1")], "a2"),
    "not in the domain": (comes(away(term(DB))), [db(on="a2")], "b1"),
    "anywhere without such a pod": (comes(away(term(DB))), [], "a1"),
    "where the node has no such label": (comes(away(term(DB, "rack"))), [db(on="a1")], "a1"),
    "each term by itself": (comes(away(term(DB), term(WEB))), [db(on="a1"), pod("w", {"app": "web"}, on="b1")], None),
    "of one namespace": (comes(away(term(DB))), [db(on="a1", namespace="other")], "a1"),
    "of all namespaces": (comes(away(term(DB, namespaceSelector={}))), [db(on="a1", namespace="other")], "b1"),
    "of namespaces with labels": (comes(away(term(DB, namespaceSelector=X))), [db(on="a1", namespace="x")], "b1"),
    "itself does not count": (comes(away(term(WEB)), {"app": "web"}), [], "a1"),
    "from a pod that is being deleted": (comes(away(term(DB))), [db(on="a1", leaving=True)], "b1"),
    "matchLabelKeys": (comes(away(term(WEB, matchLabelKeys=["rev"])), {"rev": "2"}), [db(on="a1")], "a1"),
    "near some and away from others": (
        comes({**near(term(DB)), **away(term(WEB, HOST))}),
        [db(on="a1"), pod("w", {"app": "web"}, on="a1")],
        "a2",
    ),
}


CASES = {f"affinity: {name}": case for name, case in AFFINITY.items()}
CASES |= {f"anti-affinity: {name}": case for name, case in ANTI.items()}


@pytest.mark.rule("NR-01", "NR-02", "NR-03", "NR-04", "NR-06")
@pytest.mark.parametrize("name", CASES)
def test_pods_go_near_some_and_stay_away_from_others(name: str) -> None:
    incoming, pods_by_node, expected = CASES[name]
    nodes = three_nodes(*pods_by_node)
    nodes.pods_by_node.namespaces.update({"ns": {}, "other": {}, "x": {"team": "x"}})
    assert goes_to(incoming, nodes) == expected


MISSING, AVOIDED = near(term({"matchLabels": {"app": "cache"}})), away(term(DB))


@pytest.mark.rule("NR-06", "NR-13")
@pytest.mark.parametrize(
    ("asks", "first"),
    [
        ({"topologySpreadConstraints": [spread(WEB)], "affinity": {**MISSING, **AVOIDED}}, SPREAD),
        ({"affinity": {**MISSING, **AVOIDED}}, POD_AFFINITY),
        ({"affinity": AVOIDED}, POD_ANTI_AFFINITY),
        ({}, REPELLED),
    ],
)
def test_the_first_rule_that_a_node_breaks_is_its_reason(asks: dict[str, Any], first: Reason) -> None:
    nodes = three_nodes(db(on="a1", affinity=away(term(WEB))), pod("web", {"app": "web"}, on="a2"))
    found = nodes.rules_between(pod("comes", {"app": "web"}, **asks)).obstacle(labelled({HOST: "a1", "zone": "a"}))
    assert found is not None
    assert found.reason is first


@pytest.mark.rule("NR-02", "NR-07")
def test_a_pod_without_its_neighbour_waits_for_one_to_come() -> None:
    rule = "node(s) didn't match pod affinity rules (topology key zone)"
    answer = decide(comes(near(term(DB))), [], three_nodes(), allocator())
    assert isinstance(answer, NoPlace)
    assert answer.message == f"0/3 nodes are available: 3 {rule}"
    (hint,) = answer.hints
    assert isinstance(hint, PodsChange)
    assert hint.turn is Direction.MORE
    pods_by_node = three_nodes().pods_by_node
    assert hint.helped_by(None, db(), pods_by_node)
    assert hint.helped_by(pod("db", {"app": "web"}, on="b1"), db(), pods_by_node)
    assert not hint.helped_by(None, pod("web", {"app": "web"}, on="b1"), pods_by_node)
    assert not hint.helped_by(db(), None, pods_by_node)


@pytest.mark.rule("NR-04", "NR-07")
def test_a_pod_among_pods_to_stay_away_from_waits_for_one_to_go() -> None:
    rule = "node(s) didn't match pod anti-affinity rules (topology key zone)"
    nodes = three_nodes(db("one", on="a1"), db("other", on="b1"))
    answer = decide(comes(away(term(DB, namespaceSelector=X, namespaces=["ns"]))), [], nodes, allocator())
    assert isinstance(answer, NoPlace)
    assert answer.message == f"0/3 nodes are available: 3 {rule}"
    assert {ClusterEvent.NODE_GONE, ClusterEvent.NAMESPACE} < answer.hints
    (hint,) = (hint for hint in answer.hints if isinstance(hint, PodsChange))
    assert hint.helped_by(db(), None, nodes.pods_by_node)
    assert not hint.helped_by(None, db(), nodes.pods_by_node)


def test_a_group_waits_for_its_last_pod_to_go_from_where_no_room_is() -> None:
    first = pod("first", {"app": "web"}, on="a1")
    nodes = three_nodes(first)
    nodes.put(node("a1", labels={"zone": "a"}, spec={"unschedulable": True}))
    nodes.put(node("a2", labels={"zone": "a"}, spec={"unschedulable": True}))
    answer = decide(comes(near(term(WEB)), {"app": "web"}), [], nodes, allocator())
    assert isinstance(answer, NoPlace)
    (hint,) = (it for it in answer.hints if isinstance(it, PodsChange) and it.turn is Direction.NONE_LEFT)
    second = pod("second", {"app": "web"}, on="a1")
    nodes.pods_by_node.put(second, "a1")
    nodes.pods_by_node.remove(first.metadata.uid)
    assert not hint.helped_by(first, None, nodes.pods_by_node), "the second one is left"
    nodes.pods_by_node.remove(second.metadata.uid)
    assert hint.helped_by(second, None, nodes.pods_by_node)
    assert goes_to(comes(near(term(WEB)), {"app": "web"}), nodes) == "b1"


def test_only_obstacles_that_nodes_have_are_waited_for() -> None:
    nodes = three_nodes(db(on="b1"))
    for name in ("a1", "a2", "b1"):
        nodes.put(node(name, labels={"zone": name[0]}, spec={"unschedulable": True}))
    answer = decide(comes({**near(term(DB)), **away(term(WEB))}), [], nodes, allocator())
    assert isinstance(answer, NoPlace)
    assert answer.hints == frozenset(), "all nodes are cordoned"


def test_a_node_that_changes_its_domain_takes_its_pods_along() -> None:
    nodes = three_nodes(db(on="b1"))
    assert goes_to(comes(near(term(DB))), nodes) == "b1"
    nodes.put(node("b1", labels={HOST: "b1", "zone": "a"}))
    assert goes_to(comes(near(term(DB))), nodes) == "a1"
    nodes.remove("b1")
    assert goes_to(comes(near(term(DB))), nodes) is None
    nodes.put(node("b1", labels=RACK))
    nodes.put(node("c1", labels=RACK))
    assert goes_to(comes(near(term(DB, "rack"))), nodes) == "b1"


def test_what_is_counted_for_one_rule_costs_no_other_its_counts() -> None:
    """More selections and topologies than are kept: those that are asked again are counted anew."""
    nodes = three_nodes(db(on="b1"))
    rules = [comes(near(term(expression("NotIn", f"v{number}"), f"label-{number % 90}"))) for number in range(600)]
    for rule in rules:
        assert goes_to(rule, nodes) is None
    assert goes_to(comes(near(term(DB))), nodes) == "b1"
    state = nodes.get("b1")
    assert isinstance(state, LoadedNode)
    for rule in rules[:3]:
        nodes.put(node("b1", labels={"label-0": "x", "label-1": "x", "label-2": "x"}))
        assert goes_to(rule, nodes) == "b1"
        nodes.put(node("b1", labels={"zone": "b"}))
        assert goes_to(rule, nodes) is None


def test_kinds_of_obstacles_name_the_rule() -> None:
    kinds = {POD_AFFINITY, POD_ANTI_AFFINITY, REPELLED}
    hints = three_nodes(pod("r", on="a1", affinity=away(term(WEB)))).rules_between(
        comes({**near(term(DB)), **away(term(WEB))}, {"app": "web"})
    )
    for kind in kinds:
        assert hints.hints(frozenset({kind})), kind
    assert not hints.hints(frozenset({RESOURCE}))


def test_where_the_pods_are_that_a_rule_is_about_is_known_by_the_obstacle() -> None:
    nodes = three_nodes(db(on="b1"), pod("r", on="a1", affinity=away(term(WEB))))
    rules = nodes.rules_between(comes({**near(term(DB)), **away(term(DB))}, {"app": "web"}))
    assert rules.counts(Obstacle(POD_AFFINITY, "zone")) == {"b": 1}
    assert rules.counts(Obstacle(POD_ANTI_AFFINITY, "zone")) == {"b": 1}
    assert rules.counts(Obstacle(REPELLED, "zone")) == {"a": 1}
    assert rules.counts(Obstacle(RESOURCE, "cpu")) is None
