"""Beside another scheduler on the same driver: a pod is bound only to devices that are certainly its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from controllers_world import World
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.resource import DeviceClass, ResourceClaim
from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Resource, ServerError, Unreachable
from dra_operator.allocator import Features
from dra_operator.cache import InvariantViolated, Source, check
from dra_operator.controllers import BackoffSettings
from dra_operator.controllers.claims import release
from dra_operator.controllers.errors import PlacementFailed, PodVanished
from dra_operator.controllers.scheduling import binding
from dra_operator.scheduling import NoPlace
from dra_operator.sources import audit
from dra_operator.sources.audit import LastLook
from fake_api import ERRORS, Call, copied
from objects import Make, Obj
from waiting import becomes

FINALIZER = "resource.kubernetes.io/delete-protection"


def add_theirs(world: World, make: type[Make]) -> None:
    """A pod that the other scheduler is about to place."""
    world.api.add(RESOURCE_CLAIMS, make.claim("theirs"))
    world.api.add(PODS, make.pod("theirs", claims=[make.use("theirs")], schedulerName="default-scheduler"))


def allocate_theirs(world: World, device: str) -> None:
    """What the other scheduler writes."""
    taken = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": device}
    users = [{"resource": "pods", "name": "theirs", "uid": world.api[PODS, "ns/theirs"]["metadata"]["uid"]}]

    def edit(claim: dict[str, Any]) -> None:
        claim["metadata"]["finalizers"] = [FINALIZER]
        claim["status"] = {"allocation": {"devices": {"results": [taken]}}, "reservedFor": users}

    world.api.change(RESOURCE_CLAIMS, "ns/theirs", edit)


def device_of(world: World, claim: str) -> str | None:
    allocation = (world.api[RESOURCE_CLAIMS, f"ns/{claim}"].get("status") or {}).get("allocation")
    return allocation["devices"]["results"][0]["device"] if allocation else None


def lists_of_claims(world: World) -> list[Call]:
    return [call for call in world.api.calls if call.plural == "resourceclaims" and call.name == "(list)"]


def add_ours(world: World, make: type[Make]) -> None:
    world.api.add(RESOURCE_CLAIMS, make.claim("ours"))
    world.api.add(PODS, make.pod("ours", claims=[make.use("ours")]))


async def until_allocated(world: World) -> None:
    """Our allocation is written; the watch has brought nothing of it yet."""
    while device_of(world, "ours") is None:
        await world.tick()


@pytest.fixture(autouse=True)
def _in_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contest of theirs that is over is over soon."""
    for name in ("PARKED_QUIET_SECONDS", "PARKED_LOOK_SECONDS"):
        monkeypatch.setattr(release, name, 0.05)


async def while_it_is_parked(world: World) -> None:
    """Whatever else is to be done: the claim is looked at all the time."""
    for _ in range(20):
        world.bring_events()
        await world.tick()
        await asyncio.sleep(0.005)
    await world.control.events.flush(60)


def is_parked(world: World, claim: str = "ours") -> bool:
    status = world.api[RESOURCE_CLAIMS, f"ns/{claim}"].get("status") or {}
    return [it["resource"] for it in status.get("reservedFor") or ()] == ["contests"]


def any_is_parked(world: World) -> bool:
    return any(is_parked(world, it["metadata"]["name"]) for it in world.api.of(RESOURCE_CLAIMS))


async def ours_is_parked(world: World) -> None:
    """Ours keeps the device that theirs has, and no pod runs with it."""
    async with asyncio.timeout(20):
        while not is_parked(world):
            world.bring_events()
            await world.tick()
    await while_it_is_parked(world)
    assert device_of(world, "theirs") == device_of(world, "ours") == "dev-0"
    assert is_parked(world)


def theirs_ends(world: World) -> None:
    for kind in (PODS, RESOURCE_CLAIMS):
        world.api.drop(kind, "ns/theirs")


async def ours_follows_theirs(world: World) -> None:
    """Theirs ends, and ours is placed, with a device that it got after that."""
    await ours_is_parked(world)
    world.api.before = lambda _: None
    theirs_ends(world)
    async with asyncio.timeout(20):
        while device_of(world, "ours") is None or is_parked(world):
            world.bring_events()
            await world.tick()
    await world.quiet()
    nothing_is_remembered(world)


def nothing_is_remembered(world: World) -> None:
    """Of contests that are over."""
    assert not world.cluster.contested
    assert not world.cluster.unparking
    assert not world.control.releaser._parked._alone_since
    assert not world.control.conflict_check._former


async def idle(world: World) -> None:
    for _ in range(10):
        await world.idle()
        await world.tick()


async def test_a_pod_is_bound_at_once_where_no_other_scheduler_allocates(world: World, make: type[Make]) -> None:
    world.furnish(devices=2)
    add_ours(world, make)
    world.start()
    async with world.running():
        await idle(world)  # no event of the watch
        assert world.node_of("ours") == "node-0"
        assert not lists_of_claims(world)


