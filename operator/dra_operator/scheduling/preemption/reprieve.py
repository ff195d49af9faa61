"""The victims are as few and as unimportant as can be: all that may end are away, then those return that can be kept.

They are kept, the most important ones first, whenever what waits fits all the same: those of the highest level, among
equals the ones that take longest to end, then the oldest. The level is the priority, and of one priority a pod that
outlasts the patience of others is above one that does not; when one has outlasted it, that counts first
(``terms``). Many are kept with one question, and only where it does not fit are they halved. So no other set lets it in
and keeps, at the first difference in that order, a more important pod.

Among pods of one level that is not always the fewest: one with four devices may do for four with one each. So smaller
sets of the same level are tried, the smallest first.

Budgets are left aside at first. If the victims break some, it is done once more, and pods whose end may break one are
kept first, whatever their level; the set that breaks fewer counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, groupby, islice
from typing import Final, Generic, TypeVar

from dra_api.core import Pod

from dra_operator.scheduling.cycle.pause import Elapsed, Pause

from .budgets import BudgetsOfPods
from .bundles import Bundle
from .meter import Meter
from .terms import Weight

MOST_SUBSETS: Final = 1000
"""Sets of pods of one priority that are looked at for one that is smaller."""

P = TypeVar("P")
Work = Generator[Pause, Elapsed, None]


@dataclass(frozen=True, slots=True)
class Chosen(Generic[P]):
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

    def _chosen(self) -> Generator[Pause, Elapsed, Chosen[P]]:
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

    def _found(self) -> Chosen[P]:
        assert self._fits is not None
        plan, away = self._fits
        ranked = [it for bundle in away for it in zip(bundle.victims, bundle.weights, strict=True)]
        ranked.sort(key=lambda it: (-it[1].priority, it[0].key))
        victims, weights = tuple(pod for pod, _ in ranked), tuple(weight for _, weight in ranked)
        return Chosen(plan, away, victims, weights, len(self._budgets.broken_by(reversed(victims))))


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
