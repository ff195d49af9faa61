"""A write without an answer may have happened, or may still happen: no device is given twice, and none is lost."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from controllers_world import World
from dra_api.codec import convert
from dra_api.core import Pod
from dra_kube import (
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Conflict,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from dra_operator.cache import Key, Source, check
from dra_operator.controllers.settings import BackoffSettings
from dra_operator.scheduling.state import GATE
from fake_api import Call
from objects import Make, Obj


def furnish(world: World, make: type[Make], nodes: int, devices: int) -> None:
    world.furnish(nodes, devices)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())


def is_allocation(call: Call) -> bool:
    return (call.verb, call.plural, call.sub) == ("update", "resourceclaims", "status")


@pytest.mark.parametrize("seed", range(5))
async def test_thirty_pods_on_twenty_devices_when_every_third_answer_is_lost(
    seed: int, world: World, make: type[Make]
) -> None:
    """The watch lags behind all the time, so that only the server can say what a write did."""
    chance = random.Random(seed)
    furnish(world, make, nodes=2, devices=10)
    for number in range(30):
        world.api.add(PODS, make.pod(f"pod-{number}", claims=[make.FROM_TEMPLATE]))
    for node in ("node-0", "node-1"):
        world.api.change(NODES, node, lambda obj: obj["status"]["allocatable"].update(pods="50"))
    world.start()
    world.api.after = lambda call: Unreachable("cut") if call.verb != "get" and chance.random() < 0.33 else None
    async with world.running():
        for _ in range(40):
            for _ in range(chance.randrange(60)):
                await world.tick()
                assert max(world.holders().values(), default=0) <= 1
            world.bring_events()
            check(world.cluster)
        world.api.after = lambda call: None
        await world.quiet()
    assert len(world.bound()) == 20
    assert len(world.api.of(RESOURCE_CLAIMS)) == 30
    assert set(world.holders().values()) == {1}


async def test_an_allocation_that_lands_late_is_outdated_before_its_devices_are_given_again(
    world: World, make: type[Make]
) -> None:
    """The server lets a write take up to a minute; the client has given up long before."""
    furnish(world, make, nodes=1, devices=1)
    world.api.add(RESOURCE_CLAIMS, make.claim("late"))
    world.api.add(RESOURCE_CLAIMS, make.claim("other"))
    world.api.add(PODS, make.pod("late", claims=[make.use("late")]))
    world.start()
    world.api.landing = is_allocation
    async with world.running():
        while not world.api.underway:
            await world.tick()
        world.api.landing = lambda call: False
        world.api.drop(PODS, "ns/late")
        world.api.add(PODS, make.pod("other", claims=[make.use("other")]))
        await world.quiet()
        assert world.bound() == ["other"]
        (fared,) = world.api.land()
        assert isinstance(fared, Conflict)
        await world.quiet()
    assert world.holders() == {"node-0/dev-0": 1}


async def test_an_allocation_that_lands_while_it_is_asked_for_counts_as_ours(world: World, make: type[Make]) -> None:
    furnish(world, make, nodes=1, devices=1)
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))
    world.start()
    world.api.landing = is_allocation

    def land_before_the_next_reading(call: Call) -> None:
        if call.verb == "get" and world.api.underway:
            world.api.landing = lambda call: False
            world.api.land()

    world.api.before = land_before_the_next_reading
    async with world.running():
        await world.quiet()
    assert world.bound() == ["pod"]
    assert sum(map(is_allocation, world.api.calls)) == 1


@pytest.mark.parametrize("lands", ["after the pod was placed again", "before the next attempt", "never"])
async def test_devices_that_are_given_back_without_an_answer_are_not_relied_on(
    lands: str, world: World, make: type[Make]
) -> None:
    """The binding is refused for a moment, and the write that gives the devices back is under way for long."""
    furnish(world, make, nodes=1, devices=1)
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))
    busy = [TooManyRequests(429, "TooManyRequests", "later")]
    world.api.before = lambda call: busy.pop() if busy and call.sub == "binding" else None
    world.api.landing = lambda call: is_allocation(call) and not busy and not world.api.underway
    world.start()
    async with world.running():
        while not world.api.underway:
            world.bring_events()
            await world.tick()
        world.api.landing = lambda call: False
        if lands == "before the next attempt":
            assert world.api.land() == [None]
        await world.quiet()
        if lands == "after the pod was placed again":
            (fared,) = world.api.land()
            assert isinstance(fared, Conflict)
        await world.quiet()
    assert world.bound() == ["pod"]
    assert world.holders() == {"node-0/dev-0": 1}


def is_binding(call: Call) -> bool:
    return call.sub == "binding"


async def test_a_pod_that_may_be_bound_keeps_its_shared_claim(world: World, make: type[Make]) -> None:
    """The binding of the first pod and the reservation of the second were carried out, and neither was answered."""
    furnish(world, make, nodes=1, devices=1)
    world.api.add(RESOURCE_CLAIMS, make.claim("shared"))
    world.api.add(PODS, make.pod("first", claims=[make.use("shared")]))
    world.start()
    lost = [is_binding, is_allocation]

    def lose(call: Call) -> Unreachable | None:
        if not lost or not lost[0](call):
            return None
        lost.pop(0)
        return Unreachable("cut")

    world.api.after = lose
    async with world.running():
        while len(lost) == 2:
            await world.tick()
        world.api.add(PODS, make.pod("second", claims=[make.use("shared")]))
        while world.bound() != ["first", "second"]:
            reserved = world.api[RESOURCE_CLAIMS, "ns/shared"]["status"]["reservedFor"]
            assert "first" in [entry["name"] for entry in reserved]
            for event in [event for event in world.api.events if event[2]["metadata"]["name"] == "second"]:
                world.api.events.remove(event)  # nothing brings the binding of the first
                world.control.apply(Source.WATCH, convert(Pod, event[2]))
            await world.tick()
        await world.quiet()


async def test_a_binding_that_was_carried_out_without_an_answer_is_reported(world: World, make: type[Make]) -> None:
    furnish(world, make, nodes=1, devices=1)
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))
    world.start()
    lost = [Unreachable("cut")]
    world.api.after = lambda call: lost.pop() if lost and is_binding(call) else None
    async with world.running():
        while not world.messages("Scheduled"):
            await world.tick()
        await world.quiet()
    assert world.messages("Scheduled") == ["Successfully assigned ns/pod to node-0"]
    assert sum(map(is_binding, world.api.calls)) == 1


async def test_a_successor_on_the_same_node_is_not_taken_for_the_pod_whose_binding_got_no_answer(
    world: World, make: type[Make]
) -> None:
    furnish(world, make, nodes=1, devices=1)
    world.api.add(PODS, make.pod())
    world.start()

    def replace_pod(call: Call) -> Exception | None:
        if not is_binding(call):
            return None
        world.api.drop(PODS, "ns/pod")
        world.api.add(PODS, make.pod(node="node-0"))
        world.api.events.clear()  # the watch is late
        return Unreachable("cut")

    world.api.before = replace_pod
    async with world.running():
        while not world.bound():
            await world.tick()
        await world.quiet()
    assert world.messages("Scheduled") == []


async def test_a_binding_that_lands_late_finds_another_version_of_the_pod(world: World, make: type[Make]) -> None:
    """Its pod has lost its node and its devices meanwhile, and would run without them."""
    furnish(world, make, nodes=1, devices=1)
    world.api.add(NODES, make.node("other"))
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))
    world.start()
    world.api.landing = is_binding
    async with world.running():
        while not world.api.underway:
            await world.tick()
        world.api.drop(NODES, "node-0")
        await world.quiet()
        assert world.holders() == {}
        (fared,) = world.api.land()
        assert isinstance(fared, Conflict)
        await world.quiet()
    assert world.bound() == []
    told = [message for message in world.messages("FailedScheduling") if message.startswith("cannot bind")]
    assert told == ["cannot bind the pod to node node-0 (1 time): timed out; retrying with back-off"]


async def test_each_binding_without_an_answer_is_outdated_also_after_a_restart(world: World, make: type[Make]) -> None:
    """The former process told of its own in the same words, and a condition that stays the same changes no version."""
    furnish(world, make, nodes=1, devices=1)
    world.times = replace(world.times, placement_retries=BackoffSettings(first=1000.0))
    world.api.add(PODS, make.pod())
    world.api.landing = is_binding

    async def try_in_vain() -> None:
        world.api.underway.clear()
        world.start()
        async with world.running() as control:
            place = control.queues.of("placement")
            while not place.retries:
                await world.tick()
            await world.idle()
            await world.attempt("ns/pod")  # asks what became of it

    for times in ("1 time", "2 times"):
        await try_in_vain()
        (condition,) = world.api[PODS, "ns/pod"]["status"]["conditions"]
        assert f"({times}): timed out" in condition["message"]
        (fared,) = world.api.land()
        assert isinstance(fared, Conflict)


async def test_a_pod_is_bound_in_the_version_that_the_server_has(world: World, make: type[Make]) -> None:
    """Another writer has changed the pod, and the watch has not brought that yet."""
    furnish(world, make, nodes=1, devices=1)
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))
    world.start()
    world.api.change(PODS, "ns/pod", lambda pod: pod["metadata"].update(annotations={"a": "b"}))
    async with world.running():
        while not world.bound():
            await world.tick()
        await world.quiet()
    assert sum(map(is_allocation, world.api.calls)) == 1
    assert sum(map(is_binding, world.api.calls)) == 2


@pytest.mark.rule("CC-02")
async def test_a_claim_whose_creation_was_not_answered_is_made_once(world: World, make: type[Make]) -> None:
    """The retry comes before the watch, and again without an answer."""
    furnish(world, make, nodes=1, devices=1)
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    world.start()
    lost = [Unreachable("cut"), Unreachable("cut")]
    world.api.after = lambda call: lost.pop() if lost and call.verb == "create" and call.sub is None else None
    world.api.events.clear()
    async with world.running():
        while not world.bound():
            await world.tick()
        await world.quiet()
    (claim,) = world.api.of(RESOURCE_CLAIMS)
    assert claim["metadata"]["name"].startswith("pod-entry-0-")


FAILING: dict[str, tuple[Obj, Callable[[Call], bool]]] = {
    "the binding": ({}, is_binding),
    "the opening of the gate": (
        {"schedulerName": "default-scheduler", "schedulingGates": [{"name": GATE}]},
        lambda call: (call.verb, call.plural, call.sub) == ("update", "pods", None),
    ),
    "the allocation": ({}, is_allocation),
}


@pytest.mark.parametrize("what", FAILING)
async def test_a_write_that_always_ends_in_a_server_error_is_repeated_with_growing_pauses(
    what: str, world: World, make: type[Make], caplog: pytest.LogCaptureFixture
) -> None:
    """A webhook that does not answer makes the API server answer so; what is found out between does not count."""
    caplog.set_level(logging.DEBUG)  # only the first failure is a warning
    spec, is_failing = FAILING[what]
    furnish(world, make, nodes=1, devices=1)
    world.times = replace(world.times, placement_retries=BackoffSettings(first=0.01, rate=1000.0))
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod(claims=[make.use("claim")], **spec))
    world.start()
    world.api.before = lambda call: ServerError(500, "InternalError", "no webhook") if is_failing(call) else None

    def pauses() -> list[float]:
        lines = (record.getMessage() for record in caplog.records if record.name.endswith("workers"))
        return [float(found[1]) for line in lines if (found := re.search(r"again_in=([0-9.]+)s", line))]

    async with world.running():
        async with asyncio.timeout(60):
            while len(pauses()) < 5:
                world.bring_events()
                await world.tick()
        assert pauses()[:5] == [0.01, 0.02, 0.04, 0.08, 0.16]
        world.api.before = lambda call: None
        await world.quiet()
    assert world.holders() == {"node-0/dev-0": 1}
    assert world.bound() or not world.api[PODS, "ns/pod"]["spec"]["schedulingGates"]
    assert world.control.queues.of("placement").failures(Key("placement", "ns/pod")) == 0


BREAKDOWNS: dict[str, Callable[[Call], bool]] = {
    "while a claim is allocated": is_allocation,
    "while the pod is bound": lambda call: call.sub == "binding",
}


@pytest.mark.parametrize("where", BREAKDOWNS)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_bug_in_a_commit_is_reported_counted_and_tried_again(
    when: str, where: str, world: World, make: type[Make], caplog: pytest.LogCaptureFixture
) -> None:
    furnish(world, make, nodes=1, devices=1)
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))
    bugs = [ZeroDivisionError("a bug")]
    setattr(world.api, when, lambda call: bugs.pop() if bugs and BREAKDOWNS[where](call) else None)
    await world.settle()
    assert world.bound() == ["pod"]
    assert world.holders() == {"node-0/dev-0": 1}
    labels = {"controller": "placement", "kind": "unexpected"}
    assert world.registry.get_sample_value("dra_operator_reconcile_errors_total", labels) == 1
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info is not None


def why_it_waits(world: World) -> str:
    (condition,) = world.api[PODS, "ns/pod"]["status"]["conditions"]
    return str(condition["message"])


async def test_a_reason_that_lands_late_gives_way_to_the_one_that_holds(world: World, make: type[Make]) -> None:
    """Meanwhile the pod was told what it had shown before: for the operator there was nothing to write."""
    furnish(world, make, nodes=1, devices=1)
    world.api.add(PODS, make.pod(nodeSelector={"zone": "a"}))
    await world.settle()
    shown = why_it_waits(world)
    world.api.change(NODES, "node-0", lambda node: node.update(spec={"unschedulable": True}))
    world.start()
    world.api.landing = lambda call: (call.plural, call.sub) == ("pods", "status")
    async with world.running() as control:
        while not control.queues.of("placement").retries:
            await world.tick()
        world.api.landing = lambda call: False
        world.api.change(NODES, "node-0", lambda node: node.update(spec={}))
        world.bring_events()
        await asyncio.sleep(0.06)  # the pause after the failure is over, and the first reason holds again
        assert why_it_waits(world) == shown
        world.api.land()
        assert why_it_waits(world) != shown
        await world.quiet()
    assert why_it_waits(world) == shown
