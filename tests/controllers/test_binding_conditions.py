"""Devices that have to be attached first: the pod is bound when they are ready, and moves on if that never comes."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from controllers_world import World
from dra_kube import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from objects import Make, Obj

START, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:11:00Z"


IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"
both = pytest.mark.parametrize("kind", ["claim", "extended resource"])
"""Run with a claim of the pod, and with one that is made for its extended resource."""


def furnish(world: World, make: type[Make], kind: str = "claim") -> None:
    """Two nodes; the first one's device has to be attached."""
    world.now = START
    world.api.add(DEVICE_CLASSES, make.device_class())
    for name in ("node-0", "node-1"):
        world.api.add(NODES, make.node(name))
    published = make.slice("node-0", 1)
    published["spec"]["devices"][0] |= {"bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]}
    world.api.add(RESOURCE_SLICES, published)
    if kind == "claim":
        world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
        world.api.add(PODS, make.pod(claims=[make.use("claim")]))
    else:
        world.api.add(PODS, make.pod(containers=[make.asking("main", **{IMPLICIT: "1"})]))


def the_claim(world: World) -> Obj:
    """The only one that there is."""
    (claim,) = world.api.of(RESOURCE_CLAIMS)
    return claim


def report(world: World, condition: str) -> None:
    """What the driver writes."""
    conditions = [{"type": condition, "status": "True", "reason": "R", "message": "m"}]
    device = {"driver": "gpu.example.com", "pool": "node-0", "device": "dev-0", "conditions": conditions}
    key = f"ns/{the_claim(world)['metadata']['name']}"
    world.api.change(RESOURCE_CLAIMS, key, lambda claim: claim["status"].update(devices=[device]))


@both
async def test_the_pod_is_bound_once_its_device_is_attached(kind: str, world: World, make: type[Make]) -> None:
    furnish(world, make, kind)
    world.start()
    async with world.running():
        await world.busy()
        claim = the_claim(world)
        assert claim["status"]["allocation"]["allocationTimestamp"] == START
        assert [entry["name"] for entry in claim["status"]["reservedFor"]] == ["pod"]
        assert world.node_of() is None
        report(world, "attached")
        await world.busy()
        assert world.node_of() == "node-0"
    waiting = "waiting for binding conditions for device on node node-0"
    assert world.messages("BindingConditionsPending") == [waiting]


async def test_a_pod_says_that_it_waits_for_its_device_though_other_schedulers_are_waited_for_first(
    world: World, make: type[Make]
) -> None:
    """While the watches are not heard, every driver counts as one that others allocate as well."""
    world.sees_others = False
    furnish(world, make)
    world.start()
    async with world.running():
        await world.busy()
    waiting = "waiting for binding conditions for device on node node-0"
    assert world.messages("BindingConditionsPending") == [waiting]


@pytest.mark.rule("AA-08")
async def test_a_gate_opens_once_the_devices_are_attached(world: World, make: type[Make]) -> None:
    furnish(world, make)
    gated = {"schedulerName": "default-scheduler", "schedulingGates": [{"name": "dra.kopf.dev/allocate"}]}
    world.api.change(PODS, "ns/pod", lambda pod: pod["spec"].update(gated))
    world.start()
    async with world.running():
        await world.busy()
        assert the_claim(world)["status"]["allocation"]
        assert world.api[PODS, "ns/pod"]["spec"].get("schedulingGates")
        report(world, "attached")
        await world.busy()
        assert not world.api[PODS, "ns/pod"]["spec"].get("schedulingGates")


async def test_the_room_is_held_while_devices_get_ready(world: World, make: type[Make]) -> None:
    """Another pod would take the cpu otherwise, and the first one could never run beside its devices."""
    furnish(world, make)
    world.api.drop(NODES, "node-1")
    container = {"name": "main", "resources": {"requests": {"cpu": "3"}}}
    world.api.change(PODS, "ns/pod", lambda pod: pod["spec"].update(containers=[container]))
    world.start()
    async with world.running():
        await world.busy()
        assert the_claim(world)["status"]["allocation"]
        world.api.add(PODS, make.pod("other", containers=[container]))
        await world.busy()
        assert "nodeName" not in world.api[PODS, "ns/other"]["spec"]
        assert world.messages("FailedScheduling") == ["0/1 nodes are available: 1 Insufficient cpu"]
        report(world, "attached")
        await world.busy()
        assert world.node_of() == "node-0"
        world.api.change(PODS, "ns/pod", lambda pod: pod["status"].update(phase="Succeeded"))
        await world.busy()
        assert world.api[PODS, "ns/other"]["spec"]["nodeName"] == "node-0"


async def test_room_that_was_held_for_devices_wakes_others_when_the_pod_vanishes(
    world: World, make: type[Make]
) -> None:
    furnish(world, make)
    world.api.drop(NODES, "node-1")
    container = {"name": "main", "resources": {"requests": {"cpu": "3"}}}
    world.api.change(PODS, "ns/pod", lambda pod: pod["spec"].update(containers=[container]))
    world.api.add(PODS, make.pod("other", containers=[container], priority=-1))
    world.start()
    async with world.running():
        await world.busy()
        assert "nodeName" not in world.api[PODS, "ns/other"]["spec"]
        world.api.drop(PODS, "ns/pod")
        await world.busy()
        assert world.api[PODS, "ns/other"]["spec"]["nodeName"] == "node-0"


@both
@pytest.mark.parametrize("end", ["broken", "never"])
async def test_a_device_that_is_never_ready_is_given_back_and_another_one_used(
    end: str, kind: str, world: World, make: type[Make], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    furnish(world, make, kind)
    world.start()
    async with world.running():
        await world.busy()
        assert world.node_of() is None
        world.api.add(RESOURCE_SLICES, make.slice("node-1", 1))
        world.api.drop(RESOURCE_SLICES, "node-0-gpu.example.com")
        if end == "broken":
            report(world, "broken")
        else:
            world.now = LATER
            world.control.look_again()
        name = the_claim(world)["metadata"]["name"]
        await world.busy()
        assert world.node_of() == "node-1"
    claim = the_claim(world)
    assert claim["status"]["allocation"]["devices"]["results"][0]["pool"] == "node-1"
    failure = f"failed: claim={name}, reason=R, message=m" if end == "broken" else f"timeout: claim={name}"
    told = f"0/2 nodes are available: 2 resourceclaim not available on the node; device binding {failure}"
    assert world.messages("FailedScheduling") == [told]
    if kind == "claim":
        assert f'claim released claim=ns/claim pod=ns/pod because="device binding {failure}"' in caplog.text


@pytest.mark.parametrize("end", ["broken", "never"])
async def test_pods_that_share_a_claim_get_another_device_if_theirs_is_never_ready(
    end: str, world: World, make: type[Make]
) -> None:
    """Each left the claim to the other, and both waited for ever."""
    furnish(world, make)
    world.api.add(PODS, make.pod("other", claims=[make.use("claim")]))
    world.start()
    async with world.running():
        await world.busy()
        assert len(the_claim(world)["status"]["reservedFor"]) == 2
        world.api.add(RESOURCE_SLICES, make.slice("node-1", 1))
        world.api.drop(RESOURCE_SLICES, "node-0-gpu.example.com")
        if end == "broken":
            report(world, "broken")
        else:
            world.now = LATER
            world.control.look_again()
        await world.busy()
        assert [pod["spec"].get("nodeName") for pod in world.api.of(PODS)] == ["node-1", "node-1"]


async def test_a_pod_that_vanishes_while_it_is_planned_again_leaves_no_load(world: World, make: type[Make]) -> None:
    furnish(world, make)
    world.start()
    async with world.running():
        await world.busy()
        pod = world.cluster.pods.get("ns/pod")
        assert pod is not None
        assert world.cluster.loads.node_of(pod.metadata.uid) == "node-0"
        with world.cluster.without_load_of(pod):
            world.api.drop(PODS, "ns/pod")
            world.bring_events()
        assert list(world.cluster.loads) == []


@pytest.mark.parametrize(("minutes", "node"), [(10, "node-1"), (12, None)])
async def test_how_long_a_device_may_take_can_be_set(
    minutes: int, node: str | None, world: World, make: type[Make]
) -> None:
    furnish(world, make)
    world.times = replace(world.times, binding_timeout=60.0 * minutes)
    world.start()
    async with world.running():
        await world.busy()
        world.api.add(RESOURCE_SLICES, make.slice("node-1", 1))
        world.api.drop(RESOURCE_SLICES, "node-0-gpu.example.com")
        world.now = LATER  # eleven minutes
        world.control.look_again()
        await world.busy()
        assert world.node_of() == node


@pytest.mark.parametrize("is_generated", [True, False], ids=["generated", "made by a person"])
async def test_a_claim_that_is_deleted_while_its_pod_waits_goes_and_the_pod_gets_another(
    is_generated: bool, world: World, make: type[Make]
) -> None:
    """Its reservation would keep the claim for ever, and so the pod from a new one."""
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    furnish(world, make)
    if is_generated:
        world.api.drop(PODS, "ns/pod")
        world.api.drop(RESOURCE_CLAIMS, "ns/claim")
        world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    else:
        world.api.add(PODS, make.pod("other", claims=[make.use("claim")]))
    world.start()
    async with world.running():
        await world.busy()
        before = the_claim(world)
        assert len(before["status"]["reservedFor"]) == 1 + (not is_generated)
        world.api.deleted(RESOURCE_CLAIMS, before["metadata"]["name"], "ns")
        await world.busy()
        if not is_generated:
            assert world.api.of(RESOURCE_CLAIMS) == []
            world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
            await world.busy()
        assert the_claim(world)["metadata"]["uid"] != before["metadata"]["uid"]
        report(world, "attached")
        await world.busy()
        assert world.node_of() == "node-0"
