"""The driver under test as something that can be started, stopped and killed.

How it is started is the launcher's matter: a command, or not at all when it runs already and only its sockets are
known. A check that has to restart the driver is skipped then.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from dra_devcluster.processes import ChildProcess, ProcessFailed

from dra_driver_test.errors import BenchError, Finding, Skipped

from .limits import Limits
from .place import Place

MOST_INSTANCES = 2


class Running(Protocol):
    """One running instance of the driver."""

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
    """An instance as a process."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child

    async def stop(self) -> bool:
        """SIGTERM, then SIGKILL."""
        return await self._child.stop() != -signal.SIGKILL

    async def kill(self) -> None:
        """SIGKILL."""
        await self._child.kill()

    def why_ended(self) -> str | None:
        """Exit code and end of the log."""
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
        """Start the process."""
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
    values: Mapping[str, object] = {
        "node": place.node,
        "kubelet": place.kubelet,
        "registry": place.registry,
        "plugins": place.plugins,
        "cdi": place.cdi,
        "kubeconfig": place.kubeconfig,
        "uid": uid,
    }
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", str(value))
    return word


class DriverSeat:
    """The instances of the driver that run now."""

    def __init__(self, launcher: Launcher | None, place: Place) -> None:
        self._launcher = launcher
        self._place = place
        self._running: list[Running] = []
        self._pods = 0

    @property
    def can_restart(self) -> bool:
        """Whether the bench starts the driver."""
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
        """Kill the oldest instance."""
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
        """Kill what runs."""
        while self._running:
            await self._running.pop(0).kill()

    def why_ended(self) -> str | None:
        """How an instance ended that should run; None if none did."""
        return next((why for one in self._running if (why := one.why_ended())), None)
