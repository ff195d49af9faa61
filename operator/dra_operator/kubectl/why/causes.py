"""Causes behind a node's answer: the shortage, the holders, the rule that taints, the published devices.

The scheduler says that a node does not fit. These lines name the things that a person can look at or change: amounts,
claims, rules and pools, and the values in selectors beside the published values of the cluster's devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from itertools import compress
from typing import Final

from dra_api.core import Node, NodeSelectorRequirement, Pod
from dra_api.references import pod_is_done, volume_uses
from dra_api.resource import DeviceTaintRule, ResourceClaim
from dra_api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from dra_cel import Reference
from dra_ledger.entries import taint_text
from dra_ledger.pools import Status

from dra_operator.allocator import AllocationError, DeviceId, Inventory, Refusal, Rule, scheduler_of
from dra_operator.cache import Cluster, newest_slices
from dra_operator.kubectl.facts import age, driver_pods
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.why.changes import amount_of, quantity_of
from dra_operator.kubectl.why.node_changes import leaving_or_coming
from dra_operator.kubectl.why.published import Published, requirement_text, selector_text
from dra_operator.kubectl.why.request_changes import matching
from dra_operator.kubectl.why.selector_changes import compiled, drivers_of, references_of
from dra_operator.kubectl.why.supposed import similar_name
from dra_operator.scheduling import CycleState, PodFilter
from dra_operator.scheduling.rules import (
    NO_PROVISIONER,
    NODE_SELECTOR,
    NOT_OFFERED,
    PORT,
    READ_WRITE_ONCE_POD,
    RESOURCE,
    TOO_MANY_PODS,
    UnboundClaim,
)
from dra_operator.scheduling.state import POD_SLOTS, LoadedNode, Obstacle, pod_requests, ports_held
from dra_operator.wording import counted, listed


def about(
    obstacle: Obstacle,
    cycle_state: CycleState,
    pod_filter: PodFilter,
    nodes: Sequence[LoadedNode],
    elsewhere: Collection[str],
    cluster: Cluster,
) -> Iterator[str]:
    """Lines about nodes with the same obstacle. ``elsewhere``: UIDs of claims that are allocated for other nodes."""
    yield from dict.fromkeys(filter(None, (leaving_or_coming(state.node) for state in nodes)))
    if (domains := pod_filter.rules.counts(obstacle)) is not None:
        yield f"pods that count: {_by_domain(domains)}"
    if obstacle.reason is NOT_OFFERED:
        yield from _unoffered(cycle_state, obstacle.subject, cluster)
    if obstacle.reason is RESOURCE:
        yield _shortage(cycle_state.pod, obstacle.subject, nodes)
    if obstacle.reason is TOO_MANY_PODS:
        yield _slots(nodes)
    if obstacle.reason is PORT:
        yield _port_holder(cycle_state, nodes[0])
    if obstacle.reason is NODE_SELECTOR:
        yield from _unselected(cycle_state.pod, nodes[0])
    if obstacle.reason.is_about_volumes:
        yield from _volumes(cycle_state)
    for claim in cycle_state.resource_claims:
        if claim.metadata.uid in elsewhere:
            yield f"claim {claim.metadata.name}: {holding(claim)}"


def _unoffered(cycle_state: CycleState, resource: str, cluster: Cluster) -> Iterator[str]:
    """Whether a feature gate is off that classes need for it, or a similar name is offered."""
    features = cycle_state.allocator.inventory.features
    if not features.extended_resources:
        off = f"the feature gate DRAExtendedResource is off in Kubernetes {features.release}"
        yield f"{off}: its API server drops extendedResourceName from device classes"
    offered = {name for state in cycle_state.nodes for name in state.offered if "/" in name}
    served = {name for class_ in cluster.classes if (name := class_.spec.extended_resource_name)}
    if similar := similar_name(resource, offered | served):
        yield similar.removeprefix("; ")


def holding(claim: ResourceClaim | None) -> str:
    """The claim's devices, and who uses them."""
    if claim is None:
        return "does not exist"
    if claim.status.allocation is None:
        return "not allocated"
    devices = ", ".join(str(DeviceId.of(result)) for result in claim.results) or "no devices"
    users = ", ".join(consumer.name for consumer in claim.status.reserved_for or ())
    return f"allocated ({devices}), " + (f"reserved for {users}" if users else "not reserved")


