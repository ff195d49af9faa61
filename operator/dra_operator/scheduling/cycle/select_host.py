"""Which of the nodes that fit is best (scheduling.md 4.4, NR-20).

First the preferred alternatives of the claims decide, then the scores for what the pod prefers together with that for
the room on the node, then the name. Deterministic, so that the same cluster always gives the same answer.

A placement strategy scores the room. ``Ranking`` keeps its scores for pods that ask for the same. It follows the
journals of devices in use, slices and nodes: only nodes that changed since these pods asked last are scored again. Of
nodes that were never scored, each attempt scores as many as kube-scheduler would look at (``enough``), so that the
first pods of a kind do not pay for the whole cluster. Scoring is charged to the pod.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dra_api.core import Pod
from dra_api.resource import DeviceClass

from dra_operator.allocator import DEVICE_ORDERS, AllocationError, ClaimProgram, CompiledRequests
from dra_operator.scheduling.claims.demand import Demand
from dra_operator.scheduling.cycle.filter import Plan
from dra_operator.scheduling.cycle.pre_filter import CycleState
from dra_operator.scheduling.pieces import PAUSE_STEPS, Elapsed, Pause
from dra_operator.scheduling.scores import BEST_SCORE, PodScores, Raw, WeightedScores
from dra_operator.scheduling.state.node import MILLI_BILLIONTHS, milli_cpu_of
from dra_operator.scheduling.strategies import ANNOTATION, BY_NAME, FIRST_FIT, Candidate, Strategy

ROOM = "room"
"""What prefers a node where no strategy does."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A node that fits. ``alternatives`` is the raw score of the chosen sub-requests (4.4).

    ``room`` is from 0 to 1: that on the node, or what the strategy ``by`` makes of it, normalized. ``score`` is the
    exact number of the strategy.
    """

    plan: Plan
    alternatives: int
    room: float
    raw: Raw = ()
    score: int = 0
    by: str = ROOM

    def named(self) -> Plan:
        return self.plan if self.by == ROOM else replace(self.plan, strategy=self.by)


def best(fits: Sequence[Fit], scores: PodScores | None) -> Plan:
    """The plan of the best node; with its scores, if the pod prefers anything."""
    # Most pods prefer nothing, and then no score has to be normalized.
    if not scores:
        return min(fits, key=lambda fit: (-fit.alternatives, -fit.score, -fit.room, fit.plan.node)).named()
    # Together: a score is relative to the other nodes that fit, as in kube-scheduler.
    weighted = scores.weighted([fit.raw for fit in fits])
    scored = [(fit, _with_room(fit, its)) for fit, its in zip(fits, weighted, strict=True)]

    def rank(it: tuple[Fit, WeightedScores]) -> tuple[int, int, int, float, str]:
        fit, its = it
        return -fit.alternatives, -total(its), -fit.score, -fit.room, fit.plan.node

    chosen, why = min(scored, key=rank)
    return replace(chosen.named(), scores=why)


def total(scores: WeightedScores) -> int:
    """The sum, by which nodes are compared."""
    return sum(each for _, each in scores)


def _with_room(fit: Fit, scores: WeightedScores) -> WeightedScores:
    return (*scores, (fit.by, int(BEST_SCORE * fit.room)))


def ideal(program: ClaimProgram) -> int:
    """The raw score when every request with alternatives gets its first one (4.4)."""
    return 8 * sum(stage.prioritized for stage in program.stages)


def enough(nodes: int) -> int:
    """After how many nodes that fit the search for better ones stops; all in clusters of up to 100 nodes."""
    return max(100, nodes * max(5, 50 - nodes // 125) // 100)


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
        # The order is by negated scores, so that equal nodes follow each other by name.
        most, least = -self._order[0][0], -self._order[-1][0]
        return (self.score(name) - least) / (most - least) if most > least else 1.0

    def update(self, state: CycleState, demand: Demand, order: str) -> Generator[Pause, Elapsed, None]:
        """Scores what changed, in pieces, unless another attempt has seen more."""
        # A plan that was put aside sees an older state: the ranking must not go back with it.
        if self._seen is not None and self._seen[0] is state.usage.lineage and self._seen[1] > state.usage.revision:
            return
        self._follow(state)
        followed, steps, new = self._seen, 0, 0
        most = enough(len(state.nodes))
        # All that changed, and of what was never scored as many as kube-scheduler would look at.
        while self._stale or (self._unscored and new < most):
            if self._stale:
                name = self._take(self._stale)
            else:
                name, new = self._take(self._unscored), new + 1
            steps += self._rescore(name, state, demand, order)
            if steps >= PAUSE_STEPS:
                steps = 0
                yield Pause.SEARCHING
                # Another attempt has brought the ranking further meanwhile.
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
        now = (usage.lineage, usage.revision, inventory.version, nodes.changes.revision, version)
        seen, self._seen = self._seen, now
        names = None
        if seen is not None and seen[0] is now[0] and seen[4] == version:
            names = self._changed(state, seen[1], seen[2], seen[3])
        # It is not known which nodes changed, or the mix did, by which all are scored.
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
        changed = state.nodes.changes.since(nodes)
        if used is None or published is None or changed is None:
            return None
        names = sorted(changed)
        for id_ in sorted(used | published):
            pool = inventory.pool(id_)
            # Devices of several nodes: any of these may be better or worse now.
            if pool is None or pool.owning_node is None:
                return None
            # The devices of a pool with one owner change that node's score alone.
            names.append(pool.owning_node)
        return list(dict.fromkeys(names))

    def _rescore(self, name: str, state: CycleState, demand: Demand, order: str) -> int:
        old = self._scores.pop(name, None)
        if old is not None:
            # By its old score, by which it is in the order.
            del self._order[bisect_left(self._order, (-old, name))]
        node = state.nodes.get(name)
        if node is None or not demand.may_fit(name):
            self._unscored.pop(name, None)
            return 1
        # In thousandths, as the mix counts cpu: billionths would part nodes that are alike.
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
            # Nodes without devices are alike to a strategy: free cpu parts them, so that pods do not crowd on one.
            if not sketch.before.units:
                all_of = node.offered.get("cpu", 0) // MILLI_BILLIONTHS
                score = score * ALL_PERCENT + free * ALL_PERCENT // (all_of + 1)
            elif not demand.claims:
                score *= ALL_PERCENT
            self._scores[name] = score
            insort(self._order, (-score, name))
        return STEPS_PER_SCORE + sketch.steps


REFERENCE: Final = DEVICE_ORDERS[0]
KEPT_RANKINGS: Final = 32
"""Kinds of pods whose rankings are kept."""
SIGNIFICANT_CPU_DIGITS: Final = 3
"""Binary digits of the cpu that a pod asks for: pods that differ in lower ones are of one kind."""


class ChosenStrategy:
    """How one pod is placed: by a strategy, in the order of a ranking, with devices in an order."""

    def __init__(self, strategy: Strategy, ranking: Ranking, device_order: str) -> None:
        self.strategy, self.ranking, self.device_order = strategy, ranking, device_order


class Placement:
    """``strategy`` names the one for classes that name none, ``device_order`` that of all nodes."""

    def __init__(self, strategy: str = FIRST_FIT, device_order: str = REFERENCE) -> None:
        self._strategy, self._device_order = strategy, device_order
        self._rankings: dict[tuple[object, ...], Ranking] = {}

    def looks_at_mix(self, classes: Iterable[DeviceClass]) -> bool:
        """Some pods may be placed by what pods usually ask for."""
        named = {self._strategy, *((it.metadata.annotations or {}).get(ANNOTATION, "") for it in classes)}
        return any(BY_NAME[it].uses_mix for it in named & BY_NAME.keys())

    def choose(self, state: CycleState, demand: Demand) -> Generator[Pause, Elapsed, ChosenStrategy | None]:
        """The strategy with its ranking, brought up to date; None: the first node that fits."""
        strategy = BY_NAME.get(self._name(demand.program))
        # A faulty request fails on every node: no order is of use.
        if strategy is None or demand.program.fault is not None or not (demand.claims or strategy.ranks_all_pods):
            return None
        state.allocator.looks_at_mix |= strategy.uses_mix
        order = self._order(strategy)
        ranking = self._ranking(strategy, demand.program, state.pod)
        yield from ranking.update(state, demand, order)
        return ChosenStrategy(strategy, ranking, order)

    def device_order(self, program: ClaimProgram) -> str:
        """The order of devices for claims on any node; empty if that of the allocator counts."""
        strategy = BY_NAME.get(self._name(program))
        return "" if strategy is None or program.fault is not None else self._order(strategy)

    def _order(self, strategy: Strategy) -> str:
        return strategy.device_order if self._device_order == REFERENCE else self._device_order

    def _name(self, program: ClaimProgram) -> str:
        """What the class of the first request says, else what is set. A name that is unknown says nothing."""
        if not program.stages:
            return self._strategy
        # The first request decides: two classes of one claim may ask for different strategies, and a node has one
        # score.
        annotations = program.stages[0].alternatives[0].class_.metadata.annotations or {}
        named = annotations.get(ANNOTATION, "")
        return named if named in BY_NAME or named == FIRST_FIT else self._strategy

    def _ranking(self, strategy: Strategy, program: ClaimProgram, pod: Pod) -> Ranking:
        counts_cpu = strategy.uses_mix or not program.stages  # no index says which nodes a pod without claims may fit
        milli_cpu = _rounded(milli_cpu_of(pod)) if counts_cpu else 0
        key = (strategy.name, milli_cpu, *map(id, program.requests))
        # Taken out and put back, so that the one that was asked last is the last to be forgotten.
        ranking = self._rankings.pop(key, None)
        if ranking is None:
            ranking = Ranking(strategy, program.requests, milli_cpu, pod.metadata.namespace or "")
        self._rankings[key] = ranking
        while len(self._rankings) > KEPT_RANKINGS:
            self._forget()
        return ranking

    def _forget(self) -> None:
        """The namespace with most rankings loses the one that was not asked for longest."""
        # A tenant with pods of many kinds drives out its own rankings, and nobody else's.
        greediest, _ = Counter(it.tenant for it in self._rankings.values()).most_common(1)[0]
        del self._rankings[next(key for key, it in self._rankings.items() if it.tenant == greediest)]


def _rounded(milli_cpu: int) -> int:
    """The same, or a little less."""
    lower = max(0, milli_cpu.bit_length() - SIGNIFICANT_CPU_DIGITS)
    return milli_cpu >> lower << lower
