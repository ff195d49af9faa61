"""Devices that a waiting pod cannot use are no news to it."""

from __future__ import annotations

from typing import Any

import pytest
from controllers_world import World
from dra_kube import DEVICE_CLASSES, EVENTS, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Features
from objects import Make

Json = dict[str, Any]
WAITING = 20
NEW = 10
BY_DRIVER = 'device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].?model.orValue("") == "a100"'
BY_SEVERAL = 'device.driver in ["gpu.example.com", "old-gpu.example.com"] && device.attributes.size() > 9'
BY_ATTRIBUTE = 'device.attributes["gpu.example.com"].?model.orValue("") == "a100"'


def furnish(world: World, make: type[Make], selector: str, *gpus: Json) -> None:
    """Pods that wait for devices of a class, beside a pool of a driver that no pod asks for."""
    world.language = CelSelectors(Features())
    world.api.add(DEVICE_CLASSES, make.device_class("gpu", selector))
    world.api.add(NODES, make.node("node-0"))
    for slice_ in (make.slice("node-0", 1, driver="nic.example.com"), *gpus):
        world.api.add(RESOURCE_SLICES, slice_)
    for number in range(WAITING):
        world.api.add(RESOURCE_CLAIMS, make.claim(f"claim-{number}"))
        world.api.add(PODS, make.pod(f"pod-{number}", [make.use(f"claim-{number}")]))


def more(make: type[Make], number: int, *, is_whole: bool = True) -> Json:
    """Another slice of other drivers, in a pool that may be incomplete."""
    made = make.slice("node-0", 1 + number, driver=f"{'abc'[number % 3]}.example.com")
    made["metadata"]["name"] += f"-{number}"
    made["spec"]["pool"].update(name=f"pool-{number}", resourceSliceCount=1 if is_whole else 2)
    return made


async def told_of(world: World, make: type[Make], *, is_whole: bool) -> tuple[int, int]:
    """How many writes and events the new slices cause."""
    world.start()
    async with world.running():
        await world.quiet()
        writes, events = len(world.api.writes), len(world.api.of(EVENTS))
        for number in range(NEW):
            world.api.add(RESOURCE_SLICES, more(make, number, is_whole=is_whole))
            await world.quiet()
        return len(world.api.writes) - writes, len(world.api.of(EVENTS)) - events


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "incomplete"])
@pytest.mark.parametrize("selector", [BY_DRIVER, BY_SEVERAL], ids=["one driver", "several drivers"])
@pytest.mark.parametrize("gpus", [0, 8])
async def test_new_slices_of_other_drivers_change_no_condition(
    world: World, make: type[Make], selector: str, gpus: int, is_whole: bool
) -> None:
    furnish(world, make, selector, *([make.slice("node-0", gpus)] if gpus else []))
    assert await told_of(world, make, is_whole=is_whole) == (0, 0)


async def test_whole_pools_of_other_drivers_change_no_condition_where_the_class_names_no_driver(
    world: World, make: type[Make]
) -> None:
    furnish(world, make, BY_ATTRIBUTE, make.slice("node-0", 8, model="h100"))
    assert await told_of(world, make, is_whole=True) == (0, 0)


async def test_a_pool_of_the_driver_itself_is_news_only_when_it_becomes_incomplete(
    world: World, make: type[Make]
) -> None:
    furnish(world, make, BY_DRIVER)
    world.start()
    async with world.running():
        await world.quiet()
        for number in range(NEW):
            slice_ = make.slice("node-0", 1)
            slice_["metadata"]["name"] += f"-{number}"
            slice_["spec"]["pool"]["resourceSliceCount"] = NEW + 1
            world.api.add(RESOURCE_SLICES, slice_)
            await world.quiet()
    told = world.messages("FailedScheduling")
    assert len(set(told)) <= 2 * WAITING
    assert len(told) == 2 * WAITING
    assert sum("resource pool gpu.example.com/node-0 is currently being updated" in text for text in told) == WAITING
