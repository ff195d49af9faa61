"""The newest view of a cluster for those who ask again and again: a question starts the next read if it is time.

Without questions nothing is read. Reads and questions are worked on in threads; one question at a time, because some
try changes on the view and take them back.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from dra_operator.kubectl.answer import Problem
from dra_operator.kubectl.observed.observed import Observed

from .read import read

V = TypeVar("V")
R = TypeVar("R")
READ_SECONDS: Final = 2.0
"""Between two reads at least; three times as long as the last read took, if that is more."""


class NewestView(Generic[V]):
    """``options`` have the arguments of ``add_cluster_arguments``; ``make`` turns what was observed into the view."""

    def __init__(self, options: argparse.Namespace, make: Callable[[Observed], V]) -> None:
        self._options, self._make = options, make
        self.is_live = options.source is None
        self._lock = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._next_read = 0.0
        self._read_at = -math.inf
        self._view: V | None = None
        self.problem: Problem | None = None
        """Why the last read failed, if it did."""

    async def start(self) -> None:
        """The first read. Raises Problem."""
        await self._read()
        if self.problem is not None:
            raise self.problem

    async def stop(self) -> None:
        """Wait for a read that is under way: a thread cannot be ended."""
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    @property
    def view(self) -> V:
        """What the last good read found."""
        if self._view is None:
            raise RuntimeError("asked before the first read")
        return self._view

    @property
    def age_seconds(self) -> float:
        """Since the last good read began; a snapshot does not age."""
        return time.monotonic() - self._read_at if self.is_live else 0.0

    def renew(self) -> asyncio.Task[None] | None:
        """The read that is under way, or begins since it is time; None if it is not."""
        if self._reading is not None and not self._reading.done():
            return self._reading
        if not self.is_live or time.monotonic() < self._next_read:
            return None
        self._reading = asyncio.create_task(self._read())
        return self._reading

    async def ask(self, question: Callable[[V], R]) -> R:
        """An answer of the newest view, worked out in a thread."""
        async with self._lock:
            return await asyncio.to_thread(question, self.view)

    async def _read(self) -> None:
        began = time.monotonic()
        try:
            seen = await asyncio.to_thread(read, self._options)
            async with self._lock:
                self._view = await asyncio.to_thread(self._make, seen)
            self._read_at, self.problem = began, None
        except Problem as problem:
            self.problem = problem
        self._next_read = time.monotonic() + max(READ_SECONDS, 3 * (time.monotonic() - began))
