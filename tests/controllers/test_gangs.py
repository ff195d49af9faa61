"""Pods of a gang are bound together or not at all, whatever happens to writes, pods and the operator."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from controllers_world import World
from dra_api.core import Pod
from dra_kube import (
    DEVICE_CLASSES,
    NODES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ApiError,
    Forbidden,
    ServerError,
    Unreachable,
)
from dra_operator.allocator import Features
from dra_operator.cache import Cluster, Key, check
from dra_operator.cache.index import Index
from dra_operator.controllers import OwnControllers
from dra_operator.controllers.errors import PlacementFailed
from dra_operator.controllers.scheduling import cycle, gangs
from dra_operator.controllers.scheduling import gang as gang_chapter
from dra_operator.controllers.scheduling.gang import GangAttempt, GangTask
from dra_operator.controllers.settings import BackoffSettings
from dra_operator.controllers.workers import Decided, Postponed
from dra_operator.kube import PodWriter
from dra_operator.scheduling import CycleState, NoPlace
from dra_operator.scheduling.gang import joint_plan
from dra_operator.scheduling.state import Gang
from fake_api import Call
from objects import Make, Obj
from rounds import fewer

DOMAIN = "nvlink.example.com/domain"
MATCH_DOMAIN = {"dra.kopf.dev/gang-match-attribute": DOMAIN}
HISTORIES = int(os.environ.get("GANG_HISTORIES", fewer(25)))


def furnish(world: World, nodes: int, devices: int) -> None:
    world.furnish(nodes, devices)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())


def add(world: World, gang: str, size: int, pods: range, **annotations: str) -> None:
    for number in pods:
        pod = Make.pod(f"{gang}-{number}", claims=[Make.FROM_TEMPLATE])
        wish = {"dra.kopf.dev/gang": gang, "dra.kopf.dev/gang-size": str(size)}
        pod["metadata"]["annotations"] = {**wish, **annotations}
        world.api.add(PODS, pod)


def said(world: World, pod: str) -> str:
    conditions = world.api[PODS, f"ns/{pod}"]["status"].get("conditions", [])
    return next((str(it["message"]) for it in conditions if it["type"] == "PodScheduled"), "")


class Witness:
    """Looks at the server before each binding: all members of a gang that is not running yet must have devices."""

    def __init__(self, world: World, size: int) -> None:
        self._world, self._size = world, size
        self.faults: list[str] = []

    def __call__(self, call: Call) -> Exception | None:
        if call.sub == "binding":
            self.look(call.name)
        return None

    def look(self, name: str) -> None:
        gang = name.rsplit("-", 1)[0]
        having = 0
        for pod in self._world.api.of(PODS):
            if pod["metadata"]["name"].startswith(f"{gang}-"):
                claims = [it for it in self._world.api.of(RESOURCE_CLAIMS) if _is_reserved(it, pod)]
                having += bool(claims) or bool(pod["spec"].get("nodeName"))
        if having < self._size:
            self.faults.append(f"{name} is bound while {having} of {self._size} have devices")


def _is_reserved(claim: Obj, pod: Obj) -> bool:
    """For the pod, or for its PodGroup, which has the name of its gang."""
    users = (claim.get("status") or {}).get("reservedFor", ())
    gang = pod["metadata"]["name"].rsplit("-", 1)[0]
    return any(
        it["uid"] == pod["metadata"]["uid"] or (it["resource"], it["name"]) == ("podgroups", gang) for it in users
    )


async def test_a_gang_is_bound_as_soon_as_all_its_pods_are_there(world: World) -> None:
    furnish(world, 2, 2)
    add(world, "g", 4, range(3))
    await world.settle()
    assert world.bound() == []
    assert not world.holders()
    assert said(world, "g-0") == "waits for other pods: gang g has fewer than the 4 pods that it needs"
    add(world, "g", 4, range(3, 4))
    witness = Witness(world, 4)
    world.api.before = witness
    await world.settle()
    assert world.bound() == ["g-0", "g-1", "g-2", "g-3"]
    assert not witness.faults


async def test_a_gang_that_does_not_fit_keeps_no_devices_and_says_why(world: World) -> None:
    furnish(world, 2, 2)
    add(world, "g", 5, range(5))
    await world.settle()
    assert world.bound() == []
    assert not world.holders()
    texts = Counter(said(world, f"g-{number}") for number in range(5))
    [leader] = [text for text in texts if text.startswith("gang g: only 4 of 5 pods fit together; ")]
    assert leader.endswith("; the pods would not fit even if all nodes and devices were free")
    assert sorted(texts.values()) == [1, 4]


async def test_no_pod_is_told_that_it_waits_with_a_leader_that_is_gone(world: World) -> None:
    """It goes while the answer to its own condition is on its way, and the other pod is told something newer."""
    furnish(world, 1, 1)
    add(world, "g", 2, range(2))
    left = {"g-0", "g-1"}

    async def way() -> None:
        leader = next((it for it in left if said(world, it).startswith("gang g: only")), None)
        if leader is not None:
            left.remove(leader)
            world.api.drop(PODS, f"ns/{leader}")
            for _ in range(50):
                world.bring_events()
                await world.tick()

    world.api.way = way
    await world.settle()
    [other] = left
    assert said(world, other) == "waits for other pods: gang g has fewer than the 2 pods that it needs"


@pytest.mark.parametrize("gone", range(5))
async def test_all_pods_of_a_gang_say_that_one_is_gone_and_all_that_another_one_came(world: World, gone: int) -> None:
    """Also if the one that is gone said why all wait: the others do not go on naming it."""
    furnish(world, 2, 2)
    add(world, "g", 5, range(5))
    left = [f"g-{number}" for number in range(5) if number != gone]
    world.start()
    async with world.running():
        await world.quiet()
        world.api.drop(PODS, f"ns/g-{gone}")
        await world.quiet()
        assert {said(world, it) for it in left} == {
            "waits for other pods: gang g has fewer than the 5 pods that it needs"
        }
        add(world, "g", 5, range(5, 6))
        await world.quiet()
    [leader] = [it for it in (*left, "g-5") if said(world, it).startswith("gang g: only 4 of 5 pods fit together; ")]
    others = {said(world, it) for it in (*left, "g-5") if it != leader}
    assert others == {f"waits with gang g: pod {leader} says why"}


async def test_a_decision_about_a_pod_waits_until_it_is_told_that_its_gang_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request takes its time, and meanwhile the leader goes."""
    furnish(world, 1, 1)
    add(world, "g", 2, range(2))
    original, told = PodWriter.report_waiting, list[str]()

    async def slow(writer: PodWriter, pod: Pod, reason: str, message: str) -> Pod:
        if message.startswith("waits with gang g") and not told:
            told.append(pod.metadata.name)
            world.api.drop(PODS, "ns/g-1" if pod.metadata.name == "g-0" else "ns/g-0")
            for _ in range(50):
                world.bring_events()
                await world.tick()
        return await original(writer, pod, reason, message)

    monkeypatch.setattr(PodWriter, "report_waiting", slow)
    await world.settle()
    [left] = told
    assert said(world, left) == "waits for other pods: gang g has fewer than the 2 pods that it needs"


