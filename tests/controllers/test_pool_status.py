"""ResourcePoolStatusRequests: what they are answered, once, and when they go (claim-controller.md 12)."""

from __future__ import annotations

from typing import Any

import pytest
from controllers_world import World, idle
from dra_api.releases import Release
from dra_kube import DEVICE_TAINT_RULES, RESOURCE_CLAIMS, RESOURCE_POOL_STATUS_REQUESTS, RESOURCE_SLICES
from dra_operator.allocator import Features
from dra_operator.cache import Key
from dra_operator.controllers import pools as pools_controller
from fake_api import ERRORS, Call
from objects import Make, Obj
from waiting import becomes

DRIVER = "gpu.example.com"
START = "2026-01-01T00:00:00Z"
METRIC = "resourcepoolstatusrequest_controller_"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(pools_controller, "INCOMPLETE_POOL_SECONDS", 0.01)
    return World(Features(Release.V1_36, pool_status=True))


def ask(world: World, name: str = "ask", driver: str = DRIVER, **spec: Any) -> None:
    meta = {"name": name, "creationTimestamp": START}
    world.api.add(RESOURCE_POOL_STATUS_REQUESTS, {"metadata": meta, "spec": {"driver": driver, **spec}})


def publish(
    world: World, pool: str, devices: int, *, name: str = "", slices: int = 1, generation: int = 1, **spec: Any
) -> None:
    made = Make.slice(pool, devices)
    made["metadata"]["name"] = name or pool
    made["spec"]["pool"] |= {"resourceSliceCount": slices, "generation": generation}
    made["spec"] |= spec
    world.api.add(RESOURCE_SLICES, made)


def hold(world: World, name: str, *results: Obj) -> None:
    whole = [{"request": "req", "driver": DRIVER, "pool": "node-a", "device": "dev-0", **result} for result in results]
    claim = Make.claim(name, finalizers=["resource.kubernetes.io/delete-protection"])
    user = {"resource": "other", "apiGroup": "example.com", "name": "user", "uid": "user"}
    status = {"allocation": {"devices": {"results": whole}}, "reservedFor": [user]}
    world.api.add(RESOURCE_CLAIMS, {**claim, "status": status})


def status(world: World, name: str = "ask") -> Obj:
    found: Obj = world.api[RESOURCE_POOL_STATUS_REQUESTS, name].get("status") or {}
    return found


async def answered(world: World, name: str = "ask") -> Obj:
    """The status, after a run of the operator."""
    world.start()
    async with world.running():
        await becomes(lambda: status(world, name))
    return status(world, name)


def counts(pool: Obj) -> tuple[int, ...]:
    return tuple(pool[f"{kind}Devices"] for kind in ("total", "allocated", "available", "unavailable"))


async def test_a_pool_is_counted(world: World) -> None:
    publish(world, "node-a", 4)
    hold(world, "claim", {}, {"device": "dev-1"})
    ask(world)
    answer = await answered(world)
    assert answer == {
        "poolCount": 1,
        "pools": [
            {
                "driver": DRIVER,
                "poolName": "node-a",
                "nodeName": "node-a",
                "generation": 1,
                "resourceSliceCount": 1,
                "totalDevices": 4,
                "allocatedDevices": 2,
                "availableDevices": 2,
                "unavailableDevices": 0,
            }
        ],
        "conditions": [
            {
                "type": "Complete",
                "status": "True",
                "reason": "CalculationComplete",
                "message": "Calculated status for 1 pool",
                "lastTransitionTime": START,
            }
        ],
    }


@pytest.mark.rule("K37-PS-01")
@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([], (4, 0, 4, 0)),
        ([{}], (4, 1, 3, 0)),
        ([{"adminAccess": True}], (4, 0, 4, 0)),
        ([{"shareID": "a"}, {"shareID": "b"}], (4, 1, 3, 0)),
        ([{"device": "gone"}], (4, 1, 4, 0)),
        ([{"pool": "node-b"}], (4, 0, 4, 0)),
        ([{"driver": "other.example.com"}], (4, 0, 4, 0)),
    ],
    ids=[
        "nothing", "a device", "admin access", "two shares of a device", "a device no longer published", "another pool",
        "another driver",
    ],
)  # fmt: skip
async def test_what_counts_as_allocated(world: World, results: list[Obj], expected: tuple[int, ...]) -> None:
    publish(world, "node-a", 4)
    if results:
        hold(world, "claim", *results)
    ask(world, poolName="node-a")
    (pool,) = (await answered(world))["pools"]
    assert counts(pool) == expected


async def test_only_slices_of_the_highest_generation_count(world: World) -> None:
    publish(world, "node-a", 4)
    publish(world, "node-a", 1, name="newer", generation=2)
    ask(world)
    (pool,) = (await answered(world))["pools"]
    assert (pool["generation"], counts(pool)) == (2, (1, 0, 1, 0))


