"""The victims on one node: as few and as unimportant pods as let the waiting one in (``reprieve``).

First all pods that may end are taken away. If the waiting pod does not fit then, it never does.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

from dra_api.core import Pod

from dra_operator.scheduling.cycle.attempt import Unschedulable
from dra_operator.scheduling.cycle.pause import Elapsed, Pause
from dra_operator.scheduling.cycle.result import Fits, Plan
from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.requests import Amounts, add, node_requests, served_resources, subtract

from .budgets import BudgetsOfPods
from .bundles import Bundle
from .meter import Meter
from .reprieve import Chosen, Reprieve, Work
from .terms import Weight, born

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
    def of(cls, found: Chosen[Plan]) -> VictimsOnNode:
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