@asynccontextmanager
async def waiting_for_the_watch(world: World, make: type[Make]) -> AsyncIterator[None]:
    """Inside the block our pod has its allocation, which the watch has not brought back, beside a pod of theirs."""
    world.furnish(devices=2)
    add_theirs(world, make)
    add_ours(world, make)
    world.start()
    async with world.running():
        await until_allocated(world)
        await idle(world)
        yield


async def test_a_pod_is_bound_after_its_allocation_has_come_back_on_the_watch(world: World, make: type[Make]) -> None:
    async with waiting_for_the_watch(world, make):
        assert world.node_of("ours") is None
        assert world.cluster.loads.used("node-0")["pods"] == 10**9  # the room is held meanwhile
        await world.quiet()
        assert world.node_of("ours") == "node-0"


async def test_a_class_that_goes_meanwhile_undoes_no_decision_of_theirs(world: World, make: type[Make]) -> None:
    async with waiting_for_the_watch(world, make):
        world.control.delete(Source.WATCH, DeviceClass, "gpu")
        await idle(world)
        assert world.node_of("ours") is None
        await world.quiet()
        assert world.node_of("ours") == "node-0"


@pytest.mark.rule("AA-07")
async def test_a_gate_opens_after_the_allocation_has_come_back_on_the_watch(world: World, make: type[Make]) -> None:
    world.furnish(devices=2)
    add_theirs(world, make)
    world.api.add(RESOURCE_CLAIMS, make.claim("ours"))
    gates = [{"name": "dra.kopf.dev/allocate"}]
    pod = make.pod("ours", claims=[make.use("ours")], schedulerName="default-scheduler", schedulingGates=gates)
    world.api.add(PODS, pod)
    world.start()
    async with world.running():
        await until_allocated(world)
        await idle(world)
        assert world.api[PODS, "ns/ours"]["spec"].get("schedulingGates") == gates
        await world.quiet()
        assert not world.api[PODS, "ns/ours"]["spec"].get("schedulingGates")


async def test_a_pod_with_extended_resources_is_not_said_to_wait_for_binding_conditions(
    world: World, make: type[Make]
) -> None:
    """It waits until its allocation is confirmed."""
    world.furnish(devices=2)
    add_theirs(world, make)
    amounts = {"deviceclass.resource.kubernetes.io/gpu": "1"}
    world.api.add(PODS, make.pod("ours", containers=[make.asking("main", **amounts)]))
    await world.settle()
    assert world.node_of("ours") == "node-0"
    assert world.messages("BindingConditionsPending") == []


async def test_a_watch_that_is_faster_than_the_answer_confirms_an_allocation_too(
    world: World, make: type[Make]
) -> None:
    world.furnish(devices=2)
    add_theirs(world, make)
    add_ours(world, make)
    world.start()
    world.api.after = lambda call: world.bring_events() if call.sub == "status" else None
    async with world.running():
        await until_allocated(world)
        await world.quiet()
        assert world.node_of("ours") == "node-0"


@pytest.mark.parametrize("when", ["before ours", "after ours"])
async def test_where_both_took_one_device_ours_is_parked_and_placed_when_theirs_has_ended(
    when: str, world: World, make: type[Make]
) -> None:
    """``after ours``: decided before the other scheduler saw our allocation, and written within the grace."""
    world.furnish(devices=2)
    add_theirs(world, make)
    add_ours(world, make)
    world.start()
    async with world.running():
        if when == "before ours":
            held = world.api.events
            world.api.before = lambda call: (
                allocate_theirs(world, "dev-0") if call.sub == "status" and device_of(world, "theirs") is None else None
            )
            await until_allocated(world)
            assert held
        else:
            await until_allocated(world)
            world.bring_events()
            allocate_theirs(world, "dev-0")
        await ours_is_parked(world)
        assert world.node_of("ours") is None
        assert "claim ns/ours keeps gpu.example.com/node-0/dev-0, which" in world.messages("FailedScheduling")[-1]
        await ours_follows_theirs(world)
        assert world.node_of("ours") == "node-0"
    assert world.registry.get_sample_value("dra_operator_allocations_given_up_total") == 1


MOST_REQUESTS = 40
"""More than an attempt makes until the pod is bound."""


def allocated_before(world: World, make: type[Make]) -> None:
    """Our claim has its device and no consumer, as after a pod that was deleted before it was bound."""
    add_ours(world, make)
    taken = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}
    status = {"allocation": {"devices": {"results": [taken]}}}
    world.api.change(RESOURCE_CLAIMS, "ns/ours", lambda it: it.update(status=status))
    world.api.change(RESOURCE_CLAIMS, "ns/ours", lambda it: it["metadata"].update(finalizers=[FINALIZER]))


def with_extended_resources(world: World, make: type[Make]) -> None:
    asks = make.asking("main", **{"deviceclass.resource.kubernetes.io/gpu": "1"})
    world.api.add(PODS, make.pod("ours", containers=[asks]))


BEGINNINGS: dict[str, Callable[[World, type[Make]], None]] = {
    "not allocated yet": add_ours,
    "allocated before": allocated_before,
    "extended resources": with_extended_resources,
}


