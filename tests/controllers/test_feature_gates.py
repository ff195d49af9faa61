"""Every feature gate that the operator accepts decides about something: the same cluster, with the gate on and off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from allocator_lab import partition_problem
from controllers_world import World
from dra_kube import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_POOL_STATUS_REQUESTS,
)
from dra_kube import RESOURCE_SLICES as SLICES
from dra_operator.allocator import GATES
from dra_operator.gates import accepted
from dra_operator.sources.kinds import watched_kinds
from objects import Make, Obj

BOUND = "bound"
TAINT = {"key": "k", "effect": "NoSchedule"}


def one_device(world: World, *pods: Obj, **device: object) -> None:
    """A node with one device of this kind, and the pods."""
    world.api.add(DEVICE_CLASSES, Make.device_class())
    world.api.add(NODES, Make.node("node"))
    published = Make.slice("node", 1)
    published["spec"]["devices"][0] |= device
    world.api.add(SLICES, published)
    for pod in pods or (Make.pod(claims=[Make.use("claim")]),):
        world.api.add(PODS, pod)


def asked_by(world: World, **devices: object) -> None:
    claim = Make.claim("claim")
    claim["spec"]["devices"] |= devices
    world.api.add(RESOURCE_CLAIMS, claim)


def admin_access(world: World) -> None:
    template = Make.template()
    template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = True
    world.api.add(RESOURCE_CLAIM_TEMPLATES, template)
    one_device(world, Make.pod(claims=[Make.FROM_TEMPLATE]))


def prioritized_list(world: World) -> None:
    alternative = {"name": "any", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    asked_by(world, requests=[{"name": "req", "firstAvailable": [alternative]}])
    one_device(world)


def partitions(world: World) -> None:
    asked_by(world)
    counters = {"units": {"value": "1"}}
    one_device(world, consumesCounters=[{"counterSet": "set", "counters": counters}])
    pool = {"name": "node", "generation": 1, "resourceSliceCount": 2}
    world.api.change(SLICES, "node-gpu.example.com", lambda made: made["spec"].update(pool=pool))
    shared = [{"name": "set", "counters": counters}]
    spec = {"driver": "gpu.example.com", "nodeName": "node", "pool": pool, "sharedCounters": shared}
    world.api.add(SLICES, {"metadata": {"name": "counters"}, "spec": spec})


def taints(world: World) -> None:
    asked_by(world)
    one_device(world, taints=[TAINT])


def taint_rules(world: World) -> None:
    if DEVICE_TAINT_RULES in watched_kinds(world.features):
        rule = {"metadata": {"name": "rule"}, "spec": {"deviceSelector": {"pool": "node"}, "taint": TAINT}}
        world.api.add(DEVICE_TAINT_RULES, rule)
    asked_by(world)
    one_device(world)


def shares(world: World) -> None:
    asked_by(world)
    world.api.add(RESOURCE_CLAIMS, Make.claim("other"))
    pods = (Make.pod("other", [Make.use("other")], priority=1), Make.pod(claims=[Make.use("claim")]))
    one_device(world, *pods, allowMultipleAllocations=True)


def fractions(world: World) -> None:
    request = Make.claim_spec()["devices"]["requests"][0]
    request["exactly"]["capacity"] = {"requests": {"cores": "250m"}}
    asked_by(world, requests=[request])
    policy = {"default": "100m", "validRange": {"min": "100m", "step": "100m"}}
    one_device(world, allowMultipleAllocations=True, capacity={"cores": {"value": "300m", "requestPolicy": policy}})


def lists(world: World) -> None:
    requests = [Make.claim_spec()["devices"]["requests"][0] | {"name": name} for name in ("a", "b")]
    asked_by(world, requests=requests, constraints=[{"matchAttribute": "gpu.example.com/links"}])
    one_device(world)
    devices = [
        {"name": f"dev-{number}", "attributes": {"links": {"ints": links}}}
        for number, links in enumerate(([1, 2], [2]))
    ]
    world.api.change(SLICES, "node-gpu.example.com", lambda made: made["spec"].update(devices=devices))


def extended_resource(world: World) -> None:
    amounts = {"deviceclass.resource.kubernetes.io/gpu": "1"}
    one_device(world, Make.pod(containers=[Make.asking("main", **amounts)]))


def binding_conditions(world: World) -> None:
    asked_by(world)
    one_device(world, bindingConditions=["attached"])


def hard_problem(world: World) -> None:
    world.times = replace(world.times, filter_timeout=0.01)
    world.search_budget = 20_000  # a tenth of a second on an idle machine
    world.api.add(DEVICE_CLASSES, Make.device_class())
    world.api.add(NODES, Make.node("node"))
    for slice_ in partition_problem("node"):
        world.api.add(SLICES, slice_)
    world.api.add(RESOURCE_CLAIMS, Make.claim("claim", count=20))
    world.api.add(PODS, Make.pod(claims=[Make.use("claim")]))


def pool_status(world: World) -> None:
    if RESOURCE_POOL_STATUS_REQUESTS in watched_kinds(world.features):
        request = {"metadata": {"name": "request"}, "spec": {"driver": "gpu.example.com"}}
        world.api.add(RESOURCE_POOL_STATUS_REQUESTS, request)
    asked_by(world)
    world.api.add(PODS, Make.pod(claims=[Make.use("claim")]))


def on_a_counter_set(world: World, drawn: Obj, **device: object) -> None:
    """A device that draws on a counter set, and a claim for it."""
    partitions(world)
    consumption = {"counterSet": "set", "counters": {"units": {"value": "1"}}, **drawn}
    published = {"name": "dev-0", "consumesCounters": [consumption], **device}
    world.api.change(SLICES, "node-gpu.example.com", lambda made: made["spec"].update(devices=[published]))


def groups(world: World) -> None:
    on_a_counter_set(world, {"compatibilityGroups": ["x"]})


def partition_types(world: World) -> None:
    spec = {"driver": "gpu.example.com", "defaultPartitionTypeAttribute": "kind"}
    world.api.add(RESOURCE_POOL_STATUS_REQUESTS, {"metadata": {"name": "request"}, "spec": spec})
    on_a_counter_set(world, {}, attributes={"kind": {"string": "half"}}, taints=[TAINT])


def derived(world: World) -> None:
    computed = {"name": "example.com/kind", "expression": "device.driver"}
    requests = Make.claim("claim")["spec"]["devices"]["requests"]
    requests[0]["exactly"]["derivedAttributes"] = [computed]
    asked_by(world, requests=requests)
    one_device(world)


def skipped_operations(world: World) -> None:
    asked_by(world)
    one_device(world)
    world.api.change(NODES, "node", lambda it: it["status"].update(declaredFeatures=["DRAOptionalNodeOperations"]))
    world.api.change(SLICES, "node-gpu.example.com", lambda it: it["spec"].update(skipNodeOperations=["*"]))


def more_cpu_than_there_is(world: World) -> None:
    asked_by(world)
    one_device(world, nodeAllocatableResources={"cpu": {"overhead": {"perPod": "10k"}}})


def pod_group(world: World, *claims: Obj, **wishes: Any) -> None:
    if POD_GROUPS in watched_kinds(world.features):
        spec = {"schedulingPolicy": {"basic": {}}, "resourceClaims": claims, **wishes}
        world.api.add(POD_GROUPS, {"metadata": {"name": "group", "namespace": "ns"}, "spec": spec})
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    one_device(world, Make.pod(claims=claims, schedulingGroup={"podGroupName": "group"}))


def claim_of_group(world: World) -> None:
    pod_group(world, {"name": "entry-0", **Make.FROM_TEMPLATE})


def gang(world: World) -> None:
    pod_group(world, schedulingPolicy={"gang": {"minCount": 1}})


def group_that_ends_none(world: World) -> None:
    pod_group(world, preemptionPolicy="Never")


def group_in_a_domain(world: World) -> None:
    pod_group(world, schedulingConstraints={"topology": [{"key": "rack"}]})
    world.api.change(NODES, "node", lambda it: it["metadata"].setdefault("labels", {}).update(rack="one"))


class Sides(NamedTuple):
    """What is in the cluster, and what the pod ``pod`` comes to, or a ResourcePoolStatusRequest."""

    arrange: Callable[[World], None]
    on: str
    off: str


NO_DEVICE = "cannot satisfy claim ns/claim"
GETS_READY = "waiting for binding conditions for device on node node"
SIDES = {
    "DRAAdminAccess": Sides(admin_access, BOUND, "admin access is requested, but the feature is disabled"),
    "DRAPrioritizedList": Sides(prioritized_list, BOUND, "the DRAPrioritizedList feature is disabled"),
    "DRAPartitionableDevices": Sides(partitions, BOUND, NO_DEVICE),
    "DRADeviceTaints": Sides(taints, NO_DEVICE, BOUND),
    "DRADeviceTaintRules": Sides(taint_rules, NO_DEVICE, BOUND),
    "DRAConsumableCapacity": Sides(shares, BOUND, NO_DEVICE),
    "DRAFractionalCapacityRange": Sides(fractions, BOUND, NO_DEVICE),
    "DRAListTypeAttributes": Sides(lists, BOUND, NO_DEVICE),
    "DRAExtendedResource": Sides(extended_resource, BOUND, "cannot fit resource"),
    "DRADeviceBindingConditions": Sides(binding_conditions, GETS_READY, NO_DEVICE),
    "DRAResourceClaimDeviceStatus": Sides(binding_conditions, GETS_READY, NO_DEVICE),
    "DRAResourcePoolStatus": Sides(pool_status, "Calculated status for 0 pools", "device class gpu does not exist"),
    "DRAPartitionableDevicesType": Sides(partition_types, "nodeName partitionSummary poolName", "nodeName poolName"),
    "DRADeviceCompatibilityGroups": Sides(groups, BOUND, "is currently being updated"),
    "DRADerivedAttributes": Sides(derived, BOUND, "the DRADerivedAttributes feature is disabled"),
    "DRAOptionalNodeOperations": Sides(skipped_operations, BOUND, NO_DEVICE),
    "DRANodeAllocatableResources": Sides(more_cpu_than_there_is, "Insufficient cpu", BOUND),
    "PodGroupPreemptionPolicy": Sides(group_that_ends_none, "the pod has the preemption policy", BOUND),
    "GangScheduling": Sides(gang, BOUND, "needs the feature gate GangScheduling"),
    "TopologyAwareWorkloadScheduling": Sides(
        group_in_a_domain, BOUND, "needs the feature gate TopologyAwareWorkloadScheduling"
    ),
    "GenericWorkload": Sides(pod_group, BOUND, "spec.schedulingGroup is not supported by dra-operator yet"),
    "DRAWorkloadResourceClaims": Sides(claim_of_group, BOUND, "the pod is in a PodGroup, whose claims need"),
    "DRASchedulerFilterTimeout": Sides(hard_problem, "node node: timed out trying to allocate devices", "gave up"),
}


ELSEWHERE = {"WorkloadAwarePreemption"}
"""Gates that decide which pods end: tests/controllers/test_evicting.py."""
NEEDED_BY = {"DRAResourceClaimDeviceStatus": {"DRADeviceBindingConditions": False}}
"""What has to be off with a gate, because it needs the gate and is on by default."""


def test_the_table_has_every_gate() -> None:
    assert {*SIDES, *ELSEWHERE} == GATES


NEEDS = {"DRAWorkloadResourceClaims": {"GenericWorkload": True}}
"""What has to be on with a gate, because the gate needs it and it is off by default."""


BESIDE = {
    "DRAPartitionableDevicesType": {"DRAResourcePoolStatus": True},
    "GangScheduling": {"GenericWorkload": True},
    "PodGroupPreemptionPolicy": {"GenericWorkload": True},
    "TopologyAwareWorkloadScheduling": {"GenericWorkload": True},
}
"""What is on beside a gate, whether that is on or off: without it there is nothing to be decided."""


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
@pytest.mark.parametrize("gate", sorted(SIDES))
async def test_a_gate_decides(gate: str, is_on: bool) -> None:
    sides = SIDES[gate]
    others = (NEEDS if is_on else NEEDED_BY).get(gate, {}) | BESIDE.get(gate, {})
    world = World(accepted({gate: is_on} | others, None))
    sides.arrange(world)
    world.start()
    expected = sides.on if is_on else sides.off
    async with world.running(), asyncio.timeout(20):
        while expected not in (found := outcome(world)):
            assert not found.startswith(BOUND), found
            world.bring_events()
            await world.tick()
    if expected != BOUND:
        assert not world.api[PODS, "ns/pod"]["spec"].get("nodeName")


def outcome(world: World) -> str:
    """What became of the pod: bound, or what its events say; and what requests were answered."""
    if world.api[PODS, "ns/pod"]["spec"].get("nodeName"):
        return BOUND
    reasons = ("FailedScheduling", "FailedResourceClaimCreation", "BindingConditionsPending")
    messages = [message for reason in reasons for message in world.messages(reason)]
    answers = [request.get("status") or {} for request in world.api.of(RESOURCE_POOL_STATUS_REQUESTS)]
    messages += [condition["message"] for answer in answers for condition in answer.get("conditions", ())]
    messages += [" ".join(sorted(pool)) for answer in answers for pool in answer.get("pools", ())]
    return " | ".join(messages)
