"""Feature gates of the API, with the defaults of Kubernetes 1.36. Spec: api.md section 2.

A gate decides which fields exist: one that is off makes the API server drop its fields on write,
unless the stored object used them before.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct, field


class UnknownGate(ValueError):
    """A feature gate has a name or a value that does not exist; the message names it."""


class FeatureGates(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which optional features of Dynamic Resource Allocation are on."""

    dynamic_resource_allocation: bool = field(default=True, name="DynamicResourceAllocation")
    admin_access: bool = field(default=True, name="DRAAdminAccess")
    prioritized_list: bool = field(default=True, name="DRAPrioritizedList")
    device_status: bool = field(default=True, name="DRAResourceClaimDeviceStatus")
    scheduler_filter_timeout: bool = field(default=True, name="DRASchedulerFilterTimeout")
    consumable_capacity: bool = field(default=True, name="DRAConsumableCapacity")
    device_binding_conditions: bool = field(default=True, name="DRADeviceBindingConditions")
    device_taints: bool = field(default=True, name="DRADeviceTaints")
    device_taint_rules: bool = field(default=False, name="DRADeviceTaintRules")
    extended_resource: bool = field(default=True, name="DRAExtendedResource")
    partitionable_devices: bool = field(default=True, name="DRAPartitionableDevices")
    granular_status_authorization: bool = field(default=True, name="DRAResourceClaimGranularStatusAuthorization")
    list_type_attributes: bool = field(default=False, name="DRAListTypeAttributes")
    node_allocatable_resources: bool = field(default=False, name="DRANodeAllocatableResources")
    resource_pool_status: bool = field(default=False, name="DRAResourcePoolStatus")
    workload_resource_claims: bool = field(default=False, name="DRAWorkloadResourceClaims")
    generic_workload: bool = field(default=False, name="GenericWorkload")

    @property
    def binding_conditions(self) -> bool:
        """Binding conditions need a place in the claim's status to be reported in, hence both gates."""
        return self.device_binding_conditions and self.device_status

    @classmethod
    def of(cls, gates: Mapping[str, object]) -> FeatureGates:
        """The defaults with these gates changed, by their Kubernetes names. Raises UnknownGate."""
        names = sorted(field.encode_name for field in msgspec.structs.fields(cls))
        if unknown := sorted(gates.keys() - set(names)):
            raise UnknownGate(f"unknown feature gates {', '.join(unknown)}; known are {', '.join(names)}")
        if wrong := sorted(name for name, value in gates.items() if not isinstance(value, bool)):
            raise UnknownGate(f"neither true nor false: {', '.join(wrong)}")
        return msgspec.convert(dict(gates), cls)
