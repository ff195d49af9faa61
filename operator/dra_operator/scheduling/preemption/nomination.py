"""Nominate a node for a pod that fits nowhere, and the victims on it: a post filter (``cycle.attempt``).

Among the nodes on which preemption helps, the best one has

1. the fewest violated PodDisruptionBudgets,
2. the lowest "highest level of a victim": its priority, then whether it terminates within ``patience`` (``terms``),
3. the smallest sum of the victims' priorities,
4. the fewest victims,
5. the victims that terminate soonest,
6. the youngest most important victim,
7. the fewest freed devices that the pod does not take,

and the first name. Criteria 1 to 4 and 6 are kube-scheduler's. A node where terminating pods free enough is better than
all nodes with victims; among such nodes the one counts whose pods are gone soonest. The nominated node is tried first
while pods terminate on it, so that no pod is preempted in vain.

Nodes are tried by the lowest level on them. The search stops when no further node can be better, after ``MOST_NODES``
nodes with an answer, or when its steps are used up; then the best node so far counts.
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
from dra_operator.scheduling.cycle.filter import PostFilterResult
from dra_operator.scheduling.pieces import Elapsed, InPieces, Pause
from dra_operator.scheduling.state.applicants import is_placeholder
from dra_operator.scheduling.state.node import LoadedNode

from .bundles import BudgetsOfPods, Bundle, Bundles, Meter, PreemptionTerms, StepsSpent
from .victims import VictimSearch, VictimsOnNode

NEVER: Final = "Never"
MOST_UNITS: Final = 40
"""Limit of ``proven`` in pieces of work, about a tenth of a second."""
MOST_NODES: Final = 32
"""Nodes with an answer that are compared."""
PODS_PER_STEP: Final = 5
"""Pods visited in the time of one step of the allocator."""
STEPS_PER_BUNDLE: Final = 4
"""Cost of building the bundle of a pod, in steps of the allocator."""


def may_preempt(pod: Pod) -> bool:
    """Return whether the pod may preempt others at all."""
    return not is_placeholder(pod) and not pod.spec.scheduling_gates and pod.spec.preemption_policy != NEVER


def preempt(
    failed: Unschedulable, terms: PreemptionTerms, meter: Meter | None = None
) -> Generator[Pause, Elapsed, PostFilterResult | None]:
    """Return the nomination, or None if preemption does not help. Raises ClaimError."""
    # A pod at the gate gets its node elsewhere, and a placeholder pod is no pod that could run.
    if not may_preempt(failed.cycle_state.pod):
        return None
    search = _Search(failed, terms, meter or Meter())
    with suppress(StepsSpent):
        yield from search.run()
    # Also after the steps are spent: the best node so far is better than none.
    best = search.best
    return PostFilterResult(best.plan, best.victims, best.awaited) if best is not None else None


def proven(
    failed: Unschedulable, terms: PreemptionTerms, nominated: PostFilterResult, usage: Usage
) -> PostFilterResult | None:
    """Return the nomination if it still holds with the devices in use now, or None. Does not pause.

    The search paused, so other pods may have been placed, or victims deleted, in the meantime.
    """
    now = replace(failed, cycle_state=replace(failed.cycle_state, usage=usage))
    state, bundles = now.cycle_state.nodes.get(nominated.nominated_node), Bundles([now.cycle_state], terms)
    ending = (*nominated.victims, *nominated.awaited)
    found = {bundle: None for pod in ending if (bundle := bundles.of(pod)) is not None}
    gone = {pod.metadata.uid for bundle in found for pod in bundle.pods}
    if state is None or gone != {pod.metadata.uid for pod in ending}:
        return None
    search = InPieces(VictimSearch(now, state, list(found), BudgetsOfPods(terms.budgets), Meter()).without_all())
    # Nothing else runs during the proof. If it is not over after MOST_UNITS pieces, the nomination is not proven, and
    # the pod tries again later: better than to stop the whole operator for one pod.
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
    """Possible victims on one node. ``lowest``: the lowest level among them, with the shortest termination.

    ``leaves_in``: seconds until the first terminating pod is gone; infinity without one.
    """

    lowest: Lowest = (_HIGHEST, math.inf)
    leaves_in: float = math.inf
    pods: list[Pod] = field(default_factory=list)

    def may_have(self, lowest: Lowest, leaves_in: float) -> None:
        """Count a further possible victim."""
        self.lowest, self.leaves_in = min(self.lowest, lowest), min(self.leaves_in, leaves_in)

    @property
    def is_leaving(self) -> bool:
        """Whether one of them is terminating already."""
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
        """Bundles that free devices of several nodes, by any of which the pod may get them."""
        self.best: VictimsOnNode | None = None

    def run(self) -> Work:
        """Try one node after the other, the most promising first."""
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
            # Pods of the nominated node terminate already. Another node may look better now, but to change the
            # nomination would preempt further pods there, and those terminating here would have been preempted in vain.
            if found is not None and candidates.is_leaving and name == self._nominated and self._is_in_time(found):
                return

    def _is_in_time(self, found: VictimsOnNode) -> bool:
        """Whether the victims terminate within ``patience``; asked only once an earlier victim has outlasted it."""
        return not self._terms.is_late or found.seconds <= self._terms.patience

    @property
    def _nominated(self) -> str:
        return self._failed.cycle_state.nominations.node

    def _gather(self) -> Work:
        """Collect the possible victims by node, and the holders of devices that several nodes can use."""
        pods_by_node = self._nodes.pods_by_node
        # Pods come and go while this pauses: a list of UIDs stays valid, and each pod is looked up when its turn comes.
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
        # A holder of a network-attached device can be on any node, also on one that does not fit the pending pod.
        for pool in tuple(state.allocator.inventory.shared_pools if state.wanted_classes else ()):
            for device in sorted(state.usage.pool(pool).charged):
                yield from self._meter.spend(STEPS_PER_BUNDLE)
                bundles = self._bundles.with_device(DeviceId(*pool, device))
                self._anywhere.update(dict.fromkeys(bundles))

    def _in_order(self) -> list[tuple[str, _Candidates]]:
        """Return the nominated node, then nodes where waiting may be enough, then the others by lowest level."""
        # Devices of several nodes may help anywhere, so each node may have these victims.
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
        """Return whether neither this node nor a later one can be better than the best so far."""
        # The order of the nodes says nothing about budgets: any later node may violate fewer.
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
        # Only if the node can use the devices that they free: otherwise preemption would not help.
        bundles.update((bundle, None) for bundle in self._anywhere if bundle.frees_on(state.node))
        yield from self._meter.spend(1 + len(self._anywhere))
        return (yield from VictimSearch(self._failed, state, list(bundles), self._budgets, self._meter).search())
