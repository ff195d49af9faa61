"""Metadata (names, labels, owners), rules that fields of many kinds have, and versions of objects.

Most versions of a kind differ only in ``apiVersion``, and that is not stored. The exceptions are
``resource.k8s.io/v1beta1`` (api.md section 12), PodGroups and Workloads of ``scheduling.k8s.io/v1alpha2``
(kubernetes-1.37.md section 8), and the two faces of events. They are converted between the stored and the served
version.
"""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any

import orjson
from dra_api import conversion
from dra_api.validation import formats as faults
from dra_api.validation.formats import Errors
from dra_cel.libraries.formats import FORMATS

from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.store import Stored
from dra_devcluster.apiserver.structure import Resource

NameRule = Callable[[str], str | None]  # why the name is refused, or None

_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+", re.ASCII)
_ANNOTATIONS_BYTES = 256 * 1024
_STANDARD_FINALIZERS = ("orphan", "foregroundDeletion", "kubernetes")

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words by accident
_GENERATED_BASE_CHARACTERS = 58
_GENERATED_SUFFIX_CHARACTERS = 5


def new_uid() -> str:
    return str(uuid.UUID(int=random.getrandbits(128), version=4))


def generated_name(base: str) -> str:
    """A name for ``generateName``: the base cut to 58 characters and five random ones."""
    return base[:_GENERATED_BASE_CHARACTERS] + "".join(random.choices(_SUFFIX_LETTERS, k=_GENERATED_SUFFIX_CHARACTERS))


def _format(name: str) -> NameRule:
    """The texts of Kubernetes stand in the library of CEL, whose expressions may compare them."""
    check = FORMATS[name].check
    return lambda text: next(iter(check(text)), None)


subdomain = _format("dns1123Subdomain")
label = _format("dns1123Label")
label_1035 = _format("dns1035Label")
qualified_name = _format("qualifiedName")  # of labels, annotations, finalizers
label_value = _format("labelValue")


def path_segment(name: str) -> str | None:
    """Names of RBAC objects: anything that fits into one part of a URL."""
    if name in (".", ".."):
        return f"may not be '{name}'"
    return next((f"may not contain '{letter}'" for letter in "/%" if letter in name), None)


def data_key(key: str) -> str | None:
    """Keys of config maps and secrets, which may become file names."""
    if len(key) > 253:
        return "must be no more than 253 characters"
    if not _DATA_KEY.fullmatch(key):
        return (
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or "
            "'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
        )
    if key == "." or key.startswith(".."):
        return f"must not be '{key}'" if key in (".", "..") else "must not start with '..'"
    return None


# --- rules: each yields the faults of a value at a path ---


def entries(obj: Json, field: str, path: str = "") -> Iterator[tuple[str, Json]]:
    """The entries of a list that may be missing, each with its path."""
    for index, entry in enumerate(obj.get(field) or ()):
        yield f"{below(path, field)}[{index}]", entry


def below(path: str, field: str) -> str:
    """The path of a field; an empty path is that of the object."""
    return f"{path}.{field}" if path else field


def has_form(value: str, path: str, rule: NameRule) -> Errors:
    if why := rule(value):
        yield faults.invalid(path, value, why)


def needs(obj: Json, path: str, *fields: str) -> Errors:
    """A fault for each of the fields that is missing or empty."""
    yield from (faults.required(below(path, field)) for field in fields if not obj.get(field))


def one_of(value: Any, path: str, known: Collection[str]) -> Errors:
    if value not in known:
        yield faults.not_supported(path, value, known)


def not_negative(obj: Json, path: str, *fields: str) -> Errors:
    """A fault for each of the fields that is less than 0."""
    for field in fields:
        if obj.get(field, 0) < 0:
            yield faults.invalid(below(path, field), obj[field], "must be greater than or equal to 0")


def not_seen(identity: Hashable, seen: set[Any], path: str, value: Any) -> Errors:
    """A fault for an identity that came before; ``value`` is what the fault shows."""
    if identity in seen:
        yield faults.duplicate(path, value)
    seen.add(identity)


def unchanged(obj: Json, old: Json, path: str, *fields: str) -> Errors:
    for field in fields:
        if obj.get(field) != old.get(field):
            yield faults.immutable(below(path, field), obj.get(field))


