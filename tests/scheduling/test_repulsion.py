"""Required anti-affinity of pods on nodes keeps other pods away."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.resource import ResourceClaim
from dra_operator.scheduling import NoPlace
from dra_operator.scheduling.rules import ClusterEvent, Hint
from dra_operator.scheduling.rules.rule import RepellerGone
from dra_operator.scheduling.state import placeholder_of
from neighbour_lab import DB, HOST, WEB, ZONE, away, expression, goes_to, pod, term, three_nodes
from placement_lab import allocator, decide

X = {"matchLabels": {"team": "x"}}


def repeller(*terms: dict[str, Any], on: str = "a1", **fields: Any) -> Pod:
    return pod("there", on=on, affinity=away(*terms), **fields)


def host(selector: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return term(selector, HOST, **more)


COMES = pod("comes", {"app": "web"})
BOTH = {"matchLabels": {"app": "web", "tier": "x"}}
CASES: dict[str, tuple[Pod, str]] = {
    "from its own node": (repeller(host(WEB)), "a2"),
    "from the nodes that share the topology": (repeller(term(WEB)), "b1"),
    "not by a label that the node does not have": (repeller(term(WEB, "rack")), "a1"),
    "not from a node that does not exist": (repeller(host(WEB), on="gone"), "a1"),
    "not if it has other labels": (repeller(host(DB)), "a1"),
    "not if it lacks one of the labels": (repeller(host(BOTH)), "a1"),
    "not by a term without selector": (repeller(host()), "a1"),
    "by an empty selector": (repeller(host({})), "a2"),
    "by the second term": (repeller(host(DB), host(WEB)), "a2"),
    "In": (repeller(host(expression("In", "web", "db"))), "a2"),
    "not In": (repeller(host(expression("In", "db"))), "a1"),
    "NotIn": (repeller(host(expression("NotIn", "db"))), "a2"),
    "NotIn without the label": (repeller(host(expression("NotIn", "db", key="tier"))), "a2"),
    "not NotIn": (repeller(host(expression("NotIn", "web"))), "a1"),
    "Exists": (repeller(host(expression("Exists"))), "a2"),
    "not Exists": (repeller(host(expression("Exists", key="tier"))), "a1"),
    "DoesNotExist": (repeller(host(expression("DoesNotExist", key="tier"))), "a2"),
    "not DoesNotExist": (repeller(host(expression("DoesNotExist"))), "a1"),
    "not by an operator that does not exist": (repeller(host(expression("Like", "web"))), "a1"),
    "not from another namespace": (repeller(host(WEB), namespace="other"), "a1"),
    "from a namespace that names this one": (repeller(host(WEB, namespaces=["x", "ns"]), namespace="other"), "a2"),
    "not from a namespace that names others": (repeller(host(WEB, namespaces=["x"])), "a1"),
    "by a selector of all namespaces": (repeller(host(WEB, namespaceSelector={}), namespace="other"), "a2"),
    "by a selector of its namespace": (repeller(host(WEB, namespaceSelector=X), namespace="other"), "a2"),
    "not by a selector of other namespaces": (
        repeller(host(WEB, namespaceSelector={"matchLabels": {"team": "y"}})),
        "a1",
    ),
    "by a pod that is being deleted": (repeller(host(WEB), leaving=True), "a2"),
}


@pytest.mark.rule("NR-05")
@pytest.mark.parametrize("case", CASES)
def test_a_pod_is_kept_away(case: str) -> None:
    there, expected = CASES[case]
    nodes = three_nodes(there)
    nodes.pods_by_node.namespaces["ns"] = {"team": "x"}
    assert goes_to(COMES, nodes) == expected


def test_a_selector_of_namespaces_sees_no_labels_where_the_namespace_is_not_known() -> None:
    assert goes_to(COMES, three_nodes(repeller(host(WEB, namespaceSelector=X), namespace="other"))) == "a1"


@pytest.mark.rule("NR-05", "NR-07")
def test_a_pod_kept_away_from_all_nodes_waits_for_what_keeps_it_away() -> None:
    nodes = three_nodes(repeller(term(WEB)))
    nodes.remove("b1")
    rule = "node(s) didn't satisfy existing pods anti-affinity rules (topology key zone)"
    hints: frozenset[Hint] = frozenset({RepellerGone.of(COMES), ClusterEvent.NODE_GONE})
    assert decide(COMES, [], nodes, allocator()) == NoPlace(
        f"0/2 nodes are available: 2 {rule}", "repelled", hints=hints
    )


def test_a_pod_repels_no_more_from_where_it_was() -> None:
    nodes = three_nodes(repeller(host(WEB, namespaces=["ns", "other"]), on="a1"))
    nodes.pods_by_node.put(repeller(host(WEB), on="a2"), "a2")
    assert goes_to(COMES, nodes) == "a1"
    nodes.pods_by_node.put(repeller(term(WEB, ZONE), on="a2"), "a2")
    assert goes_to(COMES, nodes) == "b1"
    nodes.pods_by_node.remove("uid-there")
    nodes.pods_by_node.remove("uid-unknown")
    assert goes_to(COMES, nodes) == "a1"


def test_a_claim_that_gets_devices_without_a_pod_is_kept_away_by_none() -> None:
    claim = convert(ResourceClaim, {"metadata": {"namespace": "ns", "name": "c", "uid": "uid-c"}})
    nodes = three_nodes(repeller(term({})))
    assert goes_to(placeholder_of(claim, "dra-scheduler"), nodes) == "a1"


@pytest.mark.parametrize(
    ("after", "helps"),
    [
        pytest.param(None, True, id="it is gone"),
        pytest.param(repeller(term(WEB), labels={"new": "label"}), False, id="it has other labels"),
    ],
)
def test_only_the_end_of_what_keeps_a_pod_away_helps_it(after: Pod | None, helps: bool) -> None:
    pods_by_node = three_nodes().pods_by_node
    hint = RepellerGone.of(COMES)
    assert hint.helped_by(repeller(term(WEB)), after, pods_by_node) is helps
    assert not hint.helped_by(repeller(term(DB)), None, pods_by_node), "a pod that kept others away"
    assert not hint.helped_by(None, repeller(term(WEB)), pods_by_node), "a pod that comes"
