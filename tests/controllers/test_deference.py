"""Other schedulers decide first on devices that they allocate as well: so both take the same one less often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from controllers_world import FEW, World
from dra_kube import PODS, RESOURCE_CLAIMS
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Features, Inventory
from dra_operator.cache import Cluster
from dra_operator.controllers import TimeSettings
from dra_operator.controllers.scheduling.other_schedulers import Deference
from histories.history import in_no_time
from objects import Make, Obj

GRACE = 1.0
REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
AT_GATE = REFUSED | {"reason": "SchedulingGated"}
DEVICE = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}
Course = Callable[[World], Coroutine[None, None, None]]


def made(*theirs: Obj) -> World:
    """One device, and pods of another scheduler that want it."""
    world = World(Features())
    world.times = TimeSettings(workers=FEW, grace=GRACE)
    world.furnish()
    for pod in theirs:
        add(world, pod)
    return world


def add(world: World, pod: Obj) -> None:
    world.api.add(RESOURCE_CLAIMS, Make.claim(pod["metadata"]["name"]))
    world.api.add(PODS, pod)


def foreign(*conditions: Obj, name: str = "theirs") -> Obj:
    pod = Make.pod(name, claims=[Make.use(name)], schedulerName="default-scheduler")
    return pod | {"status": {"conditions": list(conditions)}}


def take(world: World, claim: str) -> None:
    """The other scheduler allocates the device."""
    status = {"allocation": {"devices": {"results": [DEVICE]}}}
    world.api.change(RESOURCE_CLAIMS, f"ns/{claim}", lambda obj: obj.update(status=status))


def is_allocated(world: World) -> bool:
    claim = world.api.objects.get((RESOURCE_CLAIMS, "ns", "ours"), {})
    return bool(claim.get("status", {}).get("allocation"))


async def nothing(world: World) -> None:
    """The others do nothing."""


async def refused(world: World) -> None:
    """Soon they say that there is no place."""
    await asyncio.sleep(0.1)
    world.api.change(PODS, "ns/theirs", lambda pod: pod["status"].update(conditions=[REFUSED]))


async def stream(world: World) -> None:
    """They get more and more pods."""
    for number in range(20):
        await asyncio.sleep(0.2)
        add(world, foreign(name=f"theirs-{number}"))


async def freed(world: World) -> None:
    """They have the device, and give it back after ten seconds, while one of their pods waits."""
    world.api.add(RESOURCE_CLAIMS, Make.claim("held"))
    take(world, "held")
    await asyncio.sleep(10.0)
    world.api.drop(RESOURCE_CLAIMS, "ns/held")


async def come_again(world: World) -> None:
    """They are there when ours places a pod, go, and come again with the next one of ours."""
    add(world, Make.pod("early", claims=[Make.use("early")]))
    await asyncio.sleep(5.0)
    for name in ("theirs", "early"):
        world.api.drop(PODS, f"ns/{name}")
        world.api.drop(RESOURCE_CLAIMS, f"ns/{name}")
    await asyncio.sleep(5.1)
    add(world, foreign(name="again"))


def seconds_until_allocated(world: World, course: Course, comes_at: float = 0.0) -> float:
    """For a pod of ours that comes at this time."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        world.start()
        async with world.running(), asyncio.timeout(60):
            theirs = asyncio.create_task(course(world))
            loop.call_later(comes_at, add, world, Make.pod("ours", claims=[Make.use("ours")]))
            while not is_allocated(world):
                world.bring_events()
                await world.tick()
            theirs.cancel()
            return loop.time() - comes_at

    seconds, complaints = in_no_time(main)
    assert not complaints
    return seconds


@pytest.mark.parametrize(
    ("theirs", "course", "comes_at", "least", "most"),
    [
        pytest.param([], nothing, 0, 0.0, 0.1, id="there is no other"),
        pytest.param([foreign()], nothing, 0, 0.75, 0.9, id="its pod is never decided"),
        pytest.param([foreign(AT_GATE)], nothing, 0, 0.75, 0.9, id="its pod came through a gate and is never decided"),
        pytest.param([foreign()], refused, 0, 0.25, 0.6, id="its pod is refused soon"),
        pytest.param([foreign(REFUSED)], nothing, 0, 0.25, 0.6, id="its pod was refused before"),
        pytest.param([foreign()], stream, 0, 0.75, 0.9, id="more and more pods of it come"),
        pytest.param([foreign(REFUSED)], freed, 10, 0.25, 0.8, id="a device comes free while its pod waits"),
        pytest.param([foreign(REFUSED)], come_again, 10, 0.75, 0.9, id="its next pod comes right after ours"),
    ],
)
def test_ours_waits_for_the_others_but_not_for_ever(
    theirs: list[Obj], course: Course, comes_at: float, least: float, most: float
) -> None:
    assert least <= seconds_until_allocated(made(*theirs), course, comes_at) <= most


def test_a_device_that_the_others_take_meanwhile_is_never_taken_by_ours_too() -> None:
    world = made(foreign())
    said: list[str] = []

    async def course(world: World) -> None:
        await asyncio.sleep(0.1)
        take(world, "theirs")
        await asyncio.sleep(5.0)
        said.extend(world.messages("FailedScheduling"))
        world.api.drop(RESOURCE_CLAIMS, "ns/theirs")

    assert seconds_until_allocated(world, course) >= 5.1
    assert "1 in use" in said[0]
    assert world.registry.get_sample_value("dra_operator_allocations_given_up_total") == 0


@pytest.mark.parametrize("size", [2, 8])
def test_a_gang_waits_once_for_the_others(size: int) -> None:
    """Not once for each of its pods: those that had waited would wait anew while the next one does."""
    world = World(Features())
    world.times = TimeSettings(workers=FEW, grace=GRACE)
    world.furnish(1, size)
    add(world, foreign(REFUSED))
    for number in range(size):
        pod = Make.pod(f"ours-{number}", claims=[Make.use(f"ours-{number}")])
        pod["metadata"]["annotations"] = {"dra.kopf.dev/gang": "ours", "dra.kopf.dev/gang-size": str(size)}
        add(world, pod)

    async def main() -> float:
        loop = asyncio.get_running_loop()
        world.start()
        async with world.running(), asyncio.timeout(60):
            while not all(
                pod["spec"].get("nodeName") for pod in world.api.of(PODS) if "ours" in pod["metadata"]["name"]
            ):
                world.bring_events()
                await world.tick()
            return loop.time()

    seconds, complaints = in_no_time(main)
    assert not complaints
    assert GRACE / 4 <= seconds <= 2.5


def test_after_a_contest_ours_waits_longer_and_says_so_and_less_after_a_quiet_minute() -> None:
    now = [0.0]
    deference = Deference(Cluster(Inventory(Features(), language=CelSelectors(Features()))), lambda: now[0], GRACE)
    drivers = frozenset({"gpu.example.com"})
    assert deference.longest(drivers) == 0
    longest = []
    for _ in range(6):
        deference.clashed(drivers)
        longest.append(deference.longest(drivers))
    assert longest == [1.5, 3.0, 6.0, 12.0, 12.0, 12.0]
    assert deference.longest(frozenset({"*"})) == 12.0
    assert deference.longest(frozenset({"other.example.com"})) == 0
    now[0] = 61.0
    assert deference.longest(drivers) == 6.0
    now[0] = 300.0
    assert deference.longest(drivers) == 0


def test_ours_waits_while_it_does_not_see_what_others_do_but_not_for_ever() -> None:
    world = made()
    world.sees_others = False
    assert 2.0 <= seconds_until_allocated(world, nothing) <= 2.4
