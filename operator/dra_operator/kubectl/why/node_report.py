"""Node by node: those that answer alike once, the closest of them in full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from dra_api.core import Node

from dra_operator.allocator import DeviceId, Refusal
from dra_operator.cache import Cluster
from dra_operator.commands.refusal_report import grouped, holders, names
from dra_operator.scheduling import CycleState, Fits, Lacking, Obstructed, PodFilter
from dra_operator.scheduling.claims import Demand
from dra_operator.scheduling.state import title
from dra_operator.wording import counted

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
    yield from (f"  {line}" for line in _in_the_way(cycle_state, pod_filter, said))
    yield from (f"  {line}" for line in _lacking(cycle_state, said, cluster, published, now))


def _in_the_way(cycle_state: CycleState, pod_filter: PodFilter, said: Sequence[NodeSaid]) -> Iterator[str]:
    """Nodes that are obstructed, faulty or undecided, by the words for it."""
    groups: dict[str, list[NodeSaid]] = {}
    has_some = any(not one.said.has_none for one in said)
    for one in said:
        if not isinstance(one.said.answer, Fits | Lacking) and not (one.said.has_none and has_some):
            groups.setdefault(one.said.answer.text, []).append(one)
    for text, members in groups.items():
        yield f"{names([one.state.name for one in members])}: {text}"
        answers = [it.answer for it in _different(members) if isinstance(it.answer, Obstructed)]
        if answers:
            elsewhere = frozenset[str]().union(*(answer.elsewhere for answer in answers))
            nodes = [one.state for one in members]
            yield from (f"  {line}" for line in about(answers[0].obstacle, cycle_state, pod_filter, nodes, elsewhere))
        yield from (f"  {line}" for line in _their_devices(members))


def _different(said: Iterable[NodeSaid]) -> list[Said]:
    """Each answer once, in the order of the nodes."""
    return list(dict.fromkeys(one.said for one in said))


def _their_devices(members: Sequence[NodeSaid]) -> Iterator[str]:
    """What the devices of nodes would say if the rule were not in the way."""
    would = [one.state.name for one in members if isinstance(one.said.devices, Fits)]
    whose = "its devices" if len(members) == 1 else "their devices"
    if would:
        yield f"{whose} would serve the claims" + (f" on {names(would)}" if len(would) < len(members) else "")
        return
    lacking = [it.lacking for it in _different(members) if it.lacking is not None]
    if lacking:
        best = max(lacking, key=lambda one: one.outline.closeness).refusal
        where = f" ({best.node} is the closest)" if len(members) > 1 else ""
        yield f"and {whose} would not suffice either{where}: {best.line()}"


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
    if without:
        yield f"{names(without)}: no device that is asked for"
    lacking = [it.outline for it in different if it.outline is not None]
    yield from troubled_pools(lacking, cluster, now)
    yield from taint_sources(lacking, cycle_state, cluster)
    yield from wanted_values(lacking, cycle_state, published, cluster.pods)
