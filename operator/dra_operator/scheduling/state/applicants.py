"""Who asks for devices otherwise than as one pod of our scheduler: pods at our gate, immediate claims, and gangs.

A pod of another scheduler at our scheduling gate has no node, and its scheduler does not look at it. It is examined
and planned like a pod of ours, and its claims are allocated and reserved. Then the gate is removed, and with the same
write the pod's choice of nodes is narrowed to where its devices can be reached. Its scheduler chooses among these
nodes.

An *immediate* claim gets devices before any pod uses it, because its annotation says so. It is planned as if a pod used
it that asks for nothing else: its *placeholder pod*, which exists only in memory. The placeholder pod needs no room on
a node. Taints that say what a node is for do not keep it away, since a claim cannot tolerate any; those of
``node.kubernetes.io`` (cordoned, not ready, unreachable) do, and those that give a node to another scheduler.

An allocated immediate claim carries our finalizer instead of the built-in one. The built-in one is the sign by which a
claim controller takes devices back after the last consumer (CC-06); without any, a deleted claim would vanish while
its devices are in use.

A *parked* claim of ours lost a contest: another scheduler gave a device of it to another claim at the same time. It
keeps its devices, no pod runs with them, and ``status.reservedFor`` names the contest instead of pods. It must not give
them back as long as the other claim has one. kube-scheduler keeps the devices in use as a set and counts no holders:
when it sees one of two claims lose a device, it takes the device for free, although a claim of its own has it, and
gives it to the next pod (``docs/contests.md``). The reservation says all of that to the next leader, and keeps other
controllers from taking the devices back when the pod of the claim goes: kube-controller-manager leaves consumers alone
whose kind it does not know.

A *gang* is so many pods that get devices and nodes together, or none does. It lies within one namespace. Its pods are
grouped in one of five ways, the first that the pod uses:

=====================================  ==============================================  ==============================
the pod has                            its gang                                        its size
=====================================  ==============================================  ==============================
``dra.kopf.dev/gang: NAME``            all pods with this name                         ``dra.kopf.dev/gang-size``
``dra.kopf.dev/gang: N``, no size      the pods of its LeaderWorkerSet group, or of    N
                                       the same controller (a Job)
``spec.schedulingGroup``               the pods of this PodGroup, if it has the        ``minCount`` of the policy, or
                                       policy ``gang``, or asks for a topology         1
``kueue.x-k8s.io/pod-group-name``      all pods of this group                          ``...pod-group-total-count``
=====================================  ==============================================  ==============================

The keys of this project may be annotations or labels; the annotation counts if there are both. One that cannot be
understood is an obstacle of the pod, never a pod that is placed alone. What a PodGroup asks for may change, and its
pods stay one gang.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dra_api.core import Node, NodeSelector, NodeSelectorTerm, Pod, PodResourceClaim, PodSpec, Toleration
from dra_api.meta import ObjectMeta
from dra_api.references import group_name, owning_pod
from dra_api.resource import SCHEDULER_KEY, ResourceClaim, ResourceClaimConsumerReference
from dra_api.scheduling import PodGroup
from dra_api.validation.formats import fully_qualified_name

from dra_operator.allocator import node_selectors
from dra_operator.scheduling.state.obstacle import Obstacle, Reason

GATE = "dra.kopf.dev/allocate"
"""The name in ``spec.schedulingGates``."""
OPENED_LAST = frozenset({"scheduling.volcano.sh/queue-allocation-gate"})
"""Gates whose owners wait until no other gate is left, so that ours has to go before: Volcano's.

Volcano removes its gate when its queue has room for the pod, and says no more about nodes by that.
"""
GATED = "SchedulingGated"
"""The reason that the API server gives to a gated pod; people and autoscalers know it.

