"""ResourceQuotas: how many claims, and how many devices of a class, a namespace may have.

A claim is charged with the devices that it asks for: by class (``<class>.deviceclass.resource.k8s.io/devices``) and
under the names of extended resources that stand for the class. ``All`` is charged as the most that a claim may get,
alternatives as the dearest of each class. Spec: api.md section 11.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from dra_api.meta import Object, Part
from dra_api.resource import (
    EXTENDED_RESOURCE_PREFIX,
    MOST_RESULTS,
    DeviceClaim,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaim,
)
from dra_api.values.quantity import NANO, Quantity

CLAIM_COUNT: Final = "count/resourceclaims.resource.k8s.io"
DEVICES_OF_CLASS: Final = ".deviceclass.resource.k8s.io/devices"


class ResourceQuotaSpec(Part, frozen=True):
    hard: dict[str, Quantity] | None = None
    scopes: tuple[str, ...] | None = None
    scope_selector: dict[str, Any] | None = None


class ResourceQuotaStatus(Part, frozen=True):
    used: dict[str, Quantity] | None = None


class ResourceQuota(Object, frozen=True):
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


def charges(claim: ResourceClaim, extended_resource: Callable[[str], str]) -> Counter[str]:
    """What a claim is charged with. ``extended_resource``: the resource that a class names, or an empty text."""
    charged = Counter({CLAIM_COUNT: 1})
    for name, amount in _devices(claim.spec.devices).items():
        charged[name + DEVICES_OF_CLASS] += amount
        charged[f"requests.{EXTENDED_RESOURCE_PREFIX}{name}"] += amount
        if extended := extended_resource(name):
            charged[f"requests.{extended}"] += amount
    return charged


def whole(amount: Quantity) -> int:
    """The amount, rounded up to a whole number."""
    return -(-amount.nanos // NANO)


def _devices(wanted: DeviceClaim) -> Counter[str]:
    """Devices by class, at most."""
    total: Counter[str] = Counter()
    for request in wanted.requests or ():
        dearest: Counter[str] = Counter()
        for choice in request.first_available or (request.exactly,):
            if choice is not None:
                dearest |= Counter({choice.device_class_name: _amount(choice)})
        total += dearest
    return total


def _amount(wanted: ExactDeviceRequest | DeviceSubRequest) -> int:
    if wanted.allocation_mode == "All":
        return MOST_RESULTS
    return wanted.count or 1 if wanted.allocation_mode in ("", "ExactCount") else 0