async def test_a_pod_is_told_once_that_its_gang_waits_when_its_leader_and_itself_say_so_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own decision is made, and before that is carried out the leader of a newer attempt comes to it."""
    furnish(world, 1, 1)
    add(world, "g", 3, range(3))
    original, said_twice = gangs.Gangs.begin, list[asyncio.Task[Any]]()

    def begin(self: gangs.Gangs, state: CycleState, gang: Gang) -> GangAttempt | Decided | None:
        found = original(self, state, gang)
        if isinstance(found, Decided) and found.follow_up is not None:
            said_twice.append(asyncio.ensure_future(found.follow_up()))
        return found

    async def way() -> None:
        await asyncio.sleep(0)

    world.api.way = way
    monkeypatch.setattr(gangs.Gangs, "begin", begin)
    await world.settle()
    assert said_twice
    assert [it.exception() for it in said_twice] == [None] * len(said_twice)
    assert "failed unexpectedly" not in caplog.text
    others = [said(world, f"g-{number}") for number in range(3) if not said(world, f"g-{number}").startswith("gang g")]
    assert len(others) == 2
    assert all(text.startswith("waits with gang g: pod g-") for text in others)


async def test_a_further_pod_takes_nothing_from_those_that_are_about_to_be_bound(world: World) -> None:
    """Beside another scheduler they have their devices for a while before they are bound, and it finds none."""
    furnish(world, 1, 2)
    world.times = replace(world.times, grace=0.2)
    world.api.add(RESOURCE_CLAIMS, Make.claim("theirs"))
    world.api.add(PODS, Make.pod("theirs", claims=[Make.use("theirs")], schedulerName="default-scheduler"))
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
    world.api.change(PODS, "ns/theirs", lambda pod: pod.update(status={"conditions": [refused]}))
    add(world, "g", 2, range(2))
    world.start()
    async with world.running():
        while world.holders().total() < 2:
            world.bring_events()
            await world.tick()
        assert world.bound() == []
        add(world, "g", 2, range(2, 3))
        await world.quiet()
    assert world.bound() == ["g-0", "g-1"]
    written = [call for call in world.api.calls if (call.plural, call.sub) == ("resourceclaims", "status")]
    assert len(written) == 2, "nothing was given back"


async def test_a_pod_that_has_its_devices_is_placed_before_others_of_its_gang(world: World) -> None:
    """An operator that ended between allocation and binding left it so, and the node has room for two."""
    furnish(world, 1, 3)
    world.api.change(NODES, "node-0", lambda node: node["status"]["allocatable"].update(pods="2"))
    add(world, "g", 2, range(3))
    pod = world.api[PODS, "ns/g-2"]["metadata"]
    claim = Make.claim("early", owner=pod, annotations={"resource.kubernetes.io/pod-claim-name": "entry-0"})
    result = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-2"}
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": pod["name"], "uid": pod["uid"]}],
    }
    world.api.add(RESOURCE_CLAIMS, claim | {"status": status})
    await world.settle()
    assert "g-2" in world.bound()
    assert len(world.bound()) == 2


@pytest.mark.parametrize("is_of_own", [True, False])
async def test_a_pod_that_waited_for_others_says_what_it_waits_for_when_they_are_there(
    is_of_own: bool, world: World
) -> None:
    """The last pod of the gang is there and cannot be tried, for a reason of its own or one that all have."""
    furnish(world, 1, 2)
    if not is_of_own:
        world.api.drop(DEVICE_CLASSES, "gpu")
    add(world, "g", 2, range(1))
    world.start()
    async with world.running():
        await world.quiet()
        assert said(world, "g-0") == "waits for other pods: gang g has fewer than the 2 pods that it needs"
        add(world, "g", 2, range(1, 2))
        if is_of_own:
            entry = {"name": "x", "resourceClaimName": "missing"}
            world.api.change(PODS, "ns/g-1", lambda pod: pod["spec"].update(resourceClaims=[entry]))
        await world.quiet()
    assert said(world, "g-0").startswith("waits for pod g-1 of its gang, " if is_of_own else "claim ns/g-0-entry-0-")


async def test_a_pod_without_a_gang_takes_what_a_waiting_gang_leaves(world: World) -> None:
    furnish(world, 1, 2)
    add(world, "g", 3, range(3))
    world.api.add(PODS, Make.pod("alone", claims=[Make.FROM_TEMPLATE]))
    await world.settle()
    assert world.bound() == ["alone"]


async def test_two_gangs_of_which_only_one_fits_do_not_block_each_other(world: World) -> None:
    furnish(world, 2, 2)
    for number in range(3):
        add(world, "a", 3, range(number, number + 1))
        add(world, "b", 3, range(number, number + 1))
    await world.settle()
    assert world.bound() in (["a-0", "a-1", "a-2"], ["b-0", "b-1", "b-2"])
    assert len(world.holders()) == 3
    for name in world.bound():
        await world.api.delete(PODS, name, "ns")
    first = "a" if not any(pod["metadata"]["name"].startswith("a") for pod in world.api.of(PODS)) else "b"
    await world.settle()
    assert len(world.bound()) == 3
    assert not any(name.startswith(first) for name in world.bound())


@pytest.mark.parametrize(("worker", "leader"), [("g-0", "g-1"), ("g-1", "g-0")])
async def test_a_pod_that_has_to_be_near_another_one_of_its_gang_is_reserved_after_it(
    worker: str, leader: str, world: World
) -> None:
    furnish(world, 2, 2)
    add(world, "g", 2, range(2))
    near = {"labelSelector": {"matchLabels": {"role": "leader"}}, "topologyKey": "kubernetes.io/hostname"}
    rule = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}
    world.api.change(PODS, f"ns/{worker}", lambda pod: pod["spec"].update(affinity=rule))
    world.api.change(PODS, f"ns/{leader}", lambda pod: pod["metadata"].update(labels={"role": "leader"}))
    await world.settle()
    assert world.bound() == ["g-0", "g-1"]
    assert world.node_of("g-0") == world.node_of("g-1")
    assert world.control.queues.of("placement").retries == 0


async def test_a_gang_is_spread_evenly_over_nodes(world: World) -> None:
    furnish(world, 2, 2)
    add(world, "g", 4, range(4))
    evenly = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "g"}},
    }
    for number in range(4):
        world.api.change(PODS, f"ns/g-{number}", lambda pod: pod["metadata"].update(labels={"app": "g"}))
        world.api.change(PODS, f"ns/g-{number}", lambda pod: pod["spec"].update(topologySpreadConstraints=[evenly]))
    await world.settle()
    assert sorted(Counter(world.node_of(name) for name in world.bound()).values()) == [2, 2]


async def test_a_pod_that_joins_a_running_gang_is_placed_by_itself(world: World) -> None:
    furnish(world, 2, 2)
    add(world, "g", 2, range(2))
    await world.settle()
    add(world, "g", 2, range(2, 3))
    await world.settle()
    assert world.bound() == ["g-0", "g-1", "g-2"]


def leader_of_a_refused_gang(world: World) -> str:
    """Another pod may have led before, and have said the same."""
    [refusal] = [it.refusal for it in world.control.placer._gangs._gangs.values() if it.refusal is not None]
    leader = refusal.teller.metadata.name
    assert said(world, leader).startswith("gang g: only 1 of 2")
    return leader


async def test_when_the_leader_goes_a_pod_that_can_be_tried_leads(world: World) -> None:
    furnish(world, 1, 2)
    world.api.add(PODS, Make.pod("first", claims=[Make.FROM_TEMPLATE]))
    await world.settle()
    untried = Make.pod("g-0", claims=[Make.use("missing")])
    untried["metadata"]["annotations"] = {"dra.kopf.dev/gang": "g", "dra.kopf.dev/gang-size": "2"}
    world.api.add(PODS, untried)
    add(world, "g", 2, range(1, 4))
    world.start()
    async with world.running():
        await world.quiet()
        await world.api.delete(PODS, leader_of_a_refused_gang(world), "ns")
        await world.quiet()
        await world.api.delete(PODS, "first", "ns")
        await world.quiet()
    assert len(world.bound()) == 2


async def test_a_gang_that_waits_and_is_tried_again_by_one_pod_after_the_other_writes_nothing(world: World) -> None:
    """One more pod than it needs: what each of them finds names other pods, and says the same."""
    furnish(world, 1, 1)
    add(world, "g", 2, range(3))
    world.start()
    async with world.running() as control:
        await world.quiet()
        leader, before = leader_of_a_refused_gang(world), len(world.api.calls)
        for number in range(10):
            control.queues.add([Key("placement", f"ns/g-{number % 3}")])
            await world.quiet()
    assert [(call.verb, call.name) for call in world.api.calls[before:]] == []
    assert leader_of_a_refused_gang(world) == leader


@pytest.mark.parametrize("end", ["bound", "failed", "ending", "in another gang"])
async def test_when_the_leader_does_not_wait_any_more_another_pod_leads(end: str, world: World) -> None:
    """Others bound it, ended it, or gave it to another gang: the rest of this one waits with it no more."""
    furnish(world, 1, 2)
    world.api.add(PODS, Make.pod("first", claims=[Make.FROM_TEMPLATE]))
    await world.settle()
    add(world, "g", 2, range(3))

    def changed(pod: Obj) -> None:
        if end == "bound":
            pod["spec"]["nodeName"] = "node-0"
        elif end == "failed":
            pod["status"]["phase"] = "Failed"
        elif end == "ending":
            pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/held"]}
        else:
            pod["metadata"]["annotations"]["dra.kopf.dev/gang"] = "other"

    world.start()
    async with world.running():
        await world.quiet()
        leader = leader_of_a_refused_gang(world)
        world.api.change(PODS, f"ns/{leader}", changed)
        await world.quiet()
        await world.api.delete(PODS, "first", "ns")
        await world.quiet()
    assert len([name for name in world.bound() if name != leader]) == 2


async def test_many_gangs_that_wait_are_not_looked_over_for_each_refusal(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0

    def has(index: Index[str], value: str) -> bool:
        nonlocal looked
        looked += 1
        return index.count(value) > 0

    monkeypatch.setattr(gangs, "REMEMBERED_GANGS", 5)
    monkeypatch.setattr(Index, "has", has)
    furnish(world, 1, 1)
    for number in range(40):
        add(world, f"g{number}", 2, range(2))
    await world.settle()
    assert not world.bound()
    assert 5 <= looked <= 400  # with a scan for each of them: 700 and more


async def test_when_the_leader_cannot_be_tried_any_more_another_pod_leads(world: World) -> None:
    furnish(world, 1, 2)
    world.api.add(PODS, Make.pod("first", claims=[Make.FROM_TEMPLATE]))
    await world.settle()
    for number in range(3):
        world.api.add(RESOURCE_CLAIMS, Make.claim(f"c-{number}"))
        pod = Make.pod(f"g-{number}", claims=[Make.use(f"c-{number}")])
        pod["metadata"]["annotations"] = {"dra.kopf.dev/gang": "g", "dra.kopf.dev/gang-size": "2"}
        world.api.add(PODS, pod)
    world.start()
    async with world.running():
        await world.quiet()
        leader = next(key for key, it in world.cluster.waiting.items() if it.reason == "devices")
        await world.api.delete(RESOURCE_CLAIMS, f"c-{leader[-1]}", "ns")
        await world.quiet()
        await world.api.delete(PODS, "first", "ns")
        await world.quiet()
    assert len(world.bound()) == 2


def attempts_of_gangs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gets the pods that lead an attempt from now on."""
    leaders: list[str] = []

    class Counted(GangAttempt):
        def __init__(self, task: GangTask, *others: Any) -> None:
            super().__init__(task, *others)
            leaders.append(task.leader.metadata.name)

    monkeypatch.setattr(gangs, "GangAttempt", Counted)
    return leaders


