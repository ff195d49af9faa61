"""The server of the page: files, and answers as JSON. It reads only, and listens on 127.0.0.1 alone.

Only a page that was opened by the address that the command printed may ask. The address has a random token, and every
request must carry it in its path. Another site in the same browser does not know it. Even if it did, its requests would
name that site as their origin, and a name that was pointed at this machine (DNS rebinding) stands in the header Host.
Answers may not be framed, cached or mixed with anything from outside (Content-Security-Policy).

Facts are worked out in threads of their own; at most ``MOST_FACT_QUESTIONS`` are worked on or wait, and files are in
memory. So neither a read of the cluster, nor a question for which changes are tried, nor a client that takes its answer
slowly holds up the facts for another one.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from dra_kube.door import is_same_secret, open_door, request_log

from dra_operator.kubectl.answer import Problem
from dra_operator.kubectl.arguments import given_options
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.serving import Crowded, NewestView, serve_until_ended
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.ui.lines import FACETS, JSON, ORDERS, PAGE_LINES, STATES, Commands, NodeQuestion, Wish
from dra_operator.kubectl.ui.view import History, View

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


def guard(token: str, others: frozenset[str] = frozenset()) -> Middleware:
    """Refuse requests unless they come from this page or from an origin named by ``--allow-origin``."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin", "")
        if why := _refusal(request, token, others):
            response: web.StreamResponse = web.Response(status=403, text=f"{why}\n")
        else:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = web.Response(status=error.status, text=f"{error.reason}\n")
        response.headers.update(HEADERS)
        if origin in others:
            response.headers.update({"Access-Control-Allow-Origin": origin, "Vary": "Origin"})
        return response

    return guarded


def _refusal(request: web.Request, token: str, others: frozenset[str]) -> str:
    own = {f"{host}:{_port(request)}" for host in ("127.0.0.1", "localhost")}
    if request.host not in own:
        return "this host is not served"
    origin = request.headers.get("Origin", f"http://{request.host}")
    if origin not in others and origin != f"http://{request.host}":
        return "another site may not ask"
    if origin not in others and request.headers.get("Sec-Fetch-Site", "none") not in OWN:
        return "another site may not ask"
    given = request.path.removeprefix("/").partition("/")[0]  # OPTIONS may ask for *, which has no slash
    if not is_same_secret(given, token):
        return "open the address that kubectl dra ui printed"
    return ""


def _port(request: web.Request) -> int:
    name = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return int(name[1]) if name else 0


T = TypeVar("T")
PAGE_ANSWER_SECONDS: Final = 5.0
"""Time limit for an answer of the scheduler."""
FACT_WORKERS: Final = 2
MOST_FACT_QUESTIONS: Final = 64


