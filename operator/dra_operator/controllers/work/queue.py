"""The work queue of one controller: level-triggered, one entry per key, one worker per key at a time.

A key that is added while it waits is still one entry; a key that is added while a worker has it comes back when the
worker is done. So no change is missed, and no object is worked on twice at the same time, however events come.

Where a key can be::

    (nowhere) --add--> ready --get--> working --done--> (nowhere), or ready if it was added meanwhile
                         ^              |
                         |              +--retry, or done with a rest--> held --its time comes--> ready, if wanted
                         +--postpone----+

A key is *held* after a failure (its back-off) or after it took more than its share of time (its rest). In a ``firm``
queue nothing ends that early: the failure of one pod often wakes others, whose failures would wake the first. In other
queues a change of the object ends it, because the change may be the remedy. It ends in every queue when the object is
gone: its successor of the same name has not failed yet.

*Wide* adds (``WideKey``) are those of many keys at once: they are handed out in ``Rounds``. Keys that are handed out
anyway are not in the next round as well.

A key to which only *weak* adds led (``WeakKey``) is handed out as a weak one, and its timer stays: the look may turn
out to be needless. Whatever else wants it, be it the timer, makes it an ordinary key.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

from dra_operator.cache import Key, WeakKey, WideKey
from dra_operator.controllers.shared.timing import BackoffSettings

from .backoff import Backoff
from .line import Line, Rank
from .rounds import Rounds
from .shares import Shares

SOON_SECONDS = 0.1  # seconds


class WorkQueue:
    """``get`` a key, work, then one of ``done``, ``retry`` and ``postpone``. Bound to the running event loop.

    ``workers``: how many keys are worked on at the same time; the namespaces share them (``Shares``).
    """

    def __init__(
        self,
        backoff: Backoff | None = None,
        *,
        rank: Callable[[Key], Rank] = lambda _: (),
        firm: bool = False,
        workers: float = math.inf,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._backoff = backoff or Backoff(self._loop.time, BackoffSettings())
        self._rank, self._firm = rank, firm
        self._line = Line(self._loop.time)
        self._ready: dict[Key, float] = {}
        """The keys in line, and since when; the oldest is the first."""
        self._weak: set[Key] = set()
        """Those of them that only weak adds want."""
        self._postponed: set[Key] = set()
        self._working: dict[Key, float] = {}
        """The keys that workers have, and since when; the oldest is the first."""
        self._shares = Shares(workers)
        self._again: dict[Key, Key] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._held: dict[Key, asyncio.TimerHandle] = {}
        self._rounds = Rounds(self._begin_round)
        self._wanted: dict[Key, Key] = {}
        """What comes back from ``_held``, weakly or not; as in ``_again``."""
        self.adds = 0
        """How often a key became ready."""
        self.retries = 0
        """How often handling a key failed."""
        self._getters: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, keys: Iterable[Key]) -> None:
        """Hand out the keys as soon as a worker is free and they are not held."""
        for key in keys:
            if isinstance(key, WideKey):
                self._rounds.add(key)
                continue
            if not isinstance(key, WeakKey):
                self._rounds.discard(key)
            if key in self._working or key in self._postponed:
                _want(self._again, key)
            elif key in self._held and self._firm:
                _want(self._wanted, key)
            else:
                if not isinstance(key, WeakKey) or key in self._held:
                    self._let_go(key)
                self._make_ready(key)
        self._notice()

    def looked_at(self, key: Key, seconds: float) -> bool:
        """A decision about the key took so long; whether its namespace is to be charged even if that is little."""
        return self._rounds.looked_at(key, seconds)

    def _begin_round(self, keys: Sequence[Key]) -> list[Key]:
        self.add(keys)
        return [key for key in keys if key in self._ready]

    def add_after(self, key: Key, seconds: float) -> None:
        """Hand out the key after this time at the latest; the earliest of several times counts."""
        due = self._loop.time() + seconds
        timer = self._timers.get(key)
        is_ready = key in self._ready and key not in self._weak
        if is_ready or (timer is not None and timer.when() <= due):
            return
        self._cancel_timer(key)
        self._timers[key] = self._loop.call_later(seconds, self._due, key)
        self._notice()

    async def get(self) -> Key:
        """The next key; waits for one."""
        while not self._line.ready:
            getter: asyncio.Future[None] = self._loop.create_future()
            self._getters[getter] = None
            try:
                await getter
            except asyncio.CancelledError:
                del self._getters[getter]
                self._notice()  # it may have been called already: let another one go
                raise
            del self._getters[getter]
        key = self._line.pop()
        del self._ready[key]
        if key in self._weak:
            self._weak.discard(key)
            key = WeakKey(*key)
        self._postponed.discard(key)
        self._working[Key(*key)] = self._loop.time()
        self._shares.take(key.namespace)
        if not self._shares.may_take(key.namespace):
            self._line.stand_aside(key.namespace)
        self._notice()
        return key

    def done(self, key: Key, rest: float = 0.0, *, is_over: bool = True) -> None:
        """The key was handled; for ``rest`` seconds it is not looked at again.

        Its back-off starts anew, unless the work is not over and only cleared up what an earlier failure left.
        """
        if is_over:
            self._backoff.succeeded(key)
        wanted = self._finish(key)
        if rest:
            self._hold(key, rest, wanted)
        elif wanted is not None:
            self._make_ready(wanted)
        self._notice()

    def retry(self, key: Key, at_least: float = 0.0, at_most: float = math.inf) -> float:
        """Handling failed: the key comes back after its back-off, or after ``at_least`` seconds. Return the seconds.

        ``at_most``: see ``Backoff.failed``.

        After a change in the meantime, which may be the remedy, the key comes back sooner (unless the queue is firm),
        but never at once: a failure whose own writes wake the key would repeat forever.
        """
        self.retries += 1
        seconds = self._backoff.failed(key, at_most)
        if self._finish(key) is not None and not self._firm:
            seconds = min(seconds, SOON_SECONDS)
        seconds = max(seconds, at_least)
        self._hold(key, seconds, Key(*key))
        self._notice()
        return seconds

    def postpone(self, key: Key, level: int) -> None:
        """The work on the key is not over, but keys postponed to a lower level come first."""
        self._leave(key)
        self._postponed.add(key)
        self._push(key, level)
        self._notice()

    def charge(self, key: Key, seconds: float) -> None:
        """The namespace of the key has taken so much of the time that all share; see ``Line``."""
        self._line.charge(key, seconds)

    def forget(self, key: Key) -> None:
        """The object of the key is gone: end its back-off and its rest."""
        self._backoff.succeeded(key)
        if (hold := self._held.pop(key, None)) is not None:
            hold.cancel()
            self._hold_over(key)

    def settled(self, key: Key) -> None:
        """The object of the key needs nothing more: it does not come back by itself."""
        self._cancel_timer(key)

    def failures(self, key: Key) -> int:
        """How often the key failed in a row."""
        return self._backoff.failures(key)

    async def idle(self) -> None:
        """Wait until nothing is ready and no worker is busy; keys that wait for their time do not count."""
        await self._idle.wait()

    @property
    def depth(self) -> int:
        """Keys that could be worked on now."""
        return len(self._ready)

    @property
    def age(self) -> float:
        """Seconds for which the oldest of them has waited."""
        return self._loop.time() - next(iter(self._ready.values())) if self._ready else 0.0

    def taken(self) -> Iterator[tuple[Key, float]]:
        """Yield the keys that are being worked on, each with the seconds since it was taken, the oldest first."""
        return ((key, self._loop.time() - since) for key, since in self._working.items())

    def ready(self) -> Iterator[tuple[Key, float]]:
        """Yield the keys that could be worked on, each with the seconds for which it has waited, the oldest first."""
        return ((key, self._loop.time() - since) for key, since in self._ready.items())

    def is_working(self, key: Key) -> bool:
        """Whether a worker has the key, or writes what it decided about it."""
        return key in self._working

    @property
    def is_idle(self) -> bool:
        """Nothing to do now, and nothing being done."""
        return self._rounds.is_quiet and not (self._ready or self._working)

    @property
    def is_quiet(self) -> bool:
        """Nothing is to be done, nothing is being done, and no key comes back by itself."""
        return self.is_idle and not (self._timers or self._wanted)

    def close(self) -> None:
        """Cancel all timers, so that none outlives the loop."""
        for timer in (*self._timers.values(), *self._held.values()):
            timer.cancel()
        self._timers.clear()
        self._held.clear()
        self._wanted.clear()
        self._rounds.close()

    def _finish(self, key: Key) -> Key | None:
        """Take the key from its worker; the key as it was added meanwhile, if it was."""
        self._leave(key)
        return self._again.pop(key, None)

    def _leave(self, key: Key) -> None:
        if key not in self._working:
            return
        del self._working[key]
        self._shares.give_back(key.namespace)
        self._line.call_back(self._shares.may_take)

    def _hold(self, key: Key, seconds: float, wanted: Key | None) -> None:
        if key in self._timers:
            self._cancel_timer(key)
            wanted = Key(*key)
        self._held[key] = self._loop.call_later(seconds, self._hold_over, key)
        if wanted is not None:
            _want(self._wanted, wanted)

    def _hold_over(self, key: Key) -> None:
        self._held.pop(key, None)
        wanted = self._wanted.pop(key, None)
        if wanted is not None:
            self.add((wanted,))

    def _let_go(self, key: Key) -> None:
        self._cancel_timer(key)
        self._wanted.pop(key, None)
        if (hold := self._held.pop(key, None)) is not None:
            hold.cancel()

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add((Key(*key),))

    def _cancel_timer(self, key: Key) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()

    def _make_ready(self, key: Key) -> None:
        if not isinstance(key, WeakKey):
            self._weak.discard(key)
        elif key not in self._ready:
            self._weak.add(key)
        if key not in self._ready:
            self.adds += 1
            self._push(Key(*key), 0)

    def _push(self, key: Key, level: int) -> None:
        self._ready[key] = self._loop.time()
        self._line.push(key, level, self._rank(key))

    def _notice(self) -> None:
        for getter in itertools.islice(self._getters, self._line.ready):
            if not getter.done():
                getter.set_result(None)
        if self.is_idle:
            self._idle.set()
        else:
            self._idle.clear()


def _want(wanted: dict[Key, Key], key: Key) -> None:
    """Note the key; an ordinary one stands, whichever comes first."""
    if key not in wanted or not isinstance(key, WeakKey):
        wanted[key] = key
