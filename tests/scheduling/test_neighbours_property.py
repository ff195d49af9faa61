"""Rules between pods agree with their literal reading at every step of any history of pods, nodes and namespaces."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_operator.scheduling import Nodes
from hypothesis import given, settings
from hypothesis import strategies as st
from neighbour_lab import REQUIRED, Json, Oracle, labels, node_labels, selectors
from placement_lab import labelled, node
from rounds import fewer

NAMES, NAMESPACES = ["n0", "n1", "n2"], ["ns", "other"]
NAMESPACE_OF = {"p0": "ns", "p1": "ns", "p2": "other", "p3": "other"}


@st.composite
def terms(draw: st.DrawFn) -> list[Json]:
    def term() -> Json:
        found: Json = {"topologyKey": draw(st.sampled_from(["zone", "zone", "rack"]))}
        for field, values in (
            ("labelSelector", st.one_of(selectors(), selectors(), selectors(), st.none())),
            ("namespaceSelector", st.one_of(st.none(), st.none(), st.none(), selectors())),
            ("namespaces", st.sampled_from([None, None, None, ["other"], ["ns", "other"]])),
        ):
            if (value := draw(values)) is not None:
                found[field] = value
        return found

    return [term() for _ in range(draw(st.sampled_from([0, 1, 1, 2])))]


@st.composite
def constraints(draw: st.DrawFn) -> list[Json]:
    def constraint() -> Json:
        found: Json = {
            "maxSkew": draw(st.integers(1, 2)),
            "topologyKey": draw(st.sampled_from(["zone", "zone", "rack"])),
            "whenUnsatisfiable": draw(st.sampled_from(["DoNotSchedule"] * 5 + ["ScheduleAnyway"])),
        }
        for field, values in (
            ("labelSelector", st.one_of(selectors(), selectors(), selectors(), st.none(), st.just({}))),
            ("minDomains", st.sampled_from([None, None, 2, 3])),
            ("nodeAffinityPolicy", st.sampled_from([None, "Honor", "Ignore"])),
            ("nodeTaintsPolicy", st.sampled_from([None, "Honor", "Ignore"])),
            ("matchLabelKeys", st.sampled_from([None, None, ["tier"]])),
        ):
            if (value := draw(values)) is not None:
                found[field] = value
        return found

    return [constraint() for _ in range(draw(st.sampled_from([1, 1, 2])))]


@st.composite
def pods(draw: st.DrawFn, name: str) -> Json:
    """A version of the pod: all that are placed have the same namespace, since they have one UID."""
    meta: Json = {
        "name": name,
        "namespace": draw(st.sampled_from(["ns", "ns", "other"])) if name == "comes" else NAMESPACE_OF[name],
        "uid": f"uid-{name}",
        "labels": draw(labels),
    }
    if draw(st.booleans()) and name != "comes":
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    kinds = draw(st.sampled_from([("podAffinity",), ("podAntiAffinity",), ("podAffinity", "podAntiAffinity"), ()]))
    affinity = {kind: {REQUIRED: draw(terms())} for kind in kinds}
    spec: Json = {"nodeName": "", "affinity": affinity}
    if name == "comes":
        spec["topologySpreadConstraints"] = draw(st.sampled_from([[], draw(constraints())]))
        spec["nodeSelector"] = draw(st.sampled_from([{}, {}, {"zone": "x"}, {"rack": "x"}]))
        spec["tolerations"] = draw(st.sampled_from([[], [{"key": "t", "operator": "Exists"}]]))
    return {"metadata": meta, "spec": spec}


@st.composite
def steps(draw: st.DrawFn) -> tuple[str, Any, Any]:
    kind = draw(st.sampled_from(["node", "node", "no node", "namespace", "pod", "pod", "pod", "no pod"]))
    if kind == "node":
        return kind, draw(st.sampled_from(NAMES)), (draw(node_labels), draw(st.sampled_from([[], [], ["t"], ["u"]])))
    if kind == "no node":
        return kind, draw(st.sampled_from(NAMES)), None
    if kind == "namespace":
        return kind, draw(st.sampled_from(NAMESPACES)), draw(labels)
    name = draw(st.sampled_from(sorted(NAMESPACE_OF)))
    return (
        (kind, name, draw(pods(name))) if kind == "no pod" else (draw(st.sampled_from(NAMES)), name, draw(pods(name)))
    )


def apply(step: tuple[str, Any, Any], nodes: Nodes, oracle: Oracle) -> None:
    """The same change to both."""
    kind, name, value = step
    match kind:
        case "node":
            its, taints = value
            spec = {"taints": [{"key": taint, "effect": "NoSchedule"} for taint in taints]}
            nodes.put(node(name, labels=its, spec=spec))
            oracle.nodes = {**oracle.nodes, name: its}
            oracle.taints = {**oracle.taints, name: taints}
        case "no node":
            nodes.remove(name)
            oracle.nodes = {each: its for each, its in oracle.nodes.items() if each != name}
        case "namespace":
            nodes.pods_by_node.namespaces[name] = value
            oracle.namespaces = {**oracle.namespaces, name: value}
        case _:
            oracle.pods = [pod for pod in oracle.pods if pod["metadata"]["name"] != name]
            if kind == "no pod":
                nodes.pods_by_node.remove(f"uid-{name}")
                return
            value["spec"]["nodeName"] = kind
            nodes.pods_by_node.put(convert(Pod, value), kind)
            oracle.pods.append(value)


@pytest.mark.rule("NR-01", "NR-02", "NR-03", "NR-04", "NR-05", "NR-11", "NR-12", "NR-13")
@settings(max_examples=fewer(150), deadline=None)
@given(st.lists(pods("comes"), min_size=1, max_size=3), st.lists(steps(), min_size=3, max_size=12))
def test_rules_agree_with_their_literal_reading(incoming: list[Json], history: list[tuple[str, Any, Any]]) -> None:
    namespaces: dict[str, Json] = {name: {} for name in NAMESPACES}
    nodes, oracle = Nodes(), Oracle({}, [], namespaces)
    nodes.pods_by_node.namespaces.update(namespaces)
    history = [*(("node", name, ({"zone": name[1]}, [])) for name in NAMES), *history]
    for step in history:
        apply(step, nodes, oracle)
        for pod in incoming:
            rules = nodes.rules_between(convert(Pod, pod))
            for name, its in oracle.nodes.items():
                found = rules.obstacle(labelled(its))
                expected = oracle.obstacle(pod, name)
                assert (found.reason.name if found else None) == expected, (step, pod, name)
