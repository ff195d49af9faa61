"""Pods that take a second of searching each, and find nothing: they hold up no easy pod, and no claim."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import Any

import pytest
from allocator_lab import partition_problem
from controllers_world import World
from dra_api.selectors import Requirement
from dra_kube import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_operator.controllers.scheduling.planning import InProgress
from dra_operator.scheduling import Elapsed, Pause
from objects import Make

pytestmark = pytest.mark.real_time

HARD, EASY = 20, 12
APART = [
    {"topologyKey": "zone", "labelSelector": {"matchExpressions": [{"key": f"k{rule}", "operator": "DoesNotExist"}]}}
    for rule in range(100)
]


def add_pod(world: World, make: type[Make], name: str, devices: int, namespace: str = "ns") -> None:
    claim, pod = make.claim(name, count=devices), make.pod(name, claims=[make.use(name)])
    for obj in (claim, pod):
        obj["metadata"]["namespace"] = namespace
    world.api.add(RESOURCE_CLAIMS, claim)
    world.api.add(PODS, pod)


def told(world: World) -> set[str]:
    """Return the pods for which no place was found."""
    return {pod["metadata"]["name"] for pod in world.api.of(PODS) if pod["status"].get("conditions")}


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
    monkeypatch.setattr("dra_operator.controllers.scheduling.unreserve.NOTED_AFTER_SECONDS", 0.05)
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
    assert condition["message"].startswith("still looking for a node after 0 s of work")


async def test_a_pod_that_is_hard_itself_waits_for_none_of_the_hard_ones_of_another_namespace(
    world: World, make: type[Make]
) -> None:
    world.search_budget = 20_000
    world.api.add(DEVICE_CLASSES, make.device_class())
    world.api.add(NODES, make.node("hard"))
    for slice_ in partition_problem("hard"):
        world.api.add(RESOURCE_SLICES, slice_)
    for number in range(2 * HARD):
        add_pod(world, make, f"a-{number}", 20, namespace="a")
    world.start()
    async with world.running(), asyncio.timeout(60):
        for _ in range(50):
            await world.tick()
        before = told(world)
        add_pod(world, make, "b", 20, namespace="b")
        while not world.api[PODS, "b/b"]["status"].get("conditions"):
            world.bring_events()
            await world.tick()
    assert len(told(world) - before - {"b"}) <= 2, "of those that were being searched for"


async def test_others_have_their_turn_while_the_pods_that_a_hundred_rules_ask_about_are_counted(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_operator.scheduling.cycle.filter.LABELS_PER_STEP", 1)
    passes, among = [0], Requirement.among

    def counted(*given: Any) -> Any:
        passes[-1] += 1
        return among(*given)

    async def notice_turns() -> None:
        while True:
            passes.append(0)
            await asyncio.sleep(0)

    monkeypatch.setattr(Requirement, "among", counted)
    world.api.add(NODES, make.node("there", zone="a") | {"status": {"allocatable": {"pods": "500"}}})
    for number in range(100):
        world.api.add(PODS, make.pod(f"r{number}", node="there"))
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": APART}}
    world.api.add(PODS, make.pod("p", affinity=apart))
    world.start()
    async with world.running(), asyncio.timeout(60):
        turns = asyncio.create_task(notice_turns())
        while not world.api[PODS, "ns/p"]["status"].get("conditions"):
            world.bring_events()
            await world.tick()
        turns.cancel()
    assert sum(passes) == 100
    assert max(passes) <= 5


async def test_what_other_processes_take_of_the_machine_is_not_charged_to_a_plan() -> None:
    """On a busy machine each plan would count as a hard one, and its pod rest for twenty times as long."""

    def planning() -> Generator[Pause, Elapsed, str]:
        time.sleep(0.2)  # as long as the scheduler of the machine lets others run
        yield Pause.SEARCHING
        return "planned"

    attempt = InProgress(planning())
    assert await attempt.advance(0.02) == "planned"
    assert attempt.spent < 0.02
