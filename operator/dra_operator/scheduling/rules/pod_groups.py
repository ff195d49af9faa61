"""What a pod's PodGroup asks for: it has to exist, since claims are reserved for it, and what it asks for is minded.

From 1.37 on a pod that is placed has the priority of its group, and with the gate PodGroupPreemptionPolicy its policy
of preemption. DEVIATE: kube-scheduler places no pod of a group of which one pod differs; here that pod waits alone.

A field that placement does not look at keeps the pods waiting, as such a field of the pod does (``unsupported``). Pods
at the scheduling gate are bound by their own scheduler, which minds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from dra_api.core import Pod
from dra_api.references import group_name
from dra_api.releases.release import Release
from dra_api.scheduling import PodGroup

from dra_operator.allocator import Features
from dra_operator.scheduling.state.gang import topology_of
from dra_operator.scheduling.state.obstacle import Obstacle, Reason

GROUP_MISSING: Final = Reason(
    "group-missing", 'podgroup "{subject}" not found: create it, or correct spec.schedulingGroup of the pod'
)
GROUP_UNSUPPORTED: Final = Reason(
    "group-unsupported",
    'podgroup "{subject}": {detail} is not supported by dra-operator yet; remove it, or have kube-scheduler place the '
    "pods (spec.schedulerName: default-scheduler)",
)
GROUP_GATED: Final = Reason(
    "group-gated",
    'podgroup "{subject}": {detail}, which is off: turn it on, or have kube-scheduler place the pods '
    "(spec.schedulerName: default-scheduler)",
)
GROUP_DIFFERS: Final = Reason(
    "group-differs",
    'podgroup "{subject}": {detail}; pods have that of their group: name the same priorityClassName in both, '
    "and make the group again, since its own stays as it was made",
)
_DEFAULT_POLICY: Final = "PreemptLowerPriority"


def group_obstacle(pod: Pod, group: PodGroup | None, features: Features) -> Obstacle | None:
    """Why the pod is not tried with its group; None if it is, or if it is in no group."""
    name = group_name(pod)
    if name is None:
        return None
    if group is None:
        return Obstacle(GROUP_MISSING, name)
    if pod.spec.scheduling_gates:
        return None
    found = chain(_unsupported(group, features), _differing(pod, group, features))
    return next((Obstacle(reason, name, field) for reason, field in found), None)


def _unsupported(group: PodGroup, features: Features) -> Iterator[tuple[Reason, str]]:
    spec = group.spec
    if spec.scheduling_policy.gang is not None and not features.gangs_of_groups:
        yield GROUP_GATED, "spec.schedulingPolicy.gang needs the feature gate GangScheduling"
    if topology_of(group) is not None and not features.topology_aware_scheduling:
        yield GROUP_GATED, "spec.schedulingConstraints needs the feature gate TopologyAwareWorkloadScheduling"
    if spec.parent_composite_pod_group_name:
        yield GROUP_UNSUPPORTED, "spec.parentCompositePodGroupName"


def _differing(pod: Pod, group: PodGroup, features: Features) -> Iterator[tuple[Reason, str]]:
    if not features.generic_workload or features.release < Release.V1_37:
        return
    of_pod, of_group = pod.spec.priority or 0, group.spec.priority or 0
    if of_pod != of_group:
        yield GROUP_DIFFERS, f"the pod has priority {of_pod} and the group {of_group}"
    policy, wanted = pod.spec.preemption_policy or _DEFAULT_POLICY, group.spec.preemption_policy or _DEFAULT_POLICY
    if features.pod_group_preemption_policy and policy != wanted:
        yield GROUP_DIFFERS, f"the pod has the preemption policy {policy} and the group {wanted}"
