"""The victims on one node: as few and as unimportant pods as let the waiting one in.

First all pods that may be preempted are taken away. If the waiting pod does not fit then, it never does. Otherwise as
many return as can be kept, by importance: first by the highest level, among equals by the longest
termination, then by age. The level is the priority, and of one priority a pod that outlasts the patience of others is
above one that does not; when one has outlasted it, that counts first (``terms``). Many are kept with one question, and
only where it does not fit are they halved. So no other set lets the pod in and keeps, at the first difference in that
order, a more important one.

Among pods of one level that is not always the fewest: one with four devices may do for four with one each. So smaller
sets of the same level are tried, the smallest first.

Budgets are left aside at first. If the victims break some, it is done once more, and pods whose end may break one are
kept first, at any level; the set that breaks fewer counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, groupby, islice
from typing import Final, Generic, TypeVar

from dra_api.core import Pod

from dra_operator.scheduling.cycle.attempt import Unschedulable
from dra_operator.scheduling.cycle.result import Fits, Plan
from dra_operator.scheduling.pieces import Elapsed, Pause
from dra_operator.scheduling.preemption.bundles import Bundle
from dra_operator.scheduling.preemption.terms import BudgetsOfPods, Meter, Weight, born
from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.requests import Amounts, add, node_requests, served_resources, subtract

MOST_SUBSETS: Final = 1000
"""Sets of pods of one priority that are looked at for one that is smaller."""

P = TypeVar("P")
Work = Generator[Pause, Elapsed, None]


@dataclass(frozen=True, slots=True)
class VictimChoice(Generic[P]):
    """``plan`` is possible when these bundles have ended. ``broken``: so many of the victims end against a budget."""

    plan: P
    bundles: tuple[Bundle, ...]
    victims: tuple[Pod, ...]
    weights: tuple[Weight, ...]
    """Those of the victims, in their order."""
    broken: int


class Reprieve(ABC, Generic[P]):
    """One search. ``bundles`` may end, and come in the order of their importance."""

    def __init__(self, bundles: Sequence[Bundle], budgets: BudgetsOfPods, meter: Meter) -> None:
        self._bundles = sorted(bundles, key=lambda bundle: bundle.rank)
        self._budgets, self._meter = budgets, meter
        self._away: dict[Bundle, None] = {}
        self._fits: tuple[P, tuple[Bundle, ...]] | None = None
        """The plan with the fewest bundles away so far."""

    @abstractmethod
    def _end(self, bundle: Bundle) -> Work:
        """What the bundle has is free. Raises StepsSpent."""

    @abstractmethod
    def _return(self, bundle: Bundle) -> Work:
        """The reverse of ``_end``."""

    @abstractmethod
    def _planned(self) -> Generator[Pause, Elapsed, P | None]:
        """The plan without those that are away. Raises StepsSpent and ClaimError."""

    def _chosen(self) -> Generator[Pause, Elapsed, VictimChoice[P]]:
        """The victims; what waits fits with those that are away. Raises StepsSpent and ClaimError."""
        bundles = [bundle for bundle in self._bundles if bundle.victims]
        yield from self._keep_by(bundles, lambda bundle: bundle.level)
        found = self._found()
        if not found.broken:
            return found
        risky = self._risky(bundles)
        yield from self._take_away(bundles)
        if not (yield from self._ask()):
            return found  # other pods came meanwhile
        ordered = sorted(bundles, key=lambda bundle: (bundle not in risky, bundle.rank))
        yield from self._keep_by(ordered, lambda bundle: (bundle not in risky, bundle.level))
        return min(found, self._found(), key=lambda it: it.broken)

    def _risky(self, bundles: Sequence[Bundle]) -> set[Bundle]:
        """Those whose end breaks a budget if all end, the least important ones first."""
        pods = [(pod, bundle) for bundle in reversed(bundles) for pod in bundle.victims]
        broken = {pod.metadata.uid for pod in self._budgets.broken_by(pod for pod, _ in pods)}
        return {bundle for pod, bundle in pods if pod.metadata.uid in broken}

    def _keep_by(self, ordered: Sequence[Bundle], level: Callable[[Bundle], object]) -> Work:
        """Keep what can be kept, level by level; what waits fits with those that are away."""
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

    def _take_away(self, bundles: Collection[Bundle]) -> Work:
        for bundle in bundles:
            if bundle not in self._away:
                self._away[bundle] = None
                yield from self._end(bundle)

    def _bring_back(self, bundles: Collection[Bundle]) -> Work:
        for bundle in bundles:
            if bundle in self._away:
                del self._away[bundle]
                yield from self._return(bundle)

    def _ask(self) -> Generator[Pause, Elapsed, bool]:
        """Whether what waits fits now."""
        plan = yield from self._planned()
        if plan is None:
            return False
        self._fits = plan, tuple(self._away)
        return True

    def _found(self) -> VictimChoice[P]:
        assert self._fits is not None
        plan, away = self._fits
        ranked = [it for bundle in away for it in zip(bundle.victims, bundle.weights, strict=True)]
        ranked.sort(key=lambda it: (-it[1].priority, it[0].key))
        victims, weights = tuple(pod for pod, _ in ranked), tuple(weight for _, weight in ranked)
        return VictimChoice(plan, away, victims, weights, len(self._budgets.broken_by(reversed(victims))))


def _size(bundles: Collection[Bundle]) -> int:
    return sum(len(bundle.victims) for bundle in bundles)


def _smaller_sets(bundles: Sequence[Bundle], away: Sequence[Bundle]) -> list[tuple[Bundle, ...]]:
    """Sets of fewer pods than those away: the smallest first, and of equals those that keep the oldest pods.

    No part of what is away is among them: each of those bundles is needed beside the others.
    """
    most, needed, places = _size(away), set(away), {bundle: -place for place, bundle in enumerate(bundles)}
    if most < 2:
        return []
    subsets = chain.from_iterable(combinations(bundles, number) for number in range(1, len(bundles)))
    smaller = (some for some in islice(subsets, MOST_SUBSETS) if _size(some) < most and not needed.issuperset(some))
    return sorted(smaller, key=lambda some: (_size(some), [places[bundle] for bundle in some]))


STEPS_PER_QUESTION: Final = 20
"""What it costs to ask a node beside its search, in steps of the allocator."""
STEPS_PER_POD: Final = 10
"""What it costs to find out what a pod takes of its node."""
STEPS_PER_COUNTED_POD: Final = 10
"""What it costs to count without a pod, where rules between pods matter."""
_LOWEST_PRIORITY: Final = 2**31
"""Added to each priority, so that fewer victims have a smaller sum even where priorities are negative."""


@dataclass(frozen=True, slots=True)
class VictimsOnNode:
    """``broken``: so many of the pods end although a PodDisruptionBudget does not allow it."""

    plan: Plan
    victims: tuple[Pod, ...]
    weights: tuple[Weight, ...]
    """Those of the victims, in their order."""
    awaited: tuple[Pod, ...]
    broken: int
    left_over: int
    """Devices that come free and that the waiting pod does not take."""
    seconds: float
    """In how many seconds all victims are gone at the latest; without one, all that are awaited."""

    @property
    def highest(self) -> tuple[int, int]:
        """The highest level of a victim."""
        return max((it.level for it in self.weights), default=(-_LOWEST_PRIORITY, 0))

    @property
    def rank(self) -> tuple[object, ...]:
        """The best node has the least."""
        of_highest = (pod for pod, it in zip(self.victims, self.weights, strict=True) if it.level == self.highest)
        youngest = min(map(born, of_highest), default=0.0)
        return (
            self.broken,
            self.highest,
            sum(it.priority + _LOWEST_PRIORITY for it in self.weights),
            len(self.weights),
            self.seconds,
            -youngest,
            self.left_over,
            self.plan.node,
        )

    @classmethod
    def of(cls, found: VictimChoice[Plan]) -> VictimsOnNode:
        """With what the plan leaves over."""
        freed = sum(len(allocation.results) for bundle in found.bundles for allocation in bundle.freed)
        taken = sum(len(allocation.results) for allocation in found.plan.allocations.values())
        awaited = tuple(pod for bundle in found.bundles for pod in bundle.leaving)
        waited_for = (it for it in found.bundles if bool(it.victims) == bool(found.victims))
        seconds = max((it.seconds for it in waited_for), default=0.0)
        return cls(found.plan, found.victims, found.weights, awaited, found.broken, freed - taken, seconds)


class VictimSearch(Reprieve[Plan]):
    """One node; ``bundles`` may end."""

    def __init__(
        self, failed: Unschedulable, state: LoadedNode, bundles: Sequence[Bundle], budgets: BudgetsOfPods, meter: Meter
    ) -> None:
        super().__init__(bundles, budgets, meter)
        self._question, self._state = failed.question, state
        self._usage, self._used = failed.cycle_state.usage.snapshot(), state.used
        self._nodes, self._pod, self._volumes = (
            failed.cycle_state.nodes,
            failed.cycle_state.pod,
            failed.cycle_state.volumes,
        )
        self._minds_pods = bool(self._nodes.rules_between(self._pod))
        self._room: dict[Bundle, Amounts] = {}
        """What each bundle takes of the node."""

    def without_all(self) -> Generator[Pause, Elapsed, Plan | None]:
        """The plan when all of them have ended; None if the pod does not fit then. Raises StepsSpent, ClaimError."""
        yield from self._take_away(self._bundles)
        return (yield from self._planned())

    def search(self) -> Generator[Pause, Elapsed, VictimsOnNode | None]:
        """The victims; None if the pod does not fit however many end. Raises StepsSpent, ClaimError."""
        yield from self._take_away(self._bundles)
        if not (yield from self._ask()):
            return None
        return VictimsOnNode.of((yield from self._chosen()))

    def _end(self, bundle: Bundle) -> Work:
        for allocation in bundle.freed:
            self._usage.remove(allocation)
        self._used = subtract(self._used, (yield from self._room_of(bundle)))

    def _return(self, bundle: Bundle) -> Work:
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

    def _planned(self) -> Generator[Pause, Elapsed, Plan | None]:
        away = [pod for bundle in self._away for pod in bundle.pods] if self._minds_pods else []
        yield from self._meter.spend(STEPS_PER_QUESTION + STEPS_PER_COUNTED_POD * len(away))
        state = self._state.with_load(self._used)
        with self._nodes.pods_by_node.without(away):
            rules = self._nodes.rules_of(self._pod, self._volumes) if self._minds_pods else None
            question = self._question.given(self._usage, rules)
            obstacle = question.obstacle(state)
        if obstacle is not None:
            return None
        status = yield from question.serve(state)
        yield from self._meter.spend(question.steps)
        return status.plan if isinstance(status, Fits) else None
