"""What an API server has against a slice: told by its answer, or found before anything is published.

The API server names a place by its path, ``spec.devices[3].attributes[model].string``. The driver knows no third
device, it knows ``gpu-3``. A field whose feature is switched off, or which the release of the server does not know, is
dropped silently. Spec: RS-06, K37-ONO-13.

The publisher does not check its slices, because a newer server may allow more. A driver whose pools come from a
configuration file checks when it starts, where an error still reaches the administrator. Spec: plugin-helper.md 4.3
and 4.7.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import NamedTuple

from dra_api.meta import ObjectMeta
from dra_api.resource import Device, ResourceSlice, ResourceSliceSpec
from dra_api.validation import validate_resource_slice

from dra_kubeletplugin.errors import PoolInvalid
from dra_kubeletplugin.slices.desired_pool import DesiredPool
from dra_kubeletplugin.slices.model import Owner, Resources, Slice
from dra_kubeletplugin.slices.plan import Publication, plan_pool

_SHOWN_DEVICES = 5
_DEVICE = re.compile(r"spec\.devices\[(?P<index>\d+)\](?:\.(?P<list>attributes|capacity)\[(?P<key>[^\]]*)\])?")
_KINDS = {"attributes": "attribute", "capacity": "capacity"}

_SPLIT = "let Pool.of split them into slices"
_REMEDIES = [
    (r"spec\.devices: Too many", _SPLIT),
    (r"spec\.sharedCounters: Too many", _SPLIT),
    (r"only one of `sharedCounters` or `devices`", _SPLIT),
    (r"`perDeviceNodeSelection`", "choose one way to say which nodes reach the devices"),
    (r"attributes and capacities must not exceed", "leave out what no selector asks for"),
    (r"attribute values must not exceed", "shorten its lists"),
    (r"\.version: Invalid", 'write it as in "1.2.3", or make it a string'),
    (r"DNS|RFC 1123|C identifier", "rename it"),
    (r"int64", "make it a string, or use a larger unit"),
    (r"Too long", "shorten it"),
    (r"Too many", "leave some out"),
    (r"Duplicate", "give each its own name"),
    (r"Required", "set it"),
]
_OTHERWISE = "change what the driver publishes"
_WITHOUT_FIELD = "change what the driver publishes, or the policy that refuses it"


class PublishError(NamedTuple):
    """One thing that is wrong: the path of a field, and what is wrong with it."""

    field: str
    message: str


def described(pool: str, index: int, devices: Sequence[Device], faults: Iterable[PublishError]) -> str:
    """One sentence for a slice of a pool with faults."""
    texts = list(dict.fromkeys(_described(devices, fault) for fault in faults))
    if len(texts) > _SHOWN_DEVICES:
        texts[_SHOWN_DEVICES:] = [f"and {len(texts) - _SHOWN_DEVICES} more"]
    return f'pool "{pool}", slice #{index}: {"; ".join(texts)}'


def _described(devices: Sequence[Device], fault: PublishError) -> str:
    if not fault.field:
        return f"{fault.message} ({_WITHOUT_FIELD})"
    text = f"{fault.field}: {fault.message}"
    remedy = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, text)), _OTHERWISE)
    return f"{_place(devices, fault.field)}{text} ({remedy})"


def _place(devices: Sequence[Device], field: str) -> str:
    match = _DEVICE.match(field)
    if match is None or int(match["index"]) >= len(devices):
        return ""
    part = f', {_KINDS[match["list"]]} "{match["key"]}"' if match["list"] else ""
    return f'device "{devices[int(match["index"])].name}"{part}: '


def disabled_features(sent: Slice, stored: Slice) -> list[str]:
    """Feature gates that are probably off, to judge by the fields missing in ``stored``; never empty."""
    found = {
        gate
        for gate, missing in (
            ("DRAPartitionableDevices", sent.per_device_node_selection and not stored.per_device_node_selection),
            ("DRAPartitionableDevices", len(sent.shared_counters) > len(stored.shared_counters)),
            ("DRAOptionalNodeOperations", len(sent.skip_node_operations) > len(stored.skip_node_operations)),
        )
        if missing
    }
    kept = {device.name: device for device in stored.devices}
    for device in sent.devices:
        found |= set(_of_device(device, kept.get(device.name, Device())))
    return sorted(found) or ["unknown"]


def _of_device(sent: Device, stored: Device) -> Iterable[str]:
    if _count(sent.taints) > _count(stored.taints):
        yield "DRADeviceTaints"
    selection = (sent.node_name, sent.node_selector, sent.all_nodes)
    stored_selection = (stored.node_name, stored.node_selector, stored.all_nodes)
    if _count(sent.consumes_counters) > _count(stored.consumes_counters) or selection != stored_selection:
        yield "DRAPartitionableDevices"
    if (
        _count(sent.binding_conditions) > _count(stored.binding_conditions)
        or _count(sent.binding_failure_conditions) > _count(stored.binding_failure_conditions)
        or sent.binds_to_node != stored.binds_to_node
    ):
        yield "DRADeviceBindingConditions"
    policies = [capacity.request_policy for capacity in (sent.capacity or {}).values() if capacity.request_policy]
    kept_policies = [
        capacity.request_policy for capacity in (stored.capacity or {}).values() if capacity.request_policy
    ]
    if sent.allow_multiple_allocations != stored.allow_multiple_allocations or len(policies) > len(kept_policies):
        yield "DRAConsumableCapacity"
    if _groups(sent) > _groups(stored) and stored.consumes_counters:
        yield "DRADeviceCompatibilityGroups"
    if _lists(sent) > _lists(stored):
        yield "DRAListTypeAttributes"
    if _count(sent.node_allocatable_resource_mappings) > _count(stored.node_allocatable_resource_mappings) or (
        _count(sent.node_allocatable_resources) > _count(stored.node_allocatable_resources)
    ):
        yield "DRANodeAllocatableResources"


def _count(items: Sized | None) -> int:
    return len(items) if items else 0


def _groups(device: Device) -> int:
    return sum(_count(consumption.compatibility_groups) for consumption in device.consumes_counters or ())


def _lists(device: Device) -> int:
    return sum(bool(a.ints or a.bools or a.strings or a.versions) for a in (device.attributes or {}).values())


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
