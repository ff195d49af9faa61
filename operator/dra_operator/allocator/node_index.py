"""The index over nodes: which nodes can hold the requests at all, without looking at all nodes (design.md section 3).

It keeps summaries of recent queries. It may let too many nodes through, never too few: taints, capacity, counters and
constraints between ordinary requests are left to the decision itself.

Nodes on which the attempt may end for all nodes are let through even if they lack devices, and have to be tried first
(E2E-055). A fault of the claims ends an attempt on all nodes: it shows on any node, or where a selector that does not
compile meets a device (``find_faulty_claims``). Under the reference's semantics so does a fault of what one node sees
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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple, TypeVar

from dra_api.resource import MOST_RESULTS
from dra_ledger.basics import CLASSES, Expressions, each
from dra_ledger.columns import UNKNOWN, lookup, values_of
from dra_ledger.features import Features
from dra_ledger.inventory import Inventory
from dra_ledger.pools import Pool
from dra_ledger.usage import Usage

from dra_operator.allocator.claim_program import Alternative, ClaimProgram, Stage
from dra_operator.allocator.device_counts import DeviceCounts, IncrementalAggregate, Query
from dra_operator.allocator.outcome import Refusal, RefusedClaim, Rule

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
        # A cluster-wide pool by all of its slices: which of them a node sees differs from node to node.
        for slice_ in () if view is None else view.slices if pool.owning_node is not None else pool.slices:
            for query in self._comparison.queries:
                for number in each(query.matches(pool, slice_, usage, inventory).true):
                    attribute = lookup(slice_.devices[number], slice_.pool.driver, self._comparison.attribute)
                    found = values_of(attribute, lists=self._comparison.lists) if attribute is not None else None
                    values.update(found or (MISSING,))
                    devices += 1
        return ValueCounts(devices, values)

    def add(self, owning_node: str | None, part: ValueCounts, sign: int) -> None:
        # Every node may see these, so any node may conflict: no use in comparing them.
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
    anywhere = program.fault is not None or program.may_fail_anywhere
    # The devices that each claim asks for on every node, without requests for all devices.
    least = [0] * len(program.claims)
    for stage in program.stages:
        least[stage.claim] += min([0 if other.everything else other.count for other in stage.alternatives])
    anywhere |= max(least, default=0) > MOST_RESULTS
    alternatives = [other for stage in program.stages for other in stage.alternatives]
    erring = tuple([counts for counts in map(counts_of, alternatives) if counts.has_errors])
    # A selector that compiles fails on single nodes, and ends the attempt on none but these (allocator.md section 15).
    if not erring or all(compiles(text) for other in alternatives for text in other.expressions):
        return ErrorNodes((), anywhere, erring)
    # A selector that does not compile meets a device that every node sees.
    anywhere |= any(counts.cluster_wide_errors for counts in erring)
    return ErrorNodes({node: None for counts in erring for node in counts.may_error()}, anywhere, erring)


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
        # The search meets the error only if it gets there: the requests before must find their devices, this one at
        # least one.
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
    # Requests for all devices are counted by node below. These counts are the same everywhere.
    exact = [[other.count for other in stage.alternatives if not other.everything] for stage in stages]
    # The limit counts each request at its least, so of alternatives the smallest (allocator.md section 4).
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


class Want(NamedTuple):
    """One alternative: it needs so many devices of these counts, the node's own and cluster-wide ones together."""

    counts: DeviceCounts
    need: int

    @property
    def least(self) -> int:
        """How many must be the node's own."""
        return self.need - self.counts.cluster_wide


