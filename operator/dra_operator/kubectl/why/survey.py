"""What every node says about a waiting pod: its rules and, even where a rule keeps the pod away, its devices.

Of nodes that answer alike, the first one is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from dra_operator.allocator import AllocationError, Inventory, Refusal, Rule
from dra_operator.scheduling import (
    CycleState,
    Faulty,
    Fits,
    Lacking,
    NodeStatus,
    Obstructed,
    PodFilter,
    decided,
)
from dra_operator.scheduling.rules import RESOURCE
from dra_operator.scheduling.state import LoadedNode, Obstacle

SURVEYED_NODES: Final = 6
"""Nodes on which fixes are looked for."""
MOST_COUNTED_NODES: Final = 500
"""Nodes without a device that is asked for, of which all devices are counted."""


@dataclass(frozen=True, eq=False)
class Said:
    """What nodes say that are alike. ``answer`` is what the pipeline goes by; ``devices`` what the devices say where a
    rule is in the way. Names of devices, and the node's, are those of the first of these nodes."""

    answer: NodeStatus
    devices: NodeStatus | None = None

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
        ways = isinstance(self.answer, Obstructed) + (outline is not None)
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
    return Said(Obstructed(obstacle), decided(pod_filter.serve(state), pause) if needs else None)


def promising(said: Sequence[NodeSaid], inventory: Inventory) -> list[str]:
    """The nodes on which to look for fixes: the closest of those that are alike, the most promising first.

    Of nodes without a device that is asked for, those with the most other devices come first: a selector of the class
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
    nodes that may get some: those of the pools, or all."""
    outlines = {one.state.name: one.said.outline for one in said}
    if any(outline is None or outline.rule is not Rule.NO_DEVICES for outline in outlines.values()):
        return [], frozenset()
    found = {name: outline for name, outline in outlines.items() if outline is not None}
    of_pools = frozenset(name for name, outline in found.items() if outline.pools)
    return sorted({it.claim.key for it in found.values() if not it.claim.resource}), of_pools or frozenset(found)
