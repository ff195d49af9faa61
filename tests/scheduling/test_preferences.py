"""Among the nodes that fit, the one that the pod prefers is taken; who prefers nothing looks at no more nodes."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.core import Pod
from dra_operator.scheduling import Nodes, Plan
from dra_operator.scheduling.state import LoadedNode
from neighbour_lab import DB, HOST, PREFERRED, WEB, ZONE, away, near, pod, spread, term
from placement_lab import Watched, allocator, decide, node

APP = {"app": "web"}
SOFT = {"taints": [{"key": "t", "effect": "PreferNoSchedule"}]}
SOFTER = {"taints": [{"key": key, "effect": "PreferNoSchedule"} for key in "tuv"]}


def comes(labels: dict[str, str] | None = None, **spec: Any) -> Pod:
    return pod("comes", labels, **spec)


def likes_nodes(*wishes: tuple[int, str, str]) -> dict[str, Any]:
    """``spec.affinity`` with node labels, each with a weight."""
    terms = [
        {"weight": weight, "preference": {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}}
        for weight, key, value in wishes
    ]
    return {"nodeAffinity": {PREFERRED: terms}}


def likes_pods(selector: dict[str, Any], weight: int = 10, kind: str = "podAffinity", **more: Any) -> dict[str, Any]:
    return {kind: {PREFERRED: [{"weight": weight, "podAffinityTerm": term(selector, **more)}]}}


def state(name: str, cpu: int = 0, spec: dict[str, Any] | None = None) -> LoadedNode:
    """A node in the zone of its first letter, with so much of its four processors in use."""
    return node(name, used={"cpu": str(cpu)}, labels={HOST: name, ZONE: name[0]}, spec=spec or {})


def cluster(*pods_by_node: Pod, **states: LoadedNode) -> Nodes:
    """``a1`` is the emptiest, then ``a2``, ``b1`` and ``b2``."""
    every = {name: state(name, cpu) for cpu, name in enumerate(("a1", "a2", "b1", "b2"))}
    nodes = Nodes({**every, **states}.values())
    for it in pods_by_node:
        nodes.pods_by_node.put(it, it.spec.node_name)
    return nodes


UNLABELLED = node("c1", used={"cpu": "4"}, labels={})
SOFTLY = {**spread(WEB), "whenUnsatisfiable": "ScheduleAnyway"}
CASES: dict[str, tuple[Pod, Nodes, str]] = {
    "nothing: the emptiest": (comes(), cluster(), "a1"),
    "a label": (comes(affinity=likes_nodes((1, ZONE, "b"))), cluster(), "b1"),
    "more of the labels": (comes(affinity=likes_nodes((30, ZONE, "b"), (70, HOST, "a2"))), cluster(), "a2"),
    "a label that no node has": (comes(affinity=likes_nodes((1, ZONE, "c"))), cluster(), "a1"),
    "a term without requirements": (comes(affinity={"nodeAffinity": {PREFERRED: [{"weight": 9}]}}), cluster(), "a1"),
    "a little more room is worth less than a label": (
        comes(affinity=likes_nodes((100, ZONE, "b"))),
        cluster(a1=state("a1", 0), b1=state("b1", 4)),
        "b2",
    ),
    "much more room is worth more than a little of a label": (
        comes(affinity=likes_nodes((5, ZONE, "b"), (95, ZONE, "z"), (90, HOST, "a1"))),
        cluster(),
        "a1",
    ),
    "near a pod": (comes(affinity=likes_pods(DB)), cluster(pod("db", {"app": "db"}, on="b2")), "b1"),
    "near more pods": (
        comes(affinity=likes_pods(DB)),
        cluster(*(pod(f"db-{on}", {"app": "db"}, on=on) for on in ("a1", "b1", "b2"))),
        "b1",
    ),
    "away from a pod": (
        comes(affinity=likes_pods(DB, kind="podAntiAffinity")),
        cluster(pod("db", {"app": "db"}, on="a2")),
        "b1",
    ),
    "away from pods that are on every node with the label": (
        comes(affinity=likes_pods(DB, kind="podAntiAffinity", key=HOST)),
        cluster(*(pod(f"db-{on}", {"app": "db"}, on=on) for on in ("a1", "a2", "b1", "b2")), c1=UNLABELLED),
        "c1",
    ),
    "away from a pod on the same node": (
        comes(affinity=likes_pods(DB, kind="podAntiAffinity", key=HOST)),
        cluster(pod("db", {"app": "db"}, on="a1")),
        "a2",
    ),
    "a pod that prefers it near": (comes(APP), cluster(pod("r", on="b1", affinity=likes_pods(WEB))), "b1"),
    "a pod that must have it near": (comes(APP), cluster(pod("r", on="b1", affinity=near(term(WEB)))), "b1"),
    "a pod that prefers it away": (
        comes(APP),
        cluster(pod("r", on="a1", affinity=likes_pods(WEB, kind="podAntiAffinity"))),
        "b1",
    ),
    "pods that are gone prefer nothing": (comes(APP), cluster(), "a1"),
    "where fewer pods are": (
        comes(APP, topologySpreadConstraints=[SOFTLY]),
        cluster(pod("w", APP, on="a2")),
        "b1",
    ),
    "where fewer pods are, by node": (
        comes(APP, topologySpreadConstraints=[{**SOFTLY, "topologyKey": HOST}]),
        cluster(pod("w", APP, on="a1")),
        "a2",
    ),
    "not a node that lacks the label": (
        comes(APP, topologySpreadConstraints=[SOFTLY]),
        cluster(pod("w", APP, on="b1"), a1=node("a1")),
        "a2",
    ),
    "zones and nodes weigh by how many there are": (
        comes(APP, topologySpreadConstraints=[SOFTLY, {**SOFTLY, "topologyKey": HOST}]),
        cluster(
            *(pod(f"a{number}", APP, on="a2") for number in range(9)),
            *(pod(f"b{number}", APP, on="b1") for number in range(4)),
            b1=state("b1", 0),
            b2=state("b2", 0, {"taints": [{"key": "t", "effect": "NoSchedule"}]}),
        ),
        "a1",
    ),
    "what is worst makes the rest alike, although the best was found before it": (
        comes(APP),
        cluster(
            pod("likes", on="b1", affinity=likes_pods(WEB, 10, key=HOST)),
            pod("dislikes", on="b2", affinity=likes_pods(WEB, 90, kind="podAntiAffinity", key=HOST)),
            b1=state("b1", 4),
            b2=state("b2", 4),
        ),
        "a1",
    ),
    "fewer soft taints": (comes(), cluster(a1=state("a1", 0, SOFTER), a2=state("a2", 1, SOFT)), "b1"),
    "a soft taint where nothing else is": (
        comes(nodeSelector={ZONE: "a"}),
        cluster(a1=state("a1", 0, SOFTER), a2=state("a2", 1, SOFT)),
        "a2",
    ),
    "a soft taint that it tolerates": (
        comes(tolerations=[{"key": "t", "operator": "Exists"}]),
        cluster(a1=state("a1", 0, SOFT)),
        "a1",
    ),
    "a soft taint, tolerated for another effect": (
        comes(tolerations=[{"key": "t", "operator": "Exists", "effect": "NoSchedule"}]),
        cluster(a1=state("a1", 0, SOFT)),
        "a2",
    ),
    "a rule comes before a preference": (
        comes(affinity={**likes_pods(DB), **away(term(DB, HOST))}),
        cluster(pod("db", {"app": "db"}, on="b1")),
        "b2",
    ),
}


@pytest.mark.rule("NR-20", "NR-22", "NR-23", "NR-24", "NR-25")
@pytest.mark.parametrize("name", CASES)
def test_the_node_is_taken_that_the_pod_prefers(name: str) -> None:
    incoming, nodes, expected = CASES[name]
    answer = decide(incoming, [], nodes, allocator())
    assert isinstance(answer, Plan)
    assert answer.node == expected


@pytest.mark.rule("NR-23", "NR-26")
def test_a_plan_says_what_the_node_got_for_each_preference() -> None:
    answer = decide(comes(affinity=likes_nodes((1, ZONE, "b"))), [], cluster(), allocator())
    assert isinstance(answer, Plan)
    assert answer.scores == (("node affinity", 200), ("room", 83))


def test_a_plan_of_a_pod_that_prefers_nothing_has_no_points() -> None:
    assert decide(comes(), [], cluster(), allocator()) == Plan("a1", {})


@pytest.mark.rule("NR-21")
@pytest.mark.parametrize(
    ("incoming", "looked"),
    [
        pytest.param(comes(), 1, id="a pod that prefers nothing"),
        pytest.param(comes(affinity=likes_nodes((1, HOST, "n0"))), 1, id="what the first node has"),
        pytest.param(comes(affinity=likes_nodes((1, HOST, "n40"))), 60, id="what another node has"),
        pytest.param(comes(affinity=likes_pods(DB)), 1, id="pods that are nowhere"),
    ],
)
def test_only_a_pod_that_prefers_what_the_best_node_lacks_looks_at_more(incoming: Pod, looked: int) -> None:
    nodes = Watched(
        [node(f"n{number}", labels={HOST: f"n{number}"}, used={"cpu": f"{number}m"}) for number in range(60)]
    )
    decide(incoming, [], nodes, allocator())
    assert len(set(nodes.looked)) == looked


@pytest.mark.rule("NR-21")
def test_no_more_nodes_are_compared_than_kube_scheduler_would() -> None:
    nodes = Watched([node(f"n{number}", used={"cpu": f"{number}m"}) for number in range(300)])
    decide(comes(affinity=likes_nodes((1, HOST, "nowhere"))), [], nodes, allocator())
    assert len(set(nodes.looked)) == 300 * (50 - 300 // 125) // 100


@pytest.mark.rule("NR-26")
def test_the_fullest_node_is_best_if_the_strategy_says_so() -> None:
    nodes = Nodes([state(name, cpu) for cpu, name in enumerate(("a1", "a2", "b1", "b2"))], strategy="MostAllocated")
    assert list(nodes.best_first()) == ["b2", "b1", "a2", "a1"]
    assert decide(comes(), [], nodes, allocator()) == Plan("b2", {})
    nodes.put(state("b2", 0))
    assert decide(comes(), [], nodes, allocator()) == Plan("b1", {})
    nodes.remove("b1")
    assert decide(comes(), [], nodes, allocator()) == Plan("a2", {})