async def until_bound_or_parked(world: World) -> None:
    """A named claim that lost a contest keeps its device, and its pod waits."""
    async with asyncio.timeout(20):
        while world.node_of("ours") is None and not (
            (RESOURCE_CLAIMS, "ns", "ours") in world.api.objects and is_parked(world)
        ):
            world.bring_events()
            await world.tick()
    await while_it_is_parked(world)
    check(world.cluster)


def devices_used_by_ours(world: World) -> set[str]:
    """The devices of claims that are reserved for our pod."""
    claims = [it.get("status") or {} for it in world.api.of(RESOURCE_CLAIMS)]
    used = [it for it in claims if any(user["name"] == "ours" for user in it.get("reservedFor") or ())]
    return {
        result["device"] for it in used if it.get("allocation") for result in it["allocation"]["devices"]["results"]
    }


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("beginning", BEGINNINGS)
async def test_a_pod_is_never_bound_with_a_device_of_theirs_that_comes_at_any_moment_of_its_attempts(
    beginning: str, when: str, make: type[Make]
) -> None:
    """Their allocation of its device is written, and seen, before or after each request of ours, one by one.

    Once the binding is sent, it is too late: of that the other scheduler hears, and gives way.
    """
    moments = 0
    for number in range(1, MOST_REQUESTS):
        world = World(Features())
        world.furnish(devices=2)
        add_theirs(world, make)
        BEGINNINGS[beginning](world, make)
        count, is_late = 0, False

        def come(call: Call, world: World = world, number: int = number) -> None:
            nonlocal count, is_late
            count += 1
            if count == number:
                is_late = call.sub == "binding"
                allocate_theirs(world, "dev-0")
                world.bring_events()

        setattr(world.api, when, come)
        world.start()
        async with world.running():
            with suppress(InvariantViolated):  # ours was bound with it before
                await until_bound_or_parked(world)
        if count < number or is_late:
            break
        assert "dev-0" not in devices_used_by_ours(world), f"request {number}"
        moments += 1
    assert moments > 2


async def test_what_a_refused_write_shows_of_a_claim_counts_before_the_watch_brings_it(
    world: World, make: type[Make]
) -> None:
    """Another writer has allocated our claim. The same write would be refused until the watch tells."""
    world.furnish(devices=2)
    add_ours(world, make)
    world.start()
    taken = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-1"}

    def edit(claim: Obj) -> None:
        claim["metadata"]["finalizers"] = [FINALIZER]
        claim["status"] = {"allocation": {"devices": {"results": [taken]}}}

    world.api.change(RESOURCE_CLAIMS, "ns/ours", edit)
    async with world.running(), asyncio.timeout(20):
        while world.node_of("ours") is None:
            await world.tick()
    assert device_of(world, "ours") == "dev-1"
    assert sum(call.name == "ours" and call.plural == "resourceclaims" for call in world.api.calls) < 6


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_device_of_theirs_that_comes_while_a_pod_reserves_a_claim_that_others_wait_with_holds_it_back(
    when: str, make: type[Make]
) -> None:
    """The claim is confirmed: the pod that allocated it could not be bound. Only the last look is left."""
    moments = 0
    for number in range(1, MOST_REQUESTS):
        world = World(Features())
        world.furnish(devices=2)
        add_theirs(world, make)
        add_ours(world, make)
        count, is_late = 0, False
        held = {"ours"}

        def come(call: Call, world: World = world, number: int = number, held: set[str] = held) -> None:
            nonlocal count, is_late
            if call.plural != "events" and (PODS, "ns", "second") in world.api.objects:
                count += 1
                if count == number:
                    is_late = call.sub == "binding"
                    held.clear()
                    allocate_theirs(world, "dev-0")
                    world.bring_events()

        def before(call: Call, come: Callable[[Call], None] = come, held: set[str] = held) -> Exception | None:
            if when == "before":
                come(call)
            return ERRORS["server error"]() if call.sub == "binding" and call.name in held else None

        world.api.before, world.api.after = before, come if when == "after" else lambda call: None
        world.start()
        async with world.running():
            async with asyncio.timeout(20):
                while not any(call.sub == "binding" for call in world.api.calls):
                    world.bring_events()
                    await world.tick()
            world.api.add(PODS, make.pod("second", claims=[make.use("ours")]))
            with suppress(InvariantViolated):  # ours was bound with it before
                await until_bound_or_parked(world)
        if count < number or is_late:
            break
        assert is_parked(world), f"request {number}"
        assert {world.node_of("ours"), world.node_of("second")} == {None}, f"request {number}"
        assert world.messages("BindingConditionsPending") == []
        moments += 1
    assert moments >= 1


