"""Which jobs are Rejected: Kueue deactivates them, and nobody activates them again when what was wrong has passed."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from admission_world import AdmissionWorld, planner, question
from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.kueue import POD_SET, ResourceFlavor, Workload
from dra_api.meta import PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES
from dra_api.resource import ResourceSlice
from dra_kube import (
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_FLAVORS,
    RESOURCE_SLICES,
    WORKLOADS,
    Resource,
)
from dra_operator.admission import ideal
from dra_operator.admission import planner as planner_module
from dra_operator.admission.ideal import Losses
from dra_operator.admission.planner import SeenChange
from dra_operator.admission.promises import Outcome
from dra_operator.admission.workloads import AdmissionSettings
from kueue_model import FLAVOR, is_true, workload
from objects import Make, Obj

AT_ONCE = AdmissionSettings(never=0.0, watched=0.0)


@pytest.mark.parametrize("began", [0.0, 0.01, 0.5, 0.99])
async def test_one_that_would_not_fit_an_empty_cluster_is_retried_once_and_then_rejected(
    world: AdmissionWorld, began: float
) -> None:
    """Wherever in a second it is decided first: Kueue waits from the beginning of that second on."""
    world.settings = AdmissionSettings(never=42.5, watched=0.0)
    world.api.add(WORKLOADS, workload("huge", 5))
    world.at(began)
    world.start()
    async with world.running():
        await world.until("retried", lambda: world.kueue.decided["Retry"] == 1)
        world.at(42.999)
        await world.rests(0.3)
        assert world.kueue.decided == {"Retry": 1}
        assert not is_true(world.workload("huge"), "QuotaReserved")
        world.at(44.0)
        await world.until("rejected", lambda: world.workload("huge")["spec"].get("active") is False)
    assert world.kueue.decided == {"Retry": 1, "Rejected": 1}


async def test_a_cordoned_node_is_no_reason_to_reject(world: AdmissionWorld) -> None:
    world.settings = AT_ONCE
    world.api.change(NODES, "node-0", lambda node: node.update(spec={"unschedulable": True}))
    world.api.add(WORKLOADS, workload("train", 3))
    world.start()
    async with world.running():
        await world.until("retried", lambda: world.kueue.decided["Retry"] == 1)
        await world.rests(0.6)
        world.api.change(NODES, "node-0", lambda node: node.update(spec={}))
        await world.until("admitted", lambda: world.is_admitted("train"), 5)
    assert world.kueue.decided == {"Retry": 1}


_SICK = [{"key": "sick", "effect": "NoSchedule"}]


def changes_all(resource: Resource, edit: Callable[[Obj], object]) -> Callable[[AdmissionWorld], None]:
    def change(world: AdmissionWorld) -> None:
        for it in list(world.api.of(resource)):
            world.api.change(resource, it["metadata"]["name"], edit)

    return change


def drops_all(resource: Resource) -> Callable[[AdmissionWorld], None]:
    def drop(world: AdmissionWorld) -> None:
        for it in list(world.api.of(resource)):
            world.api.drop(resource, it["metadata"]["name"])

    return drop


HOST = "kubernetes.io/hostname"
NAMES_A_CLAIM: dict[str, Any] = {
    "resourceClaims": [{"name": "shared", "resourceClaimName": "shared"}],
    "containers": [Make.asking("c", cpu="4")],
}


def _near(kind: str, key: str = HOST, **labels: str) -> Obj:
    """Required affinity to pods with these labels, or anti-affinity."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": labels or {"app": "cache"}}}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def runs_on_both(labels: dict[str, str], **spec: Any) -> Callable[[AdmissionWorld], None]:
    def add(world: AdmissionWorld) -> None:
        for name in ("node-0", "node-1"):
            pod = Make.pod(f"runs-on-{name}", node=name, **spec)
            pod["metadata"]["labels"] = labels
            world.api.add(PODS, pod)
            world.api.change(NODES, name, lambda it: it["metadata"]["labels"].update(zone="z"))

    return add


