"""Pods end so that one of higher priority fits, whatever happens in between (scheduling.md 4.3).

The operator works in virtual time: its pauses of ten seconds cost nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from controllers_world import HOST, World
from dra_api.releases import Release
from dra_api.values import format_time
from dra_kube import (
    DEVICE_CLASSES,
    EVENTS,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    ServerError,
)
from dra_operator.allocator import Features
from dra_operator.controllers import PreemptionSettings
from dra_operator.controllers.scheduling import preemption, victims
from fake_api import ERRORS, Call, Nth
from history_kit.clock import VirtualLoop
from objects import Make, Obj
from remembered import sizes as remembered_sizes

HELD = ["example.com/held"]
REST = 10.5
"""Seconds after which a pod has had its next attempt."""
MOST_WRITES = 30
"""More than there are from the decision to the binding."""
GONE = ("delete", "pods")
Story = Callable[[World], Awaitable[None]]


def played(story: Story) -> World:
    """The world after the story, in a loop whose time costs nothing."""

    async def run() -> World:
        world = World(Features())
        world.preemption = PreemptionSettings()
        world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
        await story(world)
        return world

    with mock.patch.object(victims, "SHARE", 1.0), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


async def works(world: World, *lasting: float) -> None:
    """An operator begins, and works for so many seconds."""
    world.start()
    async with world.running():
        await passes(world, sum(lasting))


async def passes(world: World, seconds: float) -> None:
    """Time goes by while an operator works."""
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    while clock() < end:
        world.bring_events()
        await asyncio.sleep(0.05)


def pod(name: str, rank: int = 0, *, held: bool = False, **spec: Any) -> Obj:
    """A pod that wants one device; a ``held`` one takes its time to end."""
    made = Make.pod(name, **{"claims": [Make.FROM_TEMPLATE], **spec}, priority=rank)
    if held:
        made["metadata"]["finalizers"] = HELD
    return made


def of_other_tenant(made: Obj) -> Obj:
    made["metadata"]["namespace"] = "other"
    return made


def of_gang(made: Obj, name: str = "g", size: int = 2) -> Obj:
    made["metadata"]["annotations"] = {"dra.kopf.dev/gang": name, "dra.kopf.dev/gang-size": str(size)}
    return made


async def full(world: World, *low: Obj) -> None:
    """The pods have the one device of a node each."""
    world.furnish(len(low))
    for number, it in enumerate(low):
        it["spec"]["nodeSelector"] = {HOST: f"node-{number}"}
        world.api.add(PODS, it)
    await works(world, 1.0)
    assert all(it["spec"].get("nodeName") for it in world.api.of(PODS))


def ends(world: World, name: str) -> None:
    """What held the pod lets it go."""
    world.api.drop(PODS, f"ns/{name}")


def nodes(world: World) -> dict[str, str]:
    return {it["metadata"]["name"]: it["spec"].get("nodeName", "") for it in world.api.of(PODS)}


def deleted(world: World) -> list[str]:
    return [call.name for call in world.api.calls if (call.verb, call.plural) == ("delete", "pods")]


def status(world: World, name: str) -> Obj:
    found: Obj = world.api[PODS, f"ns/{name}"].get("status", {})
    return found


def condition(world: World, name: str, kind: str) -> Obj:
    return next((it for it in status(world, name).get("conditions", []) if it["type"] == kind), {})


def events(world: World, reason: str) -> list[tuple[str, str]]:
    found = [it for it in world.api.of(EVENTS) if it["reason"] == reason]
    return [(it["involvedObject"]["name"], it["message"]) for it in found]


def test_a_pod_of_higher_priority_gets_the_device_of_one_of_lower_priority() -> None:
    async def story(world: World) -> None:
        await full(world, pod("low"), pod("middle", 5))
        world.api.add(PODS, pod("high", 10))
        await works(world, REST, 2)

    world = played(story)
    assert nodes(world) == {"middle": "node-1", "high": "node-0"}
    assert events(world, "Preempted") == [
        ("low", "Preempted by pod ns/high, which has priority 10 and is nominated for node node-0")
    ]
    assert events(world, "Preempting") == [
        ("high", "Preempting 1 pod of lower priority, after which this one fits on node-0: ns/low")
    ]
    counts = {
        it.name: it.samples[0].value for it in world.registry.collect() if it.name == "scheduler_preemption_attempts"
    }
    assert counts == {"scheduler_preemption_attempts": 1.0}


def test_all_pods_of_a_gang_end_if_one_has_to() -> None:
    async def story(world: World) -> None:
        await full(world, of_gang(pod("rank-0")), of_gang(pod("rank-1")))
        world.api.add(PODS, pod("high", 10))
        await works(world, REST, 2)

    world = played(story)
    assert sorted(deleted(world)) == ["rank-0", "rank-1"]
    assert nodes(world)["high"]


@pytest.mark.parametrize(
    ("policy", "mode", "end"),
    [
        ({"gang": {"minCount": 2}}, None, 1),
        ({"gang": {"minCount": 2}}, {"single": {}}, 1),
        ({"gang": {"minCount": 2}}, {"all": {}}, 2),
        ({"basic": {}}, None, 1),
        ({"basic": {}}, {"all": {}}, 2),
    ],
)
def test_the_pods_of_a_pod_group_end_alone_unless_it_says_that_all_end(policy: Obj, mode: Obj | None, end: int) -> None:
    async def story(world: World) -> None:
        world.features = Features(generic_workload=True, workload_resource_claims=True)
        spec = {"schedulingPolicy": policy, **({"disruptionMode": mode} if mode else {})}
        world.api.add(POD_GROUPS, {"metadata": {"name": "group", "namespace": "ns", "uid": "group"}, "spec": spec})
        grouped: Obj = {"schedulingGroup": {"podGroupName": "group"}}
        await full(world, pod("rank-0", **grouped), pod("rank-1", **grouped))
        world.api.add(PODS, pod("high", 10))
        await works(world, REST, 2)

    world = played(story)
    assert len(deleted(world)) == end
    assert nodes(world)["high"]


def test_the_pod_says_for_what_it_waits_and_the_victim_why_it_ends() -> None:
    async def story(world: World) -> None:
        await full(world, pod("low", held=True))
        world.api.add(PODS, pod("high", 10))
        await works(world, REST)

    world = played(story)
    assert nodes(world)["high"] == ""
    assert status(world, "high")["nominatedNodeName"] == "node-0"
    why = condition(world, "high", "PodScheduled")["message"]
    assert why.startswith("0/1 nodes are available: ")
    assert why.endswith("; it gets node node-0 when ns/low has terminated")
    disrupted = condition(world, "low", "DisruptionTarget")
    assert (disrupted["status"], disrupted["reason"]) == ("True", "PreemptionByScheduler")


def test_by_default_no_pod_ends_for_another_one() -> None:
    async def story(world: World) -> None:
        world.preemption = None
        await full(world, pod("low"))
        world.api.add(PODS, pod("high", 10))
        await works(world, REST, 30)

    assert nodes(played(story)) == {"low": "node-0", "high": ""}


def test_pods_of_other_schedulers_end_only_by_a_setting() -> None:
    async def story(world: World) -> None:
        await full(world, pod("low"))
        world.api.change(PODS, "ns/low", lambda it: it["spec"].update(schedulerName="default-scheduler"))
        world.api.add(PODS, pod("high", 10))
        await works(world, REST, 2)
        assert deleted(world) == []
        world.preemption = PreemptionSettings(other_schedulers=True)
        await works(world, REST, 2)

    assert nodes(played(story)) == {"high": "node-0"}


# --- no other pod gets it meanwhile ---


def test_a_tenant_whose_victims_do_not_end_leaves_nominations_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "MOST_NOMINATED_PODS", 3)

    async def story(world: World) -> None:
        world.api.add(RESOURCE_CLAIM_TEMPLATES, of_other_tenant(Make.template()))
        lows = [pod(f"low-{number}", held=True) for number in range(3)]
        await full(world, *lows, of_other_tenant(pod("low-of-other")))
        for number in range(3):  # each is nominated for the node of a pod that does not end
            world.api.add(PODS, pod(f"high-{number}", 10, nodeSelector={HOST: f"node-{number}"}))
        world.start()
        async with world.running():
            await passes(world, 8 * REST)
            world.api.add(PODS, of_other_tenant(pod("high-of-other", 20, nodeSelector={HOST: "node-3"})))
            await passes(world, 12 * REST)

    world = played(story)
    assert {"low-0", "low-1"} <= set(deleted(world))
    assert "low-of-other" in deleted(world)
    assert nodes(world)["high-of-other"] == "node-3"


def test_nobody_of_lower_priority_takes_what_the_victim_had() -> None:
    """The one in between came first, and is woken by the same device."""

    async def story(world: World) -> None:
        await full(world, pod("low", held=True))
        world.api.add(PODS, pod("high", 10))
        await works(world, 5)
        world.start()
        async with world.running():
            await passes(world, REST)
            assert deleted(world) == ["low"]
            world.api.add(PODS, pod("between", 5))
            await passes(world, 30)
            ends(world, "low")
            await passes(world, 2)

    world = played(story)
    assert nodes(world) == {"high": "node-0", "between": ""}
    assert deleted(world) == ["low"]


def test_nobody_of_lower_priority_takes_the_room_that_comes_free() -> None:
    def asking(name: str, rank: int, cpu: str, *, held: bool = False) -> Obj:
        return pod(name, rank, held=held, claims=[], containers=[Make.asking("main", cpu=cpu)])

    async def story(world: World) -> None:
        await full(world, asking("low", 0, "3", held=True))
        world.api.add(PODS, asking("high", 10, "4"))
        world.start()
        async with world.running():
            await passes(world, REST)
            world.api.add(PODS, asking("small", 5, "1"))
            await passes(world, 5)
            assert nodes(world)["small"] == "", "one cpu is free, but kept"
            ends(world, "low")
            await passes(world, 2)

    assert nodes(played(story)) == {"high": "node-0", "small": ""}


def test_a_pod_of_higher_priority_than_the_nominated_one_takes_its_place() -> None:
    async def story(world: World) -> None:
        await full(world, pod("low", held=True))
        world.api.add(PODS, pod("high", 10))
        world.start()
        async with world.running():
            await passes(world, REST)
            world.api.add(PODS, pod("highest", 20))
            await passes(world, 2)
            ends(world, "low")
            await passes(world, 15)

    world = played(story)
    assert nodes(world) == {"highest": "node-0", "high": ""}
    assert deleted(world) == ["low"]


def test_others_get_it_when_the_nominated_pod_is_deleted() -> None:
    async def story(world: World) -> None:
        await full(world, pod("low", held=True))
        world.api.add(PODS, pod("high", 10))
        world.start()
        async with world.running():
            await passes(world, REST)
            world.api.add(PODS, pod("between", 5))
            world.api.drop(PODS, "ns/high")
            ends(world, "low")
            await passes(world, 2)

    assert nodes(played(story)) == {"between": "node-0"}


def test_nobody_ends_for_a_pod_that_was_deleted_just_before() -> None:
    async def story(world: World) -> None:
        await full(world, pod("low"))
        world.api.add(PODS, pod("high", 10))

        def gone(call: Call) -> Exception | None:
            if (
                call.name == "high"
                and call.verb == "patch"
                and ("ns", "high") in {key[1:] for key in world.api.objects}
            ):
                is_nominated = world.api[PODS, "ns/high"]["status"].get("nominatedNodeName")
                if is_nominated:
                    world.api.drop(PODS, "ns/high")
                    world.bring_events()
            return None

        world.api.after = gone
        await works(world, REST, 2)

    world = played(story)
    assert nodes(world) == {"low": "node-0"}
    assert deleted(world) == []


# --- what fails, and what is lost ---


async def two_candidates(world: World) -> None:
    await full(world, pod("low"), pod("other", 1))
    world.api.add(PODS, pod("high", 10))


@pytest.mark.parametrize(
    ("when", "error"),
    [("before", "server error"), ("before", "conflict"), ("after", "server error"), ("after", "no answer")],
)
def test_one_pod_ends_whatever_request_fails_or_loses_its_answer(when: str, error: str) -> None:
    """Each of the requests from the decision on, one after the other."""

    def story(fault: Nth) -> Story:
        async def failing(world: World) -> None:
            await two_candidates(world)
            setattr(world.api, when, fault)
            await works(world, REST * 4)

        return failing

    faults = [Nth(number, ERRORS[error]) for number in range(1, MOST_WRITES)]
    for fault in faults:
        number = fault.left
        world = played(story(fault))
        assert nodes(world) == {"other": "node-1", "high": "node-0"}, f"write {number}"
        if not fault.hit:
            break
    assert 6 < sum(fault.hit for fault in faults) < MOST_WRITES - 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_one_pod_ends_whenever_the_operator_crashes(when: str) -> None:
    def story(crash: Nth) -> Story:
        async def crashing(world: World) -> None:
            await two_candidates(world)
            world.api.before, world.api.after = (crash, crash.is_down) if when == "before" else (crash.is_down, crash)
            await works(world, REST, 2)
            world.api.before = world.api.after = lambda _: None
            await works(world, REST * 2)

        return crashing

    crashes = [Nth(number, ERRORS["no answer"], crash=True) for number in range(1, MOST_WRITES)]
    for crash in crashes:
        number = crash.left
        world = played(story(crash))
        assert nodes(world) == {"other": "node-1", "high": "node-0"}, f"write {number}"
        if not crash.hit:
            break
    assert 6 < sum(crash.hit for crash in crashes) < MOST_WRITES - 1


def test_a_new_operator_waits_for_the_victims_of_the_former_one_and_keeps_what_they_had() -> None:
    """Nothing but the pod's status and the ending victim tell of it."""

    async def story(world: World) -> None:
        await full(world, pod("low", held=True), pod("other", 7))
        world.api.add(PODS, pod("high", 10))
        await works(world, REST)
        assert deleted(world) == ["low"]
        world.start()
        async with world.running():
            await passes(world, REST)
            world.api.add(PODS, pod("between", 5))
            await passes(world, 40)
            ends(world, "low")
            await passes(world, 2)

    world = played(story)
    assert nodes(world) == {"other": "node-1", "high": "node-0", "between": ""}
    assert deleted(world) == ["low"]


