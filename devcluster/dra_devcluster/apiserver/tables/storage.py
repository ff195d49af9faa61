"""The lines of storage classes, CSI nodes and attachments."""

from datetime import datetime
from typing import Any

from .parts import Json, created, name, spec_of, status_of

_UNSET = "<unset>"
_IS_DEFAULT = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")


def storage_class_cells(obj: Json, now: datetime) -> list[Any]:
    notes = obj["metadata"].get("annotations") or {}
    shown = f"{name(obj)} (default)" if any(notes.get(note) == "true" for note in _IS_DEFAULT) else name(obj)
    modes = [obj.get("reclaimPolicy") or _UNSET, obj.get("volumeBindingMode") or _UNSET]
    return [shown, obj.get("provisioner", ""), *modes, bool(obj.get("allowVolumeExpansion")), created(obj, now)]


def csi_node_cells(obj: Json, now: datetime) -> list[Any]:
    return [name(obj), len(spec_of(obj).get("drivers") or ()), created(obj, now)]


def attachment_cells(obj: Json, now: datetime) -> list[Any]:
    spec = spec_of(obj)
    volume = (spec.get("source") or {}).get("persistentVolumeName", "")
    attached = bool(status_of(obj).get("attached"))
    return [name(obj), spec.get("attacher", ""), volume, spec.get("nodeName", ""), attached, created(obj, now)]