@pytest.mark.parametrize("failures", [0, 1])
@pytest.mark.parametrize("kind", ["a claim of the pod's", "an immediate claim"])
async def test_what_the_watch_did_not_bring_is_listed_before_a_pod_is_bound(
    kind: str, failures: int, world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "LIST_PAUSE_SECONDS", 0.01)
    world.furnish(devices=2)
    add_theirs(world, make)
    is_immediate = kind == "an immediate claim"
    annotations = {"dra.kopf.dev/allocate": "immediate"} if is_immediate else {}
    world.api.add(RESOURCE_CLAIMS, make.claim("ours", annotations=annotations))
    if not is_immediate:
        world.api.add(PODS, make.pod("ours", claims=[make.use("ours")]))
    world.start()
    world.api.before = lambda call: (
        ServerError(500, "InternalError", "etcd is on fire")
        if call.name == "(list)" and len(lists_of_claims(world)) <= failures
        else None
    )
    async with world.running():
        await until_allocated(world)
        world.bring_events()
        allocate_theirs(world, "dev-0")
        world.api.events.clear()  # the watch is broken from here on
        if is_immediate:
            world.control.apply(
                Source.WATCH, convert(Pod, world.api.add(PODS, make.pod("ours", claims=[make.use("ours")])))
            )
            world.api.events.clear()
        await ours_follows_theirs(world)
        assert world.node_of("ours") == "node-0"
        assert len(lists_of_claims(world)) > failures