The pod keeps it after the gate until its scheduler has decided.
"""


def has_gate(pod: Pod) -> bool:
    """Whether the pod is, or comes, to our gate."""
    # Nearly no pod has gates, and this is asked at each change of each pod.
    return GATE in [gate.name for gate in pod.spec.scheduling_gates] if pod.spec.scheduling_gates else False


def is_at_gate(pod: Pod) -> bool:
    """Whether our gate is the one that has to go next.

    While others hold the pod back, it is not its turn: a queue such as Kueue has not admitted the pod, and may still
    say where it has to run.
    """
    gates = pod.spec.scheduling_gates
    if not gates:
        return False
    return {gate.name for gate in gates} - OPENED_LAST == {GATE}


def reach(selectors: Iterable[NodeSelector | None], node: Node | None) -> NodeSelectorTerm | None:
    """What a node must have to reach the devices of all these allocations, in one term; None if ``node`` lacks it.

    Each allocation adds the requirements of its first term that ``node`` matches: of alternatives the one that was
    chosen. Devices without a selector can be reached from anywhere. Raises NodeSelectionError.
    """
    # Only allocations with a selector bind the pod to nodes.
    wanted = [node_selectors.parse(selector) for selector in selectors if selector is not None]
    matched = [node_selectors.first_match(terms, node) for terms in wanted] if node is not None else []
    terms = [term.source for term in matched if term is not None]
    # Some device cannot be reached from there: narrowing the pod to the node would strand it.
    if len(terms) < len(wanted):
        return None
    return NodeSelectorTerm(
        # Each requirement once: the API server limits how long a term may be.
        match_expressions=tuple(dict.fromkeys(item for term in terms for item in term.match_expressions or ())),
        match_fields=tuple(dict.fromkeys(item for term in terms for item in term.match_fields or ())),
    )


ANNOTATION = "dra.kopf.dev/allocate"
IMMEDIATE = "immediate"
HOLD = "dra.kopf.dev/immediate"
"""The finalizer of an immediate claim with devices."""

_PREFIX = "claim:"  # no pod has such a name


def is_immediate(claim: ResourceClaim) -> bool:
    """Whether the claim is to have devices as long as it exists."""
    # A claim that a pod owns goes with the pod, and one that is being deleted gets nothing more.
    is_asked_for = (claim.metadata.annotations or {}).get(ANNOTATION) == IMMEDIATE
    return is_asked_for and owning_pod(claim) is None and claim.metadata.deletion_timestamp is None


def annotation_fault(claim: ResourceClaim) -> str:
    """What is wrong with the annotation, with a remedy; empty if nothing is."""
    value = (claim.metadata.annotations or {}).get(ANNOTATION)
    field = f"metadata.annotations[{ANNOTATION}]"
    if value is None:
        return ""
    # Said to the claim's author: a value that is silently ignored would leave the claim without devices for ever.
    if value != IMMEDIATE:
        return f'{field}: "{value[:100]}" is not supported: use "{IMMEDIATE}", or remove the annotation'
    if owning_pod(claim) is not None:
        return f"{field} has no effect on a claim that is made for a pod: remove it from the template"
    return ""


def placeholder_key(claim: ResourceClaim) -> str:
    """The key of the claim's placeholder pod among those of pods."""
    return f"{claim.metadata.namespace}/{_PREFIX}{claim.metadata.name}"


def placeholder_of(claim: ResourceClaim, scheduler: str) -> Pod:
    """The pod that is planned in the claim's place; it may take devices of the nodes that belong to the scheduler."""
    meta = claim.metadata
    # It has the claim's own age: it waits its turn among the pods as if its pod had come with it.
    return Pod(
        metadata=ObjectMeta(
            namespace=meta.namespace,
            name=f"{_PREFIX}{meta.name}",
            uid=f"{_PREFIX}{meta.uid}",
            creation_timestamp=meta.creation_timestamp,
        ),
        spec=PodSpec(
            resource_claims=(PodResourceClaim(name="claim", resource_claim_name=meta.name),),
            tolerations=(of_nodes(scheduler),),
        ),
    )


def is_placeholder(pod: Pod) -> bool:
    """Whether this is not really a pod."""
    return pod.metadata.name.startswith(_PREFIX)


def claim_behind(pod: Pod) -> str:
    """The key of the claim that a placeholder pod stands for."""
    return f"{pod.metadata.namespace}/{pod.metadata.name.removeprefix(_PREFIX)}"


def title(pod: Pod) -> str:
    """``pod default/train``, or the claim that a placeholder pod stands for."""
    return f"claim {claim_behind(pod)}" if is_placeholder(pod) else f"pod {pod.key}"


PARKED_GROUP: Final = "dra.kopf.dev"
CONTESTS: Final = "contests"


def contest(scheduler: str, rival: ResourceClaim) -> ResourceClaimConsumerReference:
    """Return the consumer of a claim that lost a device to ``rival``. The scheduler of this name ends the contest."""
    return ResourceClaimConsumerReference(PARKED_GROUP, CONTESTS, scheduler, rival.metadata.uid)


def contest_of(claim: ResourceClaim) -> ResourceClaimConsumerReference | None:
    """Return the contest for which the claim is reserved, or None."""
    # Group and resource decide: the name is the scheduler that ends the contest, and a cluster may have several.
    for it in claim.status.reserved_for or ():
        if (it.api_group, it.resource) == (PARKED_GROUP, CONTESTS):
            return it
    return None


