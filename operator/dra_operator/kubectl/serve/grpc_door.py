"""``fit --serve-grpc``: the questions and answers of ``fit --serve`` as gRPC messages (``dra_proto.fit.v1``).

A web page cannot ask here: browsers speak HTTP/2 by TLS only, and there is none. Connections are bounded as those of
the HTTP port, and so are the questions that one of them may have under way.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn

import grpc
import msgspec
from dra_kube import door
from dra_proto.fit.v1 import api_pb2 as messages
from dra_proto.fit.v1 import api_pb2_grpc as services

from dra_operator.kubectl.answer import ExitCode, Problem
from dra_operator.kubectl.whatif.outcome import PodFact

from .clerk import IDLE_SECONDS, MOST_QUESTION_BYTES, MOST_WAITING_QUESTIONS, Busy, Clerk, Crowded
from .desk import TookTooLong
from .question import Question, Reply

GRACE_SECONDS: Final = 1.0
"""What questions under way get when the server ends."""
GREETING_SECONDS: Final = 5.0
"""In which a new connection has to speak HTTP/2."""


@asynccontextmanager
async def grpc_door(clerk: Clerk, host: str, port: int, token: str) -> AsyncIterator[str]:
    """The address, served inside the block. ``token`` is empty where all who reach the port may ask. Raises Problem."""
    limits = [
        ("grpc.max_receive_message_length", MOST_QUESTION_BYTES),
        ("grpc.server_handshake_timeout_ms", int(GREETING_SECONDS * 1000)),
        ("grpc.max_connection_idle_ms", int(IDLE_SECONDS * 1000)),
        ("grpc.max_allowed_incoming_connections", door.MOST_CONNECTIONS),
        ("grpc.max_concurrent_streams", MOST_WAITING_QUESTIONS),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.aio.server(options=limits)
    services.add_FitServicer_to_server(_Fit(clerk, token), server)
    named = f"[{host}]" if ":" in host else host
    try:
        taken = server.add_insecure_port(f"{named}:{port}")
    except RuntimeError as error:
        raise Problem(f"cannot listen on {named}:{port}: choose another address") from error
    await server.start()
    try:
        yield f"{named}:{taken}"
    finally:
        await server.stop(GRACE_SECONDS)


class _Fit(services.FitServicer):
    def __init__(self, clerk: Clerk, token: str) -> None:
        self._clerk, self._token = clerk, token

    async def Ask(self, request: messages.Question, context: Any) -> messages.Answer:  # noqa: N802  # grpc's name
        """Whether the pods of a question would fit."""
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        if self._token and not hmac.compare_digest(str(given).encode(), f"Bearer {self._token}".encode()):
            await _refuse(context, grpc.StatusCode.UNAUTHENTICATED, "send the token as authorization: Bearer TOKEN")
        try:
            with self._clerk.turn():
                return message_of(await self._clerk.answer(question_of(request)))
        except Crowded as crowded:
            await _refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(crowded))
        except Busy as busy:
            await _refuse(context, grpc.StatusCode.UNAVAILABLE, str(busy))
        except Problem as problem:
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(problem))
        except TookTooLong as error:
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
    """What the reply says, without its budgets."""
    found = reply.answer
    answer = messages.Answer(
        taken=reply.taken,
        fits=found.fits,
        copies=found.copies,
        pods=map(_place, found.pods),
        notes=reply.notes,
        left=[messages.Left(device_class=one.device_class, largest=one.largest, node=one.node) for one in found.left],
    )
    if found.next is not None:
        answer.next.CopyFrom(_place(found.next))
    for one in found.drained.pods if found.drained is not None else ():
        answer.drained.add(pod=one.pod, fate=one.fate, node=one.node, reason=one.reason)
    return answer


def _place(fact: PodFact) -> messages.Place:
    return messages.Place(pod=fact.pod, node=fact.node, devices=fact.devices, reason=fact.reason)


def _decoded(field: str, texts: Iterable[str]) -> Iterator[Any]:
    for at, text in enumerate(texts):
        try:
            yield msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            problem = f"{field}[{at}]: not JSON: {error or type(error).__name__}"
            raise Problem(problem, ExitCode.USAGE) from error
