"""Many processes of one of our programs that start in little time: see ``forks``, which runs them.

A plugin takes 0.4 s of a processor until it has imported what it needs, and a cluster of 60 nodes has 60 of them.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .processes import ended

_GRACE_SECONDS = 10.0


class ForkedProcess:
    """One process; it writes to ``log``."""

    def __init__(self, server: ForkServer, number: int, name: str, log: Path) -> None:
        self.name, self.log = name, log
        self._server, self._number = server, number
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, for whatever reason."""
        return self._code.done()

    def check(self) -> None:
        """Raises ProcessFailed when the process has ended already."""
        if self._code.done():
            raise ended(self.name, self._code.result(), self.log if self.log.exists() else self._server.log)

    def has_got(self, code: int) -> None:
        """The process has ended so."""
        if not self._code.done():
            self._code.set_result(code)

    async def stop(self) -> int:
        """End the process (SIGTERM, then SIGKILL), and return its exit code; harmless when it has ended."""
        if not self._code.done():
            self._server.tell(id=self._number, signal=signal.SIGTERM)
            await asyncio.wait([self._code], timeout=_GRACE_SECONDS)
        if not self._code.done():
            self._server.tell(id=self._number, signal=signal.SIGKILL)
        return await self._code


class ForkServer:
    """Starts processes of ``program``, one of our console scripts; an async context manager.

    ``log`` has what the server itself says. Processes that live at the end are ended.
    """

    def __init__(self, program: str, log: Path) -> None:
        self.program, self.log = program, log
        self._process: asyncio.subprocess.Process | None = None
        self._processes: dict[int, ForkedProcess] = {}
        self._listening: asyncio.Task[None] | None = None
        self._ended_with: int | None = None

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        with self.log.open("ab") as log:
            words = [sys.executable, "-m", "dra_devcluster.forks", self.program]
            self._process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=log)
        self._listening = asyncio.create_task(self._listen(self._process))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stdin.close()
        if self._listening is not None:
            await self._listening

    def start(self, name: str, arguments: list[str], log: Path) -> ForkedProcess:
        """Begin a process. If it cannot be started, it has ended."""
        number = len(self._processes)
        forked = self._processes[number] = ForkedProcess(self, number, name, log)
        if self._ended_with is None:
            self.tell(id=number, arguments=arguments, log=str(log))
        else:
            forked.has_got(self._ended_with)
        return forked

    def tell(self, **order: Any) -> None:
        """Give an order."""
        self._stdin.write(json.dumps(order).encode() + b"\n")

    @property
    def _stdin(self) -> asyncio.StreamWriter:
        stdin = self._process.stdin if self._process is not None else None
        assert stdin is not None, "enter the context first"
        return stdin

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            report = json.loads(line)
            self._processes[report["id"]].has_got(report["code"])
        self._ended_with = code = await process.wait()
        for forked in self._processes.values():
            forked.has_got(code)  # it never began, or how it ended cannot be known
