"""How namespaces share the workers of a queue and the time of decisions: the order in which keys are handed out.

*Workers.* A write takes as long as the API server needs, and who made the object decides that: a pod of a megabyte
takes it seconds. All workers would soon wait for the pods of one namespace, and none would be left for another. So a
namespace that has workers gets another one only if it then has at most ``WORKERS_PER_FREE_ONE`` for each that is left
free. One alone gets two thirds of them, the next one two thirds of the rest, and one that has none may take the last.

A claim of a megabyte takes much memory while it is written, so only few are written at the same time
(``ClaimAccess``). Keys of large claims have lines of their own, by namespace as well. At most ``LARGE_KEY_TURNS`` of
them have a worker, the last one of which is for a namespace that has none. The others wait without a worker.

*Time.* A namespace with a thousand pods that take a second of searching each would otherwise be asked a thousand times
before the one pod of another. So a namespace that has taken time is in *debt*. It pays back ``PAID_BACK_SHARE`` seconds
each second, and owes ``MOST_DECISION_SECONDS`` at most. The order is:

1. keys of namespaces without debt before those of namespaces in debt, and these by debt, the smallest first;
2. within that, keys that were postponed to a lower level first;
3. then by the first part of the rank, the priority;
4. then namespaces with less *use* first, in steps of ``USE_STEP_SECONDS``;
5. then by the rest of the rank, the time of creation; equals in the order in which they came.

Cheap decisions make no debt. But ten namespaces with a thousand cheap pods each would keep a pod of another one waiting
for minutes, although none of them owes anything. So the time of every decision also counts as the namespace's use. A
namespace that comes into line begins with the use of the one that was served last: the time in which it wanted nothing
gives it no advantage. When nothing is in line, all use is forgotten, so the rank alone decides while there is little
to do. A namespace that has its share of the workers stands aside until it may have another one.

Example: a thousand hard pods of ``a`` are in the line, and one of ``b`` that takes five turns joins it. After the piece
that is being worked on, ``a`` is in debt and ``b`` is not, so the five turns of ``b`` follow each other.

*Rounds.* Where a thousand pods wait, a slice that is published has all of them looked at again. Such changes may follow
each other faster than that is done: a driver that reports anew all the time, a node whose labels flip. Then the same
keys would be ready again and again, and those of younger pods would never have their turn. So such keys are looked at
in rounds: what is wanted while a round is under way, and for as long afterwards as its looks took, is for the next one.
All rounds together take half of the time at most, and a single change is answered at once. A namespace that has had its
part of a round pays for the rest of its looks, however cheap each of them is, so that others go before them.

A round waits for crowds whose keys are being found (``queue.Crowds``). Its keys are put in line in parts, the
highest priority first, so that a hundred thousand of them do not hold up the event loop.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

from dra_operator.cache import HINTS_AT_ONCE, Key, by_urgency, parts

WORKERS_PER_FREE_ONE: Final = 2
PAID_BACK_SHARE: Final = 0.25
MOST_DECISION_SECONDS: Final = 3.0
"""A namespace owes at most this many seconds of decisions."""
LARGE_KEY_TURNS: Final = 4
"""Or half of the workers, if that is less; at least one."""
USE_STEP_SECONDS: Final = 0.02
"""Namespaces of which the use differs by less may count as equal."""
FREE_SECONDS: Final = 0.25
"""Seconds of looks in one round that a namespace does not pay for."""
MOST_REST_SECONDS: Final = 10.0
"""Seconds between two rounds, however long the first one took: kube-scheduler tries a pod again after as long."""
MOST_GATHERING_SECONDS: Final = 2.0
"""Seconds that a round waits for crowds: others may come without end."""
STEP_SECONDS: Final = 0.001
"""Seconds between two parts of a round that are put in line."""
SPARE_ENTRIES: Final = 32  # entries of a heap that count no more, and are left for now

Rank = tuple[Any, ...]
"""Sorts keys that are ready; the smallest is worked on first, equals in the order in which they came."""
_Urgency = tuple[int, Rank]
"""Level, and the first part of the rank."""
_Age = tuple[Rank, int]
"""The rest of the rank, and the number in the order of arrival."""
_Entry = tuple[float, _Urgency, int, _Age, str]
"""When the namespace will have paid back its debt (0: it has none), the urgency of its first key, the steps of its use,
the age of that key, and the line."""
_LARGE: Final = "/large"
"""Suffix of the name of a line of large keys; the rest is the namespace. No namespace has a slash."""


class Loop(Protocol):
    """The clock and the timers of the event loop."""

    def time(self) -> float:
        """Seconds of a clock that is never set."""
        ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back after ``delay`` seconds."""
        ...


