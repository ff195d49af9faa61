"""Which device class serves an extended resource.

A class may name an extended resource, and always serves the implicit
``deviceclass.resource.kubernetes.io/<class>``. All answers follow from the classes as they are now, so the order of
events does not matter. Spec: scheduling.md section 7.1.
"""

from __future__ import annotations

from collections.abc import Iterable

from dra_api.resource import EXTENDED_RESOURCE_PREFIX, DeviceClass
from dra_api.validation.formats import is_extended_resource


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
