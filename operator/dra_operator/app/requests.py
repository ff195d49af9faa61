"""Logs requests to the API server, ours and Kopf's, at the second verbosity.

A line has method, path, status and time. It has no query, header or body, because these may hold tokens and secrets.
"""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any

import aiohttp
from dra_kube import Observe

from dra_operator.reconcile import tell

logger = logging.getLogger(__name__)


def log_request(method: str, path: str, status: int, seconds: float) -> None:
    """A request was answered; status 0: it was not."""
    if logger.isEnabledFor(logging.DEBUG):
        tell(logger, logging.DEBUG, "request", method=method, path=path, status=status, ms=round(seconds * 1000, 1))


def observed(observe: Observe) -> aiohttp.TraceConfig:
    """The configuration of a session that calls ``observe`` for each request; for Kopf's session."""

    async def start(_: Any, ctx: SimpleNamespace, __: aiohttp.TraceRequestStartParams) -> None:
        ctx.began = time.perf_counter()

    async def end(_: Any, ctx: SimpleNamespace, params: aiohttp.TraceRequestEndParams) -> None:
        observe(params.method, params.url.path, params.response.status, time.perf_counter() - ctx.began)

    async def fail(_: Any, ctx: SimpleNamespace, params: aiohttp.TraceRequestExceptionParams) -> None:
        observe(params.method, params.url.path, 0, time.perf_counter() - ctx.began)

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(start)
    trace.on_request_end.append(end)
    trace.on_request_exception.append(fail)
    return trace
