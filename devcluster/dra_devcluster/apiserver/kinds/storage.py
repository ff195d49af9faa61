"""Volumes, claims to them, and the classes that they name: the fields that a server fills in."""

from __future__ import annotations

from collections.abc import Iterable

from dra_devcluster.apiserver import faults
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.structure import Fault

from .base import Kind, Write


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
