"""The index over nodes: summaries of what was asked lately, and what they say about the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from dra_operator.allocator.published.inventory import Inventory
from dra_operator.allocator.refusal import Refusal, Rule
from dra_operator.allocator.request.plan import Alternative, Plan
from dra_operator.allocator.usage import Usage

from .candidates import Candidates, Want, scarcest
from .conflicts import Conflicts, Scope
from .summaries import Query
from .suspects import find_suspects, meetings
from .tallies import Tally

Key = TypeVar("Key")
Kept = TypeVar("Kept")


class NodeIndex:
    """The summaries of the queries and constraints asked lately, for usages of one lineage."""

    _KEPT: Final = 32

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._lineage: object = None
        self._tallies: dict[Query, Tally] = {}
        self._conflicts: dict[Scope, Conflicts] = {}

    def candidates(self, plan: Plan, usage: Usage) -> Candidates:
        """The nodes that the plan's requests may fit."""
        for _ in self.catch_up(plan, usage):
            pass
        suspects = find_suspects(plan, self._tally, self._conflict, self._inventory.features)
        wants: list[tuple[Want, ...]] = []
        together = self._together(plan)
        for step in plan.steps:
            alternatives = tuple(self._want(alternative, together) for alternative in step.alternatives)
            if all(want.least > 0 for want in alternatives):
                wants.append(alternatives)
        if suspects.anywhere or not wants:
            return Candidates(suspects.nodes, True, (), None)
        return Candidates(suspects.nodes, False, tuple(wants), self._refusal(plan, wants))

    def catch_up(self, plan: Plan, usage: Usage) -> Iterator[None]:
        """Counts what changed since the last time, in pieces."""
        if usage.lineage is not self._lineage:
            self._tallies.clear()
            self._conflicts.clear()
            self._lineage = usage.lineage
        _forget(self._tallies, self._KEPT)
        _forget(self._conflicts, self._KEPT)
        for step in plan.steps:
            for alternative in step.alternatives:
                yield from self._tally(alternative).update(self._inventory, usage)
        for meeting in meetings(plan, self._inventory.features):
            yield from self._conflict(meeting.scope).update(self._inventory, usage)

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
        return _lately(self._tallies, Query.of(alternative), Tally)

    def _conflict(self, scope: Scope) -> Conflicts:
        return _lately(self._conflicts, scope, Conflicts)

    def _refusal(self, plan: Plan, wants: list[tuple[Want, ...]]) -> Refusal:
        """Why nodes are excluded, in terms of the scarcest request."""
        want = scarcest(wants)[0]
        step = next(s for s in plan.steps if self._tally(s.alternatives[0]) is want.tally)
        return Refusal(
            node="",
            rule=Rule.SELECTOR,
            claim=f"claim {plan.claims[step.claim].key}",
            request=step.alternatives[0].request,
            needs=want.need,
            devices=want.tally.best(),
            matching=want.tally.best(),
            detail=" (the node with most free matching devices)",
        )


def _lately(known: dict[Key, Kept], key: Key, make: Callable[[Key], Kept]) -> Kept:
    """What is known under the key, or else something new; it becomes the last to be forgotten."""
    found = known.pop(key) if key in known else make(key)
    known[key] = found
    return found


def _forget(known: dict[Key, Kept], most: int) -> None:
    while len(known) > most:
        del known[next(iter(known))]
