"""What all controllers work with: the cluster as it is known, the means to write, the queues, clocks and memories.

``Control`` makes the context once. Each controller takes its part from it, so that one more clock or writer is no new
parameter of ten classes.

Memories remember what was said, done and done again, so that nothing is repeated without end. Each memory is bounded.

``Announced`` has the last event of each object: a reason that stays the same is told once. ``Recently`` has the time at
which a thing was done last. ``Abundance`` knows whether pods have lacked devices lately. ``GrowingPauses`` slows down
what keeps being undone: a claim is made, found unsuitable, deleted, and made again. The queues' back-off does not see
that, because no step of it fails. The second time follows at once; from then on each pause is twice the one before,
until ``CALM_SECONDS`` pass without a repetition.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from dra_api.cache import Cache

from dra_operator.cache import Cluster, Key
from dra_operator.controllers.queue import WorkQueues
from dra_operator.controllers.settings import BackoffSettings, OwnControllers, TimeSettings
from dra_operator.kube import ClaimWriter, EventRecorder, PodGroupWriter, PodWriter

ABUNDANT_AFTER_SECONDS: Final = 60.0
"""Time without a pod that lacks devices, after which devices count as abundant again."""
KEPT_EVENT_BYTES: Final = 2 << 20  # the object announced longest ago is forgotten first, and may be announced again


class Announced:
    """The last text about each of the last objects."""

    def __init__(self) -> None:
        self._texts: Cache[str, str] = Cache(KEPT_EVENT_BYTES, lambda about, text: 256 + 4 * (len(about) + len(text)))

    def is_news(self, about: str, text: str) -> bool:
        """Return whether the object's last text was another one; from now on this is the last."""
        # Told again, the same event would be counted up on the server and say nothing new.
        if self._texts.get(about) == text:
            return False
        self._texts.put(about, text)
        return True

    def forget(self, about: str) -> None:
        """Forget the last text: the same one will be news again."""
        self._texts.pop(about)


KEPT_RECENT_THINGS: Final = 10_000
"""The one that was done the longest time ago is forgotten first."""


class Recently:
    """``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._done: OrderedDict[str, float] = OrderedDict()

    def add(self, what: str) -> None:
        """Note that it is done now."""
        self._done.pop(what, None)
        self._done[what] = self._clock()
        # Names come from objects that tenants make: memory must not grow with them.
        if len(self._done) > KEPT_RECENT_THINGS:
            self._done.popitem(last=False)

    def discard(self, what: str) -> None:
        """Forget it: it was not done after all."""
        self._done.pop(what, None)

    def age(self, what: str) -> float | None:
        """Return the seconds since it was done; None if it never was, or that is forgotten."""
        done = self._done.get(what)
        return self._clock() - done if done is not None else None

    def within(self, what: str, seconds: float) -> bool:
        """Return whether it was done in the last so many seconds."""
        age = self.age(what)
        return age is not None and age < seconds

    def __contains__(self, what: object) -> bool:
        return what in self._done


CALM_SECONDS = 600.0
"""Seconds without a repetition after which the next one counts as the first."""
REMEMBERED_THINGS = 10_000
"""Things remembered; the one that was not done for the longest time is forgotten first."""


class Abundance:
    """Whether devices are abundant: no pod has lacked any lately."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._since = clock, math.inf

    def __bool__(self) -> bool:
        return self._clock() >= self._since

    def placed(self) -> None:
        """Note that a pod got its devices."""
        # Only until the first pod lacked devices: from then on time decides, since one pod that finds some says little.
        if self._since == math.inf:
            self._since = self._clock()

    def ends(self) -> None:
        """Note that a pod found no devices."""
        self._since = self._clock() + ABUNDANT_AFTER_SECONDS


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
        """Return whether it must not be done yet; the key comes back when it may."""
        done = self._done.get(what)
        # Counted by action, not by failure: each step of such a circle succeeds.
        left = done.at + done.pause - self._clock() if done is not None else 0.0
        if left > 0:
            self._later(key, left)
        return left > 0

    def did(self, what: str) -> float:
        """Note that it is done now. Return the pause before the next time."""
        now, before = self._clock(), self._done.pop(what, None)
        # The pause itself is no calm: a thing that comes back as soon as it may goes on as before.
        times = before.times + 1 if before is not None and now - before.at - before.pause < CALM_SECONDS else 1
        # The second time follows at once: once may be an accident.
        pause = min(self._waits.first * 2.0 ** min(times - 2, 30), self._waits.longest) if times > 1 else 0.0
        self._done[what] = _Done(times, now, pause)
        if len(self._done) > REMEMBERED_THINGS:
            self._done.popitem(last=False)
        return pause


@dataclass(frozen=True, kw_only=True)
class ControllerContext:
    """``ours``: which controllers are this operator's, now. ``pauses`` slow down work that is undone again and again.

    ``clock`` gives seconds and is never set, ``now`` is the time of day.
    """

    cluster: Cluster
    ours: OwnControllers
    times: TimeSettings
    queues: WorkQueues
    claims: ClaimWriter
    pods: PodWriter
    groups: PodGroupWriter
    events: EventRecorder
    pauses: GrowingPauses
    clock: Callable[[], float]
    now: Callable[[], datetime]
