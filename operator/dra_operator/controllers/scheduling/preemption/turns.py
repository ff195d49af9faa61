"""When a pod may look for pods to end for it: seldom, one after the other, and in turns of their namespaces.

A pod has one attempt every ten seconds, and so has a gang. After each attempt others wait for nineteen times as long as
it took, so that all of them together take a twentieth of the time at most. Pods that have to wait stand in a line, and
the next one is called when the time has come: first one of each namespace, so that a thousand pods of one tenant put a
pod of another one off by one attempt. A pod that is called and does not come is passed over.

A process that has just begun ends no pods for ten seconds: what others began before may not be seen in full yet. In
that time only pods that are nominated already have a turn, so that what the last process kept for them is kept again.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from dra_api.core import Pod

from dra_operator.controllers.memory import Recently
from dra_operator.controllers.settings import ROUNDING_SECONDS

SHARE: Final = 0.05
"""Of the time that all attempts together may take."""
PATIENCE_SECONDS: Final = 5.0
"""So long a pod that was called has its turn."""
MOST_PODS_IN_LINE: Final = 1000
"""Pods of a namespace that stand in the line; others are looked at again later."""
LOOK_AGAIN_SECONDS: Final = 60.0
"""A pod in the line is looked at so often, should it never be called; the first one of a namespace when the pod
that was called did not come."""


class PreemptionTurns:
    """``look_again`` has the pod of a key looked at after so many seconds; ``waits`` says whether one still does."""

    def __init__(
        self,
        clock: Callable[[], float],
        rest: float,
        look_again: Callable[[str, float], None],
        waits: Callable[[str], bool],
    ) -> None:
        self._clock, self._rest, self._look_again, self._waits = clock, rest, look_again, waits
        self._begins_at = self._free_at = clock() + rest
        self._recalls_at = clock()
        """When the next pod that is nominated already may have a turn, before the others do."""
        self._tried = Recently(clock)
        self._line: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        """Keys of pods by namespace."""
        self._called = ("", -math.inf)
        """Whose turn it is, and until when."""
        self._last = ""
        """The namespace of the last one that was called."""

    @property
    def is_resting(self) -> bool:
        """Whether the process has just begun: no pod may end yet."""
        return self._clock() < self._begins_at

    def may_try(self, pod: Pod, who: str = "", *, recalls: bool = False) -> bool:
        """Whether it is the pod's turn; otherwise it is looked at again when it is.

        ``who`` has the attempt, if that is not the pod alone: its gang. ``recalls``: the last process has nominated it.
        """
        now, called = self._clock(), self._called
        age = self._tried.age(who or pod.metadata.uid)
        if age is not None and age < self._rest:
            self._later(pod.key, self._rest - age)
            return False
        if recalls and now < self._begins_at:
            if now < self._recalls_at:
                self._later(pod.key, self._recalls_at - now)
                return False
            self._recalls_at = now + PATIENCE_SECONDS  # no other one begins while this attempt goes on in pieces
            return True
        if now >= self._free_at and (pod.key == called[0] or now >= called[1]):
            self._leave(pod)
            return True
        if pod.key == called[0]:
            self._later(pod.key, self._free_at - now)
            return False
        there = self._line.setdefault(pod.metadata.namespace, OrderedDict())
        if len(there) < MOST_PODS_IN_LINE:
            there.setdefault(pod.key)
        if now >= called[1]:
            self._call(now)
        is_first = next(iter(there), "") == pod.key
        self._later(pod.key, self._called[1] - now if is_first else LOOK_AGAIN_SECONDS)
        return False

    def took(self, pod: Pod, seconds: float, who: str = "") -> None:
        """The attempt is over."""
        now = self._clock()
        self._tried.add(who or pod.metadata.uid)
        self._recalls_at = now + seconds * (1 / SHARE - 1)
        self._free_at = max(self._begins_at, self._recalls_at)
        self._call(now)

    def _leave(self, pod: Pod) -> None:
        namespace = pod.metadata.namespace
        there = self._line.get(namespace, OrderedDict())
        there.pop(pod.key, None)
        if not there:
            self._line.pop(namespace, None)
        # No other pod begins while this attempt goes on in pieces.
        self._called = (pod.key, self._clock() + PATIENCE_SECONDS)

    def _call(self, now: float) -> None:
        """The next one in the line that still waits."""
        self._called = ("", -math.inf)
        while self._line:
            namespace = next((it for it in self._line if it != self._last), self._last)
            there = self._line[namespace]
            key, _ = there.popitem(last=False)
            if there:
                self._line.move_to_end(namespace)
            else:
                del self._line[namespace]
            if self._waits(key):
                self._last = namespace
                self._called = (key, max(now, self._free_at) + PATIENCE_SECONDS)
                self._later(key, self._free_at - now)
                return

    def _later(self, key: str, seconds: float) -> None:
        self._look_again(key, max(seconds, 0.0) + ROUNDING_SECONDS)
