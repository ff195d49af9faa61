"""Kubernetes objects from YAML and JSON files, as an API server would store them.

A file holds one object, several documents, or a List. Objects of older API versions are converted, defaults
are filled in, and what is not of a kind that matters here is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from dra_api import conversion
from dra_api.codec import DecodeError, convert
from dra_api.core import Node, Pod
from dra_api.defaults import set_defaults
from dra_api.meta import Object
from dra_api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice

Kind = TypeVar("Kind", bound=Object)
JSON = dict[str, Any]
KINDS: Final[dict[str, tuple[type[Object], str]]] = {
    "ResourceSlice": (ResourceSlice, "resource.k8s.io/v1"),
    "DeviceClass": (DeviceClass, "resource.k8s.io/v1"),
    "ResourceClaim": (ResourceClaim, "resource.k8s.io/v1"),
    "ResourceClaimTemplate": (ResourceClaimTemplate, "resource.k8s.io/v1"),
    "DeviceTaintRule": (DeviceTaintRule, "resource.k8s.io/v1beta2"),
    "Node": (Node, "v1"),
    "Pod": (Pod, "v1"),
}
NAMESPACED: Final = frozenset({"ResourceClaim", "ResourceClaimTemplate", "Pod"})


class BadInput(Exception):
    """A file cannot be read, or does not hold what it should; the message names file, object and field."""


def read_text(path: str) -> str:
    """The text of a file. Raises BadInput."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {error}") from error


def read_objects(paths: Iterable[str]) -> list[Object]:
    """All objects of the kinds above, in the order of the files. Raises BadInput, also when one is there twice."""
    objects: list[Object] = []
    found: dict[tuple[str, str], str] = {}
    for path in paths:
        for item in _items(path):
            made = _object(path, item)
            if made is not None:
                first = found.setdefault((item["kind"], made.key), path)
                if len(found) == len(objects):
                    raise BadInput(f"{path}: {item['kind']} {made.key} is there twice, first in {first}: remove one")
                objects.append(made)
    return objects


def of_kind(kind: type[Kind], objects: Iterable[Object]) -> list[Kind]:
    """Those of one kind."""
    return [found for found in objects if isinstance(found, kind)]


def _items(path: str) -> Iterator[JSON]:
    try:
        documents = list(yaml.safe_load_all(read_text(path)))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not YAML or JSON: {error or type(error).__name__}") from error
    for document in documents:
        if document is None:
            continue
        listed = document.get("items") if isinstance(document, dict) else document
        for position, item in enumerate(listed if isinstance(listed, list) else [document]):
            if not isinstance(item, dict) or not isinstance(item.get("kind"), str):
                raise BadInput(f"{path}: object {position}: expected a Kubernetes object with kind and apiVersion")
            yield item


def _object(path: str, item: JSON) -> Object | None:
    if item["kind"] not in KINDS:
        return None
    type_, version = KINDS[item["kind"]]
    metadata = item.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not name:
        raise BadInput(f"{path}: {item['kind']}: metadata.name is missing")
    if item["kind"] in NAMESPACED:
        item = {**item, "metadata": {"namespace": "default", **metadata}}
    try:
        set_defaults(item, now=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        return convert(type_, conversion.convert(item, version) if "/" in version else item)
    except (DecodeError, conversion.ConversionError, TypeError, UnicodeError) as error:
        raise BadInput(f"{path}: {item['kind']} {name}: {error}") from error