async def test_a_look_at_the_claims_that_does_not_come_is_said_by_the_pods_that_wait_for_it(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit, "LIST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(audit, "LATE_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(binding, "UNSEEN_LOOK_SECONDS", 0.05)
    world.furnish(devices=2)
    add_theirs(world, make)
    add_ours(world, make)
    world.start()
    is_away = True
    world.api.before = lambda call: (
        ServerError(500, "InternalError", "etcd is on fire") if is_away and call.name == "(list)" else None
    )

    def says() -> bool:
        conditions = (world.api[PODS, "ns/ours"].get("status") or {}).get("conditions") or []
        return any("in namespace ns" in it["message"] and "etcd is on fire" in it["message"] for it in conditions)

    async with world.running():
        await until_allocated(world)
        world.bring_events()
        await becomes(says)
        assert not world.node_of("ours")
        said = [it for it in caplog.records if "wait" in it.message and "etcd is on fire" in it.message]
        assert [it.levelname for it in said] == ["WARNING"]
        assert "etcd is on fire" in world.control.conflict_check.obstacle
        is_away = False
        await becomes(lambda: world.node_of("ours") == "node-0")
        assert not world.control.conflict_check.obstacle


async def test_a_look_reads_the_names_of_claims_in_the_namespaces_of_other_schedulers_pods_only(
    world: World, make: type[Make]
) -> None:
    """Any tenant may store large claims, and make a pod that names a scheduler which does not exist."""
    world.furnish(devices=2)
    add_theirs(world, make)
    for number in range(20):
        world.api.add(RESOURCE_CLAIMS, make.claim(f"hoarded-{number}"))
    add_ours(world, make)
    world.start()
    async with world.running():
        await until_allocated(world)
        world.bring_events()
        await becomes(lambda: world.node_of("ours") == "node-0")
    read = [it.name for it in world.api.calls if (it.verb, it.plural) == ("get", "resourceclaims")]
    assert set(read) <= {"(list)", "ours"}


async def test_all_drivers_count_as_shared_while_the_watch_of_pods_is_broken(world: World, make: type[Make]) -> None:
    world.sees_others = False
    world.furnish(devices=2)
    add_ours(world, make)
    world.start()
    add_theirs(world, make)
    world.api.events.clear()  # neither the pod nor its claim was seen
    async with world.running():
        await until_allocated(world)
        world.bring_events()
        allocate_theirs(world, "dev-0")
        world.api.events.clear()
        await ours_is_parked(world)
        assert len(lists_of_claims(world)) == 1
        await ours_follows_theirs(world)
        assert world.node_of("ours") == "node-0"
        assert len(lists_of_claims(world)) == 3  # one for each device that ours took, and one before it gave one back


async def test_a_watch_of_pods_that_is_back_soon_costs_no_list(world: World, make: type[Make]) -> None:
    world.sees_others = False
    world.furnish()
    add_ours(world, make)
    world.start()
    async with world.running():
        await until_allocated(world)
        await idle(world)
        assert world.node_of("ours") is None
        world.sees_others = True
        await world.quiet()
        assert world.node_of("ours") == "node-0"
        assert not lists_of_claims(world)


async def test_a_contest_ends_although_each_list_takes_longer_than_its_moment(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list is as old as its request. One that takes seconds must not be too old when it comes."""
    world.furnish(devices=2)
    add_theirs(world, make)
    add_ours(world, make)
    world.start()
    look = LastLook._look

    async def slow(last_look: LastLook, now: float) -> None:
        await look(last_look, now)
        await asyncio.sleep(2 * release.PARKED_QUIET_SECONDS)

    monkeypatch.setattr(LastLook, "_look", slow)
    async with world.running():
        await until_allocated(world)
        world.bring_events()
        allocate_theirs(world, "dev-0")
        await ours_follows_theirs(world)


async def test_a_look_waits_for_a_watch_that_begins_rather_than_list_all_claims(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant may have thousands of 1.4 MB: that list takes a minute, in which no pod with such devices is bound."""
    whole: list[Resource] = []
    monkeypatch.setattr(world.api, "pages_as", lambda resource, *_, **__: whole.append(resource))
    world.furnish(devices=2)
    add_theirs(world, make)
    add_ours(world, make)
    world.start()
    async with world.running():
        await until_allocated(world)
        world.sees_others = False
        world.bring_events()
        asyncio.get_running_loop().call_later(0.3, setattr, world, "sees_others", True)
        await becomes(lambda: world.node_of("ours") == "node-0")
    assert lists_of_claims(world)
    assert not whole


async def test_an_allocation_that_was_not_answered_is_confirmed_as_well(world: World, make: type[Make]) -> None:
    world.furnish(devices=2)
    add_theirs(world, make)
    add_ours(world, make)
    world.start()
    lost: list[Call] = []

    def lose(call: Call) -> Exception | None:
        if call.sub == "status" and call.name == "ours" and call.plural == "resourceclaims" and not lost:
            lost.append(call)
            return Unreachable("connection reset")
        return None

    world.api.after = lose
    async with world.running():
        await until_allocated(world)
        world.bring_events()
        allocate_theirs(world, "dev-0")
        world.api.events.clear()
        await ours_follows_theirs(world)
        assert lost
        assert world.node_of("ours") == "node-0"


async def test_an_allocation_of_a_former_process_is_confirmed_after_a_restart(world: World, make: type[Make]) -> None:
    world.furnish(devices=2)
    add_theirs(world, make)
    add_ours(world, make)
    taken = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}
    users = [{"resource": "pods", "name": "ours", "uid": world.api[PODS, "ns/ours"]["metadata"]["uid"]}]

    def edit(claim: dict[str, Any]) -> None:
        claim["metadata"]["finalizers"] = [FINALIZER]
        claim["status"] = {"allocation": {"devices": {"results": [taken]}}, "reservedFor": users}

    world.api.change(RESOURCE_CLAIMS, "ns/ours", edit)
    world.start()
    async with world.running():
        allocate_theirs(world, "dev-0")
        world.api.events.clear()
        await ours_follows_theirs(world)
        assert world.node_of("ours") == "node-0"


async def test_a_pod_whose_only_device_was_taken_waits(world: World, make: type[Make]) -> None:
    world.furnish()
    add_theirs(world, make)
    add_ours(world, make)
    world.start()
    async with world.running():
        await until_allocated(world)
        allocate_theirs(world, "dev-0")
        await ours_is_parked(world)
        assert world.node_of("ours") is None
        await ours_follows_theirs(world)
        assert (device_of(world, "ours"), world.node_of("ours")) == ("dev-0", "node-0")


def both_hold(world: World, make: type[Make], **ours: Any) -> None:
    """A claim of ours has the only device of the node, and one of the other scheduler as well, since a restart."""
    add_theirs(world, make)
    world.api.add(RESOURCE_CLAIMS, make.claim("ours", **ours))
    allocate_theirs(world, "dev-0")
    allocation = world.api[RESOURCE_CLAIMS, "ns/theirs"]["status"]["allocation"]
    world.api.change(RESOURCE_CLAIMS, "ns/ours", lambda claim: claim.update(status={"allocation": allocation}))


async def test_an_immediate_claim_gives_way_after_a_restart(world: World, make: type[Make]) -> None:
    world.furnish(devices=2)
    immediate = {"annotations": {"dra.kopf.dev/allocate": "immediate"}, "finalizers": ["dra.kopf.dev/immediate"]}
    both_hold(world, make, **immediate)
    world.start()
    async with world.running():
        await ours_follows_theirs(world)
        assert device_of(world, "ours") == "dev-0"


async def test_a_claim_gives_way_though_it_is_deleted_and_its_pod_waits(world: World, make: type[Make]) -> None:
    world.furnish()
    pod = world.api.add(PODS, make.pod("ours", claims=[make.use("ours")]))
    both_hold(world, make, finalizers=[FINALIZER], deletionTimestamp="2026-01-01T00:00:00Z")
    users = [{"resource": "pods", "name": "ours", "uid": pod["metadata"]["uid"]}]
    world.api.change(RESOURCE_CLAIMS, "ns/ours", lambda claim: claim["status"].update(reservedFor=users))
    world.start()
    async with world.running():
        await ours_is_parked(world)
        theirs_ends(world)
        async with asyncio.timeout(20):
            while (RESOURCE_CLAIMS, "ns", "ours") in world.api.objects:
                world.bring_events()
                await world.tick()


def share(world: World, make: type[Make], *, first_on: str = "") -> None:
    """Our claim that both hold is that of two pods."""
    both_hold(world, make, finalizers=[FINALIZER])
    users = []
    for name in ("first", "second"):
        node = {"nodeName": first_on} if first_on and name == "first" else {}
        pod = world.api.add(PODS, make.pod(name, claims=[make.use("ours")], **node))
        users.append({"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]})
    world.api.change(RESOURCE_CLAIMS, "ns/ours", lambda claim: claim["status"].update(reservedFor=users))


async def test_a_claim_of_two_pods_that_wait_gives_way(world: World, make: type[Make]) -> None:
    world.furnish(devices=2)
    share(world, make)
    world.start()
    async with world.running():
        await ours_follows_theirs(world)
    assert {world.node_of("first"), world.node_of("second")} == {"node-0"}
    assert world.registry.get_sample_value("dra_operator_allocations_given_up_total") == 1


async def test_a_claim_that_one_of_its_pods_runs_with_stays(world: World, make: type[Make]) -> None:
    world.furnish(devices=2)
    share(world, make, first_on="node-0")
    with pytest.raises(InvariantViolated, match="is allocated to claim ns/theirs and to claim ns/ours"):
        await world.settle()
    assert device_of(world, "ours") == "dev-0"


async def test_a_pod_that_shares_a_claim_waits_although_the_one_that_allocated_it_was_refused(
    world: World, make: type[Make]
) -> None:
    """The one gives the claim up, the other keeps its devices, which the watch has not shown yet."""
    world.times = replace(world.times, placement_retries=BackoffSettings(first=1000.0))
    world.furnish(devices=4)
    add_theirs(world, make)
    add_ours(world, make)
    world.start()
    update = world.api.update

    def users() -> list[str]:
        return [consumer["name"] for consumer in world.api[RESOURCE_CLAIMS, "ns/shared"]["status"]["reservedFor"]]

    def come(name: str, *claims: str) -> None:
        added = world.api.add(PODS, make.pod(name, claims=[make.use(claim) for claim in claims]))
        world.control.apply(Source.WATCH, convert(Pod, added))

    async def refuse(resource: Resource, body: Obj, subresource: str | None = None) -> Obj:
        if body["metadata"]["name"] != "refused":
            return await update(resource, body, subresource)
        come("second", "shared")
        async with asyncio.timeout(60):
            while users() != ["first", "second"]:
                await world.tick()
        raise ERRORS["forbidden"]()

    async with world.running():
        await world.quiet()
        assert lists_of_claims(world), "what was allocated before this list counts as confirmed"
        for name in ("shared", "refused"):
            world.api.add(RESOURCE_CLAIMS, make.claim(name))
        world.bring_events()
        world.api.update = refuse  # type: ignore[method-assign]
        come("first", "shared", "refused")
        async with asyncio.timeout(60):
            while not device_of(world, "shared") or users() != ["second"]:
                await world.tick()
        await idle(world)
        assert world.node_of("second") is None, "another scheduler may have taken the device as well"
        world.api.drop(PODS, "ns/first")
        await world.quiet()
    assert world.node_of("second") == "node-0"


async def test_a_list_from_before_our_write_does_not_hide_what_the_watch_has_shown(
    world: World, make: type[Make]
) -> None:
    """The watch is faster than the answer, and so is the list that another pod asked for."""
    world.furnish(devices=2)
    for name, scheduler in (("theirs", "default-scheduler"), ("ours", "dra-scheduler")):
        world.api.add(RESOURCE_CLAIMS, make.claim(name))
        world.api.add(PODS, make.pod(name, claims=[make.use(name)], schedulerName=scheduler))
    listed: list[ResourceClaim] = []

    def list_first(call: Call) -> None:
        if call == ("update", "resourceclaims", "status", "ours"):
            listed.append(convert(ResourceClaim, copied(world.api[RESOURCE_CLAIMS, "ns/ours"])))

    def bring(call: Call) -> None:
        if call == ("update", "resourceclaims", "status", "ours"):
            world.bring_events()
            world.control.apply(Source.CONFLICT_CHECK, listed.pop())

    world.start()
    world.api.before, world.api.after = list_first, bring
    async with world.running():
        for _ in range(400):  # 40 times the grace
            world.bring_events()
            await asyncio.sleep(0.002)
    assert world.node_of("ours") == "node-0"


async def test_a_pod_whose_claim_is_from_a_template_gets_a_new_one_and_another_device(
    world: World, make: type[Make]
) -> None:
    """The parked claim stays when the pod goes, and ends with the contest."""
    world.furnish(devices=2)
    add_theirs(world, make)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.api.add(PODS, make.pod("ours", claims=[make.FROM_TEMPLATE]))
    world.start()

    def claims() -> dict[str, str | None]:
        names = [obj["metadata"]["name"] for obj in world.api.of(RESOURCE_CLAIMS)]
        return {name: device_of(world, name) for name in names if name != "theirs"}

    async with world.running():
        async with asyncio.timeout(20):
            while "dev-0" not in claims().values():
                await world.tick()
        allocate_theirs(world, "dev-0")
        async with asyncio.timeout(20):
            while world.node_of("ours") is None:
                world.bring_events()
                await world.tick()
        assert sorted(claims().values(), key=str) == ["dev-0", "dev-1"]
        (parked,) = (name for name, device in claims().items() if device == "dev-0")
        assert is_parked(world, parked)
        assert "was also allocated to claim ns/theirs" in world.messages("ResourceClaimParked")[0]
        world.api.drop(PODS, "ns/ours")
        await while_it_is_parked(world)
        assert device_of(world, parked) == "dev-0", "kube-scheduler would take the device of theirs for free"
        theirs_ends(world)
        async with asyncio.timeout(20):
            while "dev-0" in claims().values():
                world.bring_events()
                await world.tick()


async def test_a_device_that_theirs_had_for_a_moment_serves_no_pod_of_ours_as_it_is(
    world: World, make: type[Make]
) -> None:
    """When theirs gave it back, kube-scheduler took it for free, though ours had it."""
    world.furnish()
    add_theirs(world, make)
    add_ours(world, make)
    world.start()
    async with world.running():
        await until_allocated(world)
        world.bring_events()
        allocate_theirs(world, "dev-0")
        world.bring_events()
        theirs_ends(world)
        async with asyncio.timeout(20):
            while not is_parked(world):
                assert world.node_of("ours") is None
                world.bring_events()
                await world.tick()
            while world.node_of("ours") is None:
                world.bring_events()
                await world.tick()
        assert not is_parked(world)
    assert "may have been" not in world.messages("ResourceClaimParked")[0]


class Visit:
    """Theirs takes dev-0 before or after a request of ours, this one of them, and gives it back once ours has it."""

    def __init__(self, world: World, number: int, came: str, ends: str) -> None:
        self._world, self._number, self._came, self._ends = world, number, came, ends
        self._count = 0
        self.has_ended = self.is_late = False

    @property
    def has_come(self) -> bool:
        """Return whether ours made so many requests."""
        return self._count >= self._number

    def before(self, call: Call) -> None:
        """A request of ours arrives."""
        if self._came == "before":
            self._come(call)

    def after(self, call: Call) -> None:
        """It was carried out, and is not answered yet."""
        if self._came == "after":
            self._come(call)
        if self._ends == "before ours is answered":
            self.end()
        elif self._ends == "when the watch has shown ours" and devices_used_by_ours(self._world):
            self._world.bring_events()  # faster than the answer

    def end(self) -> None:
        """Theirs goes, if it may."""
        if self.has_come and not self.has_ended and "dev-0" in devices_used_by_ours(self._world):
            self.has_ended = True
            theirs_ends(self._world)
            self._world.bring_events()

    def _come(self, call: Call) -> None:
        self._count += 1
        if self._count == self._number:
            self.is_late = call.sub == "binding"
            allocate_theirs(self._world, "dev-0")
            self._world.bring_events()


@pytest.mark.parametrize("ends", ["before ours is answered", "when ours is answered", "when the watch has shown ours"])
@pytest.mark.parametrize("came", ["before", "after"])
@pytest.mark.parametrize("beginning", ["not allocated yet", "extended resources"])
async def test_a_device_that_theirs_took_during_any_request_of_ours_and_soon_gave_back_serves_no_pod_of_ours(
    beginning: str, came: str, ends: str, make: type[Make]
) -> None:
    """Theirs gives it back after ours has it, so kube-scheduler takes it for free and may give it to a second pod.

    All of it is seen before ours looks for the last time, when theirs has nothing any more.
    """
    moments = 0
    for number in range(1, MOST_REQUESTS):
        world = World(Features())
        world.furnish(devices=2)
        add_theirs(world, make)
        BEGINNINGS[beginning](world, make)
        visit = Visit(world, number, came, ends)
        world.api.before, world.api.after = visit.before, visit.after
        world.start()
        async with world.running(), asyncio.timeout(20):
            while not (world.node_of("ours") or any_is_parked(world)):
                await world.tick()
                world.bring_events()
                visit.end()
        if visit.is_late or not visit.has_come:
            break
        if visit.has_ended:  # otherwise ours was parked before, or knew of theirs before it decided
            assert any_is_parked(world), f"request {number}"
        moments += any_is_parked(world)
    assert moments >= 1


async def test_what_a_former_process_allocated_beside_others_is_allocated_anew(world: World, make: type[Make]) -> None:
    """Theirs may have had the device too, and given it back, while no operator saw that."""
    world.furnish()
    add_theirs(world, make)
    add_ours(world, make)
    taken = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}
    users = [{"resource": "pods", "name": "ours", "uid": world.api[PODS, "ns/ours"]["metadata"]["uid"]}]

    def edit(claim: dict[str, Any]) -> None:
        claim["metadata"]["finalizers"] = [FINALIZER]
        claim["status"] = {"allocation": {"devices": {"results": [taken]}}, "reservedFor": users}

    world.api.change(RESOURCE_CLAIMS, "ns/ours", edit)
    world.start()
    async with world.running():
        async with asyncio.timeout(20):
            while not is_parked(world):
                world.bring_events()
                await world.tick()
        await world.control.events.flush(60)
        assert "may have been allocated to another claim as well" in world.messages("ResourceClaimParked")[0]
        theirs_ends(world)
        async with asyncio.timeout(20):
            while world.node_of("ours") is None:
                world.bring_events()
                await world.tick()


async def test_a_device_that_a_new_pod_of_theirs_takes_as_it_comes_free_is_not_lost_to_their_record(
    world: World, make: type[Make]
) -> None:
    """Their scheduler sees ours give the device back last, and takes it for free: ours takes it once more."""
    world.furnish()
    add_theirs(world, make)
    add_ours(world, make)
    world.start()
    async with world.running():
        await until_allocated(world)
        allocate_theirs(world, "dev-0")
        await ours_is_parked(world)

        def take(call: Call) -> None:
            if call == ("update", "resourceclaims", "status", "ours"):
                world.api.before = lambda _: None
                add_theirs(world, make)
                allocate_theirs(world, "dev-0")

        world.api.before = take
        theirs_ends(world)
        async with asyncio.timeout(20):
            while device_of(world, "ours") is not None:
                world.bring_events()
                await world.tick()
        await ours_follows_theirs(world)
        assert world.node_of("ours") == "node-0"


@pytest.mark.parametrize(("kind", "refusal"), [("resourceclaims", "forbidden"), ("pods", None)])
async def test_a_new_claim_in_place_of_a_parked_one_that_cannot_be_made(
    kind: str, refusal: str | None, world: World, make: type[Make]
) -> None:
    """It is refused, which the pod says; or the pod goes before it is recorded, and there is nothing to say."""
    world.furnish(devices=2)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    pod = make.pod("ours", claims=[make.FROM_TEMPLATE])
    pod["status"]["resourceClaimStatuses"] = [{"name": "entry-0", "resourceClaimName": "made"}]
    owner = world.api.add(PODS, pod)["metadata"]
    taken = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}
    contest = {"apiGroup": "dra.kopf.dev", "resource": "contests", "name": "one", "uid": "one"}
    status = {"allocation": {"devices": {"results": [taken]}}, "reservedFor": [contest]}
    world.api.add(RESOURCE_CLAIMS, make.claim("made", owner=owner, finalizers=[FINALIZER]) | {"status": status})
    placer = world.start().placer

    def fails(call: Call) -> Exception | None:
        if call.plural != kind:
            return None
        if refusal is not None:
            return ERRORS[refusal]()
        if (PODS, "ns", "ours") in world.api.objects:
            world.api.drop(PODS, "ns/ours")
        return None

    world.api.before = fails
    (waiting,) = world.cluster.pods
    with pytest.raises(PodVanished if refusal is None else PlacementFailed):
        await placer._unreserve.without_parked(waiting, NoPlace("its claim is parked"))
    if refusal is not None:
        (condition,) = world.api[PODS, "ns/ours"]["status"]["conditions"]
        assert condition["message"].startswith("its claim is parked; ")
        assert condition["message"].endswith("; retrying with back-off")


@pytest.mark.parametrize("is_replaced", [False, True], ids=["gone", "replaced"])
async def test_a_claim_that_is_gone_needs_not_give_way(is_replaced: bool, world: World, make: type[Make]) -> None:
    world.furnish(devices=2)
    taken = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}
    for claim in ("one", "two"):
        uid = world.api.add(PODS, make.pod(claim, claims=[make.use(claim)]))["metadata"]["uid"]
        users = [{"resource": "pods", "name": claim, "uid": uid}]
        status = {"allocation": {"devices": {"results": [taken]}}, "reservedFor": users}
        world.api.add(RESOURCE_CLAIMS, make.claim(claim, finalizers=[FINALIZER]) | {"status": status})
    world.start()
    world.api.drop(RESOURCE_CLAIMS, "ns/two")
    if is_replaced:
        world.api.add(RESOURCE_CLAIMS, make.claim("two"))
    with pytest.raises(PlacementFailed, match="two"):
        await world.attempt("ns/two")
    assert world.registry.get_sample_value("dra_operator_allocations_given_up_total") == 0
    nothing_is_remembered(world)


