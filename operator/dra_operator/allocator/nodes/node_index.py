"""The index over nodes: which nodes can hold the requests at all, without looking at all nodes (design.md section 3).

It keeps summaries of recent queries. It may let too many nodes through, never too few: taints, capacity, counters and
constraints between ordinary requests are left to the decision itself. Nodes on which the attempt may end for all nodes
(see ``error_nodes``) are let through even if they lack devices, and have to be tried first (E2E-055).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from dra_ledger.inventory import Inventory
from dra_ledger.predicates import CLASSES, Expressions
from dra_ledger.usage import Usage

from dra_operator.allocator.claim_program import Alternative, ClaimProgram
from dra_operator.allocator.nodes.device_counts import DeviceCounts, Query
from dra_operator.allocator.nodes.error_nodes import (
    ComparedQueries,
    ConstraintConflicts,
    ErrorNodes,
    find_error_nodes,
    find_faulty_claims,
    meetings,
)
from dra_operator.allocator.outcome import Refusal, RefusedClaim, Rule


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
    ``refusal`` says why excluded nodes are out.
    """

    may_error: Collection[str]
    anywhere: bool
    wants: tuple[tuple[Want, ...], ...]
    refusal: Refusal | None
    erring: tuple[DeviceCounts, ...] = ()
    """The counts of alternatives with which the decision may end with an error on some node."""

    def suspects(self) -> list[str]:
        """Return the nodes on which the decision may end with an error: that may be why a pod does not fit there."""
        return list(dict.fromkeys(node for counts in self.erring for node in counts.may_error()))

    def __contains__(self, node: object) -> bool:
        if self.anywhere or node in self.may_error:
            return True
        return isinstance(node, str) and all(_holds(wants, node) for wants in self.wants)

    @property
    def refusal_holds_for_all(self) -> bool:
        """Whether every excluded node is out because of the request that ``refusal`` names."""
        return len(self.wants) == 1 or not any(want.counts.number(want.least) for want in scarcest(self.wants))

    def closest(self) -> str | None:
        """The node with most free devices for the request that ``refusal`` names; None if no node has any."""
        if self.anywhere:
            return None
        counts = scarcest(self.wants)[0].counts
        most = counts.best() - counts.cluster_wide
        return next(counts.nodes(most), None) if most else None

    def __iter__(self) -> Iterator[str]:
        yield from self.may_error
        if self.anywhere:
            return
        if len(self.wants) == 1 and len(self.wants[0]) == 1 and not self.may_error:
            want = self.wants[0][0]
            yield from want.counts.nodes(want.least)
            return
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
        for _ in self.catch_up(program, usage):
            pass
        error_nodes = self._error_nodes(program)
        wants: list[tuple[Want, ...]] = []
        together = self._together(program)
        for stage in program.stages:
            alternatives = tuple(self._want(alternative, together) for alternative in stage.alternatives)
            if all(want.least > 0 for want in alternatives):
                wants.append(alternatives)
        if error_nodes.anywhere or not wants:
            return Candidates(error_nodes.nodes, True, (), None, error_nodes.erring)
        return Candidates(error_nodes.nodes, False, tuple(wants), self._refusal(program, wants), error_nodes.erring)

    def _error_nodes(self, program: ClaimProgram) -> ErrorNodes:
        """Return the nodes on which the attempt may end for all nodes."""
        inventory = self._inventory
        if inventory.semantics.errors_stay_on_node:
            return find_faulty_claims(program, self._counts_of, inventory.compiled.compiles)
        return find_error_nodes(program, self._counts_of, self._conflict, inventory.features)

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
            if not meant and all(alternative.count for alternative in stage.alternatives):
                break
            found |= meant
        return found

    def catch_up(self, program: ClaimProgram, usage: Usage) -> Iterator[str]:
        """Counts what changed since the last time, in pieces, named as ``IncrementalAggregate.update`` does."""
        self._keep_for(program)
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
                is_of_classes = all(selector.class_ for selector in alternative.selectors)
                compiled.kept.used_by(CLASSES if is_of_classes else namespace, alternative.expressions)

    def _tenant_of(self, expressions: Expressions) -> str:
        return self._inventory.compiled.kept.tenant_of(expressions)

    def _together(self, program: ClaimProgram) -> Counter[DeviceCounts]:
        """How many different devices the ordinary requests of one query need together."""
        needs: Counter[DeviceCounts] = Counter()
        for stage in program.stages:
            first = stage.alternatives[0]
            if len(stage.alternatives) == 1 and not first.everything and not first.admin:
                needs[self._counts_of(first)] += first.count
        return needs

    def _want(self, alternative: Alternative, together: Counter[DeviceCounts]) -> Want:
        counts = self._counts_of(alternative)
        if alternative.everything:
            return Want(counts, alternative.least)
        if not alternative.count or counts.sharing:
            return Want(counts, alternative.count)
        return Want(counts, max(alternative.count, together[counts]))

    def _counts_of(self, alternative: Alternative) -> DeviceCounts:
        return _lately(self._device_counts, Query.of(alternative), DeviceCounts)

    def _conflict(self, comparison: ComparedQueries) -> ConstraintConflicts:
        return _lately(self._conflicts, comparison, ConstraintConflicts)

    def _refusal(self, program: ClaimProgram, wants: list[tuple[Want, ...]]) -> Refusal:
        """Why nodes are excluded, in terms of the scarcest request."""
        want = scarcest(wants)[0]
        stage = next(s for s in program.stages if self._counts_of(s.alternatives[0]) is want.counts)
        return Refusal(
            node="",
            rule=Rule.SELECTOR,
            claim=RefusedClaim(program.claims[stage.claim].key),
            request=stage.alternatives[0].request,
            needs=want.need,
            devices=want.counts.best(),
            matching=want.counts.best(),
            detail="; on the node with most free devices that match",
        )


def _lately(known: dict[Key, Kept], key: Key, make: Callable[[Key], Kept]) -> Kept:
    """The value of the key, or a new one; it becomes the most recent."""
    found = known.pop(key) if key in known else make(key)
    known[key] = found
    return found


def _forget(known: dict[Key, Kept], most: int, tenant_of: Callable[[Key], str]) -> None:
    """The tenant with the most loses what it has not asked for longest."""
    while len(known) > most:
        tenants = {key: tenant_of(key) for key in known}
        greediest, _ = Counter(tenants.values()).most_common(1)[0]
        del known[next(key for key, tenant in tenants.items() if tenant == greediest)]
