"""Which optional behaviours are on: the feature gates that the allocator knows (allocator.md section 14)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_FIELDS: Final = {
    "DRAAdminAccess": "admin_access",
    "DRAPrioritizedList": "prioritized_list",
    "DRAPartitionableDevices": "partitionable_devices",
    "DRADeviceTaints": "device_taints",
    "DRADeviceTaintRules": "taint_rules",
    "DRAConsumableCapacity": "consumable_capacity",
    "DRAListTypeAttributes": "list_attributes",
    "DRAExtendedResource": "extended_resources",
    "DRASchedulerFilterTimeout": "filter_timeout",
    "DRAResourcePoolStatus": "pool_status",
}
_BINDING_GATES: Final = {"DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus"}

GATES: Final = frozenset(_FIELDS) | _BINDING_GATES
"""The gates that matter here."""


@dataclass(frozen=True, slots=True)
class Features:
    """The gates as fields; ``Features()`` is what Kubernetes 1.36 enables by default."""

    admin_access: bool = True
    prioritized_list: bool = True
    partitionable_devices: bool = True
    device_taints: bool = True
    taint_rules: bool = False
    """Not used by the allocator: without it the operator hands it no DeviceTaintRules."""
    pool_status: bool = False
    """Not for the allocator itself: ResourcePoolStatusRequests are answered."""
    consumable_capacity: bool = True
    binding_conditions: bool = True
    """DRADeviceBindingConditions and DRAResourceClaimDeviceStatus, which only work together."""
    list_attributes: bool = False
    """Constraints compare list-valued attributes as sets."""
    extended_resources: bool = True
    """Not used by the allocator: pods get a claim for the extended resources that classes serve."""
    filter_timeout: bool = True
    """Not used by the allocator: its caller has a clock, and ends a decision that takes too long."""

    @classmethod
    def from_gates(cls, gates: Iterable[str]) -> Features:
        """Exactly these gates are on; gates that do not concern the allocator are ignored."""
        names = set(gates)
        known = {field: gate in names for gate, field in _FIELDS.items()}
        return cls(**known, binding_conditions=names >= _BINDING_GATES)

    @property
    def basic(self) -> bool:
        """The reference answers with its stable implementation.

        It knows neither ``distinctAttribute``, which it calls an empty constraint, nor capacity requests, which it
        ignores. The newer implementations refuse both while the gate is off.
        """
        return not (self.binding_conditions or self.consumable_capacity or self.list_attributes)
