"""A port beside rude clients: an honest client asks while ``rude_kinds`` is played against it.

``play`` runs the rude clients as a process of their own, asks as the honest client meanwhile, and counts what the
server answered, logged and kept open. ``Fixed`` stands for an operator behind the port, whose answers are known at
once.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import rude_kinds
from dra_operator.app.probes import Check
from prometheus_client import CollectorRegistry, generate_latest


@dataclass
class Fixed:
    """What each probe finds, and what is exposed."""

    live: Sequence[Check]
    ready: Sequence[Check]
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    async def liveness(self) -> Sequence[Check]:
        return self.live

    async def readiness(self) -> Sequence[Check]:
        return self.ready

    async def metrics(self) -> bytes:
        return generate_latest(self.registry)


PROBE_SECONDS: Final = 1.0
"""The time-out of a kubelet's probe."""
FEWEST_QUESTIONS: Final = 3
"""Of the honest client, to say anything about the port."""
LOG_BYTES: Final = 10_000
"""That a server may log in a minute."""


class _Heard(logging.Handler):
    """What the process logs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.bytes, self.lines = 0, []  # type: int, list[str]
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        self.bytes += len(line) + 40  # the time, and what JSON adds
        if len(self.lines) < 100:
            self.lines.append(line)


@dataclass(frozen=True)
class Outcome:
    """``in_a_row``: the most questions without an answer one after the other. A kubelet restarts a container after
    three, and one may be late on a busy machine. ``slowest`` in seconds; ``descriptors`` and ``memory`` (bytes): how
    far the process grew meanwhile."""

    asked: int
    unanswered: list[str]
    in_a_row: int
    slowest: float
    log_bytes: int
    log: list[str]
    descriptors: int
    memory: int

    def faults(self, most_descriptors: int, most_memory: int = 2**28) -> list[str]:
        """What an honest client, or the owner of the node, would complain of.

        asyncio keeps 256 KiB for each TLS connection, and a port has up to 256 of them: nine seconds of refused
        handshakes take as much memory as three.
        """
        return [
            *(self.unanswered[:3] if self.in_a_row > 1 or 4 * len(self.unanswered) > self.asked else []),
            *([] if self.asked > FEWEST_QUESTIONS else [f"asked {self.asked} times only"]),
            *([] if self.log_bytes <= LOG_BYTES else [f"{self.log_bytes} bytes of log, such as {self.log[:4]}"]),
            *([] if self.descriptors <= most_descriptors else [f"{self.descriptors} descriptors more"]),
            *([] if self.memory <= most_memory else [f"{self.memory / 2**20:.0f} MiB more"]),
        ]


async def play(
    kinds: Sequence[str],
    honest: Callable[[], Awaitable[None]],
    host: str,
    port: int,
    *,
    seconds: float = 3.0,
    path: str = "/",
    is_tls: bool = False,
    patience: float = PROBE_SECONDS,
) -> Outcome:
    """The server runs in this process. ``honest`` asks once, and raises if the answer is wrong."""
    heard, asked, slowest = _Heard(), 0, 0.0
    unanswered: list[str] = []
    row = rows = 0
    words = (host, str(port), str(seconds), path, "tls" if is_tls else "plain", *kinds)
    logging.getLogger().addHandler(heard)
    await honest()  # what is made once is made
    before, most, memory = _descriptors(), 0, _memory()
    try:
        # On a busy machine a few questions take as long as the rude clients live: others follow them.
        while asked <= FEWEST_QUESTIONS and len(unanswered) < FEWEST_QUESTIONS:
            async with _rude(words) as ended:
                while not ended.done():
                    began = time.monotonic()
                    try:
                        async with asyncio.timeout(patience):
                            await honest()
                        row = 0
                    except Exception as error:
                        unanswered.append(f"not answered: {type(error).__name__}: {error}")
                        row += 1
                    asked, rows = asked + 1, max(rows, row)
                    slowest = max(slowest, time.monotonic() - began)
                    most = max(most, _descriptors())
                    await asyncio.sleep(0.1)
    finally:
        logging.getLogger().removeHandler(heard)
    gc.collect()  # what a failed handshake leaves waits for the collector
    return Outcome(asked, unanswered, rows, slowest, heard.bytes, heard.lines, most - before, _memory() - memory)


@asynccontextmanager
async def _rude(words: Sequence[str]) -> AsyncIterator[asyncio.Task[int]]:
    """Start rude clients, which end by themselves: then the task is done. Raises AssertionError if they failed."""
    rude = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", rude_kinds.__file__, *words, stdout=asyncio.subprocess.DEVNULL
    )
    ended = asyncio.create_task(rude.wait())
    try:
        yield ended
        if rude.returncode:
            raise AssertionError(f"the rude clients failed: {rude.returncode}")
    finally:
        if not ended.done():
            rude.kill()
        await ended


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
