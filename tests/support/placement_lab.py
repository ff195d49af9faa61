"""Pods, nodes and devices as short as tests of placement want them, and plans for gangs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.resource import Device, DeviceClass, ResourceClaim, ResourceSlice
from dra_api.values import Quantity
from dra_operator.allocator import Allocator, Features, Inventory, Usage
from dra_operator.scheduling import CycleState, InPieces, Nodes, NoPlace, Pause, Plan, decided, plan
from dra_operator.scheduling.claims import ExtendedResources, PodClaim
from dra_operator.scheduling.gang import JointPlan, SameValues, joint_plan
from dra_operator.scheduling.gang.joint_search import JointSearch
from dra_operator.scheduling.gang.members import MemberFrame
from dra_operator.scheduling.state import LoadedNode


class Attributes:
    """A selector is the name of an attribute that has to be there; ``fails`` fails."""

    def compile(self, expression: str) -> Callable[[str, Device], bool]:
        def predicate(driver: str, device: Device) -> bool:
            if expression == "fails" and "odd" in (device.attributes or {}):
                raise KeyError("no such key: healthy")
            return expression == "fails" or expression in (device.attributes or {})

        return predicate


class Watched(Nodes):
    """Notes which nodes are looked at."""

    def __init__(self, states: Sequence[LoadedNode]) -> None:
        super().__init__(states)
        self.looked: list[str] = []

    def get(self, name: str) -> LoadedNode | None:
        self.looked.append(name)
        return super().get(name)


def node(name: str, *, used: dict[str, str] | None = None, **fields: Any) -> LoadedNode:
    body = {
        "metadata": {"name": name, "labels": fields.get("labels", {})},
        "spec": fields.get("spec", {}),
        "status": {"allocatable": fields.get("allocatable", {"cpu": "4", "memory": "8Gi", "pods": "10"})},
    }
    amounts = {resource: Quantity(text).nanos for resource, text in (used or {}).items()}
    return LoadedNode(convert(Node, body), amounts)


def labelled(labels: dict[str, str]) -> LoadedNode:
    """A node that has nothing but labels."""
    return node("labelled", labels=labels)


def pod(
    cpu: str = "1", claims: Sequence[dict[str, Any]] = (), *, name: str = "pod", meta: Any = None, **spec: Any
) -> Pod:
    containers = [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]
    body = {"metadata": {"namespace": "ns", "name": name, "uid": f"uid-{name}", **(meta or {})}}
    return convert(Pod, {**body, "spec": {"containers": containers, "resourceClaims": list(claims), **spec}})


def claim(name: str, *requests: dict[str, Any], **more: Any) -> ResourceClaim:
    meta = {"namespace": "ns", "name": name, "uid": f"uid-{name}", **more.pop("metadata", {})}
    return convert(ResourceClaim, {"metadata": meta, "spec": {"devices": {"requests": list(requests)}}, **more})


def wants(name: str = "r", count: int = 1, selector: str | None = None) -> dict[str, Any]:
    selectors = [{"cel": {"expression": selector}}] if selector else []
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count, "selectors": selectors}
    return {"name": name, "exactly": exactly}


def prefers(*selectors: str) -> dict[str, Any]:
    alternatives = [
        {
            "name": f"sub-{number}",
            "deviceClassName": "gpu",
            "allocationMode": "ExactCount",
            "count": 1,
            "selectors": [{"cel": {"expression": text}}],
        }
        for number, text in enumerate(selectors)
    ]
    return {"name": "r", "firstAvailable": alternatives}


def allocator(**devices_of_nodes: Sequence[str]) -> Allocator:
    """Each node's devices, each with one attribute of the given name."""
    return publishing(
        {name: [{each: {"bool": True}} for each in attributes] for name, attributes in devices_of_nodes.items()}
    )


def publishing(devices_of_nodes: Mapping[str, Sequence[dict[str, Any]]], features: Features | None = None) -> Allocator:
    inventory = Inventory(features, language=Attributes())
    inventory.put_class(convert(DeviceClass, {"metadata": {"name": "gpu"}}))
    for name, published in devices_of_nodes.items():
        spec = {
            "driver": "gpu.example.com",
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {"name": f"dev-{number}", "attributes": attributes} for number, attributes in enumerate(published)
            ],
        }
        inventory.put_slice(convert(ResourceSlice, {"metadata": {"name": f"{name}-gpu"}, "spec": spec}))
    return Allocator(inventory, new_share_id=lambda: "share")


def decide(
    pod: Pod,
    claims: Sequence[ResourceClaim],
    nodes: Sequence[LoadedNode] | Nodes,
    devices: Allocator,
    extended: ExtendedResources | None = None,
) -> Plan | NoPlace:
    return decided(plan(case(pod, claims, nodes, devices, extended=extended)))


def case(
    pod: Pod,
    claims: Sequence[ResourceClaim],
    nodes: Sequence[LoadedNode] | Nodes,
    devices: Allocator,
    *,
    extended: ExtendedResources | None = None,
    usage: Usage | None = None,
) -> CycleState:
    """A pod whose claims are in order."""
    states = nodes if isinstance(nodes, Nodes) else Nodes(nodes)
    pod_claims = tuple(PodClaim(claim.metadata.name, claim) for claim in claims)
    return CycleState(
        pod,
        pod_claims,
        extended or ExtendedResources(pod, {}),
        states,
        devices,
        usage or Usage(),
    )


# --- Plans for gangs, decided in one go ---


def decided_together(made: Sequence[CycleState], same: SameValues) -> JointPlan | NoPlace:
    """The plan for all of them, or why there is none."""
    planning = InPieces(joint_plan(made, same))
    assert all(isinstance(pause, Pause) for pause in planning)
    return planning.answer


def decided_with_pauses(made: Sequence[CycleState], same: SameValues) -> JointPlan | NoPlace:
    """The same, with a pause before each member is asked about nodes: all members leave the nodes meanwhile."""
    original = JointSearch._advance

    def pausing(search: JointSearch, frame: MemberFrame) -> Any:
        yield Pause.SEARCHING
        return (yield from original(search, frame))

    with mock.patch.object(JointSearch, "_advance", pausing):
        return decided_together(made, same)
