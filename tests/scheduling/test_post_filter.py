"""PostFilter: what may make room for a pod that no node takes, what it gets, and when it is asked.

``first_victim`` is a post filter as small as can be: it ends one pod of lower priority where the waiting one then fits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.references import claims_of_pod
from dra_api.resource import ResourceClaim
from dra_operator.allocator import DeviceId, Usage
from dra_operator.scheduling import (
    CycleState,
    Elapsed,
    Fits,
    Nodes,
    NoPlace,
    Pause,
    Plan,
    PodFilter,
    PostFilterResult,
    Unschedulable,
    decided,
    plan,
)
from dra_operator.scheduling.state import LoadedNode, pod_requests, subtract
from neighbour_lab import WEB, away, near, spread, term
from objects import user
from placement_lab import allocator, case, claim, node, pod, wants


def resolvable(failed: Unschedulable) -> Iterator[LoadedNode]:
    return filter(failed.is_resolvable, failed.cycle_state.nodes)


def first_victim(failed: Unschedulable) -> Generator[Pause, Elapsed, PostFilterResult | None]:
    """The first node, and the first pod on it, whose end lets the pod in."""
    for state in resolvable(failed):
        for victim in _on(state, failed):
            usage = failed.cycle_state.usage.snapshot()
            for use in claims_of_pod(victim):
                claim = holding(use.name, state.name, "dev-0")
                if claim.status.allocation is not None:
                    usage.remove(claim.status.allocation)
            without = state.with_load(subtract(state.used, pod_requests(victim)))
            status = yield from PodFilter(replace(failed.cycle_state, usage=usage)).filter(without)
            if isinstance(status, Fits):
                return PostFilterResult(status.plan, (victim,))
    return None


def _on(state: LoadedNode, failed: Unschedulable) -> Iterator[Pod]:
    pods = failed.cycle_state.nodes.pods_by_node
    for uid, where in pods:
        place = pods.at(uid)
        if (
            where == state.name
            and place
            and (place[0].spec.priority or 0) < (failed.cycle_state.pod.spec.priority or 0)
        ):
            yield place[0]


def holding(name: str, where: str, device: str) -> ResourceClaim:
    """A claim of another pod that has a device."""
    result = {"request": "r", "driver": "gpu.example.com", "pool": where, "device": device}
    here = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [where]}]}]}
    return claim(name, wants(), status={"allocation": {"devices": {"results": [result]}, "nodeSelector": here}})


def running(name: str, where: str, labels: dict[str, str] | None = None, *claims: str, **spec: Any) -> Pod:
    entries = [{"name": it, "resourceClaimName": it} for it in claims]
    meta = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "labels": labels or {}}
    containers = [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]
    body = {"nodeName": where, "resourceClaims": entries, "containers": containers, **spec}
    return convert(Pod, {"metadata": meta, "spec": body})


def with_pods(states: list[LoadedNode], *pods: Pod) -> Nodes:
    nodes = Nodes(states)
    for it in pods:
        nodes.pods_by_node.put(it, it.spec.node_name)
    return nodes


class Listening:
    """A post filter that notes what it gets, and makes no room."""

    def __init__(self) -> None:
        self.failed: list[Unschedulable] = []

    def __call__(self, failed: Unschedulable) -> Generator[Pause, Elapsed, PostFilterResult | None]:
        self.failed.append(failed)
        return None
        yield


def full_of_devices() -> CycleState:
    """Two nodes with one device each, both in use; on the first a pod of high priority, on the second one of none."""
    held = [holding("high", "a", "dev-0"), holding("low", "b", "dev-0")]
    pods = [running("high", "a", None, "high", priority=100), running("low", "b", None, "low")]
    usage = Usage(it.status.allocation for it in held if it.status.allocation is not None)
    nodes = with_pods([node("a"), node("b")], *pods)
    wanting = pod(priority=10)
    return case(wanting, [claim("c", wants())], nodes, allocator(a=["x"], b=["x"]), usage=usage)


def test_a_post_filter_nominates_a_node_its_victims_and_the_devices_that_come_free() -> None:
    answer = decided(plan(full_of_devices(), post_filter=first_victim))
    assert isinstance(answer, NoPlace)
    assert answer.nominated is not None
    assert answer.nominated.nominated_node == "b"
    assert [victim.key for victim in answer.nominated.victims] == ["ns/low"]
    (allocation,) = answer.nominated.plan.allocations.values()
    assert [DeviceId.of(it) for it in allocation.results] == [DeviceId("gpu.example.com", "b", "dev-0")]
    assert answer.message.startswith("0/2 nodes are available: 2 ")


def test_pods_may_end_where_a_selector_fails_on_a_device_that_comes_after_theirs() -> None:
    """Once the first device is free, the search does not reach the second one."""
    held = [holding("low", "a", "dev-0")]
    usage = Usage(it.status.allocation for it in held if it.status.allocation is not None)
    nodes = with_pods([node("a")], running("low", "a", None, "low"))
    asked = [claim("c", wants(selector="fails"))]
    made = case(pod(priority=10), asked, nodes, allocator(a=["x", "odd"]), usage=usage)
    answer = decided(plan(made, post_filter=first_victim))
    assert isinstance(answer, NoPlace)
    assert "CEL runtime error" in answer.message
    assert answer.nominated is not None
    assert [victim.key for victim in answer.nominated.victims] == ["ns/low"]


def test_room_of_the_node_counts_as_devices_do() -> None:
    low = running("low", "a")
    nodes = with_pods([node("a", used={"cpu": "4"})], low)
    answer = decided(plan(case(pod(priority=1), [], nodes, allocator()), post_filter=first_victim))
    assert isinstance(answer, NoPlace)
    assert answer.nominated == PostFilterResult(Plan("a", {}), (low,))


def test_without_a_post_filter_and_with_one_that_makes_no_room_the_answer_is_the_same() -> None:
    listening = Listening()
    answer = decided(plan(full_of_devices()))
    assert decided(plan(full_of_devices(), post_filter=listening)) == answer
    assert [failed.refusal for failed in listening.failed] == [answer]


def fitting() -> CycleState:
    return case(pod(), [claim("c", wants())], [node("a")], allocator(a=["x"]))


def broken() -> CycleState:
    return case(pod(), [claim("c", wants(count=33))], [node("a")], allocator(a=["x"]))


def stuck() -> CycleState:
    return case(pod(), [holding("c", "gone", "dev-0")], [node("a")], allocator())


@pytest.mark.parametrize("made", [fitting, broken, stuck])
def test_nothing_makes_room_for_a_pod_that_fits_or_is_faulty_or_can_help_itself(made: Callable[[], CycleState]) -> None:
    listening = Listening()
    decided(plan(made(), post_filter=listening))
    assert listening.failed == []


TAINT = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
ZONE = {"zone": "a"}
RESOLVABLE: dict[str, tuple[Pod, LoadedNode, bool]] = {
    "too little cpu": (pod(), node("n", used={"cpu": "4"}), True),
    "a taint": (pod(), node("n", spec={"taints": [TAINT]}), False),
    "a label that is missing": (pod(nodeSelector={"zone": "b"}), node("n"), False),
    "a pod to keep away from": (pod(affinity=away(term(WEB))), node("n", labels=ZONE), True),
    "too many of a kind": (pod(topologySpreadConstraints=[spread(WEB)]), node("n", labels=ZONE), True),
    "no pod to be near": (pod(affinity=near(term({"matchLabels": {"app": "db"}}))), node("n", labels=ZONE), False),
}


@pytest.mark.parametrize("name", RESOLVABLE)
def test_a_node_is_resolvable_if_its_obstacle_may_pass_with_other_pods(name: str) -> None:
    wanting, state, expected = RESOLVABLE[name]
    listening = Listening()
    cordoned = node("other", labels={"zone": "b"}, spec={"unschedulable": True})
    web = [running(name, "n", {"app": "web"}) for name in ("web-0", "web-1")]
    nodes = with_pods([state, cordoned], *web)
    decided(plan(case(wanting, [], nodes, allocator()), post_filter=listening))
    (failed,) = listening.failed
    assert [it.name for it in resolvable(failed)] == (["n"] if expected else [])


def test_a_node_without_free_devices_is_resolvable_whether_it_was_asked_or_not() -> None:
    names = [f"n{number:02}" for number in range(40)]
    held = [holding(name, name, "dev-0") for name in names]
    usage = Usage(it.status.allocation for it in held if it.status.allocation is not None)
    states = [node(name, spec={"taints": [TAINT]} if name == "n39" else {}) for name in names]
    listening = Listening()
    devices = allocator(**{name: ["x"] for name in names})
    decided(plan(case(pod(), [claim("c", wants())], states, devices, usage=usage), post_filter=listening))
    (failed,) = listening.failed
    assert len(failed.statuses) < len(names)
    assert [it.name for it in resolvable(failed)] == names[:-1]


def test_nodes_that_a_shared_claim_does_not_reach_are_not_resolvable() -> None:
    """The pod cannot give the claim back, since another one uses it; only room where it is can help."""
    shared = holding("shared", "a", "dev-0")
    status = {"reservedFor": [user("other")]}
    assert shared.status.allocation is not None
    here = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]}
    shared = claim("shared", wants(), status={"allocation": {"devices": {}, "nodeSelector": here}, **status})
    listening = Listening()
    nodes = [node("a", used={"cpu": "4"}), node("b", used={"cpu": "4"})]
    decided(plan(case(pod(), [shared], nodes, allocator()), post_filter=listening))
    (failed,) = listening.failed
    assert [it.name for it in resolvable(failed)] == ["a"]
