"""The line of keys that are ready, in which the namespaces share the time of decisions.

A namespace with a thousand pods that take a second of searching each would otherwise be asked a thousand times before
the one pod of another. So a namespace that has taken time is in *debt*. It pays back ``PAID_BACK_SHARE`` seconds each
second, and owes ``MOST_DECISION_SECONDS`` at most. The order is:

1. keys of namespaces without debt before those of namespaces in debt, and these by debt, the smallest first;
2. within that, keys that were postponed to a lower level first;
3. then by rank; equals in the order in which they came.

Cheap decisions are not charged. While all are cheap no namespace is in debt, and the rank alone decides. A namespace
that has its share of the workers stands aside until it may have another one.

Example: a thousand hard pods of ``a`` are in the line, and one of ``b`` that takes five turns joins it. After the piece
that is being worked on, ``a`` is in debt and ``b`` is not, so the five turns of ``b`` follow each other.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any, Final

from dra_operator.cache import Key

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