async def end_after_a_restart(world: World, first: str, second: str) -> None:
    """Two victims end after each other. What the first one had is not for the rival."""
    world.start()
    async with world.running():
        await passes(world, 1)
        ends(world, first)
        await passes(world, 3)
        assert not nodes(world)["rival"]
        ends(world, second)
        await passes(world, 3)


def test_a_new_operator_keeps_at_once_what_the_former_one_kept_for_a_pod() -> None:
    """Two pods have to end for one, and end after each other."""

    async def story(world: World) -> None:
        world.furnish(1, 2)
        for number in range(2):
            world.api.add(PODS, pod(f"low-{number}", held=True))
        await works(world, 1.0)
        world.api.add(RESOURCE_CLAIMS, Make.claim("both", count=2))
        world.api.add(PODS, pod("high", 10, claims=[Make.use("both")]))
        await works(world, REST, 1)
        assert sorted(deleted(world)) == ["low-0", "low-1"]
        world.api.add(PODS, pod("rival", 10))
        await end_after_a_restart(world, "low-0", "low-1")

    assert nodes(played(story)) == {"high": "node-0", "rival": ""}


def test_a_pod_that_a_new_operator_may_not_nominate_again_names_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its namespace has as many nominated pods as it may have."""
    monkeypatch.setattr(preemption, "may_have_another", lambda *_: False)

    async def story(world: World) -> None:
        await full(world, pod("low", held=True))
        world.api.add(PODS, pod("high", 10))
        world.api.change(PODS, "ns/high", lambda it: it["status"].update(nominatedNodeName="node-0"))
        await works(world, REST, 1)

    assert not status(played(story), "high").get("nominatedNodeName")


# --- victims that take their time ---

TEN_YEARS = 10 * 365 * 86400


def slow(name: str, rank: int = 0, grace: int = TEN_YEARS, **more: Any) -> Obj:
    """A pod that ends only when its grace period is over, at the earliest."""
    return pod(name, rank, held=True, terminationGracePeriodSeconds=grace, **more)


async def goes_on(world: World, seconds: float) -> None:
    """Time goes by, for the clocks of operator and server as well, and kubelets end pods whose time is over."""
    clock, began = asyncio.get_running_loop().time, datetime.fromisoformat(world.now)
    start = clock()
    while (gone := clock() - start) < seconds:
        await passes(world, 0.5)
        world.now = format_time(began + timedelta(seconds=gone + 0.5))
        for it in world.api.of(PODS):
            ends_at = it["metadata"].get("deletionTimestamp")
            if ends_at and datetime.fromisoformat(ends_at) < datetime.fromisoformat(world.now):
                ends(world, it["metadata"]["name"])


def timed(*low: Obj, seconds: float, then: Story | None = None, settings: PreemptionSettings | None = None) -> World:
    """The pods have the one device of a node each, one of priority 10 comes, and so many seconds go by."""

    async def story(world: World) -> None:
        world.preemption = settings or world.preemption
        await full(world, *low)
        world.api.add(PODS, pod("high", 10))
        world.start()
        async with world.running():
            await goes_on(world, seconds)
            if then is not None:
                await then(world)

    return played(story)


def test_a_victim_with_a_grace_period_of_ten_years_is_not_waited_for_alone() -> None:
    """The lowest priority ends first; the next one when it has not gone in half a minute."""
    early = timed(slow("slow"), pod("quick", 5), seconds=REST + 29)
    assert (deleted(early), nodes(early)["high"]) == (["slow"], "")
    late = timed(slow("slow"), pod("quick", 5), seconds=REST + 35 + 2 * REST)
    assert (deleted(late), nodes(late)["high"]) == (["slow", "quick"], "node-1")


def test_a_pod_is_tried_again_when_a_slow_user_of_a_claim_is_gone() -> None:
    """Nothing came free by that, so that it was tried again after five minutes only."""

    async def story(world: World) -> None:
        world.furnish(1)
        world.api.add(RESOURCE_CLAIMS, Make.claim("shared"))
        world.api.add(PODS, slow("slow", grace=100, claims=[Make.use("shared")]))
        world.api.add(PODS, pod("quick", 5, claims=[Make.use("shared")]))
        await works(world, 1.0)
        await world.api.delete(PODS, "slow", "ns")
        world.api.add(PODS, pod("high", 10))
        world.start()
        async with world.running():
            await goes_on(world, 90)
            assert deleted(world) == ["slow"], "the device would not come free by other deletions"
            await goes_on(world, 20 + REST)

    world = played(story)
    assert (deleted(world), nodes(world)) == (["slow", "quick"], {"high": "node-0"})


def test_of_one_priority_a_pod_ends_that_is_gone_soon() -> None:
    world = timed(slow("slow"), slow("quick", grace=1), slow("older", grace=20), seconds=REST + 5)
    assert (deleted(world), nodes(world)["high"]) == (["quick"], "node-1")


def test_many_slow_pods_of_one_tenant_keep_a_pod_waiting_only_once() -> None:
    """Once one has outlasted the patience of others, pods of a higher priority end before further ones like it."""
    slow_ones = [slow(f"slow-{number}") for number in range(6)]
    world = timed(*slow_ones, pod("quick", 5), seconds=REST + 35 + 2 * REST)
    assert [it for it in deleted(world) if it == "quick"]
    assert len(deleted(world)) == 2
    assert nodes(world)["high"] == "node-6"


def test_pods_of_one_tenant_that_something_else_holds_keep_a_pod_waiting_only_once() -> None:
    """Their grace periods are short, and finalizers keep them: nothing tells beforehand."""

    async def story(world: World) -> None:
        held = [pod(f"held-{number}", held=True, terminationGracePeriodSeconds=1) for number in range(4)]
        world.api.add(RESOURCE_CLAIM_TEMPLATES, of_other_tenant(Make.template()))
        await full(world, *held, of_other_tenant(pod("quick", 5)))
        world.api.add(PODS, pod("high", 10))
        world.start()
        async with world.running():
            for second in range(70):
                await passes(world, 1)
                world.now = f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"

    world = played(story)
    assert "quick" in deleted(world)
    assert (len(deleted(world)), nodes(world)["high"]) == (2, "node-4")


def test_a_second_slow_victim_ends_if_there_are_no_others() -> None:
    world = timed(slow("slow"), slow("other", 5, grace=40), seconds=REST + 35 + 2 * REST + 40)
    assert (deleted(world), nodes(world)["high"]) == (["slow", "other"], "node-1")


def test_the_time_for_which_a_victim_is_waited_for_is_a_setting() -> None:
    patient = PreemptionSettings(patience=120.0)
    world = timed(slow("slow", grace=100), pod("quick", 5), seconds=REST + 105, settings=patient)
    assert (deleted(world), nodes(world)["high"]) == (["slow"], "node-0")


def test_what_a_slow_victim_has_is_kept_for_a_while_if_no_other_pod_can_end() -> None:
    """One of lower priority comes meanwhile, and would get the device first."""

    async def then(world: World) -> None:
        assert deleted(world) == ["slow"]
        world.api.add(PODS, pod("between", 5))
        await goes_on(world, 60)

    world = timed(slow("slow", grace=100), seconds=REST + 60, then=then)
    assert nodes(world) == {"high": "node-0", "between": ""}


def test_what_a_victim_has_that_does_not_end_is_not_kept_for_ever() -> None:
    world = timed(slow("slow"), seconds=700)
    assert not status(world, "high").get("nominatedNodeName")


def test_a_pod_that_somebody_deleted_with_a_long_grace_period_is_not_waited_for() -> None:
    """One whose time is over soon is, and then no other pod ends."""

    def dying(left: int) -> World:
        async def story(world: World) -> None:
            await full(world, slow("dying", grace=left), pod("quick", 5))
            world.api.deleted(PODS, "dying", "ns")
            world.api.add(PODS, pod("high", 10))
            world.start()
            async with world.running():
                await goes_on(world, 3 * REST)

        return played(story)

    assert (deleted(dying(TEN_YEARS)), nodes(dying(TEN_YEARS))["high"]) == (["quick"], "node-1")
    assert (deleted(dying(25)), nodes(dying(25))["high"]) == ([], "node-0")


def test_a_victim_on_a_node_that_nobody_answers_for_is_not_waited_for_alone() -> None:
    """Its kubelet does not end it, so that it stays there after its grace period."""

    async def story(world: World) -> None:
        await full(world, slow("lost", grace=1), pod("quick", 5))
        world.api.add(PODS, pod("high", 10))
        world.start()
        async with world.running():
            await passes(world, REST)
            assert deleted(world) == ["lost"]
            world.now = "2026-01-01T00:00:30Z"
            await passes(world, 20)
            assert deleted(world) == ["lost"]
            world.now = "2026-01-01T00:01:00Z"
            await passes(world, 3 * REST)

    world = played(story)
    assert (deleted(world), nodes(world)["high"]) == (["lost", "quick"], "node-1")


def test_a_new_operator_does_not_wait_again_for_a_victim_that_was_slow() -> None:
    """The former one had it deleted long ago."""

    async def story(world: World) -> None:
        await full(world, slow("slow"), pod("quick", 5))
        world.api.add(PODS, pod("high", 10))
        world.start()
        async with world.running():
            await goes_on(world, REST + 5)
        world.now = "2026-01-01T00:01:00Z"
        world.start()
        async with world.running():
            await goes_on(world, 2 * REST)

    world = played(story)
    assert (deleted(world), nodes(world)["high"]) == (["slow", "quick"], "node-1")


def test_a_gang_does_not_wait_for_a_slow_victim_alone() -> None:
    async def story(world: World) -> None:
        slow_ones = [slow(f"slow-{number}") for number in range(3)]
        await full(world, *slow_ones, pod("quick-0", 4), pod("quick-1", 5))
        add_gang(world)
        world.start()
        async with world.running():
            await goes_on(world, REST + 29)
            assert set(deleted(world)) < {"slow-0", "slow-1", "slow-2"}
            await goes_on(world, 6 + 3 * REST)

    world = played(story)
    assert len(deleted(world)) == 4
    assert {nodes(world)[f"g-{number}"] for number in range(2)} == {"node-3", "node-4"}


def test_another_pod_ends_when_the_victim_does_not_get_away() -> None:
    async def story(world: World) -> None:
        await full(world, pod("low", held=True), pod("other", 1))
        world.api.add(PODS, pod("high", 10))
        world.start()
        async with world.running():
            await passes(world, REST)
            assert deleted(world) == ["low"]
            await passes(world, 60)
            assert deleted(world) == ["low"]
            world.now = "2026-01-01T00:01:05Z"  # a minute after the end of its grace period
            await passes(world, 3 * REST)

    world = played(story)
    assert deleted(world) == ["low", "other"]
    assert nodes(world)["high"] == "node-1"


def test_pods_that_have_all_nominations_look_for_other_victims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all would wait for victims that do not get away, and what is kept for them would never be free."""
    monkeypatch.setattr(preemption, "MOST_NOMINATED_PODS", 2)

    async def story(world: World) -> None:
        await full(world, pod("low", held=True), pod("other", 1))
        world.api.add(PODS, pod("high", 10))
        world.start()
        async with world.running():
            await passes(world, REST)
            world.now = "2026-01-01T00:01:05Z"  # a minute after the end of the victim's grace period
            await passes(world, 5 * REST)

    world = played(story)
    assert deleted(world) == ["low", "other"]
    assert nodes(world)["high"] == "node-1"


