"""Checks of the common fields of all kinds: names, labels, owners, conditions, and lists with unique, limited entries.

A list that is too long gets only that error, so that no request can make the server check (or print) thousands of
entries. Spec: api.md sections 1, 4 and 6; the rest is the common rule for every Kubernetes object.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from dra_api.meta import Condition, ObjectMeta, OwnerReference
from dra_api.resource import Device, DeviceRequestAllocationResult
from dra_api.validation.formats import (
    Errors,
    checked,
    dns_label,
    dns_subdomain,
    duplicate,
    forbidden,
    immutable,
    invalid,
    label_key,
    label_value,
    not_supported,
    required,
    size,
    too_long,
    too_many,
)

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


def metadata(meta: ObjectMeta, *, namespaced: bool) -> Errors:
    """The metadata of a new object."""
    if meta.generate_name:
        # the server appends letters and digits, so a prefix may end in a hyphen
        for fault in dns_subdomain(f"{meta.generate_name}a"):
            yield invalid("metadata.generateName", meta.generate_name, fault)
    if meta.name:
        yield from checked(dns_subdomain, meta.name, "metadata.name")
    else:
        yield required("metadata.name", "name or generateName is required")
    if not namespaced and meta.namespace:
        yield forbidden("metadata.namespace", "not allowed on this type")
    elif namespaced and not meta.namespace:
        yield required("metadata.namespace")
    elif namespaced:
        yield from checked(dns_label, meta.namespace, "metadata.namespace")
    if (meta.generation or 0) < 0:
        yield invalid("metadata.generation", meta.generation, "must be greater than or equal to 0")
    yield from _changeable(meta)


def metadata_update(new: ObjectMeta, old: ObjectMeta) -> Errors:
    """What an update (of the object or of its status) does to the metadata."""
    if old.deletion_timestamp is not None:
        added = sorted(set(new.finalizers or ()) - set(old.finalizers or ()))
        if added:
            detail = f"no new finalizers can be added if the object is being deleted, found {', '.join(added)}"
            yield forbidden("metadata.finalizers", detail)
    for attribute, name in _IMMUTABLE.items():
        if getattr(new, attribute) != getattr(old, attribute):
            yield immutable(f"metadata.{name}", getattr(new, attribute))
    if not new.resource_version:
        yield invalid("metadata.resourceVersion", "", "must be specified for an update")
    if (new.generation or 0) < (old.generation or 0):
        yield invalid("metadata.generation", new.generation, "must not be decremented")
    yield from _changeable(new)


def template_metadata(meta: ObjectMeta, path: str) -> Errors:
    """Metadata that is copied to objects made from a template: labels and annotations, nothing else."""
    yield from _labels(meta.labels, f"{path}.labels")
    yield from _annotations(meta.annotations, f"{path}.annotations")
    for attribute, name in zip(meta.__struct_fields__, meta.__struct_encode_fields__, strict=True):
        if attribute not in _ALLOWED_IN_TEMPLATES and getattr(meta, attribute):
            yield forbidden(f"{path}.{name}", "cannot be set")


def _changeable(meta: ObjectMeta) -> Errors:
    yield from _labels(meta.labels, "metadata.labels")
    yield from _annotations(meta.annotations, "metadata.annotations")
    yield from _owners(meta.owner_references or (), "metadata.ownerReferences")
    yield from _finalizers(meta.finalizers or (), "metadata.finalizers")


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


BINDING_CONDITIONS_LIMIT: Final = 4


def binding_conditions(item: Device | DeviceRequestAllocationResult, path: str) -> Errors:
    """Both lists or neither, at most 4 entries each, all different."""
    awaited, fatal = item.binding_conditions or (), item.binding_failure_conditions or ()
    awaited_path, fatal_path = f"{path}.bindingConditions", f"{path}.bindingFailureConditions"
    for conditions, list_path in ((awaited, awaited_path), (fatal, fatal_path)):
        yield from limited(
            conditions, list_path, BINDING_CONDITIONS_LIMIT, lambda item, path: checked(label_key, item, path)
        )
        yield from repeated(conditions, list_path)
    for index, condition in enumerate(fatal):
        if condition in awaited:
            detail = "bindingFailureConditions must not overlap with bindingConditions"
            yield invalid(f"{fatal_path}[{index}]", condition, detail)
    if fatal and not awaited:
        yield invalid(awaited_path, [], "bindingConditions are required to use bindingFailureConditions")
    if awaited and not fatal:
        yield invalid(fatal_path, [], "bindingFailureConditions are required to use bindingConditions")


_STATUSES: Final = {"True", "False", "Unknown"}
_REASON: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", re.ASCII)
_REASON_BYTES: Final = 1024
_MESSAGE_BYTES: Final = 32 * 1024


def conditions(items: tuple[Condition, ...] | None, path: str) -> Errors:
    """Every condition is complete, and there is one of each type."""
    seen = set()
    for index, condition in enumerate(items or ()):
        if condition.type in seen:
            yield duplicate(f"{path}[{index}].type", condition.type)
        seen.add(condition.type)
        yield from _condition(condition, f"{path}[{index}]")


def _condition(condition: Condition, path: str) -> Errors:
    yield from checked(label_key, condition.type, f"{path}.type")
    if condition.status not in _STATUSES:
        yield not_supported(f"{path}.status", condition.status, _STATUSES)
    if (condition.observed_generation or 0) < 0:
        detail = "must be greater than or equal to zero"
        yield invalid(f"{path}.observedGeneration", condition.observed_generation, detail)
    if not condition.last_transition_time:
        yield required(f"{path}.lastTransitionTime", "must be set")
    if not condition.reason:
        yield required(f"{path}.reason", "must be set")
    elif not _REASON.fullmatch(condition.reason):
        detail = "must consist of letters, digits, '_', ',' and ':', beginning with a letter (e.g. 'MyReason')"
        yield invalid(f"{path}.reason", condition.reason, detail)
    if size(condition.reason) > _REASON_BYTES:
        yield too_long(f"{path}.reason", _REASON_BYTES)
    if size(condition.message) > _MESSAGE_BYTES:
        yield too_long(f"{path}.message", _MESSAGE_BYTES)


Item = TypeVar("Item")


def each(items: Iterable[Item] | None, path: str, check: Callable[[Item, str], Errors]) -> Errors:
    """Check every entry at its own path."""
    for index, item in enumerate(items or ()):
        yield from check(item, f"{path}[{index}]")


def limited(items: Sequence[Item] | None, path: str, limit: int, check: Callable[[Item, str], Errors]) -> Errors:
    """At most ``limit`` entries, each of which passes the check."""
    if items and len(items) > limit:
        yield too_many(path, len(items), limit)
    else:
        yield from each(items, path, check)


def repeated(items: Iterable[Hashable] | None, path: str) -> Errors:
    """Every entry that repeats an earlier one."""
    seen = set()
    for index, item in enumerate(items or ()):
        if item in seen:
            yield duplicate(f"{path}[{index}]", item)
        seen.add(item)


def unique(
    items: Sequence[Item] | None,
    path: str,
    limit: int,
    check: Callable[[Item, str], Errors],
    key: Callable[[Item], Hashable],
) -> Errors:
    """At most ``limit`` entries, each of which passes the check, and no two with the same key."""
    if items and len(items) > limit:
        yield too_many(path, len(items), limit)
        return
    yield from each(items, path, check)
    yield from repeated(map(key, items or ()), path)


def mapping(
    items: Mapping[str, Item] | None,
    path: str,
    check_key: Callable[[str, str], Errors],
    check: Callable[[Item, str], Errors],
) -> Errors:
    """Check every key (errors at the map's path) and every value (errors at the key's path)."""
    for key, value in (items or {}).items():
        yield from check_key(key, path)
        yield from check(value, f"{path}[{_shortened(key)}]")


def _shortened(key: str) -> str:
    """A key as it appears in paths: a long one is cut in the middle."""
    return key if len(key) <= 96 else f"{key[:47]}...{key[-46:]}"
