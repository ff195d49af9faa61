"""The log of an HTTP server: without what its requests hold, and no longer than people can read.

aiohttp logs a request that it cannot read with the line at fault, which may be the header with a bearer token: that of
a user of the development cluster, or the one that Prometheus sends with a scrape. ``REQUESTS`` names the kind of the
fault only.

Anyone who reaches the port can send such requests, thousands a second. A server that is given ``request_log()`` as its
``logger`` writes each kind of fault once in ``TOLD_SECONDS``, at most ``MOST_KINDS`` of them, and counts the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from aiohttp.http_exceptions import HttpProcessingError

TOLD_SECONDS: Final = 60.0
MOST_KINDS: Final = 4
"""Kinds of faults told in one ``TOLD_SECONDS``: with tracebacks of 2 kB they stay below 10 kB."""


class _WithoutContent(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.msg, record.exc_info = f"{record.msg}: it cannot be read: {type(error).__name__}", None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


class Seldom(logging.Filter):
    """Lets each kind of line pass once in ``TOLD_SECONDS``. Kinds differ by words and error, not by the client."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._told: set[tuple[object, object]] = set()
        self._told_since = -TOLD_SECONDS
        self._untold = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return True
        now = self._clock()
        before = 0
        if now - self._told_since >= TOLD_SECONDS:
            self._told, self._told_since = set(), now
            before, self._untold = self._untold, 0
        kind = (record.msg, type(record.exc_info[1]) if record.exc_info else None)
        if kind in self._told or len(self._told) >= MOST_KINDS:
            self._untold += 1
            return False
        self._told.add(kind)
        if before:
            record.msg = f"{record.msg} (before that {before} faults of requests were not logged)"
        return True


class _OfTransports(Seldom):
    """The same for asyncio's words about peers that are gone while something is written to them."""

    _WORDS: Final = frozenset({"SSL connection is closed", "socket.send() raised exception."})

    def filter(self, record: logging.LogRecord) -> bool:
        return record.msg not in self._WORDS or super().filter(record)


REQUESTS: Final = logging.getLogger(__name__)
REQUESTS.addFilter(_WithoutContent())
logging.getLogger("asyncio").addFilter(_OfTransports())


def request_log(clock: Callable[[], float] = time.monotonic) -> logging.Logger:
    """Return a logger for one server, whose lines appear as those of ``REQUESTS``."""
    limited = logging.Logger(REQUESTS.name)
    limited.parent = REQUESTS
    limited.addFilter(_WithoutContent())
    limited.addFilter(Seldom(clock))
    return limited
