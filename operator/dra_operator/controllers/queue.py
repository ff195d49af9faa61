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

The back-off (claim-controller.md section 2) has two rules, and the longer wait counts. Each key doubles its own wait
with every failure in a row. The keys of a namespace draw from one bucket, so that ten thousand keys that fail for the
first time do not overload a broken API server. The namespaces share the retries evenly: ten thousand keys of
one of them do not delay the one key of another. A server that refuses is asked ever more seldom. One that did not
answer, or was busy, may answer by now, and pods wait for it: such a failure is followed by a wait of at most
``PASSING_SECONDS``. Attempts to place pods have waits of their own: a thousand pods with a broken selector must neither
use up the bucket of the claims that others wait for, nor be planned again a thousand times a second.

*Wide* adds concern many keys at once: they are handed out in rounds (``fairness``). Keys that are handed out
anyway are not in the next round as well.

A key to which only *weak* adds led is handed out all the same, but ``is_weak`` says so, and its timer stays: the look
may turn out to be needless. Whatever else wants it, be it the timer, makes it an ordinary key.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dra_operator.cache import Controller, Crowd, Hint, Key, Weak, Wide, by_urgency, parts
from dra_operator.controllers.fairness import Fairness, Rank
from dra_operator.controllers.settings import BackoffSettings

PASSING_SECONDS = 10.0
"""Longest seconds between two attempts while the server does not answer; as long kube-scheduler backs off at most."""
PART_PAUSE_SECONDS = 0.001
"""Seconds between two parts of a crowd."""
SOON_SECONDS = 0.1
"""Seconds until a key comes back that failed, if its object has changed meanwhile."""


