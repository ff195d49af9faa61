"""The server of the page: files, and answers as JSON. It reads only, and listens on 127.0.0.1 alone.

Only a page that was opened by the address that the command printed may ask. The address has a random token, which every
request must carry in its path. Another site in the same browser does not know it; and even if it did, its requests name
that site as their origin, and a name that was pointed at this machine (DNS rebinding) stands in the header Host.
Answers may not be framed, cached or mixed with anything from outside (Content-Security-Policy).
"""

from __future__ import annotations

import argparse
import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from dra_kube.door import is_same_secret, open_door
from dra_kube.request_log import request_log

from dra_operator.kubectl.answer import Problem
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.serving import Crowded, NewestView, serve_until_ended
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.ui.view import JSON, View

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
OWN: Final = ("same-origin", "none")
"""Values of Sec-Fetch-Site: a page of ours asks, or a person typed the address."""


def guard(token: str) -> Middleware:
    """Refuses whatever does not come from our own page."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if why := _refusal(request, token):
            response: web.StreamResponse = web.Response(status=403, text=f"{why}\n")
        else:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = web.Response(status=error.status, text=f"{error.reason}\n")
        response.headers.update(HEADERS)
        return response

    return guarded


def _refusal(request: web.Request, token: str) -> str:
    own = {f"{host}:{_port(request)}" for host in ("127.0.0.1", "localhost")}
    if request.host not in own:
        return "this host is not served"
    if request.headers.get("Origin", f"http://{request.host}") != f"http://{request.host}":
        return "another site may not ask"
    if request.headers.get("Sec-Fetch-Site", "none") not in OWN:
        return "another site may not ask"
    given = request.path.split("/", 2)[1]
    if not is_same_secret(given, token):
        return "open the address that kubectl dra ui printed"
    return ""


def _port(request: web.Request) -> int:
    name = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return int(name[1]) if name else 0


T = TypeVar("T")
PAGE_ANSWER_SECONDS: Final = 5.0
"""For one answer about what a scheduler would decide."""


class Feed:
    """``options`` have the arguments of ``add_cluster_arguments`` and ``add_operator_arguments``."""

    def __init__(self, options: argparse.Namespace) -> None:
        settings = Settings.of(options)

        def view(seen: Observed) -> View:
            return View(seen, settings, live=options.source is None)

        self._newest = NewestView(options, view)

    async def start(self) -> None:
        """The first read. Raises Problem."""
        await self._newest.start()

    async def stop(self) -> None:
        """Wait for a read that is under way."""
        await self._newest.stop()

    def overview(self, known: str) -> JSON:
        """What is shown, or only its time if the page knows that revision; starts the next read if it is time."""
        self._newest.renew()
        shown = self._newest.view.overview
        if known == shown["revision"]:
            shown = {name: shown[name] for name in ("revision", "taken", "live")}
        return {**shown, "error": str(self._newest.problem or "")}

    async def look_up(self, question: Callable[[View], T]) -> T:
        """A fact of the newest view, worked out in a thread beside all others."""
        return await asyncio.to_thread(question, self._newest.view)

    async def ask(self, question: Callable[[View], T], size: int = 1) -> T:
        """An answer for which changes are tried on the newest view, worked out in a thread: one at a time, those of the
        smallest ``size`` first. After ``PAGE_ANSWER_SECONDS`` it says what is known. Raises Crowded."""

        def within_limit(view: View, is_gone: Callable[[], bool]) -> T:
            with view.pausing.within(PAGE_ANSWER_SECONDS, is_gone):
                return question(view)

        return await self._newest.ask(within_limit, size=size)


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
