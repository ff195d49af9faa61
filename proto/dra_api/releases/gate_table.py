"""Every feature gate that concerns devices: what each release of Kubernetes made of it, and which others it needs.

Facts of Kubernetes, and the only place for them. A step holds from its release until the next step; what a gate was
before 1.32 counts as of 1.32. ``gates`` looks things up, docs/feature-gates.md shows them. Spec: api.md section 2.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from .release import Release


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
