"""Obstacles of a pod on every node: unsupported fields of the pod and of its PodGroup.

A pod placed despite such a field could silently break a rule that its author relies on. So it stays pending, and its
condition names the field. kube-scheduler enforces these rules by VolumeBinding, VolumeZone, VolumeRestrictions,
NodeVolumeLimits, and by GangScheduling while the gate GenericWorkload is off. Preferences are no obstacles, nor are
volumes that any node can mount. A pod with too many rules stays pending as well (``state.topology``).

The PodGroup must exist, since claims are reserved for it.

From 1.37 on a pod that is placed has the priority of its group, and with the gate PodGroupPreemptionPolicy its policy
of preemption. DEVIATE: kube-scheduler places no pod of a group of which one pod differs; here that pod waits alone.

Pods at the scheduling gate are bound by their own scheduler, which sees to the group.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from dra_api.core import Pod, Volume
from dra_api.references import group_name
from dra_api.releases.release import Release
from dra_api.scheduling import PodGroup
from msgspec import structs

from dra_operator.allocator import Features
from dra_operator.scheduling.state.gang import topology_of
from dra_operator.scheduling.state.large import LARGEST_OBJECT_BYTES, is_too_large
from dra_operator.scheduling.state.obstacle import Obstacle, Reason
from dra_operator.scheduling.state.scheduling_gate import GATE
from dra_operator.scheduling.state.topology import MOST_LABELS, MOST_RULES, has_too_many_rules

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
    """Return why the pod cannot be scheduled with its group, or None. A pod without a group has no such obstacle."""
    name = group_name(pod)
    if name is None:
        return None
    if group is None:
        return Obstacle(GROUP_MISSING, name)
    # Another scheduler binds a gated pod, and enforces the policy of the group. Here it only gets devices.
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
    # Before 1.37 the scheduler does not read the priority of a group.
    if not features.generic_workload or features.release < Release.V1_37:
        return
    of_pod, of_group = pod.spec.priority or 0, group.spec.priority or 0
    if of_pod != of_group:
        yield GROUP_DIFFERS, f"the pod has priority {of_pod} and the group {of_group}"
    policy, wanted = pod.spec.preemption_policy or _DEFAULT_POLICY, group.spec.preemption_policy or _DEFAULT_POLICY
    if features.pod_group_preemption_policy and policy != wanted:
        yield GROUP_DIFFERS, f"the pod has the preemption policy {policy} and the group {wanted}"


UNSUPPORTED: Final = Reason("unsupported", "{subject} is not supported by dra-operator yet; {detail}")
_LOOKED_AT: Final = frozenset({"name", "persistent_volume_claim", "ephemeral"})
_TIED: Final = {it.name: it.encode_name for it in structs.fields(Volume) if it.name not in _LOOKED_AT}
"""JSON names, by field, of volume sources that only some nodes, or few pods of a node, can mount."""


def unsupported(pod: Pod) -> Obstacle | None:
    """Return the first unsupported field of the pod with a remedy, or None."""
    gated = f"remove the scheduling gate {GATE}, so that the pod's scheduler allocates its devices"
    other = "have kube-scheduler place the pod (spec.schedulerName: default-scheduler)"
    way_out = gated if pod.spec.scheduling_gates else other
    return next((Obstacle(UNSUPPORTED, field, f"{remedy}, or {way_out}") for field, remedy in _fields(pod)), None)


def _fields(pod: Pod) -> Iterator[tuple[str, str]]:
    spec = pod.spec
    if spec.scheduling_group is not None and group_name(pod) is None:
        yield "spec.schedulingGroup", "turn on the feature gate GenericWorkload, or remove it"
    if is_too_large(pod):
        remedy = (
            "shorten the longest of resourceClaims, affinity, tolerations, nodeSelector, volumes, containers, labels"
        )
        yield f"more than {LARGEST_OBJECT_BYTES >> 10} KiB in the fields that decide its placement", remedy
    if has_too_many_rules(pod):
        bound = f"more than {MOST_RULES} rules between pods (or {MOST_LABELS} labels and expressions in them)"
        yield f"spec.affinity or spec.topologySpreadConstraints with {bound}", "name several values in one expression"
    for number, volume in enumerate(spec.volumes or ()):
        for field, source in _TIED.items():
            if getattr(volume, field) is not None:
                yield f"spec.volumes[{number}].{source}", "use a volume that any node can mount"
