"""Pods that ask for extended resources which devices serve: the claim behind them, first to last (scheduling.md 7)."""

from __future__ import annotations

from typing import Any

import pytest
from controllers_world import World
from dra_kube import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Forbidden, Unreachable
from dra_operator.allocator import Features
from dra_operator.cache import Key
from fake_api import Call
from objects import Make

GPU = "example.com/gpu"
ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
FINALIZER = "resource.kubernetes.io/delete-protection"


def furnish(world: World, make: type[Make], devices: int = 1, *pods: str) -> None:
    """A node with some devices, a class that serves the resource with them, and pods that ask for one each."""
    world.api.add(DEVICE_CLASSES, make.device_class() | {"spec": {"extendedResourceName": GPU}})
    world.api.add(NODES, make.node("node-0"))
    world.api.add(RESOURCE_SLICES, make.slice("node-0", devices))
    for name in pods or ("pod",):
        world.api.add(PODS, make.pod(name, containers=[make.asking("main", **{GPU: "1"})]))


def extended_status(world: World, name: str = "pod") -> Any:
    return world.api[PODS, f"ns/{name}"]["status"].get("extendedResourceClaimStatus")


def message(world: World, name: str = "pod") -> str:
    (condition,) = world.api[PODS, f"ns/{name}"]["status"]["conditions"]
    return str(condition["message"])


def created(world: World, status: str) -> float:
    """Under the name of 1.37 and the one before it, which counts these claims only."""
    labels = {"status": status, "admin_access": "false", "owner_api_group": "", "owner_api_kind": "Pod"}
    name = "dynamic_resource_allocation_resourceclaim_creates_total"
    value: float | None = world.registry.get_sample_value("scheduler_resourceclaim_creates_total", {"status": status})
    assert value == world.registry.get_sample_value(name, labels)
    return value or 0.0


