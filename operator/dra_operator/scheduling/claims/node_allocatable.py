"""What devices bring of a node's own resources, and cost of them (kubernetes-1.37.md section 12).

A device may map to such a resource (a driver gives away cpus, say), and it may cost some: an overhead for the pod, and
for each container that uses its claim. From Kubernetes 1.37 on, behind the gate DRANodeAllocatableResources. The pod
takes these amounts of its node beside what it requests, and its status records them before it is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from dra_api.core import (
    Container,
    NodeAllocatableMappedResources,
    NodeAllocatableOverheadResources,
    NodeAllocatableResourceClaimStatus,
    Pod,
)
from dra_api.references import claims_of_pod, is_pod_group, stands_for
from dra_api.resource import (
    Device,
    DeviceRequestAllocationResult,
    NodeAllocatableMapping,
    NodeAllocatableResource,
    ResourceClaim,
)
from dra_api.values import NANO, Quantity

from dra_operator.allocator import ClaimError, DeviceId
from dra_operator.scheduling.state.node import (
    Amounts,
    LoadedNode,
    add,
    amounts_of,
    container_sum,
    pod_level_resources,
    pod_requests,
)
from dra_operator.scheduling.state.obstacle import Obstacle, Reason
from dra_operator.wording import KIBI, amount

RESOURCE_OF_DEVICES: Final = Reason("resource-of-devices", "Insufficient {subject} ({detail})", ends_with_any_pod=True)
MAPPED_CLAIM_SHARED: Final = Reason(
    "mapped-claim-shared",
    "node allocatable resource claim {subject} has a mapped device and cannot be shared across pods",
)
POD_LEVEL_REQUEST: Final = Reason(
    "pod-level-request",
    "pod level request for {subject} is insufficient to cover the aggregated container and node-allocatable DRA "
    "requests",
)
POD_LEVEL_LIMIT: Final = Reason(
    "pod-level-limit",
    "pod level limit for {subject} is insufficient to cover the aggregated container and node-allocatable DRA limits",
)
EXTENDED_NOT_SERVED: Final = Reason(
    "extended-node-allocatable",
    "devices that bring or cost resources of the node cannot serve extended resources: use a claim",
)
_HUGE_PAGES = "hugepages-"


class ClaimUse(NamedTuple):
    """What the devices of one claim bring and cost, in billionths by resource."""

    status: NodeAllocatableResourceClaimStatus
    mapping: Amounts
    per_pod: Amounts
    per_container: Amounts

    @property
    def resources(self) -> set[str]:
        """All resources that it is about."""
        return {*self.mapping, *self.per_pod, *self.per_container}

    def of_container(self, container: str, resource: str) -> int:
        """The share of one container (K37-NA-21)."""
        if container not in (self.status.containers or ()):
            return 0
        return sum(amounts.get(resource, 0) for amounts in (self.mapping, self.per_pod, self.per_container))


class NodeUse(NamedTuple):
    """What the devices of a pod take of its node. ``statuses`` are sorted by claim."""

    amounts: Amounts = MappingProxyType({})
    statuses: tuple[NodeAllocatableResourceClaimStatus, ...] = ()


NO_NODE_USE: Final = NodeUse()
Held = tuple[ResourceClaim, Sequence[DeviceRequestAllocationResult]]
"""A claim of the pod with its devices, planned ones included."""


def node_use(
    pod: Pod,
    held: Iterable[Held],
    published: Callable[[DeviceId], Device | None],
    extended: Sequence[DeviceRequestAllocationResult] = (),
    *,
    is_group_idle: bool,
) -> NodeUse | Obstacle:
    """What the pod's devices take of its node, or what forbids them. Raises ClaimError for a device with a fault.

    ``extended``: devices of the claim for extended resources. ``is_group_idle``: no other pod of its PodGroup is
    placed.
    """
    # In 1.37.0 such pods fail, so nothing is allocated for them (K37-NA-08).
    if any(_of_device(result, published) for result in extended):
        return Obstacle(EXTENDED_NOT_SERVED)
    uses: list[ClaimUse] = []
    for claim, results in held:
        use = _use(pod, claim, results, published)
        # The resource would count for each pod, and exists once.
        if use.mapping and _is_shared(pod, claim, is_group_idle=is_group_idle):
            return Obstacle(MAPPED_CLAIM_SHARED, claim.metadata.name)
        if use.resources:
            uses.append(use)
    # The status is compared with the plan: another order would cause a write each time.
    uses.sort(key=lambda use: use.status.resource_claim_name)
    covered = pod_level_resources(pod)
    total: dict[str, int] = {}
    for use in uses:
        total = add(total, amounts_of(use.status))
    # The pod-level requests must have room for its devices, or the pod fits nowhere.
    insufficient = _at_pod_level(pod, uses, total) if covered else None
    if insufficient is not None:
        return insufficient
    # The rest was requested with the pod as a whole, and must not count twice.
    beside = {name: nanos for name, nanos in total.items() if name not in covered}
    return NodeUse(beside, tuple(use.status for use in uses))


def shortage(pod: Pod, state: LoadedNode, use: NodeUse) -> Obstacle | None:
    """The first resource of which the node has too little for the pod and its devices together (K37-NA-07)."""
    if not use.amounts:
        return None
    requested = pod_requests(pod)
    for name, nanos in sorted(use.amounts.items()):
        # Together with the pod's own requests: the rule about these alone has passed already.
        own = requested.get(name, 0)
        if own + nanos > state.offered.get(name, 0) - state.used.get(name, 0):
            return Obstacle(RESOURCE_OF_DEVICES, name, f"{amount(own)} of the pod and {amount(nanos)} for its devices")
    return None


def _is_shared(pod: Pod, claim: ResourceClaim, *, is_group_idle: bool) -> bool:
    consumers = claim.status.reserved_for or ()
    # While the group is idle the claim goes back with the next attempt, so nobody shares it yet.
    of_group = any(map(is_pod_group, consumers)) and not is_group_idle
    return of_group or not all(stands_for(consumer, pod) for consumer in consumers)


def _use(
    pod: Pod,
    claim: ResourceClaim,
    results: Sequence[DeviceRequestAllocationResult],
    published: Callable[[DeviceId], Device | None],
) -> ClaimUse:
    mapping: dict[str, int] = {}
    per_pod: dict[str, int] = {}
    per_container: dict[str, int] = {}
    for result in results:
        for name, resource in _of_device(result, published).items():
            if resource.mapping is not None:
                mapping = add(mapping, {name: _mapped(claim, result, resource.mapping)})
            if resource.overhead is not None:
                per_pod = add(per_pod, _amount(name, resource.overhead.per_pod))
                per_container = add(per_container, _amount(name, resource.overhead.per_container))
    # What comes to nothing is not recorded: a status with it would differ from one without it.
    mapping = {name: nanos for name, nanos in mapping.items() if nanos}
    overhead = sorted({*per_pod, *per_container})
    status = NodeAllocatableResourceClaimStatus(
        resource_claim_name=claim.metadata.name,
        containers=tuple(_containers(pod, claim)),
        mapping=tuple(
            NodeAllocatableMappedResources(name=name, quantity=_quantity(mapping[name])) for name in sorted(mapping)
        )
        or None,
        overhead=tuple(
            NodeAllocatableOverheadResources(
                name=name,
                per_pod=_quantity(per_pod[name]) if name in per_pod else None,
                per_container=_quantity(per_container[name]) if name in per_container else None,
            )
            for name in overhead
        )
        or None,
    )
    return ClaimUse(status, mapping, per_pod, per_container)


def _of_device(
    result: DeviceRequestAllocationResult, published: Callable[[DeviceId], Device | None]
) -> Mapping[str, NodeAllocatableResource]:
    """By driver, pool and name; a device that is no longer published brings and costs nothing (K37-NA-06)."""
    device = published(DeviceId.of(result))
    return (device.node_allocatable_resources if device is not None else None) or {}


def _mapped(claim: ResourceClaim, result: DeviceRequestAllocationResult, mapping: NodeAllocatableMapping) -> int:
    """What one device brings (K37-NA-01)."""
    if mapping.device_multiplier is not None:
        return mapping.device_multiplier.nanos
    if result.consumed_capacity is None:
        raise ClaimError.of_node(
            f"claim {claim.key}: device {DeviceId.of(result)} maps capacity {mapping.capacity_key} to the node, but no "
            f"capacity of it is consumed: have its driver allow multiple allocations"
        )
    consumed = result.consumed_capacity.get(mapping.capacity_key or "")
    if consumed is None or mapping.capacity_multiplier is None:
        return 0
    # Rounded up: a pod must never take more of its node than was counted (K37-NA-01).
    return -(-consumed.nanos * mapping.capacity_multiplier.nanos // NANO)


def _amount(name: str, quantity: Quantity | None) -> dict[str, int]:
    return {name: quantity.nanos} if quantity is not None else {}


def _quantity(nanos: int) -> Quantity:
    # In the form in which people write it; the value is the same, and the API compares values.
    return Quantity.from_nanos(nanos, binary=nanos % KIBI == 0)


def _containers(pod: Pod, claim: ResourceClaim) -> Iterator[str]:
    entries = {it.entry.name for it in claims_of_pod(pod) if it.entry is not None and it.name == claim.metadata.name}
    for container in _all_containers(pod):
        # Only containers that use the claim bear its overhead.
        used = {it.name for it in container.resources.claims or ()}
        if used & entries:
            yield container.name


def _all_containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.init_containers or ()
    yield from pod.spec.containers or ()


def _at_pod_level(pod: Pod, uses: Sequence[ClaimUse], total: Amounts) -> Obstacle | None:
    """What the pod requests, or limits, as a whole has to cover its devices (K37-NA-04)."""
    resources = pod.spec.resources
    requests, limits = (resources.requests or {}, resources.limits or {}) if resources is not None else ({}, {})
    containers = container_sum(pod)
    for name, nanos in sorted(total.items()):
        if name in requests and containers.get(name, 0) + nanos > requests[name].nanos:
            return Obstacle(POD_LEVEL_REQUEST, name)
        # As validation asks of limits that people write: a container's must not exceed the pod's.
        if name in limits and _limited(pod, name, nanos, uses) > limits[name].nanos:
            return Obstacle(POD_LEVEL_LIMIT, name)
    return None


def _limited(pod: Pod, name: str, nanos: int, uses: Sequence[ClaimUse]) -> int:
    """What the pod's limit has to be at least: all together of huge pages, else the largest container."""
    # Containers without a limit of their own are bounded by the pod's.
    limits = {it.name: (it.resources.limits or {}).get(name) for it in _all_containers(pod)}
    amounts = {container: quantity.nanos for container, quantity in limits.items() if quantity is not None}
    # They cannot be overcommitted, so limits add up as requests do.
    if name.startswith(_HUGE_PAGES):
        return sum(amounts.values()) + nanos
    shares = (limit + sum(use.of_container(container, name) for use in uses) for container, limit in amounts.items())
    return max(shares, default=0)