async def test_a_gang_with_a_pod_that_cannot_be_tried_is_not_planned_for_each_of_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One leads and says why, the others name it, and what becomes of the pod that cannot be tried is told."""
    furnish(world, 2, 3)
    add(world, "g", 6, range(6))
    entry = {"name": "x", "resourceClaimName": "missing"}
    world.api.change(PODS, "ns/g-5", lambda pod: pod["spec"].update(resourceClaims=[entry]))
    leaders = attempts_of_gangs(monkeypatch)
    world.start()
    async with world.running():
        await world.quiet()
        assert len(leaders) == 1
        [leader] = leaders
        told = 'waits for pod g-5 of its gang, which is not tried: resourceclaim "{}" {}'
        assert said(world, leader).startswith(told.format("missing", "not found"))
        others = {said(world, f"g-{it}") for it in range(5) if f"g-{it}" != leader}
        assert others == {f"waits with gang g: pod {leader} says why"}
        world.api.add(RESOURCE_CLAIMS, Make.claim("missing", deletionTimestamp=world.now, finalizers=["x/y"]))
        await world.quiet()
        assert said(world, leader).startswith(told.format("missing", "is being deleted"))
        assert len(leaders) == 2
        world.api.drop(RESOURCE_CLAIMS, "ns/missing")
        world.api.add(RESOURCE_CLAIMS, Make.claim("missing"))
        await world.quiet()
    assert len(world.bound()) == 6


async def test_gangs_are_not_tried_for_a_device_that_another_pod_has_taken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where many gangs wait on a full cluster each would be planned with each end of a pod."""
    furnish(world, 1, 2)
    for name in ("runs-0", "runs-1", "alone"):
        world.api.add(PODS, Make.pod(name, claims=[Make.FROM_TEMPLATE]))
    for gang in ("g", "h"):
        add(world, gang, 2, range(2))
    for second, pod in enumerate(world.api.of(PODS)):
        created = f"2026-01-01T00:00:{second:02}Z"
        world.api.change(PODS, f"ns/{pod['metadata']['name']}", partial(set_created, created=created))
    world.start()
    async with world.running():
        await world.quiet()
        leaders = attempts_of_gangs(monkeypatch)
        world.api.change(PODS, "ns/runs-0", lambda pod: pod["status"].update(phase="Succeeded"))
        await world.quiet()
        assert world.bound() == ["alone", "runs-0", "runs-1"]
        assert leaders == []
        for name in ("runs-1", "alone"):
            world.api.change(PODS, f"ns/{name}", lambda pod: pod["status"].update(phase="Succeeded"))
        await world.quiet()
    assert len(world.bound()) == 5


