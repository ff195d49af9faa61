"""The controller ``admission`` beside a model of Kueue: what it decides, and that a promise is kept."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace as replace_round
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from admission_world import EPOCH, AdmissionWorld, LaggingWorld, made, planner, question
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.kueue import REPLACED_SLICE, Workload
from dra_api.resource import AllocationResult
from dra_api.values import NANO
from dra_kube import (
    ADMISSION_CHECKS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_FLAVORS,
    RESOURCE_SLICES,
    WORKLOADS,
    Invalid,
    NotFound,
)
from dra_operator.admission import api as admission_api
from dra_operator.admission import controller
from dra_operator.admission.rounds import KnownWait, Resting
from dra_operator.admission.workloads import (
    AdmissionSettings,
    CheckDecision,
    CheckStage,
    CheckState,
    follow_up_patch,
    stage_of,
)
from dra_operator.controllers.workers import LogLine
from dra_operator.scheduling.state import workload_set_aside
from fake_api import ERRORS, Call
from kueue_model import CHECK, admission_check, check_of, finish, flavor, is_true, pods_of, workload
from objects import Make, Obj


@asynccontextmanager
async def promised(world: AdmissionWorld, obj: Obj) -> AsyncIterator[None]:
    """The Workload is admitted when the block begins, and its pods do not come by themselves."""
    world.kueue.makes_pods = False
    world.api.add(WORKLOADS, obj)
    world.start()
    async with world.running():
        await world.until("admitted", lambda: world.is_admitted(obj["metadata"]["name"]))
        yield


async def test_what_is_being_bound_or_allocated_takes_its_place_until_it_is_not_any_more(world: AdmissionWorld) -> None:
    """A binding that fails leaves nothing behind in the planner's view."""
    for name in ("node-0", "node-1"):
        world.api.change(NODES, name, lambda it: it["status"]["allocatable"].update({"example.com/card": "1"}))
    job = workload("cards", 2, containers=[Make.asking("c", **{"example.com/card": "1"})])
    job["metadata"]["uid"] = "cards"
    its, asked = planner(world), question(world, candidates=[convert(Workload, job)])
    pod = convert(Pod, Make.pod("other"))
    spec = world.api.of(RESOURCE_SLICES)[0]["spec"]
    device = {"pool": spec["pool"]["name"], "device": spec["devices"][0]["name"]}
    result = {"request": "r", "driver": spec["driver"], **device}
    flying = "ns/other", convert(AllocationResult, {"devices": {"results": [result]}})
    rounds = [
        (replace_round(asked, assumed=[(pod, "node-0", {"example.com/card": NANO})]), False),
        (replace_round(asked, flying=[flying]), True),
        (asked, True),
    ]
    for number, (round_, fits) in enumerate(rounds):
        assert its.answer(round_).candidates["cards"].fits is fits, number
    all_devices = question(world, candidates=[made("train", 4)])
    assert not its.answer(replace_round(all_devices, flying=[flying])).candidates["train"].fits
    assert its.answer(all_devices).candidates["train"].fits


async def test_a_workload_whose_pods_fit_is_admitted_and_its_pods_run(world: AdmissionWorld) -> None:
    world.api.add(WORKLOADS, workload("train", 3))
    world.start()
    async with world.running():
        await world.until("pods run", lambda: len(world.pods("train")) == 3)
    assert world.check("train")["state"] == "Ready"
    assert "all pods fit on node-0, node-1" in world.check("train")["message"]


async def test_one_that_does_not_fit_waits_with_the_words_of_why_and_freed_devices_admit_it(
    world: AdmissionWorld,
) -> None:
    world.api.add(WORKLOADS, workload("first", 3))
    world.api.add(WORKLOADS, workload("second", 2, created="2026-01-01T00:00:01Z"))
    world.start()
    async with world.running():
        await world.until("first runs", lambda: len(world.pods("first")) == 3)
        await world.until("second backs off", lambda: "requeueState" in world.workload("second").get("status", {}))
        assert not is_true(world.workload("second"), "QuotaReserved")
        await world.rests(0.6)
        finish(world.api, "ns/first")
        await world.until("second runs", lambda: len(world.pods("second")) == 2, 5)


async def test_devices_that_come_free_right_after_a_retry_wait_a_tenth_of_a_second(world: AdmissionWorld) -> None:
    world.api.add(WORKLOADS, workload("first", 3))
    world.api.add(WORKLOADS, workload("second", 2, created="2026-01-01T00:00:01Z"))
    world.at(0.0)
    world.start()
    async with world.running():
        await world.until("first runs", lambda: len(world.pods("first")) == 3)
        await world.until("second backs off", lambda: "requeueState" in world.workload("second").get("status", {}))
        finish(world.api, "ns/first")
        await world.rests(0.2)
        assert "requeueState" in world.workload("second")["status"], "no time has passed"
        world.at(0.11)
        await world.until("second runs", lambda: len(world.pods("second")) == 2, 5)


