"""``doctor`` gives one piece of advice per trouble, and says of a pod that it deletes whether anything makes it again.

``taint --dry-run`` names pods that would be evicted over and over.
"""

from __future__ import annotations

import argparse
import copy
from datetime import timedelta
from typing import Any, Final

import pytest
from dra_api.values import format_time
from dra_operator.kubectl.commands import COMMANDS
from dra_operator.kubectl.doctor.answer import diagnose
from dra_operator.kubectl.doctor.trouble import Diagnosis
from dra_operator.kubectl.taint import taint_answer
from scheduling_causes import DRIVER, asks, claim, device, device_class, lease, node, owned, pod, slice_
from told import Json, seen_of

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
LEASE: Final = lease()
CLUSTER: Final = [device_class(), node("gpu-1"), slice_("gpu-1"), LEASE]


def user(name: str, path: str = "gpu-1/gpu-0", *, owner: str = "", since: str = "10", **claim_spec: Any) -> list[Json]:
    """A running pod, and its claim from a template with a device since that hour."""
    held = claim(asks(**claim_spec), name=f"{name}-claim", held=[path], users=[name])
    held["metadata"] |= {
        "finalizers": [FINALIZER],
        "annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"},
    }
    held = owned(held, "Pod", name, f"uid-{name}")
    held["status"]["allocation"]["allocationTimestamp"] = f"2030-01-01T{since}:00:00Z"
    if tolerations := claim_spec.get("tolerations"):
        held["status"]["allocation"]["devices"]["results"][0]["tolerations"] = tolerations
    runs = pod(name, nodeName="gpu-1", schedulerName="dra-scheduler")
    runs["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    statuses = [{"name": "gpu", "resourceClaimName": f"{name}-claim"}]
    runs["status"] = {"phase": "Running", "resourceClaimStatuses": statuses}
    return [held, owned(runs, owner, "web") if owner else runs]


def troubles(*objects: Json) -> list[Diagnosis]:
    """What is wrong in the cluster with these objects."""
    return diagnose(seen_of(objects))


def driver_pod(node_name: str, **status: Any) -> Json:
    """A pod of the DaemonSet of the driver."""
    made = pod(f"gpu-driver-{node_name}", nodeName=node_name, labels={"driver": DRIVER})
    return owned(made, "DaemonSet", "gpu-driver") | {"status": {"phase": "Running", **status}}


UNREADY: Final = [{"type": "Ready", "status": "False"}]
READY: Final = [{"type": "Ready", "status": "True"}]


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        ([driver_pod("gpu-1", conditions=READY)], ""),
        ([driver_pod("gpu-1", conditions=UNREADY)], "whose pod there is not ready: ns/gpu-driver-gpu-1 (Running)"),
        ([driver_pod("gpu-1", phase="Pending")], "whose pod there is not ready: ns/gpu-driver-gpu-1 (Pending)"),
        ([node("gpu-2"), driver_pod("gpu-2", conditions=READY)], "which has no pod there"),
        ([], ""),
    ],
)
def test_a_driver_that_is_down_while_its_slices_are_there(pods: list[Json], said: str) -> None:
    found = [one.trouble for one in troubles(*CLUSTER, *user("a"), *pods)]
    assert [it.message for it in found] == ([f"has slices of driver {DRIVER}, {said}"] if said else [])
    assert all(it.command.startswith("kubectl describe ") for it in found)


@pytest.mark.parametrize(("changes", "hours", "is_told"), [(40, 1, True), (40, 2, False), (9, 0.01, False)])
def test_a_slice_that_two_drivers_change_in_turns_is_told(changes: int, hours: float, is_told: bool) -> None:
    objects = copy.deepcopy(CLUSTER)
    created = format_time(seen_of(objects).taken - timedelta(hours=hours))
    for it in objects:
        if it["kind"] == "ResourceSlice":
            it["metadata"] |= {"generation": changes + 1, "creationTimestamp": created}
    found = [one.trouble for one in troubles(*objects)]
    assert [it.message for it in found] == ([f"was changed {changes} times in 60m"] if is_told else [])
    assert all("two drivers of one name on a node" in it.remedy for it in found)


@pytest.mark.parametrize("owner", ["", "ReplicaSet", "Job"])
def test_of_two_claims_with_one_device_the_younger_gives_way_and_a_lost_pod_is_said(owner: str) -> None:
    found = troubles(*CLUSTER, *user("old", since="08"), *user("young", owner=owner))
    assert [one.trouble.kind for one in found] == ["conflict"]
    assert found[0].trouble.command == "kubectl delete pod -n ns -- young"
    assert ("nothing creates pod young again: keep its manifest first" in found[0].trouble.remedy) is not bool(owner)


