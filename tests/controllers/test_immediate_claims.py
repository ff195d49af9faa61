"""Claims that have devices before any pod uses them, keep them, and give them back when they are deleted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from controllers_world import World
from dra_kube import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_operator.allocator import Features
from dra_operator.controllers import OwnControllers
from fake_api import ERRORS, Nth
from objects import Make, Obj

ANNOTATION = "dra.kopf.dev/allocate"
HOLD = "dra.kopf.dev/immediate"
FINALIZER = "resource.kubernetes.io/delete-protection"
NOW = {"annotations": {ANNOTATION: "immediate"}}


def add(world: World, make: type[Make], name: str = "claim", **meta: Any) -> Obj:
    added: Obj = world.api.add(RESOURCE_CLAIMS, make.claim(name, **(NOW | meta)))
    return added


def device(world: World, name: str = "claim") -> str | None:
    allocation = (world.api[RESOURCE_CLAIMS, f"ns/{name}"].get("status") or {}).get("allocation")
    if allocation is None:
        return None
    (result,) = allocation["devices"]["results"]
    return f"{result['pool']}/{result['device']}"


def finalizers(world: World, name: str = "claim") -> list[str]:
    return list(world.api[RESOURCE_CLAIMS, f"ns/{name}"]["metadata"].get("finalizers") or ())


def users(world: World, name: str = "claim") -> list[str]:
    status = world.api[RESOURCE_CLAIMS, f"ns/{name}"].get("status") or {}
    return [consumer["name"] for consumer in status.get("reservedFor") or ()]


def delete(world: World, name: str = "claim") -> None:
    """As a person does: what has finalizers is marked."""

    def mark(claim: Obj) -> None:
        claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    world.api.change(RESOURCE_CLAIMS, f"ns/{name}", mark)


def exists(world: World, name: str = "claim") -> bool:
    return any(claim["metadata"]["name"] == name for claim in world.api.of(RESOURCE_CLAIMS))


def serve_as_kube_scheduler(world: World, pod: str, where: str, name: str = "claim") -> None:
    """What kube-scheduler writes when it allocates a claim for a pod."""
    field = {"key": "metadata.name", "operator": "In", "values": [where]}
    result = {"request": "req", "driver": "gpu.example.com", "pool": where, "device": "dev-0"}
    uid = world.api[PODS, f"ns/{pod}"]["metadata"]["uid"]
    status = {
        "allocation": {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        },
        "reservedFor": [{"resource": "pods", "name": pod, "uid": uid}],
    }

    def edit(claim: Obj) -> None:
        claim["metadata"]["finalizers"] = [*claim["metadata"].get("finalizers", ()), FINALIZER]
        claim["status"] = status

    world.api.change(RESOURCE_CLAIMS, f"ns/{name}", edit)
    world.api.change(PODS, f"ns/{pod}", lambda body: body["spec"].update(nodeName=where))


@pytest.mark.rule("AA-15", "AA-21")
async def test_a_claim_has_devices_before_any_pod_uses_it(world: World, make: type[Make]) -> None:
    world.furnish("a")
    add(world, make)
    await world.settle()
    assert device(world) == "a/dev-0"
    assert finalizers(world) == [HOLD]
    assert users(world) == []
    writes = [(call.verb, call.sub) for call in world.api.writes if call.plural == "resourceclaims"]
    assert writes == [("update", None), ("update", "status")]
    assert world.messages("ClaimAllocated") == ["Devices of node a allocated"]
    written = len(world.api.writes)
    await world.settle()
    assert len(world.api.writes) == written


async def test_a_later_pod_uses_it_and_leaves_it_its_devices(world: World, make: type[Make]) -> None:
    world.furnish("ab")
    add(world, make)
    await world.settle()
    before = device(world)
    for name in ("one", "two"):
        world.api.add(PODS, make.pod(name, [make.use("claim")]))
        await world.settle()
        assert (users(world), device(world)) == ([name], before)
        world.api.change(PODS, f"ns/{name}", lambda pod: pod["status"].update(phase="Succeeded"))
        await world.settle()
        assert (users(world), device(world)) == ([], before)


@pytest.mark.rule("AA-18")
async def test_a_pod_that_cannot_run_there_does_not_take_the_devices_from_the_claim(
    world: World, make: type[Make]
) -> None:
    world.furnish("ab")
    add(world, make)
    await world.settle()
    (other,) = {"a", "b"} - {str(device(world))[0]}
    world.api.add(PODS, make.pod(claims=[make.use("claim")], nodeSelector={"kubernetes.io/hostname": other}))
    before = device(world)
    await world.settle()
    assert device(world) == before
    assert "resourceclaim not available on the node" in world.messages("FailedScheduling")[0]


@pytest.mark.rule("AA-21")
async def test_it_waits_for_devices_says_why_once_and_has_them_when_they_come(world: World, make: type[Make]) -> None:
    world.furnish("a", devices=0)
    add(world, make)
    world.start()
    async with world.running():
        await world.quiet()
        (message,) = world.messages("FailedAllocation")
        assert message.startswith('0/1 nodes are available: 1 cannot satisfy claim ns/claim request "req"')
        world.control.look_again()
        await world.quiet()
        assert len(world.messages("FailedAllocation")) == 1
        world.api.drop(RESOURCE_CLAIMS, "ns/claim")
        await world.quiet()
        add(world, make)
        await world.quiet()
        assert world.messages("FailedAllocation") == [message] * 2, "another claim of the name has an event of its own"
        world.api.change(RESOURCE_SLICES, "a-gpu.example.com", lambda old: old.update(make.slice("a", 1)))
        await world.quiet()
    assert device(world) == "a/dev-0"


async def test_it_has_the_devices_that_another_claim_gives_back(world: World, make: type[Make]) -> None:
    world.furnish("a")
    world.api.add(RESOURCE_CLAIMS, make.claim("other"))
    world.api.add(PODS, make.pod("other", [make.use("other")]))
    await world.settle()
    add(world, make)
    world.start()
    async with world.running():
        await world.quiet()
        assert device(world) is None
        world.api.change(PODS, "ns/other", lambda pod: pod["status"].update(phase="Succeeded"))
        await world.quiet()
    assert device(world) == "a/dev-0"


@pytest.mark.rule("AA-14")
@pytest.mark.parametrize(
    ("taint", "allocated"),
    [("example.com/gpu", True), ("node.kubernetes.io/unreachable", False), ("node.kubernetes.io/unschedulable", False)],
)
async def test_a_node_that_is_for_such_pods_only_will_do_and_one_that_is_out_of_order_will_not(
    taint: str, allocated: bool, world: World, make: type[Make]
) -> None:
    world.furnish("a")
    world.api.change(NODES, "a", lambda node: node.update(spec={"taints": [{"key": taint, "effect": "NoSchedule"}]}))
    add(world, make)
    await world.settle()
    assert (device(world) is not None) is allocated


@pytest.mark.rule("AA-14")
async def test_no_room_on_the_node_is_needed_and_none_is_taken(world: World, make: type[Make]) -> None:
    world.furnish("a", devices=2)
    world.api.change(NODES, "a", lambda node: node["status"]["allocatable"].update(pods="0"))
    add(world, make)
    await world.settle()
    assert device(world) == "a/dev-0"
    assert not world.cluster.loads.used("a")


@pytest.mark.rule("AA-14")
async def test_it_has_the_devices_of_the_emptiest_node(world: World, make: type[Make]) -> None:
    world.furnish("ab")
    world.api.add(PODS, make.pod("busy", node="a", containers=[make.asking("main", cpu="1")]))
    add(world, make)
    await world.settle()
    assert device(world) == "b/dev-0"


@pytest.mark.rule("AA-19")
async def test_a_deleted_claim_gives_its_devices_back(world: World, make: type[Make]) -> None:
    world.furnish("a")
    add(world, make)
    await world.settle()
    delete(world)
    add(world, make, "next")
    await world.settle()
    assert not exists(world)
    assert device(world, "next") == "a/dev-0"


@pytest.mark.rule("AA-19")
async def test_a_deleted_claim_waits_for_the_pod_that_uses_it(world: World, make: type[Make]) -> None:
    world.furnish("a")
    add(world, make)
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))
    await world.settle()
    delete(world)
    await world.settle()
    assert (device(world), users(world)) == ("a/dev-0", ["pod"])
    world.api.change(PODS, "ns/pod", lambda pod: pod["status"].update(phase="Succeeded"))
    await world.settle()
    assert not exists(world)


@pytest.mark.rule("AA-20")
@pytest.mark.parametrize("value", [None, "later"])
async def test_without_the_annotation_an_unused_claim_gives_its_devices_back(
    value: str | None, world: World, make: type[Make]
) -> None:
    world.furnish("a")
    add(world, make)
    await world.settle()
    annotations = {ANNOTATION: value} if value else {}
    world.api.change(RESOURCE_CLAIMS, "ns/claim", lambda claim: claim["metadata"].update(annotations=annotations))
    await world.settle()
    assert (device(world), finalizers(world)) == (None, [])


@pytest.mark.rule("AA-20")
async def test_without_the_annotation_a_used_claim_lives_on_as_any_other(world: World, make: type[Make]) -> None:
    world.furnish("a")
    add(world, make)
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))
    await world.settle()
    world.api.change(RESOURCE_CLAIMS, "ns/claim", lambda claim: claim["metadata"].pop("annotations"))
    await world.settle()
    assert (device(world), finalizers(world), users(world)) == ("a/dev-0", [FINALIZER], ["pod"])
    world.api.change(PODS, "ns/pod", lambda pod: pod["status"].update(phase="Succeeded"))
    await world.settle()
    assert (device(world), finalizers(world)) == (None, [])


@pytest.mark.rule("AA-16")
async def test_the_annotation_may_come_to_a_claim_that_a_pod_uses(world: World, make: type[Make]) -> None:
    world.furnish("a")
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))
    await world.settle()
    world.api.change(RESOURCE_CLAIMS, "ns/claim", lambda claim: claim["metadata"].update(NOW))
    await world.settle()
    assert finalizers(world) == [HOLD]
    world.api.change(PODS, "ns/pod", lambda pod: pod["status"].update(phase="Succeeded"))
    await world.settle()
    assert (device(world), users(world)) == ("a/dev-0", [])


@pytest.mark.rule("AA-16", "AA-17")
async def test_while_a_pod_of_kube_scheduler_waits_with_it_that_one_decides(world: World, make: type[Make]) -> None:
    """Otherwise the two would undo each other's allocations for ever, where the pod cannot run on our node."""
    world.furnish("ab")
    add(world, make)
    world.api.add(PODS, make.pod("theirs", [make.use("claim")], schedulerName="default-scheduler"))
    world.start()
    async with world.running():
        await world.quiet()
        assert device(world) is None
        serve_as_kube_scheduler(world, "theirs", "b")
        await world.quiet()
        assert finalizers(world) == [HOLD]
        world.api.change(PODS, "ns/theirs", lambda pod: pod["status"].update(phase="Succeeded"))
        await world.quiet()
        assert (device(world), users(world)) == ("b/dev-0", [])


