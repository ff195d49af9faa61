"""What the largest, the most and the strangest Workloads that an API server admits cost everybody else."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import pytest
from admission_world import AdmissionWorld, made, planner, question
from dra_api.codec import convert, encode
from dra_api.core import Node, Pod
from dra_api.kueue import ResourceFlavor, Workload, WorkloadStatus
from dra_api.resource import ResourceSlice
from dra_kube import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, WORKLOADS
from dra_operator.admission import controller
from dra_operator.admission import planner as planner_module
from dra_operator.admission.planner import CheckAnswers, CheckRound, Planner, SeenChange
from dra_operator.admission.pod_sets import planned_sets
from dra_operator.admission.promises import PromisedWorkload
from dra_operator.commands.placing import NotPlaced, Placed, Placing
from dra_operator.kubectl.cli import main
from dra_operator.scheduling.cycle.attempt import Attempt
from dra_operator.scheduling.state import workload_without_bulk
from kueue_model import finish, is_true, workload
from msgspec.structs import replace as replaced
from objects import Make, Obj


def held(name: str) -> Obj:
    """A claim that has all devices of the two nodes."""
    places = [(f"node-{node}", f"dev-{number}") for node in range(2) for number in range(2)]
    results = [{"request": "req", "driver": "gpu.example.com", "pool": pool, "device": it} for pool, it in places]
    user = {"resource": "pods", "name": "other", "uid": "other"}
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [user]}
    return {**Make.claim(name, count=4), "status": status}


async def test_a_promise_to_a_billion_pods_makes_none_of_them(world: AdmissionWorld) -> None:
    """Whoever writes its status may say that it is Ready: an operator that planned it would need all memory."""
    huge, good = made("huge", 1_000_000_000), made("good", 2)
    answers = planner(world).answer(question(world, promised=[huge, good]))
    assert "it has 1000000000 pods, and at most 2000 are planned together" in answers.promised["huge"].reason
    assert answers.promised["good"].fits


async def test_why_looks_for_no_help_for_a_billion_pods(
    world: AdmissionWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.api.add(WORKLOADS, workload("huge", 1_000_000_000))
    items = [
        {"apiVersion": resource.api_version(), "kind": resource.kind, **obj}
        for (resource, _, _), obj in world.api.objects.items()
    ]
    dump = tmp_path / "dump.json"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    main(["why", "workload/huge", "-n", "ns", "--from", str(dump)])
    assert "it has 1000000000 pods, and at most 2000 are planned together" in capsys.readouterr().out


async def test_a_start_waits_for_no_decision_and_no_write(world: AdmissionWorld) -> None:
    """Pods wait until promises are kept, and would wait for a slow API server, or for searches, as well."""
    world.api.add(WORKLOADS, workload("train", 2))
    world.start()
    world.bring_events()
    assert is_true(world.workload("train"), "QuotaReserved")
    await world.admission.recall()
    assert world.api.writes == []
    async with world.running():
        await world.until("admitted", lambda: world.is_admitted("train"))


async def test_days_without_workloads_leave_no_changes_behind(
    world: AdmissionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "MOST_NOTED_CHANGES", 50)
    world.api.add(WORKLOADS, workload("first", 1))
    world.start()
    async with world.running():
        await world.until("first runs", lambda: len(world.pods("first")) == 1)
        finish(world.api, "ns/first")
        await world.rests(0.3)
        for number in range(200):
            world.api.add(PODS, Make.pod(f"pod-{number}", node="node-0"))
            world.api.drop(PODS, f"ns/pod-{number}")
            world.control.hold(f"malformed-{number}", None)
        await world.rests(0.5)
        assert sum(isinstance(it, SeenChange) for it in gc.get_objects()) <= 50
        world.api.add(WORKLOADS, workload("second", 4))
        await world.until("second runs", lambda: len(world.pods("second")) == 4)


async def test_a_look_that_failed_leaves_no_devices_to_what_is_gone(
    world: AdmissionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that came while the view was made and went before it was made anew."""
    monkeypatch.setattr(controller, "PROMISE_LOOK_SECONDS", 0.3)
    answer, came, failed = Planner.answer, Event(), Event()

    def fails(planner: Planner, asked: CheckRound) -> CheckAnswers:
        if not failed.is_set():
            came.wait(5)
            failed.set()
            raise RuntimeError("the first look fails")
        return answer(planner, asked)

    monkeypatch.setattr(Planner, "answer", fails)
    world.api.add(WORKLOADS, workload("train", 4))
    world.start()
    async with world.running():
        await world.until("a view is made", lambda: is_true(world.workload("train"), "QuotaReserved"))
        await world.rests(0.2)
        world.api.add(RESOURCE_CLAIMS, held("ghost"))
        world.bring_events()
        came.set()
        await world.until("the look failed", failed.is_set)
        await world.tick()
        world.api.drop(RESOURCE_CLAIMS, "ns/ghost")
        await world.until("train runs", lambda: len(world.pods("train")) == 4, 10)


