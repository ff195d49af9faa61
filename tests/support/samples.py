"""Valid objects of every kind, how to spoil them one field at a time, errors as short texts, lists in parts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

from dra_api.codec import DecodeError, convert, decode_item, raw_list
from dra_api.meta import Object
from dra_api.resource import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourcePoolStatusRequest,
    ResourceSlice,
)
from dra_api.validation import FieldError

K = TypeVar("K", bound=Object)
META = {"name": "x", "resourceVersion": "1"}
ID = {"driver": "d.example.com", "pool": "p", "device": "a"}
CONDITION = {"type": "T", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}
SLICE: dict[str, Any] = {
    "metadata": META,
    "spec": {
        "driver": "d.example.com",
        "pool": {"name": "p", "resourceSliceCount": 1},
        "nodeName": "n",
        "devices": [
            {
                "name": "a",
                "attributes": {"model": {"string": "m"}},
                "capacity": {"memory": {"value": "10Gi"}},
                "taints": [{"key": "k", "effect": "NoSchedule"}],
            }
        ],
    },
}
CLAIM: dict[str, Any] = {
    "metadata": {**META, "namespace": "ns"},
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "r",
                    "exactly": {
                        "deviceClassName": "c",
                        "allocationMode": "ExactCount",
                        "count": 1,
                        "selectors": [{"cel": {"expression": "true"}}],
                        "tolerations": [{"operator": "Exists"}],
                    },
                },
                {
                    "name": "s",
                    "firstAvailable": [{"name": "t", "deviceClassName": "c", "allocationMode": "All"}],
                },
            ],
            "constraints": [{"requests": ["r", "s/t"], "matchAttribute": "a.b/c"}],
            "config": [{"requests": ["s"], "opaque": {"driver": "d", "parameters": {}}}],
        }
    },
    "status": {
        "allocation": {
            "devices": {
                "results": [{"request": "s/t", **ID}],
                "config": [{"source": "FromClaim", "opaque": {"driver": "d", "parameters": {}}}],
            },
            "nodeSelector": {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
                ]
            },
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
        "devices": [{**ID, "conditions": [CONDITION], "data": {"a": 1}, "networkData": {"ips": ["10.0.0.1/24"]}}],
    },
}
CLASS: dict[str, Any] = {"metadata": META, "spec": {"selectors": [{"cel": {"expression": "true"}}], "config": []}}
TEMPLATE: dict[str, Any] = {"metadata": CLAIM["metadata"], "spec": {"spec": CLAIM["spec"]}}
RULE: dict[str, Any] = {"metadata": META, "spec": {"taint": {"key": "k", "effect": "NoExecute"}}}
POOL_STATUS: dict[str, Any] = {
    "metadata": META,
    "spec": {"driver": "d", "limit": 1},
    "status": {
        "poolCount": 1,
        "pools": [{"driver": "d", "poolName": "p", "generation": 0, "resourceSliceCount": 1}],
        "conditions": [CONDITION],
    },
}

SAMPLES: dict[type[Object], dict[str, Any]] = {
    ResourceSlice: SLICE,
    ResourceClaim: CLAIM,
    DeviceClass: CLASS,
    ResourceClaimTemplate: TEMPLATE,
    DeviceTaintRule: RULE,
    ResourcePoolStatusRequest: POOL_STATUS,
}


def raw_sample(kind: type[Object], changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """A valid object as plain JSON with other values at paths such as ``spec.devices.0.name``.

    A value of ``...`` removes the field; a function is applied to the value that is there.
    """
    obj = copy.deepcopy(SAMPLES[kind])
    for path, value in (changes or {}).items():
        part: Any = obj
        *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
        for step in steps:
            part = part[step] if isinstance(step, int) else part.setdefault(step, {})
        if value is ...:
            del part[last]
        else:
            part[last] = value(part[last]) if callable(value) else copy.deepcopy(value)
    return obj


def sample(kind: type[K], changes: dict[str, Any] | None = None) -> K:
    """The same, decoded."""
    return convert(kind, raw_sample(kind, changes))


def found(errors: list[FieldError]) -> list[str]:
    """Errors as short texts, sorted, each once: ``Required spec.driver``."""
    return sorted({f"{error.type.removeprefix('FieldValue')} {error.field}" for error in errors})


T = TypeVar("T")


def decode_list(
    type_: type[T], data: bytes, reshape: Callable[[dict[str, Any]], dict[str, Any]] | None = None
) -> tuple[list[T], list[tuple[bytes, DecodeError]], dict[str, Any]]:
    """Return the good items, the bad ones with their errors, and the metadata of the list."""
    envelope = raw_list(data)
    good: list[T] = []
    bad: list[tuple[bytes, DecodeError]] = []
    for raw in envelope.items or ():
        try:
            good.append(decode_item(type_, raw, is_cut=envelope.is_cut, reshape=reshape))
        except DecodeError as error:
            bad.append((bytes(raw), error))
    return good, bad, envelope.metadata