class KeyBackoff:
    """Waits per key, in seconds.

    A bucket of tokens for each namespace that has failures may be overdrawn at the price of waiting. All together
    refill at ``rate`` per second and hold ``burst`` tokens, in equal parts for those that are not full. Only these are
    kept. A wait stays as it was said when further namespaces come, so that ``n`` of them may get up to ``1 + 1/2 + ...
    + 1/n`` times as many tokens: a hundred five times as many.
    """

    def __init__(self, clock: Callable[[], float], waits: BackoffSettings) -> None:
        self._clock, self._waits = clock, waits
        self._failures: dict[Key, int] = {}
        self._full_at: dict[str, float] = {}
        """When the bucket of a namespace will be full."""

    def failed(self, key: Key, at_most: float = math.inf) -> float:
        """Count a failure; return the seconds before the next attempt.

        ``at_most``: the longest wait after this failure, unless too many keys of the namespace fail.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        first, longest = self._waits.first, self._waits.longest
        # A power of a large number of failures would be no float any more.
        own = longest if failures > 30 else min(first * 2**failures, longest)
        # A token is drawn in any case: also keys whose failure passes soon are requests to a server that is not well.
        return max(min(own, at_most), self._draw(key.namespace))

    def succeeded(self, key: Key) -> None:
        """Have the key start from the shortest wait again."""
        self._failures.pop(key, None)

    def failures(self, key: Key) -> int:
        """Return how often the key failed in a row."""
        return self._failures.get(key, 0)

    def _draw(self, namespace: str) -> float:
        """Take one token of the namespace. Return how many seconds to wait until it exists."""
        now = self._clock()
        # A full bucket is the same as none, so only namespaces that fail are kept.
        self._full_at = {name: at for name, at in self._full_at.items() if at > now}
        at = self._full_at.setdefault(namespace, now) + len(self._full_at) / self._waits.rate
        self._full_at[namespace] = at
        return max(0.0, at - now - self._waits.burst / self._waits.rate)


class WorkQueue:
    """``get`` a key, work, then one of ``done``, ``retry`` and ``postpone``. Bound to the running event loop.

    ``workers`` is how many keys are worked on at the same time. The namespaces share them (``fairness``). ``is_large``
    says of which keys few are, since their claims are large.
    """

    def __init__(
        self,
        backoff: KeyBackoff | None = None,
        *,
        rank: Callable[[Key], Rank] = lambda _: (),
        is_large: Callable[[Key], bool] = lambda _: False,
        firm: bool = False,
        workers: float = math.inf,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._backoff = backoff or KeyBackoff(self._loop.time, BackoffSettings())
        self._rank, self._is_large, self._firm = rank, is_large, firm
        self.fairness = Fairness(self._loop, self._begin_round, workers, rank=rank)
        self._ready: dict[Key, float] = {}
        """The keys in line, and since when; the oldest is the first."""
        self._weak: set[Key] = set()
        """Keys in line, or with a worker, that only weak adds want."""
        self._postponed: set[Key] = set()
        self._working: dict[Key, float] = {}
        """The keys that workers have, and since when; the oldest is the first."""
        self._again: dict[Key, bool] = {}
        """Keys that were added meanwhile, and whether only weakly."""
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._held: dict[Key, asyncio.TimerHandle] = {}
        self._wanted: dict[Key, bool] = {}
        """What comes back from ``_held``, and whether only weakly."""
        self._resting: dict[Key, float] = {}
        """Keys that are wanted although they rest after a long decision, and since when; the oldest is the first."""
        self.adds = 0
        """How often a key became ready."""
        self.retries = 0
        """How often handling a key failed."""
        self._getters: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    def add(self, *keys: Key, weak: bool = False, wide: bool = False) -> None:
        """Hand out the keys as soon as a worker is free and they are not held.

        ``weak``: the freed devices may be taken again when it is their turn. ``wide``: they are some of many, and are
        looked at in rounds.
        """
        for key in keys:
            # A wide add does not touch the timer or the hold of the key: the next round comes anyway.
            if wide:
                self.fairness.want(key)
                continue
            if not weak:
                self.fairness.unwant(key)
            # One worker per key: an add that comes meanwhile waits until the worker is done.
            if key in self._working or key in self._postponed:
                _want(self._again, key, weak=weak)
            elif key in self._held and self._firm:
                # After a failure it is wanted from the start, and its back-off is no rest.
                if not weak and self._wanted.get(key, True):
                    self._resting[key] = self._loop.time()
                _want(self._wanted, key, weak=weak)
            else:
                # An ordinary look makes the timer needless. A weak one may turn out to be none, so the timer stays.
                if not weak or key in self._held:
                    self.cancel_timer(key)
                    self._wanted.pop(key, None)
                    self._resting.pop(key, None)
                    if (hold := self._held.pop(key, None)) is not None:
                        hold.cancel()
                self._make_ready(key, weak=weak)
        self._notice()

    def _begin_round(self, keys: Sequence[Key]) -> list[Key]:
        self.add(*keys)
        # Keys that a worker has, or that are held, are not in the line: the round must not wait for a look at them.
        return [key for key in keys if key in self._ready]

    def add_after(self, key: Key, seconds: float) -> None:
        """Hand out the key after this time at the latest; the earliest of several times counts."""
        due = self._loop.time() + seconds
        timer = self._timers.get(key)
        is_ready = key in self._ready and key not in self._weak
        # A weak look may be found needless, and then the timer is all that brings the key back.
        if is_ready or (timer is not None and timer.when() <= due):
            return
        self.cancel_timer(key)
        self._timers[key] = self._loop.call_later(seconds, self._due, key)
        self._notice()

    async def get(self) -> Key:
        """Return the next key; wait for one."""
        while not self.fairness.ready:
            # A future for each waiting worker, so that one key wakes one of them and not all.
            getter: asyncio.Future[None] = self._loop.create_future()
            self._getters[getter] = None
            try:
                await getter
            except asyncio.CancelledError:
                del self._getters[getter]
                self._notice()  # it may have been called already: let another one go
                raise
            del self._getters[getter]
        key = self.fairness.pop()
        del self._ready[key]
        self._postponed.discard(key)
        self._working[key] = self._loop.time()
        self._notice()
        return key

    def is_weak(self, key: Key) -> bool:
        """Return whether only weak adds led to a key that a worker has: first see whether the work is needed."""
        return key in self._weak

    def done(self, key: Key, rest: float = 0.0, *, is_over: bool = True) -> None:
        """Note that the key was handled; for ``rest`` seconds it is not looked at again.

        Its back-off starts anew, unless the work is not over and only cleared up what an earlier failure left.
        """
        if is_over:
            self._backoff.succeeded(key)
        # Asked before the hold, which takes over what was added meanwhile.
        weak = self._finish(key)
        if rest:
            self._hold(key, rest, weak)
            if weak is False:
                self._resting[key] = self._loop.time()
        elif weak is not None:
            self._make_ready(key, weak=weak)
        self._notice()

    def retry(self, key: Key, at_least: float = 0.0, at_most: float = math.inf) -> float:
        """Handling failed: the key comes back after its back-off, or after ``at_least`` seconds. Return the seconds.

        ``at_most``: see ``KeyBackoff.failed``.

        After a change in the meantime, which may be the remedy, the key comes back sooner (unless the queue is firm),
        but never at once: a failure whose own writes wake the key would repeat forever.
        """
        self.retries += 1
        seconds = self._backoff.failed(key, at_most)
        # The change may be the remedy. In a firm queue it seldom is: pods that fail wake each other.
        if self._finish(key) is not None and not self._firm:
            seconds = min(seconds, SOON_SECONDS)
        seconds = max(seconds, at_least)
        # Wanted in any case: a failure is tried again although nothing changes.
        self._hold(key, seconds, weak=False)
        self._notice()
        return seconds

    def postpone(self, key: Key, level: int) -> None:
        """Put the key back, on which the work is not over: keys postponed to a lower level come first."""
        self._leave(key)
        # Adds that come while it waits for its next piece are kept for its end: the plan reads the cluster as it began.
        self._postponed.add(key)
        self._push(key, level)
        self._notice()

    def forget(self, key: Key) -> None:
        """End the back-off and the rest of the key, of which the object is gone."""
        self._backoff.succeeded(key)
        if (hold := self._held.pop(key, None)) is not None:
            hold.cancel()
            self._hold_over(key)

    def failures(self, key: Key) -> int:
        """Return how often the key failed in a row."""
        return self._backoff.failures(key)

    @property
    def depth(self) -> int:
        """Keys that could be worked on now."""
        return len(self._ready)

    @property
    def age(self) -> float:
        """Return the seconds for which the oldest of them has waited."""
        return self._loop.time() - next(iter(self._ready.values())) if self._ready else 0.0

    def taken(self) -> Iterator[tuple[Key, float]]:
        """Yield the keys that are being worked on, each with the seconds since it was taken, the oldest first."""
        return ((key, self._loop.time() - since) for key, since in self._working.items())

    def ready(self) -> Iterator[tuple[Key, float]]:
        """Yield the keys that could be worked on, each with the seconds for which it has waited, the oldest first."""
        return ((key, self._loop.time() - since) for key, since in self._ready.items())

    def resting(self) -> Iterator[tuple[Key, float]]:
        """Yield the keys that are wanted although they rest after a long decision, each with the seconds since when."""
        return ((key, self._loop.time() - since) for key, since in self._resting.items())

    def next_round(self) -> Iterator[tuple[Key, float]]:
        """Yield the keys that wait for the next round, each with the seconds since when, the oldest first."""
        return ((key, self._loop.time() - since) for key, since in self.fairness.wanted())

    def seconds(self, key: Key) -> float:
        """Return for how long the key has been in line, or with a worker; 0 if it is neither."""
        since = self._ready.get(key, self._working.get(key))
        return self._loop.time() - since if since is not None else 0.0

    def is_doubtful(self, key: Key) -> bool:
        """Return whether only freed devices, or a change that may help any number of keys, led to a key that is ready.

        What was said about its object is true as far as is known.
        """
        return key in self._weak or self.fairness.is_in_round(key)

    def urgency(self, key: Key) -> Rank:
        """Return the part of the key's rank that counts before the use of its namespace."""
        return self._rank(key)[:1]

    def being_tried(self) -> list[Key]:
        """Return the keys on which the work has begun and is not over."""
        return [*self._working, *self._postponed]

    def is_working(self, key: Key) -> bool:
        """Return whether a worker has the key, or writes what it decided about it."""
        return key in self._working

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is to be done now, and nothing is being done."""
        return self.fairness.is_quiet and not (self._ready or self._working)

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing is to be done, nothing is being done, and no key comes back by itself."""
        return self.is_idle and not (self._timers or self._wanted)

    def close(self) -> None:
        """Cancel all timers, so that none outlives the loop."""
        # A timer holds its queue and all that hangs on it until the loop is closed.
        for timer in (*self._timers.values(), *self._held.values()):
            timer.cancel()
        self._timers.clear()
        self._held.clear()
        self._wanted.clear()
        self._resting.clear()
        self.fairness.close()

    def _finish(self, key: Key) -> bool | None:
        """Take the key from its worker. Return whether it was added meanwhile only weakly; None if it was not added."""
        self._leave(key)
        return self._again.pop(key, None)

    def _leave(self, key: Key) -> None:
        if key in self._working:
            del self._working[key]
            self._weak.discard(key)
            self.fairness.leave(key)

    def _hold(self, key: Key, seconds: float, weak: bool | None) -> None:
        """Hold the key for ``seconds``. ``weak``: how it is wanted afterwards, or None if it is not."""
        # The timer would bring the key back before its hold is over, so it becomes a wish for the time after that.
        if key in self._timers:
            self.cancel_timer(key)
            weak = False
        self._held[key] = self._loop.call_later(seconds, self._hold_over, key)
        if weak is not None:
            _want(self._wanted, key, weak=weak)

    def _hold_over(self, key: Key) -> None:
        self._held.pop(key, None)
        # Nobody wanted the key while it was held: it stays away.
        weak = self._wanted.pop(key, None)
        if weak is not None:
            self.add(key, weak=weak)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def cancel_timer(self, key: Key) -> None:
        """Forget when the key was to be looked at."""
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()

    def _make_ready(self, key: Key, *, weak: bool) -> None:
        if not weak:
            self._weak.discard(key)
        # One that is in line for an ordinary look stays so.
        elif key not in self._ready:
            self._weak.add(key)
        if key not in self._ready:
            self.adds += 1
            self._push(key, 0)

    def _push(self, key: Key, level: int) -> None:
        self._ready[key] = self._loop.time()
        self.fairness.push(key, level, self._rank(key), is_large=self._is_large(key))

    def _notice(self) -> None:
        # As many as there are keys to hand out, the longest waiting first; one that was called already takes its key
        # itself.
        for getter in itertools.islice(self._getters, self.fairness.ready):
            if not getter.done():
                getter.set_result(None)