@pytest.mark.parametrize(("verb", "sub"), [("delete", None), ("patch", "status")])
@pytest.mark.parametrize(
    "refusal",
    [
        Forbidden(403, "Forbidden", "a policy keeps it"),
        BadRequest(400, "BadRequest", "a webhook that answers with another code"),
        ApiError(406, "NotAcceptable", "the same"),
        Conflict(409, "Conflict", "the same"),
        ServerError(500, "InternalError", "failed calling webhook"),
    ],
    ids=lambda error: str(error.code),
)
def test_a_victim_that_the_server_refuses_to_delete_is_none(refusal: ApiError, verb: str, sub: str | None) -> None:
    async def story(world: World) -> None:
        await full(world, pod("low"), pod("other", 1))
        world.api.add(PODS, pod("high", 10))
        world.api.before = lambda call: refusal if call == (verb, "pods", sub, "low") else None
        await works(world, REST * 5)

    world = played(story)
    assert nodes(world) == {"low": "node-0", "high": "node-1"}
    assert deleted(world)[-1] == "other"


def test_a_victim_whose_deletion_failed_once_is_still_the_least_important_one() -> None:
    """The API server was away for a moment, say."""

    async def story(world: World) -> None:
        await full(world, pod("low"), pod("other", 1))
        world.api.add(PODS, pod("high", 10))
        failures = [ServerError(500, "InternalError", "etcdserver: leader changed")]
        world.api.before = lambda call: failures.pop() if failures and call[:2] == GONE else None
        await works(world, REST * 3)

    assert deleted(played(story)) == ["low", "low"]


