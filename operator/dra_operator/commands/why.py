"""Why a pod or a claim is where it is, in words: the same filters and the same allocator, asked on live data."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from dra_api.core import Node, Pod
from dra_api.references import pod_is_done
from dra_api.resource import ResourceClaim
from dra_api.times import format_time

from dra_operator.allocator import Allocator, Refusal
from dra_operator.cluster import Cluster, evictions
from dra_operator.placement import (
    ANNOTATION,
    GATE,
    IMMEDIATE,
    OPENED_LAST,
    Case,
    Demand,
    Fits,
    Lacking,
    LoadedNode,
    NoPlace,
    NotTried,
    ObstacleKind,
    Obstructed,
    Plan,
    Question,
    annotation_fault,
    decided,
    examine,
    is_at_gate,
    is_immediate,
    plan,
    settled,
    stand_in,
    title,
    total,
)
from dra_operator.reconcile import Concerns
from dra_operator.wording import counted

from .obstacle_report import about, holding, unmade
from .refusal_report import grouped, holders, names

_SAID_OF_GATES: Final = "Scheduling is blocked due to non-empty scheduling gates"
"""What the API server writes into the condition of a pod with gates; the operator says more, with the same reason."""


def why_pod(
    cluster: Cluster, allocator: Allocator, pod: Pod, now: datetime, concerns: Concerns | None = None
) -> Iterator[str]:
    """Lines about one pod. ``concerns``: what is the operator's; None: everything."""
    if pod_is_done(pod):
        yield f"pod {pod.key} is done ({pod.status.phase or 'deleted before it got a node'})"
    elif pod.spec.node_name:
        yield f"pod {pod.key} is assigned to node {pod.spec.node_name}"
        for use, claim in cluster.claims_of(pod):
            yield f"  claim {use.name}: {holding(claim)}"
        yield from _eviction(cluster, pod, now)
    elif pod.spec.scheduling_gates and not is_at_gate(pod):
        yield _gated_by_others(pod)
    else:
        who_else = _not_ours(cluster, pod, concerns or Concerns())
        if who_else:
            yield f"pod {pod.key} {who_else}:"
        elif is_at_gate(pod):
            yield f"pod {pod.key} waits for devices at the scheduling gate {GATE}, which the operator then removes"
        yield from _why_waiting(cluster, allocator, pod, now, places=not who_else)


def why_claim(
    cluster: Cluster, allocator: Allocator, claim: ResourceClaim, now: datetime, concerns: Concerns | None = None
) -> Iterator[str]:
    """Lines about one claim."""
    yield f"claim {claim.key}: {holding(claim)}"
    if claim.metadata.deletion_timestamp is not None:
        users = ", ".join(consumer.name for consumer in claim.status.reserved_for or ())
        waits = f"waits for its consumers to end: {users}" if users else "waits for its finalizers"
        yield f"  being deleted; {waits}"
    yield from (f"  {line}" for line in _ahead(cluster, allocator, claim, now, concerns or Concerns()))
    if claim.status.allocation is not None:
        return
    pods = [pod for key in cluster.pods_by_claim.keys(claim.key) if (pod := cluster.pods.get(key)) is not None]
    if not pods and not is_immediate(claim):
        yield "  no pod uses it; devices are allocated when one does"
    for pod in pods:
        yield from (f"  {line}" for line in why_pod(cluster, allocator, pod, now, concerns))


def _ahead(
    cluster: Cluster, allocator: Allocator, claim: ResourceClaim, now: datetime, concerns: Concerns
) -> Iterator[str]:
    """What the annotation of an immediate claim leads to, or what is wrong with it."""
    if fault := annotation_fault(claim):
        yield fault
    if not is_immediate(claim):
        return
    if claim.status.allocation is not None:
        yield f"keeps its devices as long as it has the annotation {ANNOTATION}: {IMMEDIATE}"
        return
    if not concerns.allocation:
        yield "is to be allocated at once, but allocation is none of the operator's concerns"
        return
    waiting = sorted(pod.metadata.name for pod in cluster.awaiting(claim))
    if waiting:
        yield f"is allocated together with a node for one of its waiting pods: {', '.join(waiting)}"
        return
    yield "is to be allocated at once"
    yield from _why_waiting(cluster, allocator, stand_in(claim), now, places=True)


def _gated_by_others(pod: Pod) -> str:
    gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
    after_ours = OPENED_LAST if GATE in gates else frozenset()
    first = ", ".join(name for name in gates if name != GATE and name not in after_ours)
    then = f"; then the operator allocates its devices and removes {GATE}" if GATE in gates else ""
    last = "".join(f"; {name} is removed after that" for name in gates if name in after_ours)
    alike = [name for name in gates if name != GATE and name.startswith(GATE.partition("/")[0])]
    misspelt = "".join(f"; {name} is no gate of the operator, which removes only {GATE}" for name in alike)
    return f"pod {pod.key} waits for its scheduling gates to be removed: {first}{then}{last}{misspelt}"


