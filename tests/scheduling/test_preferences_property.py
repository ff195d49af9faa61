"""The node that a pod gets is the one with the highest score by kube-scheduler's formulas, read literally.

The literal reading works on plain JSON, beside ``neighbour_lab``, and gives the scores of every node. Nodes come with
the share of their room that is free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_operator.scheduling import Nodes, Plan
from hypothesis import given, settings
from hypothesis import strategies as st
from neighbour_lab import REQUIRED, VALUES, Json, Oracle, label_keys, labels, node_labels, selectors
from placement_lab import allocator, decide, node
from rounds import fewer

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class ScoreOracle:
    """``around`` knows nodes, pods and namespaces; ``soft`` are the keys of each node's PreferNoSchedule taints."""

    def __init__(self, around: Oracle, soft: Mapping[str, list[str]], free: Mapping[str, float]) -> None:
        self.around, self.soft, self.free = around, soft, free

    def best(self, pod: Json) -> str:
        """The node that the pod should get, if all fit."""
        names = sorted(self.around.nodes)
        columns = [self._taints(pod, names), self._labels(pod, names), self._spread(pod, names), self._near(pod, names)]
        rooms = [int(100 * self.free[name]) for name in names]
        weights = [3, 2, 2, 2]
        totals = {
            name: sum(weight * column[number] for weight, column in zip(weights, columns, strict=True)) + rooms[number]
            for number, name in enumerate(names)
        }
        return min(names, key=lambda name: (-totals[name], -self.free[name], name))

    def _taints(self, pod: Json, names: list[str]) -> list[int]:
        tolerated = [each["key"] for each in pod["spec"].get("tolerations", [])]
        counts = [sum(taint not in tolerated for taint in self.soft.get(name, [])) for name in names]
        worst = max(counts)
        return [100 - 100 * count // worst if worst else 100 for count in counts]

    def _labels(self, pod: Json, names: list[str]) -> list[int]:
        wishes = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(PREFERRED) or []
        sums = []
        for name in names:
            its = self.around.nodes[name]
            met = (
                wish["weight"]
                for wish in wishes
                if all(its.get(each["key"]) in each["values"] for each in wish["preference"]["matchExpressions"])
            )
            sums.append(sum(met))
        most = max(sums)
        return [100 * each // most if most else 0 for each in sums]

    def _spread(self, pod: Json, names: list[str]) -> list[int]:
        listed = pod["spec"].get("topologySpreadConstraints") or []
        soft = [each for each in listed if each["whenUnsatisfiable"] == "ScheduleAnyway"]
        if not soft:
            return [0] * len(names)
        costs: dict[str, int] = {}
        for name in names:
            its = self.around.nodes[name]
            if all(each["topologyKey"] in its for each in soft):
                costs[name] = math.floor(sum(self._cost(each, pod, name, soft) for each in soft) + 0.5)
        most, least = max(costs.values(), default=0), min(costs.values(), default=0)
        best = {name: 100 * (most + least - cost) // most if most else 100 for name, cost in costs.items()}
        return [best.get(name, 0) for name in names]

    def _cost(self, each: Json, pod: Json, name: str, soft: list[Json]) -> float:
        key, selector = each["topologyKey"], label_keys(each, pod)
        nodes = self.around.nodes
        counted = [
            other
            for other, its in nodes.items()
            if all(one["topologyKey"] in its for one in soft) and self.around.counts(each, pod, other)
        ]
        there = [other for other in counted if nodes[other][key] == nodes[name][key]]
        pods = sum(self.around.is_counted(selector, pod, it, other) for it in self.around.pods for other in there)
        return pods * math.log(len({nodes[other][key] for other in counted}) + 2) + int(each["maxSkew"]) - 1

    def _near(self, pod: Json, names: list[str]) -> list[int]:
        sums = [sum(self._pull(pod, other, self.around.nodes[name]) for other in self.around.pods) for name in names]
        least, most = min(sums), max(sums)
        return [100 * (each - least) // (most - least) if most > least else 0 for each in sums]

    def _pull(self, pod: Json, other: Json, here: Json) -> int:
        found = 0
        for owner, about in ((pod, other), (other, pod)):
            affinity = owner["spec"].get("affinity") or {}
            for kind, sign in (("podAffinity", 1), ("podAntiAffinity", -1)):
                for wish in (affinity.get(kind) or {}).get(PREFERRED) or []:
                    term = wish["podAffinityTerm"]
                    if self.around.is_about(term, owner, about) and self.around.shares(term, other, here):
                        found += sign * wish["weight"]
        for term in ((other["spec"].get("affinity") or {}).get("podAffinity") or {}).get(REQUIRED) or []:
            if self.around.is_about(term, other, pod) and self.around.shares(term, other, here):
                found += 1
        return found


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
