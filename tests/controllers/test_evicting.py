"""Pods on tainted devices: when they are deleted, how, and what failures in between leave behind (TE-04 to TE-07)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest
from controllers_world import World
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.releases import Release
from dra_kube import (
    DEVICE_TAINT_RULES,
    EVENTS,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ApiError,
    ServerError,
)
from dra_operator.allocator import Features
from dra_operator.cache import Cluster, Key, Source, UidMemory, evictions
from dra_operator.controllers import Control, OwnControllers
from dra_operator.controllers import taints as taints_controller
from fake_api import ERRORS, Call, at_once
from objects import Make, Obj
from waiting import becomes

START = "2026-01-01T00:00:00Z"
TAINT = {"key": "broken", "effect": "NoExecute", "timeAdded": START}
MARKED, CANCELLED = "Marking for deletion", "Cancelling deletion"
DELETIONS = "device_taint_eviction_controller_pod_deletions_total"
DURATION = "device_taint_eviction_controller_pod_deletion_duration_seconds"


@pytest.fixture
def world() -> World:
    return World(Features(taint_rules=True))


def furnish(
    world: World, make: type[Make], *taints: Any, pods: int = 1, tolerations: object = None, **result: Any
) -> None:
    """A slice whose devices have these taints, and running pods with a device each."""
    published = make.slice("node-a", pods)
    for device in published["spec"]["devices"]:
        device["taints"] = list(taints)
    world.api.add(RESOURCE_SLICES, published)
    for number in range(pods):
        add_user(world, make, number, tolerations=tolerations, **result)


def name_of(number: int) -> str:
    return f"pod-{number}" if number else "pod"


def add_user(world: World, make: type[Make], number: int = 0, **more: Any) -> Obj:
    name = name_of(number)
    pod: Obj = world.api.add(PODS, make.pod(name, claims=[make.use(f"claim-{number}")], node="node-a"))
    result = {"request": "req", "driver": "gpu.example.com", "pool": "node-a", "device": f"dev-{number}", **more}
    reserved = [{"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}]
    claim = make.claim(f"claim-{number}", finalizers=["resource.kubernetes.io/delete-protection"])
    world.api.add(
        RESOURCE_CLAIMS,
        {**claim, "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}},
    )
    return pod


def taint_all(world: World, *taints: Any) -> None:
    def edit(slice_: Obj) -> None:
        for device in slice_["spec"]["devices"]:
            device["taints"] = list(taints)

    world.api.change(RESOURCE_SLICES, "node-a-gpu.example.com", edit)


def holding(seconds: int | None) -> Any:
    limit = {} if seconds is None else {"tolerationSeconds": seconds}
    return [{"key": "broken", "operator": "Exists", "effect": "NoExecute", **limit}]


def pods(world: World) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in world.api.of(PODS))


def announced(world: World) -> list[str]:
    """What was told of evictions, as often as it was told: the same words again are one event with a count."""
    told = [event for event in world.api.of(EVENTS) if event["reason"] == "DeviceTaintManagerEviction"]
    return [event["message"] for event in told for _ in range(event["count"])]


def calls(world: World) -> list[tuple[str, str | None]]:
    return [(call.verb, call.sub) for call in world.api.calls if call.plural == "pods"]


def metric(world: World, name: str) -> float | None:
    return world.registry.get_sample_value(name)


@asynccontextmanager
async def started(world: World) -> AsyncIterator[Control]:
    """Run until all has been looked at that can be looked at now; pods that are due later wait for their time."""
    world.start()
    async with world.running() as control:
        await caught_up(world)
        yield control


async def caught_up(world: World) -> None:
    while world.api.events:
        world.bring_events()
        await world.idle()
    await world.idle()


async def look_now(world: World) -> None:
    """What the timer of the pod would do."""
    world.control.queues.add([Key("eviction", "ns/pod")])
    await caught_up(world)


def graceful(world: World) -> None:
    """Deleted pods stay until their containers have ended."""
    for name in pods(world):
        world.api.change(PODS, f"ns/{name}", lambda pod: pod["metadata"].update(finalizers=["containers"]))


@pytest.mark.rule("TE-06")
async def test_a_pod_on_a_tainted_device_is_marked_and_deleted(world: World, make: type[Make]) -> None:
    furnish(world, make, TAINT)
    graceful(world)
    world.now = "2026-01-01T00:00:02Z"
    async with started(world):
        await becomes(lambda: announced(world))
    pod = world.api[PODS, "ns/pod"]
    assert pod["metadata"]["deletionTimestamp"]
    assert pod["status"]["conditions"] == [
        {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByDeviceTaintManager",
            "message": "Device Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": world.now,
        }
    ]
    assert calls(world) == [("get", None), ("patch", "status"), ("delete", None)]
    assert announced(world) == [MARKED]
    assert metric(world, DELETIONS) == 1
    assert metric(world, f"{DURATION}_sum") == 2
    assert metric(world, f"{DURATION}_bucket".replace("_bucket", "_count")) == 1


async def test_an_eviction_is_one_line_in_the_log(
    world: World, make: type[Make], caplog: pytest.LogCaptureFixture
) -> None:
    furnish(world, make, TAINT)
    with caplog.at_level(logging.INFO, "dra_operator.controllers.taints"):
        async with started(world):
            assert pods(world) == []
    (line,) = [record.getMessage() for record in caplog.records if record.name == "dra_operator.controllers.taints"]
    because = "device gpu.example.com/node-a/dev-0 has taint broken:NoExecute"
    assert line.startswith(f'pod evicted pod=ns/pod late=0.0 because="{because}" attempt=')


async def test_pods_of_other_schedulers_go_too_and_neighbours_on_other_devices_stay(
    world: World, make: type[Make]
) -> None:
    furnish(world, make, TAINT)
    world.api.change(PODS, "ns/pod", lambda pod: pod["spec"].update(schedulerName="default-scheduler"))
    add_user(world, make, 1)
    async with started(world):
        assert pods(world) == ["pod-1"]


async def test_many_pods_of_one_slice_go(world: World, make: type[Make]) -> None:
    furnish(world, make, pods=40)
    async with started(world):
        assert len(pods(world)) == 40
        taint_all(world, TAINT)
        await caught_up(world)
        assert pods(world) == []
    assert metric(world, DELETIONS) == 40
    deletions = [call.name for call in world.api.calls if call.plural == "pods" and call.verb == "delete"]
    assert len(deletions) == len(set(deletions)) == 40


@pytest.fixture(autouse=True)
def _looks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taints_controller, "MATES_LOOK_SECONDS", 0.02)


async def group_runs(
    world: World, make: type[Make], mode: str, release: Release = Release.V1_37, *, is_aware: bool = False
) -> None:
    """Three running pods of a PodGroup, of which the second one has a tainted device, and one of no group."""
    furnish(world, make, pods=4)
    gates = {"gang_scheduling": True, "workload_aware_preemption": is_aware}
    world.features = Features(release, taint_rules=True, generic_workload=True, **gates)
    spec = {"schedulingPolicy": {"gang": {"minCount": 3}}, "disruptionMode": {mode: {}}}
    world.api.add(POD_GROUPS, {"metadata": {"name": "group", "namespace": "ns", "uid": "group"}, "spec": spec})
    grouped = {"podGroupName": "group"}
    for number in range(3):
        world.api.change(PODS, f"ns/{name_of(number)}", lambda it: it["spec"].update(schedulingGroup=grouped))

    def taint_one(slice_: Obj) -> None:
        slice_["spec"]["devices"][1]["taints"] = [TAINT]

    world.api.change(RESOURCE_SLICES, "node-a-gpu.example.com", taint_one)


@pytest.mark.parametrize(("mode", "left"), [("single", ["pod", "pod-2", "pod-3"]), ("all", ["pod-3"])])
async def test_the_pods_of_a_group_go_together_if_it_says_so(
    world: World, make: type[Make], mode: str, left: list[str]
) -> None:
    await group_runs(world, make, mode)
    await world.settle()
    assert pods(world) == left
    deletions = [call.name for call in world.api.calls if (call.verb, call.plural) == ("delete", "pods")]
    assert deletions[-1] == "pod-1"


async def test_others_of_a_group_are_looked_at_only_until_one_is_due(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pod of a group of a thousand would look at all of them."""
    await group_runs(world, make, "all")
    cluster, now = world.start().cluster, datetime.fromisoformat(world.now)
    looked_at: list[str] = []
    own_eviction = evictions.own_eviction

    def looks(state: Cluster, pod: Pod, undated: datetime) -> object:
        looked_at.append(pod.metadata.name)
        return own_eviction(state, pod, undated)

    monkeypatch.setattr(evictions, "own_eviction", looks)
    for name, others in (("pod-1", []), ("pod-2", ["pod", "pod-1"]), ("pod", ["pod-1"])):
        looked_at.clear()
        pod = cluster.pods.get(f"ns/{name}")
        assert pod is not None
        found = evictions.eviction_of(cluster, pod, now, now)
        assert found is not None
        assert found.due <= now
        assert looked_at == [name, *others]


