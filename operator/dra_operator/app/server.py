"""A small HTTP server for probes and metrics, with a page that links them.

A probe answers ``ok``, or one obstacle per line. As with Kubernetes' own components, ``?verbose`` lists every check by
its name, and ``?exclude=NAME``, which may be repeated, leaves the obstacles of one out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from dra_api.version import VERSION
from dra_kube.request_log import REQUESTS
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from .health import Check, obstacles

GOODBYE = 1.0  # seconds that an answer may still take at the end: a client may have stopped reading
Probe = Callable[[], Sequence[Check]]
_Answer = Callable[[web.Request], Awaitable[web.Response]]

_PAGES = {
    "/metrics": "figures for Prometheus",
    "/readyz?verbose": "whether the view is complete and up to date, check by check",
    "/livez?verbose": "whether only a new process would help, check by check",
    "/healthz?verbose": "the same as /livez",
}


class CannotServe(Exception):
    """The port is taken or not allowed; the message names it."""


@asynccontextmanager
async def serve(
    host: str, port: int, registry: CollectorRegistry, *, liveness: Probe, readiness: Probe
) -> AsyncIterator[int]:
    """Serve while the block runs; gives the port, which matters when 0 was asked for. Raises CannotServe."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/", _front_page)
    app.router.add_get("/metrics", metrics)
    for path, probe in (("/livez", liveness), ("/healthz", liveness), ("/readyz", readiness)):
        app.router.add_get(path, _answer(path.removeprefix("/"), probe))
    runner = web.AppRunner(app, access_log=None, logger=REQUESTS, shutdown_timeout=GOODBYE)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise CannotServe(f"cannot serve metrics on port {port}: {error}") from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def _answer(name: str, probe: Probe) -> _Answer:
    async def answer(request: web.Request) -> web.Response:
        excluded = request.query.getall("exclude", [])
        checks = probe()
        found = obstacles(check for check in checks if check.name not in excluded)
        lines = [_line(check, check.name in excluded) for check in checks]
        lines.append(f"{name} check {'failed' if found else 'passed'}")
        if "verbose" not in request.query:
            lines = found or ["ok"]
        return web.Response(text="\n".join(lines) + "\n", status=503 if found else 200)

    return answer


def _line(check: Check, is_excluded: bool) -> str:
    if is_excluded:
        return f"[+]{check.name} excluded"
    return f"[-]{check.name} failed: {'; '.join(check.obstacles)}" if check.obstacles else f"[+]{check.name} ok"


async def _front_page(_: web.Request) -> web.Response:
    links = "".join(f'<li><a href="{path}">{path}</a>: {meaning}</li>' for path, meaning in _PAGES.items())
    title = f"dra-operator {VERSION}"
    page = f"<!doctype html><html lang=en><title>{title}</title><h1>{title}</h1><ul>{links}</ul></html>\n"
    return web.Response(text=page, content_type="text/html")