def is_parked(claim: ResourceClaim) -> bool:
    """Return whether the claim keeps its devices for a contest, so that no pod may use them."""
    return contest_of(claim) is not None


def of_nodes(scheduler: str) -> Toleration:
    return Toleration(key=SCHEDULER_KEY, operator="Equal", value=scheduler, effect="NoSchedule")


GANG: Final = "dra.kopf.dev/gang"
GANG_SIZE: Final = "dra.kopf.dev/gang-size"
GANG_TOPOLOGY: Final = "dra.kopf.dev/gang-topology"
GANG_MATCH_ATTRIBUTE: Final = "dra.kopf.dev/gang-match-attribute"
KUEUE_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"
LEADER_WORKER_GROUP: Final = "leaderworkerset.sigs.k8s.io/group-key"
MOST_GANG_PODS: Final = 1000
"""Pods of one gang, finished ones included: so many can be looked at whenever one of them changes."""

GANG_MALFORMED: Final = Reason("gang-malformed", "{subject}: {detail}")
GANG_CROWDED: Final = Reason(
    "gang-crowded",
    f"gang {{subject}} has {{detail}} pods, and at most {MOST_GANG_PODS} are supported: delete finished pods, or make "
    "several gangs of them",
)
GANG_INCOMPLETE: Final = Reason(
    "gang-incomplete", "waits for other pods: gang {subject} has fewer than the {detail} pods that it needs"
)


@dataclass(frozen=True, slots=True)
class Gang:
    """``size`` pods run together, or none.

    ``topology``: the label of which their nodes have the same value. ``attribute``: the device attribute of which all
    their devices have the same value.
    """

    key: str
    """Pods with the same key are one gang. It has what each pod says, so pods that disagree are not of one gang."""
    title: str
    """What people call it."""
    size: int
    topology: str = ""
    attribute: str = ""

    @property
    def has_domain(self) -> bool:
        """Whether pods that come later have to be where the others are."""
        return bool(self.topology or self.attribute)


def gang_key(pod: Pod) -> str | None:
    """The gang of a pod; None for a pod without one, and for one whose annotation cannot be understood.

    For a pod of a PodGroup whatever the group asks for: the pods stay filed while it comes, changes and goes.
    """
    meta, group = pod.metadata, pod.spec.scheduling_group
    # Asked at each change of each pod: most name nothing at all.
    if not (meta.labels or meta.annotations or group):
        return None
    if not names_gang(pod) and (name := group_name(pod)) is not None:
        return _key_of_group(pod, name)
    found = gang_of(pod)
    return found.key if isinstance(found, Gang) else None


def names_gang(pod: Pod) -> bool:
    return _said(pod, GANG) is not None


def gang_of(pod: Pod, group: PodGroup | None = None) -> Gang | Obstacle | None:
    """The gang of a pod, or what is wrong with its annotations. ``group``: its PodGroup."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    if group is not None and (group.spec.scheduling_policy.gang is not None or topology_of(group) is not None):
        return _of_group(pod, group)
    if not labels and not annotations:
        return None
    value = _said(pod, GANG)
    if value is not None:
        return _named(pod, value)
    # A PodGroup has the size, if there is one.
    kueue = (labels or {}).get(KUEUE_GROUP) if group_name(pod) is None else None
    if kueue is not None:
        return _sized(pod, f"kueue {kueue}", kueue, KUEUE_COUNT, (annotations or {}).get(KUEUE_COUNT))
    # Placed alone, the pod would silently lack what its author asked for.
    for key in (GANG_SIZE, GANG_TOPOLOGY, GANG_MATCH_ATTRIBUTE):
        if _said(pod, key) is not None:
            return Obstacle(GANG_MALFORMED, key, f"the pod names no gang; set {GANG} as well, or remove it")
    return None


def topology_of(group: PodGroup) -> str | None:
    """The node label of which the nodes of the group's pods have to have the same value."""
    constraints = group.spec.scheduling_constraints
    return next((it.key for it in constraints.topology or ()), None) if constraints is not None else None


def ends_as_one(group: PodGroup) -> bool:
    """Whether the pods of the group end together or not at all; by default each may end alone."""
    mode = group.spec.disruption_mode
    return mode is not None and mode.all is not None


