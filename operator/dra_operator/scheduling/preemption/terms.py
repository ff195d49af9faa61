"""The terms of preemption: priorities, PodDisruptionBudgets, termination times, and the cost limit of an attempt.

As in kube-scheduler, a budget is violated only if the pod fits in no other way. An attempt pauses as searches do, and
stops when it has used its steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from dra_api.core import Node, Pod
from dra_api.resource import ResourceClaim
from dra_api.scheduling import PodDisruptionBudget
from dra_api.selectors import Selector
from dra_api.values import parse_time

from dra_operator.allocator import DeviceId
from dra_operator.scheduling.pieces import PAUSE_STEPS, Elapsed, Pause


@dataclass(frozen=True, slots=True, eq=False)
class Budget:
    """A PodDisruptionBudget. ``disrupted`` names pods whose disruption the budget has counted already."""

    selector: Selector
    allowed: int
    disrupted: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, budget: PodDisruptionBudget) -> Budget:
        """Return the budget. An empty selector selects every pod of the namespace (policy/v1)."""
        selector = Selector.of(budget.spec.selector)
        disrupted = frozenset(budget.status.disrupted_pods or ())
        return cls(selector, budget.status.disruptions_allowed, disrupted)

    def covers(self, pod: Pod) -> bool:
        """Return whether preempting the pod is charged to the budget."""
        # A disruption that the budget has counted already is not charged twice.
        return pod.metadata.name not in self.disrupted and self.selector.matches(pod.metadata.labels or {})


class BudgetsOfPods:
    """The budgets of pods, looked up once for each pod and namespace."""

    def __init__(self, budgets: Callable[[str], Iterable[Budget]]) -> None:
        self._budgets = budgets
        self._of_namespace: dict[str, tuple[Budget, ...]] = {}
        self._of_pod: dict[str, tuple[Budget, ...]] = {}
        self.compared = 0
        """Number of comparisons of a pod with a budget."""

    def broken_by(self, pods: Iterable[Pod]) -> list[Pod]:
        """Return the pods whose preemption violates a budget, if the pods are preempted in this order."""
        # In their order: each victim uses up a part of the budget, so the same pods in another order break it
        # elsewhere.
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
        # The same pods are looked at in many sets of victims.
        if uid not in self._of_pod:
            if namespace not in self._of_namespace:
                self._of_namespace[namespace] = tuple(self._budgets(namespace))
            there = self._of_namespace[namespace]
            self.compared += len(there)
            self._of_pod[uid] = tuple(it for it in there if it.covers(pod))
        return self._of_pod[uid]


DEFAULT_GRACE_SECONDS: Final = 30
"""The grace period of a pod without terminationGracePeriodSeconds, as in the API."""
PREEMPTION_PATIENCE_SECONDS: Final = 30.0
"""Default of the setting ``preemption-patience``: the time for which one set of victims is waited for."""
OVERDUE_SECONDS: Final = 5.0
"""Time that a kubelet needs to kill a pod after its grace period."""
UNREACHABLE: Final = "node.kubernetes.io/unreachable"


class Weight(NamedTuple):
    """The importance of a pod. A higher ``level`` is kept first. ``seconds``: time until the pod is gone."""

    level: tuple[int, int]
    priority: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PreemptionTerms:
    """What preemption asks the cluster. Look-ups instead of lists, because an attempt needs few of many objects."""

    find_pod: Callable[[str, str], Pod | None]
    """By ``namespace/name`` and UID."""
    may_end: Callable[[Pod], bool]
    """Whether a pod of lower priority may be preempted at all, by its scheduler and earlier refused deletions."""
    is_leaving: Callable[[Pod], bool]
    """Whether the pod is being deleted and gone soon, so that waiting is better than a victim."""
    holders: Callable[[DeviceId], Iterable[ResourceClaim]]
    """The claims that have a device."""
    gang: Callable[[Pod], str | None]
    """The key of the pods that are preempted together with the pod, or None."""
    placed_with: Callable[[Pod], str | None]
    """The key of the gang with which the pod is placed, or None. Its pods do not preempt each other."""
    members: Callable[[str], Iterable[Pod]]
    """The pods of a gang that run or are being bound. They are preempted all, or none."""
    budgets: Callable[[str], Iterable[Budget]]
    """The PodDisruptionBudgets of a namespace."""
    priority: Callable[[Pod], int]
    """The priority of a pod, as victim and as preemptor."""
    seconds_left: Callable[[Pod], float]
    """Seconds until the pod is gone at the latest, counted from its deletion or from now."""
    patience: float = PREEMPTION_PATIENCE_SECONDS
    """A pod that needs longer is preempted only if no other pod of its priority would do."""
    is_late: bool = False
    """Whether a victim has outlasted ``patience``. Then slower pods come last at any priority, not only at their own.
    """
    overdue: frozenset[str] = frozenset()
    """Namespaces with a victim that outlived its grace period. Their other pods count as slow as well."""

    def weight(self, pod: Pod) -> Weight:
        """Return the pod's importance as a victim."""
        rank, seconds = self.priority(pod), self.seconds_left(pod)
        # A tenant chooses its grace periods. If slowness always came after priority, one tenant's slow pods could be
        # chosen again and again, and keep a pending pod waiting without end.
        outlasts = int(seconds > self.patience or pod.metadata.namespace in self.overdue)
        return Weight((outlasts, rank) if self.is_late else (rank, outlasts), rank, seconds)


