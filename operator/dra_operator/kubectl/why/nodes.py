"""The answer of every node about a waiting pod: of its rules and, even if a rule keeps the pod away, of its devices.

Of nodes that answer alike, only the first one is asked. The report has each answer once, and the closest one in full,
with every rule that keeps the pod from the node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Final, NamedTuple

from dra_api.core import Node

from dra_operator.allocator import AllocationError, DeviceId, Inventory, Refusal, Rule
from dra_operator.cache import Cluster
from dra_operator.commands.refusal_report import details, grouped, holders, names
from dra_operator.kubectl.why.causes import about, taint_sources, troubled_pools, unpublished_attributes, wanted_values
from dra_operator.kubectl.why.published import Published
from dra_operator.kubectl.why.request_changes import every_request, matching
from dra_operator.scheduling import CycleState, Faulty, Fits, Lacking, NodeStatus, Obstructed, PodFilter, decided
from dra_operator.scheduling.claims import Demand
from dra_operator.scheduling.rules import RESOURCE
from dra_operator.scheduling.state import LoadedNode, Obstacle, title
from dra_operator.wording import capped, counted, listed

SURVEYED_NODES: Final = 6
"""Nodes on which fixes are looked for."""
MOST_COUNTED_NODES: Final = 500
"""Nodes without a device that is asked for, of which all devices are counted."""


_NAMED_PLACE: Final = re.compile(r"\b(device|resource pool) [^\s/]+/\S+")


@dataclass(frozen=True, eq=False)
class Said:
    """What nodes say that are alike. ``answer`` is what the pipeline goes by; ``devices`` what the devices say where a
    rule is in the way. Names of devices, and the node's, are those of the first of these nodes."""

    answer: NodeStatus
    devices: NodeStatus | None = None
    has_claims_elsewhere: bool = False
    """Claims of the pod are allocated for other nodes, so that it is not enough to remove the obstacle."""

    @cached_property
    def lacking(self) -> Lacking | None:
        """What devices lack, if they do."""
        return next((one for one in (self.answer, self.devices) if isinstance(one, Lacking)), None)

    @cached_property
    def outline(self) -> Refusal | None:
        """That without the hints."""
        return self.lacking.outline if self.lacking is not None else None

    @cached_property
    def has_none(self) -> bool:
        """No device there is of a kind that is asked for, and no pool may have some."""
        outline = self.outline
        return outline is not None and outline.rule is Rule.NO_DEVICES and not outline.pools

    @cached_property
    def same_changes(self) -> tuple[object, ...]:
        """Equal for nodes for which the same changes help."""
        outline = self.outline
        why = (outline.claim, outline.request, outline.rule) if outline is not None else ()
        return (self.answer.kind, getattr(self.answer, "obstacle", None), why)

    @cached_property
    def distance(self) -> tuple[object, ...]:
        """How far the node is from taking the pod: first by what is in the way, then by its devices."""
        outline = self.outline
        ways = isinstance(self.answer, Obstructed) + (outline is not None) + self.has_claims_elsewhere
        closeness = tuple(-each for each in outline.closeness) if outline is not None else ()
        ends_attempt = isinstance(self.answer, Faulty) and not self.answer.is_of_node
        return (not ends_attempt, ways, closeness)


class NodeSaid(NamedTuple):
    """A node, and what it and those alike say."""

    state: LoadedNode
    said: Said

    @property
    def distance(self) -> tuple[object, ...]:
        """As that of what is said, then by room and name."""
        return (self.said.distance, -self._room, self.state.name)

    @property
    def _room(self) -> int:
        """What is left of the resource that is lacking, if one is."""
        answer = self.said.answer
        if not isinstance(answer, Obstructed) or answer.obstacle.reason is not RESOURCE:
            return 0
        resource = answer.obstacle.subject
        return self.state.offered.get(resource, 0) - self.state.used.get(resource, 0)


def survey(
    cycle_state: CycleState, pod_filter: PodFilter, pause: Callable[[], None] = lambda: None
) -> Iterator[NodeSaid]:
    """All nodes, in order of their names; ``pause`` is called every few milliseconds, and may raise."""
    known: dict[Hashable, Said] = {}
    for state in cycle_state.nodes:
        pause()
        try:
            obstacle, alike = pod_filter.obstacle(state), pod_filter.likeness(state)
            said = known.get((obstacle, alike)) if alike is not None else None
            if said is None:
                said = known[obstacle, alike] = _asked(pod_filter, state, obstacle, pause)
        except AllocationError as error:
            said = Said(Faulty(error))
        yield NodeSaid(state, said)


