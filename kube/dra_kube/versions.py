"""Objects in the shape we work with, whatever version the server speaks."""

from __future__ import annotations

from typing import Any

from dra_api import conversion
from dra_api.api_resources import Resource

Object = dict[str, Any]


def from_served(resource: Resource, version: str, obj: Object) -> Object:
    """An object of the server in the shape of the resource's first version."""
    if version == resource.versions[0]:
        return obj
    return conversion.convert(obj, resource.api_version())


def listed_item(resource: Resource, version: str, item: Object) -> Object:
    """Return an item of a list, which leaves out its kind, in the shape of the resource's first version."""
    return from_served(resource, version, {**item, "kind": resource.kind, "apiVersion": resource.api_version(version)})


def to_served(resource: Resource, version: str, obj: Object) -> Object:
    """One of our objects in the shape of the version that the server serves."""
    if version == resource.versions[0]:
        return obj
    return conversion.convert(obj, resource.api_version(version))
