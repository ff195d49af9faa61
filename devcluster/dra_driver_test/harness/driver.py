"""The driver under test as something that can be started, stopped, killed and looked at.

How it is started is the launcher's matter: a command, or not at all when it runs already and only its sockets are
known. A check that has to restart the driver is skipped then. `Place` says where things are on the node that the bench
plays: the kubelet's folders, the CDI folder, the kubeconfig.

`ProcessView` is the process as Linux shows it: its open files, its memory, and its limit of open files. Who listens at
a socket, the kernel says. Elsewhere, and for a process that another user owns, checks are skipped.
"""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import signal
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dra_devcluster.processes import ChildProcess, ProcessFailed

from dra_driver_test.errors import BenchError, Finding, Skipped
from dra_driver_test.harness.waiting import Limits


@dataclass(frozen=True, slots=True)
class Place:
    """The paths of one node. ``kubelet`` stands for ``/var/lib/kubelet``."""

    node: str
    kubelet: Path
    registry: Path
    cdi: Path
    kubeconfig: Path

    @classmethod
    def below(cls, folder: Path, node: str, kubeconfig: Path) -> Place:
        """A node of its own below a folder, whose path has to be short: a socket's path has at most 107 bytes."""
        return cls(node, folder, folder / "plugins_registry", folder / "cdi", kubeconfig)

    @property
    def plugins(self) -> Path:
        """Parent of the folders of drivers."""
        return self.kubelet / "plugins"

    @property
    def folders(self) -> tuple[Path, ...]:
        """Those that a node has before any driver runs."""
        return self.registry, self.plugins, self.cdi

    def create(self) -> None:
        """Make the folders that a node has before any driver runs."""
        for folder in self.folders:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)

    def missing(self) -> list[str]:
        """Those of them that are not there any more."""
        return [str(folder) for folder in self.folders if not folder.is_dir()]

    def empty_run(self) -> None:
        """What a reboot does: ``/run``, and CDI files with it, starts empty. ``/var/lib/kubelet`` is kept."""
        _empty(self.cdi)

    def empty(self) -> None:
        """A node on which no driver ever ran."""
        for folder in self.folders:
            _empty(folder)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_KIB_BYTES = 1024


@dataclass(frozen=True, slots=True)
class ProcessView:
    pid: int

    @property
    def is_ours(self) -> bool:
        """Whether the driver runs inside of the process that checks it."""
        return self.pid == os.getpid()

    def descriptors(self) -> int:
        """How many files and sockets it has open. Raises Skipped."""
        return self._count("fd", "open files")

    def threads(self) -> int:
        """How many threads it has. Raises Skipped."""
        return self._count("task", "threads")

    def _count(self, folder: str, what: str) -> int:
        try:
            return len(os.listdir(f"/proc/{self.pid}/{folder}"))
        except OSError as error:
            raise Skipped(f"the {what} of the driver's process {self.pid} cannot be read: {error}") from error

    def memory(self) -> int:
        """The bytes that it has in memory for itself. Raises Skipped."""
        if self.is_ours:
            raise Skipped("the driver runs in the process that checks it")
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        except OSError as error:
            raise Skipped(f"the memory of the driver's process {self.pid} cannot be read: {error}") from error
        sizes = {line.partition(":")[0]: line.partition(":")[2].split() for line in lines}
        if "RssAnon" not in sizes:
            raise Skipped("the check needs Linux, which tells how much memory a process has for itself")
        return int(sizes["RssAnon"][0]) * _KIB_BYTES

    @contextmanager
    def without_descriptors(self) -> Iterator[None]:
        """Let it open nothing more while the block runs. Raises Skipped."""
        if self.is_ours or not hasattr(resource, "prlimit"):
            raise Skipped("the check needs Linux, and a driver with a process of its own")
        try:
            before = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (1, before[1]))
        except OSError as error:
            raise Skipped(f"the limits of the driver's process {self.pid} cannot be changed: {error}") from error
        try:
            yield
        finally:
            resource.prlimit(self.pid, resource.RLIMIT_NOFILE, before)


