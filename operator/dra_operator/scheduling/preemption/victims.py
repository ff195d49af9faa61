"""The victims on one node: as few and as unimportant pods as let the waiting one in.

First all pods that may end are taken away. If the waiting pod does not fit then, it never does. Otherwise they are
kept, the most important one first, whenever the pod fits all the same: those of the highest priority, among equals the
oldest. Many are kept with one question, and only where the pod does not fit are they halved. So no other set lets the
pod in and keeps, at the first difference in that order, a more important pod.

Among pods of one priority that is not always the fewest: one with four devices may do for four with one each. So
smaller sets of the same priority are tried, the smallest first.

Budgets are left aside at first. If the victims break some, it is done once more, and pods whose end may break one are
kept first, whatever their priority; the set that breaks fewer counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, groupby, islice
from typing import Final

from dra_api.core import Pod

from dra_operator.scheduling.cycle.node_status import Fits
from dra_operator.scheduling.cycle.pause import Elapsed, Pause
from dra_operator.scheduling.cycle.post_filter import Unschedulable
from dra_operator.scheduling.cycle.result import Plan
from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.requests import Amounts, add, node_requests, served_resources, subtract

from .budgets import BudgetsOfPods
from .bundles import Bundle
from .meter import Meter
from .terms import born, priority

STEPS_PER_QUESTION: Final = 20
"""What it costs to ask a node beside its search, in steps of the allocator."""
STEPS_PER_POD: Final = 10
"""What it costs to find out what a pod takes of its node."""
STEPS_PER_COUNTED_POD: Final = 10
"""What it costs to count without a pod, where rules between pods matter."""
MOST_SUBSETS: Final = 1000
"""Sets of pods of one priority that are looked at for one that is smaller."""
_LOWEST_PRIORITY: Final = 2**31
"""Added to each priority, so that fewer victims have a smaller sum even where priorities are negative."""

Work = Generator[Pause, Elapsed, None]


@dataclass(frozen=True, slots=True)
class VictimsOnNode:
    """``broken``: so many of the pods end although a PodDisruptionBudget does not allow it."""

    plan: Plan
    victims: tuple[Pod, ...]
    awaited: tuple[Pod, ...]
    broken: int
    left_over: int
    """Devices that come free and that the waiting pod does not take."""

    @property
    def rank(self) -> tuple[object, ...]:
        """The best node has the least."""
        priorities = [priority(pod) for pod in self.victims]
        highest = max(priorities, default=-_LOWEST_PRIORITY)
        youngest = min((born(pod) for pod in self.victims if priority(pod) == highest), default=0.0)
        return (
            self.broken,
            highest,
            sum(it + _LOWEST_PRIORITY for it in priorities),
            len(priorities),
            -youngest,
            self.left_over,
            self.plan.node,
        )


class VictimSearch:
    """One node; ``bundles`` may end."""

    def __init__(
        self, failed: Unschedulable, state: LoadedNode, bundles: Sequence[Bundle], budgets: BudgetsOfPods, meter: Meter
    ) -> None:
        self._question, self._state, self._budgets, self._meter = failed.question, state, budgets, meter
        self._bundles = sorted(bundles, key=lambda bundle: bundle.rank)
        self._usage, self._used = failed.cycle_state.usage.snapshot(), state.used
        self._nodes, self._pod, self._volumes = (
            failed.cycle_state.nodes,
            failed.cycle_state.pod,
            failed.cycle_state.volumes,
        )
        self._minds_pods = bool(self._nodes.rules_between(self._pod))
        self._away: dict[Bundle, None] = {}
        self._fits: tuple[Plan, tuple[Bundle, ...]] | None = None
        """The plan with the fewest bundles away so far."""
        self._room: dict[Bundle, Amounts] = {}
        """What each bundle takes of the node."""

    def without_all(self) -> Generator[Pause, Elapsed, Plan | None]:
        """The plan when all of them have ended; None if the pod does not fit then. Raises StepsSpent, ClaimError."""
        yield from self._take_away(self._bundles)
        if not (yield from self._ask()) or self._fits is None:
            return None
        return self._fits[0]

    def search(self) -> Generator[Pause, Elapsed, VictimsOnNode | None]:
        """The victims; None if the pod does not fit however many end. Raises StepsSpent, ClaimError."""
        yield from self._take_away(self._bundles)
        if not (yield from self._ask()):
            return None
        bundles = [bundle for bundle in self._bundles if bundle.victims]
        yield from self._keep_by(bundles, lambda bundle: bundle.priority)
        found = self._found()
        if not found.broken:
            return found
        risky = self._risky(bundles)
        yield from self._take_away(bundles)
        if not (yield from self._ask()):
            return found  # other pods came meanwhile
        ordered = sorted(bundles, key=lambda bundle: (bundle not in risky, bundle.rank))
        yield from self._keep_by(ordered, lambda bundle: (bundle not in risky, bundle.priority))
        return min(found, self._found(), key=lambda it: it.broken)

    def _risky(self, bundles: Sequence[Bundle]) -> set[Bundle]:
        """Those whose end breaks a budget if all end, the least important ones first."""
        pods = [(pod, bundle) for bundle in reversed(bundles) for pod in bundle.victims]
        broken = {pod.metadata.uid for pod in self._budgets.broken_by(pod for pod, _ in pods)}
        return {bundle for pod, bundle in pods if pod.metadata.uid in broken}

    def _keep_by(self, ordered: Sequence[Bundle], level: Callable[[Bundle], object]) -> Work:
        """Keep what can be kept, level by level; all are away, and the pod fits."""
        for _, group in groupby(ordered, level):
            bundles = list(group)
            yield from self._keep(bundles)
            yield from self._look_for_fewer(bundles)

    def _keep(self, bundles: Sequence[Bundle], *, is_too_much: bool = False) -> Work:
        """Keep those that can be kept; not all together, if that is known to be too much."""
        if not is_too_much:
            yield from self._bring_back(bundles)
            if (yield from self._ask()):
                return
            yield from self._take_away(bundles)
        if len(bundles) > 1:
            half = len(bundles) // 2
            yield from self._keep(bundles[:half])
            yield from self._keep(bundles[half:], is_too_much=self._away.keys().isdisjoint(bundles[:half]))

    def _look_for_fewer(self, bundles: Sequence[Bundle]) -> Work:
        """The smallest set of these bundles that does as well as those that are away, if there is one."""
        away = [bundle for bundle in bundles if bundle in self._away]
        for some in _smaller_sets(bundles, away):
            if self._meter.smaller_sets == 0:
                break
            self._meter.smaller_sets -= 1
            yield from self._exchange(bundles, some)
            if (yield from self._ask()):
                return
        yield from self._exchange(bundles, away)

    def _exchange(self, bundles: Sequence[Bundle], away: Collection[Bundle]) -> Work:
        """Of the bundles, exactly these are away."""
        yield from self._bring_back([bundle for bundle in bundles if bundle not in away])
        yield from self._take_away(away)

    def _found(self) -> VictimsOnNode:
        assert self._fits is not None
        plan, away = self._fits
        victims = sorted((pod for bundle in away for pod in bundle.victims), key=lambda it: (-priority(it), it.key))
        freed = sum(len(allocation.results) for bundle in away for allocation in bundle.freed)
        taken = sum(len(allocation.results) for allocation in plan.allocations.values())
        awaited = tuple(pod for bundle in away for pod in bundle.leaving)
        broken = self._budgets.broken_by(reversed(victims))
        return VictimsOnNode(plan, tuple(victims), awaited, len(broken), freed - taken)

    # --- questions ---

    def _take_away(self, bundles: Collection[Bundle]) -> Work:
        for bundle in bundles:
            if bundle not in self._away:
                self._away[bundle] = None
                for allocation in bundle.freed:
                    self._usage.remove(allocation)
                self._used = subtract(self._used, (yield from self._room_of(bundle)))

    def _bring_back(self, bundles: Collection[Bundle]) -> Work:
        for bundle in bundles:
            if bundle in self._away:
                del self._away[bundle]
                for allocation in bundle.freed:
                    self._usage.add(allocation)
                self._used = add(self._used, (yield from self._room_of(bundle)))

    def _room_of(self, bundle: Bundle) -> Generator[Pause, Elapsed, Amounts]:
        known = self._room.get(bundle)
        if known is not None:
            yield from self._meter.spend(1 + len(bundle.freed))
            return known
        yield from self._meter.spend(STEPS_PER_POD * len(bundle.pods) + len(bundle.freed))
        total: Amounts = {}
        for pod in bundle.pods:
            if pod.spec.node_name == self._state.name:
                total = add(total, node_requests(pod, served_resources(pod)))
        self._room[bundle] = total
        return total

    def _ask(self) -> Generator[Pause, Elapsed, bool]:
        """Whether the pod fits now."""
        away = [pod for bundle in self._away for pod in bundle.pods] if self._minds_pods else []
        yield from self._meter.spend(STEPS_PER_QUESTION + STEPS_PER_COUNTED_POD * len(away))
        state = self._state.with_load(self._used)
        with self._nodes.pods_by_node.without(away):
            rules = self._nodes.rules_of(self._pod, self._volumes) if self._minds_pods else None
            question = self._question.given(self._usage, rules)
            obstacle = question.obstacle(state)
        if obstacle is not None:
            return False
        status = yield from question.serve(state)
        yield from self._meter.spend(question.steps)
        if not isinstance(status, Fits):
            return False
        self._fits = status.plan, tuple(self._away)
        return True


def _size(bundles: Collection[Bundle]) -> int:
    return sum(len(bundle.victims) for bundle in bundles)


def _smaller_sets(bundles: Sequence[Bundle], away: Sequence[Bundle]) -> list[tuple[Bundle, ...]]:
    """Sets of fewer pods than those away: the smallest first, and of equals those that keep the oldest pods.

    No part of what is away is among them: each of those bundles is needed beside the others.
    """
    most, needed = _size(away), set(away)
    if most < 2:
        return []
    subsets = chain.from_iterable(combinations(bundles, number) for number in range(1, len(bundles)))
    smaller = (some for some in islice(subsets, MOST_SUBSETS) if _size(some) < most and not needed.issuperset(some))
    return sorted(smaller, key=lambda some: (_size(some), [bundle in some for bundle in bundles]))
