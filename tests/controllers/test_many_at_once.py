"""Thousands of objects that need a look at the same moment leave the event loop to others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import ref

import pytest
from controllers_world import World, idle
from dra_kube import DEVICE_TAINT_RULES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Conflict
from dra_operator.allocator import Features
from dra_operator.cache import Key
from dra_operator.controllers.queue import WorkQueue
from dra_operator.controllers.workers import Failures, Workers
from objects import Make
from prometheus_client import CollectorRegistry

MANY = 1000
DEVICES = 100  # of a slice


class TimeSlices:
    """How often another task has had a turn of the event loop."""

    def __init__(self) -> None:
        self.number = 0


@asynccontextmanager
async def others() -> AsyncIterator[TimeSlices]:
    """A task that wants each turn of the event loop."""
    turns = TimeSlices()

    async def want() -> None:
        while True:
            turns.number += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(want())
    await asyncio.sleep(0)
    try:
        yield turns
    finally:
        task.cancel()


async def worked_off(queue: WorkQueue) -> None:
    """Wait until the queue is idle, without the clock: it stands while another task wants each turn."""
    while not queue.is_idle:  # noqa: ASYNC110 - nothing tells of that moment
        await asyncio.sleep(0)


def furnish(world: World, make: type[Make]) -> None:
    """Running pods with a device each."""
    for first in range(0, MANY, DEVICES):
        world.api.add(RESOURCE_SLICES, make.slice(f"node-{first}", DEVICES))
    for number in range(MANY):
        node, name, claim = f"node-{number - number % DEVICES}", f"pod-{number}", f"claim-{number}"
        pod = world.api.add(PODS, make.pod(name, [make.use(claim)], node=node))
        device = {"request": "req", "driver": "gpu.example.com", "pool": node, "device": f"dev-{number % DEVICES}"}
        reserved = [{"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}]
        status = {"allocation": {"devices": {"results": [device]}}, "reservedFor": reserved}
        finalizers = ["resource.kubernetes.io/delete-protection"]
        world.api.add(RESOURCE_CLAIMS, {**make.claim(claim, finalizers=finalizers), "status": status})


@pytest.mark.parametrize(
    ("effect", "answer"),
    [("NoExecute", f"{MANY} pods need to be evicted in 1 namespace."), ("None", f"{MANY} published devices selected.")],
)
async def test_a_rule_that_selects_all_devices_is_counted_in_parts(make: type[Make], effect: str, answer: str) -> None:
    world = World(Features(taint_rules=True))
    furnish(world, make)
    taint = {"key": "broken", "effect": effect, "timeAdded": "2027-01-01T00:00:00Z"}
    world.start()
    async with world.running():
        await world.quiet()
        rule = {"metadata": {"name": "all"}, "spec": {"deviceSelector": {"driver": "gpu.example.com"}, "taint": taint}}
        world.api.add(DEVICE_TAINT_RULES, rule)
        world.bring_events()
        async with others() as turns:
            await worked_off(world.control.queues.of("taint-rules"))
            assert turns.number >= MANY // DEVICES
    conditions = world.api.of(DEVICE_TAINT_RULES)[0]["status"]["conditions"]
    assert answer in conditions[0]["message"]


async def test_when_controllers_become_ours_everything_is_looked_at_in_parts(make: type[Make]) -> None:
    world = World(Features(taint_rules=True))
    furnish(world, make)
    world.start()
    async with world.running() as control, others() as turns:
        await control.look_at_everything()
    assert turns.number >= 2 * MANY // DEVICES


async def test_keys_that_need_only_a_look_are_looked_at_with_pauses() -> None:
    queue = WorkQueue()

    async def look(key: str) -> None:
        began = time.perf_counter()
        while time.perf_counter() - began < 0.001:
            pass

    workers = Workers(queue, look, 4, Failures(CollectorRegistry()), lambda: None)
    task = asyncio.create_task(workers.run())
    await workers.started.wait()
    queue.add(*(Key("release", str(number)) for number in range(200)))
    async with others() as turns:
        await worked_off(queue)
    task.cancel()
    assert turns.number >= 20


class _Read:
    """What the work has read when it fails."""


async def test_a_worker_that_waits_for_a_key_keeps_nothing_of_the_work_that_failed() -> None:
    queue, known = WorkQueue(), list[ref[_Read]]()

    async def fail(_: str) -> None:
        known.append(ref(read := _Read()))
        raise Conflict(409, "Conflict", f"{read} has been modified")

    workers = Workers(queue, fail, 1, Failures(CollectorRegistry()), lambda: None)
    task = asyncio.create_task(workers.run())
    await workers.started.wait()
    queue.add(Key("release", "ns/claim"))
    await idle(queue)
    assert [it() for it in known] == [None]
    task.cancel()