def set_created(pod: Obj, created: str) -> None:
    pod["metadata"]["creationTimestamp"] = created


async def test_a_gang_that_needs_one_pod_less_is_tried_again(world: World) -> None:
    """A person binds the one of its pods that cannot be tried, and a pod that does not lead is looked at."""
    furnish(world, 1, 2)
    add(world, "g", 3, range(3))
    entry = {"name": "x", "resourceClaimName": "missing"}
    world.api.change(PODS, "ns/g-2", lambda pod: pod["spec"].update(resourceClaims=[entry]))
    world.start()
    async with world.running():
        await world.quiet()
        world.api.change(PODS, "ns/g-1", lambda pod: pod["metadata"].update(labels={"asks": "anew"}))
        await world.quiet()
        assert said(world, "g-1").startswith("waits for pod g-2 of its gang")
        world.api.change(PODS, "ns/g-2", lambda pod: pod["spec"].update(nodeName="node-0"))
        await world.quiet()
    assert world.bound() == ["g-0", "g-1", "g-2"]


async def test_a_gang_is_tried_again_when_what_was_being_written_for_one_of_its_pods_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device comes free while another pod is told that it waits with the leader, whose attempt comes to nothing."""
    furnish(world, 1, 1)
    add(world, "g", 2, range(2))
    original, told = PodWriter.report_waiting, list[str]()

    async def slow(writer: PodWriter, pod: Pod, reason: str, message: str) -> Pod:
        if pod.metadata.name in told:
            told.clear()
            world.furnish(["node-1"], 1)
            for _ in range(50):
                world.bring_events()
                await world.tick()
        return await original(writer, pod, reason, message)

    monkeypatch.setattr(PodWriter, "report_waiting", slow)
    world.start()
    async with world.running():
        await world.quiet()
        told += [it for it in ("g-0", "g-1") if said(world, it).startswith("waits with")]
        world.api.change(PODS, f"ns/{told[0]}", lambda pod: pod["status"].pop("conditions"))
        world.bring_events()
        world.control.queues.add([Key("placement", f"ns/{told[0]}")])
        await world.quiet()
    assert not told
    assert len(world.bound()) == 2


async def test_after_an_error_in_the_plan_of_a_gang_it_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(world, 2, 1)
    add(world, "g", 2, range(2))
    left = [RuntimeError("broken")]

    def broken(*args: Any) -> Any:
        if left:
            raise left.pop()
        return joint_plan(*args)

    monkeypatch.setattr(gang_chapter, "joint_plan", broken)
    await world.settle()
    assert world.bound() == ["g-0", "g-1"]


async def test_a_gang_whose_plan_fails_says_so_and_is_tried_again_after_a_back_off(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(world, 2, 1)
    add(world, "g", 2, range(2))
    await world.stop_before_bindings()
    answer = NoPlace("selector of device class gpu: no such key", is_error=True)
    monkeypatch.setattr(gang_chapter, "joint_plan", lambda *_: answered(answer))
    world.start()
    with pytest.raises(PlacementFailed, match="no such key"):
        await world.attempt("ns/g-0")
    assert said(world, "g-0") == "gang g: selector of device class gpu: no such key"
    assert not world.holders()


def answered(answer: NoPlace) -> Generator[Any, Any, NoPlace]:
    """A plan without a pause."""
    yield from ()
    return answer


async def test_a_pod_of_a_gang_that_gives_up_may_have_lost_its_claim_already(world: World) -> None:
    furnish(world, 2, 1)
    add(world, "g", 2, range(2))
    await world.stop_before_bindings()
    assert len(world.holders()) == 2
    world.start()
    gone = world.api[PODS, "ns/g-0"]["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
    world.api.drop(RESOURCE_CLAIMS, f"ns/{gone}")
    assert await world.control.placer._gangs._unreserve.give_up_held(world.cluster.pods, "a test")
    assert not world.holders()


async def test_a_gang_says_for_which_other_pod_it_waits_when_one_has_its_claim(world: World) -> None:
    furnish(world, 3, 1)
    world.controllers = OwnControllers.of({"placement", "release"})
    add(world, "g", 3, range(3))
    record_claim(world, "g-0")
    world.start()
    async with world.running():
        await world.busy()
        await asyncio.sleep(world.times.unmade_gang_claims)
        await world.busy()
        for other in (1, 2):
            assert said(world, "g-0").startswith(f"waits for pod g-{other} of its gang")
            record_claim(world, f"g-{other}")
            await world.busy()
    assert world.bound() == ["g-0", "g-1", "g-2"]


async def test_if_one_claim_cannot_be_written_all_members_give_theirs_back(world: World) -> None:
    furnish(world, 2, 2)
    add(world, "g", 4, range(4))
    world.start()
    refuses = True

    def refuse(call: Call) -> Exception | None:
        is_allocation = (call.verb, call.plural, call.sub) == ("update", "resourceclaims", "status")
        return Forbidden(403, "Forbidden", "no") if refuses and is_allocation and call.name.startswith("g-2") else None

    world.api.before = refuse
    async with world.running():
        for _ in range(80):
            world.bring_events()
            await world.tick()
        assert world.bound() == []
        refuses = False
        await world.quiet()
    assert world.bound() == ["g-0", "g-1", "g-2", "g-3"]


async def test_an_operator_that_starts_in_the_middle_completes_the_gang_or_gives_all_back(world: World) -> None:
    furnish(world, 2, 2)
    add(world, "g", 4, range(4))
    await world.stop_before_bindings()
    assert world.bound() == []
    assert len(world.holders()) == 4
    await world.settle()
    assert world.bound() == ["g-0", "g-1", "g-2", "g-3"]


async def test_after_a_restart_a_gang_that_lacks_a_pod_gives_its_devices_back(world: World) -> None:
    furnish(world, 2, 2)
    add(world, "g", 4, range(4))
    await world.stop_before_bindings()
    await world.api.delete(PODS, "g-3", "ns")
    await world.settle()
    assert world.bound() == []
    assert not world.holders()


async def test_gangs_of_the_same_name_in_two_namespaces_are_two(world: World) -> None:
    furnish(world, 2, 2)
    add(world, "g", 2, range(1))
    other = Make.pod("g-1")
    other["metadata"].update(namespace="other", annotations=dict(world.api[PODS, "ns/g-0"]["metadata"]["annotations"]))
    world.api.add(PODS, other)
    await world.settle()
    assert world.bound() == []


async def test_the_pods_of_a_job_are_a_gang_by_a_number_on_its_template(world: World) -> None:
    furnish(world, 2, 2)
    for job, number in (("a", 0), ("a", 1), ("b", 0)):
        pod = Make.pod(f"{job}-{number}", claims=[Make.FROM_TEMPLATE])
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": f"job-{job}", "controller": True}
        pod["metadata"].update(annotations={"dra.kopf.dev/gang": "2"}, ownerReferences=[owner])
        world.api.add(PODS, pod)
    await world.settle()
    assert world.bound() == ["a-0", "a-1"]
    assert said(world, "b-0") == "waits for other pods: gang of Job b has fewer than the 2 pods that it needs"


async def test_the_pods_of_each_group_of_a_leader_worker_set_are_a_gang(world: World) -> None:
    """The leader and the workers have different controllers, and one group may start before another."""
    furnish(world, 3, 1)
    for group in ("one", "two"):
        for number, owner in enumerate(("serve", f"serve-{group}", f"serve-{group}")):
            pod = Make.pod(f"{group}-{number}", claims=[Make.FROM_TEMPLATE])
            controller = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": owner, "uid": owner}
            pod["metadata"].update(
                annotations={"dra.kopf.dev/gang": "3"},
                labels={"leaderworkerset.sigs.k8s.io/group-key": group},
                ownerReferences=[{**controller, "controller": True}],
            )
            world.api.add(PODS, pod)
    await world.settle()
    assert world.bound() in (["one-0", "one-1", "one-2"], ["two-0", "two-1", "two-2"])
    assert len(world.holders()) == 3


def has_to_be_attached(slice_: Obj) -> None:
    conditions = {"bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]}
    slice_["spec"]["devices"][0].update(conditions)


def furnish_with_conditions(world: World) -> None:
    """Give each of two nodes a device that has to be attached; allocations have a time."""
    furnish(world, 2, 1)
    world.now = "2026-01-01T00:00:00Z"
    for slice_ in world.api.of(RESOURCE_SLICES):
        world.api.change(RESOURCE_SLICES, slice_["metadata"]["name"], has_to_be_attached)


def attached(claim: Obj, condition: str) -> None:
    """What the driver writes of the claim's device."""
    result = claim["status"]["allocation"]["devices"]["results"][0]
    device = {key: result[key] for key in ("driver", "pool", "device")}
    conditions = [{"type": condition, "status": "True", "reason": "R", "message": "m"}]
    claim["status"]["devices"] = [{**device, "conditions": conditions}]