def _asked(pod_filter: PodFilter, state: LoadedNode, obstacle: Obstacle | None, pause: Callable[[], None]) -> Said:
    """What the node says. Raises AllocationError."""
    if obstacle is None:
        return Said(decided(pod_filter.serve(state), pause))
    needs = bool(pod_filter.demands.on(state).claims)
    is_elsewhere = bool(list(pod_filter.allocations.elsewhere(state.node)))
    return Said(Obstructed(obstacle), decided(pod_filter.serve(state), pause) if needs else None, is_elsewhere)


def promising(said: Sequence[NodeSaid], inventory: Inventory) -> list[str]:
    """The nodes on which to look for fixes: the closest of those that are alike, the most promising first.

    Among nodes without a requested device, the node with the most other devices comes first: a selector of the class
    may be wrong.
    """
    waiting = [one for one in said if not isinstance(one.said.answer, Fits)]
    near = sorted((one for one in waiting if not one.said.has_none), key=lambda it: it.distance)
    chosen = near or sorted(_with_most_devices(waiting, inventory), key=lambda it: it.said.distance)
    closest: dict[tuple[object, ...], NodeSaid] = {}
    for one in chosen:
        closest.setdefault(one.said.same_changes, one)
    return [one.state.name for one in list(closest.values())[:SURVEYED_NODES]]


def with_devices(said: Sequence[NodeSaid], inventory: Inventory) -> list[NodeSaid]:
    """The nodes with any devices; all if none has some."""
    return [one for one in said[:MOST_COUNTED_NODES] if _devices_on(one, inventory)] or list(said)


def _with_most_devices(said: Sequence[NodeSaid], inventory: Inventory) -> list[NodeSaid]:
    counted = [(-_devices_on(one, inventory), one.state.name, one) for one in said[:MOST_COUNTED_NODES]]
    return [one for _, _, one in sorted(counted, key=lambda it: it[:2])]


def _devices_on(one: NodeSaid, inventory: Inventory) -> int:
    try:
        return len(inventory.view(one.state.node).devices)
    except AllocationError:
        return 0


def unpublished(said: Sequence[NodeSaid]) -> tuple[list[str], frozenset[str]]:
    """The claims, by their keys, of which no node has a device, since a driver or a part of a pool is missing; and the
    nodes that may get some: the nodes of the pools, or all."""
    outlines = {one.state.name: one.said.outline for one in said}
    absent = (Rule.NO_DEVICES, Rule.INVALID_POOL)
    if any(outline is None or outline.rule not in absent for outline in outlines.values()):
        return [], frozenset()
    found = {name: outline for name, outline in outlines.items() if outline is not None}
    of_pools = frozenset(name for name, outline in found.items() if outline.pools)
    return sorted({it.claim.key for it in found.values() if not it.claim.resource}), of_pools or frozenset(found)


def node_report(
    cycle_state: CycleState,
    pod_filter: PodFilter,
    said: Sequence[NodeSaid],
    cluster: Cluster,
    published: Published,
    now: datetime,
    *,
    is_partial: bool = False,
) -> Iterator[str]:
    """How many nodes the pod would fit, then why not the others; ``is_partial``: there are more than were asked."""
    if not said:
        yield f"{title(cycle_state.pod)} finds no node: the cluster has none"
        return
    good = [one.state.name for one in said if isinstance(one.said.answer, Fits)]
    asked = f"the {counted(len(said), 'node')} asked" if is_partial else counted(len(said), "node")
    yield f"{title(cycle_state.pod)} would fit {len(good)} of {asked}" + (f": {names(good)}" if good else "")
    yield from (f"  {line}" for line in _in_the_way(cycle_state, pod_filter, said, cluster))
    yield from (f"  {line}" for line in _lacking(cycle_state, said, cluster, published, now))


