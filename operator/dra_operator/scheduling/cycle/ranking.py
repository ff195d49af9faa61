"""Nodes by the score of a placement strategy, kept for pods that ask for the same.

A ranking follows the journals of devices in use, slices and nodes: only nodes that changed since these pods asked last
are scored again. Of nodes that were never scored, each attempt scores as many as kube-scheduler would look at
(``enough``), so that the first pods of a kind do not pay for the whole cluster. What is scored is charged to the pod.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Generator, Iterator

from dra_operator.allocator import AllocationError, CompiledRequests
from dra_operator.scheduling.claims.demand import Demand
from dra_operator.scheduling.scoring.strategies.strategy import Candidate, Strategy
from dra_operator.scheduling.state.requests import MILLI_BILLIONTHS

from .pause import PAUSE_STEPS, Elapsed, Pause
from .pre_filter import CycleState
from .select_host import enough

ALL_PERCENT = 100
STEPS_PER_SCORE = 25
"""What it costs to score a node, beside the search there, in steps of the allocator."""


class Ranking:
    """The nodes for pods of one kind. ``requests`` are kept because the kind is known by what they are.

    ``milli_cpu`` is what such a pod asks for at least. Nodes without devices, which are equally good for pods without
    claims, follow each other by what is free of their cpu, so that pods do not crowd on one.
    """

    def __init__(self, strategy: Strategy, requests: list[CompiledRequests], milli_cpu: int, tenant: str) -> None:
        self.requests, self.tenant = requests, tenant
        self._strategy, self._milli_cpu = strategy, milli_cpu
        self._scores: dict[str, int] = {}
        self._order: list[tuple[int, str]] = []
        self._stale: dict[str, None] = {}
        self._unscored: dict[str, None] = {}
        self._seen: tuple[object, int, int, int, int] | None = None
        """Lineage and revision of the usage; versions of slices, nodes and mix."""

    def best_first(self) -> Iterator[str]:
        """The nodes that were scored, the best first, equals by name."""
        return (name for _, name in list(self._order))

    def score(self, name: str) -> int:
        """A node's score; that of the worst if it has none."""
        return self._scores.get(name, -self._order[-1][0] if self._order else 0)

    def normalized(self, name: str) -> float:
        """The score, from 0 for the worst node to 1 for the best."""
        if not self._order:
            return 0.0
        most, least = -self._order[0][0], -self._order[-1][0]
        return (self.score(name) - least) / (most - least) if most > least else 1.0

    def update(self, state: CycleState, demand: Demand, order: str) -> Generator[Pause, Elapsed, None]:
        """Scores what changed, in pieces, unless another attempt has seen more."""
        if self._seen is not None and self._seen[0] is state.usage.lineage and self._seen[1] > state.usage.revision:
            return
        self._follow(state)
        followed, steps, new = self._seen, 0, 0
        most = enough(len(state.nodes))
        while self._stale or (self._unscored and new < most):
            if self._stale:
                name = self._take(self._stale)
            else:
                name, new = self._take(self._unscored), new + 1
            steps += self._rescore(name, state, demand, order)
            if steps >= PAUSE_STEPS:
                steps = 0
                yield Pause.SEARCHING
                if self._seen is not followed:
                    return

    @staticmethod
    def _take(names: dict[str, None]) -> str:
        name = next(iter(names))
        del names[name]
        return name

    def _follow(self, state: CycleState) -> None:
        usage, inventory, nodes = state.usage, state.allocator.inventory, state.nodes
        version = state.allocator.learned.mix.version if self._strategy.uses_mix else 0
        now = (usage.lineage, usage.revision, inventory.version, nodes.revision, version)
        seen, self._seen = self._seen, now
        names = None
        if seen is not None and seen[0] is now[0] and seen[4] == version:
            names = self._changed(state, seen[1], seen[2], seen[3])
        if names is None:
            self._scores.clear()
            self._order.clear()
            self._stale.clear()
            self._unscored = dict.fromkeys(nodes.best_first())
        else:
            for name in names:
                (self._stale if name in self._scores else self._unscored)[name] = None

    @staticmethod
    def _changed(state: CycleState, revision: int, version: int, nodes: int) -> list[str] | None:
        """The nodes that may have changed; None if that is not known of some, or if it may concern all of them."""
        inventory = state.allocator.inventory
        used, published = state.usage.touched_since(revision), inventory.touched_since(version)
        if used is None or published is None:
            return None
        names = state.nodes.changed_since(nodes)
        for id_ in sorted(used | published):
            pool = inventory.pool(id_)
            if pool is None or pool.owning_node is None:
                return None
            names.append(pool.owning_node)
        return list(dict.fromkeys(names))

    def _rescore(self, name: str, state: CycleState, demand: Demand, order: str) -> int:
        old = self._scores.pop(name, None)
        if old is not None:
            del self._order[bisect_left(self._order, (-old, name))]
        node = state.nodes.get(name)
        if node is None or not demand.may_fit(name):
            self._unscored.pop(name, None)
            return 1
        free = (node.offered.get("cpu", 0) - node.used.get("cpu", 0)) // MILLI_BILLIONTHS
        if free < self._milli_cpu:
            return 1  # the pod does not fit; when cpu comes free, the node has changed
        try:
            sketch = state.allocator.sketch(node.node, demand.program, state.usage, order)
        except AllocationError:
            return STEPS_PER_SCORE  # an attempt there says what is wrong
        if sketch.after is not None:
            mix = state.allocator.learned.mix
            score = self._strategy.score(Candidate(mix, sketch.before, sketch.after, free, self._milli_cpu))
            if not sketch.before.units:
                all_of = node.offered.get("cpu", 0) // MILLI_BILLIONTHS
                score = score * ALL_PERCENT + free * ALL_PERCENT // (all_of + 1)
            elif not demand.claims:
                score *= ALL_PERCENT
            self._scores[name] = score
            insort(self._order, (-score, name))
        return STEPS_PER_SCORE + sketch.steps
