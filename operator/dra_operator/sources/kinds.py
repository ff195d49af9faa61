"""The kinds that the operator sees, each with the struct of dra_api: for the cache, and for objects from files.

Imports nothing but structs, because commands that must start quickly need it as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dra_api.api_resources import (
    ADMISSION_CHECKS,
    CSI_DRIVERS,
    CSI_NODES,
    CSI_STORAGE_CAPACITIES,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_FLAVORS,
    RESOURCE_POOL_STATUS_REQUESTS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
    WORKLOADS,
    Resource,
)
from dra_api.core import Namespace, Node, Pod
from dra_api.kueue import AdmissionCheck, ResourceFlavor, Workload
from dra_api.meta import Object
from dra_api.resource import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourcePoolStatusRequest,
    ResourceSlice,
)
from dra_api.scheduling import PodDisruptionBudget, PodGroup
from dra_api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)

from dra_operator.allocator import Features
from dra_operator.cache import ClaimTemplate

Kinds = Mapping[Resource, type[Object]]

OF_STORAGE: Final[Kinds] = {
    STORAGE_CLASSES: StorageClass,
    CSI_DRIVERS: CSIDriver,
    CSI_NODES: CSINode,
    CSI_STORAGE_CAPACITIES: CSIStorageCapacity,
    VOLUME_ATTACHMENTS: VolumeAttachment,
    PERSISTENT_VOLUMES: PersistentVolume,
    PERSISTENT_VOLUME_CLAIMS: PersistentVolumeClaim,
}
"""Without one of these, pods that use PersistentVolumeClaims wait; nothing else depends on them."""
# In the order in which they are listed at start: what others refer to comes first.
TABLE: Final[Kinds] = {
    NAMESPACES: Namespace,
    NODES: Node,
    DEVICE_CLASSES: DeviceClass,
    DEVICE_TAINT_RULES: DeviceTaintRule,
    RESOURCE_SLICES: ResourceSlice,
    RESOURCE_CLAIM_TEMPLATES: ResourceClaimTemplate,
    POD_GROUPS: PodGroup,
    RESOURCE_CLAIMS: ResourceClaim,
    RESOURCE_POOL_STATUS_REQUESTS: ResourcePoolStatusRequest,
    **OF_STORAGE,
    POD_DISRUPTION_BUDGETS: PodDisruptionBudget,
    PODS: Pod,
}
OF_KUEUE: Final[Kinds] = {
    ADMISSION_CHECKS: AdmissionCheck,
    RESOURCE_FLAVORS: ResourceFlavor,
    WORKLOADS: Workload,
}
"""For the controller ``admission`` alone. Nothing else depends on them, so they may be missing or forbidden."""


WATCHED: Final[Kinds] = {**TABLE, **OF_KUEUE, RESOURCE_CLAIM_TEMPLATES: ClaimTemplate}
REQUIRED: Final = frozenset(WATCHED) - {
    DEVICE_TAINT_RULES,
    RESOURCE_POOL_STATUS_REQUESTS,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    *OF_STORAGE,
    *OF_KUEUE,
}


def watched_kinds(features: Features, *, preemption: bool = False, admission: bool = False) -> Kinds:
    """Those that matter with these gates and settings: some kinds have one of their own."""
    is_on = {
        DEVICE_TAINT_RULES: features.taint_rules and features.device_taints,
        RESOURCE_POOL_STATUS_REQUESTS: features.pool_status,
        POD_DISRUPTION_BUDGETS: preemption,
        POD_GROUPS: features.generic_workload,
        **dict.fromkeys(OF_KUEUE, admission),
    }
    return {resource: kind for resource, kind in WATCHED.items() if is_on.get(resource, True)}