async def test_each_promise_is_asked_only_for_pods_that_may_be_its_own(
    world: AdmissionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand promises in a namespace of ten thousand pods would ask ten million times in each round."""
    jobs = [made(f"job-{number}", 3) for number in range(20)]
    for number in range(40):
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "x", "controller": True, "uid": f"job-job-{number}"}
        says: dict[str, Obj] = {
            f"named-{number}": {"annotations": {"kueue.x-k8s.io/workload": f"job-{number}"}},
            f"group-{number}": {"labels": {"kueue.x-k8s.io/pod-group-name": f"job-{number}"}},
            f"owned-{number}": {"ownerReferences": [owner]},
        }
        for name, meta in says.items():
            pod = Make.pod(name, node="node-0")
            world.api.add(PODS, {**pod, "metadata": {**pod["metadata"], **meta}})
    asked, owns = list[str](), Workload.owns

    def counted(job: Workload, pod: Pod) -> bool:
        asked.append(pod.key)
        return owns(job, pod)

    answering = planner(world)
    monkeypatch.setattr(Workload, "owns", counted)
    answers = answering.answer(question(world, promised=jobs))
    assert answers.started == {it.metadata.uid for it in jobs}
    assert len(asked) == 3 * len(jobs)


async def test_a_tenant_with_hard_workloads_does_not_keep_others_waiting(
    world: AdmissionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Placing.place_together

    def slow(placing: Placing, pods: Sequence[Pod], *, says_why: bool = True) -> Sequence[Placed | NotPlaced]:
        if pods[0].metadata.namespace == "hard":
            time.sleep(0.2)
        return place(placing, pods, says_why=says_why)

    monkeypatch.setattr(Placing, "place_together", slow)
    monkeypatch.setattr(planner_module, "TURN_SECONDS", 0.1)
    monkeypatch.setattr(planner_module, "NAMESPACE_SECONDS", 0.1)
    hard = [made(f"hard-{number}", number + 1, namespace="hard") for number in range(4)]
    answering, late = planner(world), made("late")
    first = answering.answer(question(world, candidates=hard))
    assert (list(first.candidates), first.looked, first.left) == (["hard-0"], ["hard-0"], 3)
    second = answering.answer(question(world, candidates=[*hard[1:], late]))
    assert list(second.candidates) == ["late", "hard-1"]
    assert second.candidates["late"].fits
    assert second.left == 2


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of pods of each Workload for which a place was looked for."""
    sizes, place = list[int](), Placing.place_together

    def counted(placing: Placing, pods: Sequence[Pod], *, says_why: bool = True) -> Sequence[Placed | NotPlaced]:
        sizes.append(len(pods))
        return place(placing, pods, says_why=says_why)

    monkeypatch.setattr(Placing, "place_together", counted)
    return sizes


def with_status(job: Workload, **status: Any) -> Workload:
    return replaced(job, status=convert(WorkloadStatus, status))


async def test_workloads_that_differ_only_in_their_status_are_not_equal(world: AdmissionWorld) -> None:
    """What other checks add, and pods that have ended, decide as well."""
    update = {"name": "main", "labels": {"kueue.x-k8s.io/podset": "else"}, "nodeSelector": {"x": "y"}}
    check = {"name": "other", "state": "Ready", "podSetUpdates": [update]}
    jobs = [
        with_status(
            made("confused", 2),
            admissionChecks=[check, {**check, "podSetUpdates": [{**update, "nodeSelector": {"x": "z"}}]}],
        ),
        made("plain", 2),
        made("large", 5),
        with_status(made("ended", 5), reclaimablePods=[{"name": "main", "count": 3}]),
    ]
    found = planner(world).answer(question(world, candidates=jobs)).candidates
    assert [(name, it.fits, it.is_final) for name, it in found.items()] == [
        ("confused", False, False),
        ("plain", True, False),
        ("large", False, False),
        ("ended", True, False),
    ]


async def test_equal_workloads_that_are_asked_one_after_another_cost_one_search(
    world: AdmissionWorld, searched: list[int]
) -> None:
    """Kueue gives the quota that came free to one after the other; one that fits is behind all of them."""
    answering = planner(world)
    first = answering.answer(question(world, candidates=[made("large-0", 5)])).candidates["large-0"]
    assert searched
    searched.clear()
    for uid in ("large-1", "large-2"):
        found = answering.answer(question(world, candidates=[made(uid, 5)])).candidates[uid]
        assert found.reason == f"as for workload large-0, which is equal: {first.reason}"
    assert not searched
    assert answering.answer(question(world, candidates=[made("small", 4)])).candidates["small"].fits


async def test_reasons_are_found_for_those_that_have_quota_only(world: AdmissionWorld) -> None:
    """Thousands may back off, and nobody reads why. The reasons take several times as long as the search."""
    answering = planner(world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Attempt, "refuse", Mock(side_effect=AssertionError("nobody reads it")))
        found = answering.answer(replace(question(world), backing_off=[made("large-0", 5)])).backing_off
        assert found["large-0"].reason == "only 4 of 5 pods fit together"
    # One with quota that is equal to it gets the whole reason.
    found = answering.answer(question(world, candidates=[made("large-1", 5)])).candidates
    assert "only 4 of 5 pods fit together" in found["large-1"].reason
    assert found["large-1"].fits_never


@pytest.mark.parametrize("change", ["a node", "the end of a promise", "a flavor", "another one that fitted", "time"])
async def test_a_workload_is_searched_for_again_after(
    world: AdmissionWorld, searched: list[int], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    answering, promised, wanted = planner(world), [made("promised", 4)], made("wanted")
    if change == "another one that fitted":
        answers = answering.answer(question(world, candidates=[made("first", 4), wanted]))
        asked = question(world, candidates=[wanted])
    else:
        answers = answering.answer(question(world, promised, [wanted]))
        asked = question(world, promised, [wanted])
    assert not answers.candidates["wanted"].fits
    match change:
        case "a node":
            node = [convert(Node, Make.node("node-2")), convert(ResourceSlice, Make.slice("node-2", 8))]
            asked = replace(asked, changes=[SeenChange(type(it), it.key, it.metadata.uid, it) for it in node])
        case "the end of a promise":
            asked = replace(asked, promised=())
        case "a flavor":
            asked = replace(asked, flavors={"new": ResourceFlavor()})
        case "time":
            monkeypatch.setattr(planner_module, "FAILED_SECONDS", 0.0)
    searched.clear()
    fits = answering.answer(asked).candidates["wanted"].fits
    assert 1 in searched
    assert fits == (change not in ("a flavor", "time"))


async def test_a_tenant_with_thousands_of_workloads_does_not_keep_others_waiting(world: AdmissionWorld) -> None:
    """Each is decided on in no time, and then all are written, eight at a time."""
    answering, late = planner(world), made("late")
    many = [made(f"many-{number:04}", 1_000_000, namespace="many") for number in range(2000)]
    found = answering.answer(question(world, candidates=[*many, late])).candidates
    assert len(found) <= 51
    assert list(found).index("late") < 30
    assert found["late"].fits


async def test_a_round_decides_for_as_long_as_its_promises_took(
    world: AdmissionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds that keep a thousand promises for 2 s, and decide for 0.5 s, would decide a fifth of the time."""
    place = Placing.place_together

    def slow(placing: Placing, pods: Sequence[Pod], *, says_why: bool = True) -> Sequence[Placed | NotPlaced]:
        if pods[0].metadata.namespace == "promised":
            time.sleep(0.5)
        return place(placing, pods, says_why=says_why)

    monkeypatch.setattr(Placing, "place_together", slow)
    monkeypatch.setattr(planner_module, "TURN_SECONDS", 0.1)
    many = [made(f"many-{number}", 1_000_000) for number in range(100)]
    answering = planner(world)
    assert len(answering.answer(question(world, candidates=many)).candidates) <= 11
    promised = [made("promised", namespace="promised")]
    assert len(answering.answer(question(world, promised, many)).candidates) > 20


async def test_promises_of_a_tenant_that_lost_their_place_do_not_keep_others_waiting(
    world: AdmissionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, searches = Placing.place_together, list[str]()

    def slow(placing: Placing, pods: Sequence[Pod], *, says_why: bool = True) -> Sequence[Placed | NotPlaced]:
        searches.append(pods[0].metadata.namespace)
        if pods[0].metadata.namespace == "hard":
            time.sleep(0.2)
        return place(placing, pods, says_why=says_why)

    monkeypatch.setattr(Placing, "place_together", slow)
    monkeypatch.setattr(planner_module, "ROUND_SECONDS", 0.1)
    lost = [made(f"hard-{number}", 9, namespace="hard") for number in range(5)]
    answering = planner(world)
    for _ in range(2):  # each round has its time anew
        searches.clear()
        answers = answering.answer(question(world, promised=[*lost, made("other", 1)]))
        assert searches == ["hard", "ns"]
        assert answers.promised["hard-4"].reason == "its pods could not be placed in time"
        assert answers.promised["other"].fits


async def test_a_tenant_with_hard_workloads_is_behind_nobody_of_lower_priority(
    world: AdmissionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_module, "NAMESPACE_SECONDS", 0.0)
    jobs = [made("high-0", priority=1), made("high-1", priority=1), made("low", namespace="other")]
    answers = planner(world).answer(question(world, candidates=jobs))
    assert list(answers.candidates) == ["high-0", "high-1", "low"]


async def test_among_cheap_workloads_priority_and_age_alone_decide(world: AdmissionWorld) -> None:
    jobs = [made(f"job-{number}", namespace="ab"[number % 2]) for number in range(6)]
    answers = planner(world).answer(question(world, candidates=jobs))
    assert list(answers.candidates) == [it.metadata.uid for it in jobs]


def tolerating(name: str, created: str = "") -> Obj:
    """A Workload with a template of about 1.4 MB, all of it in a field that decides where its pods run."""
    many = [{"key": f"{number:08}", "operator": "Exists", "effect": "NoSchedule"} for number in range(20_000)]
    return workload(name, 1, created=created, tolerations=many)


async def test_a_workload_of_a_megabyte_is_rejected_and_little_of_it_is_kept(world: AdmissionWorld) -> None:
    world.api.add(WORKLOADS, tolerating("large"))
    world.api.add(WORKLOADS, workload("good", 2, created="2026-01-01T00:00:01Z"))
    world.start()
    async with world.running():
        await world.until("the good one runs", lambda: len(world.pods("good")) == 2)
        await world.until("the other is rejected", lambda: world.kueue.decided["Rejected"] == 1)
    kept = world.cluster.store_of(Workload).get("ns/large")
    assert kept is not None
    assert len(encode(kept)) < 2_000


def test_large_annotations_of_a_template_do_not_make_its_pods_large() -> None:
    templates = [{"metadata": {"annotations": {"x": "x" * 1_000_000, "dra.kopf.dev/gang": "2"}}, "spec": {}}]
    sets = [{"name": "main", "count": 1, "template": it} for it in templates]
    large = convert(Workload, {"metadata": {"name": "it", "namespace": "ns"}, "spec": {"podSets": sets}})
    kept = workload_without_bulk(large)
    assert (kept.spec.pod_sets or ())[0].template.metadata.annotations == {"dra.kopf.dev/gang": "2"}
    assert len(planned_sets(large, {})) == 1


async def test_a_set_of_pods_in_several_domains_gets_a_place_for_each_pod(world: AdmissionWorld) -> None:
    """Kueue's topology-aware scheduling gives each domain a number of pods of the set."""
    values = [{"individual": {"roots": ["node-0", "node-1"]}}]
    domains = {"domainCount": 2, "valuesPerLevel": values, "podCounts": {"individual": [1, 2]}}
    topology = {"levels": ["kubernetes.io/hostname"], "slices": [domains]}
    assigned = {"name": "main", "topologyAssignment": topology}
    job = with_status(made("job", 3), admission={"clusterQueue": "q", "podSetAssignments": [assigned]})
    answering = planner(world)
    for asked in (question(world, candidates=[job]), question(world, promised=[job])):
        answers = answering.answer(asked)
        found = (answers.candidates or answers.promised)["job"]
        assert sorted(seat.node for seat in found.seats) == ["node-0", "node-1", "node-1"], found.reason
        assert len({seat.pod.metadata.uid for seat in found.seats}) == 3
        assert len({result for seat in found.seats for it in seat.allocations for result in it.results}) == 3


async def test_a_promise_keeps_the_rest_of_its_nodes_while_its_pods_start_one_by_one(world: AdmissionWorld) -> None:
    """Two of its pods have started, one on each of its nodes: the others do not fit on the first of them together."""
    for name in ("node-2", "node-3"):
        world.api.add(NODES, Make.node(name))
        world.api.add(RESOURCE_SLICES, Make.slice(name, 2))
    for number, node in enumerate(("node-2", "node-3")):
        results = [{"request": "req", "driver": "gpu.example.com", "pool": node, "device": "dev-0"}]
        name = f"train-main-x{number}"
        pod = {**Make.pod(name, [{"resourceClaimName": f"of-{number}"}], node)}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "x", "controller": True, "uid": "job-train"}
        pod["metadata"] |= {"ownerReferences": [owner], "labels": {"kueue.x-k8s.io/podset": "main"}}
        world.api.add(PODS, pod)
        user = {"resource": "pods", "name": name, "uid": name}
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": [user]}
        world.api.add(RESOURCE_CLAIMS, {**Make.claim(f"of-{number}"), "status": status})
    wanted = PromisedWorkload(made("train", 4), {"main": ["node-2", "node-2", "node-3", "node-3"]})
    asked = replace(question(world), promised=[wanted])
    outcome = planner(world).answer(asked).promised["train"]
    assert sorted(seat.node for seat in outcome.seats) == ["node-2", "node-3"]


async def test_sets_whose_pods_would_have_one_name_keep_their_places_when_priorities_change(
    world: AdmissionWorld,
) -> None:
    """Set b-c of job a and set c of job a-b: the second took the place of the first one, and lost it with that."""
    world.kueue.makes_pods = False
    for name, part in (("a", "b-c"), ("a-b", "c")):
        job = workload(name, 2)
        job["spec"]["podSets"][0]["name"] = part
        world.api.add(WORKLOADS, job)
    world.start()
    async with world.running():
        await world.until("both are admitted", lambda: world.is_admitted("a", "a-b"))
        world.api.change(WORKLOADS, "ns/a-b", lambda it: it["spec"].update(priority=9))
        await world.rests(0.5)
        world.api.change(WORKLOADS, "ns/a", lambda it: it["spec"].update(priority=99))
        await world.rests(0.5)
        world.api.add(PODS, Make.pod("thief", [Make.FROM_TEMPLATE]))
        await world.rests(0.5)
        assert world.bound() == []