def _not_ours(cluster: Cluster, pod: Pod, concerns: Concerns) -> str:
    """Why the operator does nothing for the pod; empty if it does."""
    if is_at_gate(pod):
        gated = f"waits at the scheduling gate {GATE}, but allocation is none of the operator's concerns"
        return "" if concerns.allocation else f"{gated}; what it would do"
    if pod.spec.scheduler_name != cluster.scheduler_name:
        name = pod.spec.scheduler_name or "default-scheduler"
        return f"is placed by {name}, not by {cluster.scheduler_name}; what we would do"
    return "" if concerns.placement else "is not placed: placement is none of the operator's concerns; what it would do"


def _eviction(cluster: Cluster, pod: Pod, now: datetime) -> Iterator[str]:
    eviction = evictions.eviction_of(cluster, pod, now)
    if eviction is not None and pod.metadata.deletion_timestamp is None:
        when = "now" if eviction.due <= now else f"at {format_time(eviction.due)}"
        yield f"  due to be deleted {when}: {eviction}"


def _why_waiting(cluster: Cluster, allocator: Allocator, pod: Pod, now: datetime, *, places: bool) -> Iterator[str]:
    found = examine(pod, cluster.snapshot(allocator, now))
    if not isinstance(found, Case):
        yield f"{title(pod)} {found.text}"
        if isinstance(found, NotTried) and found.obstacle.kind is ObstacleKind.CLAIM_UNMADE:
            yield from (f"  {line}" for line in unmade(cluster, pod))
        return
    for binding in found.failed.values():
        yield f"{title(pod)} gives its devices back and is placed again: {binding.text}"
    answer = decided(plan(found))
    if isinstance(answer, NoPlace) and answer.is_error:
        yield f"{title(pod)} is held back on all nodes by an error: {answer.message}"
        return
    yield from _node_by_node(cluster, found, places=places)
    if isinstance(answer, Plan) and answer.points:
        points = ", ".join(f"{name} {each}" for name, each in answer.points)
        yield f"  best is {answer.node} with {counted(total(answer.points), 'point')}: {points}"


def _node_by_node(cluster: Cluster, case: Case, *, places: bool) -> Iterator[str]:
    good: list[str] = []
    texts: dict[str, list[LoadedNode]] = {}
    obstructed: dict[str, list[Obstructed]] = {}
    refusals: dict[Demand, list[tuple[Node, Refusal]]] = {}
    question = Question(case)
    for state in case.nodes:
        answer = settled(question.ask(state))
        if isinstance(answer, Fits):
            good.append(state.name)
        elif isinstance(answer, Lacking):
            refusals.setdefault(answer.demand, []).append((state.node, answer.refusal))
        else:
            texts.setdefault(answer.text, []).append(state)
            if isinstance(answer, Obstructed):
                obstructed.setdefault(answer.text, []).append(answer)
    pod, nodes = case.pod, len(case.nodes)
    yield f"{title(pod)} would fit {len(good)} of {counted(nodes, 'node')}" + (f": {names(good)}" if good else "")
    for reason, where in texts.items():
        yield f"  {names([state.name for state in where])}: {reason}"
        if answers := obstructed.get(reason):
            elsewhere = frozenset[str]().union(*(answer.elsewhere for answer in answers))
            lines = about(answers[0].obstacle, case, question, where, elsewhere)
            yield from (f"    {line}" for line in lines)
    held = holders(cluster.claims)
    for demand, members in refusals.items():
        yield from (f"  {line}" for line in grouped(members, case.allocator.inventory, demand.program, held))
    under_way = list(_under_way(case))
    yield from under_way
    if good and not case.failed and places and not under_way:
        yield from (f"  {line}" for line in _free_to_go(pod))


def _free_to_go(pod: Pod) -> Iterator[str]:
    """The operator may know better: a write was refused, or it has other settings than this command was given."""
    said = [each for each in pod.status.conditions or () if (each.type, each.status) == ("PodScheduled", "False")]
    if not said or said[0].message == _SAID_OF_GATES:
        yield "nothing holds it back any more; if it stays, look at the operator's log"
        return
    yield f"nothing holds it back as it seems, but its condition says {said[0].reason}: {said[0].message}"
    yield "if that stays, look at the operator's log, and give this command the operator's settings (--feature-gates)"


def _under_way(case: Case) -> Iterator[str]:
    """Claims of volumes whose binding has begun."""
    for it in case.volumes.unbound:
        if it.selected_node is not None:
            yield f"  waits for PersistentVolumeClaim {it.claim.key} to get a new volume on node {it.selected_node}"
        elif it.reserved is not None:
            yield f"  waits for PersistentVolumeClaim {it.claim.key} to be bound to PersistentVolume {it.reserved.key}"