@dataclass(frozen=True, slots=True)
class Candidates:
    """The nodes worth trying. Iterating yields names lazily, those that may error first; ``in`` tests one node.

    ``anywhere``: the index cannot exclude any node, iterating yields only those that may error, try them all.
    """

    program: ClaimProgram
    may_error: Collection[str]
    anywhere: bool
    wants: tuple[tuple[Want, ...], ...]
    erring: tuple[DeviceCounts, ...] = ()
    """The counts of alternatives with which the decision may end with an error on some node."""

    def suspects(self) -> list[str]:
        """Return the nodes on which the decision may end with an error: that may be why a pod does not fit there."""
        return list(dict.fromkeys(node for counts in self.erring for node in counts.may_error()))

    def __contains__(self, node: object) -> bool:
        # A node on which the attempt may end with an error is tried in any case (E2E-055).
        if self.anywhere or node in self.may_error:
            return True
        return isinstance(node, str) and all(_holds(wants, node) for wants in self.wants)

    @property
    def refusal(self) -> Refusal | None:
        """Why excluded nodes are out, in terms of the scarcest request; None if none is excluded."""
        if self.anywhere:
            return None
        want = scarcest(self.wants)[0]
        # Equal queries share their counts, and the first request with them is named.
        stage = next(it for it in self.program.stages if Query.of(it.alternatives[0]) == want.counts.query)
        # The index keeps counts and no devices, so this refusal has no other numbers.
        return Refusal(
            node="",
            rule=Rule.SELECTOR,
            claim=RefusedClaim(self.program.claims[stage.claim].key),
            request=stage.alternatives[0].request,
            needs=want.need,
            devices=want.counts.best(),
            matching=want.counts.best(),
            detail="; on the node with most free devices that match",
        )

    @property
    def refusal_holds_for_all(self) -> bool:
        """Whether every excluded node is out because of the request that ``refusal`` names."""
        # Else some nodes may be out for another request, of which the refusal says nothing.
        return len(self.wants) == 1 or not any(want.counts.number(want.least) for want in scarcest(self.wants))

    def closest(self) -> str | None:
        """The node with most free devices for the request that ``refusal`` names; None if no node has any."""
        if self.anywhere:
            return None
        counts = scarcest(self.wants)[0].counts
        # The devices that every node sees tell none from another.
        most = counts.best() - counts.cluster_wide
        return next(counts.nodes(most), None) if most else None

    def __iter__(self) -> Iterator[str]:
        yield from self.may_error
        if self.anywhere:
            return
        # One request without alternatives, the common case: the buckets are the answer.
        if len(self.wants) == 1 and len(self.wants[0]) == 1 and not self.may_error:
            want = self.wants[0][0]
            yield from want.counts.nodes(want.least)
            return
        # From the request that fewest nodes can serve: only these are asked for the others.
        first = scarcest(self.wants)
        others = [wants for wants in self.wants if wants is not first]
        seen = set(self.may_error)
        for want in first:
            for node in want.counts.nodes(want.least):
                if node not in seen and (not others or all(_holds(wants, node) for wants in others)):
                    seen.add(node)
                    yield node


def _holds(wants: Iterable[Want], node: str) -> bool:
    """Whether an alternative of a request finds enough devices on the node."""
    return any(want.counts.totals.get(node, 0) >= want.least for want in wants)


def scarcest(wants: Sequence[tuple[Want, ...]]) -> tuple[Want, ...]:
    """The request that the fewest nodes can serve."""
    return min(wants, key=lambda wants: sum(want.counts.number(want.least) for want in wants))


Key = TypeVar("Key")
Kept = TypeVar("Kept")


