"""A small HTTP server for probes and metrics, with a page that links them.

A probe answers ``ok``, or one obstacle per line. As with Kubernetes' own components, ``?verbose`` lists every check by
its name, and ``?exclude=NAME``, which may be repeated, leaves the obstacles of one out. ``dra_kube.door`` keeps those
out who would take all its connections.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from aiohttp import web
from dra_api.version import VERSION
from dra_kube.door import open_door
from dra_kube.request_log import request_log
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from .health import Check, obstacles

LAST_ANSWER_SECONDS = 1.0  # seconds that an answer may still take at the end: a client may have stopped reading
Probe = Callable[[], Awaitable[Sequence[Check]]]
_Answer = Callable[[web.Request], Awaitable[web.Response]]

_PAGES = {
    "/metrics": "metrics for Prometheus",
    "/readyz?verbose": "whether the cache is complete and up to date, check by check",
    "/livez?verbose": "whether only a new process would help, check by check",
    "/healthz?verbose": "the same as /livez",
}


class Answering(Protocol):
    """What is asked for each request."""

    async def liveness(self) -> Sequence[Check]:
        """Whether only a new process helps."""

    async def readiness(self) -> Sequence[Check]:
        """Whether the process does its work."""

    async def metrics(self) -> bytes | None:
        """The figures as Prometheus reads them; None if there are none yet."""


class CannotServe(Exception):
    """The port is taken or not allowed; the message names it."""


@asynccontextmanager
async def serve(host: str, port: int, answers: Answering) -> AsyncIterator[int]:
    """Serve while the block runs; gives the port, which matters when 0 was asked for. Raises CannotServe."""

    async def figures(_: web.Request) -> web.Response:
        body = await answers.metrics()
        if body is None:
            return web.Response(status=503, text="the operator is too busy to render its metrics: ask again\n")
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/", _front_page)
    app.router.add_get("/metrics", figures)
    probes = {"/livez": answers.liveness, "/healthz": answers.liveness, "/readyz": answers.readiness}
    for path, probe in probes.items():
        app.router.add_get(path, _answer(path.removeprefix("/"), probe))
    runner = web.AppRunner(
        app, access_log=None, logger=request_log(), shutdown_timeout=LAST_ANSWER_SECONDS, lingering_time=0
    )
    await runner.setup()
    try:
        async with AsyncExitStack() as stack:
            try:
                _, taken = await stack.enter_async_context(open_door(runner, host, port))
            except OSError as error:
                raise CannotServe(f"cannot serve metrics on port {port}: {error}") from error
            yield taken
    finally:
        await runner.cleanup()


def _answer(name: str, probe: Probe) -> _Answer:
    async def answer(request: web.Request) -> web.Response:
        excluded = request.query.getall("exclude", [])
        checks = await probe()
        found = obstacles(check for check in checks if check.name not in excluded)
        lines = [_line(check, check.name in excluded) for check in checks]
        lines.append(f"{name} check {'failed' if found else 'passed'}")
        if "verbose" not in request.query:
            warnings = [f"{it.name}: {it.warning}" for it in checks if it.warning and it.name not in excluded]
            lines = [*(found or ["ok"]), *warnings]
        return web.Response(text="\n".join(lines) + "\n", status=503 if found else 200)

    return answer


def _line(check: Check, is_excluded: bool) -> str:
    if is_excluded:
        return f"[+]{check.name} excluded"
    if check.obstacles:
        return f"[-]{check.name} failed: {'; '.join(check.obstacles)}"
    note = check.warning or check.note
    return f"[+]{check.name} ok: {note}" if note else f"[+]{check.name} ok"


async def _front_page(_: web.Request) -> web.Response:
    links = "".join(f'<li><a href="{path}">{path}</a>: {meaning}</li>' for path, meaning in _PAGES.items())
    title = f"dra-operator {VERSION}"
    page = f"<!doctype html><html lang=en><title>{title}</title><h1>{title}</h1><ul>{links}</ul></html>\n"
    return web.Response(text=page, content_type="text/html")
