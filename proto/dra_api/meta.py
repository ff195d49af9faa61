"""What every Kubernetes object carries: metadata, owners, conditions; and the kinds as an API server addresses them.

All structs of this package are frozen, name their fields as Python does (``node_name`` for
``nodeName``), keep *absent* (None) apart from *empty* where the API does, and ignore fields
they do not know. They are for reading only: a write is a patch, or the raw object with changes, never an encoded
struct, so that unknown fields are preserved.

``Resource.versions`` is in order of preference: the first one that the server serves is used. Callers always see the
shape of the first version in the list (``dra_api.conversion`` converts).
"""

from __future__ import annotations

from typing import Self

from msgspec import Struct


class Part(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of all structs here."""


class OwnerReference(Part, frozen=True):
    """An owner: when all owners of an object are gone, the object is deleted."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Part, frozen=True):
    """Name, identity and life cycle of an object. Times are RFC 3339 texts."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: tuple[str, ...] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None

    @property
    def controller(self) -> OwnerReference | None:
        """The one owner that manages the object, if any."""
        return next((owner for owner in self.owner_references or () if owner.controller), None)


class LabelSelectorRequirement(Part, frozen=True):
    """What one label has to be: operators In, NotIn, Exists, DoesNotExist."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class LabelSelector(Part, frozen=True):
    """Selects objects that meet all its requirements; an empty one selects all objects."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[LabelSelectorRequirement, ...] | None = None


class Condition(Part, frozen=True):
    """metav1.Condition."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int | None = None


class ObjectVersion(Struct, rename="camel", frozen=True):
    """The metadata that names one version of an object."""

    name: str
    uid: str
    resource_version: str
    namespace: str = ""

    @classmethod
    def of(cls, meta: ObjectMeta) -> Self:
        """The version that the metadata belongs to."""
        return cls(meta.name, meta.uid, meta.resource_version, meta.namespace)

    @property
    def key(self) -> str:
        """The object among those of its kind, as ``Object.key``."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Object(Part, frozen=True):
    """Base of all kinds."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> str:
        """``namespace/name``, or the bare name of a cluster-scoped object."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


class Resource(Struct, frozen=True, eq=False):
    """A kind as the API server addresses it: ``/apis/<group>/<version>/namespaces/<ns>/<plural>``.

    Each kind is one object, and equal to no other: so it is a quick key.
    """

    group: str
    versions: tuple[str, ...]
    plural: str
    kind: str
    namespaced: bool

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def api_version(self, version: str | None = None) -> str:
        """``apiVersion`` of an object; by default the preferred version."""
        version = version or self.versions[0]
        return f"{self.group}/{version}" if self.group else version

    def path(self, version: str, namespace: str | None, name: str | None, subresource: str | None = None) -> str:
        """The URL path of a collection (name None), an object, or a sub-resource.

        Raises ValueError for an empty name: it would turn one object into its whole collection.
        """
        if name == "":
            raise ValueError(f"an object of {self} must have a name")
        root = f"/apis/{self.group}/{version}" if self.group else f"/api/{version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        tail = "".join([f"/{part}" for part in (name, subresource) if part])
        return f"{root}{scope}/{self.plural}{tail}"


_DRA = "resource.k8s.io"
_STABLE = ("v1", "v1beta2", "v1beta1")

RESOURCE_CLAIMS = Resource(_DRA, _STABLE, "resourceclaims", "ResourceClaim", True)
RESOURCE_CLAIM_TEMPLATES = Resource(_DRA, _STABLE, "resourceclaimtemplates", "ResourceClaimTemplate", True)
DEVICE_CLASSES = Resource(_DRA, _STABLE, "deviceclasses", "DeviceClass", False)
RESOURCE_SLICES = Resource(_DRA, _STABLE, "resourceslices", "ResourceSlice", False)
DEVICE_TAINT_RULES = Resource(_DRA, ("v1", "v1beta2", "v1alpha3"), "devicetaintrules", "DeviceTaintRule", False)
RESOURCE_POOL_STATUS_REQUESTS = Resource(
    _DRA, ("v1alpha3",), "resourcepoolstatusrequests", "ResourcePoolStatusRequest", False
)
POD_GROUPS = Resource("scheduling.k8s.io", ("v1beta1", "v1alpha2"), "podgroups", "PodGroup", True)
PODS = Resource("", ("v1",), "pods", "Pod", True)
NODES = Resource("", ("v1",), "nodes", "Node", False)
NAMESPACES = Resource("", ("v1",), "namespaces", "Namespace", False)
CONFIG_MAPS = Resource("", ("v1",), "configmaps", "ConfigMap", True)
SECRETS = Resource("", ("v1",), "secrets", "Secret", True)
EVENTS = Resource("", ("v1",), "events", "Event", True)
PERSISTENT_VOLUME_CLAIMS = Resource("", ("v1",), "persistentvolumeclaims", "PersistentVolumeClaim", True)
PERSISTENT_VOLUMES = Resource("", ("v1",), "persistentvolumes", "PersistentVolume", False)
STORAGE_CLASSES = Resource("storage.k8s.io", ("v1",), "storageclasses", "StorageClass", False)
CSI_NODES = Resource("storage.k8s.io", ("v1",), "csinodes", "CSINode", False)
CSI_DRIVERS = Resource("storage.k8s.io", ("v1",), "csidrivers", "CSIDriver", False)
CSI_STORAGE_CAPACITIES = Resource("storage.k8s.io", ("v1",), "csistoragecapacities", "CSIStorageCapacity", True)
VOLUME_ATTACHMENTS = Resource("storage.k8s.io", ("v1",), "volumeattachments", "VolumeAttachment", False)
LEASES = Resource("coordination.k8s.io", ("v1",), "leases", "Lease", True)
POD_DISRUPTION_BUDGETS = Resource("policy", ("v1",), "poddisruptionbudgets", "PodDisruptionBudget", True)
RESOURCE_QUOTAS = Resource("", ("v1",), "resourcequotas", "ResourceQuota", True)

_KUEUE = "kueue.x-k8s.io"
_SERVED = ("v1beta2", "v1beta1")

WORKLOADS = Resource(_KUEUE, _SERVED, "workloads", "Workload", True)
RESOURCE_FLAVORS = Resource(_KUEUE, _SERVED, "resourceflavors", "ResourceFlavor", False)
ADMISSION_CHECKS = Resource(_KUEUE, _SERVED, "admissionchecks", "AdmissionCheck", False)
