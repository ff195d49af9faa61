"""What becomes of decisions and promises when something else changes than devices: checks, flavors, templates, jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace as replace_fields
from functools import partial
from pathlib import Path

import pytest
from admission_world import AdmissionWorld, planner, question
from dra_api.codec import convert
from dra_api.kueue import REPLACED_SLICE, Workload, WorkloadStatus
from dra_api.meta import Object
from dra_api.resource import AllocationResult
from dra_kube import ADMISSION_CHECKS, NAMESPACES, NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_FLAVORS, WORKLOADS
from dra_operator.admission.planner import SeenChange
from dra_operator.kubectl.cli import main
from dra_operator.sources.kind_table import OF_KUEUE
from fake_api import FakeApi, key_of
from kueue_model import CHECK, admission_check, is_true, pods_of, workload
from msgspec.structs import replace
from objects import Make, Obj
from remembered import sizes
from zoo.flapping import FLAPPERS


async def promise(world: AdmissionWorld, *jobs: Obj) -> None:
    """Wait until the Workloads are admitted; their pods do not come by themselves."""
    world.kueue.makes_pods = False
    for job in jobs:
        world.api.add(WORKLOADS, job)
    names = [job["metadata"]["name"] for job in jobs]
    await world.until("admitted", lambda: all(is_true(world.workload(it), "Admitted") for it in names))


async def test_a_check_that_a_queue_gets_later_evicts_no_job_that_runs(world: AdmissionWorld) -> None:
    """Kueue adds it to admitted Workloads as Pending. A second place for their pods there is not."""
    world.kueue.check = None
    world.api.add(WORKLOADS, workload("train", 3))
    world.start()
    async with world.running():
        await world.until("train runs", lambda: len(world.pods("train")) == 3)
        pending = {"name": "devices", "state": "Pending", "message": "", "lastTransitionTime": world.now}
        world.kueue.check = "devices"
        world.api.change(WORKLOADS, "ns/train", lambda it: it["status"].update(admissionChecks=[pending]))
        await world.until("answered", lambda: world.check("train")["state"] != "Pending")
        assert world.check("train")["state"] == "Ready"
        await world.rests(0.3)
    assert len(world.pods("train")) == 3
    assert world.kueue.decided["Retry"] == 0


async def test_a_check_that_comes_later_keeps_places_for_pods_that_are_missing(world: AdmissionWorld) -> None:
    world.kueue.check, world.kueue.makes_pods = None, False
    world.api.add(WORKLOADS, workload("train", 4))
    world.start()
    async with world.running():
        await world.until("admitted", lambda: world.is_admitted("train"))
        pending = {"name": "devices", "state": "Pending", "message": "", "lastTransitionTime": world.now}
        world.kueue.check = "devices"
        world.api.change(WORKLOADS, "ns/train", lambda it: it["status"].update(admissionChecks=[pending]))
        await world.until("answered", lambda: world.check("train")["state"] == "Ready")
        world.api.add(PODS, Make.pod("thief", [Make.FROM_TEMPLATE]))
        await world.rests(0.5)
        assert world.bound() == []


def unanswerable(check: Obj) -> None:
    check["spec"]["parameters"] = {"apiGroup": "x", "kind": "X", "name": "x"}


@pytest.mark.parametrize("change", ["deleted", "deleted and made again", "parameters"])
async def test_a_promise_stays_when_its_check_goes(world: AdmissionWorld, change: str) -> None:
    """Kueue leaves the Workload admitted."""
    world.start()
    async with world.running():
        await promise(world, workload("train", 4))
        if change == "parameters":
            world.api.change(ADMISSION_CHECKS, "devices", unanswerable)
        else:
            world.api.drop(ADMISSION_CHECKS, "devices")
            await world.rests(0.2)
        if change == "deleted and made again":
            world.api.add(ADMISSION_CHECKS, admission_check())
        world.api.add(PODS, Make.pod("thief", [Make.FROM_TEMPLATE]))
        await world.rests(0.5)
        assert world.bound() == []


async def test_a_check_that_another_controller_takes_over_promises_nothing(world: AdmissionWorld) -> None:
    world.start()
    async with world.running():
        await promise(world, workload("train", 4))
        world.api.change(ADMISSION_CHECKS, "devices", lambda it: it["spec"].update(controllerName="example.com/x"))
        world.api.add(PODS, Make.pod("thief", [Make.FROM_TEMPLATE]))
        await world.until("another pod gets a device", lambda: world.bound() == ["thief"], 5)


async def test_two_checks_of_the_operator_are_one_promise(world: AdmissionWorld) -> None:
    world.api.add(ADMISSION_CHECKS, admission_check("second"))
    job = workload("train", 2)
    states = [
        {"name": name, "state": "Pending", "message": "", "lastTransitionTime": world.now} for name in ("second",)
    ]
    job["status"] = {"admissionChecks": states}
    world.start()
    async with world.running():
        await promise(world, job, workload("other", 2))
        assert {it["state"] for it in world.workload("train")["status"]["admissionChecks"]} == {"Ready"}
        assert world.seen("dra_operator_admission_promises") == 2
        assert world.seen("dra_operator_admission_broken_promises_total") == 0


async def with_a_second_check(world: AdmissionWorld, name: str, pods: int) -> None:
    """Wait until ours is Ready. Another one is not, so the Workload has quota and is not admitted."""
    world.api.add(ADMISSION_CHECKS, admission_check("slow", "example.com/x"))
    slow = {"name": "slow", "state": "Pending", "message": "", "lastTransitionTime": world.now}
    world.api.add(WORKLOADS, {**workload(name, pods), "status": {"admissionChecks": [slow]}})
    await world.until("ours is ready", lambda: world.check(name).get("state") == "Ready")


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_queue_that_is_stopped_takes_what_was_decided_with_the_quota(
    world: AdmissionWorld, *, is_restarted: bool
) -> None:
    """Kueue resets no check then, and with the next quota it would admit the job by the old answer."""
    world.start()
    async with world.running():
        await with_a_second_check(world, "train", 4)
        world.kueue.is_stopped = True
        if not is_restarted:
            await world.until("it is withdrawn", lambda: world.check("train")["state"] == "Pending")
    if is_restarted:
        world.bring_events()
        assert not is_true(world.workload("train"), "QuotaReserved")
        assert world.check("train")["state"] == "Ready"
        world.start()
    async with world.running():
        world.api.add(PODS, Make.pod("thief", [Make.FROM_TEMPLATE]))
        await world.until("another pod gets a device", lambda: world.bound() == ["thief"], 5)
        await world.until("it is withdrawn", lambda: world.check("train")["state"] == "Pending")
        world.kueue.is_stopped = False
        await world.until("asked anew", lambda: world.kueue.decided["Retry"] == 1)
        assert not world.is_admitted("train")
    assert world.seen("dra_operator_admission_broken_promises_total") == 0


@pytest.mark.parametrize("is_dispatched", [False, True])
async def test_pods_of_another_cluster_get_no_devices_of_this_one(
    world: AdmissionWorld, *, is_dispatched: bool
) -> None:
    """With MultiKueue: before it has chosen the cluster, and when its check is gone."""
    world.kueue.makes_pods = False
    job = workload("train", 4)
    if is_dispatched:
        job["status"] = {"clusterName": "worker-1"}
    else:
        world.api.add(ADMISSION_CHECKS, admission_check("multi", "kueue.x-k8s.io/multikueue"))
        state = {"name": "multi", "state": "Pending", "message": "", "lastTransitionTime": world.now}
        job["status"] = {"admissionChecks": [state]}
    world.api.add(PODS, Make.pod("first", [Make.FROM_TEMPLATE]))
    world.start()
    async with world.running():
        await world.until("devices are in use", lambda: world.bound() == ["first"])
        world.api.add(WORKLOADS, job)
        await world.until("it may run elsewhere", lambda: world.check("train").get("state") == "Ready")
        assert "in another cluster" in world.check("train")["message"]
        world.api.add(PODS, Make.pod("thief", [Make.FROM_TEMPLATE] * 2))
        await world.until("the devices are free", lambda: "thief" in world.bound(), 5)
        await world.rests(0.3)
    assert world.kueue.decided["Retry"] == 0
    assert world.seen("dra_operator_admission_broken_promises_total") == 0


async def test_a_namespace_that_is_being_deleted_keeps_no_places_for_pods_that_cannot_be_made(
    world: AdmissionWorld,
) -> None:
    """Whatever has a finalizer may keep the namespace for ever, and Workloads in it."""
    world.api.add(NAMESPACES, {"metadata": {"name": "ns"}})
    world.api.add(NAMESPACES, {"metadata": {"name": "others"}})
    thief, template = Make.pod("thief", [Make.FROM_TEMPLATE] * 2), Make.template()
    for obj in (thief, template):
        obj["metadata"]["namespace"] = "others"
    world.api.add(RESOURCE_CLAIM_TEMPLATES, template)
    world.start()
    job = workload("train", 4)
    async with world.running():
        await promise(world, job)
        world.api.add(PODS, pods_of(job)[0])
        await world.until("one of its pods runs", lambda: len(world.pods("train")) == 1)
        world.api.change(NAMESPACES, "ns", lambda it: it["metadata"].update(deletionTimestamp=world.now))
        world.api.add(PODS, thief)
        await world.until("the other namespace gets devices", lambda: "thief" in world.bound(), 5)
        world.api.add(WORKLOADS, workload("late", 1))
        await world.until("refused", lambda: world.kueue.decided["Retry"] == 1)
        assert "namespace ns is being deleted" in world.check("late")["message"]
    assert len(world.pods("train")) == 1
    assert world.seen("dra_operator_admission_broken_promises_total") == 0


def pods_of_train(**phases: str) -> list[Obj]:
    """The first pods of a job of four. Those with a phase have a node, or had one."""
    made = pods_of(workload("train", 4))[: len(phases)]
    for pod, (node, phase) in zip(made, phases.items(), strict=True):
        pod["status"]["phase"] = phase
        pod["spec"] |= {"resourceClaims": [], **({"nodeName": node} if phase else {})}
    return made


@pytest.mark.parametrize(
    ("pods", "ended", "places"),
    [
        ({"a": "Succeeded", "b": "Succeeded"}, 2, 2),
        ({"a": "Succeeded", "b": "Succeeded", "c": "Running"}, 2, 1),
        ({"a": "Failed", "b": "Running"}, 0, 2),
        ({"a": "Failed", "b": "Running", "c": "Running", "d": ""}, 0, 1),
        ({"a": "Failed", "b": "Failed", "c": "Running", "d": "Running"}, 0, 0),
    ],
)
async def test_a_promise_is_for_as_many_pods_as_the_job_still_has_to_start(
    world: AdmissionWorld, pods: dict[str, str], ended: int, places: int
) -> None:
    """The number of a set is without the pods that ended as they should, and one that failed has had its place."""
    for pod in pods_of_train(**pods):
        world.api.add(PODS, pod)
    job = convert(Workload, workload("train", 4))
    status = convert(WorkloadStatus, {"reclaimablePods": [{"name": "main", "count": ended}]})
    found = planner(world).answer(question(world, promised=[replace(job, status=status)]))
    assert len(found.promised[""].seats if "" in found.promised else ()) == places


async def test_a_pod_beyond_those_of_the_job_has_no_promise(world: AdmissionWorld) -> None:
    """It is in the place of one that failed on a node. An earlier promise would take the place of a later one."""
    for pod in pods_of_train(a="Failed", b="Running", c="Running", d="Running"):
        world.api.add(PODS, pod)
    [again] = pods_of(workload("train", 5))[4:]
    world.api.add(PODS, again)
    found = planner(world).answer(question(world, promised=[convert(Workload, workload("train", 4))]))
    assert found.promised[""].seats == ()


def gone(world: AdmissionWorld) -> None:
    world.api.drop(RESOURCE_FLAVORS, "any")


def elsewhere(world: AdmissionWorld) -> None:
    world.api.change(RESOURCE_FLAVORS, "any", lambda it: it.update(spec={"nodeLabels": {"pool": "b"}}))


@pytest.mark.parametrize("change", [gone, elsewhere])
async def test_a_promise_is_for_the_flavor_as_it_was_then(
    world: AdmissionWorld, change: Callable[[AdmissionWorld], None]
) -> None:
    """Kueue has put its labels into the job."""
    world.api.change(RESOURCE_FLAVORS, "any", lambda it: it.update(spec={"nodeLabels": {"pool": "a"}}))
    for name in ("node-0", "node-1"):
        world.api.change(NODES, name, lambda it: it["metadata"]["labels"].update(pool="a"))
    world.start()
    async with world.running():
        await promise(world, job := workload("train", 4))
        change(world)
        world.api.add(PODS, Make.pod("thief", [Make.FROM_TEMPLATE]))
        await world.rests(0.5)
        assert world.bound() == []
        assert world.seen("dra_operator_admission_broken_promises_total") == 0
        for pod in pods_of(job):
            pod["spec"]["nodeSelector"] = {"pool": "a"}
            world.api.add(PODS, pod)
        await world.until("the job runs", lambda: len(world.pods("train")) == 4)


async def test_pods_that_are_there_keep_their_promise_without_their_flavor_after_a_restart(
    world: AdmissionWorld,
) -> None:
    world.start()
    job = workload("train", 4)
    async with world.running():
        await promise(world, job)
    gone(world)
    for pod in pods_of(job):
        gated = {**pod["spec"], "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
        world.api.add(PODS, {**pod, "spec": gated})
    world.api.add(PODS, Make.pod("thief", [Make.FROM_TEMPLATE]))
    world.start()
    async with world.running():
        await world.rests(0.5)
        assert world.bound() == []


async def test_an_elastic_job_that_grows_needs_room_for_its_further_pods_alone(world: AdmissionWorld) -> None:
    world.start()
    async with world.running():
        world.api.add(WORKLOADS, workload("train", 3))
        await world.until("it runs", lambda: len(world.pods("train")) == 3)
        larger = workload("train-2", 4, created="2026-01-01T00:00:01Z")
        larger["metadata"]["ownerReferences"] = world.workload("train")["metadata"]["ownerReferences"]
        larger["metadata"]["annotations"] = {"kueue.x-k8s.io/workload-slice-replacement-for": "ns/train"}
        world.kueue.makes_pods = False
        world.api.add(WORKLOADS, larger)
        await world.rests(0.3)
        assert not world.is_admitted("train-2"), "decided before Kueue has finished the slice that it replaces"
        finished = {"type": "Finished", "status": "True", "reason": "WorkloadSliceReplaced", "message": ""}
        world.api.change(
            WORKLOADS, "ns/train", lambda it: it["status"]["conditions"].append({**finished, "lastTransitionTime": ""})
        )
        await world.until("it is admitted", lambda: world.is_admitted("train-2"), 5)
        world.api.add(PODS, Make.pod("thief", [Make.FROM_TEMPLATE]))
        await world.rests(0.3)
        assert "thief" not in world.bound()
    assert world.kueue.decided["Retry"] == 0


async def test_a_job_that_waits_for_the_slice_that_it_replaces_says_so(world: AdmissionWorld) -> None:
    world.kueue.makes_pods = False
    world.at(0.0)
    world.start()
    async with world.running():
        world.api.add(WORKLOADS, workload("train", 1))
        await world.until("it has its quota", lambda: world.is_admitted("train"))
        larger = workload("train-2", 2, created="2026-01-01T00:00:01Z")
        larger["metadata"]["annotations"] = {REPLACED_SLICE: "ns/train"}
        world.api.add(WORKLOADS, larger)
        await world.rests(0.3)
        assert "Kueue has not finished" not in str(world.workload("train-2"))
        world.at(6.0)
        world.admission._next.look_again()
        said = "Kueue has not finished workload ns/train yet"
        await world.until("it says so", lambda: said in str(world.workload("train-2")))
        writes = len(world.api.writes)
        await world.rests(0.3)
        assert len(world.api.writes) == writes


@pytest.mark.parametrize("field", ["namespace", "queue"])
async def test_a_job_that_names_one_that_kueue_never_finishes_for_it_is_decided_on(
    world: AdmissionWorld, field: str
) -> None:
    """The annotation may name any Workload; Kueue finishes only one of the same namespace and queue."""
    elsewhere = workload("train", 1)
    if field == "namespace":
        elsewhere["metadata"]["namespace"] = "other"
        template = Make.template()
        template["metadata"]["namespace"] = "other"
        world.api.add(RESOURCE_CLAIM_TEMPLATES, template)
    world.start()
    async with world.running():
        world.api.add(WORKLOADS, elsewhere)
        key = f"{elsewhere['metadata']['namespace']}/train"
        await world.until("it has its quota", lambda: is_true(world.api[WORKLOADS, key], "Admitted"))
        if field == "queue":
            world.api.change(WORKLOADS, key, lambda it: it["status"]["admission"].update(clusterQueue="other"))
        liar = workload("liar", 1, created="2026-01-01T00:00:01Z")
        liar["metadata"]["annotations"] = {REPLACED_SLICE: key}
        world.api.add(WORKLOADS, liar)
        await world.until("it is admitted", lambda: world.is_admitted("liar"), 5)


BOUNDED = ("._journal._entries", "._late", "._interner._attributes", "._loaded_nodes.changes._entries")
"""What forgets the oldest half at a number of entries, as other tests show."""


class Notes:
    """What the controller tells the planner of changes."""

    def __init__(self) -> None:
        self.changes: list[SeenChange] = []

    def note(self, before: Object | None, now: Object | None) -> None:
        obj = now or before
        if obj is not None:
            self.changes.append(SeenChange(type(obj), obj.key, obj.metadata.uid, now))

    def hold(self, uid: str, allocation: AllocationResult | None) -> None:
        """Nothing is held."""


async def test_the_planners_view_keeps_nothing_of_what_comes_changes_and_goes(world: AdmissionWorld) -> None:
    """Nobody handles the keys of that view, so an entry that waits for a handler would stay for ever."""
    notes, view = Notes(), planner(world)
    world.control.observe(notes)

    def turn(number: int) -> dict[str, int]:
        for flapper in (it for it in FLAPPERS if it.resource not in OF_KUEUE):
            body, later = flapper.body(number, number), flapper.body(number, number + 1)
            namespace = {"namespace": "ns"} if flapper.resource.namespaced else {}
            meta = {"name": f"{flapper.resource.plural[:20]}-{number}", **namespace, **body.pop("metadata", {})}
            key = key_of(world.api.add(flapper.resource, {**body, "metadata": meta}))
            world.bring_events()
            later.pop("metadata", None)
            world.api.change(flapper.resource, key, partial(dict.update, **later))
            world.bring_events()
            world.api.drop(flapper.resource, key)
            world.bring_events()
        changes, notes.changes = notes.changes, []
        asked = question(world, candidates=[convert(Workload, workload("train", 1))])
        view.answer(replace_fields(asked, changes=changes))
        return sizes(view)

    for number in range(3):
        before = turn(number)
    for number in range(3, 12):
        after = turn(number)
    grown = {path: (before.get(path), size) for path, size in after.items() if size > before.get(path, size)}
    assert {path: sizes for path, sizes in grown.items() if not path.endswith(BOUNDED)} == {}


async def test_a_pod_that_failed_without_a_node_is_made_again_and_has_its_place(world: AdmissionWorld) -> None:
    world.start()
    async with world.running():
        await promise(world, job := workload("train", 4))
        *others, last = pods_of(job)
        world.api.add(PODS, {**last, "status": {"phase": "Failed"}})
        for pod in others:
            world.api.add(PODS, pod)
        await world.until("three run", lambda: len(world.pods("train")) == 3)
        world.api.add(PODS, Make.pod("thief", [Make.FROM_TEMPLATE]))
        await world.rests(0.5)
        assert "thief" not in world.bound()


def too_large() -> Obj:
    """A template of more than 64 KiB that an API server admits."""
    template = Make.template()
    template["spec"]["spec"]["devices"]["config"] = [
        {"opaque": {"driver": "gpu.example.com", "parameters": {"x": "x" * 9000}}} for _ in range(10)
    ]
    return template


def malformed() -> Obj:
    template = Make.template()
    template["spec"]["spec"]["devices"]["requests"] = "all"
    return template


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (too_large(), "ResourceClaimTemplate ns/tmpl has a spec of 89 KiB, and dra-operator allocates at most 64 KiB"),
        (malformed(), "ResourceClaimTemplate ns/tmpl cannot be read"),
        (None, "ResourceClaimTemplate ns/tmpl is not in the cluster"),
    ],
    ids=["too large", "malformed", "missing"],
)
async def test_a_template_that_is_of_no_use_is_named_with_its_fault(
    world: AdmissionWorld, template: Obj | None, reason: str
) -> None:
    """Until it is mended, which ends the wait."""
    world.api.drop(RESOURCE_CLAIM_TEMPLATES, "ns/tmpl")
    if template is not None:
        world.api.add(RESOURCE_CLAIM_TEMPLATES, template)
    world.api.add(WORKLOADS, workload("train", 2))
    world.start()
    async with world.running():
        await world.until("it backs off", lambda: "requeueState" in world.workload("train").get("status", {}))
        assert reason in world.check("train")["message"]
        await world.rests(0.6)
        if template is not None:
            world.api.drop(RESOURCE_CLAIM_TEMPLATES, "ns/tmpl")
        world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
        await world.until("it runs", lambda: len(world.pods("train")) == 2, 5)


def ask_why(world: AdmissionWorld, dump: Path, **snapshot: Obj) -> int:
    """Print why the Workload waits, by a dump of the cluster; return the exit code."""
    kinds = ((resource, obj) for (resource, _, _), obj in world.api.objects.items())
    items = [{"apiVersion": resource.api_version(), "kind": resource.kind, **obj} for resource, obj in kinds]
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items} | snapshot))
    return main(["why", "workload/train", "-n", "ns", "--from", str(dump)])


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (None, "there is no AdmissionCheck devices: create it, or correct admissionChecksStrategy"),
        (admission_check(), "nobody answers it: no operator runs with --controllers auto,admission"),
        (admission_check(controller="dra.kopf.dev/fits"), "no controller dra.kopf.dev/fits has taken it"),
        (
            {**admission_check(), "status": {"conditions": [{"type": "Active", "status": "False", "message": "no x"}]}},
            "nobody answers it: no x",
        ),
        ({**admission_check(), "status": {"conditions": [{"type": "Active", "status": "True"}]}}, ""),
    ],
    ids=["missing", "off", "misspelt", "inactive", "answered"],
)
async def test_why_says_why_nobody_answers_a_check(
    world: AdmissionWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str], check: Obj | None, words: str
) -> None:
    world.api.drop(ADMISSION_CHECKS, "devices")
    world.api.add(ADMISSION_CHECKS, admission_check("other", "example.com/x"))
    if check is not None:
        world.api.add(ADMISSION_CHECKS, check)
    job = workload("train", 1)
    pending = {"name": "devices", "state": "Pending", "message": "", "lastTransitionTime": world.now}
    world.api.add(WORKLOADS, {**job, "status": {"admissionChecks": [pending]}})
    ask_why(world, tmp_path / "dump.json")
    said = capsys.readouterr().out
    assert words in said
    assert ("nobody answers" in said or "there is no" in said) is bool(words)
    assert "its quota is all that Kueue looks at" not in said


@pytest.mark.parametrize(
    ("finalizers", "words"),
    [
        ([], "gets no place any more\n"),
        (["kueue.x-k8s.io/resource-in-use"], "kueue.x-k8s.io/resource-in-use; Kueue removes its own one"),
        (["x.io/keeps"], "it is kept by its finalizers: x.io/keeps\n"),
    ],
)
async def test_why_says_that_a_workload_is_being_deleted_and_what_keeps_it(
    world: AdmissionWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str], finalizers: list[str], words: str
) -> None:
    job = workload("train", 1)
    job["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": finalizers}
    world.api.add(WORKLOADS, job)
    ask_why(world, tmp_path / "dump.json")
    said = capsys.readouterr().out
    assert "it was deleted" in said
    assert words in said
    assert "fit now" not in said


@pytest.mark.parametrize(("cluster", "words"), [("worker-1", "in another cluster, worker-1: ask there"), (None, "")])
async def test_why_asks_no_node_of_this_cluster_about_pods_of_another(
    world: AdmissionWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str], cluster: str | None, words: str
) -> None:
    job = workload("train", 5)
    job["status"] = {"clusterName": cluster} if cluster else {}
    world.api.add(WORKLOADS, job)
    ask_why(world, tmp_path / "dump.json")
    said = capsys.readouterr().out
    assert words in said
    assert ("do not fit now" in said) is (cluster is None)


def with_quota(job: Obj, *conditions: str) -> Obj:
    """The Workload with quota, an answered check and these conditions."""
    since = "2026-01-01T00:00:00Z"
    said = [{"type": it, "status": "True", "lastTransitionTime": since} for it in ("QuotaReserved", *conditions)]
    assigned = {"name": "main", "count": job["spec"]["podSets"][0]["count"]}
    checks = [{"name": CHECK, "state": "Ready", "message": "", "lastTransitionTime": since}]
    admission = {"clusterQueue": "team", "podSetAssignments": [assigned]}
    return {**job, "status": {"conditions": said, "admission": admission, "admissionChecks": checks}}


def admitted(*names: str, pods: int = 1) -> list[Obj]:
    return [with_quota(workload(name, pods), "Admitted") for name in names]


def stopped() -> Obj:
    job = workload("train")
    job["spec"]["active"] = False
    return job


@pytest.mark.parametrize(
    ("jobs", "words", "code"),
    [
        ([workload("train")], "\n  all of its pods fit now, on node-0\n", 3),
        ([with_quota(workload("train"))], "\n  all of its pods fit now, on node-0\n", 0),
        (admitted("train"), "\n  all of its pods fit now, on node-0\n", 0),
        (
            [*admitted("early"), with_quota(workload("train"))],
            "1 other workload that Kueue has admitted and that has not started comes first: ns/early\n  all of",
            0,
        ),
        (
            [*admitted("early", "second"), workload("train")],
            "2 other workloads that Kueue has admitted and that have not started come first: ns/early, ns/second\n",
            3,
        ),
        ([stopped()], "ns/train is not active (spec.active)\n", 3),
        ([with_quota(workload("train"), "Admitted", "PodsReady")], "is admitted, and its pods are ready\n", 0),
    ],
    ids=["no quota", "quota", "admitted", "one before it", "two before it", "stopped", "ready"],
)
async def test_why_says_whether_the_pods_of_a_workload_fit_now(
    world: AdmissionWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str], jobs: list[Obj], words: str, code: int
) -> None:
    """The exit code says whether something is in its way: without quota it waits, even if its pods fit."""
    for job in jobs:
        world.api.add(WORKLOADS, job)
    found = ask_why(world, tmp_path / "dump.json", snapshot={"taken": world.now})
    said = capsys.readouterr().out
    assert words in said
    assert ("fit now" in said) is ("spec.active" not in words and "are ready" not in words)
    assert ("not started come" in said) is (len(jobs) > 1)
    assert found == code


async def test_why_counts_what_was_promised_to_others_in_what_would_help(
    world: AdmissionWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for job in (*admitted("early", pods=2), workload("train", 3)):
        world.api.add(WORKLOADS, job)
    assert ask_why(world, tmp_path / "dump.json", snapshot={"taken": world.now}) == 3
    said = capsys.readouterr().out
    assert "1 other workload that Kueue has admitted and that has not started comes first: ns/early\n" in said
    assert "\n  pod ns/train-main-2 would fit 0 of 2 nodes\n" in said


async def test_why_finds_no_node_for_pods_of_a_workload_that_have_nodes(
    world: AdmissionWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [job] = admitted("train")
    world.api.add(WORKLOADS, job)
    meta = {"name": "train-0", "namespace": "ns", "uid": "train-0"} | {
        "ownerReferences": job["metadata"]["ownerReferences"]
    }
    world.api.add(PODS, {"metadata": meta, "spec": {"nodeName": "node-0", "containers": []}})
    assert ask_why(world, tmp_path / "dump.json") == 0
    assert "\n  all of its pods have nodes\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("unseen", "words"),
    [
        ({}, "there is no workload train in namespace ns\n"),
        ({"workloads.kueue.x-k8s.io": "read only in namespace other"}, "there is no workload train in namespace ns\n"),
        ({"workloads.kueue.x-k8s.io": "404 page not found"}, "kubectl dra: 404 page not found\n"),
        ({"workloads.kueue.x-k8s.io": "it is forbidden"}, "it is forbidden; the ClusterRole dra-viewer-admission"),
    ],
)
async def test_why_says_why_it_sees_no_workload(
    world: AdmissionWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str], unseen: dict[str, str], words: str
) -> None:
    assert ask_why(world, tmp_path / "dump.json", snapshot={"taken": world.now, "unseen": unseen}) == 1
    assert words in capsys.readouterr().err


async def test_why_does_not_guess_whether_pods_fit_on_nodes_that_it_may_not_see(
    world: AdmissionWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.api.add(WORKLOADS, with_quota(workload("train")))
    assert ask_why(world, tmp_path / "dump.json", snapshot={"taken": world.now, "unseen": {"nodes": "forbidden"}}) == 3
    said = capsys.readouterr().out
    assert "whether its pods fit now is not known without nodes\n" in said
    assert "all of its pods" not in said


async def test_a_check_that_somebody_else_writes_as_well_is_not_written_all_the_time(world: AdmissionWorld) -> None:
    """A second operator of another version: each of them wrote ninety times a second."""

    def fights(api: FakeApi) -> None:
        if is_true(api[ADMISSION_CHECKS, CHECK], "Active"):
            other = {"type": "Active", "status": "False", "reason": "Other", "lastTransitionTime": api.now}
            api.change(ADMISSION_CHECKS, CHECK, lambda it: it["status"].update(conditions=[other]))

    world.others.append(fights)
    world.start()
    async with world.running():
        await world.rests(1.5)
    assert 1 <= sum(call.plural == ADMISSION_CHECKS.plural for call in world.api.writes) <= 3
