"""Why a pod, or a claim, is where it is: without a node, with one and not started, at its end, or never looked at.

It names causes that neither kubelet nor scheduler can remove: nodes that are gone, claims that are not the pod's,
drivers that do not run, finalizers, schedulers whose Lease nobody holds. Warnings are taken from events, the last of
each reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import chain
from typing import Final

from dra_api.core import Event, Node, Pod
from dra_api.leases import Lease
from dra_api.meta import LEASES as LEASE_KIND
from dra_api.references import is_reserved_for, pod_is_done
from dra_api.resource import ResourceClaim
from dra_api.values import format_time, parse_time

from dra_operator.allocator import DeviceId
from dra_operator.cache import evictions
from dra_operator.commands.simulated import gated_by_others
from dra_operator.kubectl.facts import DriverPods, age, belonging, is_ready, marks_of, other_finalizers, renewal
from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.kubectl.why.causes import holding
from dra_operator.kubectl.why.changes import Report
from dra_operator.kubectl.why.holders import bring_back, is_unreachable, unreachable_since
from dra_operator.kubectl.why.published import Pools, likely_meant
from dra_operator.kubectl.why.supposed import unmade
from dra_operator.kubectl.why.waiting import why_besides, why_waiting
from dra_operator.scheduling import NotTried, pre_filter
from dra_operator.scheduling.claims import CLAIM_UNMADE
from dra_operator.scheduling.state import (
    ANNOTATION,
    GATE,
    IMMEDIATE,
    annotation_fault,
    is_at_gate,
    is_immediate,
    placeholder_of,
)
from dra_operator.wording import listed

FAILED: Final = "FailedPrepareDynamicResources"
OTHERS: Final = frozenset(
    {
        *("FailedScheduling", "Preempted", "TaintManagerEviction", "FailedResourceClaimCreation"),
        *("Scheduled", "Pulling", "Pulled", "Created", "Started", "SuccessfulAttachVolume"),
    }
)
"""Reasons of events that tell nothing of why a pod with a node does not start."""
UNDER_WAY: Final = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons for which containers of every pod wait for a while."""
SHOWN_EVENTS: Final = 4
NOT_STARTED_SECONDS: Final = 300.0
"""After so long a pod that has its node and says nothing is looked into."""


class Drivers:
    """What drivers publish, and which pods run them: looked up once for all pods of an answer."""

    def __init__(self, made: Pipeline) -> None:
        self.pools, self.pods = Pools(made.seen), DriverPods(made.seen.every(Pod))

    def silent(self, claims: Iterable[ResourceClaim]) -> list[str]:
        """Drivers of the devices of claims without any slice of the pool that the device is in."""
        devices = (DeviceId.of(result) for claim in claims for result in claim.results)
        return sorted({device.driver for device in devices if device.pool_id not in self.pools.newest})


def why_bound(made: Pipeline, pod: Pod) -> Report:
    """Its claims, then what is wrong."""
    report, cluster, drivers = Report(), made.cluster, Drivers(made)
    report.say(f"pod {pod.key} is assigned to node {pod.spec.node_name}")
    for use, claim in cluster.claims_of(pod):
        report.say(f"claim {use.name}: {holding(claim)}", indent=2)
        devices = [DeviceId.of(result) for result in claim.results] if claim is not None else []
        for line in belonging(marks_of(made.seen), devices):
            report.say(line, indent=4)
    if pod.metadata.deletion_timestamp is not None:
        report.object_to(*_ending(made, pod, drivers))
        return report
    for line in _wrong(made, pod):
        report.object_to(line)
    for line in _failures(made, pod, drivers) if pod.status.phase != "Running" else _waiting_containers(pod):
        report.object_to(line)
    eviction = evictions.eviction_of(cluster, pod, made.now, made.now)
    if eviction is not None:
        when = "now" if eviction.due <= made.now else f"at {format_time(eviction.due)}"
        report.object_to(f"due to be deleted {when}: {eviction}")
    return report


def not_started(made: Pipeline, pod: Pod, drivers: Drivers) -> str:
    """Return the first reason why a pod with a node does not start, or an empty text if none is known."""
    return next(chain(_wrong(made, pod), _failures(made, pod, drivers)), "")


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
    elif is_unreachable(node):
        yield f"node {name} is unreachable{unreachable_since(node, made.now)}: {bring_back('it', name)}"
    elif (state := ready_state(node)) != "True":
        yield f"node {name} is not ready (its condition Ready is {state}): look at its kubelet"


