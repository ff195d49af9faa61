"""Claims that get devices before any pod uses them, because their annotation says so.

Such a claim is planned as if a pod used it that asks for nothing else: its *placeholder pod*, which exists only in
memory. The placeholder pod needs no room on a node, and node taints that say what a node is for do not keep it away,
since a claim cannot tolerate any; those of ``node.kubernetes.io`` (cordoned, not ready, unreachable) do, and those that
give a node to another scheduler.

An allocated immediate claim carries our finalizer instead of the built-in one. The built-in one is the sign by which a
claim controller takes devices back after the last consumer (CC-06); without any, a deleted claim would vanish while
its devices are in use.
"""

from __future__ import annotations

from dra_api.core import Pod, PodResourceClaim, PodSpec
from dra_api.meta import ObjectMeta
from dra_api.relations.references import owning_pod
from dra_api.resource import ResourceClaim

from .taints import of_nodes

ANNOTATION = "dra.kopf.dev/allocate"
IMMEDIATE = "immediate"
HOLD = "dra.kopf.dev/immediate"
"""The finalizer of an immediate claim with devices."""

_PREFIX = "claim:"  # no pod has such a name


def is_immediate(claim: ResourceClaim) -> bool:
    """Whether the claim is to have devices as long as it exists."""
    is_asked_for = (claim.metadata.annotations or {}).get(ANNOTATION) == IMMEDIATE
    return is_asked_for and owning_pod(claim) is None and claim.metadata.deletion_timestamp is None


def annotation_fault(claim: ResourceClaim) -> str:
    """What is wrong with the annotation, with a remedy; empty if nothing is."""
    value = (claim.metadata.annotations or {}).get(ANNOTATION)
    field = f"metadata.annotations[{ANNOTATION}]"
    if value is None:
        return ""
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