def shares_a_claim(world: AdmissionWorld) -> None:
    """Its node has less room than the job's pods ask for."""
    claim = Make.claim("shared")
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-0"]}]}
    result = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}
    claim["status"] = {
        "allocation": {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [term]}},
        "reservedFor": [{"resource": "pods", "name": "other", "uid": "other"}],
    }
    world.api.add(RESOURCE_CLAIMS, claim)
    world.api.change(NODES, "node-0", lambda it: it["status"]["allocatable"].update(cpu="1"))


def lacks_a_volume(world: AdmissionWorld) -> None:
    """Volumes of this class come from a person, or come free when another claim ends."""
    later = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    world.api.add(STORAGE_CLASSES, {"metadata": {"name": "local"}, **later})
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    claim = {"metadata": {"name": "lacking", "namespace": "ns"}, "spec": spec, "status": {"phase": "Pending"}}
    world.api.add(PERSISTENT_VOLUME_CLAIMS, claim)


def labels_node_0(world: AdmissionWorld) -> None:
    world.api.change(NODES, "node-0", lambda it: it["metadata"]["labels"].update(pool="a"))
    world.api.change(RESOURCE_FLAVORS, FLAVOR, lambda it: it["spec"].update(nodeLabels={"pool": "a"}))


def assigned(obj: Obj, topology: Obj | None = None) -> Obj:
    """With quota of the flavor, and perhaps with a topology assignment."""
    number = obj["spec"]["podSets"][0]["count"]
    its = {"name": "main", "count": number, "flavors": {"gpu": FLAVOR}, "topologyAssignment": topology}
    obj["status"] = {"admission": {"clusterQueue": "team", "podSetAssignments": [its]}}
    return obj


def partial_(obj: Obj, least: int) -> Obj:
    obj["spec"]["podSets"][0]["minCount"] = least
    return obj


def updated(obj: Obj, **update: Any) -> Obj:
    """As another check has it."""
    obj["status"] = {"admissionChecks": [{"name": "other", "podSetUpdates": [{"name": "main", **update}]}]}
    return obj


PASSING: dict[str, tuple[Callable[[AdmissionWorld], None], Obj]] = {
    "its driver publishes nothing": (drops_all(RESOURCE_SLICES), workload("a")),
    "pools lack slices": (
        changes_all(RESOURCE_SLICES, lambda it: it["spec"]["pool"].update(resourceSliceCount=2)),
        workload("a", 5),
    ),
    "devices are tainted": (
        changes_all(RESOURCE_SLICES, lambda it: [each.update(taints=_SICK) for each in it["spec"]["devices"]]),
        workload("a"),
    ),
    "nodes are tainted": (changes_all(NODES, lambda it: it.update(spec={"taints": _SICK})), workload("a")),
    "there is no node": (drops_all(NODES), workload("a")),
    "a node is gone, and its slices are there": (lambda world: world.api.drop(NODES, "node-1"), workload("a", 3)),
    "no node is of the flavor yet": (lambda world: None, workload("a", nodeSelector={"pool": "gpu"})),
    "another pod keeps it away": (runs_on_both({"app": "cache"}), workload("a", affinity=_near("podAntiAffinity"))),
    "another pod keeps it away from its zone": (
        runs_on_both({"app": "cache"}),
        workload("a", affinity=_near("podAntiAffinity", "zone")),
    ),
    "another pod wants to be alone": (
        runs_on_both({}, affinity=_near("podAntiAffinity", **{POD_SET: "main"})),
        workload("a"),
    ),
    "a pod to be near is not there": (lambda world: None, workload("a", affinity=_near("podAffinity"))),
    "a claim has its devices on a small node": (shares_a_claim, workload("a", **NAMES_A_CLAIM)),
    "its flavor has small nodes": (labels_node_0, assigned(workload("a", 3))),
    "its topology domain is small": (
        labels_node_0,
        assigned(workload("a", 3), {"levels": [HOST], "domains": [{"values": ["node-0"], "count": 3}]}),
    ),
    "Kueue tried with more pods than it needs": (lambda world: None, partial_(workload("a", 5), 4)),
    "another check has chosen a small node": (
        lambda world: None,
        updated(workload("a", 3), nodeSelector={HOST: "node-0"}),
    ),
    "no volume is free for it": (
        lacks_a_volume,
        workload("a", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "lacking"}}]),
    ),
    "its flavor contradicts its template": (labels_node_0, assigned(workload("a", nodeSelector={"pool": "other"}))),
}