def test_a_victim_that_was_replaced_meanwhile_stays() -> None:
    async def story(world: World) -> None:
        await full(world, pod("low"))
        world.api.add(PODS, pod("high", 10))

        def replace(call: Call) -> Exception | None:
            if (call.verb, call.plural, call.name) == ("get", "pods", "low") and "new" not in seen:
                seen.append("new")
                world.api.drop(PODS, "ns/low")
                world.api.add(PODS, pod("low", claims=[]))
            return None

        seen: list[str] = []
        world.api.before = replace
        await works(world, REST, 2)

    world = played(story)
    assert deleted(world) == []
    assert nodes(world)["high"] == "node-0"


@pytest.mark.parametrize("request_", [("get", "pods", None, "low"), ("patch", "pods", "status", "low")])
def test_a_victim_that_goes_by_itself_meanwhile_is_not_said_to_be_preempted(request_: Call) -> None:
    async def story(world: World) -> None:
        await full(world, pod("low"), pod("other", 1))
        world.api.add(PODS, pod("high", 10))

        def goes(call: Call) -> None:
            if call == request_ and (PODS, "ns", "low") in world.api.objects:
                ends(world, "low")

        world.api.before = goes
        await works(world, REST, 2)

    world = played(story)
    assert events(world, "Preempted") == []
    assert nodes(world) == {"high": "node-0", "other": "node-1"}
    assert not [it for _, it in events(world, "FailedScheduling") if "retrying" in it or "unexpectedly" in it]


