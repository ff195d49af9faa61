"""The fields of volumes that placement reads: core/v1 claims and volumes, and the kinds of storage.k8s.io/v1.

Spec: node-rules.md.
"""

from __future__ import annotations

from typing import Final

from .core import NodeSelector
from .meta import LabelSelector, Object, Part
from .values import Quantity

CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
BOUND_ANNOTATION: Final = "pv.kubernetes.io/bind-completed"
"""On a claim: the PV controller has written both sides of the binding."""
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
"""On a volume: a program chose its claim, so that a release may take the choice back."""
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
"""On a claim: the node for which its volume is to be made."""


class VolumeResources(Part, frozen=True):
    requests: dict[str, Quantity] | None = None


class PersistentVolumeClaimSpec(Part, frozen=True):
    access_modes: tuple[str, ...] | None = None
    selector: LabelSelector | None = None
    resources: VolumeResources = VolumeResources()
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None


class PersistentVolumeClaimStatus(Part, frozen=True):
    phase: str = ""


class PersistentVolumeClaim(Object, frozen=True):
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()

    @property
    def storage_class(self) -> str:
        """The name of its class; empty if it has none. The old annotation comes first."""
        return (self.metadata.annotations or {}).get(CLASS_ANNOTATION, self.spec.storage_class_name or "")

    @property
    def is_bound(self) -> bool:
        """Whether it has its volume for good: named in the spec, and confirmed by the PV controller."""
        return bool(self.spec.volume_name) and BOUND_ANNOTATION in (self.metadata.annotations or {})


class ClaimReference(Part, frozen=True):
    """The claim that a volume is for; without UID it is reserved for a name."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class CSIVolume(Part, frozen=True):
    driver: str = ""
    volume_handle: str = ""


class VolumeNodeAffinity(Part, frozen=True):
    required: NodeSelector | None = None


class PersistentVolumeSpec(Part, frozen=True):
    capacity: dict[str, Quantity] | None = None
    access_modes: tuple[str, ...] | None = None
    claim_ref: ClaimReference | None = None
    csi: CSIVolume | None = None
    node_affinity: VolumeNodeAffinity | None = None
    storage_class_name: str = ""
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None


class PersistentVolumeStatus(Part, frozen=True):
    phase: str = ""


class PersistentVolume(Object, frozen=True):
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()

    def is_reserved_for(self, claim: PersistentVolumeClaim) -> bool:
        """Whether it is for this claim: by UID, or by name if no UID is given."""
        ref, meta = self.spec.claim_ref, claim.metadata
        same = ref is not None and (ref.namespace, ref.name) == (meta.namespace, meta.name)
        return ref is not None and same and ref.uid in ("", meta.uid)

    @property
    def storage_class(self) -> str:
        """The name of its class; empty if it has none. The old annotation comes first."""
        return (self.metadata.annotations or {}).get(CLASS_ANNOTATION, self.spec.storage_class_name)


class TopologyRequirement(Part, frozen=True):
    key: str = ""
    values: tuple[str, ...] | None = None


class TopologyTerm(Part, frozen=True):
    match_label_expressions: tuple[TopologyRequirement, ...] | None = None


class StorageClass(Object, frozen=True):
    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: tuple[TopologyTerm, ...] | None = None


class VolumeCount(Part, frozen=True):
    count: int | None = None


class CSINodeDriver(Part, frozen=True):
    name: str = ""
    allocatable: VolumeCount = VolumeCount()


class CSINodeSpec(Part, frozen=True):
    drivers: tuple[CSINodeDriver, ...] | None = None


class CSINode(Object, frozen=True):
    """What the drivers of a node can do there; it has the name of the node."""

    spec: CSINodeSpec = CSINodeSpec()


class AttachmentSource(Part, frozen=True):
    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Part, frozen=True):
    attacher: str = ""
    node_name: str = ""
    source: AttachmentSource = AttachmentSource()


class VolumeAttachment(Object, frozen=True):
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()


class CSIDriverSpec(Part, frozen=True):
    storage_capacity: bool | None = None


class CSIDriver(Object, frozen=True):
    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(Object, frozen=True):
    """How much room a driver has for new volumes of a class, and on which nodes; no topology means none."""

    storage_class_name: str = ""
    node_topology: LabelSelector | None = None
    capacity: Quantity | None = None
    maximum_volume_size: Quantity | None = None
