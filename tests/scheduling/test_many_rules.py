"""Pods with as many rules between pods as are looked at: what others' changes are compared with stays little."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any
from unittest.mock import patch

import pytest
from dra_api.core import Pod
from dra_api.meta import LabelSelector
from dra_api.selectors import Requirement, Selector
from dra_operator.scheduling import counted
from dra_operator.scheduling.cycle.filter import LABELS_PER_STEP, counting
from dra_operator.scheduling.nodes import BETWEEN_PODS, PodRules
from dra_operator.scheduling.pieces import PAUSE_STEPS
from dra_operator.scheduling.rules.node_rules import NodeName
from dra_operator.scheduling.rules.rule import MOST_HINTS, AnyPod, NodeRule, RuleSurroundings
from dra_operator.scheduling.state import topology
from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.pods_by_node import (
    KEPT_SELECTIONS,
    KEPT_SELECTIONS_WITHOUT_ANCHOR,
    DomainQuery,
    PodsByNode,
)
from dra_operator.scheduling.state.topology import PodSet, Selection, Topologies
from neighbour_lab import HOST, PREFERRED, away, expression, near, pod, spread, term, three_nodes


def terms(number: int) -> list[dict[str, Any]]:
    """About pods that lack one of so many labels."""
    return [term(expression("DoesNotExist", key=f"k{rule}"), HOST) for rule in range(number)]


def rules_of(number: int) -> PodRules:
    pods_by_node = PodsByNode()
    return PodRules(
        pod("p", affinity=away(*terms(number))),
        RuleSurroundings(pods_by_node, Topologies(lambda _name, _most: (), pods_by_node.forget)),
        BETWEEN_PODS,
    )


def calls_of(work: Callable[[], object]) -> int:
    """How many functions of Python the work calls: what it costs, whatever the machine has to do besides."""
    calls = 0

    def called(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def test_no_function_is_called_for_each_pod_that_is_counted() -> None:
    pods_by_node = PodsByNode()
    for number in range(1000):
        pods_by_node.put(pod(f"p{number}", {"app": "web"}), "n1")
    selection = Selection((PodSet(Selector(frozenset((Requirement("k", "DoesNotExist"),))), None),))
    assert calls_of(lambda: pods_by_node.count(selection)) < 500
    assert pods_by_node.count(selection).by_node == {"n1": 1000}


def spread_over(kind: str) -> Pod:
    """A pod with a hundred spread constraints, each over another topology."""
    listed = [spread(expression("DoesNotExist", key=f"k{rule}"), key=f"t{rule}") for rule in range(100)]
    return pod("p", topologySpreadConstraints=[it | {"whenUnsatisfiable": kind} for it in listed])


LIKED = [{"weight": 1, "podAffinityTerm": it} for it in terms(100)]
COMES = {
    "anti-affinity": pod("p", affinity=away(*terms(100))),
    "affinity": pod("p", affinity=near(*terms(100))),
    "preferences": pod("p", affinity={"podAffinity": {PREFERRED: LIKED}}),
    "spread that must be": spread_over("DoNotSchedule"),
    "spread that may be": spread_over("ScheduleAnyway"),
}


def passes_of(work: Callable[[], object]) -> int:
    """How often the work went through a list of pods."""
    with patch.object(Requirement, "among", autospec=True, side_effect=Requirement.among) as among:
        work()
    return among.call_count


@pytest.mark.parametrize("kind", COMES)
def test_the_pods_that_a_hundred_rules_ask_about_are_counted_in_pieces_and_then_looked_up(kind: str) -> None:
    nodes = three_nodes(*(pod(f"r{number}", on="a1") for number in range(1500)))
    counting = counted(COMES[kind], nodes)
    pieces = [passes_of(lambda: next(counting, None))]
    while pieces[-1]:
        pieces.append(passes_of(lambda: next(counting, None)))
    assert sum(pieces) == 100
    assert (max(pieces) - 1) * 1500 < PAUSE_STEPS * LABELS_PER_STEP
    assert passes_of(lambda: (nodes.rules_of(COMES[kind]), nodes.scores_of(COMES[kind]))) == 0


class Crowd(NodeRule):
    """A rule that counts all pods that lack a label."""

    SELECTION = Selection((PodSet(Selector(frozenset((Requirement("k", "DoesNotExist"),))), None),))

    @classmethod
    def of(cls, pod: Pod, around: RuleSurroundings) -> Crowd:
        around.pods_by_node.count(cls.SELECTION)
        return cls()

    @classmethod
    def queries(cls, pod: Pod, namespaces: object) -> Iterable[DomainQuery]:
        return (DomainQuery(cls.SELECTION, HOST),)

    def obstacle(self, state: LoadedNode, served: Collection[str]) -> None:
        return None


def test_what_is_counted_before_is_what_each_rule_of_the_list_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_operator.scheduling.cycle.filter.COUNTING", counting((Crowd, NodeName)))
    nodes = three_nodes(*(pod(f"r{number}", on="a1") for number in range(3)))
    comes = pod("p", affinity={})
    around = RuleSurroundings(nodes.pods_by_node, Topologies(lambda _name, _most: (), nodes.pods_by_node.forget))
    assert passes_of(lambda: list(counted(comes, nodes))) == 1
    assert passes_of(lambda: PodRules(comes, around, (Crowd,))) == 0


def test_pods_that_come_change_and_go_while_they_are_counted_count_as_they_are_then() -> None:
    pods_by_node = PodsByNode()
    for name in "abc":
        pods_by_node.put(pod(name), "n1")
    counting = pods_by_node.counting(
        Selection((PodSet(Selector(frozenset((Requirement("k", "DoesNotExist"),))), None),))
    )
    for _ in range(2):
        next(counting)
    pods_by_node.remove("uid-a")
    pods_by_node.put(pod("b", {"k": "v"}), "n1")
    pods_by_node.put(pod("d"), "n2")
    pods_by_node.put(pod("e", {"k": "v"}), "n2")
    with pytest.raises(StopIteration) as end:
        while True:
            next(counting)
    assert end.value.value.by_node == {"n1": 1, "n2": 1}
    assert list(pods_by_node.miscounted()) == []


def test_a_pod_with_few_rules_waits_for_what_can_help_and_nothing_else() -> None:
    assert AnyPod() not in rules_of(MOST_HINTS).hints()


def test_a_pod_with_many_rules_waits_for_any_change_of_a_pod() -> None:
    hints = rules_of(100).hints()
    assert AnyPod() in hints
    assert len(hints) <= 3
    assert AnyPod().helped_by(pod("a"), None, PodsByNode())


def test_counts_of_selections_that_are_forgotten_are_kept_up_to_date_no_more() -> None:
    """The topologies of nodes live on, and would hold and update the counts of each rule that ever was."""
    pods_by_node = PodsByNode()
    topologies = Topologies(lambda _name, _most: (), pods_by_node.forget)
    for number in range(2 * KEPT_SELECTIONS):
        selector = Selector.of(LabelSelector(match_labels={f"app-{number}": "x"}))
        pods_by_node.count(Selection((PodSet(selector, frozenset({"ns"})),))).within(topologies.get(HOST))
    assert len(topologies.get(HOST).counts) == KEPT_SELECTIONS
    for number in range(50):
        carrier = pod(f"p{number}", affinity=away(term({"matchLabels": {"app": "x"}}, HOST)))
        pods_by_node.put(carrier, "n1")
        keys = {HOST: 1}
        of_kind = pods_by_node.existing_anti_affinity(pod("comes", {"app": "x"}), keys)
        of_kind.by_key[HOST].within(topologies.get(HOST))
        pods_by_node.remove(carrier.metadata.uid)
    assert len(topologies.get(HOST).counts) == KEPT_SELECTIONS


def test_selections_without_an_anchor_are_counted_for_a_few_only() -> None:
    pods_by_node = PodsByNode()
    pods_by_node.put(pod("a"), "n1")
    for number in range(3 * KEPT_SELECTIONS_WITHOUT_ANCHOR):
        selector = Selector(frozenset((Requirement(f"k{number}", "DoesNotExist"),)))
        assert pods_by_node.count(Selection((PodSet(selector, None),))).by_node == {"n1": 1}
    assert sum(1 for _ in pods_by_node._selections.near({})) == KEPT_SELECTIONS_WITHOUT_ANCHOR


def test_counts_by_topologies_that_are_kept_no_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "KEPT_TOPOLOGIES", 1)
    pods_by_node = PodsByNode()
    topologies = Topologies(lambda _name, _most: (), pods_by_node.forget)
    carried = {"matchLabels": {"app": "x"}}
    pods_by_node.put(pod("p", affinity={**near(term(carried, HOST)), **away(term(carried, HOST))}), "n1")
    comes = pod("comes", {"app": "x"})
    counted = [
        pods_by_node.count(Selection((PodSet(Selector(frozenset()), None),))),
        pods_by_node.existing_anti_affinity(comes, (HOST,)).by_key[HOST],
        pods_by_node.existing_preferences(comes, (HOST,)).by_key[HOST],
    ]
    for population in counted:
        assert population.within(topologies.get(HOST)) is population.within(topologies.get(HOST))
    topologies.get("zone")
    assert [len(population._by_topology) for population in counted] == [0, 0, 0]


def test_a_count_that_went_wrong_is_noticed() -> None:
    pods_by_node = PodsByNode()
    carried = term({"matchLabels": {"app": "x"}}, HOST)
    pods_by_node.put(pod("p", affinity=away(carried)), "n1")
    selected = pods_by_node.count(Selection((PodSet(Selector(frozenset()), None),)))
    repelled = pods_by_node.existing_anti_affinity(pod("comes", {"app": "x"}), (HOST,)).by_key[HOST]
    for population, message in ((selected, r"the pods of .* are miscounted"), (repelled, "the pods with affinity or")):
        assert list(pods_by_node.miscounted()) == []
        population.add("n1", 1)
        (said,) = pods_by_node.miscounted()
        assert re.match(message, said)
        population.add("n1", -1)
