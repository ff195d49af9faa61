"""A node whose search takes too long is given up; what counts is the time that the caller says it searched."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest
from allocator_lab import partition_problem
from dra_api.codec import convert
from dra_api.resource import DeviceClass, ResourceSlice
from dra_operator.allocator import Allocator, Inventory
from dra_operator.allocator.search import Search
from dra_operator.scheduling import CycleState, Nodes, NoPlace, Pause, Plan, Planning, decided, plan
from dra_operator.scheduling.gang import SameValues, joint_plan
from msgspec import structs
from neighbour_lab import WEB, near, term
from placement_lab import Attributes, case, claim, decided_together, node, pod, wants


def hard(filter_timeout: float) -> Planning:
    """A plan that searches one node for long, and has begun to."""
    inventory = Inventory(language=Attributes())
    inventory.put_class(convert(DeviceClass, {"metadata": {"name": "gpu"}}))
    for slice_ in partition_problem("n1"):
        inventory.put_slice(convert(ResourceSlice, slice_))
    allocator = Allocator(inventory, new_share_id=lambda: "share")
    planning = plan(case(pod(), [claim("c", wants(count=20))], [node("n1")], allocator), filter_timeout)
    while next(planning) is Pause.INDEXING:
        pass
    return planning


def test_int_010_the_time_of_one_node_is_limited() -> None:
    planning = hard(10.0)
    assert planning.send(100.0) is Pause.SEARCHING, "what was searched before counts for other nodes"
    assert planning.send(110.0) is Pause.SEARCHING
    with pytest.raises(StopIteration) as end:
        planning.send(110.1)
    assert end.value.value == NoPlace("node n1: timed out trying to allocate devices", is_error=True)


@pytest.mark.parametrize(("limit", "elapsed"), [(math.inf, 1e9), (10.0, None)])
def test_int_009_without_a_limit_or_a_clock_only_the_budget_ends_a_search(limit: float, elapsed: float | None) -> None:
    planning = hard(limit)
    for _ in range(10):
        assert planning.send(elapsed) is Pause.SEARCHING


@pytest.mark.parametrize("hard_nodes", [1, 3, 12])
def test_a_node_on_which_the_search_gives_up_keeps_the_pod_from_no_other_node(hard_nodes: int) -> None:
    """The emptiest nodes come first, and all the hard ones are emptier. After ten of them the attempt ends."""
    names = [f"hard-{number:02}" for number in range(hard_nodes)]
    allocator = with_hard_and_easy(names, ["easy"])
    nodes = [*(node(name) for name in names), node("easy", used={"cpu": "2"})]
    found = decided(plan(case(pod(), [claim("c", wants(count=20))], nodes, allocator)))
    if hard_nodes < 10:
        assert isinstance(found, Plan)
        assert found.node == "easy"
    else:
        assert isinstance(found, NoPlace)
        assert found.is_error
        assert found.message.startswith("node hard-00: gave up after ")


@pytest.mark.parametrize("hard_nodes", [1, 3, 12])
def test_a_node_on_which_the_search_gives_up_keeps_a_gang_from_no_other_node(hard_nodes: int) -> None:
    """Each of two pods wants all devices of a node. As for a pod alone, the attempt ends after ten hard nodes."""
    hard, easy = [f"hard-{number:02}" for number in range(hard_nodes)], ["easy-0", "easy-1"]
    nodes = Nodes([*map(node, hard), *(node(name, used={"cpu": "2"}) for name in easy)])
    found = decided_together(gang_of_two(nodes, with_hard_and_easy(hard, easy)), SameValues())
    if hard_nodes < 10:
        assert isinstance(found, tuple)
        assert sorted(plan.node for plan in found) == easy
    else:
        assert isinstance(found, NoPlace)
        assert found.is_error
        assert found.message.startswith("node hard-00: gave up after ")


@pytest.mark.parametrize("easy", [["easy-0", "easy-1"], ["easy-0"]])
def test_int_010_the_time_of_one_node_is_limited_for_a_gang_as_well(easy: list[str]) -> None:
    """Each piece of search takes six seconds by the clock of the caller."""
    nodes = Nodes([node("hard-00"), *(node(name, used={"cpu": "2"}) for name in easy)])
    members = gang_of_two(nodes, with_hard_and_easy(["hard-00"], easy, budget=10**9))
    planning, elapsed = joint_plan(members, SameValues(), 10.0), 0.0
    found = None
    try:
        pause = next(planning)
        for _ in range(1000):
            elapsed += 6.0 if pause is Pause.SEARCHING else 0.0
            pause = planning.send(elapsed)
    except StopIteration as end:
        found = end.value
    if len(easy) == 2:
        assert isinstance(found, tuple)
        assert sorted(plan.node for plan in found) == easy
    else:
        assert found == NoPlace("node hard-00: timed out trying to allocate devices", is_error=True)


def test_where_a_gang_fits_nowhere_else_the_node_that_was_given_up_is_named() -> None:
    nodes = Nodes([node("hard-00"), node("easy-0", used={"cpu": "2"})])
    found = decided_together(gang_of_two(nodes, with_hard_and_easy(["hard-00"], ["easy-0"])), SameValues())
    assert isinstance(found, NoPlace)
    assert found.is_error
    assert found.message.startswith("node hard-00: gave up after ")


def with_hard_and_easy(hard: Sequence[str], easy: Sequence[str], budget: int = 2_000) -> Allocator:
    """Nodes on which the allocator gives up a request for 20 devices, and nodes that have them."""
    inventory = Inventory(language=Attributes())
    inventory.put_class(convert(DeviceClass, {"metadata": {"name": "gpu"}}))
    for name in hard:
        for slice_ in partition_problem(name):
            inventory.put_slice(convert(ResourceSlice, slice_))
    devices = [{"name": f"dev-{number}"} for number in range(20)]
    for name in easy:
        about = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "hard.example.com", "nodeName": name, "pool": about, "devices": devices}
        inventory.put_slice(convert(ResourceSlice, {"metadata": {"name": name}, "spec": spec}))
    return Allocator(inventory, new_share_id=lambda: "share", budget=budget)


def gang_of_two(nodes: Nodes, allocator: Allocator) -> list[CycleState]:
    made = []
    for number in range(2):
        member = pod()
        meta = structs.replace(member.metadata, name=f"m{number}", uid=f"uid-{number}")
        wanted = claim(f"c{number}", wants(count=20))
        made.append(case(structs.replace(member, metadata=meta), [wanted], nodes, allocator))
    return made


def test_after_ten_nodes_on_which_the_search_gives_up_the_best_of_the_others_is_taken() -> None:
    """Each further one may take as long."""
    hard = [f"hard-{number:02}" for number in range(12)]
    nodes = [node("easy"), *(node(name, used={"cpu": "2"}) for name in hard)]
    alternatives = [{"name": it, **wants(count=20, selector=it)["exactly"]} for it in ("missing", "")]
    wanted = claim("c", {"name": "r", "firstAvailable": alternatives})
    made = case(pod(), [wanted], nodes, with_hard_and_easy(hard, ["easy"]))
    asked: list[str] = []
    found = decided(plan(made, answered=lambda name, _: asked.append(name)))
    assert isinstance(found, Plan)
    assert (found.node, asked) == ("easy", ["easy", *hard[:10]])


def test_a_node_on_which_the_search_gives_up_is_not_asked_again_for_an_equal_member() -> None:
    """With a rule between pods equal members take nodes in turns."""
    labels = {"zone": "a"}
    nodes = Nodes([node("hard-00", labels=labels), node("easy-0", labels=labels, used={"cpu": "2"})])
    allocator = with_hard_and_easy(["hard-00"], ["easy-0"])
    gang = [with_near(state) for state in gang_of_two(nodes, allocator)]
    with patch.object(Search, "__init__", autospec=True, side_effect=Search.__init__) as begun:
        found = decided_together(gang, SameValues())
    assert isinstance(found, NoPlace)
    searched = Counter(call.args[1].view.node.metadata.name for call in begun.call_args_list)
    assert searched["hard-00"] == 1


def with_near(state: CycleState) -> CycleState:
    """The pod has to be in the zone of another one of its kind."""
    near_web = pod(affinity=near(term(WEB))).spec.affinity
    meta = structs.replace(state.pod.metadata, labels={"app": "web"})
    spec = structs.replace(state.pod.spec, affinity=near_web)
    return replace(state, pod=structs.replace(state.pod, metadata=meta, spec=spec))
