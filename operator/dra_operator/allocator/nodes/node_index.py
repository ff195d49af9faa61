"""The index over nodes: summaries of recent queries, and what they say about the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Set
from typing import Final, TypeVar

from dra_ledger.inventory import Inventory
from dra_ledger.predicates import CLASSES, Expressions
from dra_ledger.usage import Usage

from dra_operator.allocator.refusal import Refusal, RefusedClaim, Rule
from dra_operator.allocator.request.claim_program import Alternative, ClaimProgram

from .candidates import Candidates, Want, scarcest
from .constraint_conflicts import Comparison, ConstraintConflicts
from .device_counts import DeviceCounts
from .error_nodes import ErrorNodes, find_error_nodes, find_faulty_claims, meetings
from .incremental import Query

Key = TypeVar("Key")
Kept = TypeVar("Kept")


class NodeIndex:
    """The summaries of the queries and constraints asked lately, for usages of one lineage."""

    _KEPT: Final = 32

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._lineage: object = None
        self._device_counts: dict[Query, DeviceCounts] = {}
        self._conflicts: dict[Comparison, ConstraintConflicts] = {}

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
            return Want(counts, 1)
        if not alternative.count or counts.sharing:
            return Want(counts, alternative.count)
        return Want(counts, max(alternative.count, together[counts]))

    def _counts_of(self, alternative: Alternative) -> DeviceCounts:
        return _lately(self._device_counts, Query.of(alternative), DeviceCounts)

    def _conflict(self, comparison: Comparison) -> ConstraintConflicts:
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
