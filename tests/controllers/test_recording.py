"""Names of generated claims are recorded while their devices are being allocated; the pod is bound after both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from controllers_world import World
from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Resource
from fake_api import ERRORS, Call
from objects import Make, Obj

RECORD = ("update", "pods", "status")
ALLOCATE = ("update", "resourceclaims", "status")
BIND = ("create", "pods", "binding")


def writes(world: World) -> list[tuple[str, str, str | None]]:
    return [call[:3] for call in world.api.writes if call.verb != "create" or call.sub == "binding"]


@asynccontextmanager
async def ample(world: World, make: type[Make], devices: int = 3) -> AsyncIterator[asyncio.Event]:
    """An operator that has placed a pod, while there are devices left; names are recorded when the event is set."""
    world.furnish(devices=devices)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    go_on, update = asyncio.Event(), world.api.update

    async def slow(resource: Resource, body: Obj, subresource: str | None = None) -> Obj:
        if resource is PODS:
            await go_on.wait()
        return await update(resource, body, subresource)

    world.start()
    async with world.running():
        world.api.add(PODS, make.pod("first", claims=[make.FROM_TEMPLATE]))
        await world.quiet()
        world.api.calls.clear()
        world.api.update = slow  # type: ignore[method-assign]
        yield go_on


async def added(world: World, make: type[Make], *, until: tuple[str, str, str | None]) -> None:
    """A second pod comes; returns when this write was made for it."""
    world.api.add(PODS, make.pod("second", claims=[make.FROM_TEMPLATE]))
    async with asyncio.timeout(60):
        while until not in writes(world):
            world.bring_events()
            await world.tick()


def devices_held(world: World) -> list[str]:
    held = [claim["status"].get("allocation") for claim in world.api.of(RESOURCE_CLAIMS)]
    return [result["device"] for allocation in held if allocation for result in allocation["devices"]["results"]]


async def test_devices_are_allocated_while_the_names_are_being_recorded(world: World, make: type[Make]) -> None:
    async with ample(world, make) as go_on:
        await added(world, make, until=ALLOCATE)
        for _ in range(50):
            world.bring_events()
            await world.tick()
        assert writes(world) == [ALLOCATE], "the pod is not bound before it names its claim"
        go_on.set()
        await world.quiet()
        assert writes(world) == [ALLOCATE, RECORD, BIND]
        assert sorted(devices_held(world)) == ["dev-0", "dev-1"]


async def test_where_devices_may_be_scarce_the_names_come_first(world: World, make: type[Make]) -> None:
    async with ample(world, make, devices=1) as go_on:
        go_on.set()
        await added(world, make, until=RECORD)
        await world.quiet()  # it lacks devices
        world.api.drop(PODS, "ns/first")
        await world.quiet()
        world.api.calls.clear()
        world.api.drop(PODS, "ns/second")
        await world.quiet()
        world.api.calls.clear()
        await added(world, make, until=BIND)
        assert writes(world) == [RECORD, ALLOCATE, BIND]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", ERRORS)
async def test_a_recording_that_fails_is_repeated_and_the_pod_bound_after_it(
    error: str, when: str, world: World, make: type[Make]
) -> None:
    async with ample(world, make) as go_on:
        left = [RECORD]

        def fail(call: Call) -> Exception | None:
            if left and call[:3] == left[0]:
                left.clear()
                return ERRORS[error]()
            return None

        setattr(world.api, when, fail)
        await added(world, make, until=ALLOCATE)
        go_on.set()
        await world.quiet()
        made = writes(world)
        assert made.index(RECORD) < made.index(BIND)
        assert made.count(BIND) == 1
        pod = world.api[PODS, "ns/second"]
        (status,) = pod["status"]["resourceClaimStatuses"]
        claim = world.api[RESOURCE_CLAIMS, f"ns/{status['resourceClaimName']}"]
        assert [consumer["name"] for consumer in claim["status"]["reservedFor"]] == ["second"]
        assert sorted(devices_held(world)) == ["dev-0", "dev-1"]


async def test_a_pod_that_goes_while_its_names_are_recorded_leaves_nothing(world: World, make: type[Make]) -> None:
    async with ample(world, make) as go_on:
        await added(world, make, until=ALLOCATE)
        world.api.drop(PODS, "ns/second")
        go_on.set()
        await world.quiet()
        assert devices_held(world) == ["dev-0"]


async def test_a_successor_of_the_same_name_gets_a_claim_of_its_own(world: World, make: type[Make]) -> None:
    async with ample(world, make) as go_on:
        await added(world, make, until=ALLOCATE)
        world.api.drop(PODS, "ns/second")
        world.api.add(PODS, make.pod("second", claims=[make.FROM_TEMPLATE]))
        go_on.set()
        await world.quiet()
        pod = world.api[PODS, "ns/second"]
        (status,) = pod["status"]["resourceClaimStatuses"]
        (consumer,) = world.api[RESOURCE_CLAIMS, f"ns/{status['resourceClaimName']}"]["status"]["reservedFor"]
        assert consumer["uid"] == pod["metadata"]["uid"]
        assert pod["spec"]["nodeName"] == "node-0"
        assert len(devices_held(world)) == 2
