"""What a ResourceQuota charges a claim, and which class serves an extended resource.

A class may name an extended resource, and always serves the implicit ``deviceclass.resource.kubernetes.io/<class>``.
A claim is charged with the devices that it asks for, by class (``<class>.deviceclass.resource.k8s.io/devices``) and
by the extended resources that stand for the class. ``All`` is charged as the most that a claim may get, alternatives
as the most expensive of each class. All answers follow from the classes as they are now. The order of events does not
matter.

Spec: scheduling.md section 7.1, api.md section 11.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from dra_api.meta import Object, Part
from dra_api.resource import (
    EXTENDED_RESOURCE_PREFIX,
    MOST_RESULTS,
    DeviceClaim,
    DeviceClass,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaim,
)
from dra_api.validation.formats import is_extended_resource
from dra_api.values import NANO, Quantity


def classes_by_resource(classes: Iterable[DeviceClass]) -> dict[str, str]:
    """The class behind each extended resource; of several classes the youngest, then the smaller name."""
    winners: dict[str, DeviceClass] = {}
    for device_class in classes:
        explicit, implicit = resources_of(device_class)
        if explicit and (explicit not in winners or _prevails(device_class, winners[explicit])):
            winners[explicit] = device_class
        winners[implicit] = device_class
    return {resource: device_class.metadata.name for resource, device_class in winners.items()}


def resources_of(device_class: DeviceClass) -> tuple[str, str]:
    """The resources that a class may serve: the one that it names, or an empty text, and the implicit one."""
    return device_class.spec.extended_resource_name or "", EXTENDED_RESOURCE_PREFIX + device_class.metadata.name


def may_be_devices(resource: str) -> bool:
    """Whether a class could serve the resource at all; ``cpu`` and the like are never devices."""
    return resource.startswith(EXTENDED_RESOURCE_PREFIX) or is_extended_resource(resource)


def _prevails(one: DeviceClass, other: DeviceClass) -> bool:
    created, other_created = one.metadata.creation_timestamp or "", other.metadata.creation_timestamp or ""
    return created > other_created or (created == other_created and one.metadata.name < other.metadata.name)


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