def may_have_another(held: int, free: float) -> bool:
    """Return whether a namespace that has so many may get one of those that are free."""
    return not held or held < WORKERS_PER_FREE_ONE * (free - 1)


class Fairness:
    """``push`` a key that is ready, ``pop`` the first one for a worker, ``leave`` when the worker is done with it.

    A key is in line at most once. ``workers`` is how many keys are worked on at the same time, or ``math.inf`` for no
    limit. ``begin_round`` hands out the keys of a round, and returns the keys that it has put in line.
    """

    def __init__(
        self,
        loop: Loop,
        begin_round: Callable[[Sequence[Key]], Iterable[Key]],
        workers: float = math.inf,
        *,
        rank: Callable[[Key], Rank] = lambda _: (),
    ) -> None:
        """``rank``: as that given to ``push``."""
        self._loop, self._begin_round, self._rank = loop, begin_round, rank
        self.is_gathering: Callable[[], bool] = lambda: False
        """Whether keys of crowds are being found, for which a round waits."""
        self._numbers = itertools.count()
        self._keys: dict[str, list[tuple[_Urgency, _Age, Key]]] = {}
        """The keys by line, as heaps."""
        self._order: list[_Entry] = []
        """The lines as a heap. An entry counts while it is what ``_filed`` has of its line."""
        self._filed: dict[str, _Entry] = {}
        self.ready = 0
        """How many keys ``pop`` would take out, one after the other."""
        self._paid_at: dict[str, float] = {}
        """When each namespace in debt will have paid it back."""
        self._use: dict[str, float] = {}
        """Seconds of decisions by namespace, from that on which those in line had when it came."""
        self._use_served = 0.0
        """The use of the namespace whose key was handed out last, before its decision."""
        self._free, self._held = workers, Counter[str]()
        """Workers without a key, and workers by the line of their key."""
        self._free_large = max(1, int(min(LARGE_KEY_TURNS, workers / 2)))
        """How many of the workers may take a large key."""
        self._large: set[Key] = set()
        """Large keys in line or with a worker."""
        self._aside: set[str] = set()
        """Lines of namespaces that have their share of the workers."""
        self._large_aside: set[str] = set()
        """The same of large keys."""
        self._next: dict[Key, float] = {}
        """Keys of the next round, and since when; the oldest is the first."""
        self._left: set[Key] = set()
        """Keys of this round that were not looked at yet."""
        self._spent: defaultdict[str, float] = defaultdict(float)
        """Seconds of this round by namespace."""
        self._rests_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._beginning: Iterator[None] | None = None
        """The parts of this round that are not in line yet."""

    # --- the line, and the workers who take keys from it ---

    def push(self, key: Key, level: int, rank: Rank, *, is_large: bool = False) -> None:
        """Add the key to the line. ``is_large``: its work is about a large claim."""
        line = key.namespace + _LARGE if is_large else key.namespace
        if not self._keys:
            self._use.clear()
            self._use_served = 0.0
        elif self._use_served > self._use.get(key.namespace, 0.0) and not self._is_in_line(key.namespace):
            self._use[key.namespace] = self._use_served
        keys, entry = self._keys.setdefault(line, []), ((level, rank[:1]), (rank[1:], next(self._numbers)), key)
        heapq.heappush(keys, entry)
        if is_large:
            self._large.add(key)
        # Keys of a line that stands aside are there, but nobody would get them.
        if is_large and not self._may_take_large(line):
            self._large_aside.add(line)
        elif line not in self._aside:
            self.ready += 1
        # Only the first key of a line decides about its place.
        if keys[0] is entry:
            self._file(line)

    def pop(self) -> Key:
        """Take out the first key, for a worker. Raises IndexError if none is ready."""
        line = self._first()
        self._use_served = self._use.get(line.removesuffix(_LARGE), 0.0) if self._use else 0.0
        keys = self._keys[line]
        _, _, key = heapq.heappop(keys)
        self.ready -= 1
        if not keys:
            del self._keys[line]
        self._file(line)
        self._free -= 1
        self._held[line] += 1
        if line.endswith(_LARGE):
            self._free_large -= 1
            # The last turn is that of all lines, not only of this one.
            for each in [it for it in self._filed if it.endswith(_LARGE) and not self._may_take_large(it)]:
                self._stand_aside(each, self._large_aside)
        elif not may_have_another(self._held[line], self._free):
            self._stand_aside(line, self._aside)
        return key

    def leave(self, key: Key) -> None:
        """Free the worker who had the key. Namespaces that stood aside and may take one are in line again."""
        self._free += 1
        line = key.namespace
        if key in self._large:
            self._large.discard(key)
            self._free_large += 1
            line += _LARGE
        self._held[line] -= 1
        if not self._held[line]:
            del self._held[line]
        if line.endswith(_LARGE):
            self._return(list(filter(self._may_take_large, self._large_aside)), self._large_aside)
        # Every one of them, not only the namespace that gave the worker back: one more free worker raises the limit of
        # all.
        if self._aside:
            self._return([it for it in self._aside if may_have_another(self._held[it], self._free)], self._aside)

    def reason(self, key: Key) -> str:
        """Return why a key in line has no worker yet, as a clause about its object."""
        namespace, is_large = key.namespace, key in self._large
        line = namespace + _LARGE if is_large else namespace
        if line in self._large_aside:
            return "requests about other large claims are under way, as many as are allowed at a time"
        if line in self._aside:
            return f"requests for other objects of namespace {namespace} are under way, and have its share of workers"
        if self._free <= 0:
            return "requests for other objects are under way, and have all workers"
        if namespace in self._paid_at:
            return f"decisions about namespace {namespace} took long, so other namespaces come first"
        return "other objects come first"

    def is_in_round(self, key: Key) -> bool:
        """Return whether the key is in line for a look of this round."""
        return key in self._left

    def wanted(self) -> Iterator[tuple[Key, float]]:
        """Yield the keys of the next round, each with the time since when, the oldest first."""
        return iter(self._next.items())

    def _stand_aside(self, line: str, aside: set[str]) -> None:
        """None of its keys is handed out until a worker comes back."""
        aside.add(line)
        self.ready -= len(self._keys.get(line, ()))
        self._file(line)

    def _return(self, lines: Iterable[str], aside: set[str]) -> None:
        """Hand out keys of these lines again."""
        for line in lines:
            aside.discard(line)
            self.ready += len(self._keys.get(line, ()))
            self._file(line)

    def _may_take_large(self, line: str) -> bool:
        return self._free_large > (1 if self._held[line] else 0)

    def _first(self) -> str:
        """Return the line whose turn it is."""
        if self._paid_at:
            now = self._loop.time()
            # Nobody tells when a debt is paid back, so it is looked at before each choice.
            for namespace in [namespace for namespace, due in self._paid_at.items() if due <= now]:
                del self._paid_at[namespace]
                self._file_both(namespace)
        while True:
            first = self._order[0]
            if self._filed.get(line := first[-1]) is first:
                return line
            heapq.heappop(self._order)

    def _is_in_line(self, namespace: str) -> bool:
        return namespace in self._keys or namespace + _LARGE in self._keys

    def _file_both(self, namespace: str) -> None:
        """File the lines of the namespace anew, of which the debt or the use has changed."""
        self._file(namespace)
        if (large := namespace + _LARGE) in self._keys:
            self._file(large)

    def _file(self, line: str) -> None:
        """File the line anew: its first key, or the debt of its namespace, may be another one."""
        keys = self._keys.get(line)
        if not keys or line in self._aside or line in self._large_aside:
            self._filed.pop(line, None)
            return
        namespace = line.removesuffix(_LARGE)
        debt = self._paid_at.get(namespace, 0.0) if self._paid_at else 0.0
        steps = int(self._use.get(namespace, 0.0) / USE_STEP_SECONDS) if self._use else 0
        urgency, age, _ = keys[0]
        entry = (debt, urgency, steps, age, line)
        # A heap with the same entry twice would have to be cleaned up later.
        if self._filed.get(line) == entry:
            return
        self._filed[line] = entry
        heapq.heappush(self._order, entry)
        if len(self._order) > 2 * len(self._filed) + SPARE_ENTRIES:
            # Most entries count no more, and may never get to the top.
            self._order = list(self._filed.values())
            heapq.heapify(self._order)

    # --- the time of decisions ---

    def charge(self, key: Key, seconds: float) -> None:
        """Add the time of a decision about the key to its namespace's debt."""
        namespace, now = key.namespace, self._loop.time()
        # At a quarter of a second per second: a debt of a second keeps the namespace back for four.
        due = max(now, self._paid_at.get(namespace, now)) + seconds / PAID_BACK_SHARE
        # A tenant with ten thousand hard pods must be able to pay its debt back at all.
        self._paid_at[namespace] = min(due, now + MOST_DECISION_SECONDS / PAID_BACK_SHARE)
        self._file_both(namespace)

    def _add_use(self, namespace: str, seconds: float) -> None:
        before = self._use.get(namespace, 0.0)
        self._use[namespace] = use = before + seconds
        if int(use / USE_STEP_SECONDS) != int(before / USE_STEP_SECONDS):
            self._file_both(namespace)
        if len(self._use) > 2 * len(self._keys) + SPARE_ENTRIES:
            # What wants nothing, and has hardly more use than the namespace that was served, begins with that anyway.
            least = (int(self._use_served / USE_STEP_SECONDS) + 1) * USE_STEP_SECONDS
            self._use = {it: use for it, use in self._use.items() if use >= least or self._is_in_line(it)}

    # --- rounds ---

    @property
    def is_quiet(self) -> bool:
        """Return whether no key is wanted for the next round."""
        return not self._next

    def want(self, key: Key) -> None:
        """Have the key looked at in the next round."""
        self._next.setdefault(key, self._loop.time())
        self._plan_round()

    def unwant(self, key: Key) -> None:
        """Note that the key is looked at anyway."""
        self._next.pop(key, None)

    def looked_at(self, key: Key, seconds: float, use: float) -> bool:
        """A look at the key took so long, and so much processor time. Return whether its namespace has to pay for it,
        however little it is."""
        self._add_use(key.namespace, use)
        if key not in self._left:
            return False
        self._left.discard(key)
        self._spent[key.namespace] += seconds
        # A thousand cheap looks are not cheap together.
        is_much = self._spent[key.namespace] > FREE_SECONDS
        if not self._left and self._beginning is None:
            self._end_round()
        return is_much

    def _end_round(self) -> None:
        # As long a pause as the round took: changes that follow each other take half of the time at most.
        self._rests_until = self._loop.time() + min(sum(self._spent.values()), MOST_REST_SECONDS)
        self._spent.clear()
        self._plan_round()

    def close(self) -> None:
        """Forget what is wanted."""
        self._next.clear()
        self._beginning = None
        if self._timer is not None:
            self._timer.cancel()

    def _plan_round(self) -> None:
        # One round at a time: what is wanted while it is under way belongs to the next one.
        if self._next and not self._left and self._beginning is None and self._timer is None:
            self._timer = self._loop.call_later(max(0.0, self._rests_until - self._loop.time()), self._start_round)

    def _start_round(self) -> None:
        self._timer = None
        # A crowd's keys come in parts, in no order: the pods of the highest priority may be in the last one.
        oldest = next(iter(self._next.values()), -math.inf)
        if self.is_gathering() and self._loop.time() < oldest + MOST_GATHERING_SECONDS:
            self._timer = self._loop.call_later(STEP_SECONDS, self._start_round)
            return
        keys = list(self._next)
        self._next.clear()
        if len(keys) <= HINTS_AT_ONCE:
            self._left.update(self._begin_round(keys))
            return
        self._beginning = self._in_parts(keys)
        self._go_on()

    def _go_on(self) -> None:
        """Put the next part of the round in line."""
        self._timer, has_more = None, False
        try:
            has_more = self._beginning is not None and next(self._beginning, self) is not self
        finally:  # after an error the rest of this round is lost, and not all rounds to come
            if has_more:
                self._timer = self._loop.call_later(STEP_SECONDS, self._go_on)
            else:
                self._beginning = None
                if not self._left:  # all of them were looked at meanwhile
                    self._end_round()

    def _in_parts(self, keys: Sequence[Key]) -> Iterator[None]:
        for part in by_urgency(parts(keys), lambda key: self._rank(key)[:1]):
            self._left.update(self._begin_round(part))
            yield