def _unselected(pod: Pod, node: LoadedNode) -> Iterator[str]:
    """What is asked for, and what the first of the nodes has instead."""
    labels, wanted = node.node.metadata.labels or {}, pod.spec.node_selector or {}
    missing = {key: value for key, value in wanted.items() if labels.get(key) != value}
    for key, value in missing.items():
        has = f"has {key}={labels[key]}" if key in labels else f"has no label {key}"
        yield f"spec.nodeSelector asks for {key}={value}; {node.name} {has}"
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    for term in (required.node_selector_terms or ()) if required is not None and not missing else ():
        yield from _asked(term.match_expressions or (), "label", labels, node.name)
        yield from _asked(term.match_fields or (), "field", {"metadata.name": node.name}, node.name)


def _asked(
    requirements: Iterable[NodeSelectorRequirement], kind: str, its: Mapping[str, str], node: str
) -> Iterator[str]:
    """``its``: the labels or fields that the node has."""
    for one in requirements:
        has = f"{one.key}={its[one.key]}" if one.key in its else f"no {kind} {one.key}"
        yield f"spec.affinity.nodeAffinity asks for {requirement_text(one)}; {node} has {has}"


def _volumes(cycle_state: CycleState) -> Iterator[str]:
    """The pod's claims of volumes: what is bound, and for which nodes; what is not."""
    for held in cycle_state.volumes.bound:
        affinity = held.volume.spec.node_affinity if held.volume is not None else None
        if held.volume is not None and affinity is not None and affinity.required is not None:
            where = selector_text(affinity.required)
            yield f"PersistentVolumeClaim {held.claim.key} has PersistentVolume {held.volume.key}, for {where}"
    for it in cycle_state.volumes.unbound:
        class_ = it.claim.storage_class
        yield f"PersistentVolumeClaim {it.claim.key} (StorageClass {class_ or 'none'}) is not bound"
        if it.selected_node is None and it.storage_class.provisioner in NO_PROVISIONER:
            yield from _unfit(it)


def _unfit(it: UnboundClaim) -> Iterator[str]:
    """Why the volumes there are do not do for a claim of a class that makes none."""
    if not it.volumes:
        yield f"StorageClass {it.claim.storage_class} provisions none, and there is no PersistentVolume of it"
    for volume in it.volumes[:SHOWN_VALUES]:
        yield f"PersistentVolume {volume.key} {_unfitness(volume, it)}"


def _unfitness(volume: PersistentVolume, it: UnboundClaim) -> str:
    spec, claim = volume.spec, it.claim.spec
    has, asked = ((each or {}).get("storage") for each in (spec.capacity, claim.resources.requests))
    modes, wanted = spec.access_modes or (), claim.access_modes or ()
    if spec.claim_ref is not None and not volume.is_reserved_for(it.claim):
        return f"belongs to PersistentVolumeClaim {spec.claim_ref.namespace}/{spec.claim_ref.name}"
    if has is None or (asked is not None and has.nanos < asked.nanos):
        return f"has {has or 'no'} storage, and the claim asks for {asked}"
    if volume.status.phase not in ("Available", "Bound"):
        return f"is {volume.status.phase or 'not Available yet'}"
    if not set(wanted) <= set(modes):
        return f"has the access modes {listed(modes)}, and the claim asks for {listed(wanted)}"
    required = spec.node_affinity.required if spec.node_affinity is not None else None
    return f"is for {selector_text(required)}" if required is not None else "has other labels, or another mode or class"


def volume_causes(seen: Observed, pod: Pod, name: str) -> Iterator[str]:
    """What is known of a claim of a volume that keeps the pod from being tried: its class, its last event, its user."""
    key = f"{pod.metadata.namespace}/{name}"
    claim = seen.one(PersistentVolumeClaim, key)
    if claim is None:
        return
    if READ_WRITE_ONCE_POD in (claim.spec.access_modes or ()):
        using = [it for it in seen.every(Pod) if it.spec.node_name and not pod_is_done(it) and it.key != pod.key]
        if users := sorted(it.key for it in using if any(use.key == key for use in volume_uses(it))):
            yield f"PersistentVolumeClaim {key} is used by pod {listed(users)}"
    classes = [it.metadata.name for it in seen.every(StorageClass)]
    if not claim.is_bound and "storageclasses.storage.k8s.io" not in seen.unseen:
        if not claim.storage_class:
            yield f"PersistentVolumeClaim {key} has no StorageClass, and no PersistentVolume is bound to it"
        elif claim.storage_class not in classes:
            absent = f"names StorageClass {claim.storage_class}, which does not exist"
            yield f"PersistentVolumeClaim {key} {absent}{similar_name(claim.storage_class, classes)}"
    if events := seen.events_about(claim.metadata.uid):
        last = max(events, key=lambda it: it.when)
        yield f"PersistentVolumeClaim {key}, event {last.reason}: {last.message}"


