"""A cluster of objects from files, and the operator's work on it: gates, placing, reserving."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final, TypeVar

import msgspec
from dra_api.core import Namespace, Node, Pod
from dra_api.meta import Object, ObjectMeta
from dra_api.quota import ResourceQuota
from dra_api.references import is_reserved_for, pod_as_consumer
from dra_api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from dra_ledger.cel_language import CelSelectors
from msgspec.structs import replace

from dra_operator.allocator import DEVICE_ORDERS, Allocator, Features, Inventory, Semantics
from dra_operator.cache import Cluster
from dra_operator.commands.object_files import BadInput, of_kind
from dra_operator.commands.simulated.claims import (
    ClaimQuotas,
    HeldBack,
    Hindrance,
    PodClaims,
    admin_refusal,
    made_from,
    taken_as_permitted,
)
from dra_operator.controllers.scheduling.mix import Asked, MixLearner, MixMemory
from dra_operator.scheduling import PLACEMENT_STRATEGIES, CycleState, Placement, Plan
from dra_operator.scheduling.state import GATE, OPENED_LAST, is_at_gate
from dra_operator.sources.kind_table import OF_STORAGE


def gates_of_others(pod: Pod) -> list[str]:
    """The gates that others remove before it is the operator's turn."""
    gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
    after_ours = OPENED_LAST if GATE in gates else frozenset()
    return [] if is_at_gate(pod) else [name for name in gates if name != GATE and name not in after_ours]


def gated_by_others(pod: Pod) -> str:
    """Which gates are removed in which order, as a clause about the pod."""
    gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
    after_ours = OPENED_LAST if GATE in gates else frozenset()
    then = f"; then the operator allocates its devices and removes {GATE}" if GATE in gates else ""
    last = "".join(f"; {name} is removed after that" for name in gates if name in after_ours)
    alike = [name for name in gates if name != GATE and name.startswith(GATE.partition("/")[0])]
    misspelt = "".join(f"; {name} is not the operator's gate, which is {GATE}" for name in alike)
    return f"waits for its scheduling gates to be removed: {', '.join(gates_of_others(pod))}{then}{last}{misspelt}"


_VERSIONS: Final = count(1)


def apply_changed(cluster: Cluster, obj: Object) -> None:
    """Apply another state of an object, which is news whatever version it has."""
    version = f"simulated-{next(_VERSIONS)}"
    cluster.apply(replace(obj, metadata=replace(obj.metadata, resource_version=version)))


def refusal(
    claims: Sequence[ResourceClaim], cluster: Cluster, quotas: ClaimQuotas, *, lasting: bool
) -> HeldBack | None:
    """What the API server would not let in of the claims."""
    return admin_refusal(claims, cluster) or quotas.refusal(claims, lasting=lasting)


def closed_gate(pod: Pod) -> HeldBack | None:
    """The gates of other controllers."""
    gates = gates_of_others(pod)
    return HeldBack(Hindrance.SCHEDULING_GATE, ", ".join(gates), f"the pod {gated_by_others(pod)}") if gates else None


def reserve(cycle_state: CycleState, found: Plan, cluster: Cluster) -> None:
    """Take devices and room for the pod, as the operator would, so that the next pod finds what is left."""
    pod = cycle_state.pod
    extended = (found.extended.claim,) if found.extended is not None else ()
    for claim in (*cycle_state.resource_claims, *extended):
        status = claim.status
        if claim.metadata.uid in found.allocations:
            status = replace(status, allocation=found.allocations[claim.metadata.uid])
        if not is_reserved_for(pod, claim) and pod.metadata.uid:
            status = replace(status, reserved_for=(*(status.reserved_for or ()), pod_as_consumer(pod)))
        apply_changed(cluster, replace(claim, status=status))
    cluster.assume_placed(pod, found.node, found.served, found.node_use.amounts)
    cluster.storage.assume(pod.metadata.uid, found.node, found.volumes)


T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """``claims`` are tried together where the files have no pod. ``notes`` say what is not as the files have it."""

    cluster: Cluster
    allocator: Allocator
    placement: Placement
    learner: MixLearner
    pods: Sequence[Pod]
    claims: Sequence[ResourceClaim]
    notes: Sequence[str]
    lacking: Mapping[str, HeldBack]
    """By the key of a pod, what the files lack of its claims."""
    quotas: ClaimQuotas


