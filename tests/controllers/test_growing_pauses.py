"""What keeps being undone is done again, with pauses that grow."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest
from controllers_world import World
from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Forbidden
from dra_operator.allocator import Features
from dra_operator.cache import Key
from dra_operator.controllers.context import CALM_SECONDS, REMEMBERED_THINGS, GrowingPauses
from dra_operator.controllers.settings import BackoffSettings
from fake_api import Call, FakeApi
from history_kit.clock import VirtualLoop
from objects import Make

MARK = "resource.kubernetes.io/extended-resource-claim"
GPU = "deviceclass.resource.kubernetes.io/gpu"
MINUTES = 10
KEY = Key("templates", "ns/pod")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_first_two_times_have_no_pause_and_later_ones_double_up_to_the_longest() -> None:
    pauses = GrowingPauses(Clock(), BackoffSettings(first=1.0, longest=5.0), lambda *_: None)
    assert [pauses.did("it") for _ in range(6)] == [0, 1, 2, 4, 5, 5]
    assert pauses.did("another") == 0
    assert {pauses.did("it") for _ in range(2000)} == {5}, "2.0**1024 is no float"


def test_a_pause_ends_with_its_time_and_calm_makes_the_next_time_the_first() -> None:
    clock = Clock()
    late: list[tuple[Key, float]] = []
    pauses = GrowingPauses(clock, BackoffSettings(first=1.0, longest=5.0), lambda *when: late.append(when))
    assert not pauses.puts_off("it", KEY)
    pauses.did("it")
    assert pauses.did("it") == 1.0
    assert pauses.puts_off("it", KEY)
    clock.now += 0.75
    assert pauses.puts_off("it", KEY)
    assert late == [(KEY, 1.0), (KEY, 0.25)]
    clock.now += 1.0
    assert not pauses.puts_off("it", KEY)
    assert pauses.did("it") == 2.0
    clock.now += 2.0 + CALM_SECONDS
    assert pauses.did("it") == 0


def test_what_was_not_done_for_the_longest_time_is_forgotten_first() -> None:
    pauses = GrowingPauses(Clock(), BackoffSettings(first=1.0), lambda *_: None)
    for number in range(REMEMBERED_THINGS + 1):
        pauses.did(f"{number}")
    assert (pauses.did("1"), pauses.did("0")) == (1.0, 0.0)


def in_virtual_time(story: Callable[[World], Awaitable[None]]) -> World:
    """The world after the operator ran for ``MINUTES`` in a loop whose time costs nothing."""

    async def run() -> World:
        world = World(Features())
        world.api.way = lambda: asyncio.sleep(0.001)  # otherwise a loop of writes would take no time
        await story(world)
        world.start()
        loop, seen = asyncio.get_running_loop(), 0
        end = loop.time() + 60 * MINUTES
        async with world.running():
            while loop.time() < end:
                world.bring_events()
                if len(world.api.calls) > seen:
                    assert claims_made(world) < 100
                    seen = len(world.api.calls)
                await asyncio.sleep(0.01)
        return world

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


def claims_made(world: World) -> int:
    return sum((call.verb, call.plural) == ("create", "resourceclaims") for call in world.api.calls)


def test_a_generated_claim_that_is_deleted_again_and_again_is_made_again_with_pauses(make: type[Make]) -> None:
    def delete_all(api: FakeApi) -> None:
        for claim in api.of(RESOURCE_CLAIMS):
            api.drop(RESOURCE_CLAIMS, f"ns/{claim['metadata']['name']}")

    async def story(world: World) -> None:
        world.furnish()
        world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
        world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE], nodeSelector={"none": "such"}))
        world.others.append(delete_all)

    made = claims_made(in_virtual_time(story))
    assert 10 <= made <= 30  # the pauses double from 0.05 s to 60 s


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_claim_for_extended_resources_that_is_given_up_again_and_again_is_made_again_with_pauses(
    is_lost: bool, make: type[Make]
) -> None:
    """It is created but never allocated, and what is left of it is only found by the next attempt."""

    async def story(world: World) -> None:
        world.furnish()
        world.api.add(PODS, make.pod(containers=[make.asking("main", **{GPU: "1"})]))
        undone = 0

        def refuse(call: Call) -> Exception | None:
            nonlocal undone
            if (call.verb, call.plural) != ("update", "resourceclaims"):
                return None
            undone += call.sub is None
            lasts = is_lost and call.sub is None and undone % 2 == 1
            return Forbidden(403, "Forbidden", "no") if lasts or call.sub else None

        world.api.before = refuse

    made = claims_made(in_virtual_time(story))
    assert 10 <= made <= 40


@pytest.mark.parametrize("kind", ["waits", "has a node", "asks for an extended resource"])
def test_a_template_may_mark_its_claims_as_ones_for_extended_resources(kind: str, make: type[Make]) -> None:
    async def story(world: World) -> None:
        world.furnish(devices=2)
        world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template(annotations={MARK: "true"}))
        node = "node-0" if kind == "has a node" else ""
        containers = [make.asking("main", **{GPU: "1"})] if kind == "asks for an extended resource" else []
        world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE], node=node, containers=containers))

    world = in_virtual_time(story)
    asks = kind == "asks for an extended resource"
    assert claims_made(world) == len(world.api.of(RESOURCE_CLAIMS)) == 1 + asks
    assert world.api[PODS, "ns/pod"]["spec"]["nodeName"] == "node-0"


def test_a_claim_that_the_pod_names_is_not_taken_for_one_of_its_extended_resources(make: type[Make]) -> None:
    async def story(world: World) -> None:
        world.furnish(devices=2)
        pod = world.api.add(PODS, make.pod(claims=[make.use("mine")], containers=[make.asking("main", **{GPU: "1"})]))
        mine = make.claim("mine", owner=pod["metadata"], annotations={MARK: "true"})
        world.api.add(RESOURCE_CLAIMS, mine)

    world = in_virtual_time(story)
    assert world.api[PODS, "ns/pod"]["spec"]["nodeName"] == "node-0"
    assert (RESOURCE_CLAIMS, "ns", "mine") in world.api.objects


def test_a_pod_whose_reason_comes_and_goes_is_told_with_pauses_and_at_last_the_truth(make: type[Make]) -> None:
    """The claim that the pod names is made and deleted ten times a second, for five minutes."""
    turns = itertools.count()

    def flap(api: FakeApi) -> None:
        if (turn := next(turns)) % 10 or turn > 100 * 60 * 5:
            return
        if api.of(RESOURCE_CLAIMS):
            api.drop(RESOURCE_CLAIMS, "ns/c")
        else:
            api.add(RESOURCE_CLAIMS, make.claim("c"))

    async def story(world: World) -> None:
        world.furnish(devices=0)
        world.api.add(PODS, make.pod(claims=[make.use("c")]))
        world.others.append(flap)

    world = in_virtual_time(story)
    told = [call for call in world.api.calls if (call.plural, call.sub) == ("pods", "status")]
    assert 5 <= len(told) <= 30
    (condition,) = world.api[PODS, "ns/pod"]["status"]["conditions"]
    missing = 'resourceclaim "c" not found'
    assert condition["message"].startswith(missing) is not bool(world.api.of(RESOURCE_CLAIMS))