def _shortage(pod: Pod, resource: str, nodes: Sequence[LoadedNode]) -> str:
    """Return ``the pod asks for 900; node-3 has the most free: 61500m of 62``, and the init container that needs it."""

    def free(node: LoadedNode) -> int:
        return node.offered.get(resource, 0) - node.used.get(resource, 0)

    best, wanted = max(nodes, key=free), pod_requests(pod)[resource]
    amounts = (wanted, max(0, free(best)), best.offered.get(resource, 0))
    asked, left, total = (quantity_of(resource, nanos) for nanos in amounts)
    alone = [it for it in pod.spec.init_containers or () if (its := amount_of(it, resource)) and its.nanos == wanted]
    who = f"init container {alone[0].name}" if alone else "the pod"
    return f"{who} asks for {asked}; {best.name} has the most free: {left} of {total}"


def _slots(nodes: Sequence[LoadedNode]) -> str:
    """``node-3 has the most room: 110 of 110 pods are there``."""

    best = max(nodes, key=lambda node: node.offered.get(POD_SLOTS, 0) - node.used.get(POD_SLOTS, 0))
    used, total = (quantity_of(POD_SLOTS, its.get(POD_SLOTS, 0)) for its in (best.used, best.offered))
    return f"{best.name} has the most room: {used} pods are there, and it takes {total}"


def _port_holder(cycle_state: CycleState, node: LoadedNode) -> str:
    """Which pods of a node hold a port that the pod asks for."""
    asked = {(port.protocol, port.number) for port in ports_held(cycle_state.pod)}
    pods_by_node = cycle_state.nodes.pods_by_node
    places = (pods_by_node.at(uid) for uid, name in pods_by_node if name == node.name)
    there = (place[0] for place in places if place is not None)
    holders = [pod.key for pod in there if asked & {(port.protocol, port.number) for port in ports_held(pod)}]
    return f"on {node.name} by {listed(sorted(holders))}"


def _by_domain(pods: Mapping[str, int]) -> str:
    """``3 in zone-a, 1 in zone-b``: topology domains, the fullest first."""
    fullest = sorted(pods.items(), key=lambda item: (-item[1], item[0]))
    return listed((f"{count} in {domain}" for domain, count in fullest), most=6) or "none"


def taint_sources(refusals: Sequence[Refusal], cycle_state: CycleState, cluster: Cluster) -> Iterator[str]:
    """A line for each rule with a taint on a device that is asked for, of a node that lost devices to taints."""
    nodes = {refusal.node for refusal in refusals if any(lost.rule is Rule.TAINTS for lost in refusal.lost)}
    states = [state for name in sorted(nodes) if (state := cycle_state.nodes.get(name)) is not None]
    devices = {device for state in states if len(cluster.rules) for device in _asked_for(cycle_state, state)}
    indexes: dict[tuple[bool, ...], Counter[tuple[str, ...]]] = {}
    for rule in sorted(cluster.rules, key=lambda rule: rule.metadata.name):
        if scheduler_of(rule.spec.taint) == cluster.scheduler_name:
            continue  # it keeps nothing of ours away
        if number := _selected(rule, devices, indexes):
            if (scheduler := scheduler_of(rule.spec.taint)) is not None:
                what = f"{number} of these devices to the scheduler {scheduler}"
                yield f"DeviceTaintRule {rule.metadata.name} gives {what}"
                continue
            what = f"taint {taint_text(rule.spec.taint)} on {number} of these devices"
            yield f"{what} comes from DeviceTaintRule {rule.metadata.name}"


def _selected(
    rule: DeviceTaintRule, devices: Collection[DeviceId], indexes: dict[tuple[bool, ...], Counter[tuple[str, ...]]]
) -> int:
    """Return how many of the devices the rule selects.

    ``indexes``: the devices, counted once by the fields that selectors give, as rules may be thousands.
    """
    selector = rule.spec.device_selector
    if selector is None:
        return 0
    wanted = (selector.driver, selector.pool, selector.device)
    given = tuple(it is not None for it in wanted)
    if given not in indexes:
        indexes[given] = Counter(tuple(compress(device, given)) for device in devices)
    return indexes[given][tuple(it for it in wanted if it is not None)]


