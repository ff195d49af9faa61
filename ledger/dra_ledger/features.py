"""The rules in force: the feature gates of a release (allocator.md section 14), and how faults of it are taken.

``Semantics`` chooses between the documented and the real behaviour of the reference. ``Semantics()`` is the
documented behaviour (allocator.md section 15, column "intended"; scheduling.md 9). It is what the operator uses.
``Semantics.reference()`` answers as Kubernetes 1.36.2 does, for comparisons with recorded answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from dra_api.gates import GATE_OF, FeatureGates
from dra_api.releases import NEWEST, Release
from msgspec import Struct

_DEFAULTS: Final = FeatureGates.of({})


class Features(Struct, frozen=True):
    """The gates as fields; ``Features()`` is what the newest release that can be chosen enables by default."""

    release: Release = NEWEST
    """The release whose rules count where releases differ (allocator.md section 16)."""
    admin_access: bool = _DEFAULTS.admin_access
    prioritized_list: bool = _DEFAULTS.prioritized_list
    partitionable_devices: bool = _DEFAULTS.partitionable_devices
    compatibility_groups: bool = _DEFAULTS.compatibility_groups
    """Devices on one counter set need a compatibility group in common."""
    derived_attributes: bool = _DEFAULTS.derived_attributes
    """Requests compute attributes of devices, which constraints compare."""
    device_taints: bool = _DEFAULTS.device_taints
    taint_rules: bool = _DEFAULTS.taint_rules
    """Not used by the allocator: without it the operator hands it no DeviceTaintRules."""
    pool_status: bool = _DEFAULTS.pool_status
    """Not for the allocator itself: ResourcePoolStatusRequests are answered."""
    partition_types: bool = _DEFAULTS.partition_types
    """Not for the allocator itself: these answers count partitions by their types."""
    consumable_capacity: bool = _DEFAULTS.consumable_capacity
    fractional_capacity_ranges: bool = _DEFAULTS.fractional_capacity_ranges
    """Ranges of capacity policies count in thousandths where they can."""
    binding_conditions: bool = _DEFAULTS.binding_conditions
    """DRADeviceBindingConditions and DRAResourceClaimDeviceStatus, which only work together."""
    optional_node_operations: bool = _DEFAULTS.optional_node_operations
    """Devices whose driver the kubelet does not call are used, on nodes that declare the feature."""
    list_attributes: bool = _DEFAULTS.list_attributes
    """Constraints compare list-valued attributes as sets."""
    node_allocatable_resources: bool = _DEFAULTS.node_allocatable_resources
    """Not used by the allocator: devices bring resources of the node, or cost some."""
    extended_resources: bool = _DEFAULTS.extended_resources
    """Not used by the allocator: pods get a claim for the extended resources that classes serve."""
    generic_workload: bool = _DEFAULTS.generic_workload
    """Not for the allocator itself: pods may be members of PodGroups."""
    workload_resource_claims: bool = _DEFAULTS.workload_resource_claims
    """Not for the allocator itself: a PodGroup may have claims, which its pods share."""
    gang_scheduling: bool = _DEFAULTS.gang_scheduling
    """Not for the allocator itself: see ``gangs_of_groups``."""
    topology_aware_scheduling: bool = _DEFAULTS.topology_aware_scheduling
    """Not for the allocator itself: a PodGroup may ask for nodes with the same value of a label."""
    pod_group_preemption_policy: bool = _DEFAULTS.pod_group_preemption_policy
    """Not for the allocator itself: pods need the preemption policy of their PodGroup."""
    workload_aware_preemption: bool = _DEFAULTS.workload_aware_preemption
    """Not for the allocator itself: see ``groups_end_as_one``."""
    filter_timeout: bool = _DEFAULTS.filter_timeout
    """Not used by the allocator: its caller has a clock, and ends a decision that takes too long."""

    @classmethod
    def of(cls, gates: FeatureGates) -> Features:
        """Those that these gates turn on, by the rules of their release."""
        return cls(**{name: getattr(gates, name) for name in cls.__struct_fields__})

    @classmethod
    def from_gates(cls, gates: Iterable[str], release: Release = NEWEST) -> Features:
        """Exactly these gates are on; gates that do not concern the allocator are ignored."""
        names = set(gates)
        chosen = {gate: gate in names for gate in GATE_OF.values()}
        return cls.of(msgspec.convert({**chosen, "release": release}, FeatureGates))

    @property
    def gangs_of_groups(self) -> bool:
        """PodGroups may be gangs: from 1.37 on GenericWorkload is enough."""
        return self.generic_workload and (self.gang_scheduling or self.release >= Release.V1_37)

    @property
    def groups_end_as_one(self) -> bool:
        """A PodGroup says how its pods end for others: together, and by its priority. From 1.37 on GenericWorkload is
        enough."""
        return self.generic_workload and (self.workload_aware_preemption or self.release >= Release.V1_37)

    @property
    def basic(self) -> bool:
        """The reference answers with its stable implementation.

        It knows neither ``distinctAttribute``, which it calls an empty constraint, nor capacity requests, which it
        ignores. The newer implementations refuse both while the gate is off.
        """
        return not (self.binding_conditions or self.consumable_capacity or self.list_attributes)


def _names(features: type[Features]) -> list[str]:
    return [name for name in features.__struct_fields__ if name != "release"]


_OF_TWO: Final = {"binding_conditions": ("device_binding_conditions", "device_status")}
GATES: Final = frozenset(GATE_OF[attribute] for name in _names(Features) for attribute in _OF_TWO.get(name, (name,)))
"""The gates that matter here."""


class Semantics(Struct, frozen=True):
    """One field per rule; True is the documented behaviour."""

    newest_generation_only: bool = True
    """Older slices of a pool are never used. The reference uses them on a node for which they are complete and the
    newer ones are not."""

    admin_ignores_allocations: bool = True
    """Admin access needs neither free counters nor free shareable capacity, and does not keep a device from later
    ordinary requests. In the reference it does both; the reference's answer is preferred if there is one."""

    rule_without_selector_selects_nothing: bool = True
    """A DeviceTaintRule without ``deviceSelector`` taints no device (PRJ-010). In the reference: all."""

    errors_stay_on_node: bool = True
    """A fault of what one node sees (a pool that is half published, a selector that fails on a device) keeps the claims
    from that node only. In the reference it ends the attempt on all nodes (Kubernetes issues 141829 and 141214)."""

    counters_stay_drawn: bool = True
    """Draws of a claim from counters stay drawn when its driver publishes the device smaller or not at all. The
    reference counts the published draws, and gives the rest out again (Kubernetes issue 140802)."""

    shares_stay_held: bool = True
    """A device that its driver no longer shares stays in use until the last share is given back. The reference gives it
    to another claim meanwhile."""

    @classmethod
    def reference(cls) -> Semantics:
        """As Kubernetes 1.36.2 behaves."""
        return cls(
            newest_generation_only=False,
            admin_ignores_allocations=False,
            rule_without_selector_selects_nothing=False,
            errors_stay_on_node=False,
            counters_stay_drawn=False,
            shares_stay_held=False,
        )
