"""Traces of what happens to a pod or claim, by OpenTelemetry, if that is installed and has somewhere to go.

``start_traces`` is called once by a program; the standard variables (``OTEL_EXPORTER_OTLP_ENDPOINT`` first of all)
configure the rest. Until then, and without them, ``span`` and ``begin`` cost a look at one variable. A value that costs
something to make is given as a function. Only this module knows OpenTelemetry.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from dra_api.console import not_installed

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

logger = logging.getLogger(__name__)

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_NOTHING: Final = nullcontext()
_tracer: Tracer | None = None


class Root:
    """A span that is entered several times, by one task after the other, until it is ended."""

    def within(self) -> AbstractContextManager[object]:
        """Spans that begin meanwhile are its children."""
        return _NOTHING

    def end(self, error: Exception | None = None) -> None:
        """What it stands for is over."""


_NO_ROOT: Final = Root()


class _Recorded(Root):
    def __init__(self, span: Span) -> None:
        self._span = span

    def within(self) -> AbstractContextManager[object]:
        from opentelemetry import trace

        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def end(self, error: Exception | None = None) -> None:
        from opentelemetry.trace import StatusCode

        if error is not None:
            self._span.record_exception(error)
            self._span.set_status(StatusCode.ERROR, str(error))
        self._span.end()


def span(name: str, **attributes: object) -> AbstractContextManager[object]:
    """What is done in the block; an exception that leaves it is recorded."""
    if _tracer is None:
        return _NOTHING
    return _tracer.start_as_current_span(name, attributes=_made(attributes))


def begin(name: str, **attributes: object) -> Root:
    """A span of its own, which may outlast the task that begins it."""
    if _tracer is None:
        return _NO_ROOT
    from opentelemetry.context import Context

    return _Recorded(_tracer.start_span(name, context=Context(), attributes=_made(attributes)))


def start_traces(service: str, **about: str) -> None:
    """Send spans to where the standard variables say; nothing without an endpoint. ``about`` describes the process."""
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        logger.warning("%s is set, but %s", _ENDPOINTS[0], not_installed("OpenTelemetry", "otel"))
        return
    record(BatchSpanProcessor(OTLPSpanExporter()), service, **about)


def record(processor: Any, service: str, **about: str) -> None:
    """Give all spans from now on to a processor of OpenTelemetry's SDK."""
    global _tracer
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    described = about if "OTEL_SERVICE_NAME" in os.environ else {"service.name": service, **about}
    provider = TracerProvider(resource=Resource.create(described))
    provider.add_span_processor(processor)
    _tracer = provider.get_tracer("kopf-dra")


def _made(attributes: Mapping[str, object]) -> dict[str, Any]:
    return {name: value() if callable(value) else value for name, value in attributes.items()}