@pytest.mark.parametrize("users", [[], ["gone"]])
def test_a_conflict_with_a_claim_of_no_pod_is_one_trouble_that_can_be_repaired(users: list[str]) -> None:
    other = user("gone")[0]
    other["metadata"] |= {"ownerReferences": [], "annotations": {}}
    other["status"]["reservedFor"] = [{"resource": "pods", "name": it, "uid": f"uid-{it}"} for it in users]
    found = troubles(*CLUSTER, *user("a"), other)
    assert [one.trouble.object for one in found] == [f"device {DRIVER}/gpu-1/gpu-0"]
    assert found[0].repair is not None
    assert "keep claim ns/a-claim; of claim ns/gone-claim, which no pod uses: " in found[0].trouble.remedy


def test_a_second_claim_of_a_pod_that_has_finished_is_one_trouble() -> None:
    held, runs = user("a")
    runs["status"]["phase"] = "Succeeded"
    second = copy.deepcopy(held)
    second["metadata"] |= {"name": "a-second"}
    del second["status"]
    found = [one.trouble for one in troubles(*CLUSTER, held, runs, second) if one.trouble.kind == "duplicate"]
    assert [it.object for it in found] == ["claim ns/a-second"]
    assert "which uses claim a-claim" in found[0].message


def test_a_device_that_vanished_with_its_driver_or_its_pods_is_one_trouble() -> None:
    without_slices = [it for it in CLUSTER if it["kind"] != "ResourceSlice"]
    assert [one.trouble.kind for one in troubles(*without_slices, *user("a"))] == ["driver"]
    assert [one.trouble.kind for one in troubles(*without_slices, user("a")[0])] == ["reservation"]


@pytest.mark.parametrize("owner", ["", "ReplicaSet"])
def test_no_command_deletes_a_pod_that_nothing_creates_again_without_saying_so(owner: str) -> None:
    empty = user("empty", owner=owner)
    empty[0]["status"] = {}
    leaving = user("leaving", "gpu-1/gpu-1", owner=owner)
    leaving[0]["metadata"]["deletionTimestamp"] = "2030-01-01T11:00:00Z"
    vanished = user("vanished", "gpu-1/gpu-7", owner=owner)
    found = [one.trouble for one in troubles(*CLUSTER, *empty, *leaving, *vanished)]
    assert {it.kind for it in found} == {"unreserved", "deletion", "vanished"}
    for it in found:
        assert it.command.startswith("kubectl delete pod")
        assert ("nothing creates pod" in it.remedy) is not bool(owner), it
        assert ("its controller makes it anew" in it.remedy) is (it.kind == "unreserved" and bool(owner))


def test_a_scheduler_that_died_is_a_trouble_before_the_next_pod_waits() -> None:
    dead = {**LEASE, "spec": {**LEASE["spec"], "renewTime": "2030-01-01T11:00:00.000000Z"}}
    others = [it for it in CLUSTER if it is not LEASE]
    found = [one.trouble for one in troubles(*others, dead)]
    assert ["no pod waits for it yet" in it.message for it in found] == [True]
    given_up = {**dead, "spec": {**dead["spec"], "holderIdentity": ""}}
    assert troubles(*others, given_up) == []


def test_a_node_that_does_not_answer_while_pods_there_hold_devices() -> None:
    lost = node("gpu-1")
    condition = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2030-01-01T10:00:00Z"}
    lost["status"]["conditions"] = [condition]
    others = [it for it in CLUSTER if it["kind"] != "Node"]
    found = [one.trouble for one in troubles(*others, lost, *user("a"))]
    assert [it.message for it in found] == ["is unreachable since 2h, and 1 pod there holds devices: ns/a"]
    assert "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute" in found[0].command
    assert troubles(*others, lost) == []


@pytest.mark.parametrize(
    ("toleration", "said", "code"),
    [
        ({}, "get a tainted device on gpu-1, and be deleted again at once: its toleration has not the effect", 3),
        ({"effect": "NoExecute", "tolerationSeconds": 60}, "be deleted again after 60s, which its claim tolerates", 3),
        ({"effect": "NoSchedule"}, "no node would take it", 3),
        ({"effect": "NoExecute"}, "tolerates the taint, and keeps", 0),
    ],
)
def test_a_pod_that_would_be_evicted_over_and_over_is_named(toleration: Json, said: str, code: int) -> None:
    tolerations = [{"key": "x", "operator": "Exists", **toleration}]
    made_from = claim(asks(tolerations=tolerations), name="t")
    template = {**made_from, "kind": "ResourceClaimTemplate", "spec": {"spec": made_from["spec"]}}
    holder = user("a", owner="ReplicaSet", tolerations=tolerations)
    alone = [device_class(), node("gpu-1"), slice_("gpu-1", [device("gpu-0")]), template, *holder]
    parser = argparse.ArgumentParser()
    COMMANDS["taint"].add_arguments(parser)
    options = parser.parse_args([f"{DRIVER}/gpu-1/gpu-0", "--key", "x", "--dry-run"])
    found = taint_answer(seen_of(alone), options)
    assert said in "\n".join(found.lines)
    assert int(found.code) == code
    assert any("no effect was named, so that it is NoExecute" in note for note in found.notes)