@pytest.mark.parametrize("end", ["attached", "broken", "never"])
async def test_a_gang_is_bound_when_all_its_devices_are_ready_or_gives_all_of_them_back(end: str, world: World) -> None:
    furnish_with_conditions(world)
    add(world, "g", 2, range(2))
    world.start()
    async with world.running():
        await world.busy()
        names = [it["metadata"]["name"] for it in world.api.of(RESOURCE_CLAIMS)]
        assert len(world.holders()) == 2
        world.api.change(RESOURCE_CLAIMS, f"ns/{names[0]}", partial(attached, condition="attached"))
        await world.busy()
        assert not world.bound()
        assert len(world.holders()) == 2
        for slice_ in list(world.api.of(RESOURCE_SLICES)) if end != "attached" else ():
            world.api.drop(RESOURCE_SLICES, slice_["metadata"]["name"])
        if end == "never":
            world.now = "2026-01-01T00:11:00Z"
            world.control.look_again()
        else:
            world.api.change(RESOURCE_CLAIMS, f"ns/{names[1]}", partial(attached, condition=end))
        await world.busy()
    assert world.bound() == (["g-0", "g-1"] if end == "attached" else [])
    assert len(world.holders()) == (2 if end == "attached" else 0)


async def test_a_further_pod_takes_no_place_of_one_whose_devices_get_ready(world: World) -> None:
    """Three pods, of which two are needed and two have devices: the first that was ready planned the third instead of
    the second, found no device for it, and gave its own back, in turn and for ever."""
    furnish_with_conditions(world)
    add(world, "g", 2, range(3))
    world.start()
    async with world.running():
        await world.busy()
        first, second = (it["metadata"]["name"] for it in world.api.of(RESOURCE_CLAIMS) if is_allocated(it))
        world.api.change(RESOURCE_CLAIMS, f"ns/{first}", partial(attached, condition="attached"))
        await world.busy()
        assert world.bound() == []
        world.control.look_again()
        await world.busy()
        world.api.change(RESOURCE_CLAIMS, f"ns/{second}", partial(attached, condition="attached"))
        await world.busy()
    assert len(world.bound()) == 2
    written = [call for call in world.api.calls if (call.plural, call.sub) == ("resourceclaims", "status")]
    assert len(written) == 2, "nothing was given back"


