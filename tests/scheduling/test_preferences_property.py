"""The node that a pod gets is the one with the highest score by kube-scheduler's formulas, read literally."""

from __future__ import annotations

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_operator.scheduling import Nodes, Plan
from hypothesis import given, settings
from hypothesis import strategies as st
from neighbour_lab import REQUIRED, VALUES, Json, Oracle, labels, node_labels, selectors
from placement_lab import allocator, decide, node
from rounds import fewer
from score_oracle import PREFERRED, ScoreOracle

NAMES = ["n0", "n1", "n2", "n3"]
keys = st.sampled_from(["zone", "zone", "rack"])


@st.composite
def wishes(draw: st.DrawFn) -> list[Json]:
    """Preferred terms about pods."""
    return [
        {
            "weight": draw(st.integers(1, 100)),
            "podAffinityTerm": {"topologyKey": draw(keys), "labelSelector": draw(selectors())},
        }
        for _ in range(draw(st.sampled_from([0, 1, 2])))
    ]


@st.composite
def pods(draw: st.DrawFn, name: str, on: str = "") -> Json:
    affinity: Json = {}
    for kind in draw(st.sampled_from([(), ("podAffinity",), ("podAntiAffinity",), ("podAffinity", "podAntiAffinity")])):
        affinity[kind] = {PREFERRED: draw(wishes())}
    if on and draw(st.booleans()):
        near = {REQUIRED: [{"topologyKey": draw(keys), "labelSelector": draw(selectors())}]}
        affinity["podAffinity"] = {**affinity.get("podAffinity", {}), **near}
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "labels": draw(labels)}
    return {"metadata": meta, "spec": {"nodeName": on, "affinity": affinity}}


@st.composite
def incoming(draw: st.DrawFn) -> Json:
    pod = draw(pods("comes"))
    if draw(st.booleans()):
        pod["spec"]["affinity"]["nodeAffinity"] = {
            PREFERRED: [
                {
                    "weight": draw(st.integers(1, 100)),
                    "preference": {
                        "matchExpressions": [{"key": draw(keys), "operator": "In", "values": [draw(VALUES)]}]
                    },
                }
                for _ in range(draw(st.integers(1, 2)))
            ]
        }
    pod["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": draw(st.integers(1, 3)),
            "topologyKey": draw(keys),
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": draw(selectors()),
        }
        for _ in range(draw(st.sampled_from([0, 0, 1, 2])))
    ]
    pod["spec"]["tolerations"] = draw(st.sampled_from([[], [{"key": "t", "operator": "Exists"}]]))
    return pod


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Nodes, ScoreOracle]:
    its = {name: draw(node_labels) for name in NAMES}
    soft = {name: draw(st.sampled_from([[], [], ["t"], ["u"], ["t", "u"]])) for name in NAMES}
    used = {name: draw(st.integers(0, 3)) for name in NAMES}
    states = [
        node(
            name,
            labels=its[name],
            used={"cpu": str(used[name])},
            spec={"taints": [{"key": key, "effect": "PreferNoSchedule"} for key in soft[name]]},
        )
        for name in NAMES
    ]
    pods_by_node = [draw(pods(f"p{number}", draw(st.sampled_from(NAMES)))) for number in range(draw(st.integers(0, 4)))]
    nodes = Nodes(states)
    for each in pods_by_node:
        nodes.pods_by_node.put(convert(Pod, each), each["spec"]["nodeName"])
    free = {state.name: state.emptiness for state in states}
    return nodes, ScoreOracle(Oracle(its, pods_by_node, {}), soft, free)


@pytest.mark.rule("NR-20", "NR-22", "NR-23", "NR-24", "NR-25")
@settings(max_examples=fewer(200), deadline=None)
@given(incoming(), clusters())
def test_the_node_with_the_most_points_is_taken(pod: Json, cluster: tuple[Nodes, ScoreOracle]) -> None:
    nodes, oracle = cluster
    answer = decide(convert(Pod, pod), [], nodes, allocator())
    assert isinstance(answer, Plan)
    assert answer.node == oracle.best(pod)
