"""What became of a week: how long pods waited, and what was in use at each time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple


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
        """Devices in use in the mean of the week, in percent of all."""
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
