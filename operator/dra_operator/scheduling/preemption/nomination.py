"""The victims for a pod that no node takes, and the node that they are on: a post filter (``cycle.attempt``).

Of the nodes that the end of pods may open, that one is chosen where

1. the fewest PodDisruptionBudgets are broken,
2. the highest priority of a victim is the lowest, and of one priority no victim of it outlasts the patience of others,
3. the sum of the victims' priorities is the smallest,
4. the fewest pods end,
5. all victims are gone soonest,
6. the most important victim is the youngest,
7. the fewest devices come free that the pod does not take,

and of equal ones the first by name. Pods that are being deleted already are waited for: where their end is enough, no
other pod has to go, and such a node is the best, first of all the one where they are gone soonest. The node for which
the pod is nominated comes first, as long as pods are ending there, so that none ends in vain. Once a victim has
outlasted the patience of others, no further one that does comes before one that does not, of any priority (``terms``).

Nodes are looked at by the lowest priority on them, and no further node once none can be better, or once ``MOST_NODES``
are compared. What an attempt may cost is limited as well; then the best of the nodes that it looked at counts.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from dra_api.core import Pod

from dra_operator.allocator import DeviceId, Usage
from dra_operator.scheduling.cycle.attempt import Unschedulable
from dra_operator.scheduling.cycle.result import PostFilterResult
from dra_operator.scheduling.pieces import Elapsed, InPieces, Pause
from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.placeholder import is_placeholder

from .bundles import Bundle, Bundles
from .terms import BudgetsOfPods, Meter, PreemptionTerms, StepsSpent
from .victims import VictimSearch, VictimsOnNode

NEVER: Final = "Never"
MOST_UNITS: Final = 40
"""Of a search that is made in one go: a tenth of a second."""
MOST_NODES: Final = 32
"""Nodes with victims that are compared."""
PODS_PER_STEP: Final = 5
"""Pods that are looked over in the time of one step of the allocator."""
STEPS_PER_BUNDLE: Final = 4
"""What it costs to find out which pods end together with one."""


def may_preempt(pod: Pod) -> bool:
    """Whether others may end for the pod at all."""
    return not is_placeholder(pod) and not pod.spec.scheduling_gates and pod.spec.preemption_policy != NEVER


def preempt(
    failed: Unschedulable, terms: PreemptionTerms, meter: Meter | None = None
) -> Generator[Pause, Elapsed, PostFilterResult | None]:
    """The nomination; None if no end of pods that may end lets the pod in. Raises ClaimError."""
    if not may_preempt(failed.cycle_state.pod):
        return None
    search = _Search(failed, terms, meter or Meter())
    with suppress(StepsSpent):
        yield from search.run()
    best = search.best
    return PostFilterResult(best.plan, best.victims, best.awaited) if best is not None else None


def proven(
    failed: Unschedulable, terms: PreemptionTerms, nominated: PostFilterResult, usage: Usage
) -> PostFilterResult | None:
    """The nomination, if the pod still fits so, with these devices in use: the search took its time. In one go."""
    now = replace(failed, cycle_state=replace(failed.cycle_state, usage=usage))
    state, bundles = now.cycle_state.nodes.get(nominated.nominated_node), Bundles([now.cycle_state], terms)
    ending = (*nominated.victims, *nominated.awaited)
    found = {bundle: None for pod in ending if (bundle := bundles.of(pod)) is not None}
    gone = {pod.metadata.uid for bundle in found for pod in bundle.pods}
    if state is None or gone != {pod.metadata.uid for pod in ending}:
        return None
    search = InPieces(VictimSearch(now, state, list(found), BudgetsOfPods(terms.budgets), Meter()).without_all())
    # Nothing else runs meanwhile: a proof that takes longer than a few pauses counts as none.
    with suppress(StepsSpent):
        for _ in zip(range(MOST_UNITS), search, strict=False):
            pass
    if not search.is_over or search.answer is None:
        return None
    return replace(nominated, plan=search.answer)


Lowest = tuple[tuple[float, float], float]
_HIGHEST: Final = (math.inf, math.inf)


@dataclass(slots=True)
class _Candidates:
    """Pods on one node that may end for another one; ``lowest`` is the lowest level, with the seconds that take least.

    ``leaves_in``: so many seconds it takes at least until one is gone that is ending already.
    """

    lowest: Lowest = (_HIGHEST, math.inf)
    leaves_in: float = math.inf
    pods: list[Pod] = field(default_factory=list)

    def may_have(self, lowest: Lowest, leaves_in: float) -> None:
        """Such a pod may end here as well."""
        self.lowest, self.leaves_in = min(self.lowest, lowest), min(self.leaves_in, leaves_in)

    @property
    def is_leaving(self) -> bool:
        """Whether one is ending already."""
        return self.leaves_in < math.inf


Work = Generator[Pause, Elapsed, None]


class _Search:
    def __init__(self, failed: Unschedulable, terms: PreemptionTerms, meter: Meter) -> None:
        self._failed, self._meter = failed, meter
        self._nodes, self._pod = failed.cycle_state.nodes, failed.cycle_state.pod
        self._bundles, self._budgets = Bundles([failed.cycle_state], terms), BudgetsOfPods(terms.budgets)
        self._terms = terms
        self._by_node: dict[str, _Candidates] = {}
        self._anywhere: dict[Bundle, None] = {}
        """Bundles with devices that several nodes can use."""
        self.best: VictimsOnNode | None = None

    def run(self) -> Work:
        """Look at one node after the other."""
        yield from self._gather()
        answered = 0
        for name, candidates in self._in_order():
            if answered >= MOST_NODES or self._is_settled(candidates):
                return
            state = self._nodes.get(name)
            if state is None or not self._failed.is_resolvable(state):
                yield from self._meter.spend(1)
                continue
            found = yield from self._search(state, candidates)
            answered += found is not None
            if found is not None and (self.best is None or found.rank < self.best.rank):
                self.best = found
            if found is not None and candidates.is_leaving and name == self._nominated and self._is_in_time(found):
                return

    def _is_in_time(self, found: VictimsOnNode) -> bool:
        """Whether no victim is there for longer than others wait for it, if one has been already."""
        return not self._terms.is_late or found.seconds <= self._terms.patience

    @property
    def _nominated(self) -> str:
        return self._failed.cycle_state.nominations.node

    def _gather(self) -> Work:
        """Who may end, by node; and the holders of devices that several nodes can use."""
        pods_by_node = self._nodes.pods_by_node
        for number, uid in enumerate([uid for uid, _ in pods_by_node]):
            if number % PODS_PER_STEP == 0:
                yield from self._meter.spend(1)
            place = pods_by_node.at(uid)
            if place is not None and self._bundles.may_matter(place[0]):
                pod, node = place
                candidates = self._by_node.setdefault(node, _Candidates())
                candidates.pods.append(pod)
                weight, leaves = self._terms.weight(pod), pod.metadata.deletion_timestamp is not None
                candidates.may_have((weight.level, weight.seconds), weight.seconds if leaves else math.inf)
        state = self._failed.cycle_state
        for pool in tuple(state.allocator.inventory.shared_pools if state.wanted_classes else ()):
            for device in sorted(state.usage.pool(pool).charged):
                yield from self._meter.spend(STEPS_PER_BUNDLE)
                bundles = self._bundles.with_device(DeviceId(*pool, device))
                self._anywhere.update(dict.fromkeys(bundles))

    def _in_order(self) -> list[tuple[str, _Candidates]]:
        """The node of the nomination, then those where perhaps no pod has to go, then by the lowest level."""
        lowest: Lowest = min(((it.level, it.seconds) for it in self._anywhere), default=(_HIGHEST, math.inf))
        leaves_in = min((it.seconds for it in self._anywhere if not it.victims), default=math.inf)
        for name in self._nodes.names() if self._anywhere else ():
            self._by_node.setdefault(name, _Candidates()).may_have(lowest, leaves_in)
        order = {
            name: (name != self._nominated, not it.is_leaving, it.leaves_in, it.lowest, name)
            for name, it in self._by_node.items()
        }
        return sorted(self._by_node.items(), key=lambda it: order[it[0]])

    def _is_settled(self, candidates: _Candidates) -> bool:
        """Whether neither this node nor one after it can be better than the best."""
        if self.best is None or self.best.broken:
            return False
        if not self.best.victims:
            return candidates.leaves_in > self.best.seconds
        return not candidates.is_leaving and candidates.lowest[0] > self.best.highest

    def _search(self, state: LoadedNode, candidates: _Candidates) -> Generator[Pause, Elapsed, VictimsOnNode | None]:
        bundles: dict[Bundle, None] = {}
        for pod in candidates.pods:
            looked = self._bundles.looked
            bundle = self._bundles.of(pod)
            if bundle is not None:
                bundles[bundle] = None
            yield from self._meter.spend(STEPS_PER_BUNDLE + self._bundles.looked - looked)
        bundles.update((bundle, None) for bundle in self._anywhere if bundle.frees_on(state.node))
        yield from self._meter.spend(1 + len(self._anywhere))
        return (yield from VictimSearch(self._failed, state, list(bundles), self._budgets, self._meter).search())
