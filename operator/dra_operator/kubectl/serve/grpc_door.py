"""``fit --serve-grpc``: the questions and answers of ``fit --serve`` as gRPC messages (``dra_proto.fit.v1``).

grpc refuses newcomers where its connections are used up, so it listens on a socket in a folder of its own, and the door
of all servers (``dra_kube.door``) lets connections in, with TLS where that is given, and passes their bytes on. The end
of each at that socket has a name, by which a question finds the connection that asks it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import grpc
import msgspec
from dra_kube.door import Guest, Seldom, Visit, is_same_secret, welcoming
from dra_proto.fit.v1 import api_pb2 as messages
from dra_proto.fit.v1 import api_pb2_grpc as services
from msgspec.structs import asdict

from dra_operator.kubectl.answer import ExitCode, Fact, Problem
from dra_operator.kubectl.serving import Crowded

from .desk import IDLE_SECONDS, MOST_QUESTION_BYTES, AnswerTookTooLong, Busy, Clerk, Question, Reply

M = TypeVar("M")
GRACE_SECONDS: Final = 1.0
"""What questions under way get when the server ends."""
GREETING_SECONDS: Final = 5.0
"""In which a new connection has to speak HTTP/2."""
MOST_CLIENT_CONNECTIONS: Final = 192
"""Each takes three descriptors."""
MOST_STREAMS: Final = 8
"""Questions that a connection may have under way: each may take ``MOST_QUESTION_BYTES``."""
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_LOG: Final = logging.getLogger("grpc._cython.cygrpc")


@asynccontextmanager
async def grpc_door(
    clerk: Clerk, host: str, port: int, token: str, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """The address, served inside the block. ``token`` is empty where all who reach the port may ask. Raises Problem."""
    limits = [
        ("grpc.max_receive_message_length", MOST_QUESTION_BYTES),
        ("grpc.max_connection_idle_ms", int(IDLE_SECONDS * 1000)),
        ("grpc.max_concurrent_streams", MOST_STREAMS),
    ]
    named = f"[{host}]" if ":" in host else host
    visits: dict[str, Visit] = {}
    seldom = Seldom()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dra-fit-")))
        _LOG.addFilter(seldom)  # it logs each header that is no text, with a traceback
        stack.callback(_LOG.removeFilter, seldom)
        server = grpc.aio.server(options=limits)
        services.add_FitServicer_to_server(_Fit(clerk, token, visits), server)
        inside = folder / "grpc"
        server.add_insecure_port(f"unix:{inside}")
        await server.start()
        stack.push_async_callback(server.stop, GRACE_SECONDS)
        receive = partial(_Relay, inside=inside, names=count(1), visits=visits)
        try:
            _, taken = await stack.enter_async_context(
                welcoming(host, port, receive, tls=tls, most=MOST_CLIENT_CONNECTIONS)
            )
        except OSError as error:
            raise Problem(f"cannot listen on {named}:{port}: {error.strerror}; choose another address") from error
        yield f"{named}:{taken}"


class _Relay(Guest):
    """Passes bytes on to grpc, once they are HTTP/2."""

    def __init__(self, visit: Visit, inside: Path, names: Iterator[int], visits: dict[str, Visit]) -> None:
        super().__init__(visit)
        self._inside, self._own = inside, inside.with_name(str(next(names)))
        self._visits = visits
        self._said = b""
        self._greeting: asyncio.TimerHandle | None = None
        self._joining: asyncio.Task[None] | None = None
        self._other: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._greeting = asyncio.get_running_loop().call_later(GREETING_SECONDS, self.visit.end)

    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._other.write(data)
            return
        self._said += data
        if not self._said.startswith(_PREFACE[: len(self._said)]):
            self.visit.end()
        elif len(self._said) >= len(_PREFACE) and self._joining is None and self.transport is not None:
            self.transport.pause_reading()
            self._joining = asyncio.get_running_loop().create_task(self._join())

    async def _join(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            with socket.socket(socket.AF_UNIX) as mine:
                mine.setblocking(False)
                mine.bind(str(self._own))
                await loop.sock_connect(mine, str(self._inside))
                other, _ = await loop.create_unix_connection(lambda: _Answers(self), sock=mine.dup())
        except OSError:
            self.visit.end()
            return
        self._visits[f"unix:{self._own}"] = self.visit
        self._other = other
        self._other.write(self._said)
        self._said = b""
        if self._greeting is not None:
            self._greeting.cancel()
        self.read_on(keeps_up=True)

    def answered(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def over(self) -> None:
        """grpc has closed the connection."""
        if self.transport is not None:
            self.transport.close()

    def read_on(self, *, keeps_up: bool) -> None:
        """Whether grpc keeps up with what is read."""
        if self.transport is not None and not self.transport.is_closing():
            (self.transport.resume_reading if keeps_up else self.transport.pause_reading)()

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and not self._other.is_closing():
            self._other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for pending in (self._greeting, self._joining):
            if pending is not None:
                pending.cancel()
        if self._other is not None:
            self._other.abort()
        self._visits.pop(f"unix:{self._own}", None)
        self._own.unlink(missing_ok=True)


class _Answers(asyncio.Protocol):
    """The other end of a relay."""

    def __init__(self, relay: _Relay) -> None:
        self._relay = relay

    def data_received(self, data: bytes) -> None:
        self._relay.answered(data)

    def pause_writing(self) -> None:
        self._relay.read_on(keeps_up=False)

    def resume_writing(self) -> None:
        self._relay.read_on(keeps_up=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.over()


class _Fit(services.FitServicer):
    def __init__(self, clerk: Clerk, token: str, visits: dict[str, Visit]) -> None:
        self._clerk, self._token, self._visits = clerk, token, visits

    async def Ask(self, request: messages.Question, context: Any) -> messages.Answer:  # noqa: N802  # grpc's name
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        if self._token and not is_same_secret(str(given), f"Bearer {self._token}"):
            await _refuse(context, grpc.StatusCode.UNAUTHENTICATED, "send the token as authorization: Bearer TOKEN")
        visit = self._visits.get(context.peer())
        try:
            with visit.asking() if visit is not None else nullcontext():
                reply = await self._clerk.answer(question_of(request), visit.peer if visit is not None else "")
                return message_of(reply)
        except Crowded as crowded:
            await _refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(crowded))
        except Busy as busy:
            await _refuse(context, grpc.StatusCode.UNAVAILABLE, str(busy))
        except Problem as problem:
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(problem))
        except AnswerTookTooLong as error:
            await _refuse(context, grpc.StatusCode.DEADLINE_EXCEEDED, str(error))


async def _refuse(context: Any, code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)
    raise AssertionError("abort raises")


def question_of(message: messages.Question) -> Question:
    """Raises Problem."""
    return Question(
        manifests=list(_decoded("manifests", message.manifests)),
        count=message.count or 1,
        max=message.max,
        drain=message.drain or None,
        without=list(message.without),
        add_nodes=list(_decoded("add_nodes", message.add_nodes)),
        namespace=message.namespace,
        left=message.left,
    )


def message_of(reply: Reply) -> messages.Answer:
    found = reply.answer
    answer = messages.Answer(
        taken=reply.taken,
        fits=found.fits,
        copies=found.copies,
        pods=_alike(messages.Place, found.pods),
        notes=reply.notes,
        left=_alike(messages.Left, found.left or ()),
        promised=_alike(messages.Place, found.promised),
        is_cut=found.is_cut,
        next=_alike(messages.Place, [found.next])[0] if found.next is not None else None,
    )
    if (drained := found.drained) is not None:
        answer.drained.extend(_alike(messages.Displaced, drained.pods))
        answer.draining.CopyFrom(
            messages.Draining(
                name=drained.name,
                is_clear=drained.is_clear,
                budgets=_alike(messages.Budget, drained.budgets),
                torn=_alike(messages.TornGroup, drained.torn),
            )
        )
    return answer


def _alike(message: Callable[..., M], facts: Iterable[Fact]) -> list[M]:
    """The facts as messages, which have the same fields."""
    return [message(**asdict(fact)) for fact in facts]


def _decoded(field: str, texts: Iterable[str]) -> Iterator[Any]:
    for at, text in enumerate(texts):
        try:
            yield msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            problem = f"{field}[{at}]: not JSON: {error or type(error).__name__}"
            raise Problem(problem, ExitCode.USAGE) from error
