"""Nodes in order while they come, go and change."""

from __future__ import annotations

import pytest
from dra_operator.scheduling import Nodes
from dra_operator.scheduling.rules.node_rules import OTHER_NODE
from dra_operator.scheduling.state import Obstacle, add, subtract
from placement_lab import node, pod


def test_nodes_stay_in_both_orders_while_they_come_go_and_change() -> None:
    nodes = Nodes([node("b"), node("c", used={"cpu": "2"}), node("a", used={"cpu": "1"})])
    assert (nodes.names(), list(nodes.best_first())) == (["a", "b", "c"], ["b", "a", "c"])
    nodes.put(node("b", used={"cpu": "3"}))
    assert (nodes.names(), list(nodes.best_first())) == (["a", "b", "c"], ["a", "c", "b"])
    nodes.remove("a")
    nodes.remove("unknown")
    assert (nodes.names(), list(nodes.best_first())) == (["b", "c"], ["c", "b"])
    assert ("a" in nodes, "b" in nodes, len(nodes), nodes.get("a")) == (False, True, 2, None)


def test_a_node_that_no_longer_counts_a_resource_is_forgotten_for_it() -> None:
    nodes = Nodes([node("a", allocatable={"example.com/gpu": "1"}), node("b")])
    assert nodes.counting("example.com/gpu") == {"a"}
    nodes.put(node("a"))
    assert nodes.counting("example.com/gpu") == frozenset()


def test_nodes_that_came_went_or_changed_are_remembered() -> None:
    nodes = Nodes([node("changes"), node("goes"), node("stays")])
    seen = nodes.changes.revision
    nodes.put(node("changes", used={"cpu": "1"}))
    nodes.put(node("comes"))
    nodes.remove("goes")
    nodes.remove("unknown")
    assert nodes.changes.since(seen) == {"changes", "comes", "goes"}


def test_the_largest_node_is_known_while_nodes_come_go_and_change() -> None:
    nodes = Nodes()
    found = [nodes.largest_cpu]
    for name, cpu in (("a", "4"), ("b", "16"), ("c", "16"), ("b", "8")):
        nodes.put(node(name, allocatable={"cpu": cpu}))
        found.append(nodes.largest_cpu)
    for name in ("c", "b", "a"):
        nodes.remove(name)
        found.append(nodes.largest_cpu)
    assert [it // 10**9 for it in found] == [0, 4, 16, 16, 16, 8, 4, 0]


@pytest.mark.parametrize(
    ("count", "names"), [(2, ["n0", "n2"]), (3, ["n0", "n1", "n3"]), (5, ["n0", "n1", "n2", "n3", "n4"])]
)
def test_a_sample_is_spread_evenly(count: int, names: list[str]) -> None:
    assert Nodes([node(f"n{number}") for number in range(5)]).spread(count) == names


def test_what_a_pod_took_can_be_subtracted_again() -> None:
    used = add({"cpu": 1}, {"cpu": 2, "memory": 3})
    assert used == {"cpu": 3, "memory": 3}
    assert subtract(used, {"cpu": 2, "memory": 3}) == {"cpu": 1}


def test_a_pod_that_names_its_node_runs_on_no_other() -> None:
    named = Nodes().rules_of(pod(nodeName="n1"))
    assert named.obstacle(node("n1")) is None
    assert named.obstacle(node("n2")) == Obstacle(OTHER_NODE)
