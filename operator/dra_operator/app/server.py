"""A small HTTP server for whoever watches the operator: ``/livez``, ``/readyz``, ``/metrics``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest


@asynccontextmanager
async def serve(
    host: str, port: int, registry: CollectorRegistry, *, is_live: Callable[[], bool], is_ready: Callable[[], bool]
) -> AsyncIterator[int]:
    """Serve while the block runs; gives the port, which matters when 0 was asked for. Raises OSError if it is taken."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def probe(holds: Callable[[], bool]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(text="ok\n") if holds() else web.Response(text="no\n", status=503)

        return answer

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/livez", probe(is_live))
    app.router.add_get("/readyz", probe(is_ready))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