def _want(wanted: dict[Key, bool], key: Key, *, weak: bool) -> None:
    """Note how the key is wanted: weakly only if nothing else wants it."""
    wanted[key] = weak and wanted.get(key, True)


class Crowds:
    """``add`` a crowd; ``queue`` gets the hints of its objects, a part at a time.

    A tenant may have a hundred thousand pods that use one claim, and change the claim all day. The objects of a crowd
    are asked in parts. Then their keys are queued in parts, the highest priority first: otherwise the first pod
    would be the one that stands first in an index. After each part the event loop is free for a moment.

    A crowd that has not begun stands for all equal ones, so it is in line once, however often the object changes.
    Namespaces take turns part by part: a crowd of one namespace delays a crowd of another by one part at a time.

    ``urgency`` is the order of keys, the smallest first.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        queue: Callable[[Iterable[Key | Weak | Wide]], None],
        urgency: Callable[[Key], Rank],
    ) -> None:
        self._loop, self._queue, self._urgency = loop, queue, urgency
        self._lines: dict[str, dict[tuple[object, ...], Crowd]] = {}
        """Crowds that have not begun, by namespace; the first namespace is the next one."""
        self._begun: dict[str, Iterator[None]] = {}
        """The crowd that is being worked on, by namespace."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, crowd: Crowd) -> None:
        """Have the keys of the crowd queued."""
        if self._is_closed:
            return
        # A later one may know more; the place in line is that of the first.
        self._lines.setdefault(crowd.namespace, {})[crowd.about] = crowd
        if self._timer is None:
            self._timer = self._loop.call_later(0, self._go_on)

    def close(self) -> None:
        """Forget all crowds."""
        self._is_closed = True
        self._lines.clear()
        self._begun.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _go_on(self) -> None:
        """Do the next part, of the namespace whose turn it is."""
        self._timer = None
        namespace = next(iter(self._lines))
        line = self._lines.pop(namespace)
        if (begun := self._begun.get(namespace)) is None:
            begun = self._begun[namespace] = self._work(line.pop(next(iter(line))))
        is_over = True
        try:
            is_over = next(begun, self) is self
        finally:  # after an error this crowd is lost, and none of the others
            if is_over:
                del self._begun[namespace]
            if line or namespace in self._begun:
                self._lines[namespace] = line  # the last one now
            if self._lines and not self._is_closed:
                self._timer = self._loop.call_later(PART_PAUSE_SECONDS, self._go_on)

    def _work(self, crowd: Crowd) -> Iterator[None]:
        hints = ([hint for obj in some for hint in crowd.hints(obj)] for some in parts(crowd.objects()))
        for part in by_urgency(hints, self._urgency_of):
            self._queue(part)
            yield

    def _urgency_of(self, hint: Key | Weak | Wide) -> Rank:
        if isinstance(hint, Wide):
            return ()  # a round has its own order
        return self._urgency(hint if isinstance(hint, Key) else hint.key)


