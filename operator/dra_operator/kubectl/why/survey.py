"""What every node says about a waiting pod: its rules and, even where a rule keeps the pod away, its devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from dra_operator.allocator import AllocationError, Refusal, Rule
from dra_operator.scheduling import (
    CycleState,
    Faulty,
    Fits,
    Lacking,
    NodeStatus,
    Obstructed,
    PodFilter,
    settled,
)
from dra_operator.scheduling.rules import RESOURCE
from dra_operator.scheduling.state import LoadedNode

SURVEYED_NODES: Final = 6
"""Nodes on which fixes are looked for."""


@dataclass(frozen=True)
class NodeSaid:
    """``answer`` is what the pipeline goes by; ``devices`` what the devices say where a rule is in the way."""

    state: LoadedNode
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

    @property
    def _alike(self) -> tuple[object, ...]:
        """Equal for nodes for which the same changes help."""
        outline = self.outline
        why = (outline.claim, outline.request, outline.rule) if outline is not None else ()
        return (self.answer.kind, getattr(self.answer, "obstacle", None), why)

    @property
    def _distance(self) -> tuple[object, ...]:
        """How far the node is from taking the pod: first by what is in the way, then by its devices."""
        outline = self.outline
        ways = isinstance(self.answer, Obstructed) + (outline is not None)
        closeness = tuple(-each for each in outline.closeness) if outline is not None else ()
        return (not isinstance(self.answer, Faulty), ways, closeness, -self._room, self.state.name)

    @property
    def _room(self) -> int:
        """What is left of the resource that is lacking, if one is."""
        if not isinstance(self.answer, Obstructed) or self.answer.obstacle.reason is not RESOURCE:
            return 0
        resource = self.answer.obstacle.subject
        return self.state.offered.get(resource, 0) - self.state.used.get(resource, 0)


def survey(cycle_state: CycleState, pod_filter: PodFilter) -> Iterator[NodeSaid]:
    """All nodes, in order of their names."""
    for state in cycle_state.nodes:
        try:
            obstacle = pod_filter.obstacle(state)
            if obstacle is None:
                yield NodeSaid(state, settled(pod_filter.serve(state)))
            else:
                needs = bool(pod_filter.demands.on(state).claims)
                yield NodeSaid(state, Obstructed(obstacle), settled(pod_filter.serve(state)) if needs else None)
        except AllocationError as error:
            yield NodeSaid(state, Faulty(error))


def promising(said: list[NodeSaid]) -> list[str]:
    """The nodes on which to look for fixes: the closest of those that are alike, the most promising first."""
    waiting = [one for one in said if not isinstance(one.answer, Fits)]
    chosen = [one for one in waiting if not one.has_none] or waiting
    closest: dict[tuple[object, ...], NodeSaid] = {}
    for one in sorted(chosen, key=lambda it: it._distance):
        closest.setdefault(one._alike, one)
    return [one.state.name for one in list(closest.values())[:SURVEYED_NODES]]
