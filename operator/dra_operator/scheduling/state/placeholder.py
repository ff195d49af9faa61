"""Claims that hold devices although no pod uses them: immediate claims, and parked ones.

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

from typing import Final

from dra_api.core import Pod, PodResourceClaim, PodSpec
from dra_api.meta import ObjectMeta
from dra_api.references import owning_pod
from dra_api.resource import ResourceClaim, ResourceClaimConsumerReference

from dra_operator.scheduling.state.node import of_nodes

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
    # With the claim's own age: it waits its turn among the pods as if its pod had come with it.
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
    # By group and resource: the name is the scheduler that ends the contest, and several may share a cluster.
    consumers = claim.status.reserved_for or ()
    return next((it for it in consumers if (it.api_group, it.resource) == (PARKED_GROUP, CONTESTS)), None)


def is_parked(claim: ResourceClaim) -> bool:
    """Return whether the claim keeps its devices for a contest, so that no pod may use them."""
    return contest_of(claim) is not None
