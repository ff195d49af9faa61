"""One request on its way through the proxy.

What the server carries out is carried out by a task of its own: a client that leaves, by itself or because its
connection is cut, takes nothing back that it has sent.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from aiohttp import web

from .active import ActiveFaults
from .answer import Answer
from .fault import Span
from .journal import Entry
from .stream import relay
from .upstream import Request, Upstream, passed_on


class Background:
    """Tasks that are not awaited; ``end`` cancels those that are left."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class HttpExchange:
    """What faults know as an ``Exchange``."""

    def __init__(
        self, client: web.BaseRequest, request: Request, entry: Entry, upstream: Upstream, background: Background
    ) -> None:
        self.entry = entry
        self._client, self._request, self._upstream, self._background = client, request, upstream, background
        self._generator = random.Random(0)

    async def suffer(self, faults: ActiveFaults) -> web.StreamResponse:
        """Whatever befalls the request, or the way of every request."""
        struck = faults.for_request(self.entry)
        if struck is not None:
            fault, self._generator = struck
            return await fault.befall(self)
        if self.entry.call.verb == "watch":
            return await self._stream(faults)
        return self.answer(await self.forward())

    def seconds(self, span: Span) -> float:
        return self._generator.uniform(*span)

    async def forward(self) -> Answer:
        return await asyncio.shield(self._start(0.0))

    def forward_later(self, seconds: float) -> None:
        self._start(seconds)

    def answer(self, answer: Answer) -> web.StreamResponse:
        self.entry.code = answer.code
        return web.Response(status=answer.code, headers=answer.headers, body=answer.body)

    def cut(self) -> web.StreamResponse:
        if self._client.transport is not None:
            self._client.transport.abort()
        return web.Response()  # which reaches no client

    def _start(self, seconds: float) -> asyncio.Task[Answer]:
        task = asyncio.create_task(self._carry_out(seconds))
        self._background.add(task)
        return task

    async def _carry_out(self, seconds: float) -> Answer:
        await asyncio.sleep(seconds)
        answer = await self._upstream.send(self._request)
        self.entry.carried_out = answer.code
        self.entry.carried_out_at = asyncio.get_running_loop().time()
        return answer

    async def _stream(self, faults: ActiveFaults) -> web.StreamResponse:
        async with self._upstream.open(self._request) as source:
            self.entry.code = self.entry.carried_out = source.status
            if source.status != 200:
                return web.Response(status=source.status, headers=passed_on(source.headers), body=await source.read())
            response = web.StreamResponse(headers=passed_on(source.headers))
            await response.prepare(self._client)
            try:
                is_over = await relay(
                    source, response.write, self.entry.call, lambda call, event: faults.alter(self.entry, call, event)
                )
            finally:
                if source.connection is not None and source.connection.transport is not None:
                    source.connection.transport.abort()  # otherwise it waits for a TLS goodbye
            return response if is_over else self.cut()