def simulated(
    objects: Sequence[Object],
    node_names: Sequence[str] | None,
    *,
    features: Features,
    semantics: Semantics,
    strategy: str = PLACEMENT_STRATEGIES[0],
    device_order: str = DEVICE_ORDERS[0],
    mix: Sequence[Asked] = (),
) -> SimulatedCluster:
    """The cluster, ready to be asked. Raises BadInput when there is nothing to try, or no node to try it on."""
    notes: list[str] = []
    cluster = Cluster(Inventory(features, language=CelSelectors(features), semantics=semantics))
    for kind in (Namespace, DeviceClass, ResourceSlice):
        for obj in of_kind(kind, objects):
            cluster.apply(obj)
    for rule in of_kind(DeviceTaintRule, objects):
        if features.taint_rules and features.device_taints:
            cluster.apply(rule)
        else:
            notes.append(f"DeviceTaintRule {rule.metadata.name} is left out: --feature-gates DRADeviceTaintRules=true")
    for obj in objects:
        if isinstance(obj, (ResourceClaim, *OF_STORAGE.values())):
            cluster.apply(identified(obj))
    quotas = ClaimQuotas(of_kind(ResourceQuota, objects), _stored(objects), partial(extended_resource, cluster))
    known = {node.metadata.name for node in of_kind(Node, objects)} or set(_named_by_slices(objects))
    for node in _nodes(objects, node_names):
        cluster.apply(node)
        if node.metadata.name not in known:
            notes.append(f"node {node.metadata.name} is not in the files, and tried as one without labels")
    templates = {template.key: template for template in of_kind(ResourceClaimTemplate, objects)}
    claims = PodClaims(cluster, templates)
    pods = [claims.give(identified(pod)) for pod in of_kind(Pod, objects)]
    wanted = () if pods else _wanted(objects)
    notes += taken_as_permitted((*cluster.claims, *wanted), cluster)
    allocator = Allocator(cluster.inventory, new_share_id=lambda: str(uuid.uuid4()), order=device_order)
    placement = Placement(strategy, device_order)
    allocator.looks_at_mix |= placement.looks_at_mix(cluster.classes)
    learner = MixLearner(cluster, allocator, MixMemory(mix))
    return SimulatedCluster(cluster, allocator, placement, learner, pods, wanted, notes, claims.lacking, quotas)


def _stored(objects: Sequence[Object]) -> list[ResourceClaim]:
    """The claims that the server has: others are still to be made, as those from templates."""
    claims = of_kind(ResourceClaim, objects)
    return [identified(it) for it in claims if it.metadata.uid or it.status.allocation is not None]


def extended_resource(cluster: Cluster, class_: str) -> str:
    """The extended resource that a device class serves; empty if none."""
    found = cluster.classes.get(class_)
    return (found.spec.extended_resource_name or "") if found is not None else ""


def identified(obj: T) -> T:
    """With a UID: objects in files seldom have one, and everything goes by it."""
    meta = obj.metadata
    if meta.uid:
        return obj
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(meta, uid=f"{type(obj).__name__} {obj.key}"))


def _nodes(objects: Sequence[Object], wanted: Sequence[str] | None) -> list[Node]:
    """Those that are wanted, by default all in the files; ``wanted`` is None where a person cannot name any."""
    known = {node.metadata.name: node for node in of_kind(Node, objects)}
    names = list(wanted or known or _named_by_slices(objects))
    if not names:
        remedy = "" if wanted is None else ", or name one with --node"
        raise BadInput(f"no node to try: add a Node object to the files{remedy}")
    return [known.get(name) or Node(metadata=ObjectMeta(name=name)) for name in names]


def _named_by_slices(objects: Sequence[Object]) -> list[str]:
    slices = of_kind(ResourceSlice, objects)
    names = [slice_.spec.node_name for slice_ in slices]
    names += [device.node_name for slice_ in slices for device in slice_.spec.devices or ()]
    return sorted({name for name in names if name})


def _wanted(objects: Sequence[Object]) -> list[ResourceClaim]:
    claims = map(identified, of_kind(ResourceClaim, objects))
    wanted = [claim for claim in claims if claim.status.allocation is None]
    wanted += [made_from(it, it.metadata.name) for it in of_kind(ResourceClaimTemplate, objects)]
    if not wanted:
        raise BadInput("no claim to try: add a ResourceClaim without allocation, or a ResourceClaimTemplate")
    return wanted
