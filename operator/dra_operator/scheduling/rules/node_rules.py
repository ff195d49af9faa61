"""Rules about a pod alone, and about a pod and one node, that do not depend on pods elsewhere.

An unsupported field of the pod or of its PodGroup is an obstacle on every node. A pod placed despite such a field could
silently break a rule that its author relies on. So it stays pending, and its condition names the field. kube-scheduler
enforces these rules by VolumeBinding, VolumeZone, VolumeRestrictions, NodeVolumeLimits, and by GangScheduling while the
gate GenericWorkload is off. Preferences are no obstacles, nor are volumes that any node can mount. A pod with too many
rules stays pending as well (``state.topology``).

The PodGroup must exist, since claims are reserved for it.

From 1.37 on a pod that is placed has the priority of its group, and with the gate PodGroupPreemptionPolicy its policy
of preemption. DEVIATE: kube-scheduler places no pod of a group of which one pod differs; here that pod waits alone.

Pods at the scheduling gate are bound by their own scheduler, which sees to the group.

Each rule about a node stands for the plugin of kube-scheduler that its docstring names. ``nodes`` has their order.
Preferences of a pod (preferred node affinity, PreferNoSchedule) are scores, in ``scores``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from dra_api.core import NodeSelector, Pod, Toleration, Volume
from dra_api.quota import may_be_devices
from dra_api.references import group_name
from dra_api.releases import Release
from dra_api.scheduling import PodGroup
from msgspec import structs

from dra_operator.allocator import Features, node_selectors, scheduler_of
from dra_operator.scheduling.state.applicants import GATE, is_placeholder, topology_of
from dra_operator.scheduling.state.large import LARGEST_OBJECT_BYTES, is_node_too_large, is_too_large
from dra_operator.scheduling.state.node import (
    NODE_CONDITION,
    POD_SLOTS,
    UNSCHEDULABLE,
    HostPort,
    LoadedNode,
    host_ports,
    pod_requests,
    tolerations_of,
    untolerated,
)
from dra_operator.scheduling.state.obstacle import Obstacle, Reason
from dra_operator.scheduling.state.pods_by_node import MOST_LABELS, MOST_RULES, has_too_many_rules

from .rule import NodeRule, RuleSurroundings
from .volumes import NO_VOLUMES, PodVolumes

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
    # Without the group nobody knows its policy, nor whose claims its pods use.
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
    # Gangs of gangs have rules of their own, which nothing here enforces.
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
    for field, remedy in _fields(pod):
        # A gated pod has its scheduler already: it only has to stop asking us for devices.
        gated = f"remove the scheduling gate {GATE}, so that the pod's scheduler allocates its devices"
        other = "have kube-scheduler place the pod (spec.schedulerName: default-scheduler)"
        return Obstacle(UNSUPPORTED, field, f"{remedy}, or {gated if pod.spec.scheduling_gates else other}")
    return None


def _fields(pod: Pod) -> Iterator[tuple[str, str]]:
    spec = pod.spec
    # With the gate off the name of the group is dropped, and the pod would be placed alone without a word.
    if spec.scheduling_group is not None and group_name(pod) is None:
        yield "spec.schedulingGroup", "turn on the feature gate GenericWorkload, or remove it"
    if is_too_large(pod):
        remedy = (
            "shorten the longest of resourceClaims, affinity, tolerations, nodeSelector, volumes, containers, labels"
        )
        yield f"more than {LARGEST_OBJECT_BYTES >> 10} KiB in the fields that decide its placement", remedy
    if (spec.affinity or spec.topology_spread_constraints) and has_too_many_rules(pod):
        bound = f"more than {MOST_RULES} rules between pods (or {MOST_LABELS} labels and expressions in them)"
        yield f"spec.affinity or spec.topologySpreadConstraints with {bound}", "name several values in one expression"
    for number, volume in enumerate(spec.volumes or ()):
        for field, source in _TIED.items():
            if getattr(volume, field) is not None:
                yield f"spec.volumes[{number}].{source}", "use a volume that any node can mount"


OTHER_NODE: Final = Reason("other-node", "node(s) not named by the pod")


class NodeName(NodeRule):
    """A pod that names its node runs on no other (kube-scheduler's NodeName)."""

    def __init__(self, name: str) -> None:
        self._name = name

    @classmethod
    def of(cls, pod: Pod, _: RuleSurroundings) -> NodeName | None:
        """Only for a pod that names a node."""
        # Only simulations and ``kubectl dra`` ask about such pods: the operator places no pod that has its node.
        return cls(pod.spec.node_name) if pod.spec.node_name else None

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """Another node."""
        return Obstacle(OTHER_NODE) if self._name != state.name else None


CORDONED: Final = Reason("cordoned", "node(s) were unschedulable")
NODE_TOO_LARGE: Final = Reason(
    "node-too-large", f"node(s) have more than {LARGEST_OBJECT_BYTES >> 10} KiB of labels, taints and resources"
)
TAINT: Final = Reason("taint", "node(s) had untolerated taint {{{subject}: {detail}}}")


class TaintToleration(NodeRule):
    """A node must have no taint that the pod does not tolerate (kube-scheduler's TaintToleration, NodeUnschedulable).

    Every pod has this rule. A cordoned node has a taint for that. A placeholder pod stands for an immediate claim,
    which has no tolerations. Only taints for the state of a node, or for another scheduler, keep it away.
    """

    def __init__(self, tolerations: Sequence[Toleration], *, is_placeholder: bool) -> None:
        self._tolerations = tolerations
        self._is_placeholder = is_placeholder

    @classmethod
    def of(cls, pod: Pod, _: RuleSurroundings) -> TaintToleration:
        """The pod's tolerations."""
        # Every pod has it: a node may be cordoned at any moment.
        return cls(tolerations_of(pod), is_placeholder=is_placeholder(pod))

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """Return the first taint that is not tolerated."""
        taints = state.taints
        # Which labels and taints it has is not known, so a toleration of all taints does not help.
        if taints and is_node_too_large(taints):
            return Obstacle(NODE_TOO_LARGE)
        # The pod that will use an immediate claim is not known yet, and may tolerate any taint for workloads. It cannot
        # run on a node that is not ready, and devices behind another scheduler's taint are not ours to give.
        if taints and self._is_placeholder:
            taints = tuple(it for it in taints if it.key.startswith(NODE_CONDITION) or scheduler_of(it) is not None)
        if not taints or (taint := untolerated(taints, self._tolerations)) is None:
            return None
        return Obstacle(CORDONED) if taint == UNSCHEDULABLE else Obstacle(TAINT, taint.key, taint.value)


NODE_SELECTOR: Final = Reason("node-selector", "node(s) didn't match the pod's node selector or affinity")


class NodeAffinity(NodeRule):
    """Labels and fields that a node must have, by selector or required affinity (kube-scheduler's NodeAffinity)."""

    def __init__(self, labels: Mapping[str, str], required: NodeSelector | None) -> None:
        self._labels = tuple(labels.items())
        self._required = required
        self._terms: tuple[node_selectors.NodeTerm, ...] | None = None

    @classmethod
    def of(cls, pod: Pod, _: RuleSurroundings) -> NodeAffinity | None:
        """Only for a pod that selects nodes."""
        affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
        required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
        # Both count: kube-scheduler asks for selector and affinity together.
        labels = pod.spec.node_selector or {}
        return cls(labels, required) if labels or required is not None else None

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """Return NODE_SELECTOR if the node is not selected. Raises NodeSelectionError."""
        labels = state.node.metadata.labels or {}
        # The cheap half first.
        if any(labels.get(key) != value for key, value in self._labels):
            return Obstacle(NODE_SELECTOR)
        if self._required is None:
            return None
        # Parsed for the first node only: a tenant may write a selector of thousands of terms.
        if self._terms is None:
            self._terms = node_selectors.parse(self._required)
        return Obstacle(NODE_SELECTOR) if node_selectors.first_match(self._terms, state.node) is None else None


OTHER_OS: Final = Reason("other-os", "node(s) didn't have the pod's operating system ({subject})")
_LABEL: Final = "kubernetes.io/os"


class PodOS(NodeRule):
    """A pod that names its operating system runs on no node with another one.

    kube-scheduler ignores ``spec.os``: it binds such a pod, and the kubelet refuses it (``PodOSNotSupported``). Its
    devices would be allocated in vain. A node names its system in the label ``kubernetes.io/os``; a node without the
    label may have any.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @classmethod
    def of(cls, pod: Pod, _: RuleSurroundings) -> PodOS | None:
        """Only for a pod that names its system."""
        return cls(pod.spec.os.name) if pod.spec.os is not None and pod.spec.os.name else None

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """Another system."""
        # The kubelet sets the label. A node without it, as in simulations, is given the benefit of the doubt.
        its = (state.node.metadata.labels or {}).get(_LABEL, self._name)
        return Obstacle(OTHER_OS, self._name) if its != self._name else None


FEATURE: Final = Reason("feature", "node(s) didn't declare the feature {subject}")


class NodeDeclaredFeatures(NodeRule):
    """``node.status.declaredFeatures`` must name what the pod needs (kube-scheduler's NodeDeclaredFeatures)."""

    def __init__(self, needed: Sequence[str]) -> None:
        self._needed = needed

    @classmethod
    def of(cls, pod: Pod, _: RuleSurroundings) -> NodeDeclaredFeatures | None:
        """Only for a pod that needs a feature."""
        needed = _needed_features(pod)
        return cls(needed) if needed else None

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """The first feature that the node does not declare."""
        # A kubelet that is too old to declare features has none of them.
        declared = state.node.status.declared_features or ()
        missing = next((feature for feature in self._needed if feature not in declared), None)
        return Obstacle(FEATURE, missing) if missing is not None else None


def _needed_features(pod: Pod) -> list[str]:
    # kube-scheduler derives the features from these fields.
    containers = (*(pod.spec.init_containers or ()), *(pod.spec.containers or ()))
    actions = [rule.action for container in containers for rule in container.restart_policy_rules or ()]
    needed = ["RestartAllContainersOnContainerExits"] if "RestartAllContainers" in actions else []
    if pod.spec.host_network and pod.spec.host_users is False:
        needed.append("UserNamespacesHostNetworkSupport")
    return needed


PORT: Final = Reason("port", "{subject} is taken", ends_with_any_pod=True)


class NodePorts(NodeRule):
    """Host ports of the pod must be free on the node (kube-scheduler's NodePorts).

    ``state.node`` says which ports conflict.
    """

    def __init__(self, ports: Sequence[HostPort]) -> None:
        self._ports = ports

    @classmethod
    def of(cls, pod: Pod, _: RuleSurroundings) -> NodePorts | None:
        """Only for a pod that holds ports of its node."""
        ports = tuple(host_ports(pod))
        return cls(ports) if ports else None

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """The first port that is taken."""
        taken = next((port for port in self._ports if port.is_taken(state.used)), None)
        return Obstacle(PORT, taken.name) if taken is not None else None


TOO_MANY_PODS: Final = Reason("pod-slots", "too many pods on the node", ends_with_any_pod=True)
RESOURCE: Final = Reason("resource", "Insufficient {subject}", ends_with_any_pod=True)
NOT_OFFERED: Final = Reason(
    "not-offered", "cannot fit resource {subject}: neither the node nor a device class offers it"
)


class NodeResources(NodeRule):
    """A node must have room for the pod's requests, in billionths by name (kube-scheduler's NodeResourcesFit).

    The node need not offer a resource that devices serve there. A node without a limit of pods takes any number. A
    placeholder pod requests nothing.
    """

    def __init__(self, requested: Sequence[tuple[str, int]]) -> None:
        self._requested = requested

    @classmethod
    def of(cls, pod: Pod, _: RuleSurroundings) -> NodeResources | None:
        """Return the rule; a pod without requests still takes a slot. None for a placeholder pod."""
        # Sorted, so that the first obstacle of equal pods is the same, and they are told the same.
        return None if is_placeholder(pod) else cls(tuple(sorted(pod_requests(pod).items())))

    def obstacle(self, state: LoadedNode, served: Collection[str]) -> Obstacle | None:
        """The first resource of which the node has too little."""
        offered, used = state.offered, state.used
        for name, requested in self._requested:
            # A claim allocates devices for a served resource, so the node need not offer it.
            if name in served or (name == POD_SLOTS and name not in offered):
                continue
            # Freeing room would not help: only a class or a device plugin can bring this resource.
            if name not in offered and may_be_devices(name):
                return Obstacle(NOT_OFFERED, name)
            if requested > offered.get(name, 0) - used.get(name, 0):
                return Obstacle(TOO_MANY_PODS) if name == POD_SLOTS else Obstacle(RESOURCE, name)
        return None

    def obstacles(self, state: LoadedNode, served: Collection[str]) -> list[Obstacle]:
        """Return an obstacle for each resource of which the node has too little."""
        # ``obstacle`` stops at the first one, so each request is asked alone.
        return [it for one in self._requested if (it := NodeResources([one]).obstacle(state, served)) is not None]


class NodeVolumes(NodeRule):
    """The node must be able to use the pod's volumes (``volumes``).

    It stands for kube-scheduler's NodeVolumeLimits, VolumeBinding and VolumeZone.
    """

    def __init__(self, volumes: PodVolumes) -> None:
        self._volumes = volumes

    @classmethod
    def of(cls, _: Pod, around: RuleSurroundings) -> NodeVolumes | None:
        """Only for a pod with volumes that tie it to nodes."""
        # By identity: ``volumes_of`` returns this very value for a pod without claims.
        return cls(around.volumes) if around.volumes is not NO_VOLUMES else None

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """Why the pod cannot use its volumes on the node."""
        return self._volumes.obstacle(state.node, state.used)