async def test_a_pool_of_several_nodes_names_none(world: World) -> None:
    publish(world, "node-a", 1, slices=2)
    publish(world, "node-a", 2, name="second", slices=2, nodeName="node-b")
    ask(world)
    (pool,) = (await answered(world))["pools"]
    assert "nodeName" not in pool
    assert (pool["resourceSliceCount"], pool["totalDevices"]) == (2, 2)


async def test_pools_are_sorted_and_cut_at_the_limit_and_all_are_counted(world: World) -> None:
    for pool in ("c", "a", "b"):
        publish(world, pool, 1)
    ask(world, limit=2)
    answer = await answered(world)
    assert [pool["poolName"] for pool in answer["pools"]] == ["a", "b"]
    assert answer["poolCount"] == 3
    assert answer["conditions"][0]["message"] == "Calculated status for 3 pools"


@pytest.mark.parametrize("spec", [{"driver": "unknown.example.com"}, {"poolName": "unknown"}])
async def test_what_does_not_exist_is_answered_with_no_pools(world: World, spec: dict[str, str]) -> None:
    publish(world, "node-a", 1)
    ask(world, **spec)
    answer = await answered(world)
    assert (answer["poolCount"], answer.get("pools") or []) == (0, [])
    assert answer["conditions"][0]["message"] == "Calculated status for 0 pools"


async def test_a_pool_that_stays_incomplete_is_answered_with_what_is_missing(world: World) -> None:
    """PRJ-005, after some looks: the rest of a pool may just be published (claim-controller.md 12)."""
    publish(world, "node-a", 1, slices=3)
    publish(world, "node-b", 1)
    ask(world)
    answer = await answered(world)
    missing, whole = answer["pools"]
    text = "pool gpu.example.com/node-a is incomplete: observed 1/3 slices at generation 1"
    assert missing == {
        "driver": DRIVER, "poolName": "node-a", "nodeName": "node-a", "generation": 1, "validationError": text
    }  # fmt: skip
    assert counts(whole) == (1, 0, 1, 0)
    assert answer["conditions"][0]["message"] == "Calculated status for 2 pools (1 incomplete)"


async def test_a_pool_that_gets_complete_meanwhile_is_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools_controller, "INCOMPLETE_POOL_SECONDS", 0.2)
    publish(world, "node-a", 1, slices=2)
    ask(world)
    world.start()
    async with world.running() as control:
        await idle(*control.queues.all().values())
        assert status(world) == {}
        publish(world, "node-a", 0, name="second", slices=2)
        world.bring_events()
        await becomes(lambda: status(world))
    assert counts(status(world)["pools"][0]) == (1, 0, 1, 0)


async def test_a_long_error_is_cut_to_what_the_api_takes(world: World) -> None:
    pool = "x" * 63 + ("." + "y" * 63) * 3
    publish(world, pool, 1, name="slice", slices=2)
    ask(world)
    (entry,) = (await answered(world))["pools"]
    assert len(entry["validationError"]) == 256


async def test_a_request_that_has_an_answer_is_never_touched(world: World) -> None:
    publish(world, "node-a", 1)
    theirs = {"poolCount": 7, "conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": START}]}
    meta = {"name": "ask", "creationTimestamp": START}
    world.api.add(RESOURCE_POOL_STATUS_REQUESTS, {"metadata": meta, "spec": {"driver": DRIVER}, "status": theirs})
    world.start()
    async with world.running() as control:
        await idle(*control.queues.all().values())
    assert world.api.calls == []


async def test_an_answer_that_another_controller_gives_first_stays(world: World) -> None:
    publish(world, "node-a", 1)
    ask(world)

    def interfere(call: Call) -> None:
        if call.verb == "get" and not status(world):
            edit = {"poolCount": 7}
            world.api.change(RESOURCE_POOL_STATUS_REQUESTS, "ask", lambda request: request.update(status=edit))

    world.api.after = interfere
    assert await answered(world) == {"poolCount": 7}


@pytest.mark.parametrize("error", sorted(ERRORS))
@pytest.mark.parametrize("lost", [False, True], ids=["refused", "answer lost"])
async def test_an_answer_that_could_not_be_written_is_written_again(world: World, error: str, lost: bool) -> None:
    publish(world, "node-a", 1)
    ask(world)
    failures = iter(range(7))

    def fail(call: Call) -> Exception | None:
        hit = (call.plural, call.verb) == ("resourcepoolstatusrequests", "update") and next(failures, None) is not None
        return ERRORS[error]() if hit else None

    setattr(world.api, "after" if lost else "before", fail)
    assert (await answered(world))["poolCount"] == 1


