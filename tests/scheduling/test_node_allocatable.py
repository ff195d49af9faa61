"""Devices that bring resources of their node, or cost some: kubernetes-1.37.md section 12."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from dra_api.codec import convert, to_dict
from dra_api.core import Pod
from dra_api.gates import GateError
from dra_api.releases import Release
from dra_api.resource import AllocationResult, Device, DeviceClass, DeviceRequestAllocationResult, ResourceSlice
from dra_api.values import Quantity
from dra_operator.allocator import Allocator, ClaimError, Features, Inventory
from dra_operator.gates import features_of
from dra_operator.scheduling import NoPlace, Plan
from dra_operator.scheduling.claims.node_allocatable import NodeUse, node_use
from dra_operator.scheduling.state import node_requests
from dra_operator.scheduling.state.obstacle import Obstacle
from placement_lab import Attributes, claim, decide, node, pod, wants

Json = dict[str, Any]
ON, OFF = Features(Release.V1_37, node_allocatable_resources=True), Features(Release.V1_37)
CPUS = {"cpu": {"mapping": {"capacityKey": "cpus", "capacityMultiplier": "1"}}}
OVERHEAD = {"memory": {"overhead": {"perPod": "1Gi", "perContainer": "256Mi"}}}
PAGES = {"hugepages-2Mi": {"mapping": {"capacityKey": "cpus", "capacityMultiplier": "1"}}}
DOUBLE = {"cpu": {"mapping": {"deviceMultiplier": "2"}}}


def result(device: str = "d", **consumed: str) -> Json:
    made: Json = {"request": "r", "driver": "drv", "pool": "p", "device": device}
    return {**made, "shareID": device, "consumedCapacity": consumed} if consumed else made


def using(containers: int = 1, *, cpu: str = "1", **spec: Any) -> Pod:
    """A pod of which so many containers use its claim."""
    asked = {"requests": {"cpu": cpu}, "claims": [{"name": "c"}]}
    made = [{"name": f"c{number}", "resources": asked} for number in range(containers)]
    made += [{"name": "plain", "resources": {"requests": {"cpu": cpu}}}] if not containers else []
    return pod(claims=[{"name": "c", "resourceClaimName": "c"}], containers=made, **spec)


def use(
    brings: Json, results: Sequence[Json], by: Pod | None = None, reserved: Sequence[Json] = (), **options: Any
) -> NodeUse | Obstacle:
    allocated = {"allocation": {"devices": {"results": list(results)}}, "reservedFor": list(reserved)}
    held = claim("c", wants(), status=allocated)
    device = convert(Device, {"name": "d", "nodeAllocatableResources": brings})
    return node_use(by or using(), [(held, held.results)], lambda _: device, **{"is_group_idle": True, **options})


def amounts(found: NodeUse | Obstacle) -> dict[str, str]:
    assert isinstance(found, NodeUse)
    return {name: str(Quantity.from_nanos(nanos, binary=name == "memory")) for name, nanos in found.amounts.items()}


@pytest.mark.rule("K37-NA-01", "K37-NA-02", "K37-NA-03")
@pytest.mark.parametrize(
    ("brings", "results", "containers", "expected"),
    [
        (CPUS, [result(cpus="4")], 1, {"cpu": "4"}),
        (CPUS, [result(cpus="4")], 2, {"cpu": "4"}),
        (CPUS, [result(cpus="4"), result(cpus="2")], 1, {"cpu": "6"}),
        (CPUS, [result(other="4")], 1, {}),
        (OVERHEAD, [result()], 2, {"memory": "1536Mi"}),
        (OVERHEAD, [result()], 0, {"memory": "1Gi"}),
        (DOUBLE, [result("a"), result("b"), result("d")], 1, {"cpu": "6"}),
        ({"cpu": {**DOUBLE["cpu"], "overhead": {"perPod": "500m"}}}, [result()], 1, {"cpu": "2500m"}),
        ({}, [result()], 1, {}),
    ],
    ids=["N1", "N2", "several devices", "capacity not consumed", "N3", "N4", "N7", "both", "neither"],
)
def test_what_devices_take_of_their_node(
    brings: Json, results: list[Json], containers: int, expected: dict[str, str]
) -> None:
    """The mapping counts once, overhead for the pod and for each container."""
    assert amounts(use(brings, results, using(containers))) == expected


@pytest.mark.rule("K37-NA-08")
def test_what_is_recorded_is_what_is_counted() -> None:
    """With it the pod's status, a pod that has its node takes the same."""
    by = using(2)
    found = use({**CPUS, **OVERHEAD}, [result(cpus="4")], by)
    assert isinstance(found, NodeUse)
    assert [to_dict(status) for status in found.statuses] == [
        {
            "resourceClaimName": "c",
            "containers": ["c0", "c1"],
            "mapping": [{"name": "cpu", "quantity": "4"}],
            "overhead": [{"name": "memory", "perPod": "1Gi", "perContainer": "256Mi"}],
        }
    ]
    statuses = [to_dict(status) for status in found.statuses]
    bound = convert(Pod, {**to_dict(by), "status": {"nodeAllocatableResourceClaimStatuses": statuses}})
    assert node_requests(bound, ()) == node_requests(by, (), found.amounts)
    assert node_requests(bound, ())["cpu"] == Quantity("6").nanos


