"""The container runtime of the development cluster: a container is a process of this machine.

Each container is a process group of its own. When its first process ends, the rest of the group is killed, as
with a container's process 1. What is known of a container is kept in ``state.json`` below the node's root, so
that a node agent that starts again knows how the containers of its pods have ended. Processes never outlive the
runtime: they are ended when it closes, get SIGKILL from the kernel when this process dies (where ``setpriv``
exists), and leftovers of a crash are killed at the next start.

The runtime may live longer than a node agent: give the same one to the next agent, and it finds the containers
running, as a kubelet does after its restart.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from .errors import ContainerError
from .logs import LogFile, StreamToLog

_SETPRIV = shutil.which("setpriv")
_DRAIN_SECONDS = 1.0


class ContainerRecord(msgspec.Struct, frozen=True):
    """One run of a container; ``exit_code`` None while it runs. Times are RFC 3339, ``attempt`` counts from 0."""

    id: str
    attempt: int
    pid: int
    ticks: int
    started_at: str
    finished_at: str | None = None
    exit_code: int | None = None


class ContainerState(msgspec.Struct, frozen=True):
    """The latest run of a container and the one before."""

    current: ContainerRecord
    previous: ContainerRecord | None = None


class _Running:
    """A container that runs now: its process, and what ``exec`` needs to join it."""

    def __init__(self, process: asyncio.subprocess.Process, environment: Mapping[str, str], folder: Path) -> None:
        self.process = process
        self.environment = environment
        self.folder = folder
        self.over = asyncio.Event()
        self.joined: set[int] = set()
        self.task: asyncio.Task[None] | None = None


Key = tuple[str, str]


class LocalRuntime:
    """The containers of one node by pod UID and container name; an async context manager."""

    def __init__(self, root: Path, *, shutdown_grace: float = 2.0) -> None:
        self._root = root / "pods"
        self._shutdown_grace = shutdown_grace
        self._running: dict[Key, _Running] = {}
        self._states: dict[Key, ContainerState] = {}
        self._sandboxes: set[str] = set()

    async def __aenter__(self) -> Self:
        for file in self._root.glob("*/*/state.json"):
            key = (file.parent.parent.name, file.parent.name)
            with suppress(msgspec.DecodeError, OSError):
                self._states[key] = msgspec.json.decode(file.read_bytes(), type=ContainerState)
                self._end_leftover(key)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(self.stop(*key, self._shutdown_grace) for key in list(self._running)))

    # --- pods ---

    def open_sandbox(self, pod_uid: str) -> None:
        """The pod is about to get containers."""
        self._sandboxes.add(pod_uid)

    def has_sandbox(self, pod_uid: str) -> bool:
        """Whether this runtime was already asked to run containers of the pod."""
        return pod_uid in self._sandboxes

    def close_sandbox(self, pod_uid: str) -> None:
        """The pod will get no more containers; logs and states stay."""
        self._sandboxes.discard(pod_uid)

    def pods(self) -> set[str]:
        """UIDs of the pods of which anything is kept."""
        return {path.name for path in self._root.glob("*")}

    async def remove_pod(self, pod_uid: str) -> None:
        """Forget the pod and its logs; what still runs of it is killed."""
        await asyncio.gather(*(self.stop(*key, 0.0) for key in list(self._running) if key[0] == pod_uid))
        self.close_sandbox(pod_uid)
        for key in [key for key in self._states if key[0] == pod_uid]:
            del self._states[key]
        shutil.rmtree(self._root / pod_uid, ignore_errors=True)

    # --- containers ---

    def state(self, pod_uid: str, name: str) -> ContainerState | None:
        """What is known of the container; None if it never ran."""
        return self._states.get((pod_uid, name))

    def folder(self, pod_uid: str, name: str) -> Path:
        """Where the container's files are kept."""
        return self._root / pod_uid / name

    def log_path(self, pod_uid: str, name: str, attempt: int) -> Path:
        """The log of one run."""
        return self.folder(pod_uid, name) / f"{attempt}.log"

    async def start(
        self, pod_uid: str, name: str, argv: Sequence[str], environment: Mapping[str, str], cwd: str
    ) -> ContainerState:
        """Start the container (again). Raises ContainerError(RunContainerError)."""
        key = (pod_uid, name)
        last = self._states[key].current if key in self._states else None
        attempt = last.attempt + 1 if last else 0
        folder = Path(cwd) if cwd else self.folder(pod_uid, name) / "work"
        if not cwd:
            folder.mkdir(parents=True, exist_ok=True)
        log = LogFile(self.log_path(pod_uid, name, attempt))
        try:
            process, streams = await _spawn(argv, environment, folder, log)
        except ContainerError:
            log.close()
            raise
        record = ContainerRecord(uuid.uuid4().hex, attempt, process.pid, _ticks(process.pid), _now())
        running = self._running[key] = _Running(process, environment, folder)
        self._keep(key, ContainerState(record, last))
        running.task = asyncio.create_task(self._attend(key, running, streams, log), name=f"container {name}")
        self.log_path(pod_uid, name, attempt - 2).unlink(missing_ok=True)
        return self._states[key]

    async def wait(self, pod_uid: str, name: str) -> ContainerRecord:
        """The record of the latest run, once it has ended."""
        running = self._running.get((pod_uid, name))
        if running is not None:
            await running.over.wait()
        return self._states[(pod_uid, name)].current

    async def stop(self, pod_uid: str, name: str, grace: float) -> None:
        """SIGTERM to the process group, SIGKILL after ``grace`` seconds; returns when it has ended."""
        running = self._running.get((pod_uid, name))
        if running is None:
            return
        if grace > 0:
            _signal(running.process.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(running.over.wait(), grace)
        _signal(running.process.pid, signal.SIGKILL)
        await running.over.wait()

    def is_running(self, pod_uid: str, name: str) -> bool:
        """Whether the container runs now."""
        return (pod_uid, name) in self._running

    async def execute(self, pod_uid: str, name: str, argv: Sequence[str], *, stdin: bool) -> asyncio.subprocess.Process:
        """Run a program beside the container, in its environment. Raises ContainerError when it is not running."""
        running = self._running.get((pod_uid, name))
        if running is None:
            raise ContainerError("NotRunning", f"container {name} is not running")
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *_command(argv, running.environment),
                stdin=pipe if stdin else asyncio.subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                env=dict(running.environment),
                cwd=running.folder,
                start_new_session=True,
            )
        except OSError as error:
            raise ContainerError("RunContainerError", str(error)) from error
        running.joined.add(process.pid)
        return process

    def finish_exec(self, pod_uid: str, name: str, process: asyncio.subprocess.Process) -> None:
        """An exec session is over: nothing of it stays."""
        _signal(process.pid, signal.SIGKILL)
        running = self._running.get((pod_uid, name))
        if running is not None:
            running.joined.discard(process.pid)

    # --- inside ---

    async def _attend(self, key: Key, running: _Running, streams: list[StreamToLog], log: LogFile) -> None:
        code = await running.process.wait()
        for pid in (running.process.pid, *running.joined):
            _signal(pid, signal.SIGKILL)
        await asyncio.wait([stream.closed for stream in streams], timeout=_DRAIN_SECONDS)
        for stream in streams:
            stream.stop()
        log.close()
        state = self._states[key]
        finished = msgspec.structs.replace(state.current, finished_at=_now(), exit_code=_exit_code(code))
        del self._running[key]
        self._keep(key, ContainerState(finished, state.previous))
        running.over.set()

    def _keep(self, key: Key, state: ContainerState) -> None:
        self._states[key] = state
        file = self.folder(*key) / "state.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(state))
        os.replace(temporary, file)

    def _end_leftover(self, key: Key) -> None:
        state = self._states[key]
        record = state.current
        if record.exit_code is not None:
            return
        if record.ticks and _ticks(record.pid) == record.ticks:
            _signal(record.pid, signal.SIGKILL)
        ended = msgspec.structs.replace(record, finished_at=_now(), exit_code=128 + signal.SIGKILL)
        self._keep(key, ContainerState(ended, state.previous))


