"""Which nodes can hold the requests at all, without looking at all nodes (design section 3).

For each query (the selectors of a request) the index counts, per pool, the devices that match and are
free, sums them per node, and keeps the nodes in buckets by that sum. Changes of the inventory and of the
allocated state come from journals, so keeping up costs as much as what changed, and the question "which
nodes have at least four" is answered from the buckets.

Only pools whose slices all name the same node belong to that node. All others (for all nodes, by node
selector, spanning nodes) are *wild*: their devices count for every node.

The index may let too many nodes through, never too few: taints, capacity, counters and constraints are left
to the decision itself. Nodes on which a selector raises, or on which a request for all devices meets an
unusable pool, are *suspects*: trying them ends the attempt (E2E-055), so they have to be tried first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .ids import PoolId
from .inventory import Inventory
from .plan import Alternative, Plan
from .pools import Pool, Status
from .refusal import Refusal, Rule
from .usage import Usage


class Query(NamedTuple):
    """What is counted."""

    expressions: tuple[str, ...]
    in_use_too: bool
    """Admin access, and mode All, look at devices in use as well."""
    everything: bool
    """Mode All: pools in trouble are fatal."""


class Count(NamedTuple):
    """One pool's part of a query."""

    matching: int
    suspicious: bool


class Tally:
    """One query over all pools."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._pools: dict[PoolId, tuple[str | None, Count]] = {}
        self._suspicious: dict[str, int] = {}
        self.totals: dict[str, int] = {}
        self._buckets: dict[int, dict[str, None]] = {}
        self.wild = 0
        self.wild_suspicious = 0
        self.seen = (-1, -1)

    def update(self, inventory: Inventory, usage: Usage) -> None:
        """Catches up with both journals."""
        now = (inventory.version, usage.revision)
        if self.seen == now:
            return
        changed = inventory.touched_since(self.seen[0]) if self.seen[0] >= 0 else None
        used = usage.touched_since(self.seen[1]) if self.seen[1] >= 0 else None
        stale = {*inventory.pools(), *self._pools} if changed is None or used is None else changed | used
        for pool in stale:
            self._recount(inventory, usage, pool)
        self.seen = now

    def suspects(self) -> list[str]:
        """Nodes of their own pools on which an attempt would end with an error."""
        return sorted(self._suspicious)

    def nodes(self, least: int) -> Iterator[str]:
        """The nodes whose own pools have at least so many."""
        for count, nodes in self._buckets.items():
            if count >= least:
                yield from nodes

    def number(self, least: int) -> int:
        """How many nodes that are."""
        return sum(len(nodes) for count, nodes in self._buckets.items() if count >= least)

    def best(self) -> int:
        """The largest number of matching devices that any node has."""
        return max(self._buckets, default=0) + self.wild

    def _recount(self, inventory: Inventory, usage: Usage, id_: PoolId) -> None:
        home, old = self._pools.pop(id_, (None, Count(0, False)))
        self._add(home, -old.matching, -int(old.suspicious))
        pool = inventory.pool(id_)
        if pool is None:
            return
        home, new = pool.home, self._count(inventory, usage, pool)
        self._pools[id_] = (home, new)
        self._add(home, new.matching, int(new.suspicious))

    def _count(self, inventory: Inventory, usage: Usage, pool: Pool) -> Count:
        """For a pool with a home what its node may use; for a wild one everything any node might."""
        view = pool.own_view()
        if view is None:
            return Count(0, False)
        troubled = view.status is not Status.USABLE
        if troubled and pool.home is not None:
            return Count(0, self._query.everything)
        in_use = () if self._query.in_use_too else usage.pool(pool.id).exclusive
        matching, suspicious = 0, troubled and self._query.everything
        for slice_ in view.slices if pool.home is not None else pool.slices:
            free = (1 << len(slice_.devices)) - 1
            for number, device in enumerate(slice_.devices) if in_use else ():
                if device.name in in_use:
                    free &= ~(1 << number)
            for expression in self._query.expressions:
                part = slice_.verdicts(expression, inventory.compiled)
                suspicious |= bool(free & part.raised)
                free &= part.true
            matching += free.bit_count()
        return Count(matching, suspicious)

    def _add(self, home: str | None, matching: int, suspicious: int) -> None:
        if home is None:
            self.wild += matching
            self.wild_suspicious += suspicious
            return
        if matching:
            old = self.totals.pop(home, 0)
            if old:
                del self._buckets[old][home]
                if not self._buckets[old]:
                    del self._buckets[old]
            if old + matching:
                self.totals[home] = old + matching
                self._buckets.setdefault(old + matching, {})[home] = None
        if suspicious:
            self._suspicious[home] = self._suspicious.get(home, 0) + suspicious
            if not self._suspicious[home]:
                del self._suspicious[home]


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

    def __iter__(self) -> Iterator[str]:
        yield from self.suspects
        if self.anywhere:
            return
        driving = min(self.wants, key=lambda wants: sum(want.tally.number(want.least) for want in wants))
        seen = set(self.suspects)
        for want in driving:
            for node in want.tally.nodes(want.least):
                if node not in seen and node in self:
                    seen.add(node)
                    yield node


class CandidateIndex:
    """The tallies of the queries asked lately, for one live usage at a time."""

    _TALLIES = 128

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._usage: Usage | None = None
        self._tallies: dict[Query, Tally] = {}

    def candidates(self, plan: Plan, usage: Usage) -> Candidates:
        """The nodes that the plan's requests may fit."""
        if usage is not self._usage:
            self._tallies.clear()
            self._usage = usage
        wants: list[tuple[Want, ...]] = []
        suspects: dict[str, None] = {}
        anywhere = plan.fault is not None
        for step in plan.steps:
            alternatives = tuple(self._want(alternative) for alternative in step.alternatives)
            for want in alternatives:
                anywhere |= want.tally.wild_suspicious > 0
                suspects.update(dict.fromkeys(want.tally.suspects()))
            if all(want.least > 0 for want in alternatives):
                wants.append(alternatives)
        if anywhere or not wants:
            return Candidates(tuple(suspects), True, (), None)
        return Candidates(tuple(suspects), False, tuple(wants), self._refusal(plan, wants))

    def _want(self, alternative: Alternative) -> Want:
        expressions = tuple(selector.expression for selector in alternative.selectors)
        query = Query(expressions, alternative.admin or alternative.everything, alternative.everything)
        tally = self._tallies.pop(query, None) or Tally(query)
        self._tallies[query] = tally
        if len(self._tallies) > self._TALLIES:
            del self._tallies[next(iter(self._tallies))]
        if self._usage is not None:
            tally.update(self._inventory, self._usage)
        return Want(tally, 1 if alternative.everything else alternative.count)

    def _refusal(self, plan: Plan, wants: list[tuple[Want, ...]]) -> Refusal:
        """Why nodes are excluded, in terms of the scarcest request."""
        scarcest = min(wants, key=lambda wants: sum(want.tally.number(want.least) for want in wants))
        want = scarcest[0]
        step = next(s for s in plan.steps if self._tally_of(s.alternatives[0]) is want.tally)
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

    def _tally_of(self, alternative: Alternative) -> Tally | None:
        expressions = tuple(selector.expression for selector in alternative.selectors)
        return self._tallies.get(
            Query(expressions, alternative.admin or alternative.everything, alternative.everything)
        )
