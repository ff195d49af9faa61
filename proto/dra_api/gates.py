"""What each release of Kubernetes made of the feature gates of devices, and of pools.

``TABLE`` has every gate that concerns devices, with its history and the gates that it needs: facts of Kubernetes, and
the only place for them. A step holds from its release until the next step. Steps before 1.32 count as steps of 1.32.
``FeatureGates`` has the gates that some part of this project reads, as attributes. docs/feature-gates.md shows all of
them. Spec: api.md section 2.

A component reads some gates only, and takes changes to those alone. It checks them as Kubernetes does: a gate must
exist in the release, a locked gate keeps its value, and a gate that is on needs those on which it depends. All other
gates have the release's default, and no part in that check.

``POOL_RULES`` has what each release asks of the slices of a pool, and what it allocates from them. Partitions draw from
counters. Until 1.34 the counters of a device stand in its own slice: the API server refuses a device that draws from
another slice's. Since 1.35 (Kubernetes 134189) counters have slices of their own: a slice with both is refused, and
one that an older server has stored offers no devices until its driver writes it again. So a driver has to know the
form that its API server takes.

Two rules about allocation have changed as well. Since 1.35 nothing is allocated from a pool that lacks slices; before,
the devices of its other slices were. A request for all devices succeeds without any device in 1.32, and fails since.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct, field

from dra_api.releases import NEWEST, Release, min_compatibility_of, release_of


class Stage(StrEnum):
    """How mature a feature is."""

    ALPHA = "alpha"
    BETA = "beta"
    GA = "GA"


class Step(NamedTuple):
    """What a release made of a gate. A locked gate has its default, and no other value is accepted."""

    since: Release
    stage: Stage
    default: bool
    locked: bool = False


class Gate(NamedTuple):
    """A gate. It is refused while one of those that it ``needs`` is off. ``gone`` is the first release without it.

    It is on by default where no component before ``on_from`` has to be compatible with the API server, whose minimum
    compatibility version is the release before its own unless it was told otherwise.
    """

    steps: tuple[Step, ...]
    needs: tuple[str, ...] = ()
    gone: Release | None = None
    on_from: Release | None = None

    def at(self, release: Release) -> Step | None:
        """The gate in this release; None if the release does not have it."""
        if self.gone is not None and release >= self.gone:
            return None
        return next((step for step in reversed(self.steps) if step.since <= release), None)


_ALPHA, _BETA, _GA = Stage
_OFF, _ON, _LOCKED = False, True, True
_DRA: Final = ("DynamicResourceAllocation",)
_32, _33, _34, _35, _36, _37 = Release

TABLE: Final[dict[str, Gate]] = {
    "CompositePodGroup": Gate(
        (Step(_37, _ALPHA, _OFF),),
        needs=("GenericWorkload", "TopologyAwareWorkloadScheduling"),
    ),
    "DRAAdminAccess": Gate(
        (Step(_32, _ALPHA, _OFF), Step(_34, _BETA, _ON), Step(_36, _GA, _ON, _LOCKED)),
        needs=_DRA,
    ),
    "DRAConsumableCapacity": Gate((Step(_34, _ALPHA, _OFF), Step(_36, _BETA, _ON)), needs=_DRA),
    "DRADerivedAttributes": Gate((Step(_37, _ALPHA, _OFF),), needs=_DRA),
    "DRADeviceBindingConditions": Gate(
        (Step(_34, _ALPHA, _OFF), Step(_36, _BETA, _ON)),
        needs=(*_DRA, "DRAResourceClaimDeviceStatus"),
    ),
    "DRADeviceCompatibilityGroups": Gate((Step(_37, _ALPHA, _OFF),), needs=("DRAPartitionableDevices",)),
    "DRADeviceTaintRules": Gate(
        (Step(_35, _ALPHA, _OFF), Step(_36, _BETA, _OFF), Step(_37, _GA, _ON)),
        needs=("DRADeviceTaints",),
    ),
    "DRADeviceTaints": Gate((Step(_33, _ALPHA, _OFF), Step(_36, _BETA, _ON), Step(_37, _GA, _ON)), needs=_DRA),
    "DRAExtendedResource": Gate(
        (Step(_34, _ALPHA, _OFF), Step(_36, _BETA, _ON), Step(_37, _GA, _ON, _LOCKED)),
        needs=_DRA,
    ),
    "DRAFractionalCapacityRange": Gate((Step(_37, _BETA, _OFF),), needs=("DRAConsumableCapacity",), on_from=_37),
    "DRAListTypeAttributes": Gate((Step(_36, _ALPHA, _OFF),), needs=_DRA),
    "DRANodeAllocatableResources": Gate((Step(_36, _ALPHA, _OFF),), needs=_DRA),
    "DRAOptionalNodeOperations": Gate((Step(_37, _ALPHA, _OFF),), needs=_DRA),
    "DRAPartitionableDevices": Gate((Step(_33, _ALPHA, _OFF), Step(_36, _BETA, _ON)), needs=_DRA),
    "DRAPartitionableDevicesType": Gate(
        (Step(_37, _ALPHA, _OFF),),
        needs=("DRAPartitionableDevices", "DRAResourcePoolStatus"),
    ),
    "DRAPrioritizedList": Gate(
        (Step(_33, _ALPHA, _OFF), Step(_34, _BETA, _ON), Step(_36, _GA, _ON), Step(_37, _GA, _ON, _LOCKED)),
        needs=_DRA,
    ),
    "DRAResourceClaimDeviceStatus": Gate(
        (Step(_32, _ALPHA, _OFF), Step(_33, _BETA, _ON), Step(_37, _GA, _ON, _LOCKED)),
    ),
    "DRAResourceClaimGranularStatusAuthorization": Gate(
        (Step(_36, _BETA, _ON),),
        needs=(*_DRA, "DRAResourceClaimDeviceStatus"),
    ),
    "DRAResourcePoolStatus": Gate((Step(_36, _ALPHA, _OFF),), needs=_DRA),
    "DRASchedulerFilterTimeout": Gate((Step(_34, _BETA, _ON),), needs=_DRA),
    "DRAWorkloadResourceClaims": Gate(
        (Step(_36, _ALPHA, _OFF), Step(_37, _BETA, _OFF)),
        needs=(*_DRA, "GenericWorkload"),
    ),
    "DynamicResourceAllocation": Gate(
        (Step(_32, _BETA, _OFF), Step(_34, _GA, _ON), Step(_35, _GA, _ON, _LOCKED)),
    ),
    "GangScheduling": Gate((Step(_35, _ALPHA, _OFF),), needs=("GenericWorkload",), gone=_37),
    "GenericWorkload": Gate((Step(_35, _ALPHA, _OFF), Step(_37, _BETA, _OFF))),
    "KubeletPodResourcesDynamicResources": Gate(
        (Step(_32, _ALPHA, _OFF), Step(_34, _BETA, _ON), Step(_36, _GA, _ON, _LOCKED)),
    ),
    "NodeDeclaredFeatures": Gate((Step(_35, _ALPHA, _OFF), Step(_36, _BETA, _ON), Step(_37, _GA, _ON, _LOCKED))),
    "PodGroupPreemptionPolicy": Gate((Step(_37, _ALPHA, _OFF),), needs=("GenericWorkload",)),
    "ResourceHealthStatus": Gate((Step(_32, _ALPHA, _OFF), Step(_36, _BETA, _ON)), needs=_DRA),
    "ResourceHealthStatusMessage": Gate((Step(_36, _BETA, _ON),)),
    "SchedulerPreQueueingHints": Gate((Step(_37, _ALPHA, _OFF),)),
    "TopologyAwareWorkloadScheduling": Gate((Step(_36, _ALPHA, _OFF),), needs=("GenericWorkload",)),
    "WorkloadAwarePreemption": Gate((Step(_36, _ALPHA, _OFF),), needs=("GangScheduling",), gone=_37),
}


class GateError(ValueError):
    """A feature gate cannot be set so; the message names it, with the release and a remedy."""


class Component(NamedTuple):
    """Who looks at which gates: ``name`` as in a sentence."""

    name: str
    gates: frozenset[str]


class FeatureGates(Struct, frozen=True, kw_only=True):
    """The gates at which some part of this project looks, by attributes; the alias is the name in Kubernetes.

    With them the release whose rules count.
    """

    release: Release = NEWEST
    admin_access: bool = field(name="DRAAdminAccess")
    prioritized_list: bool = field(name="DRAPrioritizedList")
    device_status: bool = field(name="DRAResourceClaimDeviceStatus")
    filter_timeout: bool = field(name="DRASchedulerFilterTimeout")
    consumable_capacity: bool = field(name="DRAConsumableCapacity")
    fractional_capacity_ranges: bool = field(name="DRAFractionalCapacityRange")
    device_binding_conditions: bool = field(name="DRADeviceBindingConditions")
    device_taints: bool = field(name="DRADeviceTaints")
    taint_rules: bool = field(name="DRADeviceTaintRules")
    extended_resources: bool = field(name="DRAExtendedResource")
    partitionable_devices: bool = field(name="DRAPartitionableDevices")
    granular_status_authorization: bool = field(name="DRAResourceClaimGranularStatusAuthorization")
    list_attributes: bool = field(name="DRAListTypeAttributes")
    node_allocatable_resources: bool = field(name="DRANodeAllocatableResources")
    pool_status: bool = field(name="DRAResourcePoolStatus")
    compatibility_groups: bool = field(name="DRADeviceCompatibilityGroups")
    derived_attributes: bool = field(name="DRADerivedAttributes")
    optional_node_operations: bool = field(name="DRAOptionalNodeOperations")
    partition_types: bool = field(name="DRAPartitionableDevicesType")
    workload_resource_claims: bool = field(name="DRAWorkloadResourceClaims")
    generic_workload: bool = field(name="GenericWorkload")
    gang_scheduling: bool = field(name="GangScheduling")
    pod_group_preemption_policy: bool = field(name="PodGroupPreemptionPolicy")
    topology_aware_scheduling: bool = field(name="TopologyAwareWorkloadScheduling")
    workload_aware_preemption: bool = field(name="WorkloadAwarePreemption")
    resource_health_status: bool = field(name="ResourceHealthStatus")
    resource_health_status_message: bool = field(name="ResourceHealthStatusMessage")

    @property
    def binding_conditions(self) -> bool:
        """Binding conditions need a place in the claim's status to be reported in, hence both gates."""
        return self.device_binding_conditions and self.device_status

    @property
    def groups_end_as_one(self) -> bool:
        """PodGroups say how they end for others, and have a priority: from 1.37 on GenericWorkload is enough."""
        return self.generic_workload and (self.workload_aware_preemption or self.release >= Release.V1_37)

    @classmethod
    def of(
        cls, changes: Mapping[str, object], release: Release = NEWEST, component: Component | None = None
    ) -> FeatureGates:
        """The release's defaults with these gates changed, by their Kubernetes names. Raises GateError."""
        by = component or ANY
        if wrong := sorted(name for name, value in changes.items() if not isinstance(value, bool)):
            raise GateError(f"neither true nor false: {', '.join(wrong)}")
        for name in sorted(changes):
            _check(name, changes[name], release, by)
        values = {**{name: is_on_by_default(name, release) for name in GATE_OF.values()}, **changes}
        for name in sorted(by.gates):
            _check_needs(name, values, release, by)
        return msgspec.convert({**values, "release": release}, cls)


