"""Namespaces: a finalizer in the spec keeps one in deletion until the namespace controller has emptied it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dra_devcluster.apiserver.errors import Json, forbidden
from dra_devcluster.apiserver.storage import metadata

from .base import Kind, Write

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
