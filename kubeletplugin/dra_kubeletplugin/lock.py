"""One prepare or unprepare at a time: within the process, and across overlapping instances of the driver.

Across processes it is an advisory lock on a file. ``held`` polls for it: a waiting ``flock`` would block the event
loop, and one in a thread could not be cancelled when the kubelet gives up (PH-07, PH-10). The kernel drops the lock
when its holder dies.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

_RETRY_SECONDS = 0.05


class SerializeLock:
    """``async with lock.held():`` around driver calls. Without ``enabled`` it never waits."""

    def __init__(self, *, enabled: bool, file: Path | None) -> None:
        self._local = asyncio.Lock() if enabled else nullcontext()
        self._file = file

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """The time during which no other call runs. Raises OSError when the lock file cannot be opened."""
        async with self._local:
            if self._file is None:
                yield
                return
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                await _lock(descriptor)
                yield
            finally:
                os.close(descriptor)  # which releases the lock


async def _lock(descriptor: int) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            return
