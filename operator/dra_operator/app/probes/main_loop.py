"""The operator's event loop as another thread sees it: it is asked, and watched.

What the operator knows may only be read on its own loop. So a probe asks there, and waits ``PROBE_SECONDS`` for the
answer; if the loop is busy, the last answer counts. A loop that has not turned for ``STUCK_SECONDS`` will not turn by
itself: the liveness probe then fails, and says what it was deciding about."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T")
PROBE_SECONDS: Final = 0.5
"""Seconds that a probe waits for the loop; a kubelet gives it one by default."""
SLOW_SECONDS: Final = 10.0
"""Seconds without a turn after which the operator is not ready."""
STUCK_SECONDS: Final = 60.0
"""Seconds without a turn after which it is not alive."""

logger = logging.getLogger(__name__)


class _Asked(NamedTuple):
    since: float
    answer: concurrent.futures.Future[Any]


class MainLoop:
    """Made on the loop that it watches. ``doing`` says what is being decided, in words; it is read by other threads."""

    def __init__(self, doing: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._doing, self._clock = doing, clock
        self._asked: dict[str, _Asked] = {}
        self._is_told = False

    async def ask(self, name: str, question: Callable[[], T], last: T, patience: float = PROBE_SECONDS) -> T:
        """The answer of the loop; ``last`` if it has none in time. Askers of one name share an answer.

        ``patience`` in seconds since the question was asked first: while the loop is busy, those who ask later do not
        wait as long again, and many of them hold no connections.
        """
        asked = self._asked.get(name)
        if asked is None or (asked.answer.done() and self._clock() - asked.since >= patience):
            answer = asyncio.run_coroutine_threadsafe(_answered(question), self._loop)
            asked = self._asked[name] = _Asked(self._clock(), answer)
        try:
            async with asyncio.timeout(max(0.0, patience - (self._clock() - asked.since))):
                answered: T = await asyncio.shield(asyncio.wrap_future(asked.answer))
                return answered
        except TimeoutError:
            return last
        finally:
            if asked.answer.done() and self._asked.get(name) is asked:
                del self._asked[name]

    @property
    def busy(self) -> float:
        """Seconds since the oldest question that has no answer."""
        self._asked = {name: asked for name, asked in self._asked.items() if not asked.answer.done()}
        return max((self._clock() - asked.since for asked in self._asked.values()), default=0.0)

    def trouble(self, limit: float) -> list[str]:
        """That the loop has not turned for longer than the limit, if so."""
        seconds = self.busy
        if seconds < STUCK_SECONDS:
            self._is_told = False
        if seconds < limit:
            return []
        what = f", deciding about {doing}" if (doing := self._doing()) else ""
        text = f"the event loop has been blocked for {seconds:.0f} s{what}"
        if seconds >= STUCK_SECONDS and not self._is_told:
            self._is_told = True
            frame = sys._current_frames().get(self._thread)
            logger.critical("%s; stack:\n%s", text, "".join(traceback.format_stack(frame)))
        return [text]


async def _answered(question: Callable[[], T]) -> T:
    return question()