def _in_the_way(
    cycle_state: CycleState, pod_filter: PodFilter, said: Sequence[NodeSaid], cluster: Cluster
) -> Iterator[str]:
    """Nodes that are obstructed, faulty or undecided, by the words for it."""
    groups: dict[tuple[str, ...], list[NodeSaid]] = {}
    others: dict[tuple[str, ...], list[Obstacle]] = {}
    has_some = any(not one.said.has_none for one in said)
    for one in said:
        answer = one.said.answer
        if not isinstance(answer, Fits | Lacking) and not (one.said.has_none and has_some):
            more = _more_obstacles(pod_filter, one)
            key = (_alike(answer.text), *(it.text for it in more))
            groups.setdefault(key, []).append(one)
            others.setdefault(key, more)
    told = {_alike(one.said.answer.text) for one in said if isinstance(one.said.answer, Faulty)}
    for key, members in groups.items():
        yield f"{names([one.state.name for one in members])}: {members[0].said.answer.text}"
        nodes = [one.state for one in members]
        answers = [it.answer for it in _different(members) if isinstance(it.answer, Obstructed)]
        if answers:
            elsewhere = frozenset[str]().union(*(answer.elsewhere for answer in answers))
            first = about(answers[0].obstacle, cycle_state, pod_filter, nodes, elsewhere, cluster)
            yield from (f"  {line}" for line in first)
        for obstacle in others[key]:
            yield f"  also: {obstacle.text}"
            further = about(obstacle, cycle_state, pod_filter, nodes, (), cluster)
            yield from (f"    {line}" for line in further)
        yield from (f"  {line}" for line in _their_devices(members, cycle_state, cluster, told))


def _alike(text: str) -> str:
    """Return an error without the names of devices and pools, in which nodes with the same fault differ."""
    return _NAMED_PLACE.sub(r"\1", text)


def _more_obstacles(pod_filter: PodFilter, one: NodeSaid) -> list[Obstacle]:
    """What further rules have against a node that one rule keeps away already."""
    answer = one.said.answer
    if not isinstance(answer, Obstructed) or answer.elsewhere:
        return []
    return [it for it in pod_filter.obstacles(one.state) if it != answer.obstacle]


def _different(said: Iterable[NodeSaid]) -> list[Said]:
    """Each answer once, in the order of the nodes."""
    return list(dict.fromkeys(one.said for one in said))


def _their_devices(
    members: Sequence[NodeSaid], cycle_state: CycleState, cluster: Cluster, told: set[str]
) -> Iterator[str]:
    """What the devices of nodes would say if the rule were not in the way."""
    would = [one.state.name for one in members if isinstance(one.said.devices, Fits)]
    whose = "its devices" if len(members) == 1 else "their devices"
    if would:
        yield f"{whose} would serve the claims" + (f" on {names(would)}" if len(would) < len(members) else "")
        return
    yield from _faults(members, whose, told)
    lacking = [it.lacking for it in _different(members) if it.lacking is not None]
    if not lacking:
        return
    best = max(lacking, key=lambda one: one.outline.closeness)
    where = f" ({best.refusal.node} is the closest)" if len(members) > 1 else ""
    yield f"and {whose} would not suffice either{where}: {best.refusal.line()}"
    state, refusal = cycle_state.nodes.get(best.refusal.node), best.refusal
    if state is not None and (refusal.held or (refusal.rule is Rule.SELECTOR and not refusal.matching)):
        held = holders({claim.key: claim for device in refusal.held for claim in cluster.holders(device)}.values())
        more = details(refusal, state.node, cycle_state.allocator.inventory, best.demand.program, held)
        yield from (f"  {line}" for line in more)


def _faults(members: Sequence[NodeSaid], whose: str, told: set[str]) -> Iterator[str]:
    """Yield the errors of selectors on devices of nodes from which a rule keeps the pod as well, each once in full.

    ``told``: the errors that were told already, without the names of devices.
    """
    of_devices = [it.devices for it in _different(members)]
    for key, text in {_alike(it.text): it.text for it in reversed(of_devices) if isinstance(it, Faulty)}.items():
        yield f"and {whose} cannot be asked: {'the same error' if key in told else text}"
        told.add(key)


