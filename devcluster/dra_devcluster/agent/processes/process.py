"""The processes of a container, their terminals, and the namespaces in which they start.

A container has a first process that leads a group of its own, and the processes that ``exec`` adds. When the first
process ends, the rest of the group is killed, as with process 1 of a container. Where ``setpriv`` exists, the kernel
kills the first process should this one die. Starting is one plain call, so that a cancelled task cannot lose a process.

When a client types, a program gets a pseudo-terminal, or a pipe as its standard input.

Mounts and a network of its own come from namespaces (``sandbox_entry``). They need no rights, but the machine may
forbid them: some distributions and most containers allow namespaces to root only. ``why_impossible`` finds out.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

from dra_devcluster.agent.errors import ContainerError
from dra_devcluster.agent.processes import sandbox_entry
from dra_devcluster.agent.processes.logs import LogFile, LogFollowers, StreamToLog

_PROBE_SECONDS = 10.0


class Mount(NamedTuple):
    """A folder or file of this machine, and where a container sees it."""

    source: Path
    target: str
    read_only: bool = False


def enter(
    cwd: Path,
    argv: Sequence[str],
    *,
    root: Path | None = None,
    mounts: Sequence[Mount] = (),
    network: int | None = None,
    terminal: bool = False,
) -> list[str]:
    """The command line that runs a program with these mounts, and in the network that the process ``network`` has.

    ``root`` is an empty folder for the mounts of this program alone. With ``terminal``, its standard input is one.
    """
    plan: dict[str, object] = {"cwd": str(cwd), "terminal": terminal}
    if mounts:
        plan |= {"root": str(root), "mounts": [(str(one.source), one.target, one.read_only) for one in mounts]}
    if network is not None:
        plan["network"] = network
    return _command(plan, argv)


def join(pid: int, cwd: Path, argv: Sequence[str], *, terminal: bool = False) -> list[str]:
    """The command line that runs a program beside one that was started by ``enter``."""
    return _command({"join": pid, "cwd": str(cwd), "terminal": terminal}, argv)


def own_network(control: int) -> list[str]:
    """The command line of a process that keeps a new network, and gives away sockets of it through a unix socket."""
    return _command({"own_network": control, "cwd": "/"}, ())


@cache
def why_impossible() -> str:
    """Why this machine lets no process have mounts of its own; empty if it does. Takes a moment when asked first."""
    with tempfile.TemporaryDirectory() as folder:
        root, source = Path(folder) / "root", Path(folder) / "source"
        root.mkdir()
        source.mkdir()
        command = enter(Path("/"), ["true"], root=root, mounts=[Mount(source, "/devcluster/probe", read_only=True)])
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return "" if done.returncode == 0 else done.stderr.strip().rpartition("\n")[2]


def _command(plan: dict[str, object], argv: Sequence[str]) -> list[str]:
    # -I and -S: nothing of the environment or the installed packages can disturb the start, or slow it down.
    return [sys.executable, "-I", "-S", str(sandbox_entry.__file__), json.dumps(plan), *argv]


_MOST_CELLS = 0xFFFF


class Console(NamedTuple):
    """What a container wants: an open ``stdin``, with ``once`` for one client only, and with ``tty`` a terminal."""

    stdin: bool = False
    once: bool = False
    tty: bool = False


NO_CONSOLE = Console()


class Terminal:
    """A pseudo-terminal. Give ``theirs`` to a program as its three standard streams, then call ``handed_over``.

    Making one raises OSError when the machine has no more of them.
    """

    def __init__(self) -> None:
        self._ours, self.theirs = os.openpty()

    def handed_over(self) -> None:
        """The program has its end; the terminal ends with the last program that does."""
        os.close(self.theirs)
        self.theirs = -1

    def output(self) -> IO[bytes]:
        """What programs print; the caller closes it. It ends with an OSError."""
        return os.fdopen(os.dup(self._ours), "rb", buffering=0)

    def input(self) -> Input:
        return Input(os.fdopen(os.dup(self._ours), "wb", buffering=0))

    def resize(self, width: int, height: int) -> None:
        """Programs that asked for it get a signal."""
        size = struct.pack("HHHH", min(height, _MOST_CELLS), min(width, _MOST_CELLS), 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)

    def close(self) -> None:
        """Programs that still have their end get SIGHUP."""
        if self.theirs >= 0:
            self.handed_over()
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1


class Input:
    """Writes to a pipe or terminal without blocking, one piece after the other; owns the file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._turn = asyncio.Lock()
        self._ready = asyncio.Event()
        os.set_blocking(file.fileno(), False)

    async def write(self, content: bytes) -> None:
        """Returns when the program can read it all. Raises OSError when none reads any more. Closed, does nothing."""
        async with self._turn:
            while content and not self._file.closed:
                try:
                    content = content[os.write(self._file.fileno(), content) :]
                except BlockingIOError:
                    await self._writable()

    def close(self) -> None:
        """The program reads the end of its input; on a terminal there is no such thing."""
        self._file.close()
        self._ready.set()

    async def _writable(self) -> None:
        loop, descriptor = asyncio.get_running_loop(), self._file.fileno()
        self._ready.clear()
        loop.add_writer(descriptor, self._ready.set)
        try:
            await self._ready.wait()
        finally:
            loop.remove_writer(descriptor)


_SETPRIV = shutil.which("setpriv")
_LOG_DRAIN_SECONDS = 1.0
_EXIT_POLL_SECONDS = 0.05


