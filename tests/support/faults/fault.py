"""What may happen to a request: value objects, each of which says how an exchange goes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar, Protocol

from aiohttp import web

from .answer import Answer, refusal
from .target import Target

Span = tuple[float, float]
"""Seconds, from and to; the dice choose."""


class Exchange(Protocol):
    """One request on its way, as a fault sees it."""

    def seconds(self, span: Span) -> float:
        """A time within the span."""

    async def forward(self) -> Answer:
        """Let the server carry out the request, whether or not the client stays; its answer goes nowhere yet."""

    def forward_later(self, seconds: float) -> None:
        """Let the server carry it out after this time."""

    def answer(self, answer: Answer) -> web.StreamResponse:
        """Give the client this answer."""

    def cut(self) -> web.StreamResponse:
        """Close the client's connection."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of requests. It strikes with ``probability``, not the first ``skip`` times, at most ``count`` times."""

    on: Target
    probability: float = 1.0
    skip: int = 0
    count: int | None = None

    for_watches: ClassVar[bool] = False
    """Whether it makes sense for the opening of a watch."""

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        """What happens instead of passing the request on."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(Fault):
    """The server is never asked; the client gets a Status with this code."""

    code: int
    message: str = ""
    reason: str = ""
    retry_after: int | None = None

    for_watches: ClassVar[bool] = True

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        return exchange.answer(refusal(self.code, self.message, self.reason, self.retry_after))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerWrongly(Fault):
    """The client gets a 200 with one of these bodies; ``carries_out``: after the server did its part."""

    bodies: tuple[bytes, ...]
    carries_out: bool = False

    for_watches: ClassVar[bool] = True

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        if self.carries_out:
            await exchange.forward()
        body = self.bodies[int(exchange.seconds((0, len(self.bodies) - 0.001)))]
        return exchange.answer(Answer(200, {"Content-Type": "application/json"}, body))


@dataclass(frozen=True, slots=True)
class Unserved(Fault):
    """The server does not know the path, as after the API was switched off: no Status, only a page."""

    for_watches: ClassVar[bool] = True

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        return exchange.answer(Answer(404, {"Content-Type": "text/plain"}, b"404 page not found\n"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay(Fault):
    """The request takes its time before it reaches the server, its answer before it reaches the client."""

    before: Span = (0.0, 0.0)
    after: Span = (0.0, 0.0)

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        await asyncio.sleep(exchange.seconds(self.before))
        answer = await exchange.forward()
        await asyncio.sleep(exchange.seconds(self.after))
        return exchange.answer(answer)


@dataclass(frozen=True, slots=True)
class CutBefore(Fault):
    """The connection breaks before the request reaches the server: nothing happens there."""

    for_watches: ClassVar[bool] = True

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        return exchange.cut()


@dataclass(frozen=True, slots=True)
class CutAfter(Fault):
    """The server carries out the request; the connection breaks before the answer reaches the client."""

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        await exchange.forward()
        return exchange.cut()


@dataclass(frozen=True, slots=True)
class HangAfter(Fault):
    """The server carries out the request; the answer never comes, and the connection stays open."""

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        await exchange.forward()
        await asyncio.Event().wait()
        raise AssertionError("unreachable: the client's leaving cancels the waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverLate(Fault):
    """The connection breaks first; the request reaches the server when its client has long given it up."""

    seconds: Span

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        exchange.forward_later(exchange.seconds(self.seconds))
        return exchange.cut()


@dataclass(frozen=True, slots=True)
class Hang(Fault):
    """The request reaches no server, and the connection stays open until the client leaves."""

    for_watches: ClassVar[bool] = True

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError("unreachable: the client's leaving cancels the waiting")
