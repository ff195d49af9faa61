"""What a pod's PodGroup asks for: it has to exist, since claims are reserved for it, and what it asks for is minded.

A field that placement does not look at keeps the pods waiting, as such a field of the pod does (``unsupported``). Pods
at the scheduling gate are bound by their own scheduler, which minds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dra_api.core import Pod
from dra_api.relations.references import group_name
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


def group_obstacle(pod: Pod, group: PodGroup | None, features: Features) -> Obstacle | None:
    """Why the pod is not tried with its group; None if it is, or if it is in no group."""
    name = group_name(pod)
    if name is None:
        return None
    if group is None:
        return Obstacle(GROUP_MISSING, name)
    if pod.spec.scheduling_gates:
        return None
    return next((Obstacle(reason, name, field) for reason, field in _unsupported(group, features)), None)


def _unsupported(group: PodGroup, features: Features) -> Iterator[tuple[Reason, str]]:
    spec = group.spec
    if spec.scheduling_policy.gang is not None and not features.gangs_of_groups:
        yield GROUP_GATED, "spec.schedulingPolicy.gang needs the feature gate GangScheduling"
    if topology_of(group) is not None and not features.topology_aware_scheduling:
        yield GROUP_GATED, "spec.schedulingConstraints needs the feature gate TopologyAwareWorkloadScheduling"
    if spec.parent_composite_pod_group_name:
        yield GROUP_UNSUPPORTED, "spec.parentCompositePodGroupName"
