"""The API server behind the proxy: requests go there exactly once.

aiohttp sends PUT, DELETE and GET again by itself when the connection breaks, fresh or kept alive; a middleware refuses
the second attempt. Bodies pass as they are; nothing is compressed, so that watches can be read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
from dra_kube import Connection
from dra_kube.http.connecting import Sockets
from yarl import URL

from .answer import Answer, refusal

_NOT_PASSED_ON = frozenset(
    {"host", "authorization", "connection", "content-length", "transfer-encoding", "accept-encoding", "keep-alive"}
)
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10)


@dataclass(frozen=True, slots=True)
class Request:
    """What the client sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Upstream:
    """An async context manager."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        sockets = Sockets()
        self._stack.push_async_callback(sockets.close)
        connector = aiohttp.TCPConnector(ssl=self._connection.tls or False, limit=0, socket_factory=sockets.make)
        self._session = await self._stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT, auto_decompress=False)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def send(self, request: Request) -> Answer:
        """The whole answer; 502 when there is none, since the proxy is not the one to be tested."""
        try:
            async with self.open(request) as response:
                return Answer(response.status, passed_on(response.headers), await response.read())
        except aiohttp.ClientError as error:
            return refusal(502, f"the API server behind the fault proxy does not answer: {error!r}")

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer as a stream."""
        headers = {**passed_on(request.headers), "Accept-Encoding": "identity"}
        if authorization := self._connection.authorization():
            headers["Authorization"] = authorization
        async with self._session.request(
            request.method,
            URL(self._connection.host + request.path, encoded=True),
            headers=headers,
            data=request.body or None,
            middlewares=(_Once(),),
        ) as response:
            yield response


class _Once:
    """A middleware of one request: aiohttp calls it again when it is about to repeat the request."""

    def __init__(self) -> None:
        self._sent = False

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if self._sent:
            raise aiohttp.ServerDisconnectedError("the connection broke, and nothing is sent twice")
        self._sent = True
        return await handler(request)


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Those headers that do not belong to one connection or one set of credentials."""
    return {name: value for name, value in headers.items() if name.lower() not in _NOT_PASSED_ON}