@pytest.mark.parametrize("end", ["goes", "is gated by another", "gets a node without its claims"])
async def test_it_is_allocated_when_no_pod_waits_with_it_any_more(end: str, world: World, make: type[Make]) -> None:
    world.furnish("a")
    add(world, make)
    gates = [{"name": "example.com/other"}] if end == "is gated by another" else None
    body = make.pod("theirs", [make.use("claim")], schedulerName="default-scheduler", schedulingGates=gates)
    world.api.add(PODS, body)
    world.start()
    async with world.running():
        await world.quiet()
        if gates is None:
            assert device(world) is None
            if end == "goes":
                world.api.drop(PODS, "ns/theirs")
            else:
                world.api.change(PODS, "ns/theirs", lambda pod: pod["spec"].update(nodeName="a"))
            await world.quiet()
    assert device(world) == "a/dev-0"


async def test_a_pod_of_ours_that_comes_with_it_gets_node_and_devices_together(world: World, make: type[Make]) -> None:
    world.furnish("ab")
    add(world, make)
    world.api.add(PODS, make.pod(claims=[make.use("claim")], nodeSelector={"kubernetes.io/hostname": "b"}))
    await world.settle()
    assert device(world) == "b/dev-0"
    assert finalizers(world) == [HOLD]


@pytest.mark.rule("AA-22")
@pytest.mark.parametrize(
    ("meta", "says"),
    [
        (
            {"annotations": {ANNOTATION: "Immediate"}},
            f'metadata.annotations[{ANNOTATION}]: "Immediate" is not supported: use "immediate", or remove the '
            "annotation",
        ),
        (
            {"owner": {"name": "pod", "uid": "gone"}},
            f"metadata.annotations[{ANNOTATION}] has no effect on a claim that is made for a pod: "
            "remove it from the template",
        ),
    ],
)
async def test_an_annotation_that_cannot_be_followed_is_named_once(
    meta: Obj, says: str, world: World, make: type[Make]
) -> None:
    world.furnish("a")
    add(world, make, **meta)
    world.start()
    async with world.running() as control:
        await world.quiet()
        await control.look_at_everything()
        await world.quiet()
    assert world.messages("FailedAllocation") == [says]
    assert device(world) is None


