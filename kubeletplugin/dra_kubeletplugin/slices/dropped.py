"""Tells which feature is off when the API server stores less than it was sent.

A field whose feature is switched off, or which the release of the server does not know, is dropped silently. Spec:
RS-06, K37-ONO-13.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized

from dra_api.resource import Device

from .model import Slice


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
