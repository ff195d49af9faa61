"""Pods that compare every node with much: a topology is made in pieces, and a selector of nodes is looked up once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
from dra_api.cache import Cache
from dra_operator.scheduling import Nodes, counted
from dra_operator.scheduling.state.node import steps_per_node
from dra_operator.scheduling.state.pods_by_node import MOST_LABELS, has_too_many_rules
from dra_operator.scheduling.state.topology import DomainsByNode, NodeScope, Topologies
from neighbour_lab import REQUIRED, ZONE, expression, pod, spread
from placement_lab import node

LABEL, FIELD = "matchExpressions", "matchFields"
NODES = 1000


def selects(kind: str, terms: int, asked: int = 1) -> dict[str, Any]:
    """Affinity to nodes that meet one of so many terms, each of which asks for so much."""
    key = "metadata.name" if kind == FIELD else "l"
    listed = [
        {kind: [{"key": key, "operator": "NotIn", "values": [f"q{number}"]} for number in range(asked)]}
        for _ in range(terms)
    ]
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": listed}}}


def cluster(size: int = NODES) -> Nodes:
    return Nodes([node(f"n{number:03}", labels={ZONE: f"z{number % 3}"}) for number in range(size)])


def test_a_new_topology_is_filled_in_pieces() -> None:
    comes = pod("p", affinity=selects(LABEL, 200), topologySpreadConstraints=[spread(expression("Exists"))])
    counting, pieces, is_over = counted(comes, cluster()), [0], False
    with patch.object(DomainsByNode, "put", autospec=True, side_effect=DomainsByNode.put) as put:
        while not is_over:
            is_over = next(counting, None) is None
            pieces.append(put.call_count)
    assert pieces[-1] == NODES
    assert max(after - before for before, after in pairwise(pieces)) * 200 < 50_000


def test_nodes_that_come_change_and_go_while_a_topology_is_made_count_as_they_are_then() -> None:
    nodes = cluster(30)
    topologies: Topologies = nodes._topologies
    making = topologies.making(ZONE, NodeScope(frozenset((ZONE,))))
    with patch("dra_operator.scheduling.state.topology.TOPOLOGY_PART_LABELS", 1):
        next(making)
        for name in ("n000", "n020"):
            nodes.remove(name)
        for name, zone in (("n001", "new"), ("n021", "new"), ("m", "z0"), ("o", "z0")):
            nodes.put(node(name, labels={ZONE: zone}))
        list(making)
    made = topologies.get(ZONE, NodeScope(frozenset((ZONE,))))
    assert made.domain_of == {it.name: (it.node.metadata.labels or {})[ZONE] for it in nodes}
    assert made.size["new"] == 2


def test_what_a_kubelet_says_of_its_node_is_not_compared_with_topologies() -> None:
    nodes = cluster(3)
    nodes._topologies.get(ZONE)
    with patch.object(DomainsByNode, "put", autospec=True, side_effect=DomainsByNode.put) as put:
        nodes.put(node("n001", labels={ZONE: "z1"}, allocatable={"cpu": "8"}))
        assert put.call_count == 0
        nodes.put(node("n001", labels={ZONE: "z2"}))
        assert put.call_count == 1


def test_a_selector_of_nodes_is_looked_up_once_for_all_nodes() -> None:
    nodes = cluster(50)
    rules = nodes.rules_of(pod("p", affinity=selects(LABEL, 3)))
    with patch.object(Cache, "get", autospec=True, side_effect=Cache.get) as get:
        assert [rules.obstacle(state, ()) for state in nodes] == [None] * 50
    assert get.call_count == 1


@pytest.mark.parametrize("kind", [LABEL, FIELD])
def test_all_that_a_term_asks_of_nodes_counts(kind: str) -> None:
    comes = pod("p", affinity=selects(kind, 1, 400), topologySpreadConstraints=[spread(expression("Exists"))])
    assert steps_per_node(comes) >= 20
    assert not has_too_many_rules(comes)
    comes = pod("p", affinity=selects(kind, 1, MOST_LABELS), topologySpreadConstraints=[spread(expression("Exists"))])
    assert has_too_many_rules(comes)
