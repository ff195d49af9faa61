"""What the controllers count: attempts by result, waiting pods by reason, queues, devices, binding conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from controllers_world import TinyLanguage, World
from dra_api.resource import Device
from dra_kube import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Forbidden,
)
from objects import Make, Obj


def add_pod(world: World, name: str = "pod", count: int = 1, **spec: Any) -> None:
    world.api.add(RESOURCE_CLAIMS, Make.claim(name, count=count))
    world.api.add(PODS, Make.pod(name, claims=[Make.use(name)], **spec))


def value(world: World, sample: str, /, **labels: str) -> float:
    return world.registry.get_sample_value(sample, labels) or 0.0


def waiting(world: World) -> dict[str, float]:
    """The waiting pods by reason, where there are any."""
    (family,) = (metric for metric in world.registry.collect() if metric.name == "dra_operator_waiting_pods")
    return {sample.labels["reason"]: sample.value for sample in family.samples if sample.value}


def attempts(world: World) -> dict[str, float]:
    names = ("scheduled", "unschedulable", "error")
    counts = {name: value(world, ATTEMPTS, result=name, profile="dra-scheduler") for name in names}
    timed = {name: value(world, TIMED, result=name, profile="dra-scheduler") for name in names}
    assert timed == counts, "every attempt has its time"
    return {name: count for name, count in counts.items() if count}


ATTEMPTS = "scheduler_schedule_attempts_total"
TIMED = "scheduler_scheduling_attempt_duration_seconds_count"


class Case(NamedTuple):
    """A pod ``pod`` that waits, the reason, and the queue in which kube-scheduler would have it."""

    arrange: Callable[[World], None]
    reason: str
    queue: str


def missing_claim(world: World) -> None:
    world.furnish(("node",))
    world.api.add(PODS, Make.pod(claims=[Make.use("claim")]))


def without_nodes(world: World) -> None:
    world.api.add(DEVICE_CLASSES, Make.device_class())
    add_pod(world)


def too_few(world: World) -> None:
    world.furnish(("node",))
    add_pod(world, count=2)


def full(world: World) -> None:
    world.furnish(("node",))
    add_pod(world, containers=[Make.asking("main", cpu="100")])


def gated(world: World) -> None:
    world.furnish(("node",))
    add_pod(world, schedulingGates=[{"name": "wait"}])


def unsupported(world: World) -> None:
    world.furnish(("node",))
    add_pod(world, schedulingGroup={"podGroupName": "group"})


def broken_selector(world: World) -> None:
    world.furnish(("node",))
    world.api.change(DEVICE_CLASSES, "gpu", lambda made: made.update(Make.device_class("gpu", "no-such-key")))
    add_pod(world)


def wrong_selector(world: World) -> None:
    """One that does not compile; one that fails on devices is a matter of their node."""

    class Strict(TinyLanguage):
        def compile(self, expression: str) -> Callable[[str, Device], bool]:
            if expression == "no such word":
                raise ValueError("undeclared reference")
            return super().compile(expression)

    world.language = Strict()
    world.furnish(("node",))
    world.api.change(DEVICE_CLASSES, "gpu", lambda made: made.update(Make.device_class("gpu", "no such word")))
    add_pod(world)


CASES = {
    "a claim that does not exist": Case(missing_claim, "claim-missing", "unschedulable"),
    "no nodes": Case(without_nodes, "no-nodes", "unschedulable"),
    "too few devices": Case(too_few, "devices", "unschedulable"),
    "a full node": Case(full, "resource", "unschedulable"),
    "scheduling gates": Case(gated, "gated", "gated"),
    "what is not supported": Case(unsupported, "unsupported", "unschedulable"),
    "a selector that fails on the devices of all nodes": Case(broken_selector, "devices", "unschedulable"),
    "an error": Case(wrong_selector, "error", "backoff"),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_waiting_pod_counts_under_its_reason(name: str, world: World) -> None:
    case = CASES[name]
    case.arrange(world)
    world.start()
    async with world.running():
        for _ in range(30):
            world.bring_events()
            await world.tick()
        assert waiting(world) == {case.reason: 1}
        pending = {queue: value(world, "scheduler_pending_pods", queue=queue) for queue in QUEUES}
    assert pending == {**dict.fromkeys(QUEUES, 0), case.queue: 1}


QUEUES = ("active", "backoff", "unschedulable", "gated")


async def test_attempts_count_by_their_result(world: World) -> None:
    world.furnish(("node",), devices=2)
    add_pod(world, "fits")
    add_pod(world, "large", count=3)
    await world.settle()
    assert attempts(world) == {"scheduled": 1, "unschedulable": 1}
    assert waiting(world) == {"devices": 1}


@pytest.mark.rule("K37-MET-01", "K37-MET-02")
async def test_int_035_claims_count_as_they_are_made_allocated_and_deleted(world: World) -> None:
    world.furnish(("node",))
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    for name in ("first", "second"):
        world.api.add(PODS, Make.pod(name, claims=[Make.FROM_TEMPLATE]))
    await world.settle()
    assert claims(world) == {"true": 1, "false": 1}
    labels = {"status": "success", "admin_access": "false"}
    assert value(world, "resourceclaim_controller_creates_total", **labels) == 2
    owner = {"owner_api_group": "", "owner_api_kind": "Pod"}
    assert value(world, "dynamic_resource_allocation_resourceclaim_creates_total", **labels, **owner) == 2
    for pod in list(world.api.of(PODS)):
        world.api.drop(PODS, f"ns/{pod['metadata']['name']}")
    for claim in list(world.api.of(RESOURCE_CLAIMS)):  # as the garbage collector does it
        world.api.drop(RESOURCE_CLAIMS, f"ns/{claim['metadata']['name']}")
    await world.settle()
    assert claims(world) == {"true": 0, "false": 0}


def claims(world: World) -> dict[str, float]:
    """Generated claims, by whether they are allocated; under the name of 1.37 and the one before it."""
    labels = {"admin_access": "false", "source": "resource_claim_template"}
    new, old = (
        {
            allocated: value(world, f"{prefix}_resource_claims", allocated=allocated, **labels)
            for allocated in ("true", "false")
        }
        for prefix in ("dynamic_resource_allocation", "resourceclaim_controller")
    )
    assert new == old
    return new


async def test_a_refused_write_is_an_error_and_is_tried_again(world: World) -> None:
    world.furnish(("node",))
    add_pod(world)
    world.start()
    refusals = iter([Forbidden(403, "Forbidden", "no")])
    world.api.before = lambda call: next(refusals, None) if call.sub == "binding" else None
    async with world.running():
        await world.quiet()
    assert attempts(world) == {"error": 1, "scheduled": 1}
    assert value(world, "workqueue_retries_total", name="placement") == 1
    assert waiting(world) == {}


async def test_queues_tell_how_much_waits_and_for_how_long(world: World) -> None:
    world.furnish(("node",))
    for name in ("one", "two"):
        add_pod(world, name)
    control = world.start()
    assert value(world, "workqueue_depth", name="placement") == 2
    assert value(world, "workqueue_adds_total", name="placement") == 2
    await world.tick()
    assert value(world, "dra_operator_queue_oldest_seconds", name="placement") >= 0.001
    await control.queues.of("placement").get()
    await control.queues.of("placement").get()
    assert value(world, "workqueue_depth", name="placement") == 0
    assert value(world, "dra_operator_queue_oldest_seconds", name="placement") == 0
    control.queues.close()


async def test_devices_count_in_the_newest_generation_of_their_pool(world: World) -> None:
    world.api.add(DEVICE_CLASSES, Make.device_class("gpu", "memory"))
    world.api.add(NODES, Make.node("node"))
    world.api.add(RESOURCE_SLICES, Make.slice("node", 3, memory="80Gi"))
    world.api.add(RESOURCE_SLICES, Make.slice("node", 5, "nic.example.com"))
    old = Make.slice("node", 8, memory="80Gi")
    old["metadata"]["name"], old["spec"]["pool"]["generation"] = "old", 0
    world.api.add(RESOURCE_SLICES, old)
    add_pod(world, count=2)
    await world.settle()
    for driver, published, in_use, beside in (("gpu.example.com", 3, 2, 1), ("nic.example.com", 5, 0, 0)):
        assert value(world, "dra_operator_devices", driver=driver) == published
        assert value(world, "dra_operator_devices_in_use", driver=driver) == in_use
        assert value(world, "dra_operator_devices_beside_used", driver=driver) == beside


async def test_the_oldest_pod_of_each_reason_tells_how_long_pods_wait(world: World) -> None:
    world.furnish(("node",))
    for name, created in (("old", "2026-01-01T00:00:00Z"), ("older", "2025-12-31T23:59:30Z")):
        add_pod(world, name, count=2)
        world.api[PODS, f"ns/{name}"]["metadata"]["creationTimestamp"] = created
    world.now = "2026-01-01T00:01:00Z"
    await world.settle()
    assert value(world, "dra_operator_oldest_waiting_pod_seconds", reason="devices") == 90
    world.api.drop(PODS, "ns/older")
    await world.settle()
    assert value(world, "dra_operator_oldest_waiting_pod_seconds", reason="devices") == 60


async def test_a_gang_counts_once_by_the_reason_of_the_pod_that_speaks_for_it(world: World) -> None:
    world.furnish(2, 1)
    for gang, size, pods in (("wide", 3, 3), ("short", 3, 2)):
        for number in range(pods):
            add_pod(world, f"{gang}-{number}")
            wish = {"dra.kopf.dev/gang": gang, "dra.kopf.dev/gang-size": str(size)}
            world.api[PODS, f"ns/{gang}-{number}"]["metadata"]["annotations"] = wish
    await world.settle()
    (family,) = (it for it in world.registry.collect() if it.name == "dra_operator_waiting_gangs")
    assert {sample.labels["reason"]: sample.value for sample in family.samples} == {"devices": 1, "gang-incomplete": 1}


def report(claim: Obj, condition: str) -> None:
    """What the driver writes."""
    conditions = [{"type": condition, "status": "True", "reason": "R", "message": "m"}]
    device = {"driver": "gpu.example.com", "pool": "node", "device": "dev-0", "conditions": conditions}
    claim["status"].update(devices=[device])


@pytest.mark.rule("K37-MET-04")
@pytest.mark.parametrize(
    ("said", "later", "status", "seconds"),
    [
        ("attached", "2026-01-01T00:00:30Z", "success", 30.0),
        ("broken", "2026-01-01T00:00:07Z", "failure", 7.0),
        ("", "2026-01-01T00:11:00Z", "timeout", 660.0),
    ],
)
async def test_devices_with_binding_conditions_count_by_what_became_of_them(
    world: World, said: str, later: str, status: str, seconds: float
) -> None:
    world.furnish(("node",))
    conditions = {"bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]}
    world.api.change(
        RESOURCE_SLICES, "node-gpu.example.com", lambda made: made["spec"]["devices"][0].update(conditions)
    )
    add_pod(world)
    control = world.start()
    async with world.running():
        async with asyncio.timeout(30):
            while waiting(world) != {"getting-ready": 1}:
                await world.busy()
        world.now = later
        if said:
            world.api.change(RESOURCE_CLAIMS, "ns/pod", lambda claim: report(claim, said))
            await world.busy()
        else:
            control.look_again()
        await world.busy()
    labels = {"profile": "dra-scheduler", "driver": "gpu.example.com", "status": status}
    assert value(world, "scheduler_dra_bindingconditions_allocations_total", **labels) == 1
    for name in ("prebind", "wait"):
        assert value(world, f"scheduler_dra_bindingconditions_{name}_duration_seconds_sum", **labels) == seconds