@pytest.mark.parametrize("case", PASSING)
async def test_what_may_pass_is_no_reason_to_reject(case: str, world: AdmissionWorld) -> None:
    """Kueue deactivates a job that is rejected, and nobody activates it again when the driver is back."""
    change, obj = PASSING[case]
    change(world)
    obj["metadata"]["uid"] = "a"
    asked = question(world, candidates=[convert(Workload, obj)])
    its = planner(world)
    flavors = {it.metadata.name: it for it in world.cluster.store_of(ResourceFlavor)}
    found = its.answer(dataclasses.replace(asked, flavors=flavors)).candidates["a"]
    assert (found.fits, found.fits_never, found.is_final) == (False, False, False)


async def test_pods_that_keep_each_other_away_are_too_many_for_any_cluster(world: AdmissionWorld) -> None:
    """Pods of others do not matter to that."""
    runs_on_both({"app": "other"})(world)
    job = workload("a", 3, affinity=_near("podAntiAffinity", job="a"), resourceClaims=[])
    job["spec"]["podSets"][0]["template"]["metadata"] = {"labels": {"job": "a"}}
    job["metadata"]["uid"] = "a"
    found = planner(world).answer(question(world, candidates=[convert(Workload, job)])).candidates["a"]
    assert found.fits_never


# --- what was lost ---


LOST: dict[str, tuple[Resource, Callable[[Any], object] | None, Obj]] = {
    "a node": (NODES, None, workload("a", 4)),
    "a slice": (RESOURCE_SLICES, None, workload("a", 4)),
    "a label of a node": (
        NODES,
        lambda it: it["metadata"]["labels"].pop("model"),
        workload("a", 4, nodeSelector={"model": "x"}),
    ),
    "room of a node": (
        NODES,
        lambda it: it["status"]["allocatable"].update({"example.com/card": "0"}),
        workload("a", 4, containers=[Make.asking("c", **{"example.com/card": "1"})]),
    ),
    "a device of a slice": (RESOURCE_SLICES, lambda it: it["spec"]["devices"].pop(), workload("a", 4)),
    "a device of a pool that is made anew": (
        RESOURCE_SLICES,
        lambda it: (it["metadata"].update(name="anew", uid="anew"), it["spec"]["devices"].pop()),
        workload("a", 4),
    ),
}
"""What becomes of the second node, or of its slice, and a job that needs it. Without a change it is gone."""


@pytest.mark.parametrize("case", LOST)
async def test_what_was_there_today_is_no_reason_to_reject(
    case: str, world: AdmissionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_module, "FAILED_SECONDS", 0.0)
    resource, change, obj = LOST[case]
    for name in ("node-0", "node-1"):
        world.api.change(NODES, name, lambda it: it["metadata"]["labels"].update(model="x"))
        world.api.change(NODES, name, lambda it: it["status"]["allocatable"].update({"example.com/card": "2"}))
    name = "node-1" if resource is NODES else "node-1-gpu.example.com"
    moment = 0.0
    losses = Losses(lambda: moment)
    kind: type[Node | ResourceSlice] = Node if resource is NODES else ResourceSlice
    its = planner(world)
    before = next(it for it in world.cluster.store_of(kind) if it.metadata.name == name)
    changes: list[tuple[Node | ResourceSlice | None, Node | ResourceSlice | None]] = [(before, None)]
    if change is not None:
        raw = copy.deepcopy(world.api[resource, name])
        raw["metadata"]["resourceVersion"] = "1000000"
        change(raw)
        now = convert(kind, raw)
        changes = [(before, now)] if now.key == before.key else [(before, None), (None, now)]
    seen = []
    for old, new in changes:
        losses.note(old, new)
        of = new if new is not None else before
        seen.append(SeenChange(kind, of.key, of.metadata.uid, new))

    def asked(size: int, changes: Sequence[SeenChange] = ()) -> Outcome:
        job = copy.deepcopy(obj)
        job["metadata"]["uid"] = "a"
        job["spec"]["podSets"][0]["count"] = size
        it = question(world, candidates=[convert(Workload, job)])
        return its.answer(dataclasses.replace(it, changes=changes, lost=losses.all())).candidates["a"]

    assert (found := asked(4, seen)).reason
    assert not found.fits_never
    if "device of" not in case:
        assert asked(5).fits_never, "that is more than there ever was"
    moment = ideal.LOST_FOR_SECONDS
    assert asked(4).fits_never or case == "a node", "that was yesterday, and its slice is there without a node"


