"""How namespaces share the workers of a queue and the time of decisions.

*Workers.* A write takes as long as the API server needs, and who made the object decides that: a pod of a megabyte
takes it seconds. All workers would soon wait for the pods of one namespace, and none would be left for another. So a
namespace that has workers gets another one only if it then has at most ``WORKERS_PER_FREE_ONE`` for each that is left
free. One alone gets two thirds of them, the next one two thirds of the rest, and one that has none may take the last.

*Time.* A namespace with a thousand pods that take a second of searching each would otherwise be asked a thousand times
before the one pod of another. So a namespace that has taken time is in *debt*. It pays back ``PAID_BACK_SHARE`` seconds
each second, and owes ``MOST_DECISION_SECONDS`` at most. The order is:

1. keys of namespaces without debt before those of namespaces in debt, and these by debt, the smallest first;
2. within that, keys that were postponed to a lower level first;
3. then by rank; equals in the order in which they came.

Cheap decisions are not charged. While all are cheap no namespace is in debt, and the rank alone decides. A namespace
that has its share of the workers stands aside until it may have another one.

Example: a thousand hard pods of ``a`` are in the line, and one of ``b`` that takes five turns joins it. After the piece
that is being worked on, ``a`` is in debt and ``b`` is not, so the five turns of ``b`` follow each other.

*Rounds.* Where a thousand pods wait, a slice that is published has all of them looked at again. Such changes may follow
each other faster than that is done: a driver that reports anew all the time, a node whose labels flip. Then the same
keys would be ready again and again, and those of younger pods would never have their turn. So such keys are looked at
in rounds: what is wanted while a round is under way, and for as long afterwards as its looks took, is for the next one.
All rounds together take half of the time at most, and a single change is answered at once. A namespace that has had its
part of a round pays for the rest of its looks, however cheap each of them is, so that others go before them.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from dra_operator.cache import Key

WORKERS_PER_FREE_ONE: Final = 2


def may_have_another(held: int, free: float) -> bool:
    """Whether a namespace that has so many may get one of those that are free."""
    return not held or held < WORKERS_PER_FREE_ONE * (free - 1)


class Shares:
    """Of so many workers; infinity means that there is always another one."""

    def __init__(self, workers: float) -> None:
        self._free = workers
        self._held: Counter[str] = Counter()

    def may_take(self, namespace: str) -> bool:
        """Whether the namespace may have another worker."""
        return may_have_another(self._held[namespace], self._free)

    def take(self, namespace: str) -> None:
        """It has another one."""
        self._free -= 1
        self._held[namespace] += 1

    def give_back(self, namespace: str) -> None:
        """It has one less."""
        self._free += 1
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]


FREE_SECONDS: Final = 0.25
"""Of looks in one round that a namespace does not pay for."""
MOST_REST_SECONDS: Final = 10.0
"""Between two rounds, however long the first one took: so often kube-scheduler tries a pod that it backs off from."""


class Rounds:
    """``begin`` hands out the keys of a round, and answers with those that are in line by that. Bound to the running
    event loop."""

    def __init__(self, begin: Callable[[Sequence[Key]], Iterable[Key]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin = begin
        self._next: dict[Key, None] = {}
        self._left: set[Key] = set()
        """Keys of this round that were not looked at yet."""
        self._spent: defaultdict[str, float] = defaultdict(float)
        """Seconds of this round by namespace."""
        self._rests_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_quiet(self) -> bool:
        """No key is wanted."""
        return not self._next

    def add(self, key: Key) -> None:
        """Have the key looked at in the next round."""
        self._next[Key(*key)] = None
        self._plan()

    def discard(self, key: Key) -> None:
        """The key is looked at anyway."""
        self._next.pop(key, None)

    def looked_at(self, key: Key, seconds: float) -> bool:
        """A look at the key took so long; whether its namespace has to pay for it."""
        if key not in self._left:
            return False
        self._left.discard(key)
        self._spent[key.namespace] += seconds
        is_much = self._spent[key.namespace] > FREE_SECONDS
        if not self._left:
            self._rests_until = self._loop.time() + min(sum(self._spent.values()), MOST_REST_SECONDS)
            self._spent.clear()
            self._plan()
        return is_much

    def close(self) -> None:
        """Forget what is wanted."""
        self._next.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _plan(self) -> None:
        if self._next and not self._left and self._timer is None:
            self._timer = self._loop.call_later(max(0.0, self._rests_until - self._loop.time()), self._start)

    def _start(self) -> None:
        self._timer = None
        keys = list(self._next)
        self._next.clear()
        self._left.update(self._begin(keys))


Rank = tuple[Any, ...]
"""Sorts keys that are ready; the smallest is worked on first, equals in the order in which they came."""

PAID_BACK_SHARE: Final = 0.25
MOST_DECISION_SECONDS: Final = 3.0  # seconds of decisions

SPARE_ENTRIES: Final = 32  # entries of a heap that count no more, and are left for now
_Place = tuple[int, Rank, int]
"""Level, rank, and number in the order of arrival."""
_Entry = tuple[float, _Place, str]
"""When the namespace will have paid back its debt (0: it has none), the place of its first key, and its name."""


class Line:
    """``pop`` takes the first key out. A key stands in line once at most; ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._numbers = itertools.count()
        self._keys: dict[str, list[tuple[_Place, Key]]] = {}
        """By namespace, as heaps."""
        self._paid_at: dict[str, float] = {}
        """When each namespace in debt will have paid it back."""
        self._order: list[_Entry] = []
        """The namespaces as a heap. An entry counts while it is what ``_filed`` has of its namespace."""
        self._filed: dict[str, _Entry] = {}
        self._aside: set[str] = set()
        self.ready = 0
        """How many keys ``pop`` would take out, one after the other."""

    def push(self, key: Key, level: int, rank: Rank) -> None:
        """The key joins the line."""
        namespace = key.namespace
        keys, entry = self._keys.setdefault(namespace, []), ((level, rank, next(self._numbers)), key)
        heapq.heappush(keys, entry)
        if namespace not in self._aside:
            self.ready += 1
        if keys[0] is entry:
            self._file(namespace)

    def pop(self) -> Key:
        """The first key, which leaves the line. Raises IndexError if none is ready."""
        namespace = self._first()
        keys = self._keys[namespace]
        _, key = heapq.heappop(keys)
        self.ready -= 1
        if not keys:
            del self._keys[namespace]
        self._file(namespace)
        return key

    def stand_aside(self, namespace: str) -> None:
        """``pop`` takes no key of the namespace until it is called back."""
        if namespace not in self._aside:
            self._aside.add(namespace)
            self.ready -= len(self._keys.get(namespace, ()))
            self._file(namespace)

    def call_back(self, may_come: Callable[[str], bool]) -> None:
        """Those that stood aside and may come stand in line again."""
        for namespace in list(filter(may_come, self._aside)):
            self._aside.discard(namespace)
            self.ready += len(self._keys.get(namespace, ()))
            self._file(namespace)

    def charge(self, key: Key, seconds: float) -> None:
        """A decision about the key took time."""
        namespace, now = key.namespace, self._clock()
        due = max(now, self._paid_at.get(namespace, now)) + seconds / PAID_BACK_SHARE
        self._paid_at[namespace] = min(due, now + MOST_DECISION_SECONDS / PAID_BACK_SHARE)
        self._file(namespace)

    def _first(self) -> str:
        """The namespace whose turn it is."""
        if self._paid_at:
            now = self._clock()
            for namespace in [namespace for namespace, due in self._paid_at.items() if due <= now]:
                del self._paid_at[namespace]
                self._file(namespace)
        while True:
            first = self._order[0]
            if self._filed.get(first[2]) is first:
                return first[2]
            heapq.heappop(self._order)

    def _file(self, namespace: str) -> None:
        """The first key of the namespace, or its debt, may be another one."""
        keys = self._keys.get(namespace)
        if not keys or namespace in self._aside:
            self._filed.pop(namespace, None)
            return
        entry = (self._paid_at.get(namespace, 0.0), keys[0][0], namespace)
        if self._filed.get(namespace) == entry:
            return
        self._filed[namespace] = entry
        heapq.heappush(self._order, entry)
        if len(self._order) > 2 * len(self._filed) + SPARE_ENTRIES:
            # Most entries count no more, and may never get to the top.
            self._order = list(self._filed.values())
            heapq.heapify(self._order)
