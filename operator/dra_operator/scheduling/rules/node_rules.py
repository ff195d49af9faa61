"""Rules about one node that do not depend on pods elsewhere.

Each stands for the plugin of kube-scheduler that its docstring names. ``every_rule`` has their order. Preferences of a
pod (preferred node affinity, PreferNoSchedule) are scores, in ``scores``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from dra_api.core import NodeSelector, Pod, Toleration
from dra_api.quota import may_be_devices

from dra_operator.allocator import node_selectors, scheduler_of
from dra_operator.scheduling.state.node import (
    NODE_CONDITION,
    UNSCHEDULABLE,
    LoadedNode,
    tolerations_of,
    untolerated,
)
from dra_operator.scheduling.state.obstacle import Obstacle, Reason
from dra_operator.scheduling.state.placeholder import is_placeholder
from dra_operator.scheduling.state.requests import POD_SLOTS, HostPort, host_ports, pod_requests

from .rule import NodeRule, RuleSurroundings
from .volumes import NO_VOLUMES, PodVolumes

OTHER_NODE: Final = Reason("other-node", "node(s) not named by the pod")


class NodeName(NodeRule):
    """A pod that names its node runs on no other (kube-scheduler's NodeName)."""

    def __init__(self, name: str) -> None:
        self._name = name

    @classmethod
    def of(cls, pod: Pod, _: RuleSurroundings) -> NodeName | None:
        """Only for a pod that names a node."""
        return cls(pod.spec.node_name) if pod.spec.node_name else None

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """Another node."""
        return Obstacle(OTHER_NODE) if self._name != state.name else None


CORDONED: Final = Reason("cordoned", "node(s) were unschedulable")
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
        return cls(tolerations_of(pod), is_placeholder=is_placeholder(pod))

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """Return the first taint that is not tolerated."""
        taints = state.taints
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
        labels = pod.spec.node_selector or {}
        return cls(labels, required) if labels or required is not None else None

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """Return NODE_SELECTOR if the node is not selected. Raises NodeSelectionError."""
        labels = state.node.metadata.labels or {}
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
        needed = tuple(_needed_features(pod))
        return cls(needed) if needed else None

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """The first feature that the node does not declare."""
        declared = state.node.status.declared_features or ()
        missing = next((feature for feature in self._needed if feature not in declared), None)
        return Obstacle(FEATURE, missing) if missing is not None else None


def _needed_features(pod: Pod) -> Iterator[str]:
    # kube-scheduler derives the features from these fields.
    containers = (*(pod.spec.init_containers or ()), *(pod.spec.containers or ()))
    rules = (rule for container in containers for rule in container.restart_policy_rules or ())
    if any(rule.action == "RestartAllContainers" for rule in rules):
        yield "RestartAllContainersOnContainerExits"
    if pod.spec.host_network and pod.spec.host_users is False:
        yield "UserNamespacesHostNetworkSupport"


PORT: Final = Reason("port", "{subject} is taken", ends_with_any_pod=True)


class NodePorts(NodeRule):
    """Host ports of the pod must be free on the node (kube-scheduler's NodePorts).

    ``state.requests`` says which ports conflict.
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
        return cls(around.volumes) if around.volumes is not NO_VOLUMES else None

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """Why the pod cannot use its volumes on the node."""
        return self._volumes.obstacle(state.node, state.used)
