"""Pauses before something that keeps being undone is done once more.

Some writes succeed and lead nowhere: a claim is made, found unsuitable, deleted, and made again. The queues' back-off
does not slow that down, because no step of it fails. So what is done again is counted here. The second time
follows at once; from then on each pause is twice the one before, until ``CALM_SECONDS`` pass without a repetition.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from dra_operator.cache import Key
from dra_operator.controllers.shared.timing import BackoffSettings

CALM_SECONDS = 600.0
"""Seconds without a repetition after which the next one counts as the first."""
REMEMBERED_THINGS = 10_000
"""Things remembered; the one that was not done for the longest time is forgotten first."""


class _Done(NamedTuple):
    times: int
    at: float
    pause: float


class GrowingPauses:
    """Of ``waits`` only ``first`` and ``longest`` count. Things have names, such as the UID of an object.

    ``later`` brings a key back after so many seconds.
    """

    def __init__(self, clock: Callable[[], float], waits: BackoffSettings, later: Callable[[Key, float], None]) -> None:
        self._clock, self._waits, self._later = clock, waits, later
        self._done: OrderedDict[str, _Done] = OrderedDict()

    def puts_off(self, what: str, key: Key) -> bool:
        """Whether it must not be done yet; the key comes back when it may."""
        done = self._done.get(what)
        left = done.at + done.pause - self._clock() if done is not None else 0.0
        if left > 0:
            self._later(key, left)
        return left > 0

    def did(self, what: str) -> float:
        """It is done now; the pause before the next time."""
        now, before = self._clock(), self._done.pop(what, None)
        times = before.times + 1 if before is not None and now - before.at - before.pause < CALM_SECONDS else 1
        pause = min(self._waits.first * 2.0 ** min(times - 2, 30), self._waits.longest) if times > 1 else 0.0
        self._done[what] = _Done(times, now, pause)
        if len(self._done) > REMEMBERED_THINGS:
            self._done.popitem(last=False)
        return pause