class NodeIndex:
    """The summaries of the queries and constraints asked lately, for usages of one lineage."""

    _KEPT: Final = 32

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._lineage: object = None
        self._device_counts: dict[Query, DeviceCounts] = {}
        self._conflicts: dict[ComparedQueries, ConstraintConflicts] = {}

    def candidates(self, program: ClaimProgram, usage: Usage) -> Candidates:
        """The nodes that the program's requests may fit."""
        # Nothing is left to do here for a caller that has caught up in pieces.
        for _ in self.catch_up(program, usage):
            pass
        if self._inventory.semantics.errors_stay_on_node:
            error_nodes = find_faulty_claims(program, self._counts_of, self._inventory.compiled.compiles)
        else:
            error_nodes = find_error_nodes(program, self._counts_of, self._conflict, self._inventory.features)
        wants: list[tuple[Want, ...]] = []
        together = self._together(program)
        for stage in program.stages:
            alternatives = tuple(self._want(alternative, together) for alternative in stage.alternatives)
            # A request that devices for all nodes can serve excludes no node.
            if all(want.least > 0 for want in alternatives):
                wants.append(alternatives)
        if error_nodes.anywhere or not wants:
            return Candidates(program, error_nodes.nodes, True, (), error_nodes.erring)
        return Candidates(program, error_nodes.nodes, False, tuple(wants), error_nodes.erring)

    def drivers(self, program: ClaimProgram, usage: Usage) -> Set[str] | None:
        """Of which drivers a device would have to come free so that the program fits; None if that is not known now.

        Where a request means no device that is published, in use or not, only those of the requests before it count:
        they decide what the refusal says.
        """
        found: set[str] = set()
        for stage in program.stages:
            counts = [self._device_counts.get(Query.of(alternative)) for alternative in stage.alternatives]
            meant: set[str] = set()
            for known in counts:
                if known is None or not known.is_current(self._inventory, usage):
                    return None
                meant |= known.drivers
            # The refusal names this request, whatever becomes of those behind it.
            if not meant and all(alternative.count for alternative in stage.alternatives):
                break
            found |= meant
        return found

    def catch_up(self, program: ClaimProgram, usage: Usage) -> Iterator[str]:
        """Counts what changed since the last time, in pieces, named as ``IncrementalAggregate.update`` does."""
        self._keep_for(program)
        # The journal of another usage does not say how this one differs from what was counted.
        if usage.lineage is not self._lineage:
            self._device_counts.clear()
            self._conflicts.clear()
            self._lineage = usage.lineage
        _forget(self._device_counts, self._KEPT, lambda query: self._tenant_of(query.expressions))
        _forget(self._conflicts, self._KEPT, lambda comparison: self._tenant_of(comparison.queries[0].expressions))
        for stage in program.stages:
            for alternative in stage.alternatives:
                yield from self._counts_of(alternative).update(self._inventory, usage)
        if self._inventory.semantics.errors_stay_on_node:
            return  # what a constraint says of all devices of a node concerns that node alone
        for meeting in meetings(program, self._inventory.features):
            yield from self._conflict(meeting.comparison).update(self._inventory, usage)

    def _keep_for(self, program: ClaimProgram) -> None:
        compiled = self._inventory.compiled
        for stage in program.stages:
            namespace = program.claims[stage.claim].metadata.namespace or ""
            for alternative in stage.alternatives:
                # Selectors of classes are everybody's: what they said is kept at nobody's expense.
                is_of_classes = all(selector.class_ for selector in alternative.selectors)
                compiled.kept.used_by(CLASSES if is_of_classes else namespace, alternative.expressions)

    def _tenant_of(self, expressions: Expressions) -> str:
        return self._inventory.compiled.kept.tenant_of(expressions)

    def _together(self, program: ClaimProgram) -> Counter[DeviceCounts]:
        """How many different devices the ordinary requests of one query need together."""
        needs: Counter[DeviceCounts] = Counter()
        for stage in program.stages:
            first = stage.alternatives[0]
            # Only certain refusals: another alternative may do without these devices, admin access takes devices of
            # others, and a request for all may find few.
            if len(stage.alternatives) == 1 and not first.everything and not first.admin:
                needs[self._counts_of(first)] += first.count
        return needs

    def _want(self, alternative: Alternative, together: Counter[DeviceCounts]) -> Want:
        # The same counts as in ``_together``: it knows the needs of all requests.
        counts = self._counts_of(alternative)
        if alternative.everything:
            return Want(counts, alternative.least)
        # A device that can be shared serves several requests, so that their needs do not add up.
        if not alternative.count or counts.sharing:
            return Want(counts, alternative.count)
        return Want(counts, max(alternative.count, together[counts]))

    def _counts_of(self, alternative: Alternative) -> DeviceCounts:
        return _lately(self._device_counts, Query.of(alternative), DeviceCounts)

    def _conflict(self, comparison: ComparedQueries) -> ConstraintConflicts:
        return _lately(self._conflicts, comparison, ConstraintConflicts)


def _lately(known: dict[Key, Kept], key: Key, make: Callable[[Key], Kept]) -> Kept:
    """The value of the key, or a new one; it becomes the most recent."""
    found = known.pop(key) if key in known else make(key)
    known[key] = found
    return found


def _forget(known: dict[Key, Kept], most: int, tenant_of: Callable[[Key], str]) -> None:
    """The tenant with the most loses what it has not asked for longest."""
    while len(known) > most:
        # Per tenant: one that asks for ever new selectors pushes out its own only.
        tenants = {key: tenant_of(key) for key in known}
        greediest, _ = Counter(tenants.values()).most_common(1)[0]
        del known[next(key for key, tenant in tenants.items() if tenant == greediest)]
