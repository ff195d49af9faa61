"""Why a pod or a claim is where it is, in words: the same filters and the same allocator, asked on live data."""

from __future__ import annotations

from collections.abc import Iterator

from dra_api.core import Node, Pod
from dra_api.references import pod_is_done
from dra_api.resource import ResourceClaim

from dra_operator.allocator import Allocated, Allocator, NodeFailure, Refusal, Refused
from dra_operator.allocator.basics.wording import counted
from dra_operator.cluster import Cluster
from dra_operator.placement import (
    Allocations,
    Demand,
    Demands,
    ExtendedResources,
    NodeFilter,
    NoPlace,
    NotReady,
    decided,
    extended_claims,
    plan,
    ready_claims,
    unservable,
    unsupported,
)

from .refused import grouped, holders, names


def why_pod(cluster: Cluster, allocator: Allocator, pod: Pod) -> Iterator[str]:
    """Lines about one pod."""
    if pod_is_done(pod):
        yield f"pod {pod.key} is done ({pod.status.phase or 'deleted before it got a node'})"
    elif pod.spec.node_name:
        yield f"pod {pod.key} is assigned to node {pod.spec.node_name}"
        for use, claim in cluster.claims_of(pod):
            yield f"  claim {use.name}: {_holding(claim)}"
    elif pod.spec.scheduling_gates:
        gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
        yield f"pod {pod.key} waits for its scheduling gates to be removed: {gates}"
    else:
        if pod.spec.scheduler_name != cluster.scheduler_name:
            name = pod.spec.scheduler_name or "default-scheduler"
            yield f"pod {pod.key} is placed by {name}, not by {cluster.scheduler_name}; what we would do:"
        yield from _why_waiting(cluster, allocator, pod)


def why_claim(cluster: Cluster, allocator: Allocator, claim: ResourceClaim) -> Iterator[str]:
    """Lines about one claim."""
    yield f"claim {claim.key}: {_holding(claim)}"
    if claim.metadata.deletion_timestamp is not None:
        users = ", ".join(consumer.name for consumer in claim.status.reserved_for or ())
        waits = f"waits for its consumers to end: {users}" if users else "waits for its finalizers"
        yield f"  being deleted; {waits}"
    if claim.status.allocation is not None:
        return
    pods = [pod for key in cluster.pods_by_claim.keys(claim.key) if (pod := cluster.pods.get(key)) is not None]
    if not pods:
        yield "  no pod uses it; devices are allocated when one does"
    for pod in pods:
        yield from (f"  {line}" for line in why_pod(cluster, allocator, pod))


def _holding(claim: ResourceClaim | None) -> str:
    if claim is None:
        return "does not exist"
    if claim.status.allocation is None:
        return "not allocated"
    results = claim.status.allocation.devices.results or ()
    devices = ", ".join(f"{result.driver}/{result.pool}/{result.device}" for result in results) or "no devices"
    users = ", ".join(consumer.name for consumer in claim.status.reserved_for or ()) or "nobody"
    return f"allocated ({devices}), reserved for {users}"


def _why_waiting(cluster: Cluster, allocator: Allocator, pod: Pod) -> Iterator[str]:
    try:
        claims = [claim for _, claim in ready_claims(pod, cluster.claims.get)]
    except NotReady as reason:
        yield f"pod {pod.key} is not tried: {reason}"
        return
    made, leftovers = extended_claims(pod, cluster.claims_owned_by(pod))
    if leftovers:
        names = ", ".join(claim.metadata.name for claim in leftovers)
        yield f"pod {pod.key} is not tried before claims of an earlier attempt are deleted: {names}"
        return
    claims += [made] if made is not None else []
    extended = ExtendedResources(pod, cluster.classes_serving(pod), made)
    open_claims = [claim for claim in claims if claim.status.allocation is None]
    prioritized = cluster.features.prioritized_list
    text = unsupported(pod) or unservable(open_claims, cluster.classes.__contains__, prioritized_list=prioritized)
    if text is not None:
        yield f"pod {pod.key} fits no node: {text}"
        return
    answer = decided(plan(pod, claims, cluster.node_states(), allocator, cluster.ledger.usage, extended=extended))
    if isinstance(answer, NoPlace) and answer.is_error:
        yield f"pod {pod.key} is held back on all nodes by an error: {answer.message}"
        return
    yield from _node_by_node(cluster, allocator, pod, claims, extended)


def _node_by_node(
    cluster: Cluster, allocator: Allocator, pod: Pod, claims: list[ResourceClaim], extended: ExtendedResources
) -> Iterator[str]:
    good: list[str] = []
    texts: dict[str, list[str]] = {}
    refusals: dict[Demand, list[tuple[Node, Refusal]]] = {}
    node_filter, allocations = NodeFilter(pod, cluster.node_states().repelling(pod)), Allocations(claims, ())
    demands = Demands(claims, extended, cluster.node_states(), allocator)
    for state in cluster.node_states():
        demand = demands.on(state)
        reason = node_filter.obstacle(state, demand.served)
        if reason is None and (allocations.elsewhere(state.node) or demand.is_outdated):
            reason = "a claim of the pod is allocated elsewhere"
        outcome = allocator.allocate(state.node, demand.recipe, cluster.ledger.usage) if reason is None else None
        if isinstance(outcome, Allocated):
            good.append(state.name)
        elif isinstance(outcome, Refused | NodeFailure):
            refusals.setdefault(demand, []).append((state.node, demand.told(outcome.refusal)))
        else:
            texts.setdefault(reason or str(outcome), []).append(state.name)
    nodes = len(cluster.nodes)
    yield f"pod {pod.key} would fit {len(good)} of {counted(nodes, 'node')}" + (f": {names(good)}" if good else "")
    for text, where in texts.items():
        yield f"  {names(where)}: {text}"
    held = holders(cluster.claims)
    for demand, members in refusals.items():
        yield from (f"  {line}" for line in grouped(members, allocator.inventory, demand.recipe, held))
    if good:
        yield "  nothing holds it back any more; if it stays, look at the operator's log"
