"""What would be allocated for Kubernetes objects in files, told node by node.

Claims that are allocated already hold their devices. With pods, each pod is tried for itself: the claims
that its entries name, or that would be made from its templates, and the one for extended resources that classes in
the files serve. Without pods, all claims that are not allocated yet, and one of each template, are tried together, as
if one pod used them. Every attempt starts from the state in the files: what one pod would get is not taken from the
next.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dra_api.core import Node, Pod
from dra_api.extended_resources import classes_by_resource
from dra_api.meta import Object, ObjectMeta
from dra_api.resource import (
    AllocationResult,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)

from dra_operator.allocator import (
    Allocated,
    Allocator,
    ClaimError,
    Failed,
    Features,
    GaveUp,
    Inventory,
    Usage,
    node_matches,
)
from dra_operator.placement import Demand, Demands, ExtendedResources, NodeFilter, Nodes, NodeState, unsupported

from .language import CelSelectors
from .object_files import BadInput, of_kind
from .refused import Holders, holders, in_full


@dataclass(frozen=True, slots=True)
class Attempt:
    """Claims that one pod would use; ``pod`` is None when nobody was named."""

    pod: Pod | None
    claims: tuple[ResourceClaim, ...]

    @property
    def title(self) -> str:
        """Who wants what."""
        names = ", ".join(claim.key for claim in self.claims) or "none"
        return f"pod {self.pod.key}, claims {names}" if self.pod is not None else f"claims {names}"


def tell(objects: Sequence[Object], node_names: Sequence[str]) -> Iterator[str]:
    """Lines: for each attempt the verdict of each node. Raises BadInput when there is nothing to try."""
    features = Features()
    inventory = Inventory(features, language=CelSelectors(features))
    for class_ in of_kind(DeviceClass, objects):
        inventory.put_class(class_)
    for slice_ in of_kind(ResourceSlice, objects):
        inventory.put_slice(slice_)
    for rule in of_kind(DeviceTaintRule, objects):
        inventory.put_rule(rule)
    allocator = Allocator(inventory, new_share_id=lambda: str(uuid.uuid4()))
    claims = of_kind(ResourceClaim, objects)
    usage = Usage(claim.status.allocation for claim in claims if claim.status.allocation is not None)
    nodes = _nodes(objects, node_names)
    known = {node.metadata.name for node in of_kind(Node, objects)} or {
        *_named_by_slices(of_kind(ResourceSlice, objects))
    }
    for node in nodes:
        if node.metadata.name not in known:
            yield f"node {node.metadata.name} is not in the files, and tried as one without labels"
    scene = _Scene(allocator, usage, classes_by_resource(of_kind(DeviceClass, objects)), holders(claims))
    for attempt in _attempts(objects):
        yield attempt.title
        text = unsupported(attempt.pod) if attempt.pod is not None else None
        if text is not None:
            yield f"fits no node: {text}"
            continue
        for node in nodes:
            yield from _verdict(attempt, NodeState(node), scene)


def _nodes(objects: Sequence[Object], names: Sequence[str]) -> list[Node]:
    known = {node.metadata.name: node for node in of_kind(Node, objects)}
    if not names and not known:
        names = _named_by_slices(of_kind(ResourceSlice, objects))
    if not names and not known:
        raise BadInput("no node to try: add a Node object to the files, or name one with --node")
    return [known.get(name) or Node(metadata=ObjectMeta(name=name)) for name in names or known]


def _named_by_slices(slices: Sequence[ResourceSlice]) -> list[str]:
    names = [slice_.spec.node_name for slice_ in slices]
    names += [device.node_name for slice_ in slices for device in slice_.spec.devices or ()]
    return sorted({name for name in names if name})


def _attempts(objects: Sequence[Object]) -> list[Attempt]:
    claims = of_kind(ResourceClaim, objects)
    templates = of_kind(ResourceClaimTemplate, objects)
    pods = of_kind(Pod, objects)
    if pods:
        return [Attempt(pod, tuple(_claims_of(pod, claims, templates))) for pod in pods]
    wanted = [claim for claim in claims if claim.status.allocation is None]
    wanted += [_made_from(template, template.metadata.name) for template in templates]
    if not wanted:
        raise BadInput("no claim to try: add a ResourceClaim without allocation, or a ResourceClaimTemplate")
    return [Attempt(None, tuple(wanted))]


def _claims_of(
    pod: Pod, claims: Sequence[ResourceClaim], templates: Sequence[ResourceClaimTemplate]
) -> Iterator[ResourceClaim]:
    for entry in pod.spec.resource_claims or ():
        name = entry.resource_claim_name or entry.resource_claim_template_name
        key = f"{pod.metadata.namespace}/{name}"
        if entry.resource_claim_name:
            kind, found = "ResourceClaim", next((claim for claim in claims if claim.key == key), None)
        else:
            template = next((template for template in templates if template.key == key), None)
            made = f"{pod.metadata.name}-{entry.name}"
            kind, found = "ResourceClaimTemplate", _made_from(template, made) if template is not None else None
        if found is None:
            raise BadInput(f"pod {pod.key}, entry {entry.name}: {kind} {key} is not in the files")
        yield found


def _made_from(template: ResourceClaimTemplate, name: str) -> ResourceClaim:
    metadata = ObjectMeta(name=name, namespace=template.metadata.namespace, uid=f"made-from-template-{name}")
    return ResourceClaim(metadata=metadata, spec=template.spec.spec)


# --- verdicts -----------------------------------------------------------------------------------


class _Scene(NamedTuple):
    """What all attempts start from."""

    allocator: Allocator
    usage: Usage
    classes: Mapping[str, str]
    """Extended resource -> the class that serves it."""
    held: Holders


def _verdict(attempt: Attempt, state: NodeState, scene: _Scene) -> Iterator[str]:
    pod = attempt.pod if attempt.pod is not None else Pod()
    try:
        extended = ExtendedResources(pod, scene.classes)
        demand = Demands(attempt.claims, extended, Nodes([state]), scene.allocator).on(state)
    except ClaimError as error:
        yield f"node {state.name}: error: {error}"
        return
    if attempt.pod is not None:
        reason = NodeFilter(pod).obstacle(state, demand.served)
        if reason is not None:
            yield f"node {state.name}: the pod cannot run there: {reason}"
            return
    for claim in attempt.claims:
        allocation = claim.status.allocation
        elsewhere = allocation.node_selector if allocation is not None else None
        if elsewhere is not None and not node_matches(elsewhere, state.node):
            yield f"node {state.name}: claim {claim.key} is allocated for other nodes"
            return
    yield from _told(state.node, demand, scene)


def _told(node: Node, demand: Demand, scene: _Scene) -> Iterator[str]:
    name, outcome = node.metadata.name, scene.allocator.allocate(node, demand.recipe, scene.usage)
    if isinstance(outcome, Allocated):
        yield f"node {name}: fits"
        for claim, result in zip(demand.claims, outcome.results, strict=True):
            yield f"  claim {claim.key}"
            yield from _devices(result)
    elif isinstance(outcome, Failed):
        yield f"node {name}: error: {outcome.error}"
    elif isinstance(outcome, GaveUp):
        yield str(outcome)
    else:
        told = demand.told(outcome.refusal)
        yield from in_full(told, node, scene.allocator.inventory, demand.recipe, scene.held)


def _devices(result: AllocationResult) -> Iterator[str]:
    for given in result.devices.results or ():
        amounts = ", ".join(f"{name} {amount}" for name, amount in (given.consumed_capacity or {}).items())
        share = f" (a share: {amounts or 'no capacity'})" if given.share_id is not None else ""
        admin = " (admin access)" if given.admin_access else ""
        yield f"    {given.request}: {given.driver}/{given.pool}/{given.device}{share}{admin}"
    if not result.devices.results:
        yield "    no devices"
