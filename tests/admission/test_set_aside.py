"""Workloads and templates for which the cache has no room."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from admission_world import AdmissionWorld, LaggingWorld, made, planner, question
from dra_api.codec import encode
from dra_api.kueue import Workload
from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES, WORKLOADS, KubeError, Unreachable
from dra_operator.admission import api
from dra_operator.cache import BulkLimits
from dra_operator.scheduling.state import is_set_aside, is_workload_set_aside
from fake_api import Call
from kueue_model import finish, is_true, pods_of, workload
from objects import Make, Obj

BULKY: Any = {"tolerations": [{"key": f"key-{it:06d}.example.com/x", "operator": "Exists"} for it in range(100)]}
PARAMETERS = {"opaque": {"driver": "gpu.example.com", "parameters": {"text": "x" * 3_000}}}


@pytest.fixture
def world() -> AdmissionWorld:
    found = AdmissionWorld()
    found.furnish(nodes=2, devices=2)
    found.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    return found


def bulky_template(name: str) -> dict[str, Any]:
    template = Make.template(name)
    template["spec"]["spec"]["devices"]["config"] = [PARAMETERS]
    return template


def reads(world: AdmissionWorld) -> list[Call]:
    return [it for it in world.api.calls if it.verb == "get" and it.plural == "resourceclaimtemplates"]


async def test_a_workload_is_planned_with_the_whole_template_and_that_is_read_once(world: AdmissionWorld) -> None:
    world.limits = BulkLimits(whole=0)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, bulky_template("bulky"))
    for number in range(3):
        world.api.add(WORKLOADS, workload(f"train-{number}", template="bulky"))
    world.kueue.makes_pods = False  # their claims would be made from what is read
    world.start()
    async with world.running():
        await world.until("admitted", lambda: world.is_admitted("train-0", "train-1", "train-2"))
        await world.rests(0.3)
    assert len(reads(world)) == 1


async def test_a_workload_whose_template_has_no_room_says_so_and_is_not_rejected(
    world: AdmissionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "READ_BYTES", -1)
    world.limits = BulkLimits(whole=0)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, bulky_template("bulky"))
    world.api.add(WORKLOADS, workload("train", template="bulky"))
    world.start()
    async with world.running():
        await world.until("refused", lambda: world.kueue.decided["Retry"])
        await world.until("told", lambda: "requeueState" in world.workload("train").get("status", {}))
    assert "its namespace has more large templates than dra-operator keeps in memory" in world.check("train")["message"]
    assert world.kueue.decided["Rejected"] == 0


async def test_templates_that_are_read_for_a_round_are_bounded(
    world: AdmissionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "READ_BYTES", 20_000)
    world.limits = BulkLimits(whole=0)
    for number in range(20):
        world.api.add(RESOURCE_CLAIM_TEMPLATES, bulky_template(f"bulky-{number}"))
        world.api.add(WORKLOADS, workload(f"train-{number}", template=f"bulky-{number}"))
    world.kueue.makes_pods = False
    world.start()
    async with world.running():
        await world.until("some are admitted", lambda: sum(world.is_admitted(f"train-{it}") for it in range(20)) == 3)
        await world.until("all are answered", lambda: all(world.check(f"train-{it}") for it in range(20)))
        held = [it for it in world.admission._reader.templates.values() if not isinstance(it, str)]
        assert sum(len(it.spec) for it in held) <= 20_000 // 2 + 4_000


async def test_a_workload_for_which_there_is_no_room_says_so_and_is_not_rejected(
    world: AdmissionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "READ_BYTES", -1)
    world.limits = BulkLimits(whole=0)
    world.api.add(WORKLOADS, workload("train", **BULKY))
    world.api.add(WORKLOADS, workload("short"))
    world.start()
    async with world.running():
        await world.until("the short one is admitted", lambda: world.is_admitted("short"))
        await world.until("told", lambda: "requeueState" in world.workload("train").get("status", {}))
    assert "more of such objects than dra-operator keeps in memory" in world.check("train")["message"]
    assert world.kueue.decided["Rejected"] == 0


async def test_large_workloads_run_one_after_another_though_there_is_room_for_few(world: AdmissionWorld) -> None:
    world.kueue.quota = 2
    world.limits = BulkLimits(whole=40_000)
    for number in range(20):
        world.api.add(WORKLOADS, workload(f"train-{number}", **BULKY))
    world.start()
    done = set[str]()
    async with world.running():
        while len(done) < 20:
            await world.until("one runs", lambda: running(world) - done)
            for name in running(world) - done:
                finish(world.api, f"ns/{name}")
                done.add(name)
        await world.until(
            "little is held",
            lambda: all(it.has("Finished") and is_workload_set_aside(it) for it in world.cluster.store_of(Workload)),
        )
        assert sum(len(encode(it)) for it in world.cluster.store_of(Workload)) < 20 * 1_500
    assert world.kueue.decided["Rejected"] == 0


def running(world: AdmissionWorld) -> set[str]:
    return {f"train-{it}" for it in range(20) if world.pods(f"train-{it}")}


async def test_a_promise_is_kept_while_its_pods_are_set_aside(world: AdmissionWorld) -> None:
    obj = workload("train", 2, **BULKY)
    world.limits = BulkLimits(whole=0)
    for pod in pods_of(obj):
        world.api.add(PODS, pod)
    planning = planner(world)
    promised = made("train", 2)
    assert all(is_set_aside(pod) for pod in world.cluster.pods)
    assert len(list(world.cluster.pods)) == 2
    found = planning.answer(question(world, promised=[promised])).promised["train"]
    assert found.fits
    assert len(found.seats) == 2


async def test_a_running_workload_takes_no_room_from_those_that_wait(world: AdmissionWorld) -> None:
    world.limits = BulkLimits(whole=40_000)
    world.api.add(WORKLOADS, workload("train", 2, **BULKY))
    world.start()
    async with world.running():
        await world.until("its pods run", lambda: len(world.pods("train")) == 2)
        await world.until("given back", lambda: all(map(is_workload_set_aside, world.cluster.store_of(Workload))))
        await world.rests(0.3)
        assert is_true(world.workload("train"), "Admitted")


async def test_a_promise_keeps_its_place_while_the_cache_has_an_older_version() -> None:
    """The server has written more than the watch has brought: the spec is the same, and is read."""
    world = LaggingWorld()
    world.furnish(nodes=2, devices=2)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    world.limits = BulkLimits(whole=0)
    world.api.add(WORKLOADS, workload("first", 4, **BULKY))
    world.kueue.makes_pods = False
    world.start()
    async with world.running():
        await world.until("first is admitted", lambda: world.is_admitted("first"))
        world.is_stalled = True
        for number in range(3):
            world.api.change(WORKLOADS, "ns/first", partial(relabel, str(number)))
            world.admission._next.look_again()
            await world.rests(0.2)
        assert len(world.admission._promises._seats[world.workload("first")["metadata"]["uid"]]) == 4


def relabel(value: str, obj: Obj) -> None:
    obj["metadata"]["labels"] = {"n": value}


def refuses_to_read(call: Call) -> KubeError | None:
    return Unreachable("connection reset") if (call.verb, call.plural) == ("get", "workloads") else None


async def test_nothing_is_promised_while_a_promise_cannot_be_read(
    world: AdmissionWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.limits = BulkLimits(whole=0)
    world.api.add(WORKLOADS, workload("first", 4, **BULKY))
    world.kueue.makes_pods = False
    world.start()
    async with world.running():
        await world.until("first is admitted", lambda: world.is_admitted("first"))
        world.admission._reader._known.clear()
        world.api.before = refuses_to_read
        world.kueue.quota = 100
        world.api.add(WORKLOADS, workload("second", 1))
        await world.rests(1.0)
        assert not world.is_admitted("second")
        for _ in range(5):
            world.admission._next.look_again()
            await world.rests(0.2)
        assert caplog.text.count("one with a promise cannot be read") == 1


def bulky_claim(name: str, count: int = 1) -> Obj:
    claim = Make.claim(name, count=count)
    claim["spec"]["devices"]["config"] = [PARAMETERS]
    return claim


def sharing(name: str, claim: str, pods: int = 1, **spec: Any) -> Obj:
    """A Workload whose pods share a claim that somebody has made."""
    entry = {"name": "entry-0", "resourceClaimName": claim}
    return workload(name, pods, **{"resourceClaims": [entry], **spec})


def says_why(world: AdmissionWorld, name: str) -> str:
    message: str = world.check(name).get("message", "")
    return message


async def test_a_workload_is_planned_with_the_whole_claim_that_its_pods_share(world: AdmissionWorld) -> None:
    """Other pods that wait have the claim read; nobody read it for a Workload, of which there are no pods yet."""
    world.limits = BulkLimits(whole=0)
    world.api.add(RESOURCE_CLAIMS, bulky_claim("shared", count=2))
    world.api.add(RESOURCE_CLAIMS, bulky_claim("large", count=3))
    world.api.add(WORKLOADS, sharing("train", "shared", 2))
    world.api.add(WORKLOADS, sharing("huge", "large"))
    world.start()
    async with world.running():
        await world.until("its pods run", lambda: len(world.pods("train")) == 2)
        await world.until("the other one is refused", lambda: world.kueue.decided["Retry"])
        await world.until("told", lambda: "requeueState" in world.workload("huge").get("status", {}))
    assert "2 in use" in says_why(world, "huge") or "of 2 match" in says_why(world, "huge"), says_why(world, "huge")


async def test_a_promise_keeps_its_place_while_its_claim_is_set_aside(world: AdmissionWorld) -> None:
    world.limits = BulkLimits(whole=0)
    world.api.add(RESOURCE_CLAIMS, bulky_claim("shared", count=2))
    world.api.add(WORKLOADS, sharing("first", "shared"))
    world.kueue.makes_pods = False
    world.start()
    async with world.running():
        await world.until("first is admitted", lambda: world.is_admitted("first"))
        world.api.add(WORKLOADS, workload("second", 3))
        await world.until("second is refused", lambda: world.kueue.decided["Retry"])
        assert world.seen("dra_operator_admission_broken_promises_total") == 0
    world.start()  # another process has to read it before it promises anything
    async with world.running():
        await world.rests(0.5)
        assert not world.is_admitted("second")
        assert world.seen("dra_operator_admission_promises") == 1
        assert world.seen("dra_operator_admission_broken_promises_total") == 0


@pytest.mark.parametrize("fault", ["there is no room", "it cannot be read"])
async def test_a_workload_whose_claim_is_not_at_hand_says_so_and_is_not_rejected(
    world: AdmissionWorld, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    if fault == "there is no room":
        monkeypatch.setattr(api, "READ_BYTES", -1)
        wanted = "its namespace has more large claims than dra-operator keeps in memory"
    else:
        world.api.before = lambda call: (
            Unreachable("connection reset") if (call.verb, call.plural) == ("get", "resourceclaims") else None
        )
        wanted = "claim ns/shared cannot be read: connection reset"
    world.limits = BulkLimits(whole=0)
    world.api.add(RESOURCE_CLAIMS, bulky_claim("shared"))
    world.api.add(WORKLOADS, sharing("train", "shared"))
    world.start()
    async with world.running():
        await world.until("refused", lambda: world.kueue.decided["Retry"])
        await world.until("told", lambda: "requeueState" in world.workload("train").get("status", {}))
    assert wanted in says_why(world, "train")
    assert world.kueue.decided["Rejected"] == 0


async def test_promises_that_were_read_stay_so_when_an_older_workload_of_another_namespace_is_promised_a_place(
    world: AdmissionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A namespace gets half of the room that others leave: the first one would lose room to the next."""
    monkeypatch.setattr(api, "READ_BYTES", 40_000)
    world.limits = BulkLimits(whole=0)
    world.api.change(
        RESOURCE_SLICES, "node-0-gpu.example.com", lambda it: it.update(spec=Make.slice("node-0", 30)["spec"])
    )
    world.kueue.makes_pods = False
    for number in range(8):
        world.api.add(WORKLOADS, workload(f"train-{number}", created="2026-02-01T00:00:00Z", **BULKY))
    world.start()
    async with world.running():
        await world.until("all are answered", lambda: all(says_why(world, f"train-{it}") for it in range(8)))
        await world.rests(0.5)
        first = world.seen("dra_operator_admission_promises")
        for number in range(8):
            other = workload(f"other-{number}", created="2026-01-01T00:00:00Z", **BULKY)
            other["metadata"]["namespace"] = "other"
            other["spec"]["podSets"][0]["template"]["spec"].pop("resourceClaims")
            world.api.add(WORKLOADS, other)
        await world.until("others are promised a place", lambda: world.seen("dra_operator_admission_promises") > first)
        await world.rests(0.5)
        for number in range(3):
            world.api.change(WORKLOADS, "ns/train-0", partial(relabel, str(number)))
            await world.rests(0.3)
    assert first > 1
    assert world.seen("dra_operator_admission_broken_promises_total") == 0
