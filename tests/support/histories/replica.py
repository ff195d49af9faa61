"""A replica of the operator: its process is started again whenever it ends.

Without leader election a process works as soon as it is started. As a candidate it does what ``app.supervisor`` does:
it stands by, lists everything when it leads, ends when the lease is lost, and gives the lease up when it ends cleanly.
Paused, it does nothing, and what reaches it waits; its requests are on their way all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from datetime import datetime
from typing import Any

from dra_kube import KubeError
from history_kit.clock import OWNER, VirtualLoop

from .incarnation import Incarnation, kinds_of
from .sender import Sender
from .server import Server
from .watches import Watches
from .weather import LATE, Weather

LEASE_OVER = LATE + 1
"""Seconds after which a process without leader election follows one that was killed: no write of that one is left."""
RESTART = 1.5  # seconds after which a candidate's process is started again


class Replica:
    """``start``; then ``kill``, ``stop`` or ``pause``. ``name`` is that of its lives together."""

    def __init__(
        self,
        name: str,
        server: Server,
        weather: Weather,
        now: Callable[[], datetime],
        tell: Callable[[str], None],
        *,
        elects: bool,
        preempts: bool,
        traits: frozenset[str],
    ) -> None:
        self._name, self._server, self._now, self._tell = name, server, now, tell
        self._elects, self._preempts, self._lives = elects, preempts, 0
        self._is_gone = self._is_stopping = False
        self._sender: Sender | None = None
        self._context: Context = copy_context()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: list[asyncio.Task[None]] = []  # of earlier lives, which end their renewals
        self._kinds = kinds_of(traits)
        self.watches = Watches(weather, server, self._kinds)
        self.started_over = False
        """Whether a process took the server for one that went back in time."""
        self.operator: Incarnation | None = None
        """Set while the process leads."""

    def start(self, seconds: float = 0.0) -> None:
        """After so many seconds."""
        self._lives += 1
        self._is_stopping = False
        self._context = copy_context()
        self._sender = Sender(f"{self._name}-{self._lives}", self._server) if self._elects else None
        self._context.run(OWNER.set, self._sender)
        self._begin(self._live(seconds))

    async def _live(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self._sender is not None:
            try:
                await self._sender.leader.acquire()
            except KubeError as error:
                self._tell(f"{self._sender.name} ends: {error}")
                self.kill(RESTART)
                return
        await self._lead()

    async def _lead(self) -> None:
        sender = self._sender
        checks = sender.may_write if sender is not None else lambda: True
        operator = self.operator = Incarnation(
            self._server,
            self._now,
            self._start_over,
            checks=checks,
            sees_others=self.watches.sees_others,
            preempts=self._preempts,
            kinds=self._kinds,
        )
        await operator.start()
        if operator is not self.operator or not operator.is_working:
            return
        self._tell(f"the operator works ({self._name})")
        self.watches.begin(operator)
        if sender is not None:
            await sender.leader.lost()
            self._tell(f"{sender.name} ends: {sender.leader.loss}")
            self.kill(RESTART)

    def _start_over(self) -> None:
        """The server went back in time: the same process lists everything again, with the lease that it has."""
        if self._is_stopping:
            return
        self.started_over = True
        self._tell("the operator starts over")
        self._halt()
        self._begin(self._lead())

    def kill(self, restart_after: float) -> None:
        """The process is gone, and another one starts after so many seconds."""
        self._loop.wake(self._sender)
        self._halt()
        if self._sender is not None:
            self._closing.append(asyncio.create_task(self._sender.leader.close(), context=self._context))
        if not self._is_gone:
            self.start(restart_after)

    def stop(self, *, for_good: bool = False) -> None:
        """The process ends as after a signal; another one follows unless it is ``for_good``."""
        self._is_gone |= for_good
        self._is_stopping = True
        self._begin(self._stop())

    async def _stop(self) -> None:
        sender = self._sender
        if sender is not None and sender.leader.leads and await sender.settle():
            self._halt()
            await sender.leader.release()
        self.kill(RESTART)

    def pause(self, seconds: float) -> None:
        """The process is stopped for so long, unless it is killed first."""
        if self._sender is not None:
            self._tell(f"{self._sender.name} is paused for {seconds:g} s")
            self._loop.pause(self._sender)
            self._loop.call_later(seconds, self._loop.wake, self._sender)

    def _halt(self) -> None:
        while self._tasks:
            if (task := self._tasks.pop()) is not asyncio.current_task():
                task.cancel()
        if self.operator is not None:
            self.operator.kill()
        self.operator = None
        self.watches.end()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work, context=self._context))

    @property
    def _loop(self) -> VirtualLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return loop
