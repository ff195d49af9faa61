"""The terms of preemption: priorities, PodDisruptionBudgets, how soon a pod is gone, and the steps of an attempt.

Budgets are broken only if a pod fits in no other way, as kube-scheduler breaks them. An attempt pauses as searches do,
and ends when its steps are spent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from dra_api.core import Node, Pod
from dra_api.policy import PodDisruptionBudget
from dra_api.resource import ResourceClaim
from dra_api.selectors import Selector
from dra_api.values import parse_time

from dra_operator.allocator import DeviceId
from dra_operator.scheduling.pieces import PAUSE_STEPS, Elapsed, Pause


@dataclass(frozen=True, slots=True, eq=False)
class Budget:
    """``disrupted`` are the names of pods that the budget counts as ended already."""

    selector: Selector
    allowed: int
    disrupted: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, budget: PodDisruptionBudget) -> Budget:
        """An empty selector covers every pod of the namespace, as policy/v1 says."""
        selector = Selector.of(budget.spec.selector)
        disrupted = frozenset(budget.status.disrupted_pods or ())
        return cls(selector, budget.status.disruptions_allowed, disrupted)

    def covers(self, pod: Pod) -> bool:
        """Whether the end of the pod is charged to the budget."""
        return pod.metadata.name not in self.disrupted and self.selector.matches(pod.metadata.labels or {})


class BudgetsOfPods:
    """Which budgets cover which pod, looked up once for each pod and namespace."""

    def __init__(self, budgets: Callable[[str], Iterable[Budget]]) -> None:
        self._budgets = budgets
        self._of_namespace: dict[str, tuple[Budget, ...]] = {}
        self._of_pod: dict[str, tuple[Budget, ...]] = {}
        self.compared = 0
        """So many comparisons of a pod with a budget were made."""

    def broken_by(self, pods: Iterable[Pod]) -> list[Pod]:
        """Those of the pods, ended one after the other, whose end breaks a budget."""
        ended: Counter[Budget] = Counter()
        broken = []
        for pod in pods:
            budgets = self._covering(pod)
            ended.update(budgets)
            if any(ended[it] > it.allowed for it in budgets):
                broken.append(pod)
        return broken

    def _covering(self, pod: Pod) -> tuple[Budget, ...]:
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        if uid not in self._of_pod:
            if namespace not in self._of_namespace:
                self._of_namespace[namespace] = tuple(self._budgets(namespace))
            there = self._of_namespace[namespace]
            self.compared += len(there)
            self._of_pod[uid] = tuple(it for it in there if it.covers(pod))
        return self._of_pod[uid]


DEFAULT_GRACE_SECONDS: Final = 30
"""Of a pod that does not say, as in the API."""
PREEMPTION_PATIENCE_SECONDS: Final = 30.0
"""So long victims are waited for alone, if no setting says otherwise."""
OVERDUE_SECONDS: Final = 5.0
"""After its grace period a pod is killed, and gone a moment later."""
UNREACHABLE: Final = "node.kubernetes.io/unreachable"


class Weight(NamedTuple):
    """How much a pod matters. ``level``: what has more is kept first; one with fewer ``seconds`` is gone earlier."""

    level: tuple[int, int]
    priority: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PreemptionTerms:
    """Look-ups, because an attempt needs few of many objects."""

    find_pod: Callable[[str, str], Pod | None]
    """By ``namespace/name`` and UID."""
    may_end: Callable[[Pod], bool]
    """Whether a pod of lower priority may be ended at all, such as by its scheduler."""
    is_leaving: Callable[[Pod], bool]
    """Whether the pod ends soon by itself: it is being deleted. What it has is waited for."""
    holders: Callable[[DeviceId], Iterable[ResourceClaim]]
    """The claims that have a device."""
    gang: Callable[[Pod], str | None]
    """The key of the pods that end together with the pod, if there are any."""
    placed_with: Callable[[Pod], str | None]
    """The key of the gang with which the pod is placed: no pod of it ends for another one."""
    members: Callable[[str], Iterable[Pod]]
    """The pods of a gang that run, or are on their way to a node: all of them end, or none does."""
    budgets: Callable[[str], Iterable[Budget]]
    """The PodDisruptionBudgets of a namespace."""
    priority: Callable[[Pod], int]
    """What counts of a pod, by which others end for it or it ends for others."""
    seconds_left: Callable[[Pod], float]
    """In how many seconds the pod is gone at the latest, if it is deleted now or has been already."""
    patience: float = PREEMPTION_PATIENCE_SECONDS
    """A pod that takes more seconds ends only if no other one of its priority does as well."""
    is_late: bool = False
    """Whether a victim has outlasted this time already: then such pods end only if no other one does, of any priority.
    """
    overdue: frozenset[str] = frozenset()
    """Namespaces of which a victim was there for longer although its grace period was over: so may others be."""

    def weight(self, pod: Pod) -> Weight:
        """What the pod has to be compared with others."""
        rank, seconds = self.priority(pod), self.seconds_left(pod)
        outlasts = int(seconds > self.patience or pod.metadata.namespace in self.overdue)
        return Weight((outlasts, rank) if self.is_late else (rank, outlasts), rank, seconds)


def seconds_left(pod: Pod, node: Node | None, now: datetime) -> float:
    """In how many seconds the pod is gone at the latest; infinity on a node that no kubelet speaks for."""
    taints = node.spec.taints or () if node is not None else ()
    if any(it.key == UNREACHABLE for it in taints):
        return math.inf
    ends = parse_time(pod.metadata.deletion_timestamp)
    if ends is not None:
        return max((ends - now).total_seconds(), 0.0)
    grace = pod.spec.termination_grace_period_seconds
    return float(max(DEFAULT_GRACE_SECONDS if grace is None else grace, 0))


def leaves_soon(pod: Pod, now: datetime, patience: float) -> bool:
    """Whether a pod that is being deleted is gone within so many seconds, if all goes well."""
    ends = parse_time(pod.metadata.deletion_timestamp)
    return ends is not None and -OVERDUE_SECONDS < (ends - now).total_seconds() <= patience


def priority(pod: Pod) -> int:
    """A pod without one has 0, as in the API."""
    return pod.spec.priority or 0


def born(pod: Pod) -> float:
    """When the pod was made, in seconds; one that does not say is the oldest."""
    moment = parse_time(pod.metadata.creation_timestamp)
    return moment.timestamp() if moment is not None else 0.0


MOST_PREEMPTION_STEPS: Final = 100_000
"""Steps of the allocator, about half a second: an attempt that has taken so many looks at no further node."""
MOST_SMALLER_SETS: Final = 128
"""Questions of an attempt whether fewer pods of one priority do as well."""


class StepsSpent(Exception):
    """The attempt has taken the steps that it may take."""


class Meter:
    """Counts steps of the allocator."""

    def __init__(self, most: int = MOST_PREEMPTION_STEPS) -> None:
        self._left, self._since_pause = most, 0
        self.smaller_sets = MOST_SMALLER_SETS
        """So many are left."""

    def charge(self, steps: int) -> None:
        """Work was done, and there was a pause for it already. Raises StepsSpent."""
        self._left -= steps
        if self._left < 0:
            raise StepsSpent

    def spend(self, steps: int) -> Generator[Pause, Elapsed, None]:
        """Work was done; pauses if it was much. Raises StepsSpent."""
        self.charge(steps)
        self._since_pause += steps
        if self._since_pause >= PAUSE_STEPS:
            self._since_pause = 0
            yield Pause.SEARCHING
