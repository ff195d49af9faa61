"""An event loop whose time is a number: when nothing is left to do now, it is later at once."""

from __future__ import annotations

import asyncio
from typing import Any


class NothingLeft(Exception):
    """Everything waits, and nothing can end that."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs coroutines and timers as any loop does; knows no files, sockets, or threads."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = self

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now

    def perf_counter(self) -> float:
        """The same, for those who measure how long they take: they take no time."""
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """Where another loop would sleep."""
        if timeout is None:
            raise NothingLeft
        self._now += timeout
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