DRAWS_FROM_NOWHERE: Final = [{"counterSet": "slots", "counters": {"memory": {"value": "1Gi"}}}]


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ([device("gpu-0"), device("gpu-0")], "two devices are named gpu-0"),
        (
            [device("gpu-0", consumesCounters=DRAWS_FROM_NOWHERE)],
            "counter set slots, which no slice of the pool defines",
        ),
    ],
)
def test_an_invalid_pool_is_a_trouble_that_only_its_driver_can_end(devices: list[Json], why: str) -> None:
    (found,) = troubles(device_class(), node("gpu-1"), slice_("gpu-1", devices), LEASE)
    assert found.trouble.object == f"pool {DRIVER}/gpu-1"
    assert why in found.trouble.message
    assert found.trouble.remedy.startswith("the driver has to publish it otherwise")
    assert not found.trouble.command


def tainted(since: str, effect: str = "NoExecute") -> Json:
    taint = {"key": "broken", "effect": effect, "timeAdded": since}
    return slice_("gpu-1", devices=[device("gpu-0") | {"taints": [taint]}, device("gpu-1")])


TOLERATES: Final = [{"key": "broken", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 7200}]


@pytest.mark.parametrize(
    ("slice_of_node", "spec", "said"),
    [
        (tainted("2030-01-01T11:00:00Z"), {}, "60m"),
        (tainted("2030-01-01T11:59:30Z"), {}, ""),
        (tainted("2030-01-01T11:00:00Z", "NoSchedule"), {}, ""),
        (tainted("2030-01-01T11:00:00Z"), {"tolerations": TOLERATES}, ""),
        (tainted("2030-01-01T09:00:00Z"), {"tolerations": TOLERATES}, "60m"),
    ],
)
def test_a_pod_that_no_controller_evicts_is_named(slice_of_node: Json, spec: Json, said: str) -> None:
    """A kube-controller-manager may run without that controller, or without its feature gate."""
    found = [one.trouble for one in troubles(device_class(), node("gpu-1"), slice_of_node, LEASE, *user("a", **spec))]
    told = f"should have been evicted {said} ago, and no controller does: device {DRIVER}/gpu-1/gpu-0 has taint broken"
    assert [it.message for it in found] == ([f"{told}:NoExecute"] if said else [])


@pytest.mark.parametrize(("ends", "said"), [("2030-01-01T11:00:00Z", "60m"), ("2030-01-01T11:59:30Z", ""), ("", "")])
def test_a_pod_that_outlives_its_grace_period_with_devices_is_named(ends: str, said: str) -> None:
    held, runs = user("a")
    runs["metadata"] |= {"deletionTimestamp": ends} if ends else {}
    told = [f"should have terminated {said} ago, and still has its devices"] if said else []
    assert [one.trouble.message for one in troubles(*CLUSTER, held, runs)] == told
    runs["status"]["phase"] = "Failed"
    assert "terminating" not in [one.trouble.kind for one in troubles(*CLUSTER, held, runs)]


def test_a_claim_that_others_keep_does_not_end_with_its_pods() -> None:
    kept, runs = user("train")
    kept["metadata"] |= {"deletionTimestamp": "2030-01-01T11:00:00Z", "finalizers": [FINALIZER, "example.com/keep"]}
    [found] = [it for it in troubles(*CLUSTER, kept, runs) if it.trouble.kind == "deletion"]
    assert "it ends after its pods, once the finalizer example.com/keep is gone" in found.trouble.remedy


def test_a_pool_of_one_name_on_two_nodes_is_not_called_incomplete() -> None:
    """A claim names a device by driver, pool and name: the devices of both nodes are one to it."""
    slices = [slice_(it, [device("gpu-0")]) for it in ("gpu-1", "gpu-2")]
    for each in slices:
        each["spec"]["pool"]["name"] = "gpus"
    found = [it.trouble for it in troubles(node("gpu-1"), node("gpu-2"), *slices) if it.trouble.kind == "pool"]
    assert [it.message for it in found] == ["is published by 2 nodes (gpu-1, gpu-2), each as its own"]
    assert "name its pools after its nodes" in found[0].remedy
    together = [copy.deepcopy(it) for it in slices]
    for number, each in enumerate(together):
        each["spec"]["pool"]["resourceSliceCount"] = 2
        each["spec"]["devices"][0]["name"] = f"gpu-{number}"
    assert not [it for it in troubles(node("gpu-1"), node("gpu-2"), *together) if it.trouble.kind == "pool"]
