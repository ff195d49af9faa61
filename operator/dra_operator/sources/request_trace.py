"""Measures the requests of a session that is not ours: Kopf's."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import aiohttp
from dra_kube import Observe


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