def test_what_a_node_had_comes_together_from_all_its_losses() -> None:
    moment = 0.0
    losses = Losses(lambda: moment)

    def node(labels: dict[str, str], **room: str) -> Node:
        return convert(Node, {"metadata": {"name": "n", "labels": labels}, "status": {"allocatable": room}})

    states = [node({"a": "1", "b": "1"}, cpu="2", gpu="8"), node({"b": "1"}, cpu="4", gpu="8"), node({}, cpu="3")]
    for before, now in itertools.pairwise([None, *states, None, states[1]]):
        losses.note(before, now)
    [had] = losses.all()
    assert isinstance(had, Node)
    assert had.metadata.labels == {"a": "1", "b": "1"}
    assert {name: str(it) for name, it in (had.status.allocatable or {}).items()} == {"cpu": "4", "gpu": "8"}
    assert losses.known_since == 0.0


def test_a_change_by_which_nothing_is_lost_is_not_kept() -> None:
    losses = Losses(lambda: 0.0)
    node, slice_ = convert(Node, Make.node("n", a="1")), convert(ResourceSlice, Make.slice("n", 2))
    for before, now in (
        (None, node),
        (node, convert(Node, Make.node("n", a="2", b="1"))),
        (None, slice_),
        (slice_, convert(ResourceSlice, Make.slice("n", 3))),
        (convert(Pod, Make.pod()), None),
    ):
        losses.note(before, now)
    assert losses.all() == []


def test_a_process_that_has_forgotten_a_loss_has_to_watch_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ideal, "MOST_LOST_BYTES", 1000)
    moment = 0.0
    losses = Losses(lambda: moment)
    for number in range(20):
        moment = float(number)
        losses.note(convert(Node, Make.node(f"n-{number}")), None)
    kept = [it.metadata.name for it in losses.all()]
    assert 1 < len(kept) < 20
    assert kept[-1] == "n-19"
    assert losses.known_since == 19.0


# --- a process that has just begun ---


async def test_a_process_rejects_nothing_before_it_has_watched_the_cluster_for_long_enough(
    world: AdmissionWorld,
) -> None:
    """Half of the cluster was gone when it began, and comes back."""
    world.settings = AdmissionSettings(never=0.0, watched=100.0)
    slice_, node = world.api[RESOURCE_SLICES, "node-1-gpu.example.com"], world.api[NODES, "node-1"]
    world.api.drop(NODES, "node-1")
    world.api.drop(RESOURCE_SLICES, "node-1-gpu.example.com")
    world.api.add(WORKLOADS, workload("train", 4))
    world.api.add(WORKLOADS, workload("huge", 5))

    def back_off(*names: str) -> bool:
        return all("requeueAt" in str(world.workload(name).get("status")) for name in names)

    world.at(0)
    world.start()
    async with world.running():
        await world.until("both back off", lambda: back_off("train", "huge"))
    world.at(50)
    world.start()  # begins anew
    async with world.running():
        world.at(60)
        await world.until("both are tried again", lambda: world.kueue.decided["Retry"] == 4)
        await world.until("both back off", lambda: back_off("train", "huge"))
        await world.rests(0.2)
        world.at(149)
        for resource, obj in ((NODES, node), (RESOURCE_SLICES, slice_)):
            world.api.add(resource, {**obj, "metadata": {**obj["metadata"], "uid": f"new {resource.kind}"}})
        await world.until("admitted", lambda: world.is_admitted("train"))
        assert world.kueue.decided["Rejected"] == 0
        world.at(151)
        await world.until("rejected", lambda: world.workload("huge")["spec"].get("active") is False)
    assert world.kueue.decided == {"Retry": 4, "Rejected": 1}
