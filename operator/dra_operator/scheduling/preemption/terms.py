"""What preemption has to know of a cluster beside what an attempt knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dra_api.core import Pod
from dra_api.resource import ResourceClaim
from dra_api.values.times import parse_time

from dra_operator.allocator import DeviceId

from .budgets import Budget


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


def priority(pod: Pod) -> int:
    """A pod without one has 0, as in the API."""
    return pod.spec.priority or 0


def born(pod: Pod) -> float:
    """When the pod was made, in seconds; one that does not say is the oldest."""
    moment = parse_time(pod.metadata.creation_timestamp)
    return moment.timestamp() if moment is not None else 0.0