@pytest.mark.parametrize("is_aware", [True, False])
async def test_before_1_37_pods_of_a_group_go_together_only_with_the_gate_for_it(
    world: World, make: type[Make], is_aware: bool
) -> None:
    """WorkloadAwarePreemption, which GenericWorkload contains from 1.37 on."""
    await group_runs(world, make, "all", Release.V1_36, is_aware=is_aware)
    await world.settle()
    assert pods(world) == (["pod-3"] if is_aware else ["pod", "pod-2", "pod-3"])


async def test_a_pod_of_a_large_group_is_looked_at_again_when_the_others_may_have_gone(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand pods end in twenty seconds: until then each look at all of them would be in vain."""
    monkeypatch.setattr(taints_controller, "MATES_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(taints_controller, "SECONDS_FOR_A_MATE", 15.0)
    await group_runs(world, make, "all")
    world.api.before = lambda call: (
        ServerError(503, "ServiceUnavailable", "down") if call.verb == "delete" and call.name != "pod-1" else None
    )
    world.start()
    async with world.running():
        for _ in range(40):
            world.bring_events()
            await world.tick()
    reads = [call for call in world.api.calls if (call.verb, call.plural, call.name) == ("get", "pods", "pod-1")]
    assert not reads


async def test_however_large_a_group_is_its_pods_are_looked_at_once_a_minute(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the number of its pods the pause would be longer, and a minute is enough for all of them."""
    monkeypatch.setattr(taints_controller, "MATES_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(taints_controller, "SECONDS_FOR_A_MATE", 15.0)
    monkeypatch.setattr(taints_controller, "EVICTION_LOOK_SECONDS", 0.05)
    await group_runs(world, make, "all")
    world.api.before = lambda call: (
        ServerError(503, "ServiceUnavailable", "down") if call.verb == "delete" and call.name != "pod-1" else None
    )
    world.start()
    async with world.running():
        async with asyncio.timeout(20):
            while not any(
                (call.verb, call.plural, call.name) == ("delete", "pods", "pod-1") for call in world.api.calls
            ):
                world.bring_events()
                await world.tick()


async def test_pods_of_a_group_that_tolerate_their_own_taints_for_long_go_with_the_first_one(
    world: World, make: type[Make]
) -> None:
    await group_runs(world, make, "all")
    for name in ("pod", "pod-2"):
        world.api.change(RESOURCE_CLAIMS, f"ns/claim-{name[4:] or 0}", tolerate_for_years)

    def taint(*numbers: int) -> Callable[[Obj], None]:
        def edit(slice_: Obj) -> None:
            for number, device in enumerate(slice_["spec"]["devices"]):
                device["taints"] = [TAINT] if number in numbers else []

        return edit

    world.api.change(RESOURCE_SLICES, "node-a-gpu.example.com", taint(0, 2))
    async with started(world):
        assert len(pods(world)) == 4
        world.api.change(RESOURCE_SLICES, "node-a-gpu.example.com", taint(0, 1, 2))
        await caught_up(world)
        assert deletions(world)[0] != "pod-1"
    await world.settle()
    assert pods(world) == ["pod-3"]


def deletions(world: World) -> list[str]:
    return [call.name for call in world.api.calls if (call.verb, call.plural) == ("delete", "pods")]


def tolerate_for_years(claim: Obj) -> None:
    for result in claim["status"]["allocation"]["devices"]["results"]:
        result["tolerations"] = holding(100_000_000)


@pytest.mark.parametrize("writes", [1, 2, 3, 4, 5])
async def test_after_a_crash_the_rest_of_a_group_goes_as_well(world: World, make: type[Make], writes: int) -> None:
    await group_runs(world, make, "all")
    done = 0

    def before(_: Call) -> Exception | None:
        nonlocal done
        done += 1
        return ServerError(503, "ServiceUnavailable", "down") if done > writes else None

    world.api.before = before
    world.start()
    async with world.running():
        for _ in range(30):
            world.bring_events()
            await world.tick()
    world.api.before = lambda _: None
    await world.settle()
    assert pods(world) == ["pod-3"]


@pytest.mark.rule("TE-05")
async def test_with_seconds_tolerated_the_pod_goes_when_they_are_over(world: World, make: type[Make]) -> None:
    furnish(world, make, TAINT, tolerations=holding(300))
    async with started(world):
        world.now = "2026-01-01T00:04:59Z"
        await look_now(world)
        assert world.api.writes == []
        world.now = "2026-01-01T00:05:00Z"
        await look_now(world)
        assert pods(world) == []
    assert metric(world, f"{DURATION}_sum") == 0


async def test_the_time_comes_by_itself(world: World, make: type[Make]) -> None:
    furnish(world, make, TAINT, tolerations=holding(1))
    world.now = "2026-01-01T00:00:00.970+00:00"
    async with started(world):
        assert pods(world) == ["pod"]
        world.now = "2026-01-01T00:00:01Z"
        await becomes(lambda: pods(world) == [])


async def test_a_restart_computes_the_time_anew_from_the_taint(world: World, make: type[Make]) -> None:
    furnish(world, make, TAINT, tolerations=holding(300))
    async with started(world):
        assert pods(world) == ["pod"]
    world.now = "2026-01-01T00:05:00Z"
    async with started(world):
        assert pods(world) == []


async def test_a_taint_without_a_time_counts_from_the_moment_at_which_it_was_seen(
    world: World, make: type[Make]
) -> None:
    furnish(world, make, {"key": "broken", "effect": "NoExecute"}, tolerations=holding(60))
    async with started(world):
        for now, left in [("2026-01-01T00:00:59Z", ["pod"]), ("2026-01-01T00:01:00Z", [])]:
            world.now = now
            await look_now(world)
            assert pods(world) == left


async def test_a_pod_that_tolerates_the_taint_for_ever_runs_on(world: World, make: type[Make]) -> None:
    furnish(world, make, TAINT, tolerations=holding(None))
    async with started(world):
        pass
    assert world.api.calls == []


def untaint(world: World) -> None:
    taint_all(world)


def new_generation(world: World) -> None:
    slice_ = Make.slice("node-a", 1)
    slice_["metadata"]["name"] = "newer"
    slice_["spec"]["pool"]["generation"] = 2
    world.api.add(RESOURCE_SLICES, slice_)


def deallocate(world: World) -> None:
    world.api.change(RESOURCE_CLAIMS, "ns/claim-0", lambda claim: claim["status"].clear())


def unreserve(world: World) -> None:
    world.api.change(RESOURCE_CLAIMS, "ns/claim-0", lambda claim: claim["status"].update(reservedFor=[]))


def drop_claim(world: World) -> None:
    world.api.drop(RESOURCE_CLAIMS, "ns/claim-0")


def drop_slice(world: World) -> None:
    world.api.drop(RESOURCE_SLICES, "node-a-gpu.example.com")


@pytest.mark.rule("TE-05", "TE-07")
@pytest.mark.parametrize("change", [untaint, new_generation, deallocate, unreserve, drop_claim, drop_slice])
async def test_what_spares_a_pod_that_was_due_later_is_reported(
    world: World, make: type[Make], change: Callable[[World], None]
) -> None:
    """Whatever ends the reason to delete it (TE-07)."""
    world.controllers = OwnControllers(templates=False, release=False)
    furnish(world, make, TAINT, tolerations=holding(300))
    async with started(world):
        change(world)
        await caught_up(world)
        await becomes(lambda: announced(world) == [CANCELLED])
        world.now = "2026-01-01T01:00:00Z"
        await look_now(world)
    assert pods(world) == ["pod"]
    assert metric(world, DELETIONS) == 0


def end_pod(world: World) -> None:
    world.api.change(PODS, "ns/pod", lambda pod: pod["status"].update(phase="Succeeded"))


def delete_pod(world: World) -> None:
    stamp = {"deletionTimestamp": START, "finalizers": ["containers"]}
    world.api.change(PODS, "ns/pod", lambda pod: pod["metadata"].update(stamp))


def remove_pod(world: World) -> None:
    world.api.drop(PODS, "ns/pod")


@pytest.mark.rule("TE-04")
@pytest.mark.parametrize("change", [end_pod, delete_pod, remove_pod])
@pytest.mark.parametrize("heard", [True, False], ids=["the watch says so", "only the server says so"])
async def test_a_pod_that_ends_by_itself_is_left_alone_without_a_word(
    world: World, make: type[Make], change: Callable[[World], None], heard: bool
) -> None:
    world.controllers = OwnControllers(templates=False, release=False)
    furnish(world, make, TAINT, tolerations=holding(300))
    async with started(world):
        change(world)
        if not heard:
            world.api.events.clear()
        await caught_up(world)
        world.now = "2026-01-01T01:00:00Z"
        await look_now(world)
        writes = [call for call in world.api.writes if call.plural == "pods"]
        assert writes == []
        assert announced(world) == []
    assert metric(world, DELETIONS) == 0


@pytest.mark.rule("TE-06")
@pytest.mark.parametrize("moment", ["before it is read", "before it is marked", "before it is deleted"])
async def test_a_successor_of_the_same_name_is_safe(world: World, make: type[Make], moment: str) -> None:
    furnish(world, make, TAINT)
    verb = {"before it is read": "get", "before it is marked": "patch", "before it is deleted": "delete"}[moment]

    def replace(call: Call) -> None:
        if (call.plural, call.verb) == ("pods", verb) and world.api[PODS, "ns/pod"]["metadata"]["uid"] != "successor":
            world.api.drop(PODS, "ns/pod")
            pod = make.pod(claims=[make.use("claim-0")], node="node-a")
            world.api.add(PODS, {**pod, "metadata": {**pod["metadata"], "uid": "successor"}})

    world.api.before = replace
    world.start()
    async with world.running():
        await world.quiet()
    successor = world.api[PODS, "ns/pod"]
    assert successor["metadata"]["uid"] == "successor"
    assert not (successor.get("status") or {}).get("conditions")
    assert metric(world, DELETIONS) == 0
    assert announced(world) == ([] if moment == "before it is read" else [MARKED])


async def test_nothing_is_cancelled_for_the_successor_of_a_pod_that_was_due_later(
    world: World, make: type[Make]
) -> None:
    furnish(world, make, TAINT, tolerations=holding(300))
    async with started(world):
        world.api.drop(PODS, "ns/pod")
        world.api.add(PODS, make.pod(claims=[make.use("claim-0")], node="node-a"))
        await caught_up(world)
    assert announced(world) == []


async def test_an_evicted_pod_is_not_looked_at_again_before_the_watch_shows_it(world: World, make: type[Make]) -> None:
    furnish(world, make, TAINT)
    graceful(world)
    async with started(world) as control:
        pod = control.cluster.pods.get("ns/pod")
        assert pod is not None
        assert pod.metadata.deletion_timestamp
        control.cluster.pods.remove("ns/pod")
        control.cluster.pods.deleted = UidMemory(1)
        late = make.pod(claims=[make.use("claim-0")], node="node-a")
        late["metadata"] |= {"uid": pod.metadata.uid, "resourceVersion": "1"}
        control.apply(Source.WATCH, convert(Pod, late))
        world.api.events.clear()
        world.api.calls.clear()
        await look_now(world)
        assert calls(world) == []


@pytest.mark.rule("TE-06")
@pytest.mark.parametrize("verb", ["get", "patch", "delete"])
@pytest.mark.parametrize("error", sorted(ERRORS))
@pytest.mark.parametrize("lost", [False, True], ids=["refused", "answer lost"])
async def test_a_request_that_fails_is_made_again_and_the_pod_goes_once(
    world: World, make: type[Make], verb: str, error: str, lost: bool
) -> None:
    furnish(world, make, TAINT)
    graceful(world)
    failures = iter(range(2))

    def fail(call: Call) -> Exception | None:
        hit = (call.plural, call.verb) == ("pods", verb) and call.sub != "binding"
        return ERRORS[error]() if hit and next(failures, None) is not None else None

    setattr(world.api, "after" if lost else "before", fail)
    world.start()
    async with world.running():
        await becomes(lambda: "deletionTimestamp" in world.api[PODS, "ns/pod"]["metadata"])
        await world.quiet()
    assert len(world.api[PODS, "ns/pod"]["status"]["conditions"]) == 1
    counted = 0 if lost and verb == "delete" else 1  # whose deletion it was cannot be known
    assert metric(world, DELETIONS) == counted
    assert announced(world) == [MARKED]


async def test_a_missing_permission_is_tried_again_and_reported_in_the_log(
    world: World, make: type[Make], caplog: pytest.LogCaptureFixture
) -> None:
    furnish(world, make, TAINT)
    message = 'pods "pod" is forbidden: cannot delete resource "pods"'
    denied = ApiError(403, "Forbidden", message)
    world.api.before = lambda call: denied if (call.plural, call.verb) == ("pods", "delete") else None
    world.start()
    async with world.running():
        await becomes(lambda: sum(call.verb == "delete" for call in world.api.calls) > 2)
        world.api.before = lambda call: None
        await becomes(lambda: pods(world) == [])
    (first, *_) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "controller=eviction object=ns/pod" in first
    assert "cannot delete resource" in first
    assert announced(world) == [MARKED]


@pytest.mark.parametrize("after", [1, 2, 3], ids=["reading", "marking", "deleting"])
async def test_a_crash_after_any_request_is_completed_by_the_next_process(
    world: World, make: type[Make], after: int
) -> None:
    furnish(world, make, TAINT)
    graceful(world)
    crashed = asyncio.Event()

    async def way() -> None:
        if len(calls(world)) >= after:
            crashed.set()
            await asyncio.Event().wait()

    world.api.way = way
    world.start()
    async with world.running():
        await crashed.wait()
    world.api.way = at_once
    world.api.calls.clear()
    world.start()
    async with world.running():
        await world.quiet()
    assert world.api[PODS, "ns/pod"]["metadata"]["deletionTimestamp"]
    assert sum(verb == "delete" for verb, _ in calls(world)) == (0 if after == 3 else 1)


async def test_a_condition_that_another_controller_set_is_replaced_and_keeps_its_time(
    world: World, make: type[Make]
) -> None:
    furnish(world, make, TAINT)
    graceful(world)
    theirs = {"type": "DisruptionTarget", "status": "True", "reason": "Preemption", "lastTransitionTime": "earlier"}
    world.api.change(PODS, "ns/pod", lambda pod: pod.update(status={"conditions": [theirs]}))
    async with started(world):
        pass
    (condition,) = world.api[PODS, "ns/pod"]["status"]["conditions"]
    assert (condition["reason"], condition["lastTransitionTime"]) == ("DeletionByDeviceTaintManager", "earlier")


async def test_a_taint_that_goes_while_the_pod_is_read_spares_it(world: World, make: type[Make]) -> None:
    furnish(world, make, TAINT)

    def change(call: Call) -> None:
        if (call.plural, call.verb) == ("pods", "get"):
            taint_all(world)
            world.bring_events()

    world.api.after = change
    async with started(world):
        await becomes(lambda: announced(world) == [CANCELLED])
    assert pods(world) == ["pod"]


async def test_events_that_come_twice_or_late_change_nothing(world: World, make: type[Make]) -> None:
    furnish(world, make)
    async with started(world):
        taint_all(world, TAINT)
        graceful(world)
        late = [*world.api.events]
        await caught_up(world)
        for _ in range(2):
            world.api.events.extend(late)
            await caught_up(world)
        await becomes(lambda: announced(world) == [MARKED])
    assert metric(world, DELETIONS) == 1


async def test_eviction_is_left_to_another_controller_until_it_becomes_ours(world: World, make: type[Make]) -> None:
    furnish(world, make, TAINT)
    world.api.add(DEVICE_TAINT_RULES, rule())
    world.controllers = OwnControllers(eviction=False)
    async with started(world) as control:
        assert world.api.writes == []
        world.controllers.eviction = True
        await control.look_at_everything()
        await caught_up(world)
        assert pods(world) == []
        assert condition(world)["reason"] == "PodsPendingEviction"


async def test_with_the_gate_off_nothing_is_evicted(make: type[Make]) -> None:
    world = World(Features(device_taints=False, taint_rules=True))
    furnish(world, make, TAINT)
    world.api.add(DEVICE_TAINT_RULES, rule())
    await world.settle()
    assert pods(world) == ["pod"]
    assert world.api.writes == []


# --- DeviceTaintRules ---


def rule(effect: str = "NoExecute", **spec: Any) -> Obj:
    taint = {"key": "maintenance", "effect": effect, "timeAdded": START}
    selector = {"driver": "gpu.example.com"}
    return {"metadata": {"name": "rule", "generation": 1}, "spec": {"taint": taint, "deviceSelector": selector, **spec}}


def condition(world: World) -> Obj:
    (only,) = world.api[DEVICE_TAINT_RULES, "rule"]["status"]["conditions"]
    found: Obj = only
    return found


async def report_now(world: World) -> None:
    """What the timer of the rule would do."""
    world.control.queues.add([Key("taint-rules", "rule")])
    await caught_up(world)


async def test_a_rule_says_how_many_pods_it_evicts_and_later_that_it_is_done(world: World, make: type[Make]) -> None:
    furnish(world, make, pods=3)
    async with started(world):
        world.api.add(DEVICE_TAINT_RULES, rule())
        await caught_up(world)
        assert pods(world) == []
        first = condition(world)
        assert (first["status"], first["reason"]) == ("True", "PodsPendingEviction")
        assert first["message"] == "3 pods need to be evicted in 1 namespace."
        await report_now(world)
        assert condition(world) == first, "not twice in ten seconds"
        world.now = "2026-01-01T00:00:10Z"
        await report_now(world)
        assert condition(world) == {
            "type": "EvictionInProgress",
            "status": "False",
            "reason": "Completed",
            "message": "3 pods evicted since starting the controller.",
            "observedGeneration": 1,
            "lastTransitionTime": world.now,
        }


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [(None, "Completed"), (60, "NotStarted")],
    ids=["pods were evicted", "the pod went by itself"],
)
async def test_a_rule_tells_the_end_by_itself(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch, seconds: int | None, reason: str
) -> None:
    monkeypatch.setattr(taints_controller, "REPORT_SECONDS", 0.05)
    limited = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
    furnish(world, make, tolerations=[limited] if seconds else None)
    world.api.add(DEVICE_TAINT_RULES, rule())
    async with started(world) as control:
        assert condition(world)["reason"] == "PodsPendingEviction"
        world.now = "2026-01-01T00:00:10Z"
        if seconds:
            await becomes(lambda: control.queues.of("taint-rules").is_quiet)
            remove_pod(world)
            await caught_up(world)
        await becomes(lambda: condition(world)["reason"] == reason)


async def test_a_rule_reports_that_a_pod_came_to_its_devices(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taints_controller, "REPORT_SECONDS", 0.05)
    world.api.add(DEVICE_TAINT_RULES, rule())
    async with started(world):
        assert condition(world)["reason"] == "NotStarted"
        world.now = "2026-01-01T00:00:10Z"
        furnish(world, make, tolerations=[{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}])
        await caught_up(world)
        await becomes(lambda: condition(world)["reason"] == "PodsPendingEviction")


@pytest.mark.rule("K37-TAINT-04")
async def test_a_rule_that_only_looks_counts_and_deletes_nothing(world: World, make: type[Make]) -> None:
    furnish(world, make, pods=2)
    world.api.add(DEVICE_TAINT_RULES, rule(effect="None"))
    async with started(world):
        assert condition(world)["reason"] == "NoEffect"
        assert condition(world)["message"].startswith(
            "2 published devices selected. 2 allocated devices selected. 2 pods would be evicted in 1 namespace if"
        )
        add_user(world, make, 2)
        for _ in range(3):
            world.bring_events()
            await world.tick()
        assert "2 pods would be evicted" in condition(world)["message"], "told once for each spec"
    assert pods(world) == ["pod", "pod-1", "pod-2"]


async def test_a_rule_that_only_looks_counts_devices_of_the_newest_generation(world: World, make: type[Make]) -> None:
    furnish(world, make, pods=2)
    new_generation(world)
    world.api.add(DEVICE_TAINT_RULES, rule(effect="None"))
    async with started(world):
        assert condition(world)["message"].startswith("1 published device selected. 2 allocated devices selected. ")


async def test_tolerations_count_in_a_dry_run(world: World, make: type[Make]) -> None:
    tolerations = [{"key": "maintenance", "operator": "Exists", "effect": "NoExecute"}]
    furnish(world, make, tolerations=tolerations)
    world.api.add(DEVICE_TAINT_RULES, rule(effect="None"))
    async with started(world):
        assert " 0 pods would be evicted" in condition(world)["message"]


async def test_a_rule_without_a_selector_evicts_no_pod_and_says_so(world: World, make: type[Make]) -> None:
    """No device is its own, so none is tainted (PRJ-010)."""
    furnish(world, make)
    world.api.add(DEVICE_TAINT_RULES, rule(deviceSelector=None))
    async with started(world):
        assert condition(world)["reason"] == "NotStarted"
    assert pods(world) == ["pod"]


async def test_a_changed_effect_is_reported_at_once(world: World, make: type[Make]) -> None:
    furnish(world, make)
    world.api.add(DEVICE_TAINT_RULES, rule(effect="None"))
    async with started(world):
        assert condition(world)["reason"] == "NoEffect"

        def act(obj: Obj) -> None:
            obj["spec"]["taint"]["effect"] = "NoExecute"
            obj["metadata"]["generation"] = 2

        world.api.change(DEVICE_TAINT_RULES, "rule", act)
        await caught_up(world)
        assert (condition(world)["reason"], condition(world)["observedGeneration"]) == ("PodsPendingEviction", 2)
        assert pods(world) == []


def drop_rule(world: World) -> None:
    world.api.drop(DEVICE_TAINT_RULES, "rule")


def select_another_driver(world: World) -> None:
    other = {"driver": "other.example.com"}
    world.api.change(DEVICE_TAINT_RULES, "rule", lambda obj: obj["spec"].update(deviceSelector=other))


def lower_the_effect(world: World) -> None:
    world.api.change(DEVICE_TAINT_RULES, "rule", lambda obj: obj["spec"]["taint"].update(effect="NoSchedule"))


@pytest.mark.parametrize("change", [drop_rule, select_another_driver, lower_the_effect])
async def test_a_rule_that_goes_or_changes_spares_the_pods_that_were_due_later(
    world: World, make: type[Make], change: Callable[[World], None]
) -> None:
    tolerations = [{"key": "maintenance", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}]
    furnish(world, make, tolerations=tolerations)
    world.api.add(DEVICE_TAINT_RULES, rule())
    async with started(world):
        change(world)
        await caught_up(world)
        await becomes(lambda: announced(world) == [CANCELLED])
    assert pods(world) == ["pod"]


async def test_a_recreated_rule_starts_to_count_anew(world: World, make: type[Make]) -> None:
    furnish(world, make)
    world.api.add(DEVICE_TAINT_RULES, rule())
    async with started(world):
        assert pods(world) == []
        drop_rule(world)
        await caught_up(world)
        world.api.add(DEVICE_TAINT_RULES, rule())
        await caught_up(world)
        assert (condition(world)["reason"], condition(world)["message"]) == ("NotStarted", "")


@pytest.mark.parametrize("lost", [False, True], ids=["refused", "answer lost"])
async def test_a_status_that_could_not_be_written_is_written_again(world: World, make: type[Make], lost: bool) -> None:
    world.api.add(DEVICE_TAINT_RULES, rule())
    failures = iter(range(3))

    def fail(call: Call) -> Exception | None:
        hit = call.plural == "devicetaintrules" and next(failures, None) is not None
        return ServerError(500, "InternalError", "etcd is on fire") if hit else None

    setattr(world.api, "after" if lost else "before", fail)
    world.start()
    async with world.running():
        await becomes(lambda: world.control.queues.is_quiet)
        assert next(failures, None) is None
        assert condition(world)["reason"] == "NotStarted"


async def test_our_own_status_wakes_nothing(world: World, make: type[Make]) -> None:
    world.api.add(DEVICE_TAINT_RULES, rule())
    async with started(world):
        assert condition(world)
    assert [call for call in world.api.calls if call.plural != EVENTS.plural] == [
        Call("patch", "devicetaintrules", "status", "rule")
    ]
