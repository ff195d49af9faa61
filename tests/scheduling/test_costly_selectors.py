"""Evaluating a pod's selectors is work for this pod, with the same limit as a search."""

from __future__ import annotations

import pytest
from dra_api.codec import convert
from dra_api.resource import DeviceClass, ResourceSlice
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Allocator, Features, Inventory
from dra_operator.scheduling import NoPlace, Pause, Planning, plan
from placement_lab import case, claim, node, pod, wants

NUMBERS = "[" + ",".join("1" * 40) + "]"
LOOPS = f"{NUMBERS}.all(a, {NUMBERS}.all(b, {NUMBERS}.all(c, a + b + c >= 0)))"


def costly(filter_timeout: float) -> Planning:
    """A plan whose claim has a selector of half a million units."""
    inventory = Inventory(language=CelSelectors(Features()))
    inventory.put_class(convert(DeviceClass, {"metadata": {"name": "gpu"}}))
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool, "devices": [{"name": "d0"}]}
    inventory.put_slice(convert(ResourceSlice, {"metadata": {"name": "s"}, "spec": spec}))
    allocator = Allocator(inventory, new_share_id=lambda: "share")
    asked = claim("c", wants(selector=LOOPS))
    return plan(case(pod(), [asked], [node("n1")], allocator), filter_timeout)


def test_evaluation_counts_as_search() -> None:
    planning = costly(10.0)
    assert next(planning) is Pause.SEARCHING
    assert planning.send(0.1) is Pause.SEARCHING


def test_an_attempt_that_takes_too_long_names_the_selector_its_cost_and_the_remedy() -> None:
    planning = costly(10.0)
    next(planning)
    assert planning.send(100.0) is Pause.SEARCHING, "what was spent before the first look is not counted"
    with pytest.raises(StopIteration) as end:
        planning.send(110.1)
    answer = end.value.value
    assert isinstance(answer, NoPlace)
    assert answer.is_error
    for part in ("gave up after 10 s", "selector #0 of claim ns/c, request r", "units of CEL", "make it cheaper"):
        assert part in answer.message, answer.message
