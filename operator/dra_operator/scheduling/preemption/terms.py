"""What preemption has to know of a cluster beside what an attempt knows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from dra_api.core import Node, Pod
from dra_api.resource import ResourceClaim
from dra_api.values.times import parse_time

from dra_operator.allocator import DeviceId

from .budgets import Budget

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