def _asked_for(cycle_state: CycleState, state: LoadedNode) -> Iterator[DeviceId]:
    view = cycle_state.allocator.inventory.view(state.node)
    return (view.id(number) for numbers in matching(cycle_state, state).values() for number in numbers)


def unpublished_attributes(refusals: Sequence[Refusal], cycle_state: CycleState) -> Iterator[str]:
    """A line for each driver whose devices match, and lack the attribute of a constraint, with a similar one of theirs.

    Drivers of two vendors may say the same by two names. Only their authors can mend that.
    """
    found: dict[str, None] = {}
    for refusal in refusals:
        state = cycle_state.nodes.get(refusal.node)
        claim = next((it for it in cycle_state.resource_claims if it.key == refusal.claim.key), None)
        if refusal.rule is not Rule.CONSTRAINT or state is None or claim is None:
            continue
        view, matches = cycle_state.allocator.inventory.view(state.node), matching(cycle_state, state)
        numbers = {number for (key, _), its in matches.items() if key == claim.key for number in its}
        published: dict[str, set[str]] = {}
        for number in numbers:
            driver = view.driver(number)
            names = (name if "/" in name else f"{driver}/{name}" for name in view.devices[number].attributes or ())
            published.setdefault(driver, set()).update(names)
        wanted = [it.match_attribute or it.distinct_attribute for it in claim.spec.devices.constraints or ()]
        for name in filter(None, wanted):
            for driver in sorted(driver for driver, names in published.items() if name not in names):
                others = sorted(other for other, names in published.items() if name in names)
                found[_unpublished(name, driver, published[driver], others)] = None
    yield from filter(None, found)


def _unpublished(name: str, driver: str, known: Collection[str], others: Sequence[str]) -> str:
    """Return the line about a driver, empty if it has no similar attribute, and no other driver has this one."""
    by_id = {one.rpartition("/")[2].lower(): one for one in sorted(known)}
    similar = get_close_matches(name.rpartition("/")[2].lower(), by_id, 1, 0.7)
    instead = f", but {by_id[similar[0]]}" if similar else ""
    beside = f"; {listed(others)} {'does' if len(others) == 1 else 'do'}" if others else ""
    return f"driver {driver} does not publish {name}{instead}{beside}" if instead or beside else ""


def troubled_pools(refusals: Sequence[Refusal], cluster: Cluster, now: datetime) -> Iterator[str]:
    """A line for each incomplete pool that keeps a node from serving a request, and each driver of an invalid one."""
    said = {text for refusal in refusals for text in refusal.pools}
    if not said:
        return
    at_fault: dict[str, None] = {}
    for pool, slices in sorted(newest_slices(cluster.slices).items()):
        announced, lead = slices[0].spec.pool.resource_slice_count, f"resource pool {pool} "
        if any(text.startswith(f"{lead}is {Status.INVALID.value}") for text in said):
            at_fault[pool.driver] = None
        if len(slices) >= announced or not any(text.startswith(lead) for text in said):
            continue
        last = max(slice_.metadata.creation_timestamp or "" for slice_ in slices)
        since = f"; the last one came {age(last, now)} ago" if age(last, now) else ""
        there = f"{len(slices)} of {counted(announced, 'slice')} of pool {pool} are there{since}"
        yield f"{there}: wait for driver {pool.driver} to publish the others, or restart it"
    for driver in at_fault:
        yield f"driver {driver} has to publish it otherwise: look at its log and configuration, or update it"


SHOWN_VALUES: Final = 4
"""Values of one name."""


def wanted_values(
    refusals: Sequence[Refusal], cycle_state: CycleState, published: Published, pods: Iterable[Pod]
) -> Iterator[str]:
    """Yield lines for claims without a matching device on some node. ``pods`` has all pods, drivers included."""
    keys = {refusal.claim.key for refusal in refusals if not refusal.matching}
    claims = [claim for claim in cycle_state.resource_claims if claim.key in keys]
    if not claims:
        return
    program = cycle_state.allocator.compile([claim for claim in claims if claim.status.allocation is None])
    expressions = {
        selector.expression
        for stage in program.stages
        for alternative in stage.alternatives
        for selector in alternative.selectors
    }
    for stage in program.stages:
        for alternative in stage.alternatives:
            texts = [selector.expression for selector in alternative.selectors]
            if named := _of_no_driver(texts, published):
                yield f'request "{stage.request}" of claim {program.claims[stage.claim].key} {named}'
    yield from _drivers(expressions, published, cycle_state, pods)
    for name in sorted({name for expression in expressions for name in references_of(expression)}):
        yield _values(name, published)


