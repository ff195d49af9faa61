"""The kinds that the operator sees, and the struct each is decoded into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dra_api.core import Namespace, Node, Pod
from dra_api.meta import Object
from dra_api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourcePoolStatusRequest, ResourceSlice
from dra_kube import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_POOL_STATUS_REQUESTS,
    RESOURCE_SLICES,
    Resource,
)

from dra_operator.allocator import Features
from dra_operator.cluster import ClaimTemplate

Kinds = Mapping[Resource, type[Object]]

# In the order in which they are listed at start: what others refer to comes first.
WATCHED: Final[Kinds] = {
    NAMESPACES: Namespace,
    NODES: Node,
    DEVICE_CLASSES: DeviceClass,
    DEVICE_TAINT_RULES: DeviceTaintRule,
    RESOURCE_SLICES: ResourceSlice,
    RESOURCE_CLAIM_TEMPLATES: ClaimTemplate,
    RESOURCE_CLAIMS: ResourceClaim,
    RESOURCE_POOL_STATUS_REQUESTS: ResourcePoolStatusRequest,
    PODS: Pod,
}
REQUIRED: Final = frozenset(WATCHED) - {DEVICE_TAINT_RULES, RESOURCE_POOL_STATUS_REQUESTS}


def watched_kinds(features: Features) -> Kinds:
    """Those that matter with these gates: some kinds have a gate of their own."""
    is_on = {
        DEVICE_TAINT_RULES: features.taint_rules and features.device_taints,
        RESOURCE_POOL_STATUS_REQUESTS: features.pool_status,
    }
    return {resource: kind for resource, kind in WATCHED.items() if is_on.get(resource, True)}
