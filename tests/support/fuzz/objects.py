"""Objects of the API, and the expressions in them: decoded, validated, taken into the operator's view, decided on."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from dra_api import conversion, validation
from dra_api.codec import DecodeError, convert, encode
from dra_api.core import Pod
from dra_api.defaults import set_defaults
from dra_api.meta import LabelSelector as LabelSelectorField
from dra_api.meta import Object
from dra_api.quantity import parse_quantity
from dra_api.releases.gates import FeatureGates
from dra_api.resource import (
    Device,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourcePoolStatusRequest,
    ResourceSlice,
)
from dra_api.selectors import Selector as LabelSelector
from dra_api.values import Version
from dra_cel import admission_policies, compile, prepare, selector_check
from dra_cel.selector import Program
from dra_kube import RESOURCE_CLAIMS
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Features, Inventory
from dra_operator.cache import Cluster
from dra_operator.sources.kinds import WATCHED
from dra_operator.sources.malformed import MalformedObjects
from listed import decode_list

NOW: Final = "2026-01-01T00:00:00Z"
_KINDS: Final = {resource.kind: (resource, kind) for resource, kind in WATCHED.items()}
_VERSIONS: Final = ("resource.k8s.io/v1beta1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1")
_CHECKS: Final[dict[type[Object], Callable[..., Any]]] = {
    ResourceClaim: lambda claim: (
        validation.validate_resource_claim(claim, gates=FeatureGates.of({}), check_selector=selector_check()),
        validation.validate_resource_claim_status(claim, claim),
    ),
    ResourceClaimTemplate: lambda template: validation.validate_resource_claim_template(
        template, gates=FeatureGates.of({}), check_selector=selector_check()
    ),
    DeviceClass: lambda it: validation.validate_device_class(it, check_selector=selector_check()),
    ResourceSlice: validation.validate_resource_slice,
    DeviceTaintRule: validation.validate_device_taint_rule,
    ResourcePoolStatusRequest: validation.validate_resource_pool_status_request,
    Pod: lambda pod: (validation.validate_pod_claims(pod), validation.validate_pod_claim_status(pod)),
}


def take_in(data: bytes) -> None:
    """A list of objects as an operator reads them: the good ones enter its view, the others its quarantine."""
    document = _json(data)
    inventory = Inventory(Features(), language=CelSelectors(Features()))
    cluster = Cluster(inventory)
    quarantine = MalformedObjects(cluster.allocated_devices.stored)
    for item in document if isinstance(document, list) else [document]:
        said = item.get("kind") if isinstance(item, dict) else None
        resource, kind = _KINDS.get(str(said), (RESOURCE_CLAIMS, ResourceClaim))
        try:
            cluster.apply(convert(kind, item))
        except (DecodeError, UnicodeEncodeError) as error:
            quarantine.take(resource, item, error)


def validate(data: bytes) -> None:
    """An object as the API server reads it: defaults, every version, validation."""
    document = _json(data)
    if not isinstance(document, dict) or str(document.get("kind")) not in _KINDS:
        return
    set_defaults(document, now=NOW)
    for version in _VERSIONS:
        with suppress(conversion.ConversionError):  # some kinds have fewer versions
            conversion.convert(document, version)
    _, kind = _KINDS[document["kind"]]
    obj = convert(kind, document)
    encode(obj)
    if kind in _CHECKS:
        _CHECKS[kind](obj)


def read_list(data: bytes) -> None:
    """The answer to a LIST of the newest version, and of an earlier one."""
    decode_list(ResourceSlice, data)
    earlier = {"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1beta1"}
    decode_list(ResourceSlice, data, lambda item: conversion.convert({**item, **earlier}, "resource.k8s.io/v1"))


def quantity(data: bytes) -> None:
    """A quantity, what is made of it, and that its own text means the same."""
    found = parse_quantity(data.decode())
    assert parse_quantity(str(found)) == found, str(found)
    assert found + found - found == found
    found.rounded_up()


def version(data: bytes) -> None:
    """A semantic version."""
    Version(data.decode())


_DEVICE: Final = prepare(
    "gpu.example.com",
    convert(
        Device,
        {
            "name": "gpu-0",
            "attributes": {
                "model": {"string": "A100"},
                "index": {"int": 3},
                "ecc": {"bool": True},
                "driverVersion": {"version": "1.2.3"},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
            },
            "capacity": {"memory": {"value": "40Gi"}},
        },
    ),
)
_OBJECT: Final = {"metadata": {"name": "a", "labels": {"a": "b"}}, "spec": {"nodeName": "n", "list": [1, 2.5, None]}}


def selector(data: bytes) -> None:
    """A device selector. The fast form and the exact machine agree."""
    made = compile(data.decode())
    value, _ = made.explain(_DEVICE)
    matched = made.matches(_DEVICE)
    assert matched is value, (matched, value)


def policy(data: bytes) -> None:
    """An expression of an admission policy."""
    program = Program(data.decode(), admission_policies(result=None))
    assert program.max_cost >= 0
    bindings = {"object": _OBJECT, "oldObject": None, "params": _OBJECT, "namespaceObject": None, "variables": {}}
    program.evaluate({**bindings, "request": {"operation": "CREATE", "userInfo": {"username": "u"}}})


def labels(data: bytes) -> None:
    """A label selector of an object."""
    LabelSelector.of(convert(LabelSelectorField, _json(data)))


def _json(data: bytes) -> Any:
    """What the decoders get, which see parsed JSON; None for what is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