def is_allocated(claim: Obj) -> bool:
    return bool((claim.get("status") or {}).get("allocation"))


async def test_another_pod_takes_the_place_of_one_that_gave_up_while_its_devices_got_ready(world: World) -> None:
    """Its claim is deleted, and there is no template for another one. Nothing but its own decision says so."""
    furnish_with_conditions(world)
    add(world, "g", 2, range(3))
    world.start()
    async with world.running():
        await world.busy()
        first, second = (it["metadata"]["name"] for it in world.api.of(RESOURCE_CLAIMS) if is_allocated(it))
        world.api.change(RESOURCE_CLAIMS, f"ns/{first}", partial(attached, condition="attached"))
        await asyncio.sleep(world.times.silence + 1)
        await world.busy()  # all have said why they wait, and come back for nothing more
        world.api.drop(RESOURCE_CLAIM_TEMPLATES, "ns/tmpl")
        world.api.deleted(RESOURCE_CLAIMS, second, "ns")
        await world.busy()
        await asyncio.sleep(gangs.MATE_LOOK_SECONDS)
        await world.busy()
        [third] = (it["metadata"]["name"] for it in world.api.of(RESOURCE_CLAIMS) if it["metadata"]["name"] != first)
        assert is_allocated(world.api[RESOURCE_CLAIMS, f"ns/{third}"])
        world.api.change(RESOURCE_CLAIMS, f"ns/{third}", partial(attached, condition="attached"))
        await world.busy()
    assert len(world.bound()) == 2


async def test_a_gang_whose_devices_break_at_once_tries_ever_more_seldom(world: World) -> None:
    """A driver that reports each device as broken would have it allocated and given back without end."""
    furnish_with_conditions(world)
    add(world, "g", 2, range(2))
    world.start()
    written: list[Call] = []

    def note(call: Call) -> Exception | None:
        if (call.verb, call.plural, call.sub) == ("update", "resourceclaims", "status"):
            written.append(call)
        return None

    world.api.before = note
    async with world.running():
        end = asyncio.get_running_loop().time() + 3
        while asyncio.get_running_loop().time() < end:
            for claim in world.api.of(RESOURCE_CLAIMS):
                if is_allocated(claim) and not claim["status"].get("devices"):
                    world.api.change(RESOURCE_CLAIMS, f"ns/{claim['metadata']['name']}", broken)
            world.bring_events()
            await world.tick()
    assert 4 < len(written) < 40, "pauses of 0, 0.05, 0.1 ... s, and four writes between two of them"


def broken(claim: Obj) -> None:
    attached(claim, "broken")


@pytest.mark.parametrize("number", [0, 1])
async def test_a_gang_gives_all_devices_back_though_a_write_for_one_of_its_pods_is_lost(
    number: int, world: World
) -> None:
    """The pod whose write it was waited with its devices until the sweep: only the other one was looked at again."""
    furnish_with_conditions(world)
    add(world, "g", 2, range(2))
    world.start()
    async with world.running():
        await world.busy()
        names = [it["metadata"]["name"] for it in world.api.of(RESOURCE_CLAIMS)]
        lost: list[Call] = []

        def lose(call: Call) -> Exception | None:
            if lost or (call.verb, call.sub, call.name) != ("update", "status", names[number]):
                return None
            lost.append(call)
            return Unreachable("cut")

        world.api.change(RESOURCE_CLAIMS, f"ns/{names[0]}", partial(attached, condition="attached"))
        await world.busy()
        world.api.before = lose
        for slice_ in list(world.api.of(RESOURCE_SLICES)):
            world.api.drop(RESOURCE_SLICES, slice_["metadata"]["name"])
        world.api.change(RESOURCE_CLAIMS, f"ns/{names[1]}", partial(attached, condition="broken"))
        await world.busy()
        await world.busy()
    assert lost
    assert not world.holders()


async def test_pods_that_join_a_gang_on_its_way_are_placed_as_soon_as_it_is_bound(world: World) -> None:
    """However long the gang's devices take to get ready: the pauses of a pod that gives claims up are not for it."""
    furnish(world, 4, 1)
    world.times = replace(world.times, placement_retries=BackoffSettings(first=30.0, longest=60.0))
    for slice_ in world.api.of(RESOURCE_SLICES):
        world.api.change(RESOURCE_SLICES, slice_["metadata"]["name"], has_to_be_attached)
    add(world, "g", 2, range(2))
    world.start()
    async with world.running():
        await world.busy()
        assert len(world.holders()) == 2
        names = [it["metadata"]["name"] for it in world.api.of(RESOURCE_CLAIMS)]
        add(world, "g", 2, range(2, 4))
        await world.busy()
        assert not world.bound()
        for name in names:
            world.api.change(RESOURCE_CLAIMS, f"ns/{name}", partial(attached, condition="attached"))
        await world.busy()
        assert world.bound() == ["g-0", "g-1"]
        assert len(world.holders()) == 4


async def test_a_pod_group_of_kueue_is_a_gang(world: World) -> None:
    furnish(world, 2, 2)
    for number in range(2):
        pod = Make.pod(f"k-{number}", claims=[Make.FROM_TEMPLATE])
        pod["metadata"].update(
            labels={"kueue.x-k8s.io/pod-group-name": "k"}, annotations={"kueue.x-k8s.io/pod-group-total-count": "2"}
        )
        world.api.add(PODS, pod)
        await world.settle()
        assert world.bound() == (["k-0", "k-1"] if number else [])


async def test_a_gang_of_a_thousand_pods_and_more_costs_other_tenants_nothing(world: World) -> None:
    """Of 1,200 pods that name one gang none is planned, and the pod of another namespace is placed meanwhile."""
    world.furnish(1, 1)
    for number in range(1200):
        pod = Make.pod(f"h-{number}")
        pod["metadata"]["annotations"] = {"dra.kopf.dev/gang": "h", "dra.kopf.dev/gang-size": "1000"}
        world.api.add(PODS, pod)
    pod = Make.pod("other")
    pod["metadata"]["namespace"] = "other"
    world.api.add(PODS, pod)
    world.start()
    began = time.process_time()
    decided = await world.control.placer.decide("ns/h-0")
    assert isinstance(decided, Decided)
    assert time.process_time() - began < 0.1
    assert decided.follow_up is not None
    await decided.follow_up()
    assert said(world, "h-0").startswith("gang h has 1200 pods, and at most 1000 are supported: ")
    await world.attempt("other/other")
    assert world.api[PODS, "other/other"]["spec"]["nodeName"] == "node-0"


