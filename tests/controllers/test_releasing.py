"""Devices are given back by two writes that no other writer makes fail, or with their claim."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from controllers_world import World
from dra_api.codec import convert
from dra_api.resource import ResourceClaim
from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Forbidden
from dra_operator.allocator import Features
from dra_operator.cache import check
from dra_operator.controllers import context
from dra_operator.controllers.claims import delayed_deletion as delayed_deletion
from dra_operator.controllers.queue import WorkQueue
from fake_api import ERRORS, Call
from history_kit.clock import VirtualLoop
from objects import Make, Obj, user


@pytest.fixture
async def placed(world: World, make: type[Make]) -> Obj:
    """The claim of a pod that has its node; what the server did until then is forgotten."""
    world.furnish()
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    await world.settle()
    world.api.calls.clear()
    (claim,) = world.api.of(RESOURCE_CLAIMS)
    return claim


@pytest.fixture
async def rival(placed: Obj, world: World, make: type[Make]) -> None:
    """Another scheduler gives the same devices away, so that they are released before their claim is deleted."""
    add_rival(world, make)


def add_rival(world: World, make: type[Make]) -> None:
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod("foreign", claims=[make.use("claim")], schedulerName="default-scheduler"))


def mark_deleted(obj: Obj) -> None:
    obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def without_echoes(world: World) -> None:
    """Keep back the events of claims that the view knows by answers, as the reader of watches does."""

    def is_echo(event: str, obj: Obj) -> bool:
        meta = obj["metadata"]
        key, uid, version = f"{meta['namespace']}/{meta['name']}", meta["uid"], meta["resourceVersion"]
        return event != "DELETED" and world.cluster.claims.knows(key, uid, version)

    world.api.events = [
        (event, kind, obj)
        for event, kind, obj in world.api.events
        if kind != RESOURCE_CLAIMS or not is_echo(event, obj)
    ]


def claims_left(world: World) -> list[str]:
    return [claim["metadata"]["name"] for claim in world.api.of(RESOURCE_CLAIMS)]


def calls(world: World) -> list[tuple[str, str, str | None]]:
    return [(call.verb, call.plural, call.sub) for call in world.api.calls if call.plural != "events"]


@pytest.mark.usefixtures("rival")
async def test_the_garbage_collector_may_come_in_between(world: World, placed: Obj) -> None:
    """It marks the claim while the view still has the version before."""
    marks = iter([mark_deleted])

    def meanwhile(call: Call) -> None:
        if call.verb == "patch" and (mark := next(marks, None)):
            world.api.change(RESOURCE_CLAIMS, f"ns/{placed['metadata']['name']}", mark)

    world.api.before = meanwhile
    world.start()
    async with world.running():
        world.api.drop(PODS, "ns/pod")
        await world.quiet()
    assert world.api.conflicts == 0
    assert calls(world) == [("patch", "resourceclaims", "status"), ("patch", "resourceclaims", None)]
    assert claims_left(world) == ["claim"]


async def test_an_orphaned_claim_gives_its_devices_back_and_stays(world: World, placed: Obj) -> None:
    """After ``kubectl delete pod --cascade=orphan`` it has no owner, which is no violation of the invariants either."""
    key = f"ns/{placed['metadata']['name']}"
    world.start()
    async with world.running():
        world.api.change(PODS, "ns/pod", mark_deleted)
        world.api.change(RESOURCE_CLAIMS, key, lambda claim: claim["metadata"].pop("ownerReferences"))
        await world.quiet()
        check(world.cluster)
        world.api.drop(PODS, "ns/pod")
        await world.quiet()
        check(world.cluster)
    (claim,) = world.api.of(RESOURCE_CLAIMS)
    assert not claim["status"].get("allocation")
    assert not claim["status"].get("reservedFor")
    assert not claim["metadata"].get("finalizers")


@pytest.mark.usefixtures("rival")
async def test_a_claim_ends_although_the_watch_showed_it_with_its_consumer_last(world: World, placed: Obj) -> None:
    """The garbage collector marks it while its release is under way, and the write of the finalizer fails."""
    lost = [ERRORS["no answer"]()]

    def meanwhile(call: Call) -> Exception | None:
        if call[:3] == ("patch", "resourceclaims", "status"):
            world.api.change(RESOURCE_CLAIMS, f"ns/{placed['metadata']['name']}", mark_deleted)
            world.bring_events()
        return lost.pop() if lost and call[:3] == ("patch", "resourceclaims", None) else None

    world.api.before = meanwhile
    world.others.append(lambda _: without_echoes(world))
    world.start()
    async with world.running():
        world.api.drop(PODS, "ns/pod")
        await world.quiet()
    assert lost == []
    assert claims_left(world) == ["claim"]


@pytest.mark.usefixtures("rival")
async def test_a_claim_that_went_with_its_finalizer_is_not_asked_for_again(world: World, placed: Obj) -> None:
    """Real servers answer with the resourceVersion that it had before, and the event about the mark may come late."""
    key = f"ns/{placed['metadata']['name']}"
    world.start()
    async with world.running():
        world.api.drop(PODS, "ns/pod")
        world.api.change(RESOURCE_CLAIMS, key, mark_deleted)
        late = [event for event in world.api.events if event[1] == RESOURCE_CLAIMS]
        world.api.events = [event for event in world.api.events if event[1] == PODS]
        world.bring_events()
        await world.idle()
        assert world.cluster.claims.get(key) is None
        world.api.events = late + world.api.events
        await world.quiet()
    assert calls(world) == [("patch", "resourceclaims", "status"), ("patch", "resourceclaims", None)]


async def test_a_pod_that_waits_with_a_shared_claim_gets_it_without_a_conflict(world: World, make: type[Make]) -> None:
    """The finalizer stays on the claim: its removal would come between the pod's decision and its write."""
    world.furnish()
    world.api.add(RESOURCE_CLAIMS, make.claim("shared"))
    containers = [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]
    world.api.add(PODS, make.pod("first", claims=[make.use("shared")], containers=containers))
    world.start()
    async with world.running():
        await world.quiet()
        world.api.add(PODS, make.pod("second", claims=[make.use("shared")], containers=containers))
        await world.quiet()
        world.api.calls.clear()
        world.api.drop(PODS, "ns/first")
        await world.quiet()
        made = [call for call in calls(world) if call[0] != "get"]
        assert made == [
            ("patch", "resourceclaims", "status"),
            ("update", "resourceclaims", "status"),
            ("create", "pods", "binding"),
        ]
        assert [entry["name"] for entry in world.api[RESOURCE_CLAIMS, "ns/shared"]["status"]["reservedFor"]] == [
            "second"
        ]
        world.api.drop(PODS, "ns/second")
        await world.quiet()
        assert not world.api[RESOURCE_CLAIMS, "ns/shared"]["metadata"].get("finalizers")