@pytest.mark.parametrize("fault", ["crash", *ERRORS])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 5))
async def test_whatever_befalls_one_of_its_writes_it_has_devices_and_gives_them_back(
    number: int, when: str, fault: str, world: World, make: type[Make]
) -> None:
    """Two writes to allocate it, two to let it go."""
    if fault in ("conflict", "forbidden") and when == "after":
        pytest.skip("a server that says no did nothing")
    world.furnish("a")
    add(world, make)
    write = Nth(number, ERRORS["no answer" if fault == "crash" else fault])
    setattr(world.api, when, write)
    world.start()
    async with world.running():
        if fault != "crash" or number > 2:
            await world.quiet()
            delete(world)
        while not write.hit:
            world.bring_events()
            await world.tick()
        if fault != "crash":
            await world.quiet()
    world.api.before = world.api.after = lambda call: None
    if exists(world) and not world.api[RESOURCE_CLAIMS, "ns/claim"]["metadata"].get("deletionTimestamp"):
        await world.settle()
        assert device(world) == "a/dev-0"
        delete(world)
    await world.settle()
    assert not exists(world)


async def test_an_allocation_that_lands_late_is_outdated_before_its_device_is_given_again(
    world: World, make: type[Make]
) -> None:
    world.furnish("a")
    add(world, make)
    world.start()
    world.api.landing = lambda call: (call.verb, call.plural, call.sub) == ("update", "resourceclaims", "status")
    async with world.running():
        while not world.api.underway:
            await world.tick()
        world.api.landing = lambda call: False
        world.api.change(RESOURCE_CLAIMS, "ns/claim", lambda claim: claim["metadata"].pop("annotations"))
        world.api.add(RESOURCE_CLAIMS, make.claim("other"))
        world.api.add(PODS, make.pod("other", [make.use("other")]))
        await world.quiet()
        assert device(world, "other") == "a/dev-0"
        (fared,) = world.api.land()
        assert fared is not None
        await world.quiet()
    assert device(world) is None


