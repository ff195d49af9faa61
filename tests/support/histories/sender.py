"""A process as the server meets it: whose writes these are, and until when they may take effect.

The guard is the real ``Leader``'s. How a process ends the sending of writes is as in ``dra_kube.http.sending``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Self, cast
from unittest import mock

from dra_kube import Connection, Election, NotSent, Unreachable
from dra_operator.app import lease as leader
from fake_api import FakeApi
from history_kit.clock import OWNER
from objects import Obj

from .weather import LATE

NAMESPACE = "kube-system"
LEASE = "dra-operator"
SETTLE = 2.0  # seconds that writes in flight have to be answered when a process ends


class Sender:
    """One life of a process that is a candidate for the lease."""

    def __init__(self, name: str, server: FakeApi) -> None:
        self.name = name
        self.leader = _candidate(name, server)
        self._assumed = 0
        self._open_until = -math.inf  # from then on no write without an answer can take effect
        self._answered = asyncio.Event()
        self._ends = False

    @classmethod
    def current(cls) -> Self | None:
        """Whose code runs now; None if it is no candidate's."""
        return cast(Self | None, OWNER.get())

    def may_write(self) -> bool:
        """Whether a write may be sent now."""
        try:
            self.leader.allowance()
        except NotSent:
            return False
        return True

    async def send(self, ask: Callable[[float], Awaitable[Obj]]) -> Obj:
        """The answer to a write; ``ask`` is given the seconds within which it must take effect. Raises NotSent."""
        if self._ends:
            await asyncio.get_running_loop().create_future()
        seconds = self.leader.allowance()
        self._assumed += 1
        try:
            return await ask(seconds)
        except (Unreachable, asyncio.CancelledError):
            self._open_until = asyncio.get_running_loop().time() + LATE
            raise
        finally:
            self._assumed -= 1
            self._answered.set()

    async def settle(self) -> bool:
        """Send no more writes; whether none is left that may still take effect."""
        self._ends = True
        try:
            async with asyncio.timeout(SETTLE):
                while self._assumed:
                    self._answered.clear()
                    await self._answered.wait()
        except TimeoutError:
            return False
        return asyncio.get_running_loop().time() >= self._open_until


def _candidate(name: str, server: FakeApi) -> leader.Leader:
    """The real one, on the server of a history and on its clock."""
    here: dict[str, Any] = {
        "Api": lambda connection, **_: _LeaseApi(connection),
        "Election": partial(Election, clock=asyncio.get_running_loop().time),
        "Seat": lambda _lease: _Seat(name),
    }
    with mock.patch.multiple(leader, **here):
        return leader.Leader(cast(Connection, server), LEASE, NAMESPACE)


class _Seat(leader.Seat):
    """That of a pod of its own, whose name is known."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._name = name

    def identity(self) -> str:
        """The name by which the server knows who writes."""
        return self._name

    def has_ended(self, holder: str) -> bool:
        """The others are other pods."""
        return False


class _LeaseApi:
    def __init__(self, server: FakeApi) -> None:
        self.get, self.create, self.update = server.get, server.create, server.update

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """There is nothing to close."""
