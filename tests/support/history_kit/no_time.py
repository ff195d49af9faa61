"""Lets a coroutine go by on a clock of its own, and hears what is logged as an error meanwhile: bugs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import TypeVar
from unittest import mock

from .clock import VirtualLoop

T = TypeVar("T")


def in_no_time(
    main: Callable[[], Coroutine[None, None, T]],
    logger: str,
    measuring: Sequence[ModuleType],
    is_passing: Callable[[str], bool],
    level: int = logging.ERROR,
) -> tuple[T, tuple[str, ...]]:
    """What the coroutine returns, and what was logged from a ``level`` on, without what ``is_passing`` knows.

    ``measuring`` are the modules that ask the machine's clock, on which nothing may depend here.
    """
    loop, said = VirtualLoop(), _Complaints(is_passing, level)

    async def run() -> T:
        try:
            return await main()
        finally:
            await loop.end_all()
            await loop.shutdown_asyncgens()

    try:
        asyncio.set_event_loop(loop)
        with _measured_by(loop, measuring), said.heard(logger):
            return loop.run_until_complete(run()), tuple(said.lines)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@contextmanager
def _measured_by(loop: VirtualLoop, measuring: Sequence[ModuleType]) -> Iterator[None]:
    with ExitStack() as clocks:
        for module in measuring:
            clocks.enter_context(mock.patch.object(module, "time", loop))
        yield


class _Complaints(logging.Handler):
    """What is logged: violated invariants, and bugs."""

    def __init__(self, is_passing: Callable[[str], bool], level: int) -> None:
        super().__init__(level)
        self._is_passing = is_passing
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not self._is_passing(line := self.format(record)):
            self.lines.append(line)

    @contextmanager
    def heard(self, name: str) -> Iterator[None]:
        """Meanwhile."""
        logger = logging.getLogger(name)
        level = logger.level
        logger.setLevel(self.level)
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.setLevel(level)
