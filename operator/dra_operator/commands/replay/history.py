"""The last week of a cluster, as the pods of a snapshot tell it: when each came, got a node, and ended.

A pod came when it was created, got its node when ``PodScheduled`` became true, and ended, if it is Succeeded or Failed,
when it was no longer ready. Of pods that were deleted before the snapshot nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from dra_api.core import Pod, PodCondition
from dra_api.values.times import parse_time

WEEK_SECONDS: Final = 7 * 86_400
READY: Final = "Ready"
SCHEDULED: Final = "PodScheduled"
ORDINARY_PRIORITY = 0


class Life(NamedTuple):
    """One pod. Times are seconds after the window began, so that what came before it is negative."""

    pod: Pod
    created: float
    scheduled: float | None
    """None if the pod has no node."""
    ended: float | None
    """None if the pod still runs or waits."""

    @property
    def is_of_window(self) -> bool:
        """Whether it came within the window: its waiting counts."""
        return self.created >= 0

    @property
    def runs(self) -> float | None:
        """The seconds of the window, or later, for which the pod holds its devices; None if the end is not known."""
        if self.ended is None or self.scheduled is None:
            return None
        return max(0.0, self.ended - max(0.0, self.scheduled))


class History(NamedTuple):
    """The window, and the pods with claims that were there within it."""

    start: datetime
    seconds: float
    """How long it is."""
    lives: Sequence[Life]
    """In the order in which they come: first what had a node before the window, then what waited, then by creation."""
    undated: int
    """Pods that are left out, because their times are not known."""


def history(pods: Iterable[Pod]) -> History | None:
    """The week before the newest time that a pod has; None without pods that have claims and a time."""
    chosen = [pod for pod in pods if pod.spec.resource_claims]
    times = [moment for pod in chosen for moment in _times(pod)]
    if not times:
        return None
    end = max(times)
    start = end - min(timedelta(seconds=WEEK_SECONDS), end - min(times))
    found = [_life(pod, start) for pod in chosen]
    lives = [it for it in found if it is not None and (it.ended is None or it.ended > 0)]
    return History(start, (end - start).total_seconds(), sorted(lives, key=_order), found.count(None))


def _order(life: Life) -> tuple[int, float, str]:
    if life.scheduled is not None and life.scheduled <= 0:
        return 0, life.scheduled, life.pod.key
    return 1, life.created, life.pod.key


def _life(pod: Pod, start: datetime) -> Life | None:
    created = parse_time(pod.metadata.creation_timestamp)
    scheduled, ended = _scheduled(pod), _ended(pod)
    if created is None or (scheduled is None if pod.spec.node_name else pod.is_terminal):
        return None
    if pod.is_terminal and ended is None:
        return None
    return Life(pod, *(None if it is None else (it - start).total_seconds() for it in (created, scheduled, ended)))  # type: ignore[arg-type]


def _times(pod: Pod) -> Iterator[datetime]:
    created = parse_time(pod.metadata.creation_timestamp)
    for moment in (created, *(parse_time(it.last_transition_time) for it in pod.status.conditions or ())):
        if moment is not None:
            yield moment


def _scheduled(pod: Pod) -> datetime | None:
    if not pod.spec.node_name:
        return None
    found = _condition(pod, SCHEDULED)
    return parse_time(found.last_transition_time) if found is not None and found.status == "True" else None


def _ended(pod: Pod) -> datetime | None:
    if not pod.is_terminal:
        return None
    found = _condition(pod, READY)
    return parse_time(found.last_transition_time) if found is not None else None


def _condition(pod: Pod, type_: str) -> PodCondition | None:
    return next((it for it in pod.status.conditions or () if it.type == type_), None)
