"""However large one field of an object is that tenants write, a command holds little of it beside many others."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from dra_api.codec import convert, decode, encode, to_dict
from dra_api.core import Event, Namespace, Node, Pod
from dra_api.kueue import Workload
from dra_api.meta import Object, ObjectMeta
from dra_api.resource import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from dra_api.scheduling import PodDisruptionBudget, PodGroup
from dra_api.storage import PersistentVolumeClaim
from dra_operator.kubectl.cli import main
from dra_operator.kubectl.live import KINDS as READ_KINDS
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.pipeline import pipeline
from dra_operator.kubectl.room import ROOM_BYTES, ObjectRoom, is_brief
from dra_operator.kubectl.snapshot import Header, load, spooling
from dra_operator.kubectl.why.answer import NOT_LOOKED_AT, waiting_groups
from dra_operator.sources.kind_table import OF_KUEUE
from fat_fields import LIMITED_BY_API, values
from msgspec import inspect
from msgspec.structs import replace
from rounds import each_of

LEAN = 6_000
"""Bytes that may be held of the object."""
WRITTEN_BY_OTHERS = {
    *("Node", "DeviceClass", "DeviceTaintRule", "ResourceSlice", "ResourcePoolStatusRequest", "Lease"),
    *("StorageClass", "CSIDriver", "CSINode", "CSIStorageCapacity", "VolumeAttachment", "PersistentVolume"),
    *("ResourceQuota", "AdmissionCheck", "ResourceFlavor"),
}
"""The roles edit and admin of Kubernetes do not allow a tenant to write these."""
KINDS: Mapping[str, type[Object]] = {
    it.__name__: it
    for it in (
        *(Pod, ResourceClaim, ResourceClaimTemplate, Workload, PersistentVolumeClaim, PodDisruptionBudget),
        *(PodGroup, Event, Namespace),
    )
}
_ELSEWHERE_LIMITED = re.compile(
    r"\.status"  # written by controllers and kubelets, within the lengths of the API
    r"|Event\.(type|lastTimestamp|eventTime)"  # of a set, or a time
    r"|Workload\.spec\.podSets\[(long)?\]$"  # eight
    r"|PodGroup\.spec\.resourceClaims\[(long)?\]$"  # four
    r"|PodGroup\.spec\.schedulingConstraints\.topology\[(long)?\]$"  # one
    r"|PodGroup\.spec\.(schedulingPolicy\.basic|disruptionMode\.\w+)\{\}"  # without fields
)
FAT_OBJECTS = {
    f"{name}{path}": (kind, make)
    for name, kind in KINDS.items()
    for path, make in values(inspect.type_info(kind))
    if not (_ELSEWHERE_LIMITED.search(f"{name}{path}") or LIMITED_BY_API.search(f"{name}{path}"))
}
STATES: tuple[dict[str, Any], ...] = ({}, {"spec": {"nodeName": "node"}}, {"status": {"phase": "Failed"}})
META = {"name": "name", "namespace": "ns", "uid": "uid", "resourceVersion": "1"}


@each_of(FAT_OBJECTS)
def test_little_is_held_of_an_object_whichever_of_its_fields_is_large(name: str) -> None:
    kind, make = FAT_OBJECTS[name]
    fat = make()
    for state in STATES if kind is Pod else ({},):
        parts = {part: {**state.get(part, {}), **fat.get(part, {})} for part in ("spec", "status")}
        obj = convert(kind, {**fat, **parts, "metadata": {**META, **fat.get("metadata", {})}})
        assert len(encode(obj)) > LEAN
        assert len(encode(ObjectRoom(whole=0).kept(obj))) < LEAN


def test_every_kind_that_a_command_lists_is_tried_or_not_a_tenants() -> None:
    listed = {kind.__name__ for kind in (*READ_KINDS.values(), *OF_KUEUE.values())}
    assert listed == KINDS.keys() | WRITTEN_BY_OTHERS
    assert len(FAT_OBJECTS) > 150


def claim(name: str, namespace: str = "ns", size: int = 20_000, **meta: Any) -> ResourceClaim:
    keys = [{"key": f"{number:06d}.example.com/x", "operator": "Exists"} for number in range(size // 60)]
    asked = {"deviceClassName": "gpu", "count": 3, "allocationMode": "ExactCount", "tolerations": keys}
    spec = {"devices": {"requests": [{"name": "req", "exactly": asked}]}}
    return convert(ResourceClaim, {"metadata": {"name": name, "namespace": namespace, **meta}, "spec": spec})


def test_a_namespace_gets_a_third_of_the_room_and_leaves_some_to_the_next() -> None:
    room = ObjectRoom(whole=1_000_000)
    held = [room.kept(claim(f"claim-{number}")) for number in range(300)]
    whole = [it for it in held if not is_brief(it)]
    assert 300_000 < sum(len(encode(it)) for it in whole) < 340_000
    assert room.has_brief
    assert not is_brief(room.kept(claim("claim", "neighbour")))


def test_tables_find_what_they_show_in_the_brief_form() -> None:
    user = {"resource": "pods", "name": "pod", "uid": "uid-pod"}
    results = [{"request": "req", "driver": "gpu.example.com", "pool": "p", "device": f"d{it}"} for it in range(3)]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [user]}
    labels = {f"label-{number}": "x" * 60 for number in range(100)}
    whole = claim("claim", labels=labels)
    whole = convert(ResourceClaim, {**to_dict(whole), "status": status})
    brief = ObjectRoom(["label-7"], whole=0).kept(whole)
    assert is_brief(brief)
    assert [it.device for it in brief.results] == ["d0", "d1", "d2"]
    assert brief.status.reserved_for == whole.status.reserved_for
    (request,) = brief.spec.devices.requests or ()
    assert request.exactly is not None
    assert (request.name, request.exactly.device_class_name, request.exactly.count) == ("req", "gpu", 3)
    assert (brief.metadata.labels or {})["label-7"] == "x" * 60
    assert "label-8" not in (brief.metadata.labels or {})


def test_who_is_ready_and_labels_are_kept_of_a_pod() -> None:
    terms = [{"weight": 1, "preference": {"matchExpressions": [{"key": f"k{it:06d}"}]}} for it in range(300)]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
    ready = {"type": "Ready", "status": "False", "message": "x" * 5_000}
    waiting = {"name": "main", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    body = {
        "metadata": {**META, "labels": {"app": "driver"}},
        "spec": {"nodeName": "node", "affinity": affinity},
        "status": {"phase": "Pending", "conditions": [ready], "containerStatuses": [waiting]},
    }
    pod = ObjectRoom(whole=0).kept(convert(Pod, body))
    assert is_brief(pod)
    assert pod.metadata.labels == {"app": "driver"}
    assert [it.status for it in pod.status.conditions or ()] == ["False"]
    (status,) = pod.status.container_statuses or ()
    assert status.state is not None
    assert status.state.waiting is not None
    assert status.state.waiting.reason == "ErrImagePull"


def greedy(name: str, gang: int = 0) -> Pod:
    """A pod of 40 KB with 150 claims that do not exist."""
    entries = [{"name": f"c{it}", "resourceClaimName": f"{name}-{it:03d}-".ljust(220, "x")} for it in range(150)]
    marks = {"dra.kopf.dev/gang": "all", "dra.kopf.dev/gang-size": str(gang)} if gang else {}
    meta = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", "annotations": marks}
    spec = {"schedulerName": "dra-scheduler", "containers": [{"name": "main"}], "resourceClaims": entries}
    return convert(Pod, {"metadata": meta, "spec": spec})


class Server:
    """Has the pods whole, and counts how many are read."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        self._bodies = {it.metadata.name: encode(it) for it in pods}
        room = ObjectRoom(whole=0)
        self.read = 0
        self.seen = Observed([room.kept(it) for it in pods], datetime.now(UTC), reread=self)

    def __call__(self, objects: Sequence[Any]) -> Sequence[Any]:
        self.read += len(objects)
        return [decode(Pod, self._bodies[it.metadata.name]) for it in objects]


