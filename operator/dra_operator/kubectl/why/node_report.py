"""Node by node: those that answer alike once, the closest of them in full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from dra_api.core import Node

from dra_operator.allocator import DeviceId, Refusal, Rule
from dra_operator.cache import Cluster
from dra_operator.commands.refusal_report import details, grouped, holders, names
from dra_operator.scheduling import CycleState, Fits, Lacking, Obstructed, PodFilter
from dra_operator.scheduling.claims import Demand
from dra_operator.scheduling.state import Obstacle, title
from dra_operator.wording import counted, listed

from .fixes.requests import every_request, matching
from .obstacle_report import about
from .published import Published
from .survey import NodeSaid, Said
from .taint_sources import taint_sources
from .troubled_pools import troubled_pools
from .wanted_values import wanted_values


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
            key = (answer.text, *(it.text for it in more))
            groups.setdefault(key, []).append(one)
            others.setdefault(key, more)
    for key, members in groups.items():
        yield f"{names([one.state.name for one in members])}: {key[0]}"
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
        yield from (f"  {line}" for line in _their_devices(members, cycle_state, cluster))


def _more_obstacles(pod_filter: PodFilter, one: NodeSaid) -> list[Obstacle]:
    """What further rules have against a node that one rule keeps away already."""
    answer = one.said.answer
    if not isinstance(answer, Obstructed) or answer.elsewhere:
        return []
    return [it for it in pod_filter.obstacles(one.state) if it != answer.obstacle]


def _different(said: Iterable[NodeSaid]) -> list[Said]:
    """Each answer once, in the order of the nodes."""
    return list(dict.fromkeys(one.said for one in said))


def _their_devices(members: Sequence[NodeSaid], cycle_state: CycleState, cluster: Cluster) -> Iterator[str]:
    """What the devices of nodes would say if the rule were not in the way."""
    would = [one.state.name for one in members if isinstance(one.said.devices, Fits)]
    whose = "its devices" if len(members) == 1 else "their devices"
    if would:
        yield f"{whose} would serve the claims" + (f" on {names(would)}" if len(would) < len(members) else "")
        return
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
    yield from troubled_pools(lacking, cluster, now)
    yield from taint_sources(lacking, cycle_state, cluster)
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