GATE_OF: Final = {field.name: field.encode_name for field in msgspec.structs.fields(FeatureGates) if field.type is bool}
"""The Kubernetes name of each attribute that is a gate."""
ANY: Final = Component("this project", frozenset(GATE_OF.values()))


def defaults_of(version: Mapping[str, object]) -> dict[str, bool]:
    """The defaults that differ from those of the release, beside an API server that answers so at ``/version``.

    Some gates wait until no older component has to be compatible with the server. K37-GATE-03.
    """
    release, oldest = release_of(version)[0], min_compatibility_of(version)
    return {
        name: True
        for name, gate in TABLE.items()
        if gate.on_from is not None and gate.at(release) is not None and oldest >= (1, gate.on_from)
    }


def is_on_by_default(name: str, release: Release) -> bool:
    """Whether the release has the gate, and has it on."""
    step = TABLE[name].at(release)
    return step is not None and step.default


def _check(name: str, value: object, release: Release, component: Component) -> None:
    if name not in TABLE:
        from difflib import get_close_matches  # only a wrong name needs it

        near = get_close_matches(name, component.gates, n=1, cutoff=0.75)
        remedy = f"did you mean {near[0]}?" if near else f"known are {_known(release, component)}"
        raise GateError(f"unknown feature gate {name}; {remedy}")
    if name not in component.gates:
        raise GateError(f"{component.name} does not look at {name}, only at {_known(release, component)}")
    step = TABLE[name].at(release)
    if step is None:
        raise GateError(f"Kubernetes {release} has no feature gate {name}, {_lifetime(name)}: leave it out")
    if step.locked and value is not step.default:
        raise GateError(f"feature gate {name} is locked to {_word(step)} in Kubernetes {release}: leave it out")


