"""The way of a request to a fake API server and back: it takes its time, and suffers what the weather has for it.

A request that was sent reaches the server whatever becomes of its sender, which may have been killed meanwhile. While
the server ``is_away`` all fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar, TypeVarTuple

from dra_kube import ApiError, Conflict, Forbidden, ServerError, TooManyRequests, Unreachable

from .game import Fate

TIMEOUT = 2.0
"""Seconds after which a client gives up."""
LATE = 9.0
"""Seconds after which a write has no effect any more: the server drops it before the lease of its sender is over."""
REFUSALS: tuple[Callable[[], ApiError], ...] = (
    lambda: Conflict(409, "Conflict", "the object has been modified"),
    lambda: ServerError(500, "InternalError", "etcd is on fire"),
    lambda: ServerError(503, "ServiceUnavailable", "starting"),
    lambda: TooManyRequests(429, "TooManyRequests", "busy", retry_after=1.0),
    lambda: Forbidden(403, "Forbidden", "not allowed"),
)
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Network:
    """A part of a server; the strikes of a fate are ``lost``, ``refused``, ``late`` and ``unanswered``."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.busy = 0
        """Requests that have not reached the server yet, or whose answer is on its way."""
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # of no process

    async def ask(
        self,
        fate: Fate,
        effect: Callable[[], T],
        arrived: Callable[[T | Exception], None],
        answered: Callable[[], None] = lambda: None,
    ) -> T:
        """Return the answer of ``effect``, or raise its error. ``arrived`` is told what came of it at the server.

        ``answered`` is called when the client's task had its turn with the answer.
        """
        answer: asyncio.Future[T] = self._loop.create_future()
        self.busy += 1
        before = fate.before
        if fate.strike == "late":
            self._later(TIMEOUT, _settle, answer, Unreachable("timed out"))
            before = TIMEOUT + fate.before * (LATE - TIMEOUT) / 4

        def arrive() -> None:
            outcome = self._outcome(fate, effect)
            arrived(outcome)
            self._later(fate.after, bring, Unreachable("connection reset") if fate.strike == "unanswered" else outcome)

        def bring(outcome: T | Exception) -> None:
            self.busy -= 1
            if _settle(answer, outcome):
                self._loop.call_soon(self._loop.call_soon, answered)  # the client's task runs in between

        self._later(before, arrive)
        return await answer

    def _outcome(self, fate: Fate, effect: Callable[[], T]) -> T | Exception:
        if fate.strike == "lost" or self.is_away:
            return Unreachable("connection refused")
        if fate.strike == "refused":
            return REFUSALS[int(fate.before * 1e6) % len(REFUSALS)]()
        try:
            return effect()
        except (ApiError, Unreachable) as error:
            return error

    def _later(self, seconds: float, what: Callable[[*Ts], object], *args: *Ts) -> None:
        """Whatever becomes of the sender's process meanwhile."""
        self._loop.call_later(seconds, what, *args, context=self._context)


def _settle(answer: asyncio.Future[T], outcome: T | Exception) -> bool:
    """Give the client an answer, unless it has one; True if it is no error."""
    if answer.done():
        return False
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
        return False
    answer.set_result(outcome)
    return True
