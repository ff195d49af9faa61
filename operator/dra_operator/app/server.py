"""A small HTTP server for those who watch the operator: ``/livez``, ``/readyz``, ``/metrics``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

Obstacles = Callable[[], list[str]]
"""What is wrong, one line each; empty when the probe is to succeed."""


class CannotServe(Exception):
    """The port is taken or not allowed; the message names it."""


@asynccontextmanager
async def serve(
    host: str, port: int, registry: CollectorRegistry, *, liveness: Obstacles, readiness: Obstacles
) -> AsyncIterator[int]:
    """Serve while the block runs; gives the port, which matters when 0 was asked for. Raises CannotServe."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def probe(obstacles: Obstacles) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_: web.Request) -> web.Response:
            found = obstacles()
            return web.Response(text="\n".join(found or ["ok"]) + "\n", status=503 if found else 200)

        return answer

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/livez", probe(liveness))
    app.router.add_get("/readyz", probe(readiness))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise CannotServe(f"cannot serve metrics on port {port}: {error}") from error
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
