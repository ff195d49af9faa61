"""What ``kubectl dra why`` adds to an obstacle: how much is lacking, which claims and pods are behind it, who acts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from dra_api.core import NodeSelectorRequirement, Pod
from dra_api.quantity import Quantity
from dra_api.resource import ResourceClaim

from dra_operator.allocator import DeviceId
from dra_operator.cache import Cluster
from dra_operator.scheduling import CycleState, PodFilter
from dra_operator.scheduling.rules import NODE_SELECTOR, NOT_OFFERED, PORT, RESOURCE, TOO_MANY_PODS
from dra_operator.scheduling.state import POD_SLOTS, LoadedNode, Obstacle, pod_requests, ports_held
from dra_operator.wording import listed

from .fixes.node_remedies import leaving_or_coming
from .fixes.pod_changes import amount_of
from .published import requirement_text, selector_text
from .supposed import similar_name

_BYTES: Final = ("memory", "ephemeral-storage", "hugepages-")


def about(
    obstacle: Obstacle,
    cycle_state: CycleState,
    pod_filter: PodFilter,
    nodes: Sequence[LoadedNode],
    elsewhere: Collection[str],
    cluster: Cluster,
) -> Iterator[str]:
    """Lines about nodes with the same obstacle. ``elsewhere``: UIDs of claims that are allocated for other nodes."""
    yield from dict.fromkeys(filter(None, (leaving_or_coming(state.node) for state in nodes)))
    if (domains := pod_filter.rules.counts(obstacle)) is not None:
        yield f"pods that count: {_by_domain(domains)}"
    if obstacle.reason is NOT_OFFERED:
        yield from _unoffered(cycle_state, obstacle.subject, cluster)
    if obstacle.reason is RESOURCE:
        yield _shortage(cycle_state.pod, obstacle.subject, nodes)
    if obstacle.reason is TOO_MANY_PODS:
        yield _slots(nodes)
    if obstacle.reason is PORT:
        yield _port_holder(cycle_state, nodes[0])
    if obstacle.reason is NODE_SELECTOR:
        yield from _unselected(cycle_state.pod, nodes[0])
    if obstacle.reason.is_about_volumes:
        yield from _volumes(cycle_state)
    for claim in cycle_state.resource_claims:
        if claim.metadata.uid in elsewhere:
            yield f"claim {claim.metadata.name}: {holding(claim)}"


def _unoffered(cycle_state: CycleState, resource: str, cluster: Cluster) -> Iterator[str]:
    """Whether a feature gate is off that classes need for it, or a similar name is offered."""
    features = cycle_state.allocator.inventory.features
    if not features.extended_resources:
        off = f"the feature gate DRAExtendedResource is off in Kubernetes {features.release}"
        yield f"{off}: its API server drops extendedResourceName from device classes"
    offered = {name for state in cycle_state.nodes for name in state.offered if "/" in name}
    served = {name for class_ in cluster.classes if (name := class_.spec.extended_resource_name)}
    if similar := similar_name(resource, offered | served):
        yield similar.removeprefix("; ")


def holding(claim: ResourceClaim | None) -> str:
    """The claim's devices, and who uses them."""
    if claim is None:
        return "does not exist"
    if claim.status.allocation is None:
        return "not allocated"
    devices = ", ".join(str(DeviceId.of(result)) for result in claim.results) or "no devices"
    users = ", ".join(consumer.name for consumer in claim.status.reserved_for or ())
    return f"allocated ({devices}), " + (f"reserved for {users}" if users else "not reserved")


def _unselected(pod: Pod, node: LoadedNode) -> Iterator[str]:
    """What is asked for, and what the first of the nodes has instead."""
    labels, wanted = node.node.metadata.labels or {}, pod.spec.node_selector or {}
    missing = {key: value for key, value in wanted.items() if labels.get(key) != value}
    for key, value in missing.items():
        has = f"has {key}={labels[key]}" if key in labels else f"has no label {key}"
        yield f"spec.nodeSelector asks for {key}={value}; {node.name} {has}"
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    for term in (required.node_selector_terms or ()) if required is not None and not missing else ():
        yield from _asked(term.match_expressions or (), "label", labels, node.name)
        yield from _asked(term.match_fields or (), "field", {"metadata.name": node.name}, node.name)