@pytest.mark.rule("K37-NA-01")
def test_a_device_that_consumes_no_capacity_at_all_is_an_error() -> None:
    """What it would map is not known."""
    with pytest.raises(ClaimError, match="claim ns/c: device drv/p/d maps capacity cpus to the node"):
        use(CPUS, [result()])


@pytest.mark.rule("K37-NA-05")
@pytest.mark.parametrize(
    ("brings", "uid", "text"),
    [
        (CPUS, "other", "node allocatable resource claim c has a mapped device and cannot be shared across pods"),
        (CPUS, "uid-pod", ""),
        (OVERHEAD, "other", ""),
    ],
    ids=["N6", "its own", "N5"],
)
def test_a_claim_with_a_mapped_device_is_for_one_pod(brings: Json, uid: str, text: str) -> None:
    """A claim with nothing but overhead may be shared."""
    found = use(brings, [result(cpus="1")], reserved=[{"resource": "pods", "name": "x", "uid": uid}])
    assert (found.text if isinstance(found, Obstacle) else "") == text


@pytest.mark.rule("K37-NA-05")
@pytest.mark.parametrize(("is_group_idle", "is_shared"), [(True, False), (False, True)])
def test_a_mapped_device_of_a_group_is_shared_once_a_pod_of_it_is_placed(
    *, is_group_idle: bool, is_shared: bool
) -> None:
    """While none is, the claim goes back with the next attempt."""
    of_group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "uid-g"}
    member = using(schedulingGroup={"podGroupName": "g"})
    found = use(CPUS, [result(cpus="1")], member, [of_group], is_group_idle=is_group_idle)
    assert isinstance(found, Obstacle) is is_shared


@pytest.mark.rule("K37-NA-04")
@pytest.mark.parametrize(
    ("resources", "containers", "brings", "text"),
    [
        ({"requests": {"cpu": "2"}}, {}, CPUS, "pod level request for cpu is insufficient"),
        ({"requests": {"cpu": "5"}}, {}, CPUS, ""),
        ({"limits": {"cpu": "5"}}, {"limits": {"cpu": "2"}}, CPUS, "pod level limit for cpu is insufficient"),
        ({"limits": {"cpu": "6"}}, {"limits": {"cpu": "2"}}, CPUS, ""),
        ({"requests": {"memory": "1Gi"}}, {}, CPUS, ""),
        (
            {"limits": {"hugepages-2Mi": "7"}},
            {"limits": {"hugepages-2Mi": "2"}},
            PAGES,
            "pod level limit for huge",
        ),
        ({"limits": {"hugepages-2Mi": "8"}}, {"limits": {"hugepages-2Mi": "2"}}, PAGES, ""),
    ],
    ids=["N8", "enough", "limit", "enough limit", "another resource", "huge pages", "enough huge pages"],
)
def test_resources_of_the_pod_as_a_whole_have_to_cover_its_devices(
    resources: Json, containers: Json, brings: Json, text: str
) -> None:
    """They are not added then."""
    asked = {"requests": {"cpu": "1"}, "claims": [{"name": "c"}], **containers}
    cpu_of_pod = {name: limit for name, limit in resources.get("limits", {}).items() if name == "cpu"}
    apart = {"limits": {"hugepages-2Mi": "2", **cpu_of_pod}, "requests": {"cpu": "0"}}
    by = pod(
        claims=[{"name": "c", "resourceClaimName": "c"}],
        containers=[{"name": "main", "resources": asked}, {"name": "without devices", "resources": apart}],
        resources=resources,
    )
    found = use(brings, [result(cpus="4")], by)
    if text:
        assert isinstance(found, Obstacle)
        assert found.text.startswith(text)
    else:
        assert amounts(found) == ({} if "memory" not in str(resources) else {"cpu": "4"})


