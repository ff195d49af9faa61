"""Which nodes can hold the requests at all, without looking at all nodes (design section 3).

The index may let too many nodes through, never too few: taints, capacity, counters and constraints are left
to the decision itself. Nodes on which a selector raises, or on which a request for all devices meets an
unusable pool, are *suspects*: trying them ends the attempt (E2E-055), so they have to be tried first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .inventory import Inventory
from .plan import Alternative, Plan
from .refusal import Refusal, Rule
from .tallies import Query, Tally
from .usage import Usage


class Want(NamedTuple):
    """One alternative: so many devices of a tally, own and wild ones together."""

    tally: Tally
    need: int

    @property
    def least(self) -> int:
        """So many must be the node's own."""
        return self.need - self.tally.wild


@dataclass(frozen=True, slots=True)
class Candidates:
    """The nodes worth trying. Iterating yields names lazily, suspects first; ``in`` tests one node.

    ``anywhere``: the index cannot exclude any node, iterating yields nothing, try them all.
    ``refusal`` says why excluded nodes are out.
    """

    suspects: tuple[str, ...]
    anywhere: bool
    wants: tuple[tuple[Want, ...], ...]
    refusal: Refusal | None

    def __contains__(self, node: object) -> bool:
        if self.anywhere or node in self.suspects:
            return True
        return isinstance(node, str) and all(
            any(want.tally.totals.get(node, 0) >= want.least for want in wants) for wants in self.wants
        )

    @property
    def refusal_holds_for_all(self) -> bool:
        """Whether every excluded node is out because of the request that ``refusal`` names."""
        return len(self.wants) == 1 or not any(want.tally.number(want.least) for want in _scarcest(self.wants))

    def closest(self) -> str | None:
        """The node with most free devices for the request that ``refusal`` names; None if no node has any."""
        if self.anywhere:
            return None
        tally = _scarcest(self.wants)[0].tally
        most = tally.best() - tally.wild
        return next(tally.nodes(most), None) if most else None

    def __iter__(self) -> Iterator[str]:
        yield from self.suspects
        if self.anywhere:
            return
        seen = set(self.suspects)
        for want in _scarcest(self.wants):
            for node in want.tally.nodes(want.least):
                if node not in seen and node in self:
                    seen.add(node)
                    yield node


def _scarcest(wants: Sequence[tuple[Want, ...]]) -> tuple[Want, ...]:
    """The request that the fewest nodes can serve."""
    return min(wants, key=lambda wants: sum(want.tally.number(want.least) for want in wants))


class CandidateIndex:
    """The tallies of the queries asked lately, for usages of one lineage."""

    _TALLIES = 32

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._lineage: object = None
        self._tallies: dict[Query, Tally] = {}

    def candidates(self, plan: Plan, usage: Usage) -> Candidates:
        """The nodes that the plan's requests may fit."""
        for _ in self.catch_up(plan, usage):
            pass
        wants: list[tuple[Want, ...]] = []
        suspects: dict[str, None] = {}
        anywhere = plan.fault is not None
        together = self._together(plan)
        for step in plan.steps:
            alternatives = tuple(self._want(alternative, together) for alternative in step.alternatives)
            for want in alternatives:
                anywhere |= want.tally.wild_suspicious > 0
                suspects.update(dict.fromkeys(want.tally.suspects()))
            if all(want.least > 0 for want in alternatives):
                wants.append(alternatives)
        if anywhere or not wants:
            return Candidates(tuple(suspects), True, (), None)
        return Candidates(tuple(suspects), False, tuple(wants), self._refusal(plan, wants))

    def catch_up(self, plan: Plan, usage: Usage) -> Iterator[None]:
        """Counts what changed since the last time, in pieces."""
        if usage.lineage is not self._lineage:
            self._tallies.clear()
            self._lineage = usage.lineage
        while len(self._tallies) > self._TALLIES:
            del self._tallies[next(iter(self._tallies))]
        for step in plan.steps:
            for alternative in step.alternatives:
                yield from self._tally(alternative).update(self._inventory, usage)

    def _together(self, plan: Plan) -> Counter[Tally]:
        """How many different devices the ordinary requests of one query need together."""
        needs: Counter[Tally] = Counter()
        for step in plan.steps:
            first = step.alternatives[0]
            if len(step.alternatives) == 1 and not first.everything and not first.admin:
                needs[self._tally(first)] += first.count
        return needs

    def _want(self, alternative: Alternative, together: Counter[Tally]) -> Want:
        tally = self._tally(alternative)
        if alternative.everything:
            return Want(tally, 1)
        if not alternative.count or tally.sharing:
            return Want(tally, alternative.count)
        return Want(tally, max(alternative.count, together[tally]))

    def _tally(self, alternative: Alternative) -> Tally:
        expressions = tuple(selector.expression for selector in alternative.selectors)
        query = Query(expressions, alternative.admin or alternative.everything, alternative.everything)
        tally = self._tallies.pop(query, None) or Tally(query)
        self._tallies[query] = tally
        return tally

    def _refusal(self, plan: Plan, wants: list[tuple[Want, ...]]) -> Refusal:
        """Why nodes are excluded, in terms of the scarcest request."""
        want = _scarcest(wants)[0]
        step = next(s for s in plan.steps if self._tally(s.alternatives[0]) is want.tally)
        return Refusal(
            node="",
            rule=Rule.SELECTOR,
            claim=f"claim {plan.claims[step.claim].key}",
            request=step.alternatives[0].request,
            needs=want.need,
            devices=want.tally.best(),
            matching=want.tally.best(),
            detail="(the node with most free matching devices)",
        )
