"""``kubectl dra why`` says what a pod of a PodGroup waits for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.core import Event, Node, NodeSelector, Pod
from dra_api.meta import Object
from dra_api.releases import Release
from dra_api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from dra_api.scheduling import DisruptionMode, PodGroup
from dra_operator.kubectl.devices import claims_of
from dra_operator.kubectl.doctor.answer import device_troubles
from dra_operator.kubectl.doctor.claims import claim_troubles
from dra_operator.kubectl.facts import devices_of
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.pipeline import pipeline
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.taint import losses
from dra_operator.kubectl.whatif.drain import drained
from dra_operator.kubectl.whatif.movable_pods import movable_pods
from dra_operator.kubectl.whatif.overlay import Overlay
from dra_operator.kubectl.why.pods import why_pod
from msgspec import structs
from objects import Make

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ON = Settings(gates={"GenericWorkload": True, "DRAWorkloadResourceClaims": True})
ENTRY = {"name": "entry-0", **Make.FROM_TEMPLATE}
WHO = "kube-controller-manager, or else the operator, makes the claim of PodGroup ns/group from ResourceClaimTemplate"


def group(status: dict[str, Any] | None = None, **policy: Any) -> PodGroup:
    spec = {"schedulingPolicy": policy or {"basic": {}}, "resourceClaims": [ENTRY]}
    meta = {"name": "group", "namespace": "ns", "uid": "group-uid"}
    return convert(PodGroup, {"metadata": meta, "spec": spec, "status": status or {}})


def event() -> Event:
    about = {"name": "group", "namespace": "ns", "uid": "group-uid"}
    said = {"reason": "FailedResourceClaimCreation", "message": "quota", "involvedObject": about}
    return convert(Event, {"metadata": {"name": "e", "namespace": "ns"}, **said})


def test_doctor_names_the_pods_of_a_group_that_keep_a_claim_from_ending() -> None:
    """The consumer is the group, and no pod has its name."""
    reserved = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "group", "uid": "group-uid"}
    claim = Make.claim("shared", uid="u", deletionTimestamp="2029-12-31T00:00:00Z")
    ending = convert(ResourceClaim, {**claim, "status": {"allocation": {"devices": {}}, "reservedFor": [reserved]}})
    use = [{"name": "entry-0", **Make.use("shared")}]
    members = [convert(Pod, Make.pod(name, use, schedulingGroup={"podGroupName": "group"})) for name in ("a", "b")]
    other = convert(Pod, Make.pod("other", use))
    [found] = claim_troubles(Observed([ending, *members, other], NOW))
    assert found.trouble.message.endswith("pods use it: PodGroup group")
    assert found.trouble.command == "kubectl delete pod -n ns -- a b"


def sharing(device: str = "dev-0") -> Observed:
    """Pods ``a`` and ``b`` run with a claim that is reserved for their group; ``ended`` does no more, ``apart`` has
    another one."""
    consumer = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "group", "uid": "group-uid"}
    result = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": device}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [consumer]}
    pods = []
    for name in ("a", "apart", "ended", "b"):
        claim = "other" if name == "apart" else "shared"
        raw = Make.pod(name, [Make.use(claim)], "node-0", schedulingGroup={"podGroupName": "group"})
        raw["metadata"]["uid"] = f"uid-{name}"
        raw["status"] = {"phase": "Succeeded" if name == "ended" else "Running"}
        pods.append(convert(Pod, raw))
    objects: list[Object] = [
        structs.replace(group(), spec=structs.replace(group().spec, resource_claims=None)),
        convert(Node, Make.node("node-0")),
        convert(ResourceSlice, Make.slice("node-0", 1)),
        convert(ResourceClaim, {**Make.claim("shared", uid="claim"), "status": status}),
    ]
    return Observed([*objects, *pods], NOW)


def test_the_pods_of_a_group_are_those_that_use_the_claim_which_is_reserved_for_it() -> None:
    seen = sharing()
    [claim] = claims_of(seen)
    [device] = devices_of(seen, pipeline(seen, ON).ledger())
    assert (claim.state, claim.pods, claim.node) == ("allocated,reserved", ("a", "b"), "node-0")
    assert [holder.pods for holder in device.holders] == [("a", "b")]


def test_why_has_no_claim_deleted_that_pods_of_a_group_use_elsewhere() -> None:
    seen = sharing()
    [claim] = seen.every(ResourceClaim)
    assert claim.status.allocation is not None
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-0"]}]}
    selector = convert(NodeSelector, {"nodeSelectorTerms": [term]})
    status = structs.replace(claim.status, allocation=structs.replace(claim.status.allocation, node_selector=selector))
    waits = convert(Pod, Make.pod("waits", [Make.use("shared")], schedulingGroup={"podGroupName": "group"}))
    more: list[Object] = [
        structs.replace(claim, status=status),
        convert(DeviceClass, Make.device_class()),
        convert(Node, Make.node("node-1")),
        convert(ResourceSlice, Make.slice("node-1", 1)),
        waits,
    ]
    cordoned = convert(Node, {**Make.node("node-0"), "spec": {"unschedulable": True}})
    left = [it for it in seen.objects if not isinstance(it, ResourceClaim | Node)]
    fixes = [fix.text for fix in why_pod(pipeline(Observed([*left, cordoned, *more], NOW), ON), waits).fixes]
    assert "wait until the other consumers of claim ns/shared end, or delete them: ns/a, ns/apart, ns/b" in fixes
    assert not any("delete claim" in text for text in fixes)


def test_doctor_has_no_claim_deleted_that_pods_of_a_group_use() -> None:
    [found] = device_troubles(sharing(device="gone"))
    assert found.trouble.command == "kubectl delete pod -n ns -- a b"


@pytest.mark.parametrize(("settings", "names"), [(ON, ["a", "b"]), (Settings(), [])])
def test_a_taint_ends_the_pods_of_a_group_if_the_gates_are_on(settings: Settings, names: list[str]) -> None:
    taint = {"key": "broken", "effect": "NoExecute"}
    raw = {"metadata": {"name": "rule"}, "spec": {"deviceSelector": {"pool": "node-0"}, "taint": taint}}
    found = losses(pipeline(sharing(), settings), convert(DeviceTaintRule, raw))
    assert [pod.metadata.name for pod, loss in found if loss.seconds == 0] == names


@pytest.mark.parametrize(("release", "is_kept"), [(Release.V1_37, False), (Release.V1_36, True)])
def test_the_last_pod_of_a_group_takes_the_reservation_along_but_in_136(release: Release, is_kept: bool) -> None:
    seen = sharing()
    overlay = Overlay(pipeline(seen, Settings(gates=ON.gates, release=release)))

    def devices() -> int:
        return sum(len(claim.results) for claim in overlay.cluster.claims)

    left = []
    with overlay.attempt():
        for pod in seen.every(Pod):
            if pod.metadata.name != "ended":
                overlay.evict(pod)
                left.append(devices())
    assert (left[0], left[-1], devices()) == (1, int(is_kept), 1)


TEMPLATE = convert(ResourceClaimTemplate, Make.template())
OWNER = {
    "apiVersion": "scheduling.k8s.io/v1beta1",
    "kind": "PodGroup",
    "name": "group",
    "uid": "group-uid",
    "controller": True,
}
MADE = convert(ResourceClaim, Make.claim("group-gpu", ownerReferences=[OWNER]))
RECORDED = {"resourceClaimStatuses": [{"name": "entry-0", "resourceClaimName": "group-gpu"}]}
COMPOSITE = group(RECORDED)
COMPOSITE = structs.replace(COMPOSITE, spec=structs.replace(COMPOSITE.spec, parent_composite_pod_group_name="whole"))
CASES: dict[str, tuple[list[Object], str]] = {
    "no group": ([TEMPLATE], 'podgroup "group" not found: create it'),
    "not made": ([TEMPLATE, group()], f"entry entry-0: {WHO} ns/tmpl"),
    "cannot be made": ([TEMPLATE, group(), event()], "event FailedResourceClaimCreation: quota"),
    "not recorded": ([TEMPLATE, group(RECORDED)], "entry entry-0: is claim group-gpu of PodGroup ns/group"),
    "no template": ([group()], "ResourceClaimTemplate ns/tmpl does not exist"),
    "a gang": ([TEMPLATE, group(RECORDED, gang={"minCount": 2}), MADE], "gang of PodGroup group has fewer than the 2"),
    "composite": ([TEMPLATE, COMPOSITE, MADE], "spec.parentCompositePodGroupName is not supported"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_pod_of_a_group_is_told_what_it_waits_for(case: str) -> None:
    objects, expected = CASES[case]
    raw = Make.pod(claims=[ENTRY], schedulingGroup={"podGroupName": "group"})
    if MADE in objects:
        raw["status"].update(RECORDED)
    pod = convert(Pod, raw)
    lines = why_pod(pipeline(Observed([*objects, pod], NOW), ON), pod).lines
    assert any(expected in str(line) for line in lines), lines


WORDS = {
    "both fit": (2, True, "gang of PodGroup group fits together: a on node-0, b on node-0"),
    "one device is missing": (1, True, "gang of PodGroup group: only 1 of 2 pods fit together; "),
    "a claim is not made": (2, False, "waits for pod b of its gang, which is not tried: "),
}


@pytest.mark.parametrize("case", WORDS)
def test_a_pod_of_a_gang_is_told_what_holds_all_of_them_back(case: str) -> None:
    devices, is_made, expected = WORDS[case]
    objects: list[Object] = [
        structs.replace(COMPOSITE, spec=structs.replace(group(gang={"minCount": 2}).spec, resource_claims=None)),
        convert(Node, Make.node("node-0")),
        convert(ResourceSlice, Make.slice("node-0", devices)),
        convert(DeviceClass, Make.device_class()),
        TEMPLATE,
    ]
    for name in ("a", "b"):
        raw = Make.pod(name, [Make.FROM_TEMPLATE], schedulingGroup={"podGroupName": "group"})
        raw["metadata"]["uid"] = f"uid-{name}"
        if is_made or name == "a":
            raw["status"]["resourceClaimStatuses"] = [{"name": "entry-0", "resourceClaimName": f"{name}-gpu"}]
            objects.append(
                convert(ResourceClaim, Make.claim(f"{name}-gpu", uid=f"claim-{name}", owner=raw["metadata"]))
            )
        objects.append(convert(Pod, raw))
    pod = next(it for it in objects if isinstance(it, Pod))
    lines = why_pod(pipeline(Observed(objects, NOW), ON), pod).lines
    assert any(expected in str(line) for line in lines), lines


@pytest.mark.parametrize(("priority", "ends"), [(10, True), (0, False)])
def test_a_pod_of_a_group_outranks_others_by_the_priority_of_the_group(priority: int, ends: bool) -> None:
    """The pod's own is 0. In 1.37 both are the same."""
    cpu: dict[str, Any] = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}
    node = Make.node("node-0")
    node["status"] = {"allocatable": {"cpu": "2", "pods": "110"}}
    batch = Make.pod("batch", node="node-0", priority=5, **cpu)
    batch["metadata"]["uid"] = "uid-batch"
    waits = Make.pod(schedulingGroup={"podGroupName": "group"}, **cpu)
    spec = structs.replace(group().spec, resource_claims=None, priority=priority)
    objects: list[Object] = [structs.replace(group(), spec=spec), convert(Node, node), convert(Pod, batch)]
    gates = dict.fromkeys(("GenericWorkload", "GangScheduling", "WorkloadAwarePreemption"), True)
    pod = convert(Pod, waits)
    lines = why_pod(pipeline(Observed([*objects, pod], NOW), Settings(gates=gates, release=Release.V1_36)), pod).lines
    assert any("operator would preempt 1 pod of lower priority" in str(line) for line in lines) is ends, lines


def running(name: str, node: str) -> Pod:
    raw = Make.pod(name, node=node, schedulingGroup={"podGroupName": "group"})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "job", "controller": True}
    raw["metadata"].update(uid=f"uid-{name}", annotations={"dra.kopf.dev/movable": "true"}, ownerReferences=[owner])
    return convert(Pod, {**raw, "status": {"phase": "Running"}})


@pytest.mark.parametrize(("mode", "torn"), [("single", False), ("all", True)])
def test_a_drain_names_pods_elsewhere_that_end_with_those_of_the_node_and_none_of_them_is_moved(
    mode: str, torn: bool
) -> None:
    said = convert(DisruptionMode, {mode: {}})
    as_one = structs.replace(group(), spec=structs.replace(group().spec, disruption_mode=said))
    nodes = [convert(Node, Make.node(name)) for name in ("node-0", "node-1")]
    seen = Observed([as_one, *nodes, running("a", "node-0"), running("b", "node-1")], NOW)
    found = drained(Overlay(pipeline(seen, ON)), nodes[0])
    assert [(it.group, it.left) for it in found.torn] == ([("ns/group", ("ns/b",))] if torn else [])
    assert [pod.metadata.name for pod in movable_pods(seen, None)] == ([] if torn else ["a", "b"])