@pytest.mark.rule("K37-NA-08")
def test_devices_for_extended_resources_are_refused_with_a_remedy() -> None:
    """In 1.37.0 such pods fail."""
    extended = [convert(DeviceRequestAllocationResult, result())]
    found = use(CPUS, [], extended=extended)
    assert isinstance(found, Obstacle)
    assert found.text.endswith("cannot serve extended resources: use a claim")
    assert isinstance(use({}, [], extended=extended), NodeUse)


def publishing(features: Features, brings: Json, *nodes: str) -> Allocator:
    inventory = Inventory(features, language=Attributes())
    inventory.put_class(convert(DeviceClass, {"metadata": {"name": "gpu"}}))
    for name in nodes:
        inventory.put_slice(convert(ResourceSlice, slice_of(name, brings)))
    return Allocator(inventory, new_share_id=lambda: "share")


def slice_of(name: str, brings: Json) -> Json:
    about = {"name": name, "generation": 1, "resourceSliceCount": 1}
    shown = [{"name": "d", "nodeAllocatableResources": brings}]
    return {"metadata": {"name": name}, "spec": {"driver": "drv", "nodeName": name, "pool": about, "devices": shown}}


@pytest.mark.rule("K37-NA-07")
def test_a_node_needs_room_for_the_pod_and_its_devices() -> None:
    """Without the gate devices take nothing."""
    small, large = (
        node("small", used={"cpu": "2"}),
        node("large", allocatable={"cpu": "8", "pods": "10"}, used={"cpu": "5"}),
    )
    asked = [claim("c", wants())]
    by = using(cpu="1")
    found = decide(by, asked, [small], publishing(ON, DOUBLE, "small"))
    assert isinstance(found, NoPlace)
    assert "Insufficient cpu (1 of the pod and 2 for its devices)" in found.message
    found = decide(by, asked, [small, large], publishing(ON, DOUBLE, "small", "large"))
    assert isinstance(found, Plan)
    assert (found.node, amounts(found.node_use)) == ("large", {"cpu": "2"})
    assert found.requests_of(by)["cpu"] == Quantity("3").nanos
    found = decide(by, asked, [small], publishing(OFF, DOUBLE, "small"))
    assert isinstance(found, Plan)
    assert (found.node, amounts(found.node_use)) == ("small", {})


@pytest.mark.rule("K37-NA-01")
def test_a_fault_of_a_device_keeps_the_pod_from_its_node_only() -> None:
    small, other = node("small"), node("other", used={"cpu": "1"})
    devices = publishing(ON, CPUS, "small")
    devices.inventory.put_slice(convert(ResourceSlice, slice_of("other", DOUBLE)))
    found = decide(using(), [claim("c", wants())], [small, other], devices)
    assert isinstance(found, Plan)
    assert found.node == "other"
    refused = decide(using(), [claim("c", wants())], [small], devices)
    assert isinstance(refused, NoPlace)
    assert "device drv/small/d maps capacity cpus to the node" in refused.message


@pytest.mark.rule("K37-NA-03")
def test_a_claim_that_is_allocated_already_counts_as_well() -> None:
    """Each pod that uses it takes the overhead."""
    held = convert(AllocationResult, {"devices": {"results": [{**result(), "pool": "small"}]}})
    shared = claim("c", wants(), status={"allocation": to_dict(held)})
    brings = {"cpu": {"overhead": {"perPod": "2", "perContainer": "1"}}}
    for containers, fits in ((1, True), (2, False)):
        found = decide(using(containers, cpu="500m"), [shared], [node("small")], publishing(ON, brings, "small"))
        assert isinstance(found, Plan) is fits


@pytest.mark.rule("K37-NA-06")
def test_devices_are_looked_up_by_driver_pool_and_name_in_the_slices_of_the_node() -> None:
    """One that is not published there, or not any more, takes nothing."""
    for pool, device, fits in (("small", "d", False), ("small", "gone", True), ("other", "d", True)):
        held = convert(AllocationResult, {"devices": {"results": [{**result(device), "pool": pool}]}})
        used = claim("c", wants(), status={"allocation": to_dict(held)})
        brings = {"cpu": {"overhead": {"perPod": "100"}}}
        found = decide(using(), [used], [node("small")], publishing(ON, brings, "small"))
        assert isinstance(found, Plan) is fits


@pytest.mark.rule("K37-NA-01")
def test_the_first_alpha_of_1_36_is_refused() -> None:
    assert features_of({"DRANodeAllocatableResources": True}, Release.V1_37) == ON
    with pytest.raises(GateError, match=r"the first alpha of Kubernetes 1.36 is not supported"):
        features_of({"DRANodeAllocatableResources": True}, Release.V1_36)
