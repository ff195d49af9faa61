"""Object metadata: names, labels, owners, finalizers, and what an update may not change.

Spec: api.md section 1 (names); the rest is the common rule for every Kubernetes object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dra_api.meta import ObjectMeta, OwnerReference
from dra_api.validation.errors import Errors, forbidden, immutable, invalid, required, too_long
from dra_api.validation.formats import Form, checked, dns_label, dns_subdomain, label_key, label_value, size

ANNOTATIONS_BYTES: Final = 256 * 1024
_STANDARD_FINALIZERS: Final = {"kubernetes", "orphan", "foregroundDeletion"}
_ALLOWED_IN_TEMPLATES: Final = {"labels", "annotations"}
_IMMUTABLE: Final = {
    "name": "name",
    "namespace": "namespace",
    "uid": "uid",
    "creation_timestamp": "creationTimestamp",
    "deletion_timestamp": "deletionTimestamp",
    "deletion_grace_period_seconds": "deletionGracePeriodSeconds",
}


def metadata(meta: ObjectMeta, path: str = "metadata", *, namespaced: bool, name_form: Form = dns_subdomain) -> Errors:
    """The metadata of a new object."""
    if meta.generate_name:
        # the server appends letters and digits, so a prefix may end in a hyphen
        for fault in name_form(f"{meta.generate_name}a"):
            yield invalid(f"{path}.generateName", meta.generate_name, fault)
    if meta.name:
        yield from checked(name_form, meta.name, f"{path}.name")
    else:
        yield required(f"{path}.name", "name or generateName is required")
    if not namespaced and meta.namespace:
        yield forbidden(f"{path}.namespace", "not allowed on this type")
    elif namespaced and not meta.namespace:
        yield required(f"{path}.namespace")
    elif namespaced:
        yield from checked(dns_label, meta.namespace, f"{path}.namespace")
    if (meta.generation or 0) < 0:
        yield invalid(f"{path}.generation", meta.generation, "must be greater than or equal to 0")
    yield from _changeable(meta, path)


def metadata_update(new: ObjectMeta, old: ObjectMeta, path: str = "metadata") -> Errors:
    """What an update (of the object or of its status) does to the metadata."""
    if old.deletion_timestamp is not None:
        added = sorted(set(new.finalizers or ()) - set(old.finalizers or ()))
        if added:
            detail = f"no new finalizers can be added if the object is being deleted, found {', '.join(added)}"
            yield forbidden(f"{path}.finalizers", detail)
    for attribute, name in _IMMUTABLE.items():
        if getattr(new, attribute) != getattr(old, attribute):
            yield immutable(f"{path}.{name}", getattr(new, attribute))
    if not new.resource_version:
        yield invalid(f"{path}.resourceVersion", "", "must be specified for an update")
    if (new.generation or 0) < (old.generation or 0):
        yield invalid(f"{path}.generation", new.generation, "must not be decremented")
    yield from _changeable(new, path)


def template_metadata(meta: ObjectMeta, path: str) -> Errors:
    """Metadata that is copied to objects made from a template: labels and annotations, nothing else."""
    yield from _labels(meta.labels, f"{path}.labels")
    yield from _annotations(meta.annotations, f"{path}.annotations")
    for attribute, name in zip(meta.__struct_fields__, meta.__struct_encode_fields__, strict=True):
        if attribute not in _ALLOWED_IN_TEMPLATES and getattr(meta, attribute):
            yield forbidden(f"{path}.{name}", "cannot be set")


def _changeable(meta: ObjectMeta, path: str) -> Errors:
    yield from _labels(meta.labels, f"{path}.labels")
    yield from _annotations(meta.annotations, f"{path}.annotations")
    yield from _owners(meta.owner_references or (), f"{path}.ownerReferences")
    yield from _finalizers(meta.finalizers or (), f"{path}.finalizers")


def _labels(labels: Mapping[str, str] | None, path: str) -> Errors:
    for key, value in (labels or {}).items():
        yield from checked(label_key, key, path)
        yield from checked(label_value, value, path)


def _annotations(annotations: Mapping[str, str] | None, path: str) -> Errors:
    total = 0
    for key, value in (annotations or {}).items():
        for fault in label_key(key.lower()):
            yield invalid(path, key, fault)
        total += size(key) + size(value)
    if total > ANNOTATIONS_BYTES:
        yield too_long(path, ANNOTATIONS_BYTES)


def _owners(owners: tuple[OwnerReference, ...], path: str) -> Errors:
    for owner in owners:
        if not owner.api_version.rpartition("/")[2]:
            yield invalid(f"{path}.apiVersion", owner.api_version, "version must not be empty")
        for name, value in (("kind", owner.kind), ("name", owner.name), ("uid", owner.uid)):
            if not value:
                yield invalid(f"{path}.{name}", value, "must not be empty")
    controllers = [owner.name for owner in owners if owner.controller]
    if len(controllers) > 1:
        detail = f"only one reference can have controller set to true, found {', '.join(controllers)}"
        yield invalid(path, list(owners), detail)


def _finalizers(finalizers: tuple[str, ...], path: str) -> Errors:
    for index, finalizer in enumerate(finalizers):
        yield from checked(label_key, finalizer, path)
        if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            detail = "name is neither a standard finalizer name nor is it fully qualified"
            yield invalid(f"{path}[{index}]", finalizer, detail)
    if {"orphan", "foregroundDeletion"} <= set(finalizers):
        yield invalid(path, list(finalizers), "finalizers orphan and foregroundDeletion cannot be both set")
