"""Nodes where an attempt could fail with an error, even if they have too few devices (E2E-055).

A fault of the claims ends an attempt on all nodes: it shows on any node, or where a selector that does not compile
meets a device (``find_faulty_claims``). Under the reference's semantics so does a fault of what one node sees
(``find_error_nodes``):

- A selector raises on one of their devices, or they see a pool that is malformed (all requests) or in trouble (requests
  for all devices): the device counts know.
- Requests for all devices would take more of them than a claim may have.
- What a request computes of each device may fail on any: with such a request, any node may be one.
- A request for all devices would violate a constraint: that is fatal (section 7). The search only notices when it gets
there, so the requests before it must find enough devices. ``ConstraintConflicts`` compares, per node, the devices
  that the request collects with those that earlier requests may have taken. While they all agree, no error is possible.

Such a node need not fail: only the decision itself knows which devices are chosen before an error is met.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from dra_api.resource import MOST_RESULTS
from dra_ledger.basics import each
from dra_ledger.columns import UNKNOWN, lookup, values_of
from dra_ledger.features import Features
from dra_ledger.inventory import Inventory
from dra_ledger.pools import Pool
from dra_ledger.usage import Usage

from dra_operator.allocator.claim_program import Alternative, ClaimProgram, Stage
from dra_operator.allocator.nodes.device_counts import DeviceCounts, IncrementalAggregate, Query

Value = tuple[str, object]
MISSING: Final[Value] = ("missing", None)


class ComparedQueries(NamedTuple):
    """One constraint, and the requests whose devices meet under it."""

    queries: tuple[Query, ...]
    attribute: str
    distinct: bool
    lists: bool
    """List-valued attributes are compared as sets."""


class ValueCounts(NamedTuple):
    """Devices by value. A device counts once for each request that may take it."""

    devices: int
    values: Counter[Value]


class ConstraintConflicts(IncrementalAggregate[ValueCounts]):
    """One comparison over all pools."""

    def __init__(self, comparison: ComparedQueries) -> None:
        super().__init__(*comparison.queries)
        self._comparison = comparison
        self._nodes: dict[str, ValueCounts] = {}
        self._conflicting: set[str] = set()
        self.cluster_wide = 0
        """Devices that every node may see: with them any node may conflict."""

    def may_error(self) -> list[str]:
        """Nodes whose own devices do not all agree."""
        return sorted(self._conflicting)

    def part(self, inventory: Inventory, usage: Usage, pool: Pool) -> ValueCounts:
        view = pool.own_view()
        values: Counter[Value] = Counter()
        devices = 0
        for slice_ in () if view is None else view.slices if pool.owning_node is not None else pool.slices:
            for query in self._comparison.queries:
                for number in each(query.matches(pool, slice_, usage, inventory).true):
                    attribute = lookup(slice_.devices[number], slice_.pool.driver, self._comparison.attribute)
                    found = values_of(attribute, lists=self._comparison.lists) if attribute is not None else None
                    values.update(found or (MISSING,))
                    devices += 1
        return ValueCounts(devices, values)

    def add(self, owning_node: str | None, part: ValueCounts, sign: int) -> None:
        if owning_node is None:
            self.cluster_wide += sign * part.devices
            return
        if not part.devices:
            return
        old = self._nodes.pop(owning_node, ValueCounts(0, Counter()))
        values = old.values.copy()
        for value, count in part.values.items():
            values[value] += sign * count
            if not values[value]:
                del values[value]
        new = ValueCounts(old.devices + sign * part.devices, values)
        self._conflicting.discard(owning_node)
        if new.devices:
            self._nodes[owning_node] = new
            if not self._agrees(new):
                self._conflicting.add(owning_node)

    def _agrees(self, counts: ValueCounts) -> bool:
        """Whether any of the devices, taken in any order, satisfy the constraint.

        A value of unknown type can stand alone, but no second device can join it.
        """
        devices, values = counts
        if MISSING in values:
            return False
        if devices == 1:
            return True
        if not values.keys().isdisjoint(UNKNOWN):
            return False
        if self._comparison.distinct:
            return max(values.values()) == 1
        return max(values.values()) == devices


CountsOf = Callable[[Alternative], DeviceCounts]


@dataclass(frozen=True, slots=True)
class ErrorNodes:
    """``anywhere``: every node is one; ``nodes`` are those known by name.

    ``erring``: the counts of alternatives that may end a decision with an error, on whichever nodes it matters.
    """

    nodes: Collection[str]
    anywhere: bool
    erring: tuple[DeviceCounts, ...]


class Meeting(NamedTuple):
    """A request for all devices, the number of its stage, and a constraint that it shares with earlier requests."""

    stage: int
    alternative: Alternative
    comparison: ComparedQueries


class Counted(NamedTuple):
    """One alternative of a request: so many devices by these counts."""

    devices: int
    counts: DeviceCounts


def find_faulty_claims(program: ClaimProgram, counts_of: CountsOf, compiles: Callable[[str], bool]) -> ErrorNodes:
    """Return the nodes on which a fault of the claims would show; the counts are up to date."""
    numbers = range(len(program.claims))
    anywhere = program.fault is not None or program.may_fail_anywhere
    anywhere |= any(_least_of_claim(program, number) > MOST_RESULTS for number in numbers)
    alternatives = [other for stage in program.stages for other in stage.alternatives]
    erring = tuple([counts for counts in map(counts_of, alternatives) if counts.has_errors])
    if not erring or all(compiles(text) for other in alternatives for text in other.expressions):
        return ErrorNodes((), anywhere, erring)
    anywhere |= any(counts.cluster_wide_errors for counts in erring)
    return ErrorNodes({node: None for counts in erring for node in counts.may_error()}, anywhere, erring)


def _least_of_claim(program: ClaimProgram, number: int) -> int:
    """The devices that a claim asks for on every node, those of requests for all devices left out."""
    stages = [stage for stage in program.stages if stage.claim == number]
    return sum(min(0 if other.everything else other.count for other in stage.alternatives) for stage in stages)


def find_error_nodes(
    program: ClaimProgram,
    counts_of: CountsOf,
    conflicts_of: Callable[[ComparedQueries], ConstraintConflicts],
    features: Features,
) -> ErrorNodes:
    """Return the nodes of a program for the reference's semantics; the counts and conflicts are up to date."""
    nodes: dict[str, None] = {}
    anywhere = program.fault is not None or program.may_fail_anywhere
    needs = [[Counted(other.least, counts_of(other)) for other in stage.alternatives] for stage in program.stages]
    for need in chain.from_iterable(needs):
        anywhere |= need.counts.cluster_wide_errors > 0
        nodes.update(dict.fromkeys(need.counts.may_error()))
    for number in range(len(program.claims)):
        oversized = _oversized([stage for stage in program.stages if stage.claim == number], counts_of)
        anywhere |= oversized is None
        nodes.update(dict.fromkeys(oversized or ()))
    for meeting in meetings(program, features):
        conflicts = conflicts_of(meeting.comparison)
        anywhere |= conflicts.cluster_wide > 0
        path = [*needs[: meeting.stage], [Counted(1, counts_of(meeting.alternative))]]
        nodes.update((node, None) for node in conflicts.may_error() if _is_open(path, node))
    return ErrorNodes(nodes, anywhere, ())


