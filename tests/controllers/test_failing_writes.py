"""Every write may fail, conflict, happen without an answer, or be the last one before a crash: the end is the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from controllers_world import World
from dra_api.releases import Release
from dra_kube import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Unreachable,
)
from dra_operator.allocator import Features
from fake_api import ERRORS, Call, Nth
from objects import Make, Obj
from rounds import a_third
from volume_lab import bind_volumes, on_nodes, storage_class, store, uses, volume, volume_claim

FINALIZER = "resource.kubernetes.io/delete-protection"
ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
IMPLICIT = "deviceclass.resource.kubernetes.io/gpu"


def furnish(world: World, make: type[Make]) -> None:
    """A node with four devices, a pod with two generated claims, one shared claim, and one extended resource."""
    world.furnish(devices=4)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.api.add(RESOURCE_CLAIMS, make.claim("shared"))
    entries = [make.FROM_TEMPLATE, make.use("shared"), make.FROM_TEMPLATE]
    world.api.add(PODS, make.pod(claims=entries, containers=[make.asking("main", **{IMPLICIT: "1"})]))


def furnish_with_leftover(world: World, make: type[Make]) -> None:
    """The same, after an attempt that broke off before the claim for the extended resource was recorded."""
    furnish(world, make)
    owner = world.api[PODS, "ns/pod"]["metadata"]
    left = make.claim("left-over", owner=owner, annotations={ANNOTATION: "true"}, finalizers=[FINALIZER])
    results = [
        {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": f"dev-{number}"}
        for number in range(2)
    ]
    users = [{"resource": "pods", "name": "pod", "uid": owner["uid"]}]
    world.api.add(
        RESOURCE_CLAIMS, left | {"status": {"allocation": {"devices": {"results": results}}, "reservedFor": users}}
    )


def furnish_with_volumes(world: World, make: type[Make]) -> None:
    """The same pod with a claim that gets a volume that exists, and one that gets a new one."""
    furnish(world, make)
    store(world.api, storage_class(), volume(affinity=on_nodes("node-0")), storage_class("fast", "csi.example.com"))
    store(world.api, volume_claim("data"), volume_claim("scratch", class_name="fast"))
    world.api.change(PODS, "ns/pod", lambda pod: pod["spec"].update(volumes=uses("data", "scratch")))
    world.others.append(bind_volumes)


def finish_pod(world: World) -> None:
    world.api.change(PODS, "ns/pod", lambda pod: pod["status"].update(phase="Succeeded"))


def delete_pod(world: World) -> None:
    world.api.drop(PODS, "ns/pod")


def assert_placed(world: World) -> None:
    pod = world.api[PODS, "ns/pod"]
    claims = {claim["metadata"]["name"]: claim for claim in world.api.of(RESOURCE_CLAIMS)}
    recorded = {entry["name"]: entry["resourceClaimName"] for entry in pod["status"]["resourceClaimStatuses"]}
    extended = pod["status"]["extendedResourceClaimStatus"]
    assert pod["spec"]["nodeName"] == "node-0"
    assert set(recorded) == {"entry-0", "entry-2"}
    assert set(claims) == {"shared", extended["resourceClaimName"], *recorded.values()}
    assert len(claims) == 4
    mapping = {"containerName": "main", "resourceName": IMPLICIT, "requestName": "container-0-request-0"}
    assert extended["requestMappings"] == [mapping]
    assert claims[extended["resourceClaimName"]]["metadata"]["annotations"] == {ANNOTATION: "true"}
    for claim in claims.values():
        assert claim["metadata"]["finalizers"] == [FINALIZER]
        assert [entry["uid"] for entry in claim["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
    assert all(wanted["status"]["phase"] == "Bound" for wanted in world.api.of(PERSISTENT_VOLUME_CLAIMS))
    assert len(world.api.of(PERSISTENT_VOLUMES)) == len(world.api.of(PERSISTENT_VOLUME_CLAIMS))
    results = (claim["status"]["allocation"]["devices"]["results"] for claim in claims.values())
    given = [result["device"] for devices in results for result in devices]
    assert sorted(given) == ["dev-0", "dev-1", "dev-2", "dev-3"]


def assert_released(world: World) -> None:
    """Generated claims are gone (or left to the garbage collector, unallocated), the shared one is free again."""
    for claim in world.api.of(RESOURCE_CLAIMS):
        assert not claim.get("status", {}).get("allocation")
        assert not claim.get("status", {}).get("reservedFor")
    assert "ns/shared" in {f"ns/{claim['metadata']['name']}" for claim in world.api.of(RESOURCE_CLAIMS)}


FAULTS = {
    "is refused by a conflict": ("before", "conflict"),
    "fails in the server": ("before", "server error"),
    "does not reach the server": ("before", "no answer"),
    "is forbidden for a moment": ("before", "forbidden"),
    "happens but the answer is lost": ("after", "no answer"),
    "happens but is reported as a server error": ("after", "server error"),
}


async def run_with_fault(world: World, number: int, when: str, error: str) -> bool:
    fault = Nth(number, ERRORS[error])
    setattr(world.api, when, fault)
    await world.settle()
    return fault.hit


async def run_and_crash(world: World, number: int, when: str) -> bool:
    """Whether there was an n-th write; then the operator crashed right before or after it and another one went on."""
    fault = Nth(number, lambda: Unreachable("crash"), crash=True)
    setattr(world.api, when, fault)
    setattr(world.api, "before" if when == "after" else "after", fault.is_down)
    world.start()
    async with world.running():
        while not fault.hit and not (world.control.queues.is_quiet and not world.api.events):
            world.bring_events()
            await world.tick()
    world.api.before = world.api.after = lambda call: None
    await world.settle()
    return fault.hit


STARTS = [furnish, furnish_with_leftover, furnish_with_volumes]


async def every_write(attempt: Callable[[int], Awaitable[bool]]) -> int:
    """Runs an attempt for the first write, the second, ..., until there is none left; how many there were."""
    number = 1
    while await attempt(number):
        number += 1
        assert number < 100
    return number - 1


@pytest.mark.parametrize("start", a_third(STARTS))
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_pod_is_placed_although_any_one_write(
    fault: str, start: Callable[[World, type[Make]], None], make: type[Make]
) -> None:
    async def attempt(number: int) -> bool:
        world = World(Features())
        start(world, make)
        hit = await run_with_fault(world, number, *FAULTS[fault])
        assert_placed(world)
        return hit

    assert await every_write(attempt) >= 11


@pytest.mark.parametrize("start", a_third(STARTS))
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_pod_is_placed_although_the_operator_crashes_around_any_write(
    when: str, start: Callable[[World, type[Make]], None], make: type[Make]
) -> None:
    async def attempt(number: int) -> bool:
        world = World(Features())
        start(world, make)
        hit = await run_and_crash(world, number, when)
        assert_placed(world)
        return hit

    assert await every_write(attempt) >= 11


@pytest.mark.parametrize("end", [finish_pod, delete_pod])
@pytest.mark.parametrize("fault", FAULTS)
async def test_claims_are_released_although_any_one_write(
    fault: str, end: Callable[[World], None], make: type[Make]
) -> None:
    async def attempt(number: int) -> bool:
        world = World(Features())
        furnish(world, make)
        await world.settle()
        end(world)
        hit = await run_with_fault(world, number, *FAULTS[fault])
        assert_released(world)
        return hit

    assert await every_write(attempt) >= 8


@pytest.mark.parametrize("when", ["before", "after"])
async def test_claims_are_released_although_the_operator_crashes_around_any_write(when: str, make: type[Make]) -> None:
    async def attempt(number: int) -> bool:
        world = World(Features())
        furnish(world, make)
        await world.settle()
        finish_pod(world)
        hit = await run_and_crash(world, number, when)
        assert_released(world)
        return hit

    assert await every_write(attempt) >= 8


async def test_a_second_pass_over_a_settled_cluster_writes_nothing(world: World, make: type[Make]) -> None:
    furnish(world, make)
    await world.settle()
    before = len(world.api.writes)
    await world.settle()
    assert len(world.api.writes) == before


def furnish_behind_gate(world: World, make: type[Make]) -> None:
    """The same pod for another scheduler, whose scheduling gate is opened once it has its devices."""
    furnish(world, make)
    theirs = {"schedulerName": "default-scheduler", "schedulingGates": [{"name": "dra.kopf.dev/allocate"}]}
    world.api.change(PODS, "ns/pod", lambda pod: pod["spec"].update(containers=[], **theirs))


def furnish_with_node_use(world: World, make: type[Make]) -> None:
    """The same pod without an extended resource, whose devices take cpu of the node."""
    world.features = Features(Release.V1_37, node_allocatable_resources=True)
    furnish(world, make)
    claims = {"resources": {"claims": [{"name": "entry-1"}]}}
    world.api.change(PODS, "ns/pod", lambda pod: pod["spec"].update(containers=[{"name": "main"} | claims]))
    taken = {"cpu": {"mapping": {"deviceMultiplier": "100m"}}}

    def edit(slice_: Obj) -> None:
        for device in slice_["spec"]["devices"]:
            device["nodeAllocatableResources"] = taken

    world.api.change(RESOURCE_SLICES, "node-0-gpu.example.com", edit)


def replace_pod(world: World) -> None:
    pod = world.api[PODS, "ns/pod"]
    spec = {name: value for name, value in pod["spec"].items() if name != "nodeName"}
    delete_pod(world)
    world.api.add(PODS, {"metadata": {"name": "pod", "namespace": "ns"}, "spec": spec, "status": {"phase": "Pending"}})


@pytest.mark.parametrize("conflict", [False, True], ids=["", "after a conflict of the binding"])
@pytest.mark.parametrize("start", [furnish, furnish_behind_gate, furnish_with_node_use])
@pytest.mark.parametrize("how", [delete_pod, replace_pod])
async def test_a_pod_that_goes_before_any_one_request_leaves_nothing_behind(
    how: Callable[[World], None], start: Callable[[World, type[Make]], None], conflict: bool, make: type[Make]
) -> None:
    """Reads as well: the operator learns of it by an answer, and only then by the watch."""

    async def attempt(number: int) -> bool:
        world = World(Features())
        start(world, make)
        left, refused = number, conflict

        def goes(call: Call) -> Exception | None:
            nonlocal left, refused
            if call.plural == "events" or call.name == "(list)":
                return None
            left -= 1
            if left == 0:
                how(world)
            if call.sub == "binding" and refused:
                refused = False
                return ERRORS["conflict"]()
            return None

        world.api.before = goes
        await world.settle()
        if left > 0:
            return False
        world.api.before = lambda call: None
        if how is replace_pod:
            assert world.node_of() == "node-0" or not world.api[PODS, "ns/pod"]["spec"].get("schedulingGates", True)
            delete_pod(world)
            await world.settle()
        assert_released(world)
        assert not [it for it in world.messages("FailedScheduling") if "retrying" in it]
        return True

    assert await every_write(attempt) >= 9