async def test_the_pods_of_a_large_gang_are_not_counted_for_each_of_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the gang is complete is asked for each of its pods, and again for each that is decided on meanwhile."""
    world.furnish(1, 1)
    for number in range(200):
        pod = Make.pod(f"h-{number}")
        pod["metadata"]["annotations"] = {"dra.kopf.dev/gang": "h", "dra.kopf.dev/gang-size": "200"}
        world.api.add(PODS, pod)
    world.start()
    looked_at: list[str] = []
    is_waiting_member = Cluster.is_waiting_member

    def looks(cluster: Cluster, pod: Pod) -> bool:
        looked_at.append(pod.key)
        return is_waiting_member(cluster, pod)

    monkeypatch.setattr(Cluster, "is_waiting_member", looks)
    while isinstance(await world.control.placer.decide("ns/h-0"), Postponed):
        await world.control.placer.decide("ns/h-1")
    assert 200 <= len(looked_at) < 600


async def test_a_namespace_pays_for_looks_at_its_gangs_that_lead_to_no_plan(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(world, 1, 1)
    add(world, "g", 2, range(1))
    world.start()
    seconds = iter(range(100))
    monkeypatch.setattr(cycle, "time", SimpleNamespace(thread_time=lambda: float(next(seconds))))
    decided = await world.control.placer.decide("ns/g-0")
    assert isinstance(decided, Decided)
    assert decided.spent == 1.0


async def test_pods_of_a_gang_whose_claims_are_made_one_by_one_are_not_all_looked_at_for_each(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kube-controller-manager makes the claims; while one is awaited it is enough to look at its pod."""
    furnish(world, 1, 1)
    world.controllers = OwnControllers.of({"placement", "release"})
    add(world, "g", 100, range(100))
    for number in range(99):
        record_claim(world, f"g-{number}")
    world.start()
    looked_at: list[str] = []
    lacks_generated_claim = Cluster.lacks_generated_claim

    def looks(cluster: Cluster, pod: Pod) -> bool:
        looked_at.append(pod.metadata.name)
        return lacks_generated_claim(cluster, pod)

    monkeypatch.setattr(Cluster, "lacks_generated_claim", looks)
    for number in range(99):
        await world.control.placer.decide(f"ns/g-{number}")
    assert len(looked_at) < 300


def record_claim(world: World, pod: str) -> None:
    world.api.add(RESOURCE_CLAIMS, Make.claim(f"of-{pod}", owner=world.api[PODS, f"ns/{pod}"]["metadata"]))
    recorded = [{"name": "entry-0", "resourceClaimName": f"of-{pod}"}]
    world.api.change(PODS, f"ns/{pod}", lambda it: it["status"].update(resourceClaimStatuses=recorded))


async def test_a_large_gang_is_planned_in_turns_and_bound(world: World) -> None:
    furnish(world, 10, 6)
    add(world, "g", 60, range(60))
    for number in range(10):
        world.api.change(NODES, f"node-{number}", lambda obj: obj["status"]["allocatable"].update(pods="50"))
    await world.settle()
    assert len(world.bound()) == 60


def furnish_domains(world: World, *domains: str) -> None:
    """Nodes with two devices each, all of the node's domain."""
    furnish(world, len(domains), 2)
    for number, domain in enumerate(domains):
        devices = [{"name": f"dev-{n}", "attributes": {DOMAIN: {"string": domain}}} for n in range(2)]
        world.api.change(RESOURCE_SLICES, f"node-{number}-gpu.example.com", partial(_publish, devices))


def _publish(devices: list[Obj], slice_: Obj) -> None:
    slice_["spec"]["devices"] = devices


async def test_a_gang_and_the_pods_that_join_it_get_devices_with_one_value_of_an_attribute(world: World) -> None:
    furnish_domains(world, "d1", "d2", "d2")
    add(world, "g", 3, range(3), **MATCH_DOMAIN)
    await world.settle()
    assert len(world.bound()) == 3
    assert not {"node-0/dev-0", "node-0/dev-1"} & world.holders().keys()
    add(world, "g", 3, range(3, 5), **MATCH_DOMAIN)
    await world.settle()
    assert len(world.bound()) == 4
    assert world.holders().keys() == {f"node-{node}/dev-{device}" for node in (1, 2) for device in (0, 1)}
    [waits] = {"g-3", "g-4"} - {*world.bound()}
    assert said(world, waits).startswith(
        f"gang g: only 0 of 1 pods fit together on devices with the same value of {DOMAIN}, closest with d2; "
    )


async def test_after_a_restart_the_devices_of_a_gang_still_have_one_value(world: World) -> None:
    """Two pods have their devices; the others, which could not be written, get some of the same domain."""
    furnish_domains(world, "d1", "d1", "d2")
    add(world, "g", 4, range(4), **MATCH_DOMAIN)
    world.start()
    world.api.before = lambda call: Unreachable("cut") if call.name in ("g-2", "g-3") or call.sub == "binding" else None
    async with world.running():
        for _ in range(60):
            world.bring_events()
            await world.tick()
    assert world.bound() == []
    world.api.before = lambda _: None
    await world.settle()
    assert world.bound() == ["g-0", "g-1", "g-2", "g-3"]
    assert not {"node-2/dev-0", "node-2/dev-1"} & world.holders().keys()


async def test_a_malformed_attribute_of_a_gang_is_told_and_no_pod_is_placed(world: World) -> None:
    furnish(world, 1, 2)
    add(world, "g", 2, range(2), **{"dra.kopf.dev/gang-match-attribute": "domain"})
    await world.settle()
    assert world.bound() == []
    assert said(world, "g-0") == (
        'dra.kopf.dev/gang-match-attribute: "domain" is not a device attribute; name it with its domain, as '
        "matchAttribute does"
    )


@pytest.mark.parametrize("size", ["100000", "0", "-1", "two", "", "٣"])
async def test_a_malformed_size_is_told_with_its_key_and_the_pod_is_not_placed(size: str, world: World) -> None:
    furnish(world, 1, 2)
    pod = Make.pod("p")
    pod["metadata"]["annotations"] = {"dra.kopf.dev/gang": "g", "dra.kopf.dev/gang-size": size}
    world.api.add(PODS, pod)
    await world.settle()
    assert world.bound() == []
    assert said(world, "p") == f'dra.kopf.dev/gang-size: "{size}" is not a number of pods; set it to 1 to 1000'


