"""Kinds with few rules of their own, volumes and namespaces among them.

A namespace has a finalizer in its spec: it stays in deletion until the namespace controller has emptied it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from dra_devcluster.apiserver import faults
from dra_devcluster.apiserver.errors import Json, forbidden
from dra_devcluster.apiserver.kinds.base import Kind, Write
from dra_devcluster.apiserver.kinds.nodes import Nodes
from dra_devcluster.apiserver.storage import metadata
from dra_devcluster.apiserver.structure import Fault

FINALIZER = "kubernetes"
NAME_LABEL = "kubernetes.io/metadata.name"
_UNDELETABLE = ("default", "kube-system", "kube-public")


class NamespaceKind(Kind):
    name_rule = staticmethod(metadata.label)
    status_writes_metadata = True
    returns_deleted = True
    selectable: Mapping[str, str] = MappingProxyType({"status.phase": "status.phase"})

    def default(self, obj: Json, write: Write) -> None:
        name = obj["metadata"].get("name")
        if name:
            obj["metadata"].setdefault("labels", {})[NAME_LABEL] = name

    def prepare_create(self, obj: Json, write: Write) -> None:
        finalizers = (obj.get("spec") or {}).get("finalizers") or []
        obj["spec"] = {"finalizers": finalizers if FINALIZER in finalizers else [*finalizers, FINALIZER]}
        obj["status"] = {"phase": "Active"}

    def prepare_update(self, obj: Json, old: Json, write: Write) -> None:
        if write.subresource == "finalize":
            obj["status"] = old.get("status", {})
            return
        super().prepare_update(obj, old, write)
        obj["spec"] = old.get("spec", {})

    def prepare_delete(self, obj: Json, write: Write) -> None:
        name = obj["metadata"]["name"]
        if name in _UNDELETABLE:
            raise forbidden("", "namespaces", name, "this namespace may not be deleted")

    def holds(self, obj: Json) -> bool:
        return bool((obj.get("spec") or {}).get("finalizers"))

    def mark_deleted(self, obj: Json) -> None:
        obj.setdefault("status", {})["phase"] = "Terminating"
        obj["metadata"].pop("deletionGracePeriodSeconds", None)  # it waits for its content, not for time


class PersistentVolumes(Kind):
    returns_deleted = True

    def default(self, obj: Json, write: Write) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("volumeMode", "Filesystem")
        spec.setdefault("persistentVolumeReclaimPolicy", "Retain")

    def prepare_create(self, obj: Json, write: Write) -> None:
        obj["status"] = {"phase": "Pending"}


class PersistentVolumeClaims(Kind):
    returns_deleted = True

    def default(self, obj: Json, write: Write) -> None:
        obj.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")

    def prepare_create(self, obj: Json, write: Write) -> None:
        obj["status"] = {"phase": "Pending"}


class StorageClasses(Kind):
    fixed = ("provisioner", "parameters", "reclaimPolicy", "volumeBindingMode")

    def default(self, obj: Json, write: Write) -> None:
        obj.setdefault("reclaimPolicy", "Delete")
        obj.setdefault("volumeBindingMode", "Immediate")

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[Fault]:
        for part in self.fixed if old is not None else ():
            if obj.get(part) != (old or {}).get(part):
                yield faults.forbidden(part, f"updates to {part} are forbidden.")


STORAGE: dict[tuple[str, str], type[Kind]] = {
    ("", "persistentvolumes"): PersistentVolumes,
    ("", "persistentvolumeclaims"): PersistentVolumeClaims,
    ("storage.k8s.io", "storageclasses"): StorageClasses,
}


class Generational(Kind):
    """``metadata.generation`` counts the changes of ``spec``."""

    has_generation = True


class Keyed(Kind):
    """Keys and values, which an object may declare immutable."""

    parts: tuple[str, ...] = ("data", "binaryData")

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[Fault]:
        for part in self.parts:
            for key in obj.get(part) or {}:
                if why := metadata.data_key(key):
                    yield faults.invalid(f"{part}[{key}]", key, why)
        for key in sorted((obj.get("data") or {}).keys() & (obj.get("binaryData") or {}).keys()):
            yield faults.invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
        if old is None or not old.get("immutable"):
            return
        for part in ("immutable", *self.parts):
            if obj.get(part) != old.get(part):
                yield faults.forbidden(part, "field is immutable when `immutable` is set")


class Secrets(Keyed):
    parts = ("data",)
    selectable: Mapping[str, str] = MappingProxyType({"type": "type"})

    def default(self, obj: Json, write: Write) -> None:
        obj.setdefault("type", "Opaque")
        for key, text in (obj.pop("stringData", None) or {}).items():
            obj.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()


class Leases(Kind):
    unconditional_update = False
    created_by_update = True

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[Fault]:
        seconds = (obj.get("spec") or {}).get("leaseDurationSeconds", 1)
        if seconds <= 0:
            yield faults.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0")
        transitions = (obj.get("spec") or {}).get("leaseTransitions", 0)
        if transitions < 0:
            yield faults.invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0")


class Budgets(Generational):
    unconditional_update = False

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[Fault]:
        spec = obj.get("spec") or {}
        if "minAvailable" in spec and "maxUnavailable" in spec:
            yield faults.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")


class PriorityClasses(Generational):
    def default(self, obj: Json, write: Write) -> None:
        obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


class Services(Kind):
    name_rule = staticmethod(metadata.label_1035)
    returns_deleted = True
    created_by_update = True
    selectable: Mapping[str, str] = MappingProxyType({"spec.clusterIP": "spec.clusterIP", "spec.type": "spec.type"})

    def default(self, obj: Json, write: Write) -> None:
        spec = obj.setdefault("spec", {})
        for key, value in (("type", "ClusterIP"), ("sessionAffinity", "None"), ("internalTrafficPolicy", "Cluster")):
            spec.setdefault(key, value)
        for port in spec.get("ports") or ():
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port.get("port"))


class CreatedByUpdate(Kind):
    created_by_update = True


class ReturnedWhenDeleted(Kind):
    returns_deleted = True


class ReplicationControllers(Generational):
    selectable: Mapping[str, str] = MappingProxyType({"status.replicas": "status.replicas"})


SIMPLE: dict[tuple[str, str], type[Kind]] = {
    ("", "configmaps"): Keyed,
    ("", "endpoints"): CreatedByUpdate,
    ("", "limitranges"): CreatedByUpdate,
    ("", "nodes"): Nodes,
    ("", "secrets"): Secrets,
    ("", "services"): Services,
    ("", "serviceaccounts"): ReturnedWhenDeleted,
    ("", "podtemplates"): ReturnedWhenDeleted,
    ("", "resourcequotas"): ReturnedWhenDeleted,
    ("", "replicationcontrollers"): ReplicationControllers,
    ("policy", "poddisruptionbudgets"): Budgets,
    ("scheduling.k8s.io", "priorityclasses"): PriorityClasses,
    ("networking.k8s.io", "ingresses"): Generational,
    ("networking.k8s.io", "networkpolicies"): Generational,
    ("networking.k8s.io", "ingressclasses"): Generational,
    ("admissionregistration.k8s.io", "mutatingadmissionpolicies"): Generational,
    ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings"): Generational,
    ("coordination.k8s.io", "leases"): Leases,
}