def ready_state(node: Node) -> str:
    """The status of the condition Ready; True for a node that reports none, as in tests and files."""
    found = [condition.status for condition in node.status.conditions or () if condition.type == "Ready"]
    return found[0] if found else "True"


def _failures(made: Pipeline, pod: Pod, drivers: Drivers) -> Iterator[str]:
    """What warns of the pod last, by reason, and drivers that do not work on the node."""
    events = warnings_of(made, pod.metadata.uid)
    warnings = [*events, *(text for text in _waiting_containers(pod) if not any(_says(it, text) for it in events))]
    yield from warnings
    claims = [claim for _, claim in made.cluster.claims_of(pod) if claim is not None]
    node, silent = pod.spec.node_name, drivers.silent(claims)
    yield from drivers.pools.vanished(it for it in claims if not any(one.driver in silent for one in it.results))
    for driver in silent:
        yield f"driver {driver} publishes no ResourceSlice for node {node}: is it running there?"
    for driver in sorted({result.driver for claim in claims for result in claim.results}):
        there = drivers.pods.on(driver, node)
        if there and not any(map(is_ready, there)):
            names = listed(it.key for it in there)
            yield f"driver {driver} has slices for node {node}, but its pod there is not ready: {names}"
        if not there and (named := drivers.pods.naming(driver)):
            names = listed(it.key for it in named)
            yield f"driver {driver} has slices for node {node}, but no pod there: it runs in {names}"
    since = _waits_for(made, pod)
    if not warnings and since > NOT_STARTED_SECONDS:
        yield f"has its node for {since / 60:.0f} min and has not started, and no event says why: look at its kubelet"


def _waiting_containers(pod: Pod) -> Iterator[str]:
    """Containers that the kubelet cannot start, in its words: an image, a Secret, or a program that ends at once."""
    for kind, statuses in (("init container", pod.status.init_container_statuses), ("", pod.status.container_statuses)):
        for one in statuses or ():
            waiting = one.state.waiting if one.state is not None else None
            if waiting is not None and waiting.reason and waiting.reason not in UNDER_WAY:
                said = f": {waiting.message}" if waiting.message else ""
                yield f"{kind or 'container'} {one.name} waits, {waiting.reason}{said}"


def _says(event: str, text: str) -> bool:
    """Return whether an event repeats the text about a container."""
    message = text.partition(": ")[2]
    return bool(message) and message in event


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
    for event in made.seen.events_about(uid):
        if event.reason not in OTHERS:
            last[event.reason] = max(last.get(event.reason, event), event, key=lambda it: it.when)
    newest = sorted(last.values(), key=lambda event: (event.reason == FAILED, event.when), reverse=True)
    return [f"{it.reason}, {age(it.when, made.now) or 'a while'} ago: {it.message}" for it in newest[:SHOWN_EVENTS]]


def _ending(made: Pipeline, pod: Pod, drivers: Drivers) -> Iterator[str]:
    """A pod that is being deleted: the kubelet ends it, and then the driver takes its devices back."""
    since = age(pod.metadata.deletion_timestamp or "", made.now)
    kept = pod.metadata.finalizers
    then = f", and then its finalizers keep it: {listed(kept)}" if kept else ""
    yield f"is being deleted since {since or pod.metadata.deletion_timestamp}: its kubelet ends it{then}"
    yield from _node(made, pod)
    for driver in drivers.silent(claim for _, claim in made.cluster.claims_of(pod) if claim is not None):
        gone = "the kubelet cannot end the pod before the driver has unprepared its claims: start the driver"
        yield f"driver {driver} publishes nothing on node {pod.spec.node_name}; {gone}"


def unknown_requests(made: Pipeline, pod: Pod) -> Iterator[str]:
    """Containers that name a request that their claim does not have."""
    uses = made.cluster.claims_of(pod)
    claims = {use.entry.name: claim for use, claim in uses if use.entry is not None}
    for container in (*(pod.spec.init_containers or ()), *(pod.spec.containers or ())):
        for use in container.resources.claims or ():
            claim = claims.get(use.name)
            if claim is None or not use.request:
                continue
            names = [request.name for request in claim.spec.devices.requests or ()]
            if use.request not in names:
                known = f"which claim {claim.key} does not have; it has {', '.join(names)}"
                yield f"container {container.name} names request {use.request}, {known}"