def _known(release: Release, component: Component) -> str:
    """The gates of the component that the release has."""
    return ", ".join(name for name in sorted(component.gates) if TABLE[name].at(release) is not None)


def _check_needs(name: str, values: Mapping[str, object], release: Release, component: Component) -> None:
    if not values[name]:
        return
    for needed in TABLE[name].needs:
        if needed in component.gates and not values[needed]:
            raise GateError(
                f"feature gate {name} is on{_by_default(name, release)} and needs {needed}, which is off: "
                f"set {name}=false, or leave {needed} on"
            )


def _by_default(name: str, release: Release) -> str:
    return f" by default in Kubernetes {release}" if is_on_by_default(name, release) else ""


def _lifetime(name: str) -> str:
    gate = TABLE[name]
    end = f" and is gone in {gate.gone}" if gate.gone is not None else ""
    return f"which came with {gate.steps[0].since}{end}"


def _word(step: Step) -> str:
    return str(step.default).lower()


class PoolRules(NamedTuple):
    """The rules of one release. Limits count for one slice unless they say otherwise. None is no limit."""

    counters_beside_devices: bool
    """Counters stand in the slices of the devices that draw from them, and in no others."""
    gives_of_incomplete_pools: bool
    """Devices of a pool whose newest slices are not all there are allocated."""
    gives_all_of_nothing: bool
    """A request for all devices succeeds where there are none."""
    devices: int = 128
    advanced_devices: int = 64
    """Devices if one of them has taints, counters or, from 1.36 on, attributes with lists."""
    taints: int = 16
    """Taints of a device."""
    counter_sets: int | None = 8
    counters: int | None = None
    """Counters of all sets together."""
    sets_of_device: int | None = 2
    """Counter sets from which a device draws."""
    counters_of_device: int | None = None
    """Counters from which a device draws, of all sets together."""
    drawn_counters: int | None = None
    """Counters from which all devices draw together."""


_UNTIL_1_34: Final = PoolRules(
    counters_beside_devices=True,
    gives_of_incomplete_pools=True,
    gives_all_of_nothing=False,
    advanced_devices=128,
    taints=4,
    counter_sets=None,
    counters=32,
    sets_of_device=None,
    counters_of_device=32,
    drawn_counters=1024,
)
_FROM_1_35: Final = PoolRules(
    counters_beside_devices=False, gives_of_incomplete_pools=False, gives_all_of_nothing=False
)
POOL_RULES: Final[dict[Release, PoolRules]] = {
    Release.V1_32: _UNTIL_1_34._replace(gives_all_of_nothing=True),  # without partitions and taints
    Release.V1_33: _UNTIL_1_34,
    Release.V1_34: _UNTIL_1_34,
    Release.V1_35: _FROM_1_35,
    Release.V1_36: _FROM_1_35,
    Release.V1_37: _FROM_1_35,
}
