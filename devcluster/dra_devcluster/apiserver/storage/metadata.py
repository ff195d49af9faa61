"""The metadata of objects (names, labels, owners): what the server fills in, and what it refuses."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from dra_devcluster.apiserver import faults
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.structure import Fault

NameRule = Callable[[str], str | None]  # why the name is refused, or None

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", re.ASCII)
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


def subdomain(name: str) -> str | None:
    if len(name) > 253:
        return "must be no more than 253 characters"
    if not _SUBDOMAIN.fullmatch(name):
        return (
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
            "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
            "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
        )
    return None


def label(name: str) -> str | None:
    if len(name) > 63:
        return "must be no more than 63 characters"
    if not _LABEL.fullmatch(name):
        return (
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and "
            "end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
            "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
        )
    return None


def label_1035(name: str) -> str | None:
    if len(name) > 63:
        return "must be no more than 63 characters"
    if not _LABEL_1035.fullmatch(name):
        return (
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
            "character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for "
            "validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
        )
    return None


def path_segment(name: str) -> str | None:
    """Names of RBAC objects: anything that fits into one part of a URL."""
    if name in (".", ".."):
        return f"may not be '{name}'"
    return next((f"may not contain '{letter}'" for letter in "/%" if letter in name), None)


def qualified_name(name: str) -> str | None:
    """Label keys, annotation keys, finalizers."""
    prefix, slash, short = name.rpartition("/")
    if slash and subdomain(prefix):
        return "prefix part " + str(subdomain(prefix))
    if not short:
        return "name part must be non-empty"
    if len(short) > 63:
        return "name part must be no more than 63 characters"
    if not _QUALIFIED.fullmatch(short):
        return (
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
            "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
            "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
        )
    return None


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


def label_value(value: str) -> str | None:
    if len(value) > 63:
        return "must be no more than 63 characters"
    if not _VALUE.fullmatch(value):
        return (
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
            "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
            "for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
        )
    return None


def validate_metadata(meta: Json, name_rule: NameRule, *, is_custom: bool = False) -> Iterator[Fault]:
    """Faults of the metadata that a client controls."""
    if not meta.get("name"):
        yield faults.required("metadata.name", "name or generateName is required")
    elif why := name_rule(meta["name"]):
        yield faults.invalid("metadata.name", meta["name"], why)
    yield from validate_labels(meta.get("labels"), "metadata.labels")
    yield from _annotations(meta.get("annotations") or {})
    for index, finalizer in enumerate(meta.get("finalizers") or ()):
        why = qualified_name(finalizer)
        if not why and "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS and not is_custom:
            why = "name is neither a standard finalizer name nor is it fully qualified"
        if why:
            yield faults.invalid(f"metadata.finalizers[{index}]", finalizer, why)
    yield from _owners(meta.get("ownerReferences") or [])


def validate_labels(labels: dict[str, str] | None, path: str) -> Iterator[Fault]:
    for key, value in (labels or {}).items():
        if why := qualified_name(key):
            yield faults.invalid(path, key, why)
        if why := label_value(value):
            yield faults.invalid(path, value, why)


def _annotations(annotations: dict[str, str]) -> Iterator[Fault]:
    size = 0
    for key, value in annotations.items():
        size += len(key) + len(value)
        if why := qualified_name(key.lower()):
            yield faults.invalid("metadata.annotations", key, why)
    if size > _ANNOTATIONS_BYTES:
        yield faults.too_long("metadata.annotations", _ANNOTATIONS_BYTES)


def _owners(owners: list[Json]) -> Iterator[Fault]:
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