class Feed:
    """``options`` have the arguments of ``add_cluster_arguments`` and ``add_operator_arguments``."""

    def __init__(self, options: argparse.Namespace) -> None:
        settings, history = Settings.of(options), History()
        commands = Commands(given_options(options))
        before: View | None = None

        def view(seen: Observed) -> View:
            nonlocal before
            before = View(seen, settings, commands, live=options.source is None, before=before)
            history.add(before)
            return before

        self._newest, self._history = NewestView(options, view), history
        self._threads = ThreadPoolExecutor(FACT_WORKERS, "fact")
        self._asked = 0

    async def start(self) -> None:
        """Read the cluster for the first time. Raises Problem."""
        await self._newest.start()

    async def stop(self) -> None:
        """Take no more questions, and wait for no read."""
        await self._newest.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def overview(self, question: NodeQuestion, known: str) -> bytes:
        """Return totals and nodes, or only the time of the read if the page knows them by ``tag``.

        Starts the next read if it is due.
        """
        self._newest.renew()
        view = self._newest.view
        tag = hashlib.sha256(f"{view.revision}\n{question}".encode()).hexdigest()[:16]
        now = {"tag": tag, "history": self._history.points, "error": str(self._newest.problem or "")}
        if known == tag:
            return msgspec.json.encode({**view.about, **now})
        return await self.look_up(lambda _: {**view.overview(question), **now})

    async def look_up(self, question: Callable[[View], JSON | None]) -> bytes:
        """Return a fact of the newest view as JSON. Other facts are worked out at the same time, in other threads.

        Raises Crowded at ``MOST_FACT_QUESTIONS`` open questions, and HTTPNotFound if the object does not exist.
        """
        if self._asked >= MOST_FACT_QUESTIONS:
            raise Crowded(f"{self._asked} questions wait: ask again")
        view = self._newest.view
        self._asked += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: _encoded(question(view)))
        finally:
            self._asked -= 1

    async def ask(self, question: Callable[[View], JSON | None], size: int = 1) -> bytes:
        """Return an answer that needs the scheduler. One question runs at a time; the smallest ``size`` goes first.

        After ``PAGE_ANSWER_SECONDS`` the answer has the results so far. If the view is old, the question waits for the
        next one: a plugin of another program asks nothing else. ``error`` says why the last read failed, or is empty.
        Raises Crowded or HTTPNotFound.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(PAGE_ANSWER_SECONDS):
                await self._newest.fresh()
        error = str(self._newest.problem or "")

        def within_limit(view: View, is_gone: Callable[[], bool]) -> bytes:
            with view.pausing.within(PAGE_ANSWER_SECONDS, is_gone):
                answer = question(view)
            return _encoded(answer and {**answer, "error": error})

        return await self._newest.ask(within_limit, size=size)


def _encoded(answer: JSON | None) -> bytes:
    if answer is None:
        raise web.HTTPNotFound
    return msgspec.json.encode(answer)


HOST: Final = "127.0.0.1"
PAGE: Final = Path(__file__).parent / "page"
_SCRIPTS: Final = (
    *("app.js", "dom.js", "listing.js", "lists.js", "map.js", "nodes.js", "panel.js", "table.js", "usage.js"),
)
FILES: Final = {"": "text/html", "app.css": "text/css", **dict.fromkeys(_SCRIPTS, "text/javascript")}
"""By their names in the address; the page itself has none."""
PAGE_IDLE_SECONDS: Final = 60.0
"""Seconds between two requests of a connection."""
MOST_QUERY_LETTERS: Final = 1024
"""Of a name in a question."""
MOST_SKIPPED_LINES: Final = 10_000_000


def serve(options: argparse.Namespace) -> int:
    """Serve until interrupted; returns the exit code."""
    return serve_until_ended(running(options), "open it in a browser of this machine; end with Ctrl-C")


@asynccontextmanager
async def running(options: argparse.Namespace) -> AsyncIterator[str]:
    """The address of the page, served inside the block. Raises Problem."""
    feed, token = Feed(options), secrets.token_urlsafe(32)
    await feed.start()
    runner = web.AppRunner(
        application(feed, token, frozenset(options.allow_origin)),
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


def application(feed: Feed, token: str, others: frozenset[str] = frozenset()) -> web.Application:
    """Everything below ``/TOKEN/``, also for pages of ``others``."""
    app = web.Application(middlewares=[guard(token, others)])
    routes = Routes(feed)
    for name in FILES:
        app.router.add_get(f"/{token}/{name}", routes.file)
    for path, handler in routes.answers.items():
        app.router.add_get(f"/{token}/api/{path}", handler)
    return app


class Routes:
    """One method for each kind of answer."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._files = {name: (PAGE / (name or "index.html")).read_bytes() for name in FILES}
        self.answers: dict[str, Handler] = {
            "overview": self.overview,
            "tiles": self.tiles,
            "waiting": self._list(View.waiting),
            "claims": self._list(View.claims),
            "classes": self._list(View.classes),
            "judge": self.judge,
            "device": self._one("id", View.device),
            "topology": self._one("node", View.topology),
            "class": self._one("name", View.device_class),
            "why": self.why,
        }
        """Handlers by their path below ``api``."""

    async def file(self, request: web.Request) -> web.Response:
        name = request.path.rpartition("/")[2]
        return web.Response(body=self._files[name], content_type=FILES[name], charset="utf-8")

    async def overview(self, request: web.Request) -> web.Response:
        """Totals and nodes, unless the page knows them."""
        question, known = _question(request), _asked(request, "known", is_optional=True)
        return await _answered(self._feed.overview(question, known))

    async def tiles(self, request: web.Request) -> web.Response:
        question, (offset, limit) = _question(request), _part(request)
        return await _answered(self._feed.look_up(lambda view: view.tiles(question, offset, limit)))

    async def judge(self, _: web.Request) -> web.Response:
        return await _answered(self._feed.ask(View.judge, size=2))

    async def why(self, request: web.Request) -> web.Response:
        kind, key = _choice(request, "kind", ("pod", "claim")), _asked(request, "key")
        return await _answered(self._feed.ask(lambda view: view.why(kind, key)))

    def _one(self, name: str, fact: Callable[[View, str], JSON | None]) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            value = _asked(request, name)
            return await _answered(self._feed.look_up(lambda view: fact(view, value)))

        return handler

    def _list(self, lines: Callable[[View, Wish, int, int], JSON]) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            find, kind = (_asked(request, name, is_optional=True) for name in ("find", "kind"))
            wish, (offset, limit) = Wish(_asked(request, "sort"), find, kind), _part(request)
            try:
                return await _answered(self._feed.look_up(lambda view: lines(view, wish, offset, limit)))
            except KeyError as error:
                raise web.HTTPBadRequest(reason=f"the list has no order {error}") from error

        return handler


async def _answered(working: Awaitable[bytes]) -> web.Response:
    try:
        return web.Response(body=await working, content_type="application/json")
    except Crowded as crowded:
        raise web.HTTPServiceUnavailable(reason=str(crowded)) from crowded


def _asked(request: web.Request, name: str, *, is_optional: bool = False) -> str:
    value = request.query.get(name, "")
    if len(value) > MOST_QUERY_LETTERS or not (value or is_optional):
        raise web.HTTPBadRequest(reason=f"{name} must have 1 to {MOST_QUERY_LETTERS} letters")
    return value


def _choice(request: web.Request, name: str, choices: tuple[str, ...], *, is_optional: bool = False) -> str:
    value = _asked(request, name, is_optional=is_optional)
    if value not in choices and not (is_optional and not value):
        raise web.HTTPBadRequest(reason=f"{name} must be one of: {', '.join(choices)}")
    return value


def _question(request: web.Request) -> NodeQuestion:
    return NodeQuestion(
        group=_choice(request, "group", FACETS, is_optional=True),
        order=_choice(request, "order", ORDERS, is_optional=True) or ORDERS[0],
        state=_choice(request, "state", STATES, is_optional=True),
        find=_asked(request, "find", is_optional=True),
        wanted=tuple(_asked(request, facet, is_optional=True) for facet in FACETS),
    )


def _part(request: web.Request) -> tuple[int, int]:
    """Return offset and number of the lines on the page."""
    offset, limit = _number(request, "offset", MOST_SKIPPED_LINES), _number(request, "limit", PAGE_LINES)
    return offset, limit


def _number(request: web.Request, name: str, most: int) -> int:
    text = _asked(request, name)
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and int(text) <= most):
        raise web.HTTPBadRequest(reason=f"{name} must be a number from 0 to {most}")
    return int(text)