def _lacking(
    cycle_state: CycleState, said: Sequence[NodeSaid], cluster: Cluster, published: Published, now: datetime
) -> Iterator[str]:
    """Nodes whose devices do not do. Those without any that is asked for are one line, unless all are such."""
    different = _different(said)
    has_some = any(not it.has_none for it in different)
    without = [
        one.state.name for one in said if one.said.has_none and (has_some or not isinstance(one.said.answer, Lacking))
    ]
    refusals: dict[Demand, list[tuple[Node, Refusal]]] = {}
    for one in said:
        answer = one.said.answer
        if isinstance(answer, Lacking) and not (one.said.has_none and has_some):
            refusals.setdefault(answer.demand, []).append((one.state.node, answer.outline))
    by_node = {it.answer.outcome.node: it.answer for it in different if isinstance(it.answer, Lacking)}
    held: dict[DeviceId, str] = {}

    def full(outline: Refusal) -> Refusal:
        claims = {claim.key: claim for device in outline.held for claim in cluster.holders(device)}
        held.update(holders(claims.values()))
        return replace(by_node[outline.node].refusal, fix="")

    for demand, of_nodes in refusals.items():
        yield from grouped(of_nodes, cycle_state.allocator.inventory, demand.program, held, full)
    of_requests = requests_served(cycle_state, said)
    for text in dict.fromkeys(_lacks(name, said, of_requests) for name in without):
        yield f"{names([name for name in without if _lacks(name, said, of_requests) == text])}: {text}"
    yield from nowhere_together(of_requests)
    lacking = [it.outline for it in different if it.outline is not None]
    yield from _unshared(lacking, cycle_state)
    yield from unpublished_attributes(lacking, cycle_state)
    yield from troubled_pools(lacking, cluster, now)
    yield from capped(taint_sources(lacking, cycle_state, cluster), "DeviceTaintRules")
    yield from wanted_values(lacking, cycle_state, published, cluster.pods)


Served = Mapping[str, frozenset[str]]
"""The nodes that have enough devices for a request, in use or not, by the words for the request."""


def requests_served(cycle_state: CycleState, said: Sequence[NodeSaid]) -> Served:
    """For a pod with several requests: which nodes have devices for each. Empty for a pod with one."""
    program = cycle_state.allocator.compile([it for it in cycle_state.resource_claims if it.status.allocation is None])
    stages = [(program.claims[stage.claim].key, stage) for stage in program.stages]
    if len(stages) < 2 or any(isinstance(one.said.answer, Fits) for one in said):
        return {}
    found: dict[str, set[str]] = {f'request "{stage.request}" of claim {key}': set() for key, stage in stages}
    for one in said:
        matches = matching(cycle_state, one.state)
        for key, stage in stages:
            numbers = ((len(matches.get((key, it.request), ())), it) for it in stage.alternatives)
            if any(number >= max(1, 0 if it.everything else it.count) for number, it in numbers):
                found[f'request "{stage.request}" of claim {key}'].add(one.state.name)
    return {words: frozenset(nodes) for words, nodes in found.items()}


def nowhere_together(served: Served) -> Iterator[str]:
    """That each request could be served on some node, and no node has devices for all of them."""
    if served and all(served.values()) and not frozenset.intersection(*served.values()):
        places = (f"{words} (on {names(sorted(nodes))})" for words, nodes in served.items())
        yield f"no node has devices for all of its requests: {listed(places, 6)}"


def _lacks(node: str, said: Sequence[NodeSaid], served: Served) -> str:
    if any(node in nodes for nodes in served.values()):
        return f"no device for {listed(words for words, nodes in served.items() if node not in nodes)}"
    return "no device that is asked for"


def _unshared(lacking: Sequence[Refusal], cycle_state: CycleState) -> Iterator[str]:
    """Devices of which a part is asked for, and that are given away as a whole."""
    asks_for_part = {
        (claim.key, name)
        for claim in cycle_state.resource_claims
        for name, wanted in every_request(claim)
        if wanted.capacity is not None and wanted.capacity.requests
    }
    for outline in lacking:
        state = cycle_state.nodes.get(outline.node)
        if (outline.claim.key, outline.request) not in asks_for_part or state is None:
            continue
        view, held = cycle_state.allocator.inventory.view(state.node), set(outline.held)
        whole = [view.id(it) for it in range(len(view.devices)) if view.id(it) in held and not view.shareable >> it & 1]
        if whole:
            features = cycle_state.allocator.inventory.features
            off = "" if features.consumable_capacity else " (the feature gate DRAConsumableCapacity is off)"
            yield f"{listed(map(str, whole))}: given away as a whole, since it cannot be shared{off}"
