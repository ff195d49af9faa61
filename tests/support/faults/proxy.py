"""The proxy itself: an HTTPS server on loopback that knows its clients by the tokens it gave them."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from aiohttp.web_runner import ServerRunner
from api_call import api_call
from dra_devcluster.apiserver.identity import kubeconfig, make_identity, write_kubeconfig
from dra_kube import Connection
from dra_kube.door import open_door

from faults.effects import refusal
from faults.passage import ActiveFaults, AnyFault, Background, Entry, HttpExchange, Journal, Request, Upstream

HOST = "127.0.0.1"


class FaultProxy:
    """A proxy on a free port; an async context manager. ``connection`` leads to the API server."""

    def __init__(self, connection: Connection, *, seed: int = 0) -> None:
        self.url = ""
        self.journal = Journal()
        self._faults = ActiveFaults(seed)
        self._upstream = Upstream(connection)
        self._background = Background()
        self._identity = make_identity(HOST)
        self._clients: dict[str, str] = {}
        self._streams: dict[asyncio.Task[Any], tuple[Entry, asyncio.Transport]] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._upstream)
            stack.push_async_callback(self._background.end)
            server = web.Server(self._handle, access_log=None, handler_cancellation=True)
            runner = ServerRunner(server, shutdown_timeout=1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            stack.callback(self.break_streams)
            seconds = {"life_seconds": math.inf, "head_seconds": 60.0}
            door = open_door(runner, HOST, 0, **seconds, tls=self._identity.tls, most=512, keeps_alive=True)
            _, port = await stack.enter_async_context(door)
            self.url = f"https://{HOST}:{port}"
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def write_kubeconfig(self, path: Path, client: str = "operator") -> Path:
        """A kubeconfig for a client whose requests carry this name in the journal and in targets."""
        token = secrets.token_hex(16)
        self._clients[token] = client
        write_kubeconfig(path, kubeconfig(self.url, self._identity.ca, token))
        return path

    @contextmanager
    def suffering(self, *faults: AnyFault) -> Iterator[None]:
        """These faults strike meanwhile: a request suffers the first that strikes it, an event all that do."""
        with self._faults.suffering(faults):
            yield

    def break_streams(self, resource: str = "") -> None:
        """Close the connections of all watches, or of those of one kind."""
        for entry, transport in tuple(self._streams.values()):
            if resource in ("", entry.call.resource):
                transport.abort()

    async def _handle(self, client: web.BaseRequest) -> web.StreamResponse:
        name = self._clients.get(client.headers.get("Authorization", "").removeprefix("Bearer "))
        if name is None:
            return web.Response(status=401, body=refusal(401).body, content_type="application/json")
        request = Request(client.method, client.raw_path, client.headers, await client.read())
        entry = Entry(asyncio.get_running_loop().time(), name, api_call(request.method, request.path))
        self.journal.entries.append(entry)
        exchange = HttpExchange(client, request, entry, self._upstream, self._background)
        task = asyncio.current_task()
        assert task is not None
        if entry.call.verb == "watch" and client.transport is not None:
            self._streams[task] = (entry, client.transport)
        try:
            return await exchange.suffer(self._faults)
        finally:
            self._streams.pop(task, None)
