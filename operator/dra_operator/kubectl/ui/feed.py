"""What the page shows, read again while it is open."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import Settings
from dra_operator.kubectl.reading.newest import NewestView

from .view import JSON, View

T = TypeVar("T")
PAGE_ANSWER_SECONDS: Final = 5.0
"""For one answer about what a scheduler would decide."""


class Feed:
    """``options`` have the arguments of ``add_cluster_arguments`` and ``add_operator_arguments``."""

    def __init__(self, options: argparse.Namespace) -> None:
        settings = Settings.of(options)

        def view(seen: Observed) -> View:
            return View(seen, settings, live=options.source is None)

        self._newest = NewestView(options, view)

    async def start(self) -> None:
        """The first read. Raises Problem."""
        await self._newest.start()

    async def stop(self) -> None:
        """Wait for a read that is under way."""
        await self._newest.stop()

    def overview(self, known: str) -> JSON:
        """What is shown, or only its time if the page knows that revision; starts the next read if it is time."""
        self._newest.renew()
        shown = self._newest.view.overview
        if known == shown["revision"]:
            shown = {name: shown[name] for name in ("revision", "taken", "live")}
        return {**shown, "error": str(self._newest.problem or "")}

    async def look_up(self, question: Callable[[View], T]) -> T:
        """A fact of the newest view, worked out in a thread beside all others."""
        return await asyncio.to_thread(question, self._newest.view)

    async def ask(self, question: Callable[[View], T], size: int = 1) -> T:
        """An answer for which changes are tried on the newest view, worked out in a thread: one at a time, those of the
        smallest ``size`` first. After ``PAGE_ANSWER_SECONDS`` it says what is known. Raises Crowded."""

        def within_limit(view: View, is_gone: Callable[[], bool]) -> T:
            with view.pausing.within(PAGE_ANSWER_SECONDS, is_gone):
                return question(view)

        return await self._newest.ask(within_limit, size=size)
