"""Metrics and probes of a plugin over HTTP.

``/healthz`` answers while the process serves. ``/readyz`` answers when the kubelet has registered the plugin, the
driver has published pools (none is an answer as well), and the slices are in the API server as they were published;
otherwise it says what is missing. The metrics path gives the times of the kubelet's calls and the slices written, in
the Prometheus format.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from aiohttp import web
from dra_kube.door import open_door, request_log
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric

from .errors import SettingsError, StartError
from .kubelet import Interceptor, Unary
from .plugin import KubeletPlugin

log = logging.getLogger(__name__)

RENDERING_SECONDS = 1.0  # seconds for which all who scrape get the same figures
_LAST_ANSWER_SECONDS = 1.0  # seconds that an answer may still take at the end: a client may have stopped reading
_CALL_BUCKET_SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0)
"""Seconds of a call: the kubelet gives one up after 45, and an alert asks for more than 10."""


class Metrics(Interceptor):
    """Times the calls; ``registry`` holds what is exposed."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "dra_plugin_grpc_duration_seconds",
            "How long the kubelet's calls took.",
            ["method", "outcome"],
            buckets=_CALL_BUCKET_SECONDS,
            registry=self.registry,
        )

    async def unary(self, method: str, request: Message, context: Any, proceed: Unary) -> Message:
        """Time the call."""
        start, outcome = time.monotonic(), "error"
        try:
            answer = await proceed(request, context)
            outcome = "ok"
        finally:
            self._seconds.labels(method, outcome).observe(time.monotonic() - start)
        return answer


class _SliceWrites:
    """Reads the publisher's statistics at each scrape."""

    def __init__(self, plugin: KubeletPlugin) -> None:
        self._plugin = plugin

    def collect(self) -> Iterator[Metric]:
        """The counters of this moment."""
        writes = CounterMetricFamily("dra_plugin_slice_writes", "ResourceSlices written.", labels=["operation"])
        statistics = self._plugin.statistics
        for operation in ("creates", "updates", "deletes"):
            writes.add_metric([operation], getattr(statistics, operation))
        yield writes


class Probes:
    """What is said over HTTP; ``address`` is where."""

    def __init__(self, metrics: Metrics, path: str) -> None:
        self.address = ""
        self._registry = metrics.registry
        self._path = path
        self._plugin: KubeletPlugin | None = None
        self._rendered, self._rendered_at = b"", -RENDERING_SECONDS

    @asynccontextmanager
    async def about(self, plugin: KubeletPlugin) -> AsyncIterator[None]:
        """Answer for this plugin, which has started, until the block ends."""
        self._registry.register(_SliceWrites(plugin))
        self._plugin = plugin
        try:
            yield
        finally:
            self._plugin = None

    def app(self) -> web.Application:
        """The HTTP paths."""
        app = web.Application()
        paths = {"/": self._front, self._path: self._exposed, "/healthz": self._alive, "/readyz": self._ready}
        app.add_routes([web.get(path, handler) for path, handler in paths.items()])
        return app

    async def _exposed(self, request: web.Request) -> web.Response:
        now = time.monotonic()
        if now - self._rendered_at >= RENDERING_SECONDS:
            self._rendered, self._rendered_at = generate_latest(self._registry), now
        return web.Response(body=self._rendered, content_type="text/plain")

    async def _alive(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _ready(self, request: web.Request) -> web.Response:
        missing = self._missing(self._plugin) if self._plugin else ["the plugin starts or stops"]
        return web.Response(status=503, text="\n".join(missing)) if missing else web.Response(text="ok")

    async def _front(self, request: web.Request) -> web.Response:
        links = "".join(f'<li><a href="{each}">{each}</a>' for each in (self._path, "/healthz", "/readyz"))
        return web.Response(text=f"<title>dra-kubelet-plugin</title><ul>{links}</ul>", content_type="text/html")

    def _missing(self, plugin: KubeletPlugin) -> list[str]:
        registered = plugin.registration_status is not None and plugin.registration_status.registered
        return [
            *([] if registered else ["not registered"]),
            *([] if plugin.has_published else ["nothing was published yet"]),
            *map(str, plugin.problems.values()),
        ]


@asynccontextmanager
async def monitored(metrics: Metrics, endpoint: str, path: str) -> AsyncIterator[Probes]:
    """Serve metrics and probes on ``endpoint`` (``host:port``, ``:port``), entered before the plugin starts.

    So an address that cannot be used ends the process before anything is on disk, and before the kubelet hears of it.
    Raises SettingsError for a malformed endpoint and StartError when the address cannot be used.
    """
    host, port = address_of(endpoint)
    probes = Probes(metrics, path)
    runner = web.AppRunner(
        probes.app(),
        access_log=None,
        logger=request_log(),
        shutdown_timeout=_LAST_ANSWER_SECONDS,
        lingering_time=0,
    )
    await runner.setup()
    try:
        async with AsyncExitStack() as stack:
            try:
                address = await stack.enter_async_context(open_door(runner, host, port))
            except OSError as error:
                raise StartError(f"cannot serve HTTP on {endpoint}: {error}; choose another --http-endpoint") from error
            probes.address = ":".join(map(str, address))
            log.info("metrics and probes on http://%s", probes.address)
            yield probes
    finally:
        await runner.cleanup()


def address_of(endpoint: str) -> tuple[str | None, int]:
    """Host and port of ``HOST:PORT``. Raises SettingsError."""
    host, _, port = endpoint.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"the HTTP endpoint {endpoint!r} is not host:port, such as 127.0.0.1:8080 or :8080")
    return host.strip("[]") or None, int(port)