async def test_a_pod_without_a_controller_cannot_name_its_gang_by_a_number(world: World) -> None:
    furnish(world, 1, 2)
    pod = Make.pod("p")
    pod["metadata"]["annotations"] = {"dra.kopf.dev/gang": "4"}
    world.api.add(PODS, pod)
    await world.settle()
    assert "has no controller" in said(world, "p")


@pytest.mark.parametrize("refused", [1, 3])
async def test_a_pod_that_is_not_bound_keeps_its_devices_if_its_gang_runs(refused: int, world: World) -> None:
    """If none was bound, all give their devices back. Either way all are bound in the end."""
    furnish(world, 1, 3)
    add(world, "g", 3, range(3))
    witness, left = Witness(world, 3), refused
    fewest = 3

    def before(call: Call) -> Exception | None:
        nonlocal left, fewest
        having = sum(world.holders().values())
        if call.sub == "binding":
            witness.look(call.name)
            if left:
                left -= 1
                return ApiError(409, "Conflict", "a webhook says no")
        if left < refused:
            fewest = min(fewest, having)
        return None

    world.api.before = before
    await world.settle()
    assert world.bound() == ["g-0", "g-1", "g-2"]
    assert not witness.faults
    assert fewest == (3 if refused == 1 else 0)


class Histories:
    """Gangs of these sizes, and what happens to them. ``groups``: they are PodGroups, which come late, ask for one pod
    too many at first, share a claim, or are made again."""

    def __init__(self, world: World, dice: random.Random, sizes: dict[str, int], *, groups: bool) -> None:
        self._world, self._dice, self.sizes, self._groups = world, dice, sizes, groups
        self.sharing = {name for name in sizes if groups and dice.random() < 0.3}
        self._made = 0
        for name, size in sizes.items():
            if groups and dice.random() < 0.7:
                self._make_group(name)
            self.add(name, range(size))

    def add(self, gang: str, pods: range) -> None:
        if not self._groups:
            add(self._world, gang, self.sizes[gang], pods)
            return
        for number in pods:
            pod = Make.pod(f"{gang}-{number}", [Make.FROM_TEMPLATE], schedulingGroup={"podGroupName": gang})
            self._world.api.add(PODS, pod)

    def _make_group(self, name: str) -> None:
        self._made += 1
        entry = {"name": "entry-0", **Make.FROM_TEMPLATE}
        more = self._dice.choice((0, 0, 1))
        spec: Obj = {"schedulingPolicy": {"gang": {"minCount": self.sizes[name] + more}}}
        if name in self.sharing:
            spec["resourceClaims"] = [entry]
        meta = {"name": name, "namespace": "ns", "uid": f"group-{name}-{self._made}"}
        self._world.api.add(POD_GROUPS, {"metadata": meta, "spec": spec})

    def happen(self) -> None:
        """Something may."""
        if self._dice.random() < 0.4:
            self._leave_and_return()
        for name in self.sizes if self._groups else ():
            if not self._runs(name) and self._dice.random() < 0.3:
                if self._has_group(name):
                    if name in self.sharing:
                        continue  # its claim would have to go with it
                    self._world.api.drop(POD_GROUPS, f"ns/{name}")
                if self._dice.random() < 0.7:
                    self._make_group(name)

    def end(self) -> None:
        """Each gang asks for its size."""
        for name, size in self.sizes.items() if self._groups else ():
            if not self._has_group(name):
                self._make_group(name)
            policy = {"gang": {"minCount": size}}
            self._world.api.change(POD_GROUPS, f"ns/{name}", partial(_put_policy, policy))

    def _leave_and_return(self) -> None:
        """A pod that has no node is deleted, and another one takes its name, as a Job does."""
        waiting = [pod["metadata"]["name"] for pod in self._world.api.of(PODS) if not pod["spec"].get("nodeName")]
        if waiting:
            gang, number = self._dice.choice(waiting).split("-")
            if not self._runs(gang):
                self._world.api.drop(PODS, f"ns/{gang}-{number}")
                self.add(gang, range(int(number), int(number) + 1))

    def _runs(self, gang: str) -> bool:
        return any(name.startswith(gang) for name in self._world.bound())

    def _has_group(self, name: str) -> bool:
        return any(it["metadata"]["name"] == name for it in self._world.api.of(POD_GROUPS))


def _put_policy(policy: Obj, group: Obj) -> None:
    group["spec"]["schedulingPolicy"] = policy


@pytest.mark.parametrize("seed", range(HISTORIES))
async def test_no_history_binds_half_a_gang_or_leaves_devices_with_a_gang_that_waits(seed: int) -> None:
    """Answers are lost, pods end, the operator starts again; in the end all is quiet and certain. Every second history
    is one of PodGroups."""
    dice, groups = random.Random(seed), seed % 2 == 1
    world = World(Features(generic_workload=groups, workload_resource_claims=groups))
    furnish(world, 2, dice.choice((2, 3)))
    histories = Histories(world, dice, {name: dice.choice((2, 3)) for name in "ab"}, groups=groups)
    witnesses = {name: Witness(world, size) for name, size in histories.sizes.items()}
    lossy = True

    def before(call: Call) -> Exception | None:
        if lossy and call.verb != "get" and dice.random() < 0.1:
            return dice.choice((Unreachable("cut"), ServerError(503, "ServiceUnavailable", "down")))
        if call.sub == "binding":
            witnesses[call.name.split("-")[0]].look(call.name)
        return None

    world.api.before = before
    world.api.after = lambda call: Unreachable("lost") if lossy and call.verb != "get" and dice.random() < 0.1 else None
    for _ in range(dice.randint(1, 3)):
        world.start()
        async with world.running():
            for _ in range(dice.randint(5, 40)):
                world.bring_events()
                await world.tick()
        histories.happen()
    lossy = False
    histories.end()
    await world.settle()
    check(world.cluster)
    faults = [fault for witness in witnesses.values() for fault in witness.faults]
    assert not faults
    running = Counter(name.split("-")[0] for name in world.bound())
    assert all(running[name] == histories.sizes[name] for name in running), running
    assert running, "at least one of them fits"
    assert world.holders().total() == sum(1 if name in histories.sharing else running[name] for name in running)
