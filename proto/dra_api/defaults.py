"""Fills in what the writer of an object left out, as the API server does. Spec: api.md sections 11 and 12.

Changes plain dicts in place, in the shape of the version in which the object was sent: v1beta1 has the fields of a
request and of a device in other places, and fills in the mode of a request only if the request names a class. The time
is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from .conversion import JSON

REPORTED_POOLS: Final = 100


def set_defaults(obj: JSON, *, now: str) -> None:
    """Fills in what is missing; ``now`` is an RFC 3339 time in whole seconds (``2026-01-02T03:04:05Z``)."""
    flat = str(obj.get("apiVersion")).endswith("/v1beta1")
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        spec = {}  # what is filled in there is lost, as nothing can be of a spec that is no object
    match obj.get("kind"):
        case "ResourceClaim":
            _claim_spec(spec, flat)
            for result in _dicts(obj, "status", "allocation", "devices", "results"):
                _tolerations(result)
        case "ResourceClaimTemplate":
            if isinstance(spec.get("spec"), dict):
                _claim_spec(spec["spec"], flat)
        case "ResourceSlice":
            for device in _dicts(spec, "devices"):
                _device(device.get("basic") if flat else device, now)
        case "DeviceTaintRule":
            if isinstance(spec.get("taint"), dict):
                _fill(spec["taint"], "timeAdded", now)
        case "PodGroup":
            is_alpha = str(obj.get("apiVersion")).endswith("/v1alpha2")
            _fill(spec, "disruptionMode", "Pod" if is_alpha else {"single": {}})
        case "ResourcePoolStatusRequest":
            _fill(spec, "limit", REPORTED_POOLS)


def _claim_spec(spec: JSON, flat: bool) -> None:
    for request in _dicts(spec, "devices", "requests"):
        wanted = request if flat else request.get("exactly")
        if isinstance(wanted, dict):
            if not flat or wanted.get("deviceClassName"):
                _allocation_mode(wanted)
            _tolerations(wanted)
        for alternative in _dicts(request, "firstAvailable"):
            _allocation_mode(alternative)
            _tolerations(alternative)


def _allocation_mode(request: JSON) -> None:
    _fill(request, "allocationMode", "ExactCount")
    if request["allocationMode"] == "ExactCount":
        _fill(request, "count", 1)


def _tolerations(item: JSON) -> None:
    for toleration in _dicts(item, "tolerations"):
        _fill(toleration, "operator", "Equal")


def _device(device: Any, now: str) -> None:
    for taint in _dicts(device, "taints"):
        _fill(taint, "timeAdded", now)
    mappings = device.get("nodeAllocatableResourceMappings") if isinstance(device, dict) else None
    for mapping in mappings.values() if isinstance(mappings, dict) else ():
        if isinstance(mapping, dict):
            _fill(mapping, "allocationMultiplier", "1")


def _fill(item: JSON, name: str, value: object) -> None:
    """Sets what is missing, null, empty or zero, which are the same to the API."""
    current = item.get(name)
    if current is None or current == "" or (name == "count" and current == 0):
        item[name] = value


def _dicts(value: Any, *path: str) -> Iterator[JSON]:
    """The dicts in the list at the path; none if there is no such list, which validation reports."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict):
            yield item