def test_a_view_has_few_pods_whole_after_each_was_tried_in_thought_without_its_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server([greedy(f"pod-{number:03d}") for number in range(60)])
    made = pipeline(server.seen)
    tried = 0

    def renew(obj: Any, renewed: Any = made.cluster.renew) -> Any:
        nonlocal tried
        tried += 1
        return renewed(obj)

    monkeypatch.setattr(made.cluster, "renew", renew)
    [group] = waiting_groups(made, server.seen.every(Pod))
    assert group.reason == (
        "is not tried: its claim not found: create it, or correct resourceClaimName; "
        "others of its claims are missing as well; beside that: 0/0 nodes are available: the cluster has no nodes"
    )
    assert server.read >= 60
    assert tried <= 60 * 2, "a pod was put into the view for each of its claims"
    assert sum(len(encode(pod)) for pod in made.cluster.pods) < 1_700_000
    assert sum(len(made.cluster.pods_by_claim.values_of(pod.key)) for pod in made.cluster.pods) < 40 * 150


def test_reasons_without_number_of_a_namespace_are_told_together() -> None:
    def gated(number: int, namespace: str) -> Pod:
        meta = {"name": f"pod-{number}", "namespace": namespace, "uid": f"{namespace}-{number}"}
        entry = {"name": "c", "resourceClaimName": "missing"}
        gate = {"name": f"example.com/{number}-{'x' * 40}"}
        spec = {"schedulerName": "dra-scheduler", "containers": [{"name": "main"}], "schedulingGates": [gate]}
        return convert(Pod, {"metadata": meta, "spec": {**spec, "resourceClaims": [entry]}})

    pods = [*(gated(number, "greedy") for number in range(200)), gated(999, "neighbour")]
    groups = waiting_groups(pipeline(Observed(pods, datetime.now(UTC))), pods)
    assert len(groups) == 32
    assert sorted(key for group in groups for key in group.pods) == sorted(pod.key for pod in pods)
    [neighbour] = [group for group in groups if group.pods == ("neighbour/pod-999",)]
    assert "example.com/999-xxx" in neighbour.reason
    [others] = [group for group in groups if len(group.pods) > 1]
    assert others.reason.endswith("for other reasons, each of few pods: kubectl dra why pod/NAME -n greedy")


