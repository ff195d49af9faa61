"""Looks that a change of the cluster may be worth for many keys, such as a slice that was published.

Where a thousand pods wait, each such change has all of them looked at again. Changes may follow each other faster than
that is done: a driver that reports anew all the time, a node whose labels flip. Then the same keys would be ready
again and again, and those of younger pods would never have their turn. So such keys are looked at in *rounds*: what is
wanted while a round is under way, and for as long afterwards as its looks took, is for the next one. All rounds
together take half of the time at most, and a single change is answered at once. A namespace that has had its part of a
round pays for the rest of its looks, however cheap each of them is, so that others go before them (``Line``).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from dra_operator.cache import Key

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
