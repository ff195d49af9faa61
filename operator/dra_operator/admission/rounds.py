"""State between two rounds of the controller: the time of the next one, and its memory of each Workload.

All of it may be lost. A new process finds out what matters from the Workloads themselves.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from dra_api.core import Pod
from dra_api.kueue import Admission, ResourceFlavor
from dra_api.meta import Object
from dra_api.references import pod_is_done
from dra_api.resource import ResourceClaim

from .workloads import CheckDecision, CheckStage

STALE_ENTRIES: Final = 100
PROMISE_LOOK_SECONDS: Final = 5.0
"""Seconds after which the times of promises are looked at, if nothing happens."""


class NextRound:
    """When the next round begins: with the next news, or when a time has come that somebody waits for.

    ``clock`` is the event loop's, by which pauses are measured.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._news, self._due = asyncio.Event(), math.inf
        self.is_cut = False
        """Whether this round has left Workloads to the next one."""
        self.freed = 1
        """How often something came free."""
        self._is_new = True
        self.has_changed = True
        """Whether something that matters to promises had changed when this round began."""

    def begin(self) -> None:
        """Begin a round: what happens from now on is for the next one."""
        self._news.clear()
        self._due, self.is_cut = math.inf, False
        self.has_changed, self._is_new = self._is_new, False

    def look_again(self) -> None:
        """Have the next round look at all promises again."""
        self._is_new = True
        self._news.set()

    def came_free(self) -> None:
        """Have those look again who wait for something to come free."""
        self.freed += 1
        self._news.set()

    def by(self, due: float) -> None:
        """Begin the next round at that time at the latest. To be said anew in each round."""
        self._due = min(self._due, due)

    def look_again_after(self, seconds: float) -> None:
        """Look at all promises again after these seconds. Other rounds in between do not change that."""
        asyncio.get_running_loop().call_later(seconds, self.look_again)

    async def wait(self) -> None:
        """Return when the next round is due."""
        if self.is_cut:
            return
        try:
            async with asyncio.timeout(max(0.0, min(PROMISE_LOOK_SECONDS, self._due - self.clock()))):
                await self._news.wait()
        except TimeoutError:
            self._is_new = True  # times may be over


class KnownWait(NamedTuple):
    """What the Workload of this version waits for, and until when, by the clock that pauses are measured by."""

    version: str
    stage: CheckStage
    until: float


class Resting:
    """Workloads for which nothing is to be done before a time, by key: so a round does not go over thousands of them.

    Those that back off may be let in earlier, when something comes free.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._backing_off: set[str] = set()
        self._times: list[tuple[float, str]] = []
        self._freed = 0

    @property
    def backing_off(self) -> int:
        """How many of them back off."""
        return len(self._backing_off)

    def put(self, key: str, wait: KnownWait) -> None:
        """Let one rest until its wait is over."""
        self.discard(key)
        self._until[key] = wait.until
        if wait.stage is CheckStage.BACKING_OFF:
            self._backing_off.add(key)
        heapq.heappush(self._times, (wait.until, key))
        if len(self._times) > 2 * len(self._until) + STALE_ENTRIES:  # it changes again and again
            self._times = [(until, key) for key, until in self._until.items()]
            heapq.heapify(self._times)

    def discard(self, key: str) -> None:
        """Forget one; an unknown one is ignored."""
        self._until.pop(key, None)
        self._backing_off.discard(key)

    def woken(self, now: float, freed: int) -> set[str]:
        """Remove and return the keys whose wait is over, and all that back off if something came free meanwhile."""
        found = set[str]()
        if freed != self._freed:
            self._freed, found = freed, set(self._backing_off)
        while self._times and (self._is_stale(self._times[0]) or self._times[0][0] <= now):
            due = heapq.heappop(self._times)
            if not self._is_stale(due):
                found.add(due[1])
        for key in found:
            self.discard(key)
        return found

    @property
    def due(self) -> float:
        """When the next wait is over."""
        return self._times[0][0] if self._times else math.inf

    def _is_stale(self, time: tuple[float, str]) -> bool:
        return self._until.get(time[1]) != time[0]


@dataclass(slots=True)
class Memory:
    """Facts about one Workload that it does not say itself."""

    retries: int = 0
    requeued: bool = False
    """Freed devices ended the last wait."""
    in_vain: int = 0
    """How often that was in vain in a row."""
    retried_at: float = -math.inf
    passed_turns: int = 0
    """How often its back-off went on in a row, since its pods fitted nowhere."""
    looked: int = 0
    """How often something had come free at the last look."""
    refused: str = ""
    """The last version of which the server has refused a write as invalid."""
    unsure: str = ""
    """The version into which a promise was written, and no answer came: it may be Ready since, or become so."""
    unsure_until: float = -math.inf
    never_since: float | None = None
    back_off: CheckDecision | None = None
    """The write that follows when Kueue has evicted the Workload."""
    lost_turns: int = 0
    holdings: int = 0
    """How often its quota was kept, since no back-off could be written."""
    held_until: float = -math.inf
    """Until then it keeps its quota, though it does not fit."""
    admission: Admission | None = None
    """The quota that it had last: its flavors say which nodes it may use."""
    nodes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The nodes of its promise, by pod set."""
    flavors: Mapping[str, ResourceFlavor] = field(default_factory=dict)
    """Its flavors as they were when it was promised a place: Kueue has put their labels into its pods."""
    measured_from: tuple[bool, datetime] | None = None
    """When the promise (True) or the wait began, by the clocks of those who wrote it."""
    began: float = -math.inf
    """The same by the clock that pauses are measured by."""
    replacing_since: float | None = None
    """Since when it waits for the Workload that it replaces."""
    is_started: bool = False
    """All its pods were bound, so the promise is over."""
    is_broken: bool = False
    wait: KnownWait | None = None


def frees(before: Object | None, now: Object | None) -> bool:
    """Return whether the change may let a Workload in: anything but a pod or a claim that takes something."""
    match before, now:
        case (Pod(), Pod()):
            return pod_is_done(now) and not pod_is_done(before)
        case (None, Pod()):
            return False
        case (ResourceClaim(), ResourceClaim()):
            return before.status.allocation is not None and now.status.allocation != before.status.allocation
        case (None, ResourceClaim()):
            return False
    return True
