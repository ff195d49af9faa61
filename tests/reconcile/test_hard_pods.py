"""Pods that take a second of searching each, and find nothing: they hold up no easy pod, and no claim."""

from __future__ import annotations

import asyncio

import pytest
from dra_kube import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from hard_problem import partition_problem
from objects import Make
from reconcile_world import World

HARD, EASY = 20, 12


def add_pod(world: World, make: type[Make], name: str, devices: int) -> None:
    world.api.add(RESOURCE_CLAIMS, make.claim(name, count=devices))
    world.api.add(PODS, make.pod(name, claims=[make.use(name)]))


async def test_hard_pods_hold_up_neither_easy_ones_nor_the_release_of_claims(world: World, make: type[Make]) -> None:
    world.api.add(DEVICE_CLASSES, make.device_class())
    for name in ("hard", "easy"):
        world.api.add(NODES, make.node(name))
        world.api.change(NODES, name, lambda node: node["status"]["allocatable"].update(pods="500"))
    for slice_ in partition_problem("hard"):
        world.api.add(RESOURCE_SLICES, slice_)
    world.api.add(RESOURCE_SLICES, make.slice("easy", EASY))
    for number in range(HARD):
        add_pod(world, make, f"hard-{number}", 20)
    world.start()
    async with world.running(), asyncio.timeout(60):
        for _ in range(50):
            await world.tick()  # the hard ones are being searched for
        for number in range(EASY):
            add_pod(world, make, f"easy-{number}", 1)
        while not all(world.api[PODS, f"ns/easy-{number}"]["spec"].get("nodeName") for number in range(EASY)):
            world.bring_events()
            await world.tick()
        assert world.messages("FailedScheduling") == []  # nothing came of any hard one before
        world.api.change(PODS, "ns/easy-0", lambda pod: pod["status"].update(phase="Succeeded"))
        while world.api[RESOURCE_CLAIMS, "ns/easy-0"]["status"].get("allocation"):
            world.bring_events()
            await world.tick()
        assert world.messages("FailedScheduling") == []


async def test_a_pod_whose_plan_takes_long_says_so_meanwhile(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_operator.reconcile.place.NOTED_AFTER", 0.05)
    world.api.add(DEVICE_CLASSES, make.device_class())
    world.api.add(NODES, make.node("hard"))
    for slice_ in partition_problem("hard"):
        world.api.add(RESOURCE_SLICES, slice_)
    add_pod(world, make, "hard", 20)
    world.start()
    async with world.running(), asyncio.timeout(60):
        while not (conditions := world.api[PODS, "ns/hard"]["status"].get("conditions")):
            world.bring_events()
            await world.tick()
    (condition,) = conditions
    assert condition["message"].startswith("still being planned, 0 s of work so far")
