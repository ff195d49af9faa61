"""What another scheduler allocated counts for a day, also for the next leader."""

from __future__ import annotations

import json

import pytest
from controllers_world import World
from dra_api.resource import FINALIZER
from dra_kube import PODS, RESOURCE_CLAIMS
from dra_operator.controllers.scheduling.other_schedulers import MOST_DRIVERS, DriverMemory
from objects import Make

NOW = 1_790_000_000.0


@pytest.fixture
def memory() -> DriverMemory:
    return DriverMemory(lambda: NOW)


def at(seconds: float, text: str = "") -> DriverMemory:
    """A memory of the next leader, so many seconds later."""
    after = DriverMemory(lambda: NOW + seconds)
    after.recall(text)
    return after


def test_a_driver_is_known_for_a_day_and_by_the_next_leader(memory: DriverMemory) -> None:
    memory.met("gpu.example.com")
    assert at(3600, memory.text).knows("gpu.example.com")
    assert at(3600, memory.text).knows("*"), "a class that names no driver may mean this one"
    assert not at(3600, memory.text).knows("nic.example.com")
    assert not at(25 * 3600, memory.text).knows("gpu.example.com")
    assert at(25 * 3600, memory.text).text == ""


def test_a_class_without_a_driver_stands_for_every_driver(memory: DriverMemory) -> None:
    memory.met("*")
    assert memory.knows("nic.example.com")


def test_too_many_drivers_stand_for_all(memory: DriverMemory) -> None:
    for number in range(MOST_DRIVERS + 1):
        memory.met(f"driver-{number}")
    assert memory.knows("never-met")
    assert len(memory.text) < 20_000


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"a":[]}', "null", '{"a":1e999}', "x" * 1_000_000, '{"a":-5}', f'{{"{"a" * 70_000}":1789999800}}'],
)
def test_what_cannot_be_read_is_forgotten(text: str) -> None:
    after = at(0, text)
    assert not after.knows("b")
    assert after.text in ("", '{"a":1789999800}')


def test_of_too_many_drivers_the_next_leader_recalls_those_that_were_met_last() -> None:
    after = at(0, json.dumps({f"driver-{number}": NOW - number for number in range(2 * MOST_DRIVERS)}))
    assert [number for number in range(2 * MOST_DRIVERS) if after.knows(f"driver-{number}")] == list(
        range(MOST_DRIVERS)
    )


def test_what_was_met_since_counts_more_than_what_is_recalled(memory: DriverMemory) -> None:
    memory.met("a")
    before = memory.text
    memory.recall(f'{{"a":{NOW - 3600}}}')
    assert memory.text == before


def test_a_time_in_the_future_is_now() -> None:
    assert not at(0, f'{{"a":{NOW + 1e9}}}').knows("b")
    after = at(0, f'{{"a":{NOW + 1e9}}}')
    assert after.knows("a")
    assert after.text == f'{{"a":{int(NOW - NOW % 600)}}}'


async def test_a_pod_waits_for_the_second_look_after_the_others_are_gone(world: World, make: type[Make]) -> None:
    world.furnish(devices=2)
    world.api.add(RESOURCE_CLAIMS, make.claim("theirs"))
    world.api.add(PODS, make.pod("theirs", claims=[make.use("theirs")], schedulerName="default-scheduler"))
    world.start()
    async with world.running():
        await world.quiet()
        taken = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}
        users = [{"resource": "pods", "name": "theirs", "uid": world.api[PODS, "ns/theirs"]["metadata"]["uid"]}]
        status = {"allocation": {"devices": {"results": [taken]}}, "reservedFor": users}
        world.api.change(RESOURCE_CLAIMS, "ns/theirs", lambda claim: claim.update(status=status))
        world.api.change(RESOURCE_CLAIMS, "ns/theirs", lambda claim: claim["metadata"].update(finalizers=[FINALIZER]))
        world.bring_events()
        for kind in (PODS, RESOURCE_CLAIMS):
            world.api.drop(kind, "ns/theirs")
        await world.quiet()
        world.api.add(RESOURCE_CLAIMS, make.claim("ours"))
        world.api.add(PODS, make.pod("ours", claims=[make.use("ours")]))
        await world.quiet()
        assert world.node_of("ours") == "node-0"
        assert world.control.conflict_check._as_of > 0, "the claims were listed before the pod was bound"
