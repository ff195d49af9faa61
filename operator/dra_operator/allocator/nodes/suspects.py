"""Nodes on which an attempt may end with an error, whatever else they lack (E2E-055).

- A selector raises on one of their devices, or they see a pool that is malformed (all requests) or in trouble
  (requests for all devices): the tallies know.
- Requests for all devices would take more of them than a claim may have.
- A request for all devices would violate a constraint. The search only notices when it gets there, so the requests
  before it must find enough devices.

A suspect need not fail: which devices are chosen before an error is met, only the decision itself knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from dra_api.resource import RESULTS_LIMIT

from dra_operator.allocator.basics.features import Features
from dra_operator.allocator.request.plan import Alternative, Plan, Step, attribute_of

from .conflicts import Conflicts, Scope
from .summaries import Query
from .tallies import Tally

TallyOf = Callable[[Alternative], Tally]


@dataclass(frozen=True, slots=True)
class Suspects:
    """``anywhere``: all nodes are; ``nodes`` are those that are known by name."""

    nodes: Collection[str]
    anywhere: bool


class Meeting(NamedTuple):
    """A request for all devices, the number of its step, and a constraint under which it meets those before."""

    step: int
    alternative: Alternative
    scope: Scope


class Need(NamedTuple):
    """One alternative of a request: so many devices of a tally."""

    devices: int
    tally: Tally


def find_suspects(
    plan: Plan, tally_of: TallyOf, conflicts_of: Callable[[Scope], Conflicts], features: Features
) -> Suspects:
    """The suspects of a plan; the tallies and conflicts are up to date."""
    nodes: dict[str, None] = {}
    anywhere = plan.fault is not None
    needs = [[Need(_least(other), tally_of(other)) for other in step.alternatives] for step in plan.steps]
    for need in chain.from_iterable(needs):
        anywhere |= need.tally.wild_suspicious > 0
        nodes.update(dict.fromkeys(need.tally.suspects()))
    for number in range(len(plan.claims)):
        oversized = _oversized([step for step in plan.steps if step.claim == number], tally_of)
        anywhere |= oversized is None
        nodes.update(dict.fromkeys(oversized or ()))
    for meeting in meetings(plan, features):
        conflicts = conflicts_of(meeting.scope)
        anywhere |= conflicts.wild > 0
        path = [*needs[: meeting.step], [Need(1, tally_of(meeting.alternative))]]
        nodes.update((node, None) for node in conflicts.suspects() if _is_open(path, node))
    return Suspects(nodes, anywhere)


def meetings(plan: Plan, features: Features) -> Iterator[Meeting]:
    """The constraints that requests for all devices may violate."""
    for number, step in enumerate(plan.steps):
        constraints = plan.claims[step.claim].spec.devices.constraints or ()
        before = [
            other for earlier in plan.steps[:number] if earlier.claim == step.claim for other in earlier.alternatives
        ]
        for alternative in step.alternatives:
            for position in alternative.constraints if alternative.everything else ():
                attribute = attribute_of(constraints[position], features)
                if attribute is not None:
                    met = [other for other in before if position in other.constraints]
                    queries = tuple(Query.of(other) for other in (*met, alternative))
                    yield Meeting(number, alternative, Scope(queries, *attribute, features.list_attributes))


def _is_open(path: Iterable[Iterable[Need]], node: str) -> bool:
    """Each request on the path, for itself, finds enough devices on the node."""
    return all(any(need.devices <= need.tally.most(node) for need in needs) for needs in path)


def _least(alternative: Alternative) -> int:
    return 1 if alternative.everything else alternative.count


def _oversized(steps: Sequence[Step], tally_of: TallyOf) -> list[str] | None:
    """The nodes on which one claim asks for more devices than it may have; None when any node may be one."""
    exact = [[other.count for other in step.alternatives if not other.everything] for step in steps]
    room = RESULTS_LIMIT - sum(min(counts) for counts in exact if counts)
    greedy = [tuple(map(tally_of, step.alternatives)) for step, counts in zip(steps, exact, strict=True) if not counts]
    if room < 0 or any(first.wild * len(greedy) > room for first, *_ in greedy):
        return None
    if not greedy:
        return []
    share = room // len(greedy) + 1  # where they take more than the room, one of them takes at least so many
    nodes = {node for first, *_ in greedy for node in first.nodes(share - first.wild)}
    return sorted(
        node for node in nodes if sum(min(tally.most(node) for tally in tallies) for tallies in greedy) > room
    )