def _of_no_driver(expressions: Sequence[str], published: Published) -> str:
    """That the selectors of a request and its class exclude each other by their drivers; empty if they do not."""
    named = sorted({driver for text in expressions for driver in drivers_of(text)})
    selectors = [selector for text in expressions if (selector := compiled(text)) is not None]
    if len(named) < 2 or not all(any(it.excludes(one) for it in selectors) for one in {*named, *published.drivers}):
        return ""
    return f"asks for devices of {listed(named)} at once, with the selectors of its class: no device is of two drivers"


def _drivers(
    expressions: set[str], published: Published, cycle_state: CycleState, pods: Iterable[Pod]
) -> Iterator[str]:
    asked = {driver for expression in expressions for driver in drivers_of(expression)}
    if known := sorted(asked & set(published.drivers)):
        inventory = cycle_state.allocator.inventory
        for driver in known:
            if any(_has_some_of(driver, node.node, inventory) for node in cycle_state.nodes):
                continue
            number = counted(published.drivers[driver], "device")
            if not inventory.features.partitionable_devices and published.is_partitioned(driver):
                yield (
                    f"driver {driver} publishes {number}, which count with the feature gate DRAPartitionableDevices "
                    "only: switch it on for dra-operator (--feature-gates) and the API server"
                )
                continue
            places = listed(published.places(driver), SHOWN_VALUES)
            yield f"driver {driver} publishes {number}, for none of these nodes: for {places}"
        return
    for driver in sorted(asked):
        there = listed(f"{name} ({counted(number, 'device')})" for name, number in published.drivers.most_common())
        others = f"drivers that publish devices: {there}" if there else "no driver publishes devices"
        if empty := published.empty_places(driver):
            where = f"{counted(len(empty), 'node')} ({listed(empty, SHOWN_VALUES)})"
            runs = f"it runs and found none: its log says why ({_where_it_runs(driver, pods)})"
            yield f"driver {driver} publishes slices without devices for {where}: {runs}; {others}"
            continue
        yield f"driver {driver} publishes nothing: start it ({_where_it_runs(driver, pods)}); {others}"


def _where_it_runs(driver: str, pods: Iterable[Pod]) -> str:
    found = driver_pods(driver, pods)
    if not found:
        return "no pod of a DaemonSet is named after it: is it installed?"
    return f"pods of its DaemonSet: {listed(map(_as_seen, found))}"


def _as_seen(pod: Pod) -> str:
    where = f" on {pod.spec.node_name}" if pod.spec.node_name else ""
    unready = [one for one in pod.status.conditions or () if one.type == "Ready" and one.status != "True"]
    return f"{pod.key}{where}, {pod.status.phase or 'Pending'}{', not ready' if unready else ''}"


def _has_some_of(driver: str, node: Node, inventory: Inventory) -> bool:
    """Whether devices of a driver are for a node, be they free or not; also if that cannot be told now."""
    try:
        view = inventory.view(node)
    except AllocationError:
        return True
    unclear = {pool.pool.driver for pool in view.troubled} | {pool.pool.driver for pool in view.outdated}
    return driver in unclear or any(
        view.driver(number) == driver for number in range(len(view.devices)) if view.here >> number & 1
    )


def _values(name: Reference, published: Published) -> str:
    what = f"{'attribute' if name.kind == 'attributes' else 'capacity'} {name}"
    if values := published.values(name):
        return f"in the whole cluster, devices publish {what}: {_counts(values)}"
    for domain in published.domains_of(name.kind, name.id):
        other = Reference(name.kind, domain, name.id)
        return f"no device of the cluster publishes {what}; they publish {other}: {_counts(published.values(other))}"
    known = listed(published.names_of(name.kind, name.domain), SHOWN_VALUES)
    said = f"no device of the cluster publishes {what}" + (f"; in {name.domain} they publish {known}" if known else "")
    other_kind = "capacity" if name.kind == "attributes" else "attributes"
    if values := published.values(Reference(other_kind, name.domain, name.id)):
        said += f'; device.{other_kind}["{name.domain}"].{name.id} is there: {_counts(values)}'
    return said


def _counts(values: Mapping[str, int]) -> str:
    return listed((f"{value} ({number})" for value, number in values.items()), SHOWN_VALUES)