def validate_metadata(meta: Json, name_rule: NameRule, *, is_custom: bool = False) -> Errors:
    """Faults of the metadata that a client controls."""
    if not meta.get("name"):
        yield faults.required("metadata.name", "name or generateName is required")
    else:
        yield from has_form(meta["name"], "metadata.name", name_rule)
    yield from validate_labels(meta.get("labels"), "metadata.labels")
    annotations: dict[str, str] = meta.get("annotations") or {}
    for key in annotations:
        if why := qualified_name(key.lower()):
            yield faults.invalid("metadata.annotations", key, why)
    if sum(len(key) + len(value) for key, value in annotations.items()) > _ANNOTATIONS_BYTES:
        yield faults.too_long("metadata.annotations", _ANNOTATIONS_BYTES)
    for index, finalizer in enumerate(meta.get("finalizers") or ()):
        why = qualified_name(finalizer)
        if not why and "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS and not is_custom:
            why = "name is neither a standard finalizer name nor is it fully qualified"
        if why:
            yield faults.invalid(f"metadata.finalizers[{index}]", finalizer, why)
    yield from _owners(meta.get("ownerReferences") or [])


def validate_labels(labels: dict[str, str] | None, path: str) -> Errors:
    for key, value in (labels or {}).items():
        yield from has_form(key, path, qualified_name)
        yield from has_form(value, path, label_value)


def _owners(owners: list[Json]) -> Errors:
    controllers = []
    for owner in owners:
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                yield faults.invalid(f"metadata.ownerReferences.{field}", owner.get(field, ""), "must not be empty")
        if owner.get("controller"):
            controllers.append(f"{owner.get('kind', '')}/{owner.get('name', '')}")
    if len(controllers) > 1:
        said = 'Only one reference can have Controller set to true. Found "true" in references for '
        said += " and ".join(controllers)
        yield faults.invalid("metadata.ownerReferences", owners, said)


def dig(obj: Any, path: str) -> Any:
    """The value at a dotted path, None when any part is missing."""
    for part in path.split("."):
        if not isinstance(obj, dict):
            return None
        obj = obj.get(part)
    return obj


_DRA = "resource.k8s.io"
_SCHEDULING = "scheduling.k8s.io"
_STORED_AS = {_DRA: f"{_DRA}/v1", _SCHEDULING: f"{_SCHEDULING}/v1beta1"}
_RESHAPED = frozenset({"deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"})

# events.k8s.io/v1 field: core/v1 field
_EVENT_FIELDS: Mapping[str, str] = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_EVENT_FIELDS_BACK = {core: new for new, core in _EVENT_FIELDS.items()}


def is_stored_shape(resource: Resource) -> bool:
    """Whether objects of this resource look as they are stored."""
    if resource.group == _DRA:
        return resource.version != "v1beta1" or resource.plural not in _RESHAPED
    return resource.group != "events.k8s.io" and (resource.group, resource.version) != (_SCHEDULING, "v1alpha2")


def to_stored(resource: Resource, obj: Json) -> Json:
    """An object as a client sent it, in the stored shape."""
    if is_stored_shape(resource):
        return obj
    if resource.group in _STORED_AS:
        return conversion.convert(obj, _STORED_AS[resource.group])
    return {stored_name(resource, key): value for key, value in obj.items()}


def stored_name(resource: Resource, field: str) -> str:
    """What a member of an object is called as it is stored."""
    return _EVENT_FIELDS.get(field, field) if resource.group == "events.k8s.io" else field


def to_served(resource: Resource, obj: Json) -> Json:
    """A stored object (apiVersion and kind may be missing) as the resource's version has it."""
    if not is_stored_shape(resource):
        if stored := _STORED_AS.get(resource.group):
            obj = conversion.convert({**obj, "apiVersion": stored, "kind": resource.kind}, resource.api_version)
        else:
            obj = {_EVENT_FIELDS_BACK.get(key, key): value for key, value in obj.items()}
    rest = {key: value for key, value in obj.items() if key not in ("kind", "apiVersion")}
    return {"kind": resource.kind, "apiVersion": resource.api_version, **rest}


def data_of(resource: Resource, stored: Stored) -> bytes:
    """The encoded object without ``{`` and the two members that name its version."""
    if is_stored_shape(resource):
        return stored.data
    served = to_served(resource, stored.decode())
    return orjson.dumps({key: value for key, value in served.items() if key not in ("kind", "apiVersion")})[1:]


def prefix_of(resource: Resource) -> bytes:
    """What `data_of` leaves out."""
    return b'{"kind":"%s","apiVersion":"%s",' % (resource.kind.encode(), resource.api_version.encode())