@pytest.mark.parametrize("size", [1, 2], ids=["a pod", "a gang"])
def test_a_nomination_that_is_out_of_date_ends_nobody_and_is_made_anew_soon(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others were placed while the search paused."""
    name = "proven" if size == 1 else "is_proven"
    proofs, original, ended_then = 0, getattr(preemption, name), list[str]()

    async def story(world: World) -> None:
        def outdated(*args: Any) -> Any:
            nonlocal proofs
            proofs += 1
            ended_then.extend(deleted(world))
            return original(*args) if proofs > 1 else None

        await full(world, pod("low"), pod("other", 1))
        monkeypatch.setattr(preemption, name, outdated)
        if size == 1:
            world.api.add(PODS, pod("g-0", 10))
        else:
            add_gang(world)
        await works(world, REST * 3)

    world = played(story)
    assert proofs == 2
    assert not ended_then
    assert sorted(it for it in nodes(world) if it.startswith("g-") and nodes(world)[it]) == ["g-0", "g-1"][:size]


# --- who ends ---


def test_a_disruption_budget_is_kept_where_another_pod_will_do() -> None:
    async def story(world: World) -> None:
        low = pod("low")
        low["metadata"]["labels"] = {"app": "guarded"}
        await full(world, low, pod("other", 5))
        world.api.add(
            POD_DISRUPTION_BUDGETS,
            {
                "metadata": {"name": "guard", "namespace": "ns"},
                "spec": {"selector": {"matchLabels": {"app": "guarded"}}},
                "status": {"disruptionsAllowed": 0},
            },
        )
        world.api.add(PODS, pod("high", 10))
        await works(world, REST, 2)

    assert nodes(played(story)) == {"low": "node-0", "high": "node-1"}


def test_all_pods_of_a_shared_claim_end() -> None:
    async def story(world: World) -> None:
        world.furnish()
        world.api.add(RESOURCE_CLAIMS, Make.claim("shared"))
        for name in ("one", "two"):
            world.api.add(PODS, pod(name, claims=[Make.use("shared")]))
        await works(world, 1.0)
        world.api.add(PODS, pod("high", 10))
        await works(world, REST, 2)

    world = played(story)
    assert nodes(world) == {"high": "node-0"}
    assert sorted(deleted(world)) == ["one", "two"]


def test_no_other_pod_ends_while_the_devices_of_the_victim_are_on_their_way() -> None:
    """The victim is gone at once, and its claim gives its device up half a minute later."""

    async def story(world: World) -> None:
        await full(world, pod("low"), pod("other", 1))
        world.api.add(PODS, pod("high", 10))

        def slow(call: Call) -> Exception | None:
            is_release = call.plural == "resourceclaims" and call.verb != "get" and "low" not in nodes(world)
            too_early = asyncio.get_running_loop().time() < began + REST + 5
            return ERRORS["server error"]() if is_release and too_early else None

        began = asyncio.get_running_loop().time()
        world.api.before = slow
        await works(world, REST * 4)

    world = played(story)
    assert nodes(world) == {"other": "node-1", "high": "node-0"}


# --- gangs ---


def add_gang(world: World, rank: int = 10, size: int = 2, **more: Any) -> None:
    for number in range(size):
        world.api.add(PODS, of_gang(pod(f"g-{number}", rank, **more), "g", size))


def test_a_pod_that_cannot_be_tried_names_no_node_that_a_former_operator_kept_for_it() -> None:
    """Its victim ended, and its class was deleted, before the operator was started again."""

    async def story(world: World) -> None:
        await full(world, pod("low", held=True))
        world.api.add(PODS, pod("high", 10))
        await works(world, REST, 1)
        assert status(world, "high")["nominatedNodeName"] == "node-0"
        ends(world, "low")
        world.api.drop(DEVICE_CLASSES, "gpu")
        await works(world, REST, 1)

    world = played(story)
    assert "device class gpu does not exist" in condition(world, "high", "PodScheduled")["message"]
    assert not status(world, "high").get("nominatedNodeName")


@pytest.mark.parametrize("size", [2, 3])
def test_a_gang_without_a_place_names_no_nodes_that_a_former_operator_kept_for_it(size: int) -> None:
    """What its victims had is gone before the operator is started again; one pod more than it needs is left as well."""

    async def story(world: World) -> None:
        await full(world, pod("low-0", held=True), pod("low-1", held=True))
        for number in range(size):
            world.api.add(PODS, of_gang(pod(f"g-{number}", 10)))
        await works(world, REST, 1)
        for number in range(size):
            world.api.change(PODS, f"ns/g-{number}", lambda it: it["status"].update(nominatedNodeName="node-0"))
        for number in range(2):
            ends(world, f"low-{number}")
            world.api.drop(RESOURCE_SLICES, f"node-{number}-gpu.example.com")
        await works(world, REST, REST)

    world = played(story)
    assert not any(status(world, f"g-{number}").get("nominatedNodeName") for number in range(size))


def test_a_pod_that_was_on_its_way_to_its_node_ends_when_it_is_there() -> None:
    """It has its devices, and is not bound yet, when the pod of higher priority looks for pods that may end."""

    async def story(world: World) -> None:
        world.furnish()
        world.start()
        async with world.running():
            await passes(world, REST)
            world.api.before = lambda call: ERRORS["server error"]() if call.sub == "binding" else None
            world.api.add(PODS, pod("low"))
            await passes(world, 0.2)
            assert not nodes(world)["low"]
            world.api.add(PODS, pod("high", 10))
            await passes(world, 0.2)
            world.api.before = lambda call: None
            await passes(world, REST * 3)

    assert nodes(played(story)) == {"high": "node-0"}


def test_a_gang_gets_the_devices_of_pods_of_lower_priority_and_no_other_pod_takes_them_meanwhile() -> None:
    async def story(world: World) -> None:
        await full(world, pod("low-0", held=True), pod("low-1"), pod("middle", 5))
        add_gang(world)
        world.api.add(PODS, pod("rival", 4))
        await works(world, REST, 2)
        shown = {status(world, f"g-{number}").get("nominatedNodeName") for number in range(2)}
        assert shown == {"node-0", "node-1"}
        said = [condition(world, f"g-{number}", "PodScheduled")["message"] for number in range(2)]
        assert any(it.endswith("; all get their nodes when ns/low-0, ns/low-1 have terminated") for it in said)
        assert not any(nodes(world)[it] for it in ("g-0", "g-1", "rival"))
        ends(world, "low-0")
        await works(world, 2)

    world = played(story)
    assert sorted(deleted(world)[:2]) == ["low-0", "low-1"]
    found = nodes(world)
    assert {found["g-0"], found["g-1"]} == {"node-0", "node-1"}
    assert events(world, "Preempting")[0][1] == (
        "Preempting 2 pods of lower priority, after which all of gang g fits: ns/low-0, ns/low-1"
    )
    assert events(world, "Preempted")[0][1].startswith("Preempted by gang g of pod ns/g-")


@pytest.mark.parametrize("rank", [4, 10])
def test_a_new_operator_keeps_at_once_what_the_former_one_kept_for_a_gang(rank: int) -> None:
    """Only the status of the pods, and their victims, tell of it. A rival wants what comes free first."""

    async def story(world: World) -> None:
        await full(world, pod("low-0", held=True), pod("low-1", held=True), pod("middle", 5))
        add_gang(world)
        await works(world, REST, 1)
        assert sorted(deleted(world)) == ["low-0", "low-1"]
        world.api.add(PODS, pod("rival", rank))
        await end_after_a_restart(world, "low-0", "low-1")

    found = nodes(played(story))
    assert {found["g-0"], found["g-1"]} == {"node-0", "node-1"}
    assert not found["rival"]


def test_a_new_operator_ends_no_pod_before_it_has_looked_on() -> None:
    """The former one had nominated the gang, and deleted one of its victims."""

    async def story(world: World) -> None:
        await full(world, pod("low-0", held=True), pod("low-1", held=True), pod("middle", 5))
        add_gang(world)

        def second(call: Call) -> Exception | None:
            return ERRORS["server error"]() if (call.verb, call.plural) == GONE and len(deleted(world)) > 1 else None

        world.api.before = second
        await works(world, REST)
        world.api.before = lambda _: None
        [victim] = {it for it in deleted(world) if "deletionTimestamp" in world.api[PODS, f"ns/{it}"]["metadata"]}
        world.api.add(PODS, pod("rival", 4))
        world.start()
        async with world.running():
            await passes(world, 1)
            ends(world, victim)
            await passes(world, 8)
            assert not nodes(world)["rival"]
            left = {name for name in ("low-0", "low-1") if name in nodes(world)}
            assert all("deletionTimestamp" not in world.api[PODS, f"ns/{it}"]["metadata"] for it in left)
            await passes(world, REST)
            for name in left:
                ends(world, name)
            await passes(world, 3)

    found = nodes(played(story))
    assert {found["g-0"], found["g-1"]} == {"node-0", "node-1"}
    assert found["middle"] == "node-2"


def test_no_pod_ends_for_a_gang_that_would_not_fit_all_the_same() -> None:
    async def story(world: World) -> None:
        await full(world, pod("low"), pod("high", 20))
        add_gang(world)
        await works(world, REST, REST)

    assert not deleted(played(story))


def test_what_is_kept_for_a_gang_is_free_when_one_of_its_pods_is_gone() -> None:
    async def story(world: World) -> None:
        await full(world, pod("low-0", held=True), pod("low-1"))
        add_gang(world)
        await works(world, REST, 2)
        assert not nodes(world)["g-0"]
        ends(world, "g-1")
        world.api.add(PODS, pod("rival", 9))
        await works(world, 5)

    assert nodes(played(story))["rival"]


def test_what_is_kept_for_a_pod_is_free_when_others_find_that_its_gang_lacks_pods() -> None:
    """Two pods came to be ready while victims ended for the four others, of which three are gone by then."""

    async def story(world: World) -> None:
        await full(world, *(pod(f"low-{number}", held=True) for number in range(4)))
        for number in range(2):
            own = [Make.use(f"own-{number}")]
            world.api.add(PODS, of_gang(pod(f"late-{number}", 10, claims=own), size=4))
        add_gang(world, size=4)
        world.start()
        async with world.running():
            await passes(world, REST * 2)
            assert all(status(world, f"g-{number}").get("nominatedNodeName") for number in range(4))
            for number in range(2):
                world.api.add(RESOURCE_CLAIMS, Make.claim(f"own-{number}"))
            await passes(world, REST)
            for number in range(3):
                ends(world, f"g-{number}")
            await passes(world, REST)
            for number in range(4):
                ends(world, f"low-{number}")
                world.api.add(PODS, pod(f"rival-{number}", 9))
            await passes(world, REST)

    world = played(story)
    assert all(nodes(world)[f"rival-{number}"] for number in range(4))
    assert not status(world, "g-3").get("nominatedNodeName")
    assert condition(world, "g-3", "PodScheduled")["message"] == (
        "waits for other pods: gang g has fewer than the 4 pods that it needs"
    )


def test_what_is_kept_for_a_gang_is_free_when_one_of_its_pods_cannot_be_tried() -> None:
    """Its claim is gone: the others wait for it, and would keep what came free until it is there again."""

    async def story(world: World) -> None:
        await full(world, pod("low-0", held=True), pod("low-1", held=True))
        world.api.add(RESOURCE_CLAIMS, Make.claim("own"))
        world.api.add(PODS, of_gang(pod("g-0", 10, claims=[Make.use("own")])))
        world.api.add(PODS, of_gang(pod("g-1", 10)))
        world.start()
        async with world.running():
            await passes(world, REST * 2)
            assert status(world, "g-1").get("nominatedNodeName")
            world.api.drop(RESOURCE_CLAIMS, "ns/own")
            await passes(world, REST * 2)
            ends(world, "low-0")
            ends(world, "low-1")
            world.api.add(PODS, pod("rival", 9))
            await passes(world, REST)
            assert not status(world, "g-1").get("nominatedNodeName")

    assert nodes(played(story))["rival"]


def test_a_device_that_was_kept_in_vain_is_found_by_a_pod_that_was_tried_meanwhile() -> None:
    """It came free before the attempt of the rival, for which it was in use all the same."""

    async def story(world: World) -> None:
        world.furnish(1, 2)
        for number in range(2):
            world.api.add(PODS, pod(f"low-{number}", 5, held=True))
        await works(world, 1.0)
        world.api.add(RESOURCE_CLAIMS, Make.claim("both", count=2))
        world.api.add(PODS, pod("high", 10, claims=[Make.use("both")]))
        world.api.add(PODS, pod("rival"))
        world.start()
        async with world.running():
            await passes(world, REST + 1)
            ends(world, "low-0")
            await passes(world, 2)
            assert not nodes(world)["rival"]
            world.api.drop(PODS, "ns/high")
            await passes(world, 2)

    assert nodes(played(story)) == {"low-1": "node-0", "rival": "node-0"}


GROUPED: Obj = {"schedulingGroup": {"podGroupName": "group"}}


def add_group(
    world: World, policy: Obj, release: Release = Release.V1_37, *, is_aware: bool = False, **spec: Any
) -> None:
    """``is_aware``: with the gate WorkloadAwarePreemption, which counts before 1.37."""
    gates = dict.fromkeys(("generic_workload", "workload_resource_claims", "gang_scheduling"), True)
    world.features = Features(release, workload_aware_preemption=is_aware, **gates)
    spec = {"schedulingPolicy": policy, **spec}
    world.api.add(POD_GROUPS, {"metadata": {"name": "group", "namespace": "ns", "uid": "group"}, "spec": spec})


@pytest.mark.parametrize("mode", [{"single": {}}, {"all": {}}])
def test_no_pod_of_a_pod_group_ends_for_another_one_of_the_same_gang(mode: Obj) -> None:
    async def story(world: World) -> None:
        add_group(world, {"gang": {"minCount": 1}}, Release.V1_36, disruptionMode=mode)
        await full(world, pod("rank-0", **GROUPED))
        world.api.change(
            POD_GROUPS, "ns/group", lambda it: it["spec"].update(schedulingPolicy={"gang": {"minCount": 2}})
        )
        world.api.add(PODS, pod("rank-1", 10, **GROUPED))
        await works(world, REST, REST)

    assert not deleted(played(story))


def test_pods_of_a_gang_that_lacks_one_do_not_show_the_node_that_is_kept_no_more() -> None:
    async def story(world: World) -> None:
        await full(world, *(pod(f"low-{number}", held=True) for number in range(3)))
        add_gang(world, size=3)
        world.start()
        async with world.running():
            await passes(world, REST * 2)
            assert all(status(world, f"g-{number}").get("nominatedNodeName") for number in range(3))
            world.api.drop(PODS, "ns/g-2")
            await passes(world, REST)

    world = played(story)
    assert not any(status(world, f"g-{number}").get("nominatedNodeName") for number in range(2))
    said = {condition(world, f"g-{number}", "PodScheduled")["message"] for number in range(2)}
    assert said == {"waits for other pods: gang g has fewer than the 3 pods that it needs"}


def test_pods_that_were_nominated_are_forgotten_when_they_are_gone() -> None:
    sizes = []

    async def story(world: World) -> None:
        await full(world, pod("low-0", held=True), pod("low-1", held=True))
        control = world.start()
        async with world.running():
            for turn in range(4):
                for number in range(2):
                    world.api.add(PODS, of_gang(pod(f"g{turn}-{number}", 10), f"g{turn}"))
                await passes(world, REST * 2)
                nominated = world.cluster.pods.get(f"ns/g{turn}-0")
                assert nominated is not None
                assert nominated.status.nominated_node_name
                preemption = control.placer._preemption
                assert preemption is not None
                preemption.forget(nominated)  # and they go before a decision says so in their status
                for number in range(2):
                    world.api.drop(PODS, f"ns/g{turn}-{number}")
                await passes(world, REST * 2)
                sizes.append(sum(size for path, size in remembered_sizes(control).items() if "_outdated" in path))

    played(story)
    assert max(sizes) <= 2


COUNTS = [(Release.V1_36, False, False), (Release.V1_36, True, True), (Release.V1_37, False, True)]
"""A release, whether WorkloadAwarePreemption is on, and whether the priority of a group counts."""


@pytest.mark.parametrize(("release", "is_aware", "counts"), COUNTS)
def test_a_pod_that_runs_has_the_priority_of_its_group(release: Release, is_aware: bool, counts: bool) -> None:
    """The group was made again, with a higher one than its pod has."""

    async def story(world: World) -> None:
        add_group(world, {"basic": {}}, release, is_aware=is_aware)
        await full(world, pod("member", **GROUPED))
        world.api.drop(POD_GROUPS, "ns/group")
        add_group(world, {"basic": {}}, release, is_aware=is_aware, priority=20)
        world.api.add(PODS, pod("rival", 10))
        await works(world, REST, REST)

    assert deleted(played(story)) == ([] if counts else ["member"])


@pytest.mark.parametrize(("release", "is_aware", "counts"), COUNTS)
def test_pods_end_for_a_gang_by_the_priority_of_its_group(release: Release, is_aware: bool, counts: bool) -> None:
    """What comes free is kept by that priority as well. From 1.37 on pods of another one wait and say so."""

    async def story(world: World) -> None:
        add_group(world, {"gang": {"minCount": 2}}, release, is_aware=is_aware, priority=10)
        await full(world, pod("low-0", 6, held=True), pod("low-1", 5))
        for number in range(2):
            world.api.add(PODS, pod(f"g-{number}", 0, **GROUPED))
        await works(world, REST, 2)
        world.api.add(PODS, pod("rival", 7))
        await works(world, REST)

    found = played(story)
    if release >= Release.V1_37:
        text = 'podgroup "group": the pod has priority 0 and the group 10; pods have that of their group'
        assert text in condition(found, "g-0", "PodScheduled")["message"]
        assert deleted(found) == ["low-1"]  # for the rival alone
    else:
        assert (set(deleted(found)) >= {"low-0", "low-1"}) == counts
        assert bool(status(found, "g-0").get("nominatedNodeName")) == counts
        assert bool(status(found, "rival").get("nominatedNodeName")) != counts  # its victim takes its time


def test_what_is_kept_for_a_gang_is_free_when_its_pod_group_is_gone() -> None:
    async def story(world: World) -> None:
        add_group(world, {"gang": {"minCount": 2}}, priority=10)
        await full(world, pod("low-0", held=True), pod("low-1"))
        for number in range(2):
            world.api.add(PODS, pod(f"g-{number}", 10, **GROUPED))
        await works(world, REST, 2)
        assert status(world, "g-0").get("nominatedNodeName")
        world.start()
        async with world.running():
            await passes(world, REST)
            world.api.drop(POD_GROUPS, "ns/group")
            await passes(world, 1)
            world.api.add(PODS, pod("rival", 9))
            await passes(world, REST)

    assert nodes(played(story))["rival"]


def test_the_same_pods_end_for_a_gang_whenever_the_operator_crashes() -> None:
    def story(crash: Nth) -> Story:
        async def crashing(world: World) -> None:
            await full(world, pod("low-0"), pod("low-1"), pod("middle", 5))
            add_gang(world)
            world.api.before, world.api.after = crash, crash.is_down
            await works(world, REST, 2)
            world.api.before = world.api.after = lambda _: None
            await works(world, REST * 2)

        return crashing

    crashes = [Nth(number, ERRORS["no answer"], crash=True) for number in range(1, MOST_WRITES)]
    for crash in crashes:
        number = crash.left
        found = nodes(played(story(crash)))
        assert sorted(found) == ["g-0", "g-1", "middle"], f"write {number}"
        assert {found["g-0"], found["g-1"]} == {"node-0", "node-1"}, f"write {number}"
        if not crash.hit:
            break
    assert 10 < sum(crash.hit for crash in crashes) < MOST_WRITES - 1
