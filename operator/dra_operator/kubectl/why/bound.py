"""A pod that has its node: why its containers do not start, or why it does not end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dra_api.core import Event, Node, Pod
from dra_api.references import is_reserved_for
from dra_api.resource import ResourceClaim
from dra_api.values import format_time, parse_time

from dra_operator.allocator import DeviceId
from dra_operator.cache import evictions
from dra_operator.kubectl.facts import age, belonging, marks_of
from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.scheduling import NotTried, pre_filter
from dra_operator.scheduling.claims import CLAIM_UNMADE
from dra_operator.wording import listed

from .claim_making import unmade
from .obstacle_report import holding
from .report import Report
from .wanted_values import driver_pods

FAILED: Final = "FailedPrepareDynamicResources"
OTHERS: Final = frozenset({"FailedScheduling", "Preempted", "TaintManagerEviction", "FailedResourceClaimCreation"})
"""Reasons of events that tell nothing of why a pod with a node does not start."""
SHOWN_EVENTS: Final = 4
NOT_STARTED_SECONDS: Final = 300.0
"""After so long a pod that has its node and says nothing is looked into."""


def why_bound(made: Pipeline, pod: Pod) -> Report:
    """Its claims, then what is wrong."""
    report, cluster = Report(), made.cluster
    report.say(f"pod {pod.key} is assigned to node {pod.spec.node_name}")
    for use, claim in cluster.claims_of(pod):
        report.say(f"claim {use.name}: {holding(claim)}", indent=2)
        devices = [DeviceId.of(result) for result in claim.results] if claim is not None else []
        for line in belonging(marks_of(made.seen), devices):
            report.say(line, indent=4)
    if pod.metadata.deletion_timestamp is not None:
        report.object_to(*_ending(made, pod))
        return report
    for line in _wrong(made, pod):
        report.object_to(line)
    for line in _failures(made, pod) if pod.status.phase != "Running" else ():
        report.object_to(line)
    eviction = evictions.eviction_of(cluster, pod, made.now, made.now)
    if eviction is not None:
        when = "now" if eviction.due <= made.now else f"at {format_time(eviction.due)}"
        report.object_to(f"due to be deleted {when}: {eviction}")
    return report


def _wrong(made: Pipeline, pod: Pod) -> Iterator[str]:
    """What no kubelet can mend: the node, or claims that are not the pod's."""
    yield from _node(made, pod)
    if pod.status.phase == "Running":
        return
    found = pre_filter(pod, made.cluster.snapshot(made.allocator, made.now))
    if isinstance(found, NotTried) and found.obstacle.reason is CLAIM_UNMADE:
        yield from unmade(made, pod)
    preset = "the pod's manifest names the node (spec.nodeName), so no scheduler allocated devices"
    remedy = "create the pod with nodeSelector kubernetes.io/hostname instead"
    for use, claim in made.cluster.claims_of(pod):
        if claim is None:
            continue
        if claim.status.allocation is None:
            yield f"{preset} for claim {use.name}; {remedy}"
        elif not is_reserved_for(pod, claim):
            yield (
                f"claim {use.name} is not reserved for the pod, and the kubelet waits for that: check that the "
                "operator is running"
            )


def _node(made: Pipeline, pod: Pod) -> Iterator[str]:
    name = pod.spec.node_name
    node = made.cluster.nodes.get(name)
    if node is None:
        if "nodes" not in made.seen.unseen and len(made.cluster.nodes):
            yield f"node {name} does not exist: delete the pod"
    elif (state := ready_state(node)) != "True":
        yield f"node {name} is not ready (its condition Ready is {state}): look at its kubelet"


def ready_state(node: Node) -> str:
    """The status of the condition Ready; True for a node that reports none, as in tests and files."""
    found = [condition.status for condition in node.status.conditions or () if condition.type == "Ready"]
    return found[0] if found else "True"


