"""Find the victims on one node: as few and as unimportant pods as possible.

First all possible victims are removed from a copy of the node. If the pending pod does not fit then, no preemption on
the node helps. Otherwise pods return in the order of their importance, while the pending pod still fits: highest level
first (``terms.Weight``), then longest termination, then oldest. So no other set of victims keeps a more important pod
at the first difference in that order.

Each trial places the pending pod, which is costly. So pods return many at once, and a set that does not fit is halved.

Within a level this does not always give the fewest victims: one pod with four devices may do instead of four pods with
one each. So smaller sets of the same level are tried afterwards, the smallest first.

Budgets are ignored at first. If the victims violate some, the search runs again, and pods that may violate a budget
return before all others. The set with fewer violations counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, groupby, islice
from typing import Final, Generic, TypeVar

from dra_api.core import Pod

from dra_operator.scheduling.cycle.attempt import Unschedulable
from dra_operator.scheduling.cycle.filter import Fits, Plan
from dra_operator.scheduling.pieces import Elapsed, Pause
from dra_operator.scheduling.preemption.bundles import BudgetsOfPods, Bundle, Meter, Weight, born
from dra_operator.scheduling.state.node import Amounts, LoadedNode, add, node_requests, served_resources, subtract

MOST_SUBSETS: Final = 1000
"""Limit on the sets of one level that are generated in search of a smaller one."""

P = TypeVar("P")
Work = Generator[Pause, Elapsed, None]


@dataclass(frozen=True, slots=True)
class VictimChoice(Generic[P]):
    """``plan`` is possible without these bundles. ``broken``: number of victims that violate a budget."""

    plan: P
    bundles: tuple[Bundle, ...]
    victims: tuple[Pod, ...]
    weights: tuple[Weight, ...]
    """In the order of ``victims``."""
    broken: int


class Reprieve(ABC, Generic[P]):
    """A search among ``bundles``, which it removes and returns until a smallest set of victims is left."""

    def __init__(self, bundles: Sequence[Bundle], budgets: BudgetsOfPods, meter: Meter) -> None:
        self._bundles = sorted(bundles, key=lambda bundle: bundle.rank)
        self._budgets, self._meter = budgets, meter
        self._away: dict[Bundle, None] = {}
        self._fits: tuple[P, tuple[Bundle, ...]] | None = None
        """The latest plan, with the bundles that were removed for it."""

    @abstractmethod
    def _end(self, bundle: Bundle) -> Work:
        """Free what the bundle has. Raises StepsSpent."""

    @abstractmethod
    def _return(self, bundle: Bundle) -> Work:
        """Undo ``_end``. Raises StepsSpent."""

    @abstractmethod
    def _planned(self) -> Generator[Pause, Elapsed, P | None]:
        """Return a plan without the removed bundles, or None. Raises StepsSpent and ClaimError."""

    def _chosen(self) -> Generator[Pause, Elapsed, VictimChoice[P]]:
        """Return the victims. Before the call, the pending pod fits without the removed bundles.

        Raises StepsSpent and ClaimError.
        """
        # Terminating pods go in any case, so they are never brought back.
        bundles = [bundle for bundle in self._bundles if bundle.victims]
        yield from self._keep_by(bundles, lambda bundle: bundle.level)
        found = self._found()
        if not found.broken:
            return found
        # Priority alone violates a budget. The second search keeps the pods under budgets first, which may cost pods of
        # a higher level, so its result counts only if it violates fewer.
        risky = self._risky(bundles)
        yield from self._take_away(bundles)
        if not (yield from self._ask()):
            return found  # the search has paused, and other pods were placed since
        ordered = sorted(bundles, key=lambda bundle: (bundle not in risky, bundle.rank))
        yield from self._keep_by(ordered, lambda bundle: (bundle not in risky, bundle.level))
        return min(found, self._found(), key=lambda it: it.broken)

    def _risky(self, bundles: Sequence[Bundle]) -> set[Bundle]:
        """Return the bundles that violate a budget if all are preempted, the least important ones first."""
        pods = [(pod, bundle) for bundle in reversed(bundles) for pod in bundle.victims]
        broken = {pod.metadata.uid for pod in self._budgets.broken_by(pod for pod, _ in pods)}
        return {bundle for pod, bundle in pods if pod.metadata.uid in broken}

    def _keep_by(self, ordered: Sequence[Bundle], level: Callable[[Bundle], object]) -> Work:
        """Return bundles level by level, as long as the pending pod fits."""
        for _, group in groupby(ordered, level):
            bundles = list(group)
            yield from self._keep(bundles)
            yield from self._look_for_fewer(bundles)

    def _keep(self, bundles: Sequence[Bundle], *, is_too_much: bool = False) -> Work:
        """Return as many of the bundles as possible, in their order. ``is_too_much``: not all of them can return."""
        if not is_too_much:
            yield from self._bring_back(bundles)
            if (yield from self._ask()):
                return
            yield from self._take_away(bundles)
        if len(bundles) > 1:
            # By halves: most pods of a level can stay or none can, and each trial is a placement.
            half = len(bundles) // 2
            yield from self._keep(bundles[:half])
            # If the whole first half has returned, the second half cannot return as a whole: all together did not fit.
            yield from self._keep(bundles[half:], is_too_much=self._away.keys().isdisjoint(bundles[:half]))

    def _look_for_fewer(self, bundles: Sequence[Bundle]) -> Work:
        """Replace the removed ones of these bundles by a set with fewer pods, if the pending pod fits then."""
        away = [bundle for bundle in bundles if bundle in self._away]
        # The greedy search returns important pods first, and may keep two small ones where one large one would do.
        for some in _smaller_sets(bundles, away):
            # Sets are many where pods are: the limit is for the whole attempt.
            if self._meter.smaller_sets == 0:
                break
            self._meter.smaller_sets -= 1
            yield from self._exchange(bundles, some)
            if (yield from self._ask()):
                return
        yield from self._exchange(bundles, away)

    def _exchange(self, bundles: Sequence[Bundle], away: Collection[Bundle]) -> Work:
        """Have exactly ``away`` of the bundles removed."""
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
        """Return whether the pending pod fits now, and remember the plan."""
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
    """Return sets with fewer pods than ``away``: the smallest first, then those that keep the more important pods.

    Subsets of ``away`` are left out: none of its bundles could return while the others are removed.
    """
    most, needed, places = _size(away), set(away), {bundle: -place for place, bundle in enumerate(bundles)}
    if most < 2:
        return []
    # Lazily, the small ones first: only the first ``MOST_SUBSETS`` are ever made.
    subsets = chain.from_iterable(combinations(bundles, number) for number in range(1, len(bundles)))
    smaller = (some for some in islice(subsets, MOST_SUBSETS) if _size(some) < most and not needed.issuperset(some))
    return sorted(smaller, key=lambda some: (_size(some), [places[bundle] for bundle in some]))


STEPS_PER_QUESTION: Final = 20
"""Cost of a trial on a node without the search of the allocator, in steps of the allocator."""
STEPS_PER_POD: Final = 10
"""Cost of adding up the node resources of a pod."""
STEPS_PER_COUNTED_POD: Final = 10
"""Cost of leaving a pod out of the counts of rules between pods."""
_LOWEST_PRIORITY: Final = 2**31
"""Added to each priority, so that fewer victims have a smaller sum even where priorities are negative."""


@dataclass(frozen=True, slots=True)
class VictimsOnNode:
    """The victims on a node. ``broken``: number of victims that violate a PodDisruptionBudget."""

    plan: Plan
    victims: tuple[Pod, ...]
    weights: tuple[Weight, ...]
    """In the order of ``victims``."""
    awaited: tuple[Pod, ...]
    """Terminating pods on which the plan relies."""
    broken: int
    left_over: int
    """Freed devices that the pending pod does not take."""
    seconds: float
    """Seconds until all victims are gone at the latest; without victims, until the awaited pods are."""

    @property
    def highest(self) -> tuple[int, int]:
        return max((it.level for it in self.weights), default=(-_LOWEST_PRIORITY, 0))

    @property
    def rank(self) -> tuple[object, ...]:
        """A key that sorts the best node first."""
        of_highest = (pod for pod, it in zip(self.victims, self.weights, strict=True) if it.level == self.highest)
        # As in kube-scheduler: the younger the most important victim, the less work is lost with it.
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
        """Return the victims with what the plan leaves over."""
        # Freed devices that nobody takes are waste: the equal node with the least is best.
        freed = sum(len(allocation.results) for bundle in found.bundles for allocation in bundle.freed)
        taken = sum(len(allocation.results) for allocation in found.plan.allocations.values())
        awaited = tuple(pod for bundle in found.bundles for pod in bundle.leaving)
        # Terminating pods go anyway: they count only where nobody has to be preempted.
        waited_for = (it for it in found.bundles if bool(it.victims) == bool(found.victims))
        seconds = max((it.seconds for it in waited_for), default=0.0)
        return cls(found.plan, found.victims, found.weights, awaited, found.broken, freed - taken, seconds)


class VictimSearch(Reprieve[Plan]):
    """The search on one node, among ``bundles``."""

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
        """The node resources of each bundle on this node."""

    def without_all(self) -> Generator[Pause, Elapsed, Plan | None]:
        """Return the plan without all bundles, or None if the pod does not fit then. Raises StepsSpent, ClaimError."""
        yield from self._take_away(self._bundles)
        return (yield from self._planned())

    def search(self) -> Generator[Pause, Elapsed, VictimsOnNode | None]:
        """Return the victims, or None if the pod does not fit even without all of them.

        Raises StepsSpent, ClaimError.
        """
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
        # The requests of a pod do not change during an attempt: each bundle comes and goes many times.
        if known is not None:
            yield from self._meter.spend(1 + len(bundle.freed))
            return known
        yield from self._meter.spend(STEPS_PER_POD * len(bundle.pods) + len(bundle.freed))
        total: Amounts = {}
        for pod in bundle.pods:
            # Pods of the bundle on other nodes give this node no room.
            if pod.spec.node_name == self._state.name:
                total = add(total, node_requests(pod, served_resources(pod)))
        self._room[bundle] = total
        return total

    def _planned(self) -> Generator[Pause, Elapsed, Plan | None]:
        # Affinity and spread count pods on all nodes. Without such rules the counts do not matter, and cost nothing.
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
