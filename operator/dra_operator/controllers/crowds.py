"""Queues the keys of crowds in parts, so that no change of one object holds up the event loop.

A tenant may have a hundred thousand pods that use one claim, and change the claim all day. A change names only the
crowd (``cache.key.Crowd``). Its objects are asked in parts of ``HINTS_AT_ONCE``. Then their keys are queued in such
parts, those of the highest priority first: otherwise the first pod would be the one that stands first in an index.
After each part the event loop is free for ``PART_PAUSE_SECONDS``.

A crowd that has not begun stands for all equal ones, so it is in line once, however often the object changes.
Namespaces take turns part by part: the crowds of one namespace delay those of another by a part each.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from dra_operator.cache import HINTS_AT_ONCE, Crowd, Key, Weak, Wide
from dra_operator.controllers.fairness import Rank

T = TypeVar("T")
PART_PAUSE_SECONDS: Final = 0.001


def parts(things: Iterable[T]) -> Iterator[list[T]]:
    """Yield the things in lists, each of which is little work."""
    rest = iter(things)
    while part := list(islice(rest, HINTS_AT_ONCE)):
        yield part


class Crowds:
    """``add`` a crowd; ``queue`` gets the hints of its objects, a part at a time.

    ``urgency`` is the order of keys, the smallest first.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        queue: Callable[[Iterable[Key | Weak | Wide]], None],
        urgency: Callable[[Key], Rank],
    ) -> None:
        self._loop, self._queue, self._urgency = loop, queue, urgency
        self._lines: dict[str, dict[tuple[object, ...], Crowd]] = {}
        """Crowds that have not begun, by namespace; the first namespace is the next one."""
        self._begun: dict[str, Iterator[None]] = {}
        """Of each namespace the crowd that is being worked on."""
        self._timer: TimerHandle | None = None
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
        if next(begun, self) is self:
            del self._begun[namespace]
        if line or namespace in self._begun:
            self._lines[namespace] = line  # the last one now
        if self._lines and not self._is_closed:
            self._timer = self._loop.call_later(PART_PAUSE_SECONDS, self._go_on)

    def _work(self, crowd: Crowd) -> Iterator[None]:
        hints: defaultdict[Rank, list[Key | Weak | Wide]] = defaultdict(list)
        for objects in parts(crowd.objects()):
            for hint in (it for obj in objects for it in crowd.hints(obj)):
                # A round has its own order.
                hints[() if isinstance(hint, Wide) else self._urgency(_key(hint))].append(hint)
            yield
        for urgency in sorted(hints):
            for part in parts(hints[urgency]):
                self._queue(part)
                yield


def _key(hint: Key | Weak | Wide) -> Key:
    return hint if isinstance(hint, Key) else hint.key