class WorkQueues:
    """Hands each key to the queue of its controller."""

    def __init__(self, queues: Mapping[Controller, WorkQueue]) -> None:
        self._queues = queues
        self._crowds = Crowds(asyncio.get_running_loop(), self.add, lambda key: queues[key.controller].urgency(key))
        for queue in queues.values():
            queue.fairness.is_gathering = lambda: bool(self._crowds)

    def of(self, controller: Controller) -> WorkQueue:
        return self._queues[controller]

    def add(self, hints: Iterable[Hint]) -> None:
        """Add the keys to their queues, each as urgently as the hint says."""
        for hint in hints:
            match hint:
                case Key():
                    self._queues[hint.controller].add(hint)
                case Weak(key):
                    self._queues[key.controller].add(key, weak=True)
                case Wide(key):
                    self._queues[key.controller].add(key, wide=True)
                case Crowd():
                    self._add_crowd(hint)

    def _add_crowd(self, crowd: Crowd) -> None:
        self._crowds.add(crowd)
        # An attempt that has begun may have missed the change. When it ends, the pod waits for less.
        for key in self._queues["placement"].being_tried() if crowd.are_waiting else ():
            self.add(crowd.hints(key.object))

    def add_after(self, key: Key, seconds: float) -> None:
        self._queues[key.controller].add_after(key, seconds)

    def all(self) -> Mapping[Controller, WorkQueue]:
        return self._queues

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing is to be done, nothing is being done, and no key comes back by itself."""
        return all(queue.is_quiet for queue in self._queues.values()) and not self._crowds

    def close(self) -> None:
        """Forget all timers."""
        self._crowds.close()
        for queue in self._queues.values():
            queue.close()