def test_the_troubles_of_a_namespace_bury_no_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def placed(name: str, namespace: str) -> Pod:
        pod = greedy(name)
        meta = replace(pod.metadata, namespace=namespace, resource_version=None)
        return replace(pod, metadata=meta, spec=replace(pod.spec, node_name="node"))

    pods = [*(placed(f"pod-{number}", "greedy") for number in range(50)), placed("alone", "neighbour")]
    with spooling() as spool:
        for obj in (Node(metadata=ObjectMeta(name="node")), *pods, claim("claim")):
            spool.kept(obj)
        (tmp_path / "dump.json").write_text("\n".join(spool.lines(Header(taken="2026-01-01T00:00:00Z"))))
    words = ["doctor", "--from", str(tmp_path / "dump.json")]
    assert main(words) == 3
    said = capsys.readouterr().out
    assert len(said) < 22 * 1_500
    assert "pod neighbour/alone is on node node, but its claim alone-000-" in said
    assert "30 more troubles of kind unreserved, with pods of namespace greedy: -o json has all\n" in said
    assert main([*words, "-o", "json"]) == 3
    troubles = json.loads(capsys.readouterr().out)["troubles"]
    assert len([it for it in troubles if it["kind"] == "unreserved"]) == 51


def test_pods_for_which_no_time_is_left_are_not_read() -> None:
    server = Server([greedy(f"pod-{number:03d}") for number in range(60)])
    made = pipeline(server.seen)
    ticks = count()
    with made.pausing.within(30, clock=lambda: next(ticks)):
        groups = waiting_groups(made, server.seen.every(Pod))
    assert server.read <= 32
    assert sorted(name for group in groups for name in group.pods) == [f"ns/pod-{number:03d}" for number in range(60)]
    assert NOT_LOOKED_AT in {group.reason for group in groups}


def test_of_a_gang_that_is_too_large_to_be_read_some_pods_stay_brief() -> None:
    pods = [greedy(f"pod-{number:03d}", gang=600) for number in range(600)]
    made = pipeline(Server(pods).seen)
    held = made.at_hand(made.seen.every(Pod))
    assert 16 << 20 < sum(len(encode(it)) for it in held) < 20 << 20
    assert is_brief(held[-1])
    made.at_hand(held[:1])
    assert sum(len(encode(pod)) for pod in made.cluster.pods) < 2_500_000


@pytest.mark.parametrize("words", [["claims", "-A"], ["why", "-A"], ["why", "pod/pod-3", "-n", "ns"], ["snapshot"]])
def test_a_dump_is_answered_in_brief_as_it_is_whole(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node(metadata=ObjectMeta(name="node"))
    pods = [replace(greedy(f"pod-{it}"), metadata=ObjectMeta(name=f"pod-{it}", namespace="ns")) for it in range(4)]
    classes = [convert(DeviceClass, {"metadata": {"name": "gpu"}, "spec": {}})]
    slices = [convert(ResourceSlice, {"metadata": {"name": "s"}, "spec": {"driver": "d", "pool": {"name": "p"}}})]
    with spooling() as spool:
        for obj in (node, *pods, *classes, *slices, *(claim(f"claim-{it}") for it in range(4))):
            spool.kept(obj)
        text = "\n".join(spool.lines(Header(taken="2026-01-01T00:00:00Z")))
    (tmp_path / "dump.json").write_text(text)
    monkeypatch.chdir(tmp_path)
    said = []
    for whole in (ROOM_BYTES, 0):
        monkeypatch.setattr(ObjectRoom.__init__, "__defaults__", ((), whole))
        main([*words, "--from", "dump.json"])
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""
    assert load("dump.json", ObjectRoom(whole=0)).reread is not None
