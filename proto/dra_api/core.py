"""core/v1 Event: what a component says of an object, as far as people are shown it.

The parts of core/v1 that Dynamic Resource Allocation reads: Pod, Node, node selectors, Namespace.

Spec: api.md section 10.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import field

from dra_api.meta import LabelSelector, Object, Part
from dra_api.values import Quantity


class ObjectReference(Part, frozen=True):
    """The object that an event is about."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class Event(Object, frozen=True):
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None

    @property
    def when(self) -> str:
        """When it last happened, as an RFC 3339 text; empty if the event does not say."""
        return self.last_timestamp or self.event_time or self.metadata.creation_timestamp or ""


MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
"""On the pods that show a node's static pods: the kubelet makes such a pod again as long as its node has the file."""


class NodeSelectorRequirement(Part, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class NodeSelectorTerm(Part, frozen=True):
    match_expressions: tuple[NodeSelectorRequirement, ...] | None = None
    match_fields: tuple[NodeSelectorRequirement, ...] | None = None


class NodeSelector(Part, frozen=True):
    node_selector_terms: tuple[NodeSelectorTerm, ...] | None = None


class PreferredSchedulingTerm(Part, frozen=True):
    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Part, frozen=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] | None = None


class PodAffinityTerm(Part, frozen=True):
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] | None = None
    namespace_selector: LabelSelector | None = None
    topology_key: str = ""
    match_label_keys: tuple[str, ...] | None = None
    mismatch_label_keys: tuple[str, ...] | None = None


class WeightedPodAffinityTerm(Part, frozen=True):
    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Part, frozen=True):
    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] | None = None


class PodAntiAffinity(Part, frozen=True):
    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] | None = None


class Affinity(Part, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAntiAffinity | None = None


class TopologySpreadConstraint(Part, frozen=True):
    max_skew: int = 0
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] | None = None


class Taint(Part, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class Toleration(Part, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodResourceClaim(Part, frozen=True):
    """One entry of ``pod.spec.resourceClaims``."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class ContainerClaim(Part, frozen=True):
    """One entry of ``container.resources.claims``; without ``request`` it means the whole claim."""

    name: str = ""
    request: str = ""


class ResourceRequirements(Part, frozen=True):
    claims: tuple[ContainerClaim, ...] | None = None
    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class ContainerPort(Part, frozen=True):
    container_port: int = 0
    host_ip: str = field(name="hostIP", default="")
    host_port: int = 0
    protocol: str = ""


class ContainerRestartRule(Part, frozen=True):
    action: str = ""


class Container(Part, frozen=True):
    name: str = ""
    restart_policy_rules: tuple[ContainerRestartRule, ...] | None = None
    ports: tuple[ContainerPort, ...] | None = None
    restart_policy: str | None = None
    resources: ResourceRequirements = ResourceRequirements()


class PodSchedulingGate(Part, frozen=True):
    name: str = ""


class PodSchedulingGroup(Part, frozen=True):
    pod_group_name: str | None = None


class PersistentVolumeClaimVolumeSource(Part, frozen=True):
    """A PersistentVolumeClaim of the pod's namespace."""

    claim_name: str = ""


class Volume(Part, frozen=True):
    """Only the sources that tie a pod to certain nodes. The content of those of type dict is not read."""

    name: str = ""
    aws_elastic_block_store: dict[str, Any] | None = None
    azure_disk: dict[str, Any] | None = None
    azure_file: dict[str, Any] | None = None
    cinder: dict[str, Any] | None = None
    ephemeral: dict[str, Any] | None = None
    gce_persistent_disk: dict[str, Any] | None = None
    iscsi: dict[str, Any] | None = None
    persistent_volume_claim: PersistentVolumeClaimVolumeSource | None = None
    portworx_volume: dict[str, Any] | None = None
    rbd: dict[str, Any] | None = None
    vsphere_volume: dict[str, Any] | None = None


class PodOS(Part, frozen=True):
    name: str = ""


class PodSpec(Part, frozen=True):
    node_name: str = ""
    os: PodOS | None = None
    scheduler_name: str = ""
    host_network: bool = False
    host_users: bool | None = None
    priority: int | None = None
    preemption_policy: str = ""
    termination_grace_period_seconds: int | None = None
    restart_policy: str = ""
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    resources: ResourceRequirements | None = None
    overhead: dict[str, Quantity] | None = None
    resource_claims: tuple[PodResourceClaim, ...] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] | None = None
    volumes: tuple[Volume, ...] | None = None
    scheduling_gates: tuple[PodSchedulingGate, ...] | None = None
    scheduling_group: PodSchedulingGroup | None = None


class PodResourceClaimStatus(Part, frozen=True):
    """Which claim an entry got; without ``resource_claim_name`` it needs none."""

    name: str = ""
    resource_claim_name: str | None = None


class ContainerExtendedResourceRequest(Part, frozen=True):
    container_name: str = ""
    resource_name: str = ""
    request_name: str = ""


class PodExtendedResourceClaimStatus(Part, frozen=True):
    resource_claim_name: str = ""
    request_mappings: tuple[ContainerExtendedResourceRequest, ...] | None = None


class NodeAllocatableMappedResources(Part, frozen=True):
    name: str = ""
    quantity: Quantity | None = None


class NodeAllocatableOverheadResources(Part, frozen=True):
    name: str = ""
    per_pod: Quantity | None = None
    per_container: Quantity | None = None


class NodeAllocatableResourceClaimStatus(Part, frozen=True):
    """What the devices of a claim bring of the node's own resources, and cost of them, from 1.37 on."""

    resource_claim_name: str = ""
    containers: tuple[str, ...] | None = None
    mapping: tuple[NodeAllocatableMappedResources, ...] | None = None
    overhead: tuple[NodeAllocatableOverheadResources, ...] | None = None


class PodCondition(Part, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class ContainerStateWaiting(Part, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerState(Part, frozen=True):
    """The state of a waiting container. Other states are not kept."""

    waiting: ContainerStateWaiting | None = None


class ContainerStatus(Part, frozen=True):
    name: str = ""
    state: ContainerState | None = None


class PodStatus(Part, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[PodCondition, ...] | None = None
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] | None = None
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None
    node_allocatable_resource_claim_statuses: tuple[NodeAllocatableResourceClaimStatus, ...] | None = None
    nominated_node_name: str = ""
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


FINISHED: Final = ("Succeeded", "Failed")
"""The phases in which no container will run again."""


class Pod(Object, frozen=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_terminal(self) -> bool:
        """Succeeded or Failed: no container will run again."""
        return self.status.phase in FINISHED


class NodeSpec(Part, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class NodeCondition(Part, frozen=True):
    type: str = ""
    status: str = ""
    last_transition_time: str | None = None


class NodeStatus(Part, frozen=True):
    allocatable: dict[str, Quantity] | None = None
    conditions: tuple[NodeCondition, ...] | None = None
    declared_features: tuple[str, ...] | None = None


class Node(Object, frozen=True):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Namespace(Object, frozen=True):
    pass
