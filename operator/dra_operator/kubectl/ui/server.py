"""The server of the page: files, and answers as JSON. It reads only, and listens on 127.0.0.1 alone."""

from __future__ import annotations

import argparse
import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from aiohttp import web
from dra_kube.door import open_door
from dra_kube.request_log import request_log

from dra_operator.kubectl.answer import Problem
from dra_operator.kubectl.reading.newest import Crowded
from dra_operator.kubectl.until_ended import serve_until_ended

from .feed import Feed
from .guard import guard
from .view import JSON, View

T = TypeVar("T")
HOST: Final = "127.0.0.1"
PAGE: Final = Path(__file__).parent / "page"
_SCRIPTS: Final = ("app.js", "dom.js", "grid.js", "panel.js", "usage.js", "waiting.js")
FILES: Final = {"": "text/html", "app.css": "text/css", **dict.fromkeys(_SCRIPTS, "text/javascript")}
"""By their names in the address; the page itself has none."""
PAGE_IDLE_SECONDS: Final = 60.0
"""Seconds between two requests of a connection."""
MOST_QUERY_LETTERS: Final = 1024
"""Of a name in a question."""


def serve(options: argparse.Namespace) -> int:
    """Serve until interrupted; returns the exit code."""
    return serve_until_ended(running(options), "open it in a browser of this machine; end with Ctrl-C")


@asynccontextmanager
async def running(options: argparse.Namespace) -> AsyncIterator[str]:
    """The address of the page, served inside the block. Raises Problem."""
    feed, token = Feed(options), secrets.token_urlsafe(32)
    await feed.start()
    runner = web.AppRunner(
        application(feed, token),
        access_log=None,
        logger=request_log(),
        keepalive_timeout=PAGE_IDLE_SECONDS,
        handler_cancellation=True,
    )
    await runner.setup()
    try:
        async with AsyncExitStack() as stack:
            door = open_door(runner, HOST, options.port, math.inf, keeps_alive=True)
            try:
                _, port = await stack.enter_async_context(door)
            except OSError as error:
                problem = f"cannot listen on {HOST}:{options.port}: {error.strerror}; choose another --port"
                raise Problem(problem) from error
            yield f"http://{HOST}:{port}/{token}/"
    finally:
        await runner.cleanup()
        await feed.stop()


def application(feed: Feed, token: str) -> web.Application:
    """Everything below ``/TOKEN/``."""
    app = web.Application(middlewares=[guard(token)])
    routes = Routes(feed)
    for name in FILES:
        app.router.add_get(f"/{token}/{name}", routes.file)
    for name in ("overview", "waiting", "device", "topology", "why"):
        app.router.add_get(f"/{token}/api/{name}", getattr(routes, name))
    return app


class Routes:
    """One method for each path."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def file(self, request: web.Request) -> web.Response:
        """A file of the page."""
        name = request.path.rpartition("/")[2]
        body = await asyncio.to_thread((PAGE / (name or "index.html")).read_bytes)
        return web.Response(body=body, content_type=FILES[name], charset="utf-8")

    async def overview(self, request: web.Request) -> web.Response:
        """All nodes and devices, unless the page knows them."""
        return _json(self._feed.overview(_asked(request, "known", is_optional=True)))

    async def waiting(self, _: web.Request) -> web.Response:
        """Who waits, by reason."""
        return _json(await self._asked(lambda view: view.waiting, size=2))

    async def device(self, request: web.Request) -> web.Response:
        """One device."""
        id_ = _asked(request, "id")
        return _found(await self._feed.look_up(lambda view: view.device(id_)))

    async def topology(self, request: web.Request) -> web.Response:
        """The tree of one node."""
        node = _asked(request, "node")
        return _found(await self._feed.look_up(lambda view: view.topology(node)))

    async def why(self, request: web.Request) -> web.Response:
        """Why a pod or claim waits."""
        kind, key = _asked(request, "kind"), _asked(request, "key")
        return _found(await self._asked(lambda view: view.why(kind, key)))

    async def _asked(self, question: Callable[[View], T], size: int = 1) -> T:
        try:
            return await self._feed.ask(question, size)
        except Crowded as crowded:
            raise web.HTTPServiceUnavailable(reason=str(crowded)) from crowded


def _found(answer: JSON | None) -> web.Response:
    if answer is None:
        raise web.HTTPNotFound
    return _json(answer)


def _asked(request: web.Request, name: str, *, is_optional: bool = False) -> str:
    value = request.query.get(name, "")
    if len(value) > MOST_QUERY_LETTERS or not (value or is_optional):
        raise web.HTTPBadRequest
    return value


def _json(value: JSON) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
