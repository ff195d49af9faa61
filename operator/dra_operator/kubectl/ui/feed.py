"""Reads the cluster while somebody looks at the page: a request for news starts the next read if it is time.

Without requests nothing is read. Reads and questions are worked on in threads; one question at a time, because ``why``
tries changes on the view and takes them back.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

from dra_operator.kubectl.answer import Problem
from dra_operator.kubectl.observed.pipeline import Settings
from dra_operator.kubectl.reading.read import read

from .view import JSON, View

T = TypeVar("T")
READ_SECONDS: Final = 2.0
"""Between two reads at least; three times as long as the last read took, if that is more."""


class Feed:
    """``options`` have the arguments of ``add_cluster_arguments`` and ``add_operator_arguments``."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._settings = options, Settings.of(options)
        self._live = options.source is None
        self._lock = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._next_read = 0.0
        self._problem: Problem | None = None
        self._view: View | None = None

    async def start(self) -> None:
        """The first read. Raises Problem."""
        await self._read()
        if self._problem is not None:
            raise self._problem

    async def stop(self) -> None:
        """Wait for a read that is under way: a thread cannot be ended."""
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    def overview(self, known: str) -> JSON:
        """What is shown, or only its time if the page knows that revision; starts the next read if it is time."""
        is_idle = self._reading is None or self._reading.done()
        if self._live and is_idle and time.monotonic() >= self._next_read:
            self._reading = asyncio.create_task(self._read())
        shown = self._shown.overview
        if known == shown["revision"]:
            shown = {name: shown[name] for name in ("revision", "taken", "live")}
        return {**shown, "error": str(self._problem or "")}

    async def ask(self, question: Callable[[View], T]) -> T:
        """An answer of the newest view, worked out in a thread."""
        async with self._lock:
            return await asyncio.to_thread(question, self._shown)

    @property
    def _shown(self) -> View:
        if self._view is None:
            raise RuntimeError("asked before the first read")
        return self._view

    async def _read(self) -> None:
        began = time.monotonic()
        try:
            seen = await asyncio.to_thread(read, self._options)
            async with self._lock:
                self._view = await asyncio.to_thread(View, seen, self._settings, live=self._live)
            self._problem = None
        except Problem as problem:
            self._problem = problem
        self._next_read = time.monotonic() + max(READ_SECONDS, 3 * (time.monotonic() - began))