async def test_what_was_answered_is_counted_by_driver(world: World) -> None:
    publish(world, "node-a", 1)
    ask(world)
    failures = iter(range(1))
    world.api.before = lambda call: (
        ERRORS["forbidden"]() if call.verb == "update" and next(failures, None) is not None else None
    )
    world.start()
    async with world.running():
        await becomes(lambda: world.registry.get_sample_value(f"{METRIC}requests_processed_total", {"driver": DRIVER}))
    sample = world.registry.get_sample_value
    assert sample(f"{METRIC}requests_processed_total", {"driver": DRIVER}) == 1
    assert sample(f"{METRIC}request_processing_errors_total", {"driver": DRIVER}) == 1
    assert sample(f"{METRIC}request_processing_duration_seconds_count", {"driver": DRIVER}) == 2


async def test_requests_for_drivers_that_publish_nothing_are_counted_together(world: World) -> None:
    """Users choose the names, so the label would have no bound."""
    for number in range(3):
        ask(world, f"ask-{number}", driver=f"unknown-{number}.example.com")
    world.start()
    sample, others = world.registry.get_sample_value, {"driver": "(others)"}
    async with world.running():
        await becomes(lambda: sample(f"{METRIC}requests_processed_total", others) == 3)
    assert sample(f"{METRIC}requests_processed_total", {"driver": "unknown-0.example.com"}) is None


@pytest.mark.parametrize(
    ("is_answered", "kept", "gone"),
    [(True, "2026-01-01T00:59:59Z", "2026-01-01T01:00:00Z"), (False, "2026-01-01T23:59:59Z", "2026-01-02T00:00:00Z")],
    ids=["an hour after the answer", "a day after its creation"],
)
async def test_old_requests_are_deleted(world: World, is_answered: bool, kept: str, gone: str) -> None:
    publish(world, "node-a", 1)
    ask(world)
    if is_answered:
        await answered(world)
    else:
        world.api.before = lambda call: ERRORS["forbidden"]() if call.verb == "update" else None
    for now, left in ((kept, 1), (gone, 0)):
        world.now = now
        world.start()
        async with world.running() as control:
            await idle(*control.queues.all().values())
            control.queues.add([Key("pool-status", "ask")])
            await idle(*control.queues.all().values())
        assert len(world.api.of(RESOURCE_POOL_STATUS_REQUESTS)) == left


async def test_a_successor_of_the_same_name_is_not_deleted_for_an_old_one(world: World) -> None:
    """The old one is a day old; the other one takes its place when its deletion is on its way."""
    ask(world)
    world.now = "2026-01-02T00:00:00Z"

    def replace(call: Call) -> None:
        if call.verb == "delete" and world.api[RESOURCE_POOL_STATUS_REQUESTS, "ask"]["metadata"]["uid"] != "successor":
            world.api.drop(RESOURCE_POOL_STATUS_REQUESTS, "ask")
            meta = {"name": "ask", "creationTimestamp": "2026-01-02T00:00:00Z", "uid": "successor"}
            world.api.add(RESOURCE_POOL_STATUS_REQUESTS, {"metadata": meta, "spec": {"driver": DRIVER}})

    world.api.before = replace
    world.start()
    async with world.running():
        await becomes(lambda: any(call.verb == "delete" for call in world.api.calls))
        for _ in range(10):
            world.bring_events()
            await world.tick()
    assert world.api[RESOURCE_POOL_STATUS_REQUESTS, "ask"]["metadata"]["uid"] == "successor"


async def test_a_successor_of_the_same_name_is_not_answered_for_another(world: World) -> None:
    publish(world, "node-a", 1)
    ask(world)

    def replace(call: Call) -> None:
        if call.verb == "get" and world.api[RESOURCE_POOL_STATUS_REQUESTS, "ask"]["metadata"]["uid"] != "successor":
            world.api.drop(RESOURCE_POOL_STATUS_REQUESTS, "ask")
            meta = {"name": "ask", "creationTimestamp": START, "uid": "successor"}
            spec = {"driver": "other.example.com"}
            world.api.add(RESOURCE_POOL_STATUS_REQUESTS, {"metadata": meta, "spec": spec})

    world.api.before = replace
    world.start()
    async with world.running() as control:
        await idle(*control.queues.all().values())
        world.bring_events()
        await becomes(lambda: status(world))
    assert status(world)["poolCount"] == 0


@pytest.mark.rule("K37-PS-02")
@pytest.mark.parametrize(("release", "expected"), [(Release.V1_36, (4, 0, 4, 0)), (Release.V1_37, (4, 0, 3, 1))])
async def test_taints_of_rules_make_devices_unavailable_from_1_37_on(
    release: Release, expected: tuple[int, ...]
) -> None:
    """Taints in slices are looked at, and those that rules add."""
    world = World(Features(release, pool_status=True, taint_rules=True))
    publish(world, "node-a", 4)
    spec = {"deviceSelector": {"device": "dev-1"}, "taint": {"key": "k", "effect": "NoSchedule"}}
    world.api.add(DEVICE_TAINT_RULES, {"metadata": {"name": "rule"}, "spec": spec})
    ask(world)
    (pool,) = (await answered(world))["pools"]
    assert counts(pool) == expected