def _of_group(pod: Pod, group: PodGroup) -> Gang | Obstacle:
    """A group with a topology and without the policy ``gang`` is a gang of one: the others join where it is."""
    name, policy, topology = group.metadata.name, group.spec.scheduling_policy.gang, topology_of(group)
    # Two answers to one question: neither is better, and the pods of the group might differ.
    for key in (GANG, GANG_SIZE, *(() if topology is None else (GANG_TOPOLOGY,))):
        if _said(pod, key) is not None:
            return Obstacle(GANG_MALFORMED, key, f"PodGroup {name} of the pod says this as well; remove one of both")
    # Without the policy the group only asks for a place: the first pod chooses it, and the others follow.
    size = policy.min_count if policy is not None else 1
    if size > MOST_GANG_PODS:
        found = f"spec.schedulingPolicy.gang.minCount {size} is more than the {MOST_GANG_PODS} pods that are supported"
        return Obstacle(GANG_MALFORMED, f"PodGroup {name}", found)
    return _placed(pod, _key_of_group(pod, name), f"of PodGroup {name}", max(size, 1), topology)


def _key_of_group(pod: Pod, name: str) -> str:
    # What the pod asks for in addition is part of the key: pods that disagree are not one gang.
    asked = (_said(pod, GANG_TOPOLOGY), _said(pod, GANG_MATCH_ATTRIBUTE))
    return " ".join((f"{pod.metadata.namespace}/podgroup {name}", *(it for it in asked if it)))


def _named(pod: Pod, value: str) -> Gang | Obstacle:
    size = _said(pod, GANG_SIZE)
    if size is not None:
        return _sized(pod, f"name {value}", value, GANG_SIZE, size)
    # A number is a size, and the pod's controller is the gang; everything else is a name.
    if not value.isdecimal():
        return Obstacle(GANG_MALFORMED, GANG, f'"{value[:80]}" is a name without a size; set {GANG_SIZE} as well')
    # Leader and workers of one group have different controllers, so the label says who belongs together.
    group = (pod.metadata.labels or {}).get(LEADER_WORKER_GROUP)
    if group is not None:
        return _sized(pod, f"group {group}", f"of LeaderWorkerSet group {group}", GANG, value)
    owner = pod.metadata.controller
    if owner is None:
        return Obstacle(GANG_MALFORMED, GANG, f"the pod has no controller; give the gang a name, and set {GANG_SIZE}")
    return _sized(pod, f"owner {owner.uid}", f"of {owner.kind} {owner.name}", GANG, value)


def _sized(pod: Pod, name: str, title: str, key: str, said: str | None) -> Gang | Obstacle:
    if said is None:
        return Obstacle(GANG_MALFORMED, key, "is missing; set it to the number of pods in the gang")
    # Checked by characters: int() accepts other digits, blanks and signs, and takes long for a long text.
    if not (said.isascii() and said.isdecimal() and len(said) < 10 and 0 < int(said) <= MOST_GANG_PODS):
        return Obstacle(GANG_MALFORMED, key, f'"{said[:80]}" is not a number of pods; set it to 1 to {MOST_GANG_PODS}')
    topology, attribute = _said(pod, GANG_TOPOLOGY), _said(pod, GANG_MATCH_ATTRIBUTE)
    # Compared as numbers: "08" and "8" are one size.
    gang = f"{pod.metadata.namespace}/{name} of {int(said)} {topology or ''}"
    return _placed(pod, f"{gang} {attribute}" if attribute else gang, title, int(said))


def _placed(pod: Pod, key: str, title: str, size: int, topology: str | None = None) -> Gang | Obstacle:
    """With what the pod says of the places. ``topology``: what its PodGroup says."""
    if topology is None:
        topology = _said(pod, GANG_TOPOLOGY)
    if topology == "":
        return Obstacle(GANG_MALFORMED, GANG_TOPOLOGY, "is empty; set it to the key of a node label, or remove it")
    attribute = _said(pod, GANG_MATCH_ATTRIBUTE)
    if attribute is not None and not _is_attribute(attribute):
        problem = f'"{attribute[:80]}" is not a device attribute; name it with its domain, as matchAttribute does'
        return Obstacle(GANG_MALFORMED, GANG_MATCH_ATTRIBUTE, problem)
    return Gang(key, title, size, topology or "", attribute or "")


def _is_attribute(name: str) -> bool:
    # A name without a domain means the driver's own attribute, and the gang may have devices of several drivers.
    return name.count("/") == 1 and not any(fully_qualified_name(name, ""))


def _said(pod: Pod, key: str) -> str | None:
    # The annotation first: labels are often shared by a whole workload, annotations are the pod's own word.
    for values in (pod.metadata.annotations, pod.metadata.labels):
        if values and key in values:
            return values[key]
    return None
