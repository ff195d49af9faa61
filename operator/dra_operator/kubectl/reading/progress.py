"""How far the reads of a cluster are, on a terminal: one line on standard error that is gone when they are over."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from dra_operator.wording import counted

QUIET_SECONDS: Final = 1.0
"""Reads that take less are not told of."""
_CLEARED: Final = "\r\x1b[K"


class Progress:
    """``kinds``: how many are read in all."""

    def __init__(self, kinds: int, stream: TextIO) -> None:
        self._kinds, self._stream = kinds, stream
        self._begun = time.monotonic()
        self._read = 0
        self._objects = 0

    def add(self, objects: int) -> None:
        """One more kind is read, of which there are so many objects."""
        self._read += 1
        self._objects += objects
        if time.monotonic() - self._begun >= QUIET_SECONDS:
            what = f"{self._read} of {self._kinds} kinds, {counted(self._objects, 'object')}"
            self._stream.write(f"{_CLEARED}reading the cluster: {what}")
            self._stream.flush()

    def end(self) -> None:
        """Take the line away."""
        self._stream.write(_CLEARED)
        self._stream.flush()


@contextmanager
def progress(kinds: int, stream: TextIO | None = None) -> Iterator[Progress | None]:
    """None where standard error is no terminal."""
    to = sys.stderr if stream is None else stream
    if not to.isatty():
        yield None
        return
    told = Progress(kinds, to)
    try:
        yield told
    finally:
        told.end()
