"""Pods at our scheduling gate: which ones they are, and which nodes reach their devices."""

from __future__ import annotations

import pytest
from dra_api.codec import convert, to_dict
from dra_api.core import NodeSelector
from dra_operator.scheduling.state import is_at_gate, reach
from placement_lab import node, pod

ON_N1 = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
FAST = {"matchExpressions": [{"key": "net", "operator": "In", "values": ["fast"]}]}
LOOSE = {"matchExpressions": [{"key": "rack", "operator": "DoesNotExist"}]}
VOLCANO = "scheduling.volcano.sh/queue-allocation-gate"
RACK = {"matchExpressions": [{"key": "rack", "operator": "Exists"}]}


@pytest.mark.rule("AA-01")
@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        ([], False),
        (["dra.kopf.dev/allocate"], True),
        (["kueue.x-k8s.io/admission"], False),
        (["kueue.x-k8s.io/admission", "dra.kopf.dev/allocate"], False),
        (["dra.kopf.dev/allocate", VOLCANO], True),
        (["kueue.x-k8s.io/admission", "dra.kopf.dev/allocate", VOLCANO], False),
        ([VOLCANO], False),
    ],
)
def test_a_pod_is_at_the_gate_when_ours_is_the_next_to_go(gates: list[str], expected: bool) -> None:
    assert is_at_gate(pod(schedulingGates=[{"name": name} for name in gates])) is expected


@pytest.mark.rule("AA-05")
@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        ([], {}),
        ([None], {}),
        ([[ON_N1]], ON_N1),
        ([[ON_N1], None, [ON_N1]], ON_N1),
        ([[ON_N1], [FAST]], ON_N1 | FAST),
        ([[FAST], [LOOSE]], {"matchExpressions": FAST["matchExpressions"] + LOOSE["matchExpressions"]}),
        ([[RACK, FAST]], FAST),
        ([[{}, FAST]], FAST),
        ([[RACK]], None),
        ([[FAST], []], None),
    ],
)
def test_requirements_of_all_allocations_are_joined(
    selectors: list[list[object] | None], expected: dict[str, object] | None
) -> None:
    """Node n1 is on the fast net and in no rack."""
    parsed = [None if terms is None else convert(NodeSelector, {"nodeSelectorTerms": terms}) for terms in selectors]
    found = reach(parsed, node("n1", labels={"net": "fast"}).node)
    shown = None if found is None else {field: items for field, items in to_dict(found).items() if items}
    assert shown == expected


def test_a_node_that_is_gone_reaches_nothing_that_is_bound_to_nodes() -> None:
    assert reach([convert(NodeSelector, {"nodeSelectorTerms": [ON_N1]})], None) is None
    assert reach([None], None) is not None