@pytest.mark.rule("AA-18")
@pytest.mark.parametrize("device_taints", [True, False])
async def test_a_device_that_another_scheduler_took_as_well_is_given_up(device_taints: bool, make: type[Make]) -> None:
    world = World(Features(device_taints=device_taints))
    world.furnish("a", devices=2)
    world.api.add(RESOURCE_CLAIMS, make.claim("theirs"))
    world.api.add(PODS, make.pod("theirs", [make.use("theirs")], schedulerName="default-scheduler"))
    add(world, make)
    world.start()
    async with world.running():
        while device(world) is None:
            world.bring_events()
            await world.tick()
        serve_as_kube_scheduler(world, "theirs", "a", "theirs")
        world.bring_events()
        world.control.look_again()
        await loses_and_follows(world)


async def loses_and_follows(world: World) -> None:
    """The claim is parked; when theirs has ended, it gives its device back, and gets one again."""

    def consumers() -> list[str]:
        status = world.api[RESOURCE_CLAIMS, "ns/claim"].get("status") or {}
        return [it["resource"] for it in status.get("reservedFor") or ()]

    async with asyncio.timeout(30):
        while consumers() != ["contests"]:
            world.bring_events()
            await world.tick()
        assert (device(world, "theirs"), device(world)) == ("a/dev-0", "a/dev-0")
        for kind in (PODS, RESOURCE_CLAIMS):
            world.api.drop(kind, "ns/theirs")
        while device(world) is None or consumers():
            world.bring_events()
            await world.tick()
    await world.quiet()


async def test_a_device_that_is_held_twice_is_given_up_when_the_pod_that_runs_with_it_ends(
    world: World, make: type[Make]
) -> None:
    world.furnish("a", devices=2)
    add(world, make)
    world.api.add(PODS, make.pod("ours", [make.use("claim")]))
    await world.settle()
    world.api.add(RESOURCE_CLAIMS, make.claim("theirs"))
    world.api.add(PODS, make.pod("theirs", [make.use("theirs")], schedulerName="default-scheduler"))
    serve_as_kube_scheduler(world, "theirs", "a", "theirs")
    world.start()
    async with world.running():
        world.bring_events()
        await world.idle()
        assert (device(world, "theirs"), device(world)) == ("a/dev-0", "a/dev-0"), "the pod runs"
        world.api.change(PODS, "ns/ours", lambda pod: pod["status"].update(phase="Succeeded"))
        await loses_and_follows(world)


@pytest.mark.rule("AA-23")
async def test_it_is_the_concern_of_allocation(world: World, make: type[Make]) -> None:
    world.furnish("a")
    add(world, make)
    world.controllers = OwnControllers(allocation=False)
    await world.settle()
    assert device(world) is None
    world.controllers = OwnControllers.of(["allocation"])
    await world.settle()
    assert device(world) == "a/dev-0"
    world.controllers = OwnControllers(allocation=False)
    delete(world)
    await world.settle()
    assert finalizers(world) == [HOLD]
    world.controllers = OwnControllers.of(["allocation"])
    await world.settle()
    assert not exists(world)