DEFAULT: Final = "default-scheduler"
INSTALL: Final = "install the operator (kubectl apply -k manifests)"
LEASES: Final = {DEFAULT: "kube-scheduler"}
"""By the name of the scheduler; the operator's Lease has the name in its own."""
SAME_NAME_SIMILARITY: Final = 0.9
"""From here on a name is a misspelt one: kai-scheduler is none of dra-scheduler."""


def not_ours(made: Pipeline, pod: Pod) -> str:
    """Why the operator does nothing for the pod; empty if it does."""
    controllers, cluster = made.controllers, made.cluster
    if is_at_gate(pod):
        gated = f"waits at the scheduling gate {GATE}, but the operator runs without the controller allocation"
        return "" if controllers.allocation else f"{gated}; what dra-operator would do"
    if pod.spec.scheduler_name != cluster.scheduler_name:
        name = pod.spec.scheduler_name or DEFAULT
        return f"is placed by {name}, not by {cluster.scheduler_name}; what dra-operator would do"
    missing = "is not placed: the operator runs without the controller placement; what dra-operator would do"
    return "" if controllers.placement else missing


def idle_scheduler(made: Pipeline, pod: Pod) -> Iterator[str]:
    """What is wrong with the scheduler itself.

    Where no Lease was read, it is not known which schedulers work. If none exists, the operator does not.
    """
    leases = {lease.metadata.name: lease for lease in made.seen.every(Lease)}
    name = made.cluster.scheduler_name if is_at_gate(pod) else pod.spec.scheduler_name or DEFAULT
    is_operators = name == made.cluster.scheduler_name or f"dra-operator-{name}" in leases
    if not leases and not (is_operators and made.seen.is_whole and str(LEASE_KIND) not in made.seen.unseen):
        return
    title = LEASES.get(name, f"dra-operator-{name}" if is_operators else name)
    lease = leases.get(title)
    if lease is not None and not lease.is_held(made.now):
        renewed = f"Lease {lease.key} of {lease.spec.holder_identity or 'nobody'} was renewed"
        yield f"no scheduler leads: {renewed} {renewal(lease, made.now)}; start the scheduler"
        return
    if lease is not None or was_looked_at(pod):
        return
    known = (it.removeprefix("dra-operator-") for it in leases if it.startswith("dra-operator-"))
    others = [it for it in (*known, made.cluster.scheduler_name, DEFAULT) if it != name]
    meant = likely_meant(name, others) or get_close_matches(name, others, 1, SAME_NAME_SIMILARITY)
    if is_operators or meant or not _lacks_claims(made, pod):
        kind, remedy = ("dra-operator", INSTALL) if is_operators else ("scheduler", "start that scheduler")
        seems = f"there is no Lease {title}, and no scheduler has looked at the pod"
        which = f" (did you mean {meant[0]}?)" if meant else ""
        other = "" if is_at_gate(pod) else f", or correct the pod's schedulerName{which}"
        yield f"apparently no {kind} serves the scheduler name {name}: {seems}; {remedy}{other}"


def _lacks_claims(made: Pipeline, pod: Pod) -> bool:
    """kube-scheduler does not try such a pod, and says nothing of it."""
    claims = [claim for _, claim in made.cluster.claims_of(pod)]
    is_short = len(claims) < len(pod.spec.resource_claims or ())
    return is_short or any(claim is None or claim.metadata.deletion_timestamp is not None for claim in claims)


def refusal_of(pod: Pod) -> str:
    """What the scheduler that places the pod said when it refused it last; empty if it has not refused it."""
    conditions = (one for one in pod.status.conditions or () if one.type == "PodScheduled" and one.status == "False")
    said = next((one.message for one in conditions if one.reason != "SchedulingGated"), "")
    return f"{pod.spec.scheduler_name or DEFAULT} says: {said}" if said else ""


def was_looked_at(pod: Pod) -> bool:
    """A scheduler has written why the pod waits."""
    return any(one.type == "PodScheduled" and one.reason != "SchedulingGated" for one in pod.status.conditions or ())