async def test_a_shared_claim_whose_last_pod_never_ran_can_be_deleted(world: World, make: type[Make]) -> None:
    world.furnish()
    world.api.add(RESOURCE_CLAIMS, make.claim("shared"))
    world.api.add(PODS, make.pod("first", claims=[make.use("shared")]))
    world.start()
    async with world.running():
        await world.quiet()
        world.api.add(PODS, make.pod("second", claims=[make.use("shared")], nodeSelector={"none": "such"}))
        await world.quiet()
        world.api.drop(PODS, "ns/first")
        await world.quiet()
        world.api.drop(PODS, "ns/second")
        await world.quiet()
        world.api.change(RESOURCE_CLAIMS, "ns/shared", mark_deleted)
        await world.quiet()
        assert world.api.of(RESOURCE_CLAIMS) == []


async def test_a_consumer_that_the_view_does_not_have_yet_keeps_its_devices(world: World, placed: Obj) -> None:
    key = f"ns/{placed['metadata']['name']}"
    other = user("other")
    world.start()
    async with world.running():
        world.api.drop(PODS, "ns/pod")
        world.bring_events()
        world.api.add(PODS, {"metadata": {"name": "other", "namespace": "ns", "uid": "uid-other"}, "spec": {}})
        world.api.change(RESOURCE_CLAIMS, key, lambda claim: claim["status"]["reservedFor"].append(other))
        await world.quiet()
    status = world.api[RESOURCE_CLAIMS, key]["status"]
    assert status["reservedFor"] == [other]
    assert status["allocation"]


async def test_fields_of_a_newer_api_do_not_keep_a_claim(world: World, placed: Obj) -> None:
    """The status is not empty then, which the patch asks for; it is read, and rewritten without the finalizer."""
    key = f"ns/{placed['metadata']['name']}"
    world.api.change(RESOURCE_CLAIMS, key, lambda claim: claim["status"].update(fieldOfTheFuture=1))
    world.api.change(RESOURCE_CLAIMS, key, mark_deleted)
    world.api.drop(PODS, "ns/pod")
    await world.settle()
    assert world.api.of(RESOURCE_CLAIMS) == []


