"""Kinds with few rules of their own."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from dra_devcluster.apiserver import faults
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.storage import metadata
from dra_devcluster.apiserver.structure import Fault
from dra_devcluster.node_protocol import SERVER_KEY_ANNOTATION

from .base import Kind, Write


class Generational(Kind):
    """``metadata.generation`` counts the changes of ``spec``."""

    has_generation = True


class Nodes(Kind):
    selectable: Mapping[str, str] = MappingProxyType({"spec.unschedulable": "spec.unschedulable"})
    status_writes_metadata = True

    def default(self, obj: Json, write: Write) -> None:
        _keep_server_key(obj["metadata"], write)
        status = obj.get("status") or {}
        for name, amount in (status.get("capacity") or {}).items():
            status.setdefault("allocatable", {}).setdefault(name, amount)

    def prepare_create(self, obj: Json, write: Write) -> None:
        """A kubelet registers its node with the status."""

    def fields(self, obj: Json) -> dict[str, str]:
        found = super().fields(obj)
        found["spec.unschedulable"] = found["spec.unschedulable"] or "false"
        return found


def _keep_server_key(meta: Json, write: Write) -> None:
    """Take the key of the node's server out of the object: who reads Nodes may not run programs in their pods."""
    annotations = meta.get("annotations") or {}
    key = annotations.pop(SERVER_KEY_ANNOTATION, None)
    if key is None:
        return
    if not annotations:
        del meta["annotations"]
    if not write.dry_run:
        write.registry.server_keys[meta["name"]] = key


class Keyed(Kind):
    """Keys and values, which an object may declare immutable."""

    parts: tuple[str, ...] = ("data", "binaryData")

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[Fault]:
        for part in self.parts:
            for key in obj.get(part) or {}:
                if why := metadata.data_key(key):
                    yield faults.invalid(f"{part}[{key}]", key, why)
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
