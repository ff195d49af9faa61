"""The kinds that the operator and ``kubectl dra`` read, each with its struct of dra_api.

Nothing but structs is imported here: ``kinds`` needs the cache, which takes a table of devices as long to load as
everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dra_api.core import Namespace, Node, Pod
from dra_api.kueue import AdmissionCheck, ResourceFlavor, Workload
from dra_api.meta import (
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
    Object,
    Resource,
)
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