@pytest.mark.parametrize("error", ["no answer", "server error", "conflict"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_release_that_fails_is_repeated(error: str, when: str, world: World, placed: Obj) -> None:
    left = [None, "status"]

    def fail(call: Call) -> Exception | None:
        if call.verb == "patch" and call.plural == "resourceclaims" and call.sub in left:
            left.remove(call.sub)
            return ERRORS[error]()
        return None

    setattr(world.api, when, fail)
    world.api.change(RESOURCE_CLAIMS, f"ns/{placed['metadata']['name']}", mark_deleted)
    world.api.drop(PODS, "ns/pod")
    await world.settle()
    assert left == []
    assert world.api.of(RESOURCE_CLAIMS) == []


@asynccontextmanager
async def ample(world: World, make: type[Make], devices: int = 2) -> AsyncIterator[str]:
    """A running operator that has placed a pod, while there are devices left; the key of the pod's claim."""
    world.furnish(devices=devices)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.start()
    async with world.running():
        world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
        await world.quiet()
        (claim,) = world.api.of(RESOURCE_CLAIMS)
        world.api.calls.clear()
        yield f"ns/{claim['metadata']['name']}"


@pytest.mark.rule("CC-05")
async def test_where_devices_are_ample_a_claim_ends_by_one_write_after_the_garbage_collectors(
    world: World, make: type[Make]
) -> None:
    async with ample(world, make) as claim:
        world.api.drop(PODS, "ns/pod")
        world.bring_events()
        await world.idle()
        assert calls(world) == []
        world.api.change(RESOURCE_CLAIMS, claim, mark_deleted)
        await world.quiet()
        assert calls(world) == [("update", "resourceclaims", None)]
        assert world.api.of(RESOURCE_CLAIMS) == []
        assert len(world.cluster.allocated_devices) == 0


async def test_a_claim_that_the_garbage_collector_does_not_delete_in_time_is_deleted(
    world: World, make: type[Make]
) -> None:
    async with ample(world, make):
        world.api.drop(PODS, "ns/pod")
        await world.quiet()
        assert calls(world) == [("delete", "resourceclaims", None), ("update", "resourceclaims", None)]
        assert world.api.of(RESOURCE_CLAIMS) == []
        assert len(world.cluster.allocated_devices) == 0


async def test_a_claim_with_another_owner_outlives_its_pod(world: World, make: type[Make]) -> None:
    """Its devices are given back; whether it goes is the garbage collector's decision, which asks for all owners."""
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "kept", "uid": "uid-kept"}
    async with ample(world, make) as claim:
        world.api.change(RESOURCE_CLAIMS, claim, lambda it: it["metadata"]["ownerReferences"].append(other))
        world.bring_events()
        world.api.drop(PODS, "ns/pod")
        await world.quiet()
        (left,) = world.api.of(RESOURCE_CLAIMS)
        assert left["metadata"].get("deletionTimestamp") is None
        assert len(world.cluster.allocated_devices) == 0


async def test_a_claim_that_the_garbage_collector_deletes_at_the_same_moment_ends_by_one_more_write(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the collector gets more time for the next one."""
    monkeypatch.setattr(delayed_deletion, "COLLECTOR_SECONDS", 0.001)
    early: list[None] = []
    monkeypatch.setattr(delayed_deletion.DelayedDeletion, "was_too_early", lambda *_: early.append(None))
    async with ample(world, make) as claim:

        def meanwhile(call: Call) -> None:
            if call.verb == "delete":
                world.api.change(RESOURCE_CLAIMS, claim, mark_deleted)

        world.api.before = meanwhile
        world.api.drop(PODS, "ns/pod")
        await world.quiet()
        assert [call[0] for call in calls(world)] == ["delete", "get", "update"]
        assert world.api.of(RESOURCE_CLAIMS) == []
        assert len(world.cluster.allocated_devices) == 0
        assert len(early) == 1


def claims_named(names: str, namespace: str = "ns") -> list[ResourceClaim]:
    metadata = ({"name": name, "namespace": namespace, "uid": f"{namespace}/{name}"} for name in names)
    return [convert(ResourceClaim, {"metadata": each}) for each in metadata]


class Deletions:
    """Delayed deletions on a clock of their own."""

    def __init__(self) -> None:
        self.now, self.queue = 0.0, WorkQueue()
        self.late = delayed_deletion.DelayedDeletion(self.queue, lambda: self.now)
        self.late.abundance.placed()

    def seconds(self, claim: ResourceClaim) -> float:
        """How long the collector has for the claim."""
        began = self.now
        while self.late.has_time(claim):
            self.now += 0.01
        return self.now - began


@pytest.fixture
async def deletions() -> AsyncIterator[Deletions]:
    made = Deletions()
    yield made
    made.queue.close()


async def test_the_garbage_collector_gets_more_time_while_deletions_come_too_early(deletions: Deletions) -> None:
    claims = claims_named("abc")
    assert deletions.seconds(claims[0]) == pytest.approx(0.1, abs=0.02)
    for _ in range(9):
        deletions.late.was_too_early(claims[0])
    assert deletions.seconds(claims[1]) == pytest.approx(0.8, abs=0.02)  # and no more
    for _ in range(60):
        deletions.late.was_needed(claims[1])
    assert deletions.seconds(claims[2]) == pytest.approx(0.1, abs=0.02)


async def test_where_devices_are_scarce_no_pod_waits_for_more_of_the_garbage_collector_than_its_moment(
    deletions: Deletions,
) -> None:
    claims = claims_named("abc")
    for _ in range(9):
        deletions.late.was_too_early(claims[0])
    deletions.late.scarce()
    assert deletions.seconds(claims[0]) == pytest.approx(0.1, abs=0.02)
    deletions.now += context.ABUNDANT_AFTER_SECONDS
    assert deletions.seconds(claims[1]) == pytest.approx(0.8, abs=0.02)


async def test_a_tenant_whose_deletions_come_between_lengthens_no_moment_of_others(
    deletions: Deletions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed_deletion, "KEPT_NAMESPACES", 2)
    own, others = claims_named("ab", "tenant"), claims_named("a", "others")
    for _ in range(9):
        deletions.late.was_too_early(own[0])
    assert deletions.seconds(own[0]) == pytest.approx(0.8, abs=0.02)
    assert deletions.seconds(others[0]) == pytest.approx(0.1, abs=0.02)
    for namespace in ("third", "fourth"):
        deletions.late.was_too_early(*claims_named("a", namespace))
    assert deletions.seconds(own[1]) == pytest.approx(0.1, abs=0.02), (
        "the one without news for the longest time is forgotten first"
    )


async def test_a_garbage_collector_that_is_late_gets_no_time_for_a_while_where_devices_are_scarce(
    deletions: Deletions,
) -> None:
    late = deletions.late
    late.scarce()
    *claims, last = claims_named("abcdefghijklmnopqrstuvwxyz")
    waited, left_out = claims[:5], claims[5:]
    for number, claim in enumerate(waited):
        assert late.has_time(claim)
        deletions.now += 0.2
        assert not late.has_time(claim)
        if number == 1:
            late.was_collected(claim)  # so that the two before are not in a row with those after it
        else:
            late.was_needed(claim)
    assert len(left_out) == delayed_deletion.LEFT_OUT_CLAIMS
    assert not any(late.has_time(claim) for claim in left_out)
    for claim in left_out:
        late.was_needed(claim)  # the collector had no time for them, so that this says nothing about it
    assert late.has_time(last)


@pytest.mark.parametrize("what", ["was_collected", "was_too_early"])
async def test_a_tenant_whose_claims_the_garbage_collector_deletes_costs_others_no_time(
    deletions: Deletions, what: str
) -> None:
    """Its claims say that the collector is not late, over and over."""
    late = deletions.late
    late.scarce()
    *waited, left_out, last = claims_named("abcde", "others")
    [own] = claims_named("a", "tenant")
    for claim in waited:
        assert late.has_time(claim)
        deletions.now += 0.2
        late.was_needed(claim)
        getattr(late, what)(own)
    assert not late.has_time(left_out)
    getattr(late, what)(own)
    assert not late.has_time(last)
    assert late.has_time(own), "of its own claims nothing is known"


async def test_a_claim_that_goes_with_its_deletion_leaves_the_view(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers answer with a Status then, or with the object as it was."""
    monkeypatch.setattr(delayed_deletion, "COLLECTOR_SECONDS", 0.0)
    async with ample(world, make) as claim:

        def meanwhile(call: Call) -> None:
            if call.verb == "delete":
                world.api[RESOURCE_CLAIMS, claim]["metadata"]["finalizers"] = []  # under the version that the view has

        world.api.before = meanwhile
        world.api.drop(PODS, "ns/pod")
        await world.quiet()
        assert calls(world) == [("delete", "resourceclaims", None)]
        assert world.cluster.claims.get(claim) is None
        assert len(world.cluster.allocated_devices) == 0


async def test_a_claim_that_changed_unseen_is_released_and_not_deleted(world: World, make: type[Make]) -> None:
    """After ``kubectl delete pod --cascade=orphan`` it has no owner any more, which a late watch does not show yet."""
    async with ample(world, make) as claim:
        world.api.change(RESOURCE_CLAIMS, claim, lambda obj: obj["metadata"].update(labels={"a": "b"}))
        world.api.drop(PODS, "ns/pod")
        late = [event for event in world.api.events if event[1] == RESOURCE_CLAIMS]
        world.api.events = [event for event in world.api.events if event[1] == PODS]
        await world.quiet()
        world.api.events = late + world.api.events
        await world.quiet()
        assert not world.api[RESOURCE_CLAIMS, claim]["metadata"].get("deletionTimestamp")
        assert "allocation" not in world.api[RESOURCE_CLAIMS, claim]["status"]


async def test_a_pod_that_lacks_devices_has_all_ended_that_wait_for_the_garbage_collector(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed_deletion, "COLLECTOR_SECONDS", 1000.0)
    async with ample(world, make, devices=1):
        world.api.drop(PODS, "ns/pod")
        world.bring_events()
        world.api.add(PODS, make.pod("next", claims=[make.FROM_TEMPLATE]))
        await world.quiet()
        assert world.api[PODS, "ns/next"]["spec"]["nodeName"] == "node-0"
        assert ("patch", "pods", "status") not in calls(world)  # it was not told that there are no devices


async def test_a_pod_that_lacks_devices_has_no_refused_deletion_tried_again(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be one of thousands that a policy protects; each has a back-off of its own."""
    monkeypatch.setattr(delayed_deletion, "COLLECTOR_SECONDS", 0.0)
    added: list[str] = []
    async with ample(world, make, devices=1):
        late = world.control.releaser._delayed_deletion
        (claim,) = world.cluster.claims
        assert not late.has_time(claim)
        monkeypatch.setattr(late._queue, "add", lambda *keys: added.extend(key.object for key in keys))
        late.scarce()
    assert added == []


async def test_a_pod_that_asks_for_what_no_device_is_takes_no_time_from_the_garbage_collector(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such pods of one tenant would make the claims of all others end by more requests."""
    monkeypatch.setattr(delayed_deletion, "COLLECTOR_SECONDS", 1000.0)
    async with ample(world, make) as claim:
        world.api.drop(PODS, "ns/pod")
        world.bring_events()
        world.api.add(RESOURCE_CLAIMS, {**make.claim("vain"), "spec": make.claim_spec(1, "gpu", "none")})
        world.api.add(PODS, make.pod("vain", claims=[make.use("vain")]))
        await world.busy()
        assert claim in world.cluster.claims


async def test_a_pod_waits_in_silence_for_devices_of_a_pod_that_is_gone(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where devices were lacking a moment ago the collector has its moment as well, since the next pod waits for it."""
    async with ample(world, make, devices=1):
        world.api.add(PODS, make.pod("next", claims=[make.FROM_TEMPLATE]))
        await world.quiet()
        (told,) = [it for it in world.api[PODS, "ns/next"]["status"]["conditions"] if it["type"] == "PodScheduled"]
        assert told["reason"] == "Unschedulable"
        monkeypatch.setattr(delayed_deletion, "COLLECTOR_SECONDS", 0.3)
        world.api.drop(PODS, "ns/next")
        world.api.drop(PODS, "ns/pod")
        world.bring_events()
        world.api.calls.clear()
        world.api.add(PODS, make.pod("third", claims=[make.FROM_TEMPLATE]))
        await world.quiet()
        assert world.api[PODS, "ns/third"]["spec"]["nodeName"] == "node-0"
        assert not any(call[0] == "patch" for call in calls(world))  # neither a condition nor an early release


async def test_a_pod_is_told_in_the_end_although_a_claim_of_another_pod_never_ends(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed_deletion, "COLLECTOR_SECONDS", 1000.0)
    monkeypatch.setattr(delayed_deletion.DelayedDeletion, "scarce", lambda _: None)
    async with ample(world, make, devices=1):
        world.api.drop(PODS, "ns/pod")
        world.bring_events()
        world.api.add(PODS, make.pod("next", claims=[make.FROM_TEMPLATE]))
        await world.busy()
        (told,) = [it for it in world.api[PODS, "ns/next"]["status"]["conditions"] if it["type"] == "PodScheduled"]
        assert told["reason"] == "Unschedulable"


async def test_a_claim_that_is_used_again_before_it_ends_keeps_its_devices(world: World, make: type[Make]) -> None:
    other = user("other")
    uses = iter([lambda claim: claim["status"]["reservedFor"].append(other)])
    async with ample(world, make) as claim:

        def meanwhile(call: Call) -> None:
            if call.verb == "update" and (use := next(uses, None)):
                world.api.add(PODS, {"metadata": {"name": "other", "namespace": "ns", "uid": "uid-other"}, "spec": {}})
                world.api.change(RESOURCE_CLAIMS, claim, use)

        world.api.before = meanwhile
        world.api.drop(PODS, "ns/pod")
        world.api.change(RESOURCE_CLAIMS, claim, mark_deleted)
        await world.quiet()
        assert world.api[RESOURCE_CLAIMS, claim]["status"]["reservedFor"] == [other]
        assert world.api[RESOURCE_CLAIMS, claim]["status"]["allocation"]
        assert world.api[RESOURCE_CLAIMS, claim]["metadata"]["finalizers"]


async def test_devices_that_another_scheduler_gives_away_too_are_released_at_once(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed_deletion, "COLLECTOR_SECONDS", 1000.0)
    async with ample(world, make):
        add_rival(world, make)
        world.api.drop(PODS, "ns/pod")
        await world.quiet()
        assert ("patch", "resourceclaims", "status") in calls(world)


@pytest.mark.parametrize("error", ["no answer", "server error", "conflict"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_end_that_fails_is_repeated(error: str, when: str, world: World, make: type[Make]) -> None:
    left = [ERRORS[error]]
    async with ample(world, make) as claim:

        def fail(call: Call) -> Exception | None:
            return left.pop()() if left and call.verb == "update" else None

        setattr(world.api, when, fail)
        world.api.drop(PODS, "ns/pod")
        world.api.change(RESOURCE_CLAIMS, claim, mark_deleted)
        await world.quiet()
        assert left == []
        assert world.api.of(RESOURCE_CLAIMS) == []
        assert len(world.cluster.allocated_devices) == 0


async def test_a_consumer_that_cannot_be_read_keeps_the_devices_and_is_no_bug_of_the_operator(
    world: World, placed: Obj, make: type[Make], caplog: pytest.LogCaptureFixture
) -> None:
    """The view never had the pod, so its end wakes nothing: the claim is looked at again by itself."""
    pod = world.api[PODS, "ns/pod"]
    pod["spec"]["containers"] = "none"
    del world.api.objects[PODS, "ns", "pod"]
    world.start()
    world.api.objects[PODS, "ns", "pod"] = pod
    async with world.running() as control:
        async with asyncio.timeout(30):
            while control.queues.of("release").retries < 2:
                await world.tick()
        assert world.api[RESOURCE_CLAIMS, f"ns/{placed['metadata']['name']}"]["status"]["allocation"]
        del world.api.objects[PODS, "ns", "pod"]
        await world.quiet()
    assert not (world.api[RESOURCE_CLAIMS, f"ns/{placed['metadata']['name']}"].get("status") or {}).get("allocation")
    (said,) = (record for record in caplog.records if record.levelno >= logging.WARNING)
    assert said.levelno == logging.WARNING
    assert "its consumer pod pod is malformed; correct or delete that pod: Expected" in said.getMessage()
    assert "spec.containers" in said.getMessage()


def test_a_deletion_that_is_refused_is_repeated_ever_more_seldom() -> None:
    """As by a policy that protects some claims; the pauses double from 5 ms to 1,000 s."""
    is_deletion = ("delete", "resourceclaims")

    def refuse(call: Call) -> Exception | None:
        return Forbidden(403, "Forbidden", "protected") if call[:2] == is_deletion else None

    async def an_hour() -> World:
        world = World(Features())
        world.furnish()
        world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
        world.api.add(PODS, Make.pod("pod", claims=[Make.FROM_TEMPLATE]))
        await world.settle()
        world.start()
        world.api.before = refuse
        async with world.running():
            world.api.drop(PODS, "ns/pod")
            world.bring_events()
            await asyncio.sleep(3600)
        return world

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        world = runner.run(an_hour())
    assert len(world.api.of(RESOURCE_CLAIMS)) == 1
    assert 10 < sum(call[:2] == is_deletion for call in world.api.calls) < 30