async def test_of_two_claims_of_ours_with_one_device_one_gets_another_device(world: World, make: type[Make]) -> None:
    """Two operators led for a moment. None but ours waits for the claims, so the device is given back at once."""
    world.furnish(devices=2)
    taken = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}
    for claim, users in (("alone", ["one"]), ("shared", ["two", "three"])):
        pods = [world.api.add(PODS, make.pod(name, claims=[make.use(claim)])) for name in users]
        reserved = [{"resource": "pods", "name": it["metadata"]["name"], "uid": it["metadata"]["uid"]} for it in pods]
        status = {"allocation": {"devices": {"results": [taken]}}, "reservedFor": reserved}
        world.api.add(RESOURCE_CLAIMS, make.claim(claim, finalizers=[FINALIZER]) | {"status": status})
    world.start()
    with pytest.raises(PlacementFailed, match=r"keeps .*/dev-0, .* until its other pods release it"):
        await world.attempt("ns/two")
    with pytest.raises(PlacementFailed, match=r"claim ns/shared released .*/dev-0"):
        await world.attempt("ns/three")
    assert world.registry.get_sample_value("dra_operator_allocations_given_up_total") == 1
    async with world.running():
        await world.quiet()
    assert world.bound() == ["one", "three", "two"]
    assert {device_of(world, "alone"), device_of(world, "shared")} == {"dev-0", "dev-1"}
    nothing_is_remembered(world)
