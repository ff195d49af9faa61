"""Required anti-affinity of pods on nodes keeps other pods away."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_operator.placement import Nodes, NoPlace, Plan
from placement_lab import allocator, decide, node

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HOST, ZONE = "kubernetes.io/hostname", "zone"
WEB = {"matchLabels": {"app": "web"}}


def pod(name: str, labels: dict[str, str] | None = None, namespace: str = "ns", status: Any = None, **spec: Any) -> Pod:
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels or {}}
    return convert(Pod, {"metadata": meta, "spec": spec, "status": status or {}})


def repeller(*terms: dict[str, Any], on: str = "a1", **fields: Any) -> Pod:
    return pod("there", nodeName=on, affinity={"podAntiAffinity": {REQUIRED: list(terms)}}, **fields)


def term(selector: dict[str, Any] | None = None, key: str = HOST, **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, **({} if selector is None else {"labelSelector": selector}), **more}


def three_nodes(*pods: Pod) -> Nodes:
    """``a1`` and ``a2`` in zone a, ``b1`` in zone b; the names say which is tried first."""
    nodes = Nodes([node(name, labels={HOST: name, ZONE: name[0]}) for name in ("a1", "a2", "b1")])
    for it in pods:
        nodes.repulsion.put(it)
    return nodes


def place(comes: Pod, nodes: Nodes) -> str | None:
    answer = decide(comes, [], nodes, allocator())
    return answer.node if isinstance(answer, Plan) else None


def expression(operator: str, *values: str, key: str = "app") -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


COMES = pod("comes", {"app": "web"})
CASES: dict[str, tuple[Pod, str]] = {
    "from its own node": (repeller(term(WEB)), "a2"),
    "from the nodes that share the topology": (repeller(term(WEB, key=ZONE)), "b1"),
    "not by a label that the node does not have": (repeller(term(WEB, key="rack")), "a1"),
    "not from a node that does not exist": (repeller(term(WEB), on="gone"), "a1"),
    "not if it has other labels": (repeller(term({"matchLabels": {"app": "db"}})), "a1"),
    "not if it lacks one of the labels": (repeller(term({"matchLabels": {"app": "web", "tier": "x"}})), "a1"),
    "not by a term without selector": (repeller(term()), "a1"),
    "by an empty selector": (repeller(term({})), "a2"),
    "by the second term": (repeller(term({"matchLabels": {"app": "db"}}), term(WEB)), "a2"),
    "In": (repeller(term(expression("In", "web", "db"))), "a2"),
    "not In": (repeller(term(expression("In", "db"))), "a1"),
    "NotIn": (repeller(term(expression("NotIn", "db"))), "a2"),
    "NotIn without the label": (repeller(term(expression("NotIn", "db", key="tier"))), "a2"),
    "not NotIn": (repeller(term(expression("NotIn", "web"))), "a1"),
    "Exists": (repeller(term(expression("Exists"))), "a2"),
    "not Exists": (repeller(term(expression("Exists", key="tier"))), "a1"),
    "DoesNotExist": (repeller(term(expression("DoesNotExist", key="tier"))), "a2"),
    "not DoesNotExist": (repeller(term(expression("DoesNotExist"))), "a1"),
    "not from another namespace": (repeller(term(WEB), namespace="other"), "a1"),
    "from a namespace that names this one": (repeller(term(WEB, namespaces=["x", "ns"]), namespace="other"), "a2"),
    "not from a namespace that names others": (repeller(term(WEB, namespaces=["x"])), "a1"),
    "by a selector of all namespaces": (repeller(term(WEB, namespaceSelector={}), namespace="other"), "a2"),
    "by any selector of namespaces": (
        repeller(term(WEB, namespaceSelector={"matchLabels": {"team": "x"}}), namespace="other"),
        "a2",
    ),
    "not by a pod that is done": (repeller(term(WEB), status={"phase": "Succeeded"}), "a1"),
    "not by a pod without node": (repeller(term(WEB), on=""), "a1"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_pod_is_kept_away(case: str) -> None:
    there, expected = CASES[case]
    assert place(COMES, three_nodes(there)) == expected


def test_a_pod_kept_away_from_all_nodes_waits_for_another_to_end() -> None:
    nodes = three_nodes(repeller(term(WEB, key=ZONE)))
    nodes.remove("b1")
    text = "0/2 nodes are available: 2 node(s) had pods whose required anti-affinity keeps the pod away"
    assert decide(COMES, [], nodes, allocator()) == NoPlace(text, short_of_room=True)


def test_the_last_version_of_a_pod_counts() -> None:
    nodes = three_nodes(repeller(term(WEB, namespaces=["ns", "other"]), on="a1"))
    nodes.repulsion.put(repeller(term(WEB), on="a2"))
    assert nodes.repelling(COMES) == {HOST: {"a2"}}
    nodes.repulsion.remove("ns/there")
    nodes.repulsion.remove("ns/unknown")
    assert nodes.repelling(COMES) == {}
