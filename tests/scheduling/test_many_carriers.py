"""Pods on nodes with terms about others by the thousand: what they ask of a pod that comes is found once, in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from dra_api.core import Pod
from dra_operator.scheduling import Nodes, counted
from dra_operator.scheduling.cycle.filter import LABELS_PER_STEP
from dra_operator.scheduling.pieces import PAUSE_STEPS
from dra_operator.scheduling.state.pods_by_node import KEPT_ANSWERS, KEPT_ANSWERS_OF_NAMESPACE
from dra_operator.scheduling.state.topology import AffinityTerm, DomainsByNode
from neighbour_lab import HOST, PREFERRED, away, expression, pod, term, three_nodes
from placement_lab import node

PODS, TERMS = 60, 100


def apart(number: int, key: str = HOST, terms: int = TERMS) -> dict[str, Any]:
    """Anti-affinity to the pods of all namespaces, by labels that no index answers."""
    listed = [expression("DoesNotExist", key=f"k{number}-{it}") for it in range(terms)]
    return away(*(term(each, key, namespaceSelector={}) for each in listed))


def liking(number: int) -> dict[str, Any]:
    required = apart(number)["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return {"podAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": it} for it in required]}}


def hostile(affinity: Callable[[int], dict[str, Any]], pods: int = PODS) -> Nodes:
    return three_nodes(*(pod(f"r{it}", on="a1", namespace="evil", affinity=affinity(it)) for it in range(pods)))


def comes(namespace: str = "good", app: str = "web") -> Pod:
    return pod("p", {"app": app}, namespace=namespace)


def compared(work: Callable[[], object]) -> int:
    """With how many terms the work compared a pod."""
    with patch.object(AffinityTerm, "concerns", autospec=True, side_effect=AffinityTerm.concerns) as concerns:
        work()
    return concerns.call_count


@pytest.mark.parametrize("kind", [apart, liking], ids=["anti-affinity", "preferences"])
def test_the_terms_of_thousands_are_compared_once_and_in_pieces(kind: Callable[[int], dict[str, Any]]) -> None:
    nodes = hostile(kind)
    counting = counted(comes(), nodes)
    pieces = [compared(lambda: next(counting, None))]
    while pieces[-1]:
        pieces.append(compared(lambda: next(counting, None)))
    assert sum(pieces) == PODS * TERMS
    assert max(pieces) * 10 < PAUSE_STEPS * LABELS_PER_STEP
    again = comes()
    assert compared(lambda: (list(counted(again, nodes)), nodes.rules_of(again), nodes.scores_of(again))) == 0
    fits = {state.name: nodes.rules_of(again).obstacle(state, ()) is None for state in nodes}
    assert fits == {"a1": kind is liking, "a2": True, "b1": True}


def test_pods_that_come_and_go_while_terms_are_compared_count_as_they_are_then() -> None:
    nodes = hostile(apart, pods=20)
    there = nodes.pods_by_node
    with patch("dra_operator.scheduling.state.pods_by_node.CARRIER_PART_LABELS", 1):
        finding = there.finding(comes(), (HOST,))
        for number in range(8):
            next(finding)
            there.remove(f"uid-r{number}")
            there.remove(f"uid-r{19 - number}")
            there.put(pod(f"new{number}", on="b1", namespace="evil", affinity=apart(number, terms=2)), "b1")
            there.put(pod("r10", on="a2", namespace="evil", affinity=apart(10, terms=number)), "a2")
        list(finding)
    assert list(there.miscounted()) == []
    assert there.existing_anti_affinity(comes(), (HOST,)).by_key[HOST].by_node == {"a1": 3 * TERMS, "a2": 7, "b1": 16}
    for uid, _ in list(there):
        there.remove(uid)
    assert list(there.miscounted()) == []
    assert not there.existing_anti_affinity(comes(), (HOST,)).by_key


def test_a_namespace_whose_labels_change_is_asked_about_again() -> None:
    nodes = three_nodes(
        pod("r", on="a1", affinity=away(term({}, HOST, namespaceSelector={"matchLabels": {"team": "a"}})))
    )
    there = nodes.pods_by_node
    assert not there.existing_anti_affinity(comes(), (HOST,)).by_key
    there.namespaces["good"] = {"team": "a"}
    assert there.existing_anti_affinity(comes(), (HOST,)).by_key[HOST].by_node == {"a1": 1}
    there.namespaces["good"] = {}
    assert not there.existing_anti_affinity(comes(), (HOST,)).by_key


def test_topology_keys_that_no_node_has_cost_nothing() -> None:
    nodes = hostile(lambda number: apart(number, f"key{number}", terms=1))
    with patch.object(DomainsByNode, "put", autospec=True, side_effect=DomainsByNode.put) as put:
        assert nodes.rules_of(comes()).obstacle(nodes._states["a1"], ()) is None
    assert put.call_count == 0
    assert not nodes.pods_by_node.existing_anti_affinity(comes(), nodes._topologies.label_keys).by_key
    nodes.put(node("new", labels={"key7": "here"}))
    assert nodes.pods_by_node.existing_anti_affinity(comes(), nodes._topologies.label_keys).by_key["key7"].by_node == {
        "a1": 1
    }


def test_the_pods_of_one_namespace_drive_out_no_answers_to_others() -> None:
    nodes = hostile(apart, pods=1)
    for number in range(KEPT_ANSWERS_OF_NAMESPACE):
        nodes.pods_by_node.existing_anti_affinity(comes(app=f"a{number}"), (HOST,))
    for number in range(3 * KEPT_ANSWERS):
        nodes.pods_by_node.existing_anti_affinity(comes("evil", f"a{number}"), (HOST,))
    assert (
        compared(
            lambda: [
                nodes.pods_by_node.existing_anti_affinity(comes(app=f"a{it}"), (HOST,))
                for it in range(KEPT_ANSWERS_OF_NAMESPACE)
            ]
        )
        == 0
    )
    assert compared(lambda: nodes.pods_by_node.existing_anti_affinity(comes("evil", "a0"), (HOST,))) == TERMS