def _asked(
    requirements: Iterable[NodeSelectorRequirement], kind: str, its: Mapping[str, str], node: str
) -> Iterator[str]:
    """``its``: the labels or fields that the node has."""
    for one in requirements:
        has = f"{one.key}={its[one.key]}" if one.key in its else f"no {kind} {one.key}"
        yield f"spec.affinity.nodeAffinity asks for {requirement_text(one)}; {node} has {has}"


def _volumes(cycle_state: CycleState) -> Iterator[str]:
    """The pod's claims of volumes: what is bound, and for which nodes; what is not."""
    for held in cycle_state.volumes.bound:
        affinity = held.volume.spec.node_affinity if held.volume is not None else None
        if held.volume is not None and affinity is not None and affinity.required is not None:
            where = selector_text(affinity.required)
            yield f"PersistentVolumeClaim {held.claim.key} has PersistentVolume {held.volume.key}, for {where}"
    for it in cycle_state.volumes.unbound:
        class_ = it.claim.storage_class
        yield f"PersistentVolumeClaim {it.claim.key} (StorageClass {class_ or 'none'}) is not bound"


def _shortage(pod: Pod, resource: str, nodes: Sequence[LoadedNode]) -> str:
    """``the pod asks for 900; node-3 has the most free: 61500m of 62``; an init container that asks for all that."""

    def free(node: LoadedNode) -> int:
        return node.offered.get(resource, 0) - node.used.get(resource, 0)

    def amount(nanos: int) -> str:
        return str(Quantity.from_nanos(nanos, binary=resource.startswith(_BYTES)))

    best = max(nodes, key=free)
    wanted, left, total = pod_requests(pod)[resource], max(0, free(best)), best.offered.get(resource, 0)
    alone = [it for it in pod.spec.init_containers or () if (its := amount_of(it, resource)) and its.nanos == wanted]
    who = f"init container {alone[0].name}" if alone else "the pod"
    return f"{who} asks for {amount(wanted)}; {best.name} has the most free: {amount(left)} of {amount(total)}"


def _slots(nodes: Sequence[LoadedNode]) -> str:
    """``node-3 has the most room: 110 of 110 pods are there``."""

    def amount(nanos: int) -> str:
        return str(Quantity.from_nanos(nanos))

    best = max(nodes, key=lambda node: node.offered.get(POD_SLOTS, 0) - node.used.get(POD_SLOTS, 0))
    used, total = best.used.get(POD_SLOTS, 0), best.offered.get(POD_SLOTS, 0)
    return f"{best.name} has the most room: {amount(used)} pods are there, and it takes {amount(total)}"


def _port_holder(cycle_state: CycleState, node: LoadedNode) -> str:
    """Which pods of a node hold a port that the pod asks for."""
    asked = {(port.protocol, port.number) for port in ports_held(cycle_state.pod)}
    pods_by_node = cycle_state.nodes.pods_by_node
    places = (pods_by_node.at(uid) for uid, name in pods_by_node if name == node.name)
    there = (place[0] for place in places if place is not None)
    holders = [pod.key for pod in there if asked & {(port.protocol, port.number) for port in ports_held(pod)}]
    return f"on {node.name} by {listed(sorted(holders))}"


def _by_domain(pods: Mapping[str, int]) -> str:
    """``3 in zone-a, 1 in zone-b``: topology domains, the fullest first."""
    fullest = sorted(pods.items(), key=lambda item: (-item[1], item[0]))
    return listed((f"{count} in {domain}" for domain, count in fullest), most=6) or "none"
