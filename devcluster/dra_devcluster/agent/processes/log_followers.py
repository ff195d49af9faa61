"""The clients that see what a container writes, from the moment in which they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

_MOST_PIECES = 1000


class TooSlow(Exception):
    """The client reads more slowly than the container writes."""


class LogFollowers:
    """Those of one container."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[tuple[str, bytes] | None]] = set()
        self._is_over = False

    def write(self, stream: str, data: bytes) -> None:
        """The container wrote this; a client that is far behind gets no more."""
        for queue in list(self._queues):
            queue.put_nowait((stream, data))
            if queue.qsize() >= _MOST_PIECES:
                self._queues.discard(queue)

    def end(self) -> None:
        """The container has ended."""
        self._is_over = True
        for queue in self._queues:
            queue.put_nowait(None)

    @contextmanager
    def follow(self) -> Iterator[AsyncIterator[tuple[str, bytes]]]:
        """What the container writes from now on, by stream, until it ends. Raises TooSlow."""
        queue: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue()
        self._queues.add(queue)
        if self._is_over:
            queue.put_nowait(None)
        try:
            yield self._pieces(queue)
        finally:
            self._queues.discard(queue)

    async def _pieces(self, queue: asyncio.Queue[tuple[str, bytes] | None]) -> AsyncIterator[tuple[str, bytes]]:
        while (piece := await queue.get()) is not None:
            yield piece
            if queue.empty() and queue not in self._queues:
                raise TooSlow("the client reads more slowly than the container writes")