def process_behind(path: Path) -> ProcessView:
    """The process that listens at the socket. Raises Skipped, and Finding if none listens."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise Skipped("the check needs Linux, which tells who listens at a socket")
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError as error:
            raise Finding(f"nothing listens at {path}: {error}") from error
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return ProcessView(_CREDENTIALS.unpack(credentials)[0])


MOST_INSTANCES = 2


class Running(Protocol):
    async def stop(self) -> bool:
        """Ask it to end; whether it did so in time. It is ended in any case."""

    async def kill(self) -> None:
        """End it without warning, as SIGKILL does."""

    def why_ended(self) -> str | None:
        """None while it runs; else how it ended."""


class Launcher(Protocol):
    """Starts instances of the driver."""

    @property
    def overlaps(self) -> bool:
        """Whether instances may run side by side, each with a uid of its own."""

    async def start(self, place: Place, uid: str) -> Running:
        """Start an instance. Raises BenchError when that is impossible."""


class Process:
    def __init__(self, child: ChildProcess) -> None:
        self._child = child

    async def stop(self) -> bool:
        """SIGTERM, then SIGKILL."""
        return await self._child.stop() != -signal.SIGKILL

    async def kill(self) -> None:
        await self._child.kill()

    def why_ended(self) -> str | None:
        try:
            self._child.check()
        except ProcessFailed as error:
            return str(error)
        return None


class CommandLauncher:
    """Starts a command line.

    In its words ``{node}``, ``{kubelet}``, ``{registry}``, ``{plugins}``, ``{cdi}``, ``{kubeconfig}`` and ``{uid}`` are
    replaced; NODE_NAME and KUBECONFIG are set. With ``{uid}``, instances may run side by side.
    """

    def __init__(self, command: str | Sequence[str], log: Path, limits: Limits) -> None:
        self._words = shlex.split(command) if isinstance(command, str) else list(command)
        if not self._words:
            raise BenchError("the command is empty: pass the command line that starts the driver")
        self._log = log
        self._limits = limits

    @property
    def overlaps(self) -> bool:
        """Only a command that takes a uid can give each instance sockets of its own."""
        return any("{uid}" in word for word in self._words)

    async def start(self, place: Place, uid: str) -> Running:
        child = ChildProcess(
            "the driver",
            [_filled(word, place, uid) for word in self._words],
            self._log,
            env={"NODE_NAME": place.node, "KUBECONFIG": str(place.kubeconfig)},
            grace=self._limits.stopped,
        )
        try:
            await child.__aenter__()
        except ProcessFailed as error:
            raise BenchError(str(error)) from error
        return Process(child)


def _filled(word: str, place: Place, uid: str) -> str:
    for name in ("node", "kubelet", "registry", "plugins", "cdi", "kubeconfig"):
        word = word.replace(f"{{{name}}}", str(getattr(place, name)))
    return word.replace("{uid}", uid)


class DriverSeat:
    """The instances of the driver that run now."""

    def __init__(self, launcher: Launcher | None, place: Place) -> None:
        self._launcher = launcher
        self._place = place
        self._running: list[Running] = []
        self._pods = 0

    @property
    def can_restart(self) -> bool:
        return self._launcher is not None

    @property
    def runs(self) -> bool:
        """Whether an instance runs; without a launcher that is taken for granted."""
        return self._launcher is None or bool(self._running)

    @property
    def count(self) -> int:
        """How many instances run that the bench started."""
        return len(self._running)

    def needs_restart(self) -> None:
        """Raises Skipped when the bench cannot start the driver."""
        if self._launcher is None:
            raise Skipped("only sockets are given, and the check has to restart the driver: give its command")

    def needs_overlap(self) -> None:
        """Raises Skipped when instances cannot run side by side."""
        self.needs_restart()
        assert self._launcher is not None
        if not self._launcher.overlaps:
            raise Skipped("the command has no {uid}, so that its instances cannot run side by side")

    async def start(self) -> None:
        """Start an instance: again, with the uid that it had, or as another one beside those that run."""
        self.needs_restart()
        assert self._launcher is not None
        assert len(self._running) < MOST_INSTANCES, "an update has an old and a new instance"
        if self._running or not self._pods:
            self._pods += 1
        uid = f"00000000-0000-4000-8000-{os.getpid() % 10**6:06}{self._pods:06}"
        self._running.append(await self._launcher.start(self._place, uid))

    async def stop(self) -> None:
        """Stop the oldest instance. Raises Finding when it does not end in time."""
        self.needs_restart()
        if not await self._running.pop(0).stop():
            raise Finding("the driver did not end within its grace period after SIGTERM")

    async def kill(self) -> None:
        self.needs_restart()
        await self._running.pop(0).kill()

    async def retire(self) -> bool:
        """Stop all instances but the newest, as at the end of an update; whether there were such."""
        retired = self._running[:-1]
        del self._running[:-1]
        for one in retired:
            await one.stop()
        return bool(retired)

    async def end(self) -> None:
        while self._running:
            await self._running.pop(0).kill()

    def why_ended(self) -> str | None:
        """How an instance ended that should run; None if none did."""
        return next((why for one in self._running if (why := one.why_ended())), None)
