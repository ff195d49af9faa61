"""Opening a gate keeps to what the API server lets change of a gated pod, and means what it should."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import NodeSelector, NodeSelectorTerm
from dra_devcluster.apiserver.kinds.pod_rules import validate_update
from dra_ledger.node_selectors import matches
from dra_operator.kube.pods import open_gate
from hypothesis import given
from hypothesis import strategies as st
from placement_lab import node

Obj = dict[str, Any]
GATE = "dra.kopf.dev/allocate"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NODES = [node(f"n{number}", labels={"a": str(number % 2), "b": str(number // 2)}).node for number in range(4)]
EXPRESSION = st.builds(
    lambda key, operator, value: {"key": key, "operator": operator, "values": [value]},
    st.sampled_from("ab"),
    st.sampled_from(["In", "NotIn"]),
    st.sampled_from("01"),
)
FIELD = st.builds(
    lambda operator, name: {"key": "metadata.name", "operator": operator, "values": [name]},
    st.sampled_from(["In", "NotIn"]),
    st.sampled_from([node.metadata.name for node in NODES]),
)
TERM = st.builds(
    lambda expressions, fields: {
        field: items for field, items in (("matchExpressions", expressions), ("matchFields", fields)) if items
    },
    st.lists(EXPRESSION, max_size=2),
    st.lists(FIELD, max_size=2),
)
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}


@st.composite
def specs(draw: st.DrawFn) -> Obj:
    spec: Obj = {"schedulingGates": [{"name": name} for name in draw(st.permutations([GATE, "example.com/other"]))]}
    if draw(st.booleans()):
        spec["affinity"] = draw(st.sampled_from([{}, {"podAffinity": {}}, {"nodeAffinity": PREFERRED}]))
        terms = draw(st.lists(TERM, max_size=3))
        if terms:
            affinity = spec["affinity"] = copy.deepcopy(spec["affinity"])
            affinity.setdefault("nodeAffinity", {})[REQUIRED] = {"nodeSelectorTerms": terms}
    return spec


def chosen(spec: Obj) -> set[str]:
    """The nodes that the required affinity leaves."""
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED)
    if required is None:
        return {node.metadata.name for node in NODES}
    selector = convert(NodeSelector, required)
    return {node.metadata.name for node in NODES if matches(selector, node)}


@pytest.mark.rule("AA-05", "AA-06")
@given(specs(), TERM)
def test_the_pod_may_run_where_it_might_before_and_its_devices_are_reached(before: Obj, wanted: Obj) -> None:
    after = copy.deepcopy(before)
    assert open_gate(after, GATE, convert(NodeSelectorTerm, wanted))
    assert list(validate_update(after, before)) == []
    assert after["schedulingGates"] == [{"name": "example.com/other"}]
    reached = {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [wanted]}}}} if wanted else {}
    assert chosen(after) == chosen(before) & chosen(reached)


@given(specs(), TERM)
def test_an_open_gate_is_left_alone(spec: Obj, wanted: Obj) -> None:
    spec["schedulingGates"] = [{"name": "example.com/other"}]
    before = copy.deepcopy(spec)
    assert not open_gate(spec, GATE, convert(NodeSelectorTerm, wanted))
    assert spec == before
