"""What gets devices ahead of a node: pods of other schedulers at our scheduling gate, and claims that no pod uses.

A pod at the gate has no node, and its scheduler does not look at it. It is examined and planned like a pod of ours,
and its claims are allocated and reserved. Then the gate is removed, and with the same write the pod's choice of nodes
is narrowed to where its devices can be reached. Its scheduler chooses among these nodes.

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
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dra_api.core import Node, NodeSelector, NodeSelectorTerm, Pod, PodResourceClaim, PodSpec, Toleration
from dra_api.meta import ObjectMeta
from dra_api.references import owning_pod
from dra_api.resource import SCHEDULER_KEY, ResourceClaim, ResourceClaimConsumerReference

from dra_operator.allocator import node_selectors

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
    consumers = claim.status.reserved_for or ()
    return next((it for it in consumers if (it.api_group, it.resource) == (PARKED_GROUP, CONTESTS)), None)


def is_parked(claim: ResourceClaim) -> bool:
    """Return whether the claim keeps its devices for a contest, so that no pod may use them."""
    return contest_of(claim) is not None


def of_nodes(scheduler: str) -> Toleration:
    """Return the toleration of the nodes that belong to a scheduler."""
    return Toleration(key=SCHEDULER_KEY, operator="Equal", value=scheduler, effect="NoSchedule")