class ContainerProcess:
    """Starts the process; its output goes to the log. Raises ContainerError(RunContainerError).

    With ``mounts`` it gets a view of the machine's files of its own; ``root`` is an empty folder for that. ``network``
    is a process in whose network it runs. ``followers`` see its output; ``input`` and ``terminal`` are there if
    ``console`` asks for them.
    """

    def __init__(  # noqa: PLR0913  # each is named by the caller, and has a default
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        log: LogFile,
        *,
        mounts: Sequence[Mount] = (),
        root: Path | None = None,
        network: int | None = None,
        console: Console = NO_CONSOLE,
    ) -> None:
        self.over = asyncio.Event()
        self.console = console
        self.followers = LogFollowers()
        self.terminal: Terminal | None = None
        self.input: Input | None = None
        self._environment = dict(environment)
        self._folder = folder
        self._log = log
        self._joined: set[int] = set()
        self._is_apart = bool(mounts) or network is not None
        if self._is_apart or console.tty:
            argv = enter(folder, argv, root=root, mounts=mounts, network=network, terminal=console.tty)
        command = command_line(argv, environment)
        try:
            self._process = self._start(command, Path("/") if self._is_apart else folder)
        except (OSError, ValueError) as error:
            self._close_input()
            raise ContainerError("RunContainerError", f"starting {argv[0]!r} failed: {error}") from error
        self.pid = self._process.pid

    def _start(self, command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
        wants_input = self.console.stdin
        self.terminal = tty = Terminal() if self.console.tty else None
        process = subprocess.Popen(
            command, **self._streams(wants_input, tty), cwd=folder, start_new_session=True, bufsize=0
        )
        if tty:
            tty.handed_over()
        if wants_input:
            self.input = tty.input() if tty else Input(process.stdin) if process.stdin else None
        return process

    def _streams(self, stdin: bool, terminal: Terminal | None) -> dict[str, Any]:
        """The standard streams of a program, and its variables: in a terminal they say of which kind it is."""
        if terminal:
            ends = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
            return {**ends, "env": {"TERM": "xterm", **self._environment}}
        pipe = subprocess.PIPE
        return {
            "stdin": pipe if stdin else subprocess.DEVNULL,
            "stdout": pipe,
            "stderr": pipe,
            "env": self._environment,
        }

    async def log_until_end(self) -> int:
        """Read the output until the process ends; returns its exit code when nothing of the group is left."""
        terminal, process = self.terminal, self._process
        outputs = (
            [("stdout", terminal.output())] if terminal else [("stdout", process.stdout), ("stderr", process.stderr)]
        )
        streams = [await self._connect(name, pipe) for name, pipe in outputs if pipe is not None]
        code = await _wait(self._process)
        for group in (self.pid, *self._joined):
            signal_group(group, signal.SIGKILL)
        await asyncio.wait([stream.closed for stream in streams], timeout=_LOG_DRAIN_SECONDS)
        for stream in streams:
            stream.stop()
        self._close_input()
        self.followers.end()
        self._log.close()
        return exit_code(code)

    def _close_input(self) -> None:
        if self.input:
            self.input.close()
        if self.terminal:
            self.terminal.close()

    async def _connect(self, name: str, pipe: IO[bytes]) -> StreamToLog:
        stream = StreamToLog(self._log, name, self.followers)
        await asyncio.get_running_loop().connect_read_pipe(lambda: stream, pipe)
        return stream

    async def stop(self, grace: float) -> None:
        """SIGTERM to the group, SIGKILL after ``grace`` seconds; returns when ``over`` is set."""
        if grace > 0:
            signal_group(self.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self.over.wait()
        signal_group(self.pid, signal.SIGKILL)
        await self.over.wait()

    async def execute(
        self, argv: Sequence[str], *, stdin: bool = False, terminal: Terminal | None = None
    ) -> asyncio.subprocess.Process:
        """Start another program in the container's environment, in a terminal if there is one.

        Raises ContainerError(RunContainerError).
        """
        command = argv
        if self._is_apart:
            command = join(self.pid, self._folder, argv, terminal=terminal is not None)
        elif terminal:
            command = enter(self._folder, argv, terminal=True)
        try:
            process = await asyncio.create_subprocess_exec(
                *command_line(command, self._environment),
                **self._streams(stdin, terminal),
                cwd=Path("/") if self._is_apart else self._folder,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ContainerError("RunContainerError", f"starting {argv[0]!r} failed: {error}") from error
        if terminal:
            terminal.handed_over()
        self._joined.add(process.pid)
        return process

    def leave(self, process: asyncio.subprocess.Process) -> None:
        """End a program that ``execute`` started, with all its processes."""
        signal_group(process.pid, signal.SIGKILL)
        self._joined.discard(process.pid)


async def _wait(process: subprocess.Popen[bytes]) -> int:
    """The return code. Waits on a pidfd where the kernel has them, and polls elsewhere."""
    if not hasattr(os, "pidfd_open"):
        while process.poll() is None:  # noqa: ASYNC110  (no event to wait for)
            await asyncio.sleep(_EXIT_POLL_SECONDS)
        return process.wait()
    ended = asyncio.Event()
    descriptor = os.pidfd_open(process.pid)
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return process.wait()


def command_line(argv: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The program by its full path, guarded against outliving us. Raises ContainerError(RunContainerError)."""
    program = shutil.which(argv[0], path=environment.get("PATH", os.defpath))
    if program is None:
        raise ContainerError("RunContainerError", f'exec: "{argv[0]}": executable file not found in $PATH')
    guard = [_SETPRIV, "--pdeathsig", "KILL", "--"] if _SETPRIV else []
    return [*guard, program, *argv[1:]]


def signal_group(group: int, number: int) -> None:
    """Signal all processes of a group; a group that is gone is fine."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def exit_code(code: int) -> int:
    """A return code as container runtimes report it: 128 and the number for a signal."""
    return 128 - code if code < 0 else code


def start_ticks(pid: int) -> int:
    """When a process started, in the kernel's ticks: distinguishes it from a later one with its number. 0: unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])
