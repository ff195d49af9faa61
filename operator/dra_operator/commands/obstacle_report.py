"""What ``kubectl dra why`` adds to an obstacle: how much is lacking, which claims and pods are behind it, who acts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from dra_api.core import Pod
from dra_api.quantity import Quantity
from dra_api.resource import ResourceClaim

from dra_operator.allocator import DeviceId
from dra_operator.cluster import Cluster
from dra_operator.placement import Case, LoadedNode, Obstacle, ObstacleKind, Question, pod_requests
from dra_operator.wording import listed

_BYTES: Final = ("memory", "ephemeral-storage", "hugepages-")


def about(
    obstacle: Obstacle, case: Case, question: Question, nodes: Sequence[LoadedNode], elsewhere: Collection[str]
) -> Iterator[str]:
    """Lines about nodes with the same obstacle. ``elsewhere``: UIDs of claims that are allocated for other nodes."""
    if (domains := question.neighbours.counts(obstacle)) is not None:
        yield f"pods that count: {_by_domain(domains)}"
    if obstacle.kind is ObstacleKind.RESOURCE:
        yield _shortage(case.pod, obstacle.subject, nodes)
    for claim in case.resource_claims:
        if claim.metadata.uid in elsewhere:
            yield f"claim {claim.metadata.name}: {holding(claim)}"


def unmade(cluster: Cluster, pod: Pod) -> Iterator[str]:
    """What is known of the claims that the pod waits for: only events say why a claim could not be made."""
    recorded = {entry.name for entry in pod.status.resource_claim_statuses or ()}
    for entry in pod.spec.resource_claims or ():
        if not entry.resource_claim_template_name or entry.name in recorded:
            continue
        template = f"{pod.metadata.namespace}/{entry.resource_claim_template_name}"
        if cluster.templates.get(template) is None:
            missing = "does not exist: create it, or correct resourceClaimTemplateName"
            yield f"entry {entry.name}: ResourceClaimTemplate {template} {missing}"
        else:
            who = "kube-controller-manager, or else the operator, makes the claim"
            why = "events of the pod (FailedResourceClaimCreation) say why if they cannot"
            yield f"entry {entry.name}: {who} from ResourceClaimTemplate {template}; {why}"


def holding(claim: ResourceClaim | None) -> str:
    """The claim's devices, and who uses them."""
    if claim is None:
        return "does not exist"
    if claim.status.allocation is None:
        return "not allocated"
    devices = ", ".join(str(DeviceId.of(result)) for result in claim.results) or "no devices"
    users = ", ".join(consumer.name for consumer in claim.status.reserved_for or ())
    return f"allocated ({devices}), " + (f"reserved for {users}" if users else "not reserved")


def _shortage(pod: Pod, resource: str, nodes: Sequence[LoadedNode]) -> str:
    """``the pod asks for 900; node-3 has the most free: 61500m of 62``."""

    def free(node: LoadedNode) -> int:
        return node.offered.get(resource, 0) - node.used.get(resource, 0)

    def amount(nanos: int) -> str:
        return str(Quantity.from_nanos(nanos, binary=resource.startswith(_BYTES)))

    best = max(nodes, key=free)
    wanted, left, total = pod_requests(pod)[resource], max(0, free(best)), best.offered.get(resource, 0)
    return f"the pod asks for {amount(wanted)}; {best.name} has the most free: {amount(left)} of {amount(total)}"


def _by_domain(pods: Mapping[str, int]) -> str:
    """``3 in zone-a, 1 in zone-b``: topology domains, the fullest first."""
    fullest = sorted(pods.items(), key=lambda item: (-item[1], item[0]))
    return listed((f"{count} in {domain}" for domain, count in fullest), most=6) or "none"
