"""A node whose search takes too long is given up; what counts is the time that the caller says it searched."""

from __future__ import annotations

import math

import pytest
from dra_api.codec import convert
from dra_api.resource import DeviceClass, ResourceSlice
from dra_operator.allocator import Allocator, Inventory
from dra_operator.scheduling import NoPlace, Pause, Plan, Planning, decided, plan
from hard_problem import partition_problem
from placement_lab import Attributes, case, claim, node, pod, wants


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
    inventory = Inventory(language=Attributes())
    inventory.put_class(convert(DeviceClass, {"metadata": {"name": "gpu"}}))
    names = [f"hard-{number:02}" for number in range(hard_nodes)]
    for name in names:
        for slice_ in partition_problem(name):
            inventory.put_slice(convert(ResourceSlice, slice_))
    about = {"name": "easy", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"dev-{number}"} for number in range(20)]
    spec = {"driver": "hard.example.com", "nodeName": "easy", "pool": about, "devices": devices}
    inventory.put_slice(convert(ResourceSlice, {"metadata": {"name": "easy"}, "spec": spec}))
    allocator = Allocator(inventory, new_share_id=lambda: "share", budget=2_000)
    nodes = [*(node(name) for name in names), node("easy", used={"cpu": "2"})]
    found = decided(plan(case(pod(), [claim("c", wants(count=20))], nodes, allocator)))
    if hard_nodes < 10:
        assert isinstance(found, Plan)
        assert found.node == "easy"
    else:
        assert isinstance(found, NoPlace)
        assert found.is_error
        assert found.message.startswith("node hard-00: gave up after ")