def _failures(made: Pipeline, pod: Pod) -> Iterator[str]:
    """What warns of the pod last, by reason, and drivers that do not work on the node."""
    warnings = warnings_of(made, pod.metadata.uid)
    yield from warnings
    node = pod.spec.node_name
    for driver in _silent_drivers(made, pod):
        yield f"driver {driver} publishes no ResourceSlice for node {node}: is it running there?"
    drivers = {
        result.driver for _, claim in made.cluster.claims_of(pod) if claim is not None for result in claim.results
    }
    for driver in sorted(drivers):
        there = [it for it in driver_pods(driver, made.cluster.pods) if it.spec.node_name == node]
        if there and not any(map(is_ready, there)):
            names = listed(it.key for it in there)
            yield f"driver {driver} has slices for node {node}, but its pod there is not ready: {names}"
    since = _waits_for(made, pod)
    if not warnings and since > NOT_STARTED_SECONDS:
        yield f"has its node for {since / 60:.0f} min and has not started, and no event says why: look at its kubelet"


def is_ready(pod: Pod) -> bool:
    """Whether the pod runs, and does not say that it is not ready."""
    unready = any(one.type == "Ready" and one.status != "True" for one in pod.status.conditions or ())
    return pod.status.phase == "Running" and not unready


def _waits_for(made: Pipeline, pod: Pod) -> float:
    """Seconds since the pod got its node; 0 if it does not say when."""
    for one in pod.status.conditions or ():
        if (one.type, one.status) == ("PodScheduled", "True"):
            scheduled = parse_time(one.last_transition_time or "")
            return (made.now - scheduled).total_seconds() if scheduled is not None else 0.0
    return 0.0


def warnings_of(made: Pipeline, uid: str) -> list[str]:
    """The last event of each reason about an object, the newest first."""
    last: dict[str, Event] = {}
    for event in made.seen.every(Event):
        if event.involved_object.uid == uid and event.reason not in OTHERS:
            last[event.reason] = max(last.get(event.reason, event), event, key=lambda it: it.when)
    newest = sorted(last.values(), key=lambda event: (event.reason == FAILED, event.when), reverse=True)
    return [f"{it.reason}, {age(it.when, made.now) or 'a while'} ago: {it.message}" for it in newest[:SHOWN_EVENTS]]


def _silent_drivers(made: Pipeline, pod: Pod) -> list[str]:
    """Drivers of the pod's devices without any slice of the pool that the device is in."""
    held = {
        (result.driver, result.pool)
        for _, claim in made.cluster.claims_of(pod)
        if claim is not None
        for result in claim.results
    }
    there = {(slice_.spec.driver, slice_.spec.pool.name) for slice_ in made.cluster.slices}
    return sorted({driver for driver, pool in held - there})


def _ending(made: Pipeline, pod: Pod) -> Iterator[str]:
    """A pod that is being deleted: the kubelet ends it, and then the driver takes its devices back."""
    since = age(pod.metadata.deletion_timestamp or "", made.now)
    yield f"is being deleted since {since or pod.metadata.deletion_timestamp}: its kubelet ends it"
    yield from _node(made, pod)
    for driver in _silent_drivers(made, pod):
        gone = "the kubelet cannot end the pod before the driver has unprepared its claims: start the driver"
        yield f"driver {driver} publishes nothing on node {pod.spec.node_name}; {gone}"


def unknown_requests(pod: Pod, claims: dict[str, ResourceClaim]) -> Iterator[str]:
    """Containers that name a request that their claim does not have; ``claims`` by the name of the pod's entry."""
    for container in (*(pod.spec.init_containers or ()), *(pod.spec.containers or ())):
        for use in container.resources.claims or ():
            claim = claims.get(use.name)
            if claim is None or not use.request:
                continue
            names = [request.name for request in claim.spec.devices.requests or ()]
            if use.request not in names:
                known = f"which claim {claim.key} does not have; it has {', '.join(names)}"
                yield f"container {container.name} names request {use.request}, {known}"
