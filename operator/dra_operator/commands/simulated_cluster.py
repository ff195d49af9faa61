"""Kubernetes objects from files as a cluster, the way the operator sees one.

Claims that are allocated already hold their devices, and pods that have a node take its room. Claims that pods would
get from templates in the files are made up.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from dra_api.core import Namespace, Node, Pod, PodResourceClaimStatus
from dra_api.meta import Object, ObjectMeta, OwnerReference
from dra_api.resource import (
    POD_CLAIM_NAME_ANNOTATION,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)

from dra_operator.allocator import Allocator, Features, Inventory, Semantics
from dra_operator.cluster import Cluster
from dra_operator.intake.cel_language import CelSelectors
from dra_operator.intake.kind_table import OF_STORAGE

from .object_files import BadInput, of_kind

T = TypeVar("T", bound=Object)
Templates = Mapping[str, ResourceClaimTemplate]


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """``claims`` are tried together where the files have no pod. ``notes`` say what is not as the files have it."""

    cluster: Cluster
    allocator: Allocator
    pods: Sequence[Pod]
    claims: Sequence[ResourceClaim]
    notes: Sequence[str]


def simulated(
    objects: Sequence[Object], node_names: Sequence[str], *, features: Features, semantics: Semantics
) -> SimulatedCluster:
    """The cluster, ready to be asked. Raises BadInput when there is nothing to try, or no node to try it on."""
    notes: list[str] = []
    cluster = Cluster(Inventory(features, language=CelSelectors(features), semantics=semantics))
    for kind in (Namespace, DeviceClass, ResourceSlice):
        for obj in of_kind(kind, objects):
            cluster.put(obj)
    for rule in of_kind(DeviceTaintRule, objects):
        if features.taint_rules and features.device_taints:
            cluster.put(rule)
        else:
            notes.append(f"DeviceTaintRule {rule.metadata.name} is left out: --feature-gates DRADeviceTaintRules=true")
    for obj in objects:
        if isinstance(obj, (ResourceClaim, *OF_STORAGE.values())):
            cluster.put(_identified(obj))
    known = {node.metadata.name for node in of_kind(Node, objects)} or set(_named_by_slices(objects))
    for node in _nodes(objects, node_names):
        cluster.put(node)
        if node.metadata.name not in known:
            notes.append(f"node {node.metadata.name} is not in the files, and tried as one without labels")
    templates = {template.key: template for template in of_kind(ResourceClaimTemplate, objects)}
    pods = [_with_claims(_identified(pod), templates, cluster) for pod in of_kind(Pod, objects)]
    allocator = Allocator(cluster.inventory, new_share_id=lambda: str(uuid.uuid4()))
    return SimulatedCluster(cluster, allocator, pods, () if pods else _wanted(objects), notes)


def _identified(obj: T) -> T:
    """With a UID: objects in files seldom have one, and everything goes by it."""
    meta = obj.metadata
    if meta.uid:
        return obj
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(meta, uid=f"{type(obj).__name__} {obj.key}"))


def _nodes(objects: Sequence[Object], names: Sequence[str]) -> list[Node]:
    known = {node.metadata.name: node for node in of_kind(Node, objects)}
    if not names and not known:
        names = _named_by_slices(objects)
    if not names and not known:
        raise BadInput("no node to try: add a Node object to the files, or name one with --node")
    return [known.get(name) or Node(metadata=ObjectMeta(name=name)) for name in names or known]


def _named_by_slices(objects: Sequence[Object]) -> list[str]:
    slices = of_kind(ResourceSlice, objects)
    names = [slice_.spec.node_name for slice_ in slices]
    names += [device.node_name for slice_ in slices for device in slice_.spec.devices or ()]
    return sorted({name for name in names if name})


def _wanted(objects: Sequence[Object]) -> list[ResourceClaim]:
    claims = map(_identified, of_kind(ResourceClaim, objects))
    wanted = [claim for claim in claims if claim.status.allocation is None]
    wanted += [_made_from(it, it.metadata.name) for it in of_kind(ResourceClaimTemplate, objects)]
    if not wanted:
        raise BadInput("no claim to try: add a ResourceClaim without allocation, or a ResourceClaimTemplate")
    return wanted


def _with_claims(pod: Pod, templates: Templates, cluster: Cluster) -> Pod:
    """The pod as it is when its claims have been made from templates; both are put into the cluster."""
    statuses = {status.name: status for status in pod.status.resource_claim_statuses or ()}
    for entry in pod.spec.resource_claims or ():
        if entry.resource_claim_name:
            key = f"{pod.metadata.namespace}/{entry.resource_claim_name}"
            if key not in cluster.claims:
                raise BadInput(f"pod {pod.key}, entry {entry.name}: ResourceClaim {key} is not in the files")
        elif entry.name not in statuses:
            key = f"{pod.metadata.namespace}/{entry.resource_claim_template_name}"
            if key not in templates:
                raise BadInput(f"pod {pod.key}, entry {entry.name}: ResourceClaimTemplate {key} is not in the files")
            name = f"{pod.metadata.name}-{entry.name}"
            cluster.put(_made_from(templates[key], name, pod, entry.name))
            statuses[entry.name] = PodResourceClaimStatus(name=entry.name, resource_claim_name=name)
    status = msgspec.structs.replace(pod.status, resource_claim_statuses=tuple(statuses.values()))
    pod = msgspec.structs.replace(pod, status=status)
    cluster.put(pod)
    return pod


def _made_from(template: ResourceClaimTemplate, name: str, pod: Pod | None = None, entry: str = "") -> ResourceClaim:
    owners = (
        OwnerReference(api_version="v1", kind="Pod", name=owner.name, uid=owner.uid, controller=True)
        for owner in ((pod.metadata,) if pod is not None else ())
    )
    metadata = ObjectMeta(
        name=name,
        namespace=template.metadata.namespace,
        uid=f"made-from-template-{name}",
        annotations={POD_CLAIM_NAME_ANNOTATION: entry} if entry else None,
        owner_references=tuple(owners) or None,
    )
    return ResourceClaim(metadata=metadata, spec=template.spec.spec)
