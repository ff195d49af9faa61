"""The kinds of ``scheduling.k8s.io`` that concern devices, PodGroup and Workload, in the shape of v1beta1; and
PodDisruptionBudgets of ``policy/v1``.

Kubernetes 1.36 has PodGroup and Workload as v1alpha2, 1.37 as v1beta1; ``conversion`` has the differences. A claim of a
PodGroup is shared by its pods. Spec: kubernetes-1.37.md section 8.
"""

from __future__ import annotations

from typing import Any, Final

from dra_api.core import PodResourceClaim, PodResourceClaimStatus
from dra_api.meta import Condition, LabelSelector, Object, Part
from dra_api.releases import Release

GROUP: Final = "scheduling.k8s.io"


class GangSchedulingPolicy(Part, frozen=True):
    """All or nothing: so many pods of the group get their nodes together, or none does."""

    min_count: int = 0


class PodGroupSchedulingPolicy(Part, frozen=True):
    """Exactly one of both is set; ``basic`` has no content and means pod by pod."""

    basic: dict[str, Any] | None = None
    gang: GangSchedulingPolicy | None = None


class TopologyConstraint(Part, frozen=True):
    """All pods of the group run on nodes with the same value of this label."""

    key: str = ""


class PodGroupSchedulingConstraints(Part, frozen=True):
    topology: tuple[TopologyConstraint, ...] | None = None


class DisruptionMode(Part, frozen=True):
    """Exactly one of both is set: the pods of the group end one by one, or only all together."""

    single: dict[str, Any] | None = None
    all: dict[str, Any] | None = None


class WorkloadReference(Part, frozen=True):
    """The template from which a PodGroup was made. The Workload need not exist (K37-WL-01)."""

    workload_name: str = ""
    template_name: str = ""


class PodGroupSpec(Part, frozen=True):
    parent_composite_pod_group_name: str | None = None
    workload_ref: WorkloadReference | None = None
    scheduling_policy: PodGroupSchedulingPolicy = PodGroupSchedulingPolicy()
    scheduling_constraints: PodGroupSchedulingConstraints | None = None
    resource_claims: tuple[PodResourceClaim, ...] | None = None
    disruption_mode: DisruptionMode | None = None
    priority_class_name: str = ""
    priority: int | None = None
    preemption_policy: str | None = None


class PodGroupStatus(Part, frozen=True):
    conditions: tuple[Condition, ...] | None = None
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] | None = None


class PodGroup(Object, frozen=True):
    """Pods that are scheduled by one policy and may share claims; a pod names it in ``spec.schedulingGroup``."""

    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()


def placed_condition(release: Release) -> str:
    """The type of the condition that says of a PodGroup whether its pods were placed."""
    return "PodGroupInitiallyScheduled" if release >= Release.V1_37 else "PodGroupScheduled"


class TypedLocalObjectReference(Part, frozen=True):
    api_group: str = ""
    kind: str = ""
    name: str = ""


class PodGroupTemplate(Part, frozen=True):
    name: str = ""
    scheduling_policy: PodGroupSchedulingPolicy = PodGroupSchedulingPolicy()
    scheduling_constraints: PodGroupSchedulingConstraints | None = None
    resource_claims: tuple[PodResourceClaim, ...] | None = None
    disruption_mode: DisruptionMode | None = None
    priority_class_name: str = ""
    priority: int | None = None
    preemption_policy: str | None = None


class GangWorkloadSpec(Part, frozen=True):
    controller_ref: TypedLocalObjectReference | None = None
    pod_group_templates: tuple[PodGroupTemplate, ...] | None = None


class GangWorkload(Object, frozen=True):
    """What a controller of pods makes PodGroups from; nothing here acts on it."""

    spec: GangWorkloadSpec = GangWorkloadSpec()


class PodDisruptionBudgetSpec(Part, frozen=True):
    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(Part, frozen=True):
    """``disrupted_pods``: pods whose eviction was accepted and is not seen yet, by name, with its time."""

    disruptions_allowed: int = 0
    disrupted_pods: dict[str, str] | None = None


class PodDisruptionBudget(Object, frozen=True):
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()
