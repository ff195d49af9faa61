"""Processes of our programs that start in little time: a server imports the programs once, and forks for each.

A start of the operator takes 1.4 s of a processor until it has imported what it needs, and the tests start hundreds.
What a process does from there on is its own: it has its own pid, signals, environment, folder and streams. The server
is that of ``multiprocessing``; there is one for each process of the tests, from the first use on.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PROGRAMS = {
    "dra-operator": "dra_operator.cli:main",
    "dra-devcluster": "dra_devcluster.cli:main",
    "dra-kubelet-plugin": "dra_kubeletplugin.cli:main",
}
"""Console scripts, and the function that each calls."""
PRELOADED = ["forked", "dra_operator.app.run", "dra_devcluster.up", "dra_kubeletplugin.cli"]

_context = get_context("forkserver")
_context.set_forkserver_preload(PRELOADED)


class ForkedProcess:
    """As far as the tests need it, what ``asyncio.subprocess.Process`` is."""

    def __init__(self, process: Any, stdout: asyncio.StreamReader | None) -> None:
        self._process, self.stdout = process, stdout
        self.pid: int = process.pid
        self._waiting: set[asyncio.Event] = set()

    @property
    def returncode(self) -> int | None:
        """The exit code; minus the signal that ended it; None while it runs."""
        code: int | None = self._process.exitcode
        return code

    def send_signal(self, number: int) -> None:
        """Does nothing when the process has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Does nothing when the process has ended."""
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for the end, as several tasks may at once; returns the exit code."""
        loop = asyncio.get_running_loop()
        while (code := self.returncode) is None:
            ended = asyncio.Event()
            self._waiting.add(ended)
            loop.add_reader(self._process.sentinel, self._wake)  # a file has one reader: it is for all that wait
            try:
                await ended.wait()
            finally:
                self._waiting.discard(ended)
                if not self._waiting:
                    loop.remove_reader(self._process.sentinel)
        return code

    def _wake(self) -> None:
        for ended in self._waiting:
            ended.set()


async def start(
    words: Sequence[str], environment: Mapping[str, str], *, cwd: Path | None = None, log: Path | None = None
) -> ForkedProcess:
    """Start one of ``PROGRAMS``, with ``words[0]`` its name. Both streams go to ``log``, or else to ``stdout``."""
    reader, writer = _context.Pipe(duplex=False)
    if log is not None:
        await asyncio.to_thread(log.touch)  # it can be read at once
    try:
        arguments = (list(words), dict(environment), cwd, log, writer)
        process = _context.Process(target=_become, args=arguments, daemon=False)
        await asyncio.to_thread(process.start)  # the first one waits for the imports
    finally:
        writer.close()
    if log is not None:
        reader.close()
        return ForkedProcess(process, None)
    stream = asyncio.StreamReader()
    pipe = os.fdopen(os.dup(reader.fileno()), "rb")
    reader.close()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
    return ForkedProcess(process, stream)


def _become(words: list[str], environment: dict[str, str], cwd: Path | None, log: Path | None, out: Connection) -> None:
    """Be the program, in the child."""
    target = out.fileno() if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(target, stream)
    if cwd is not None:
        os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = list(words)
    module, _, name = PROGRAMS[words[0]].partition(":")
    try:
        sys.exit(getattr(import_module(module), name)())
    finally:
        atexit._run_exitfuncs()