def meetings(program: ClaimProgram, features: Features) -> Iterator[Meeting]:
    """The constraints that requests for all devices may violate."""
    for number, stage in enumerate(program.stages):
        before = [
            other
            for earlier in program.stages[:number]
            if earlier.claim == stage.claim
            for other in earlier.alternatives
        ]
        for alternative in stage.alternatives:
            for one in alternative.constraints if alternative.everything else ():
                met = [other for other in before if one in other.constraints]
                queries = tuple(Query.of(other) for other in (*met, alternative))
                comparison = ComparedQueries(queries, one.attribute, one.distinct, features.list_attributes)
                yield Meeting(number, alternative, comparison)


def _is_open(path: Iterable[Iterable[Counted]], node: str) -> bool:
    """Whether each request on the path, by itself, finds enough devices on the node."""
    return all(any(need.devices <= need.counts.most(node) for need in needs) for needs in path)


def _oversized(stages: Sequence[Stage], counts_of: CountsOf) -> list[str] | None:
    """The nodes on which one claim asks for more devices than it may have; None when any node may be one."""
    exact = [[other.count for other in stage.alternatives if not other.everything] for stage in stages]
    room = MOST_RESULTS - sum(min(counts) for counts in exact if counts)
    greedy = [
        tuple(map(counts_of, stage.alternatives)) for stage, counts in zip(stages, exact, strict=True) if not counts
    ]
    if room < 0 or any(first.cluster_wide * len(greedy) > room for first, *_ in greedy):
        return None
    if not greedy:
        return []
    share = room // len(greedy) + 1  # where they take more than the room, one of them takes at least so many
    nodes = {node for first, *_ in greedy for node in first.nodes(share - first.cluster_wide)}
    return sorted(node for node in nodes if sum(min(one.most(node) for one in ones) for ones in greedy) > room)
