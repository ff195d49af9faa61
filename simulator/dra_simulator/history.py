"""When the pods of a snapshot came and went, and the course of devices in use and waiting pods over that time."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from dra_api.core import Pod, PodCondition
from dra_api.meta import Object
from dra_api.resource import ResourceClaim, ResourceClaimTemplate
from dra_api.values import parse_time
from dra_operator.commands.object_files import of_kind

from dra_simulator.comparison import DeviceShares


class Wait(NamedTuple):
    """Of one pod that came within the week."""

    seconds: float
    is_over: bool
    """Whether it got a node; otherwise it waits at the end."""


class Step(NamedTuple):
    """From one time on, up to the next step."""

    seconds: float
    used: int
    """Thousandths of devices."""
    waiting: int
    """Pods."""


class Sample(NamedTuple):
    """The means of some time."""

    used_percent: float
    """Of the cluster's devices."""
    waiting: float
    """Pods."""


class Course(NamedTuple):
    """With one strategy, or as it was."""

    name: str
    seconds: float
    """How long the week is."""
    all_devices: int
    """Thousandths of devices."""
    steps: Sequence[Step]
    waits: Sequence[Wait]

    @property
    def started(self) -> int:
        """Pods that got a node, of those that came within the week."""
        return sum(it.is_over for it in self.waits)

    @property
    def mean_wait(self) -> float:
        """Seconds; pods that wait at the end count with what they have waited."""
        return sum(it.seconds for it in self.waits) / len(self.waits) if self.waits else 0.0

    @property
    def longest_wait(self) -> float:
        """Seconds."""
        return max((it.seconds for it in self.waits), default=0.0)

    @property
    def used_percent(self) -> float:
        """Mean share of devices in use over the week, in percent."""
        return self.sampled(1)[0].used_percent

    def sampled(self, parts: int) -> list[Sample]:
        """The means of as many equal parts of the week."""
        used = self._means([it.used for it in self.steps], parts)
        waiting = self._means([it.waiting for it in self.steps], parts)
        share = 100 / self.all_devices if self.all_devices else 0.0
        return [Sample(one * share, other) for one, other in zip(used, waiting, strict=True)]

    def _means(self, values: Sequence[int], parts: int) -> list[float]:
        times = [it.seconds for it in self.steps]
        lengths = [end - start for start, end in pairwise([*times, self.seconds])]
        areas = [0.0, *accumulate(value * length for value, length in zip(values, lengths, strict=True))]

        def area(until: float) -> float:
            place = bisect_right(times, until) - 1
            return areas[place] + values[place] * (until - times[place]) if place >= 0 else 0.0

        bounds = [self.seconds * number / parts for number in range(parts + 1)]
        return [(area(end) - area(start)) / (end - start) if end > start else 0.0 for start, end in pairwise(bounds)]


WEEK_SECONDS: Final = 7 * 86_400
READY: Final = "Ready"
SCHEDULED: Final = "PodScheduled"


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


AS_IT_WAS: Final = "as it was"


class _Change(NamedTuple):
    seconds: float
    number: int
    """Of pods that hold the claims, more or fewer."""
    claims: tuple[tuple[str, int], ...]
    """Keys, with thousandths of devices."""
    waiting: int


def as_it_was(history: History, objects: Sequence[Object], shares: DeviceShares) -> Course:
    """The week that the pods tell of."""
    asked = {it.key: shares.asked(it.spec) for it in of_kind(ResourceClaim, objects)}
    templates = {it.key: shares.asked(it.spec.spec) for it in of_kind(ResourceClaimTemplate, objects)}
    changes = [change for life in history.lives for change in _changes(life, asked, templates)]
    users: Counter[str] = Counter()
    used = waiting = 0
    steps: list[Step] = []
    for change in sorted(changes):
        waiting += change.waiting
        for key, amount in change.claims:
            before = users[key]
            users[key] += change.number
            used += amount * ((users[key] > 0) - (before > 0))
        steps.append(Step(change.seconds, used, waiting))
    waits = [_wait(life, history) for life in history.lives if life.is_of_window]
    return Course(AS_IT_WAS, history.seconds, shares.all, [it for it in steps if it.seconds <= history.seconds], waits)


def _wait(life: Life, history: History) -> Wait:
    until = history.seconds if life.scheduled is None else life.scheduled
    return Wait(max(0.0, until - life.created), is_over=life.scheduled is not None)


def _changes(life: Life, asked: dict[str, int], templates: dict[str, int]) -> Iterator[_Change]:
    claims = tuple(_claims(life, asked, templates))
    yield _Change(max(0.0, life.created), 0, (), 1)
    if life.scheduled is not None:
        yield _Change(max(0.0, life.scheduled), 1, claims, -1)
    if life.ended is not None:
        yield _Change(life.ended, -1, claims, 0)


def _claims(life: Life, asked: dict[str, int], templates: dict[str, int]) -> Iterator[tuple[str, int]]:
    namespace = life.pod.metadata.namespace
    for entry in life.pod.spec.resource_claims or ():
        if entry.resource_claim_name is not None:
            key = f"{namespace}/{entry.resource_claim_name}"
            yield key, asked.get(key, 0)
        else:
            key = f"{namespace}/{entry.resource_claim_template_name}"
            yield f"{life.pod.key} {entry.name}", templates.get(key, 0)
