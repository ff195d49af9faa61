"""Our own programs as child processes: the operator and the plugins that a development cluster starts.

They are started by name, never imported: the development cluster is their environment and must not know them.

A plugin takes 0.4 s of a processor for its imports, and a cluster of 60 nodes has 60 plugins. So a `ForkServer` starts
``python -m dra_devcluster.processes dra-kubelet-plugin``. That imports the program once and forks for each process. The
two talk in lines of JSON::

    stdin   {"id": 1, "arguments": ["simulated", "--config", "..."], "log": "/path"}     begin a process
            {"id": 1, "signal": 15}                                                      send it a signal
    stdout  {"id": 1, "code": 0}                                                         it has ended

When stdin ends, it ends all living processes. The program is found by its name, as a shell finds it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import selectors
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn, Self

from dra_api.console import not_installed

_MOMENT_SECONDS = 0.01
"""Seconds: as long as any process waits for a processor at times."""


class ProcessFailed(Exception):
    """A child process could not be started or ended on its own; the message holds the end of its log."""


def ended(name: str, code: int, log: Path) -> ProcessFailed:
    """That a process has ended, with the end of its log."""
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
    return ProcessFailed(f"{name} ended with exit code {code}:\n{tail}")


def command(program: str, *arguments: str) -> list[str]:
    """The command line of one of our console scripts, from the same environment as this interpreter."""
    script = Path(sys.executable).parent / program
    return [str(script) if script.exists() else program, *arguments]


class ChildProcess:
    """A process that writes to ``log`` and ends with the context: SIGTERM, then SIGKILL after ``grace`` seconds."""

    def __init__(
        self, name: str, arguments: list[str], log: Path, *, env: dict[str, str] | None = None, grace: float = 10.0
    ) -> None:
        self.name, self.arguments, self.log, self.grace = name, arguments, log, grace
        self._env = {**os.environ, **(env or {})}
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        with self.log.open("ab") as output:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self.arguments, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, env=self._env
                )
            except OSError as error:
                raise ProcessFailed(f"cannot start {self.name} ({self.arguments[0]}): {error}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def _entered(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "enter the context first"
        return self._process

    @property
    def pid(self) -> int:
        return self._entered.pid

    def check(self) -> None:
        """Raises ProcessFailed when the process has ended already."""
        if self._process is not None and self._process.returncode is not None:
            raise ended(self.name, self._process.returncode, self.log)

    async def kill(self) -> None:
        """End the process without warning; harmless when it has ended."""
        if self._entered.returncode is None:
            self._entered.kill()
        await self._entered.wait()

    async def stop(self) -> int:
        """End the process and return its exit code; harmless when it has ended."""
        process = self._entered
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            if not await self._ends(process):
                process.kill()
        return await process.wait()

    async def _ends(self, process: asyncio.subprocess.Process) -> bool:
        """Whether it ends in its grace period. What it had to wait for a processor of a busy machine comes on top."""
        left, before = self.grace, seconds_on_queue(process.pid)
        while left > _MOMENT_SECONDS:
            try:
                async with asyncio.timeout(left):
                    await process.wait()
            except TimeoutError:
                now = seconds_on_queue(process.pid)
                left = max((seconds - before.get(thread, 0.0) for thread, seconds in now.items()), default=0.0)
                before = now
            else:
                return True
        return False


def seconds_on_queue(pid: int) -> dict[str, float]:
    """How long each thread of a process has waited for a processor so far; empty where the system does not say."""
    found: dict[str, float] = {}
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # it ended
        return found
    for thread in threads:
        with suppress(OSError, ValueError):  # the thread ended
            _, waited, _ = map(int, Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split())
            found[thread] = waited / 1e9
    return found


_FORKED_GRACE_SECONDS = 10.0


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
            await asyncio.wait([self._code], timeout=_FORKED_GRACE_SECONDS)
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
            words = [sys.executable, "-m", "dra_devcluster.processes", self.program]
            self._process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=log)
        self._listening = asyncio.create_task(self._listen(self._process))
        return self

    async def __aexit__(self, *_: object) -> None:
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


Json = dict[str, Any]


def main(program: str) -> None:
    """Serve until stdin ends."""
    found = entry_points(group="console_scripts", name=program)
    if not found:
        sys.exit(not_installed(f"{program}, beside {sys.executable},", "devcluster"))
    run: Callable[[], int] = next(iter(found)).load()
    gc.freeze()  # what the children share is not touched by their collections
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    children: dict[int, int] = {}
    for order in _orders(children):
        if "signal" in order:
            for pid in [pid for pid, number in children.items() if number == order["id"]]:
                os.kill(pid, order["signal"])  # it has not been waited for, so the number is still its own
        elif pid := os.fork():
            children[pid] = order["id"]
        else:
            _become(program, run, order)
    for pid in children:
        os.kill(pid, signal.SIGTERM)


def _orders(children: dict[int, int]) -> Iterator[Json]:
    """What is read from stdin, until it ends; children that end meanwhile are reported."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    text = b""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if woken in ready:
                os.read(woken, 4096)
                _report(children)
            if 0 in ready:
                piece = os.read(0, 65536)
                if not piece:
                    return
                *lines, text = (text + piece).split(b"\n")
                yield from map(json.loads, lines)


def _report(children: dict[int, int]) -> None:
    """All that have ended."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(ended[1])
            os.write(1, json.dumps({"id": children.pop(ended[0]), "code": code}).encode() + b"\n")


def _become(program: str, run: Callable[[], int], order: Json) -> NoReturn:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for old, new in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(old, new)
    sys.argv = [program, *order["arguments"]]
    sys.exit(run())


if __name__ == "__main__":
    main(sys.argv[1])