async def test_a_round_works_out_no_stage_of_workloads_that_wait_unchanged(
    world: AdmissionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands may back off, and each round goes over all of them on the event loop."""
    world.api.add(WORKLOADS, workload("first", 3))
    world.api.add(WORKLOADS, workload("second", 2, created="2026-01-01T00:00:01Z"))
    world.at(0.0)
    world.start()
    async with world.running():
        await world.until("second backs off", lambda: "requeueAt" in str(world.workload("second").get("status")))
        await world.rests(0.3)
        read = Counter[str]()

        def counted(job: Workload, *args: Any) -> CheckStage:
            read[job.metadata.name] += 1
            return stage_of(job, *args)

        monkeypatch.setattr(controller, "stage_of", counted)
        for _ in range(5):
            world.admission._next.look_again()
            await world.rests(0.3)
    assert read["first"] >= 5
    assert read["second"] <= 1
    assert world.seen("dra_operator_admission_waiting") == 1


def test_of_those_that_back_off_only_the_one_that_is_due_is_looked_at() -> None:
    """Thousands may wait, and there is a round for each change in the cluster."""
    resting = Resting()

    def wait(seconds: float, stage: CheckStage = CheckStage.BACKING_OFF) -> KnownWait:
        return KnownWait("1", stage, seconds)

    assert resting.woken(0.0, freed=1) == set()
    for key, it in {"a": wait(60), "b": wait(50), "c": wait(5, CheckStage.WAITING), "gone": wait(1)}.items():
        resting.put(key, it)
    resting.discard("gone")
    for seconds in range(1000):  # it changes again and again
        resting.put("a", wait(60 + seconds % 7))
    resting.put("a", wait(60))
    assert len(resting._times) < 500
    assert resting.backing_off == 2
    assert resting.woken(4.9, freed=1) == set()
    assert resting.due == 5
    assert resting.woken(5.0, freed=1) == {"c"}
    assert resting.woken(55.0, freed=1) == {"b"}
    assert resting.woken(55.0, freed=2) == {"a"}
    assert resting.woken(99.0, freed=2) == set()
    assert (resting.due, resting.backing_off) == (math.inf, 0)


async def test_a_workload_that_says_that_it_replaces_itself_is_decided_on(world: AdmissionWorld) -> None:
    odd = workload("odd", 1)
    odd["metadata"]["annotations"] = {REPLACED_SLICE: "ns/odd"}
    world.api.add(WORKLOADS, odd)
    world.start()
    async with world.running():
        await world.until("admitted", lambda: world.is_admitted("odd"), 5)


async def test_a_back_off_is_ended_by_the_operator_since_kueue_forgets_the_devices(world: AdmissionWorld) -> None:
    """Kueue up to 0.19.2 queues a Workload whose wait it ends without them, and admits it unasked."""
    world.kueue.forgets_devices = True
    world.api.add(WORKLOADS, workload("first", 3))
    world.api.add(WORKLOADS, workload("second", 2, created="2026-01-01T00:00:01Z"))
    world.at(0.0)
    world.start()
    async with world.running():
        await world.until("second backs off", lambda: "requeueAt" in str(world.workload("second").get("status")))
        world.at(59.0)
        await world.rests(0.3)
        assert world.kueue.decided == {"Retry": 1}
        for turn, (now, due) in enumerate([(60, 240), (180, 480), (420, 960), (900, 1560), (1500, 2160), (2100, 2760)]):
            world.at(now - 1)
            await world.rests(0.1)
            before = requeue_at(world, "second")
            world.at(now)
            world.admission._next.look_again()
            await world.until("it waits on", partial(waits_until, world, "second", due))
            assert before < due, f"turn {turn}"
        assert world.kueue.decided == {"Retry": 1}, "a turn in vain takes it from others"
        world.at(2700)
        world.admission._next.look_again()
        await world.until("it is tried all the same", lambda: world.kueue.decided == {"Retry": 2})
    assert not world.kueue.forgotten
    assert world.seen("dra_operator_admission_requeues_total") == 0, "no device has come free"


async def test_a_back_off_that_kueue_does_not_prolong_is_ended_before_kueue_ends_it(world: AdmissionWorld) -> None:
    world.api.add(WORKLOADS, workload("first", 3))
    world.api.add(WORKLOADS, workload("second", 2, created="2026-01-01T00:00:01Z"))
    world.at(0.0)
    world.start()
    async with world.running():
        await world.until("second backs off", lambda: requeue_at(world, "second"))
        await world.rests(0.2)
        world.others.remove(world.kueue)
        world.at(60.0)
        world.admission._next.look_again()
        await world.until("it is to wait on", lambda: world.check("second")["state"] == "Retry")
        world.at(79.0)
        await world.rests(0.3)
        assert requeue_at(world, "second") == 120
        world.at(81.0)
        world.admission._next.look_again()
        await world.until("it may be tried again", lambda: not requeue_at(world, "second"))
        assert world.check("second")["state"] == "Pending"


def requeue_at(world: AdmissionWorld, name: str) -> float:
    """When Kueue would end its wait, in seconds; 0 if it does not wait."""
    due = world.workload(name).get("status", {}).get("requeueState", {}).get("requeueAt")
    return (datetime.fromisoformat(due) - EPOCH).total_seconds() if due else 0


def waits_until(world: AdmissionWorld, name: str, due: float) -> bool:
    """Whether it waits until then, and its check says why."""
    return requeue_at(world, name) == due and has_reason(world, name)


def has_reason(world: AdmissionWorld, name: str) -> bool:
    """Whether its check waits, and says why."""
    check = world.check(name)
    return check["state"] == "Pending" and "nodes are available" in check["message"]


@pytest.mark.parametrize("tolerates", [False, True], ids=["labels", "taints"])
async def test_a_job_gets_its_turn_if_another_flavor_may_help(world: AdmissionWorld, tolerates: bool) -> None:
    """Kueue chooses the flavor, and may choose another one the next time."""
    world.api.change(RESOURCE_FLAVORS, "any", lambda it: it["spec"].update(nodeLabels={"kind": "a"}))
    taint = [{"key": "kind", "value": "b", "effect": "NoSchedule"}] if tolerates else []
    for node in world.api.of(NODES):
        is_free = node["metadata"]["name"] == "node-1"
        labels = {"kind": "b" if is_free else "a"}
        world.api.change(NODES, node["metadata"]["name"], partial(mark, labels=labels, taints=taint if is_free else []))
    tolerations = [{"key": "kind", "operator": "Exists"}] if tolerates else []
    world.api.add(RESOURCE_FLAVORS, flavor("b", nodeLabels={"kind": "b"}, tolerations=tolerations))
    world.api.add(WORKLOADS, workload("first", 2, nodeSelector={"kind": "a"}))
    world.api.add(WORKLOADS, workload("second", 1, created="2026-01-01T00:00:01Z"))
    world.at(0.0)
    world.start()
    async with world.running():
        await world.until("second backs off", lambda: requeue_at(world, "second"))
        await world.rests(0.2)
        world.at(60.0)
        world.admission._next.look_again()
        await world.until("it is tried again", lambda: world.kueue.decided == {"Retry": 2})


def mark(node: Obj, labels: dict[str, str], taints: list[Obj]) -> None:
    node["metadata"].setdefault("labels", {}).update(labels)
    node["spec"] = {"taints": taints}


@asynccontextmanager
async def waiting_for_its_pods(world: AdmissionWorld, *jobs: Obj) -> AsyncIterator[None]:
    """The jobs run, and Kueue evicts the job ``first`` for 30 s, as if its pods had not been ready in time."""
    for job in jobs:
        world.api.add(WORKLOADS, job)
    world.at(0.0)
    world.start()
    async with world.running():
        await world.until(
            "all run", lambda: all(len(world.pods(it["metadata"]["name"])) == len(pods_of(it)) for it in jobs)
        )
        world.kueue.evict(world.api, "ns/first", "PodsReadyTimeout", wait=30)
        yield


async def test_a_wait_for_pods_that_were_late_is_ended_by_the_operator_as_well(world: AdmissionWorld) -> None:
    world.kueue.forgets_devices = True
    async with waiting_for_its_pods(world, workload("first", 3)):
        world.at(24.0)
        await world.rests(0.3)
        assert not is_true(world.workload("first"), "QuotaReserved")
        world.at(26.0)
        world.admission._next.look_again()
        await world.until("it has quota again", lambda: is_true(world.workload("first"), "QuotaReserved"))
        await world.until("first runs", lambda: len(world.pods("first")) == 3)
    assert not world.kueue.forgotten


async def test_a_lone_job_that_kueue_overlooks_is_tried_once_its_check_has_paused(world: AdmissionWorld) -> None:
    world.kueue.overlooks = True
    async with waiting_for_its_pods(world, workload("first", 3)):
        world.at(26.0)
        world.admission._next.look_again()
        await world.until("its wait is over", lambda: "requeueAt" not in str(world.workload("first")["status"]))
        world.at(30.0)
        await world.rests(0.3)
        assert is_true(world.api[ADMISSION_CHECKS, CHECK], "Active")
        assert not is_true(world.workload("first"), "QuotaReserved")
        world.at(31.1)
        await world.until("the check pauses", lambda: not is_true(world.api[ADMISSION_CHECKS, CHECK], "Active"))
        world.at(32.2)
        await world.until("the check is active", lambda: is_true(world.api[ADMISSION_CHECKS, CHECK], "Active"))
        await world.until("first runs", lambda: len(world.pods("first")) == 3)
        world.at(60.0)
        await world.rests(0.3)
        assert is_true(world.api[ADMISSION_CHECKS, CHECK], "Active")


async def test_no_check_pauses_while_another_job_of_the_queue_has_quota(world: AdmissionWorld) -> None:
    """Its end has Kueue try the others; until then the job may rightly wait for quota."""
    world.kueue.overlooks = True
    second = workload("second", 1, created="2026-01-01T00:00:01Z")
    async with waiting_for_its_pods(world, workload("first", 1), second):
        world.at(26.0)
        world.admission._next.look_again()
        await world.until("its wait is over", lambda: "requeueAt" not in str(world.workload("first")["status"]))
        for moment in (32.0, 50.0, 80.0):
            world.at(moment)
            await world.rests(0.3)
            assert is_true(world.api[ADMISSION_CHECKS, CHECK], "Active")
        finish(world.api, "ns/second")
        await world.until("first runs", lambda: len(world.pods("first")) == 1)


async def test_a_wait_that_the_check_of_another_controller_asks_for_goes_on(world: AdmissionWorld) -> None:
    """Kueue would begin it anew at once."""
    job = workload("train")
    evicted = {
        "type": "Evicted",
        "status": "True",
        "reason": "AdmissionCheck",
        "lastTransitionTime": "2030-01-01T00:00:00Z",
    }
    pending = {"message": "", "lastTransitionTime": "2030-01-01T00:00:00Z"}
    checks = [
        {"name": "devices", "state": "Pending", **pending},
        {"name": "other", "state": "Retry", **pending, "requeueAfterSeconds": 3},
    ]
    job["status"] = {
        "conditions": [evicted],
        "admissionChecks": checks,
        "requeueState": {"requeueAt": "2030-01-01T00:00:03Z"},
    }
    world.kueue.is_stopped = True
    world.api.add(WORKLOADS, job)
    world.at(0.0)
    world.start()
    async with world.running():
        await world.rests(0.5)
        assert "requeueAt" in world.workload("train")["status"]["requeueState"]


async def test_a_look_that_took_ten_minutes_is_not_followed_by_a_rest_of_ten_minutes(world: AdmissionWorld) -> None:
    """An API server that answers no write for a while is no reason to decide on nothing for as long again."""

    def takes_long(call: Call) -> None:
        if (call.verb, call.plural) == ("patch", "workloads") and world.moment == 0.0:
            world.at(600.0)

    world.at(0.0)
    world.api.before = takes_long
    world.api.add(WORKLOADS, workload("first"))
    world.start()
    async with world.running():
        await world.until("first is admitted", lambda: world.is_admitted("first"))
        world.api.add(WORKLOADS, workload("second"))
        await world.until("second is admitted", lambda: world.is_admitted("second"), 10)


async def test_the_active_condition_says_who_answers(world: AdmissionWorld) -> None:
    world.api.add(ADMISSION_CHECKS, admission_check("with", parameters={"apiGroup": "x", "kind": "X", "name": "x"}))
    world.api.add(ADMISSION_CHECKS, admission_check("others", "somebody.example.com/else"))
    world.start()

    def active(name: str) -> list[str]:
        found = world.api[ADMISSION_CHECKS, name].get("status", {}).get("conditions", [])
        return [it["status"] for it in found if it["type"] == "Active"]

    async with world.running():
        await world.until("two conditions", lambda: active("devices") and active("with"))
    assert (active("devices"), active("with"), active("others")) == (["True"], ["False"], [])


@pytest.mark.parametrize(
    ("error", "is_told"),
    [(ERRORS["conflict"](), False), (NotFound(404, "NotFound", "gone"), False), (ERRORS["forbidden"](), True)],
    ids=["conflict", "not found", "forbidden"],
)
async def test_an_active_condition_that_could_not_be_written_is_written_later(
    error: Exception,
    is_told: bool,
    world: AdmissionWorld,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(admission_api, "CHECK_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(admission_api, "PROMISE_LOOK_SECONDS", 0.1)
    refused: list[Call] = []

    def refuses(call: Call) -> Exception | None:
        if refused or (call.verb, call.plural) != ("patch", "admissionchecks"):
            return None
        refused.append(call)
        return error

    world.api.before = refuses
    world.api.add(WORKLOADS, workload("train", 3))
    world.start()
    async with world.running():
        await world.until("it is active", lambda: is_true(world.api[ADMISSION_CHECKS, CHECK], "Active"))
    assert refused
    assert (f"admission check {CHECK}: cannot be written" in caplog.text) == is_told
    assert "a look at all Workloads failed" not in caplog.text


async def test_an_end_of_a_back_off_that_could_not_be_written_is_written_again(world: AdmissionWorld) -> None:
    world.api.add(WORKLOADS, workload("first", 3))
    world.api.add(WORKLOADS, workload("second", 2, created="2026-01-01T00:00:01Z"))
    world.start()
    refused: list[Call] = []

    def conflict(call: Call) -> Exception | None:
        if refused or (call.verb, call.plural, call.name) != ("patch", "workloads", "second"):
            return None
        refused.append(call)
        return ERRORS["conflict"]()

    async with world.running():
        await world.until("first runs", lambda: len(world.pods("first")) == 3)
        await world.until("second backs off", lambda: "requeueState" in world.workload("second").get("status", {}))
        await world.rests(0.6)
        world.api.before = conflict
        finish(world.api, "ns/first")
        await world.until("second runs", lambda: len(world.pods("second")) == 2, 5)
    assert refused


async def test_a_decision_that_the_server_finds_invalid_is_counted_and_told(
    world: AdmissionWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.api.add(WORKLOADS, workload("train", 3))
    world.api.before = lambda call: (
        Invalid(422, "Invalid", "a webhook says no") if (call.verb, call.plural) == ("patch", "workloads") else None
    )
    world.start()
    async with world.running():
        await world.until(
            "an error is counted", lambda: world.registry.get_sample_value("dra_operator_admission_errors_total"), 5
        )
    assert "workload cannot be written workload=ns/train" in caplog.text
    about = [it for it in caplog.records if "ns/train" in it.getMessage()]
    assert about
    assert all(isinstance(it.msg, LogLine) and it.msg.namespace == "ns" for it in about)
    assert "a webhook says no" in caplog.text


async def _retried(world: AdmissionWorld, times: int) -> None:
    """Wait until the check has answered Retry this often, and see that it stops."""
    await world.until(f"{times} tries", lambda: world.kueue.decided["Retry"] == times)
    await world.rests(0.3)
    assert world.kueue.decided["Retry"] == times


async def test_a_back_off_that_cannot_be_begun_ends_the_race_for_quota(world: AdmissionWorld) -> None:
    """Kueue is always first: it has given quota again when the back-off arrives."""
    world.kueue.forgets_devices = True
    world.api.add(WORKLOADS, workload("first", 3))
    world.api.add(WORKLOADS, workload("second", 2, created="2026-01-01T00:00:01Z"))
    world.api.before = lambda call: (
        ERRORS["conflict"]() if call.name == "second" and is_true(world.workload("second"), "Evicted") else None
    )
    world.at(0.0)
    world.start()
    async with world.running():
        await world.until("it was tried three times", lambda: world.kueue.decided["Retry"] == 3)
        await world.until("second keeps its quota", lambda: "pods fit" in world.check("second").get("message", ""))
        await world.rests(0.3)
        assert world.kueue.decided["Retry"] == 3
        assert is_true(world.workload("second"), "QuotaReserved")
        assert "requeueAfterSeconds" not in world.check("second"), "Kueue would end that wait, and forget its devices"
        for moment, tries in ((1.1, 6), (2.2, 6), (3.2, 9), (6.0, 9), (7.3, 12)):  # kept for 1, 2, 4 s
            world.at(moment)
            world.admission._next.look_again()
            await _retried(world, tries)
        finish(world.api, "ns/first")
        await world.until("second runs", lambda: len(world.pods("second")) == 2, 5)
    assert not world.kueue.forgotten


async def test_a_quota_that_is_kept_for_a_while_is_given_up_when_devices_come_free_for_another(
    world: AdmissionWorld,
) -> None:
    """The clock stands still, so nothing but the devices ends the keeping."""
    world.kueue.quota = 7
    for number, (name, pods) in enumerate((("long", 2), ("short", 2), ("fits", 2))):
        world.api.add(WORKLOADS, workload(name, pods, created=f"2026-01-01T00:00:0{number}Z"))
    world.at(0.0)
    world.start()
    async with world.running():
        await world.until("two run", lambda: len(world.pods("long")) == len(world.pods("short")) == 2)
        await world.until("one backs off", lambda: "requeueAt" in str(world.workload("fits").get("status")))
        world.api.before = lambda call: (
            ERRORS["conflict"]() if call.name == "large" and is_true(world.workload("large"), "Evicted") else None
        )
        world.api.add(WORKLOADS, workload("large", 3, created="2026-01-01T00:00:03Z"))
        await world.until("it keeps its quota", lambda: "pods fit" in world.check("large").get("message", ""))
        await world.rests(0.3)
        assert is_true(world.workload("large"), "QuotaReserved")
        world.at(0.2)  # within the rest after a Retry no freed devices are looked at
        world.api.before = lambda _: None
        world.kueue.quota = 6  # as if another queue had taken the quota of the short job
        finish(world.api, "ns/short")
        await world.until("the one that fits runs", lambda: len(world.pods("fits")) == 2, 5)


async def test_a_job_whose_waits_ended_in_vain_is_tried_a_second_after_devices_come_free(
    world: AdmissionWorld,
) -> None:
    world.api.add(WORKLOADS, workload("first", 3))
    world.api.add(WORKLOADS, workload("second", 2, created="2026-01-01T00:00:01Z"))
    world.at(0.0)
    world.start()
    async with world.running():
        await world.until("first runs", lambda: len(world.pods("first")) == 3)
        await world.until("second backs off", lambda: "requeueAt" in str(world.workload("second").get("status")))
        world.admission._memory[world.workload("second")["metadata"]["uid"]].in_vain = 50
        finish(world.api, "ns/first")
        world.at(0.9)
        await world.rests(0.2)
        assert "requeueAt" in str(world.workload("second")["status"])
        world.at(1.1)
        await world.until("second runs", lambda: len(world.pods("second")) == 2, 5)


def _evicted(world: AdmissionWorld) -> Workload:
    """A Workload that Kueue has evicted after Retry, and which has its quota still."""
    world.at(0.0)
    world.api.add(WORKLOADS, workload("train"))
    world.kueue(world.api)
    world.api.change(WORKLOADS, "ns/train", lambda it: check_of(it).update(state="Retry"))
    world.kueue(world.api)
    return convert(Workload, world.workload("train"))


def _quota_taken(world: AdmissionWorld) -> None:
    world.kueue(world.api)


def _given_quota(world: AdmissionWorld) -> None:
    for _ in range(2):
        world.kueue(world.api)


def _preempted(world: AdmissionWorld) -> None:
    world.kueue.evict(world.api, "ns/train", "Preempted", wait=60)


def _made_again(world: AdmissionWorld) -> None:
    gone = world.workload("train")
    world.api.drop(WORKLOADS, "ns/train")
    world.api.add(WORKLOADS, {**workload("train"), "status": gone["status"]})


LATER: dict[str, tuple[Callable[[AdmissionWorld], object], bool]] = {
    "nothing": (lambda world: world.now, True),
    "Kueue takes the quota": (_quota_taken, True),
    "someone labels it": (
        lambda world: world.api.change(WORKLOADS, "ns/train", lambda it: it["metadata"].update(labels={"a": "b"})),
        True,
    ),
    "Kueue gives quota again": (_given_quota, False),
    "Kueue evicts it for something else": (_preempted, False),
    "the check is answered": (
        lambda world: world.api.change(WORKLOADS, "ns/train", lambda it: check_of(it).update(state="Ready")),
        False,
    ),
    "its wait is ended": (
        lambda world: world.api.change(
            WORKLOADS, "ns/train", lambda it: check_of(it).update(message="devices came free, and its pods fit now")
        ),
        False,
    ),
    "another one of its name is made": (_made_again, False),
}
"""What has become of the Workload when its back-off arrives, and whether that is still right."""


@pytest.mark.parametrize("what", LATER)
async def test_a_back_off_is_written_whatever_kueue_wrote_meanwhile_unless_it_has_no_place_any_more(
    what: str, world: AdmissionWorld
) -> None:
    seen = _evicted(world)
    happens, is_written = LATER[what]
    happens(world)
    decision = CheckDecision(CheckState.RETRY, "no place", 60.0)
    patch = follow_up_patch(seen, {CHECK}, decision, world.now)
    if not is_written:
        with pytest.raises(Invalid):
            await world.api.patch(WORKLOADS, "train", patch, "ns", kind="json", subresource="status")
        return
    await world.api.patch(WORKLOADS, "train", patch, "ns", kind="json", subresource="status")
    assert world.check("train")["requeueAfterSeconds"] == 60
    for _ in range(3):
        world.kueue(world.api)
    assert not is_true(world.workload("train"), "QuotaReserved")
    assert "requeueAt" in str(world.workload("train")["status"])


async def test_a_back_off_goes_on_as_pending_though_the_cache_has_cut_its_reason(world: AdmissionWorld) -> None:
    _evicted(world)
    reason = {"state": "Retry", "message": "x" * 2_000, "requeueAfterSeconds": 60}
    world.api.change(WORKLOADS, "ns/train", lambda it: check_of(it).update(reason))
    seen = workload_set_aside(convert(Workload, world.workload("train")))
    patch = follow_up_patch(seen, {CHECK}, CheckDecision(CheckState.PENDING, "no place"), world.now)
    await world.api.patch(WORKLOADS, "train", patch, "ns", kind="json", subresource="status")
    assert world.check("train")["state"] == "Pending"


FAULTS = [
    ("too many pods", workload("bad", 100_000), "Rejected"),
    ("a template that is missing", workload("bad", 1, template="missing"), "Retry"),
    ("a selector that the flavor contradicts", workload("bad", 1, nodeSelector={"pool": "b"}), "Retry"),
    ("no pods at all", workload("bad", 0), "Ready"),
    ("a node that is named", workload("bad", 1, nodeName="node-0"), "Rejected"),
    ("a claim without a source", workload("bad", 1, resourceClaims=[{"name": "x"}]), "Retry"),
]


@pytest.mark.parametrize(("obj", "state"), [it[1:] for it in FAULTS], ids=[it[0] for it in FAULTS])
async def test_a_workload_that_is_wrong_is_answered_alone(obj: Obj, state: str, world: AdmissionWorld) -> None:
    label = {"nodeLabels": {"pool": "a"}} if "nodeSelector" in obj["spec"]["podSets"][0]["template"]["spec"] else {}
    world.api.change(RESOURCE_FLAVORS, "any", lambda it: it.update(spec=label))
    for name in ("node-0", "node-1") if label else ():
        world.api.change(NODES, name, lambda it: it["metadata"]["labels"].update(pool="a"))
    world.kueue.quota = 1_000_000
    world.api.add(WORKLOADS, obj)
    world.api.add(WORKLOADS, workload("good", 2, created="2026-01-01T00:00:01Z"))
    world.start()
    async with world.running():
        await world.until("the good one runs", lambda: len(world.pods("good")) == 2)
        await world.until("the other is answered", lambda: world.kueue.decided[state] or world.is_admitted("bad"))
    assert world.is_admitted("bad") is (state == "Ready")


async def test_a_promise_is_kept_from_a_later_workload_until_its_pods_come(world: AdmissionWorld) -> None:
    world.kueue.makes_pods = False
    world.api.add(WORKLOADS, workload("first", 3))
    world.api.add(WORKLOADS, workload("second", 2, priority=0, created="2026-01-01T00:00:01Z"))
    world.start()
    async with world.running():
        await world.until("retried", lambda: world.kueue.decided["Retry"] == 1)
        assert (world.is_admitted("first"), world.is_admitted("second")) == (True, False)
        assert world.seen("dra_operator_admission_promises") == 1


async def test_a_pod_of_no_workload_leaves_a_promise_alone_unless_it_is_more_important(world: AdmissionWorld) -> None:
    first = workload("first", 4)
    async with promised(world, first):
        world.api.add(PODS, Make.pod("thief", [Make.FROM_TEMPLATE]))
        await world.rests(0.5)
        assert world.bound() == []
        for pod in pods_of(first):
            world.api.add(PODS, pod)
        await world.until("the job runs", lambda: len(world.pods("first")) == 4)
    assert "thief" not in world.bound()


async def test_a_promise_that_had_to_move_stays_where_it_is(world: AdmissionWorld) -> None:
    """Its first node was cordoned for a while, and has room for others from then on."""
    async with promised(world, workload("first", 1)):
        before = world.check("first")["message"].removeprefix("all pods fit on ")
        for spec in ({"unschedulable": True}, dict[str, bool]()):
            world.api.change(NODES, before, partial(dict.update, spec=spec))
            await world.rests(0.5)
        assert world.seen("dra_operator_admission_broken_promises_total") == 0
        world.api.add(PODS, Make.pod("wide", [Make.FROM_TEMPLATE] * 2))
        await world.until("it runs", lambda: world.bound() == ["wide"])
        assert world.api[PODS, "ns/wide"]["spec"]["nodeName"] == before


async def test_a_more_important_pod_takes_what_was_promised(world: AdmissionWorld) -> None:
    async with promised(world, workload("first", 4)):
        world.api.add(PODS, Make.pod("urgent", [Make.FROM_TEMPLATE], priority=1))
        await world.until("it runs", lambda: world.bound() == ["urgent"])
        await world.until("told", lambda: world.seen("dra_operator_admission_broken_promises_total") == 1)


async def test_a_new_process_keeps_the_promises_of_the_last_one(world: AdmissionWorld) -> None:
    first = workload("first", 3)
    async with promised(world, first):
        pass
    world.api.add(WORKLOADS, workload("second", 2, priority=9))
    world.api.add(PODS, Make.pod("thief", [Make.FROM_TEMPLATE] * 2))
    world.start()
    async with world.running():
        await world.until("second is not promised the same", lambda: world.kueue.decided["Retry"] == 1)
        for pod in pods_of(first):
            world.api.add(PODS, pod)
        await world.until("the first runs", lambda: len(world.pods("first")) == 3)


async def test_a_promise_is_over_after_its_time(world: AdmissionWorld) -> None:
    world.settings = AdmissionSettings(promise=2.0)
    async with promised(world, workload("idle", 4)):
        world.api.add(PODS, Make.pod("pod", [Make.FROM_TEMPLATE]))
        await world.until("another pod gets a device", lambda: world.bound() == ["pod"], 15)


async def test_an_evicted_workload_gives_its_promise_back(world: AdmissionWorld) -> None:
    async with promised(world, workload("idle", 4)):
        world.api.change(WORKLOADS, "ns/idle", lambda it: it["spec"].update(active=False))
        world.api.add(PODS, Make.pod("pod", [Make.FROM_TEMPLATE]))
        await world.until("another pod gets a device", lambda: world.bound() == ["pod"], 5)


async def test_two_workloads_never_wait_for_each_other(world: AdmissionWorld) -> None:
    for number in range(6):
        world.api.add(WORKLOADS, workload(f"job-{number}", 3, created=f"2026-01-01T00:00:0{number}Z"))
    world.start()
    async with world.running():
        done: set[str] = set()
        while len(done) < 6:
            ready = [f"job-{it}" for it in range(6) if len(world.pods(f"job-{it}")) == 3 and f"job-{it}" not in done]
            if ready:
                finish(world.api, f"ns/{ready[0]}")
                done.add(ready[0])
            await world.rests(0.3)
    assert world.seen("dra_operator_admission_broken_promises_total") == 0


async def test_a_workload_without_a_check_of_ours_is_left_alone(world: AdmissionWorld) -> None:
    world.kueue.check = "somebody-elses"
    world.api.add(ADMISSION_CHECKS, admission_check("somebody-elses", "example.com/other"))
    world.api.add(WORKLOADS, workload("train", 3))
    world.start()
    async with world.running():
        await world.until("quota", lambda: is_true(world.workload("train"), "QuotaReserved"))
        await world.rests(0.3)
    assert check_of(world.workload("train"), "somebody-elses")["state"] == "Pending"
    assert not any(call.plural == "workloads" for call in world.api.writes)


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_promise_without_an_answer_is_kept_until_it_is_known_what_became_of_it(is_late: bool) -> None:
    """Meanwhile another Workload finds the devices free, and both would be Ready."""
    world = LaggingWorld()
    world.furnish(nodes=2, devices=2)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    world.kueue.makes_pods = False
    world.api.add(WORKLOADS, workload("first", 3))
    lost: list[Call] = []

    def loses_the_first(call: Call) -> bool:
        is_first = not lost and (call.verb, call.plural, call.name) == ("patch", "workloads", "first")
        if is_first:
            lost.append(call)
        return is_first

    if is_late:
        world.api.landing = loses_the_first
    else:
        world.api.after = lambda call: ERRORS["no answer"]() if loses_the_first(call) else None
    world.start()
    async with world.running():
        await world.until("the answer is lost", lambda: lost)
        world.is_stalled = not is_late
        world.api.add(PODS, Make.pod("thief", [Make.FROM_TEMPLATE] * 2))
        await world.rests(0.5)
        assert "thief" not in world.bound()
        world.is_stalled = False
        world.api.land()
        await world.until("admitted", lambda: world.is_admitted("first"))
        assert "thief" not in world.bound()


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"])
async def test_a_promise_of_the_last_year_or_the_first_stops_nobody(world: AdmissionWorld, time: str) -> None:
    odd = workload("odd")
    odd["status"] = {
        "conditions": [
            {"type": kind, "status": "True", "reason": "r", "lastTransitionTime": time}
            for kind in ("QuotaReserved", "Admitted")
        ],
        "admission": {"clusterQueue": "team", "podSetAssignments": [{"name": "main", "count": 1}]},
        "admissionChecks": [{"name": CHECK, "state": "Ready", "message": "", "lastTransitionTime": time}],
    }
    world.kueue.makes_pods = False
    world.api.add(WORKLOADS, odd)
    world.at(0)
    world.start()
    async with world.running():
        world.at(10)
        world.api.add(WORKLOADS, workload("good", created="2026-01-01T00:00:01Z"))
        await world.until("admitted", lambda: world.is_admitted("good"), 5)


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_clock_that_is_set_neither_ends_a_promise_nor_extends_it(world: AdmissionWorld, hours: int) -> None:
    world.settings = AdmissionSettings(promise=3.0)
    async with promised(world, workload("idle", 4)):
        world.skew = timedelta(hours=hours)
        world.api.change(WORKLOADS, "ns/idle", lambda it: it["metadata"].update(labels={"x": "y"}))
        world.api.add(PODS, Make.pod("pod", [Make.FROM_TEMPLATE]))
        await world.rests(1.0)
        assert world.bound() == []
        await world.until("another pod gets a device", lambda: world.bound() == ["pod"], 15)


@pytest.mark.parametrize(("before", "after"), [(1, 0), (0, 1), (0, -1), (1, 1), (-1, -1)])
async def test_a_wait_is_ended_in_time_whatever_clock_says_when_it_began(
    world: AdmissionWorld, before: int, after: int
) -> None:
    """Kueue would end it a minute later, and forget the devices of its claims; freed devices would not end it."""
    world.skew = timedelta(hours=before)
    world.api.add(WORKLOADS, workload("first", 3))
    world.api.add(WORKLOADS, workload("second", 2, created="2026-01-01T00:00:01Z"))
    world.at(0)
    world.start()
    async with world.running():
        await world.until("second backs off", lambda: "requeueAt" in str(world.workload("second").get("status")))
        await world.rests(0.2)
        world.skew = timedelta(hours=after)
        world.at(58)
        world.admission._next.look_again()
        await world.rests(0.2)
        assert world.kueue.decided["Retry"] == 1
        world.at(61)
        await world.until("it waits on", lambda: requeue_at(world, "second") > 200 and has_reason(world, "second"))
        assert world.kueue.decided["Retry"] == 1
        await world.rests(0.2)
        finish(world.api, "ns/first")
        world.at(63)
        await world.until("second runs", lambda: len(world.pods("second")) == 2, 5)


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_back_off_begins_by_the_clock_of_kueue(world: AdmissionWorld, hours: int) -> None:
    """Kueue takes over no back-off that is over: it gave quota again at once, many times a second."""
    world.skew = timedelta(hours=hours)
    world.api.add(WORKLOADS, workload("first", 3))
    world.api.add(WORKLOADS, workload("second", 2, created="2026-01-01T00:00:01Z"))
    world.start()
    async with world.running():
        await world.until("second backs off", lambda: "requeueState" in world.workload("second").get("status", {}))
        due = datetime.fromisoformat(world.workload("second")["status"]["requeueState"]["requeueAt"])
        assert 110 < (due - datetime.now(UTC)).total_seconds() < 130
        await world.rests(1.0)
    assert world.kueue.decided["Retry"] == 1
