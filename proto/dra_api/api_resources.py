"""The kinds that we use, and the versions in which a server may serve them.

``versions`` is in order of preference: the first one that the server serves is used. Callers always see the shape of
the first version in the list (``dra_api.conversion`` converts).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Resource:
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
