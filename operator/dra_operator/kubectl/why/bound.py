"""A pod that has its node: why its containers do not start, or why it does not end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dra_api.core import Event, Node, Pod
from dra_api.relations.references import is_reserved_for
from dra_api.resource import ResourceClaim
from dra_api.values.times import format_time

from dra_operator.allocator import DeviceId
from dra_operator.cache import evictions
from dra_operator.kubectl.facts import age, belonging, marks_of
from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.scheduling import NotTried, pre_filter
from dra_operator.scheduling.claims import CLAIM_UNMADE

from .claim_making import unmade
from .obstacle_report import holding
from .report import Report

FAILED: Final = "FailedPrepareDynamicResources"


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
    """What the kubelet said last of its devices, and drivers that publish nothing on the node."""
    about = [event for event in made.seen.every(Event) if event.involved_object.uid == pod.metadata.uid]
    failed = [event for event in about if event.reason == FAILED]
    if failed:
        last = max(failed, key=lambda event: event.when)
        yield f"{FAILED}, {age(last.when, made.now) or 'a while'} ago: {last.message}"
    for driver in _silent_drivers(made, pod):
        yield f"driver {driver} publishes no ResourceSlice for node {pod.spec.node_name}: is it running there?"


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