def seconds_left(pod: Pod, node: Node | None, now: datetime) -> float:
    """Return the seconds until the pod is gone at the latest; infinity on a node whose kubelet does not answer."""
    taints = node.spec.taints or () if node is not None else ()
    # Nobody kills its pods there, so their devices do not come free.
    if any(it.key == UNREACHABLE for it in taints):
        return math.inf
    ends = parse_time(pod.metadata.deletion_timestamp)
    if ends is not None:
        return max((ends - now).total_seconds(), 0.0)
    # Not deleted yet: by the time that the kubelet would give it.
    grace = pod.spec.termination_grace_period_seconds
    return float(max(DEFAULT_GRACE_SECONDS if grace is None else grace, 0))


def leaves_soon(pod: Pod, now: datetime, patience: float) -> bool:
    """Return whether the pod is being deleted, and should be gone within ``patience`` seconds."""
    ends = parse_time(pod.metadata.deletion_timestamp)
    # A pod that outlived its grace period may hang for ever, on a node that is gone, say.
    return ends is not None and -OVERDUE_SECONDS < (ends - now).total_seconds() <= patience


def priority(pod: Pod) -> int:
    """Return the pod's priority; 0 if it has none, as in the API."""
    return pod.spec.priority or 0


def born(pod: Pod) -> float:
    """Return the pod's creation time in seconds; 0 if it is unknown, so that the pod counts as the oldest."""
    moment = parse_time(pod.metadata.creation_timestamp)
    return moment.timestamp() if moment is not None else 0.0


MOST_PREEMPTION_STEPS: Final = 100_000
"""Limit of an attempt in steps of the allocator, about half a second. Then the best node so far counts."""
MOST_SMALLER_SETS: Final = 128
"""Limit of an attempt on trials with fewer victims of one priority."""


class StepsSpent(Exception):
    """The attempt has used its steps."""


class Meter:
    """Counts the steps of an attempt."""

    def __init__(self, most: int = MOST_PREEMPTION_STEPS) -> None:
        self._left, self._since_pause = most, 0
        self.smaller_sets = MOST_SMALLER_SETS
        """Trials that are left."""

    def charge(self, steps: int) -> None:
        """Count work that has paused by itself. Raises StepsSpent."""
        self._left -= steps
        if self._left < 0:
            raise StepsSpent

    def spend(self, steps: int) -> Generator[Pause, Elapsed, None]:
        """Count work, and pause after every ``PAUSE_STEPS`` steps. Raises StepsSpent."""
        # Before the pause, so that an attempt that has spent its steps ends without another one.
        self.charge(steps)
        self._since_pause += steps
        if self._since_pause >= PAUSE_STEPS:
            self._since_pause = 0
            yield Pause.SEARCHING