async def _spawn(
    argv: Sequence[str], environment: Mapping[str, str], folder: Path, log: LogFile
) -> tuple[asyncio.subprocess.Process, list[StreamToLog]]:
    """Start the process with both streams connected to the log.

    The pipes are made here, not by asyncio: its ``wait`` would not return while a grandchild holds one open.
    """
    command = _command(argv, environment)
    pipes = {name: os.pipe() for name in ("stdout", "stderr")}
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipes["stdout"][1],
            stderr=pipes["stderr"][1],
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        for reading, _ in pipes.values():
            os.close(reading)
        raise ContainerError("RunContainerError", f"starting {argv[0]!r} failed: {error}") from error
    finally:
        for _, writing in pipes.values():
            os.close(writing)
    streams = []
    for name, (reading, _) in pipes.items():
        stream = StreamToLog(log, name)
        pipe = os.fdopen(reading, "rb", buffering=0)
        await asyncio.get_running_loop().connect_read_pipe(partial(_same, stream), pipe)
        streams.append(stream)
    return process, streams


def _same(stream: StreamToLog) -> StreamToLog:
    return stream


def _command(argv: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    program = shutil.which(argv[0], path=environment.get("PATH", os.defpath))
    if program is None:
        raise ContainerError("RunContainerError", f'exec: "{argv[0]}": executable file not found in $PATH')
    guard = [_SETPRIV, "--pdeathsig", "KILL", "--"] if _SETPRIV else []
    return [*guard, program, *argv[1:]]


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _exit_code(code: int) -> int:
    return 128 - code if code < 0 else code


def _ticks(pid: int) -> int:
    """When the process started, in the kernel's ticks: tells it from a later process with the same number."""
    try:
        stat: Any = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
