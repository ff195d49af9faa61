"""Checks before publishing whether an API server of Kubernetes 1.36 accepts these pools.

The publisher does not check, because a newer server may allow more. A driver whose pools come from a configuration file
checks when it starts, where an error still reaches the administrator. Spec: plugin-helper.md 4.3
and 4.7.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_api.meta import ObjectMeta
from dra_api.resource import Device, ResourceSlice, ResourceSliceSpec
from dra_api.validation import validate_resource_slice

from dra_kubeletplugin.errors import PoolInvalid

from .desired_pool import DesiredPool
from .model import Owner, Resources
from .plan import Publication, plan_pool
from .publish_errors import PublishError, described

_INT64 = range(-(2**63), 2**63)


def check_resources(resources: Resources, *, driver: str, node_name: str = "") -> None:
    """Raise PoolInvalid if a slice would be refused; the message names pool, device, field, rule and remedy."""
    owner = Owner.node(node_name) if node_name else None
    for name, pool in resources.items():
        publication = Publication(driver, name, owner, node_name)
        for write in plan_pool(publication, DesiredPool(name, pool).pool(), ()).create:
            candidate = ResourceSlice(metadata=ObjectMeta(name="candidate"), spec=write.spec)
            faults = [PublishError(fault.field, fault.body) for fault in validate_resource_slice(candidate)]
            if faults := [*faults, *_too_large(write.spec)]:
                raise PoolInvalid(described(name, write.index, write.spec.devices or (), faults))


def _too_large(spec: ResourceSliceSpec) -> Iterator[PublishError]:
    """Numbers that the API server cannot even read: it holds them in 64 bits."""
    numbers = {"spec.pool.generation": spec.pool.generation}
    for index, device in enumerate(spec.devices or ()):
        numbers |= _numbers(device, f"spec.devices[{index}]")
    for path, number in numbers.items():
        if number not in _INT64:
            yield PublishError(path, f"Invalid value: {number}: must fit into an int64, from -2**63 to 2**63-1")


def _numbers(device: Device, path: str) -> dict[str, int]:
    return {
        f"{path}.attributes[{key}].{kind}": number
        for key, attribute in (device.attributes or {}).items()
        for kind, numbers in (("int", (attribute.int_,)), ("ints", attribute.ints or ()))
        for number in numbers
        if number is not None
    }