def why_pod(made: Pipeline, pod: Pod) -> Report:
    """Lines about one pod, and what would help it. Raises Problem."""
    [pod] = made.at_hand([pod])
    report = Report()
    if namespace_ends(made, pod.metadata.namespace):
        report.object_to(namespace_ends(made, pod.metadata.namespace), indent=0)
    if pod_is_done(pod):
        _tell_of_done(report, made, pod)
        return report
    if pod.spec.node_name:
        report.take_in(why_bound(made, pod))
    elif pod.spec.scheduling_gates and not is_at_gate(pod):
        report.object_to(f"pod {pod.key} {gated_by_others(pod)}", indent=0)
        report.take_in(why_besides(made, None, pod, places=False))
    else:
        who_else = not_ours(made, pod)
        if who_else:
            report.say(f"pod {pod.key} {who_else}:")
        elif is_at_gate(pod):
            report.say(
                f"pod {pod.key} waits for devices at the scheduling gate {GATE}, which the operator then removes"
            )
        idle = list(idle_scheduler(made, pod))
        report.take_in(why_waiting(made, pod, places=not who_else and not idle, is_ours=not who_else))
        for line in idle:
            report.object_to(line)
        if who_else and (said := refusal_of(pod)):  # it decides, whatever the operator would do
            report.object_to(said)
    for line in unknown_requests(made, pod):
        report.object_to(line)
    return report


def _tell_of_done(report: Report, made: Pipeline, pod: Pod) -> None:
    if not pod.is_terminal:
        since = age(pod.metadata.deletion_timestamp or "", made.now)
        kept = listed(pod.metadata.finalizers or ()) or "none; its deletion is under way"
        text = f"pod {pod.key} was deleted {since or 'a while'} ago, before it got a node"
        report.object_to(f"{text}, and is kept by its finalizers: {kept}", indent=0)
        return
    report.say(f"pod {pod.key} is done ({pod.status.phase})")
    if pod.status.phase == "Failed" and (pod.status.reason or pod.status.message):
        report.object_to(f"it failed: {': '.join(filter(None, (pod.status.reason, pod.status.message)))}")
    if pod.metadata.deletion_timestamp is not None and pod.metadata.finalizers:
        since = age(pod.metadata.deletion_timestamp, made.now) or "a while"
        report.object_to(f"was deleted {since} ago, and is kept by its finalizers: {listed(pod.metadata.finalizers)}")


def namespace_ends(made: Pipeline, name: str) -> str:
    """That the namespace is being deleted; empty if it is not."""
    namespace = made.cluster.namespaces.get(name)
    if namespace is None or namespace.metadata.deletion_timestamp is None:
        return ""
    since = age(namespace.metadata.deletion_timestamp, made.now) or "a while"
    return f"namespace {name} was deleted {since} ago and terminates: nothing new is made in it"


def why_claim(made: Pipeline, claim: ResourceClaim) -> Report:
    """Lines about one claim, and about the pods that wait with it."""
    report = Report()
    report.say(f"claim {claim.key}: {holding(claim)}")
    if claim.metadata.deletion_timestamp is not None:
        users = ", ".join(consumer.name for consumer in claim.status.reserved_for or ())
        finalizers = ", ".join(claim.metadata.finalizers or ()) or "none"
        others = ", ".join(other_finalizers(claim))
        waits = f"waits for its consumers to end: {users}" if users else f"waits for its finalizers: {finalizers}"
        waits += f"; then for its finalizers: {others}" if users and others else ""
        report.object_to(f"being deleted; {waits}")
    report.take_in(_ahead(made, claim), indent=2)
    if claim.status.allocation is not None:
        return report
    keys = made.cluster.pods_by_claim.keys(claim.key)
    pods = [pod for key in keys if (pod := made.cluster.pods.get(key)) is not None]
    if not pods and not is_immediate(claim):
        report.say("no pod uses it; devices are allocated when one does", indent=2)
    for pod in pods:
        report.take_in(why_pod(made, pod), indent=2)
    return report


def _ahead(made: Pipeline, claim: ResourceClaim) -> Report:
    """What the annotation of an immediate claim leads to, or what is wrong with it."""
    report = Report()
    if fault := annotation_fault(claim):
        report.object_to(fault, indent=0)
    if not is_immediate(claim):
        return report
    waiting = sorted(pod.metadata.name for pod in made.cluster.awaiting(claim))
    if claim.status.allocation is not None:
        report.say(f"keeps its devices as long as it has the annotation {ANNOTATION}: {IMMEDIATE}")
    elif not made.controllers.allocation:
        report.object_to(
            "is to be allocated at once, but the operator runs without the controller allocation", indent=0
        )
    elif waiting:
        report.say(f"is allocated together with a node for one of its waiting pods: {', '.join(waiting)}")
    else:
        report.say("is to be allocated at once")
        report.take_in(why_waiting(made, placeholder_of(claim, made.cluster.scheduler_name), places=True))
    return report