@pytest.mark.rule("K37-EXT-05")
async def test_the_claim_is_made_recorded_and_used_with_four_writes(world: World, make: type[Make]) -> None:
    furnish(world, make)
    await world.settle()
    (claim,) = world.api.of(RESOURCE_CLAIMS)
    pod = world.api[PODS, "ns/pod"]
    assert world.node_of() == "node-0"
    meta = claim["metadata"]
    assert meta["generateName"] == "pod-extended-resources-"
    assert meta["annotations"] == {ANNOTATION: "true"}
    assert meta["finalizers"] == [FINALIZER]
    assert [(owner["uid"], owner["controller"]) for owner in meta["ownerReferences"]] == [
        (pod["metadata"]["uid"], True)
    ]
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    assert claim["spec"] == {"devices": {"requests": [{"name": "container-0-request-0", "exactly": exactly}]}}
    assert [entry["uid"] for entry in claim["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
    assert extended_status(world) == {
        "resourceClaimName": meta["name"],
        "requestMappings": [
            {"containerName": "main", "resourceName": GPU, "requestName": "container-0-request-0"},
        ],
    }
    assert [(call.verb, call.plural, call.sub) for call in world.api.writes] == [
        ("create", "resourceclaims", None),
        ("update", "resourceclaims", "status"),
        ("patch", "pods", "status"),
        ("create", "pods", "binding"),
    ]
    assert (created(world, "success"), created(world, "failure")) == (1, 0)


async def test_the_second_pod_waits_for_the_resource_until_the_first_is_done(world: World, make: type[Make]) -> None:
    furnish(world, make, 1, "first", "second")
    world.start()
    async with world.running():
        await world.quiet()
        assert world.node_of("second") is None
        text = f'1 cannot satisfy extended resource {GPU} (device class gpu) request "container-0-request-0"'
        assert text in message(world, "second")
        assert text in world.messages("FailedScheduling")[0]
        world.api.change(PODS, "ns/first", lambda pod: pod["status"].update(phase="Succeeded"))
        await world.quiet()
        assert world.node_of("second") == "node-0"
    (left,) = world.api.of(RESOURCE_CLAIMS)
    assert left["metadata"]["name"] == extended_status(world, "second")["resourceClaimName"]


async def test_the_claim_of_a_deleted_pod_gives_its_devices_back(world: World, make: type[Make]) -> None:
    furnish(world, make)
    await world.settle()
    world.api.drop(PODS, "ns/pod")
    await world.settle()
    (claim,) = world.api.of(RESOURCE_CLAIMS)  # for the garbage collector, and nothing keeps it
    assert not claim["status"].get("allocation")
    assert not claim["metadata"]["finalizers"]


async def test_a_claim_that_the_server_refuses_is_reported_on_the_pod_and_made_later(
    world: World, make: type[Make]
) -> None:
    furnish(world, make)
    quota = [Forbidden(403, "Forbidden", "exceeded quota: gpus")]
    world.api.before = lambda call: (
        quota.pop() if quota and (call.verb, call.plural) == ("create", "resourceclaims") else None
    )
    await world.settle()
    assert "cannot create the claim for extended resources of pod ns/pod: " in world.messages("FailedScheduling")[0]
    assert "exceeded quota: gpus" in world.messages("FailedScheduling")[0]
    assert (created(world, "success"), created(world, "failure")) == (1, 1)
    assert world.node_of() == "node-0"


@pytest.mark.parametrize("refused", [("create", None), ("update", "status")])
async def test_attempts_that_the_server_refuses_alike_are_told_once(
    refused: tuple[str, str | None], world: World, make: type[Make]
) -> None:
    furnish(world, make)
    times = iter(range(4))

    def refuse(call: Call) -> Exception | None:
        if call.plural != "resourceclaims" or (call.verb, call.sub) != refused or (time := next(times, None)) is None:
            return None
        name = call.name or f"pod-extended-resources-bcdf{time + 4}"
        return Forbidden(403, "Forbidden", f'resourceclaims.resource.k8s.io "{name}" is forbidden: exceeded quota')

    world.api.before = refuse
    await world.settle()
    assert world.node_of() == "node-0"
    assert next(times, None) is None
    (told,) = world.messages("FailedScheduling")
    assert '"pod-extended-resources-*" is forbidden: exceeded quota' in told


@pytest.mark.parametrize("refused", [("patch", "status"), ("create", "binding")])
async def test_a_claim_made_in_vain_is_deleted_at_once(
    refused: tuple[str, str], world: World, make: type[Make]
) -> None:
    furnish(world, make, 1, "one", "two")
    world.api.before = lambda call: (
        Forbidden(403, "Forbidden", "no")
        if (call.verb, call.sub) == refused and call.name == "one" and world.node_of("two") is None
        else None
    )
    await world.settle()
    (claim,) = world.api.of(RESOURCE_CLAIMS)
    assert world.node_of("two") == "node-0"
    assert claim["metadata"]["name"] == extended_status(world, "two")["resourceClaimName"]


async def test_a_second_claim_whose_creation_was_never_answered_does_not_stay(world: World, make: type[Make]) -> None:
    """The watch brings it only after the pod was bound with the one that the next attempt made."""
    furnish(world, make)
    lost = [Unreachable("connection reset")]
    world.api.after = lambda call: (
        lost.pop() if lost and (call.verb, call.plural) == ("create", "resourceclaims") else None
    )
    control = world.start()
    control.queues.add([Key("placement", "ns/pod")])
    async with world.running():
        while world.node_of() is None:
            await world.tick()
        assert len(world.api.of(RESOURCE_CLAIMS)) == 2
        await world.quiet()
    (claim,) = world.api.of(RESOURCE_CLAIMS)
    assert claim["metadata"]["name"] == extended_status(world)["resourceClaimName"]
    assert claim["status"]["allocation"]


async def test_a_pod_is_not_bound_after_a_recording_that_landed_late_named_another_claim(
    world: World, make: type[Make]
) -> None:
    """The kubelet would wait for ever for the claim of the first attempt, which was deleted."""
    furnish(world, make)
    late = [Call("patch", "pods", "status", "pod")]
    world.api.landing = lambda call: bool(late) and call == late[0] and bool(late.pop())
    world.api.before = lambda call: next(iter(world.api.land()), None) if call.sub == "binding" else None
    await world.settle()
    assert not late
    assert world.node_of() == "node-0"
    (claim,) = world.api.of(RESOURCE_CLAIMS)
    assert extended_status(world)["resourceClaimName"] == claim["metadata"]["name"]
    assert [consumer["name"] for consumer in claim["status"]["reservedFor"]] == ["pod"]


async def test_a_node_with_a_device_plugin_wants_no_claim_and_no_trace_of_an_earlier_one(
    world: World, make: type[Make]
) -> None:
    furnish(world, make, 0)
    world.api.change(NODES, "node-0", lambda node: node["status"]["allocatable"].update({GPU: "1"}))
    stale = {"resourceClaimName": "deleted", "requestMappings": [{"containerName": "main", "resourceName": GPU}]}
    world.api.change(PODS, "ns/pod", lambda pod: pod["status"].update(extendedResourceClaimStatus=stale))
    await world.settle()
    assert world.node_of() == "node-0"
    assert extended_status(world) is None
    assert world.api.of(RESOURCE_CLAIMS) == []


async def test_devices_that_serve_a_resource_leave_what_a_node_counts_of_it_alone(
    world: World, make: type[Make]
) -> None:
    """A device plugin that registers later has all of its own still to give."""
    furnish(world, make, 1, "by-device")
    world.start()
    async with world.running():
        await world.quiet()
        world.api.change(NODES, "node-0", lambda node: node["status"]["allocatable"].update({GPU: "1"}))
        world.api.add(PODS, make.pod("by-plugin", containers=[make.asking("main", **{GPU: "1"})]))
        await world.quiet()
    assert world.node_of("by-plugin") == "node-0"
    assert extended_status(world, "by-plugin") is None


async def test_what_an_earlier_attempt_left_over_is_deleted_first(world: World, make: type[Make]) -> None:
    furnish(world, make)
    owner = world.api[PODS, "ns/pod"]["metadata"]
    world.api.add(
        RESOURCE_CLAIMS, make.claim("left", owner=owner, annotations={ANNOTATION: "true"}, finalizers=[FINALIZER])
    )
    await world.settle()
    message = "waiting for stale extended-resource claim left to be deleted"
    assert world.messages("FailedScheduling") == [message]
    (claim,) = world.api.of(RESOURCE_CLAIMS)
    assert claim["metadata"]["name"] == extended_status(world)["resourceClaimName"] != "left"


async def test_a_leftover_is_kept_when_the_pod_turns_out_to_be_bound(world: World, make: type[Make]) -> None:
    """Another client bound it a moment ago, which the watch has not brought yet."""
    furnish(world, make)
    owner = world.api[PODS, "ns/pod"]["metadata"]
    world.api.add(RESOURCE_CLAIMS, make.claim("left", owner=owner, annotations={ANNOTATION: "true"}))
    world.start()
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "left", "requestMappings": []}}
    world.api.change(PODS, "ns/pod", lambda pod: pod.update(spec=pod["spec"] | {"nodeName": "node-0"}, status=status))
    async with world.running():
        await world.quiet()
    assert [claim["metadata"]["name"] for claim in world.api.of(RESOURCE_CLAIMS)] == ["left"]


async def test_without_the_feature_only_nodes_serve_extended_resources(make: type[Make]) -> None:
    world = World(Features(extended_resources=False))
    furnish(world, make)
    await world.settle()
    assert world.node_of() is None
    assert world.api.of(RESOURCE_CLAIMS) == []
    assert f"cannot fit resource {GPU}" in message(world)
