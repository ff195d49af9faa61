"""Surrounds every gRPC call with a request id, logs, and errors that the kubelet gets as readable text.

Spec: PH-06. ``Interceptor`` is also the base for a driver's own: override ``unary`` or ``stream``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import grpc
from dra_cdi import CdiError
from dra_kube import KubeError, NotFound
from google.protobuf.message import Message
from google.protobuf.text_format import MessageToString

from dra_kubeletplugin.driver import readable
from dra_kubeletplugin.errors import PluginError

Unary = Callable[[Message, Any], Awaitable[Message]]
Stream = Callable[[Message, Any], AsyncIterator[Message]]

request_id: ContextVar[int] = ContextVar("request_id", default=0)
"""Number of the gRPC call that the current task serves; 0 outside of calls."""

_numbers = itertools.count(1)


class Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic only in the stubs
    """Sees each call with its full method name; ``proceed`` calls the next interceptor or the service."""

    async def unary(self, method: str, request: Message, context: Any, proceed: Unary) -> Message:
        """A call with one answer."""
        return await proceed(request, context)

    async def stream(self, method: str, request: Message, context: Any, proceed: Stream) -> AsyncIterator[Message]:
        """A call with a stream of answers."""
        async for message in proceed(request, context):
            yield message

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Called by grpc for every request."""
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None:
            return None  # an unknown method, which grpc answers itself
        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary:

            async def unary(request: Message, context: Any) -> Message:
                return await self.unary(method, request, context, handler.unary_unary)

            return grpc.unary_unary_rpc_method_handler(unary, **codec)
        if handler.unary_stream:

            async def stream(request: Message, context: Any) -> AsyncIterator[Message]:
                async for message in self.stream(method, request, context, handler.unary_stream):
                    yield message

            return grpc.unary_stream_rpc_method_handler(stream, **codec)
        return handler


class LoggingInterceptor(Interceptor):
    """Numbers the requests of this process and logs them at ``level`` (None: not at all). Always logs failures."""

    def __init__(self, logger: logging.Logger, level: int | None) -> None:
        self._logger = logger
        self._level = level

    async def unary(self, method: str, request: Message, context: Any, proceed: Unary) -> Message:
        """Log request and answer."""
        self._begin(method, request)
        started = time.monotonic()
        try:
            answer = await proceed(request, context)
        except asyncio.CancelledError:
            seconds = time.monotonic() - started
            self._logger.warning(
                "request %d %s was cancelled by the caller after %.1f s", request_id.get(), method, seconds
            )
            raise
        except Exception as error:
            await self._fail(method, context, error)
            raise
        self._say("answer", method, answer)
        return answer

    async def stream(self, method: str, request: Message, context: Any, proceed: Stream) -> AsyncIterator[Message]:
        """Log the request and each message sent."""
        self._begin(method, request)
        try:
            async for message in proceed(request, context):
                self._say("message", method, message)
                yield message
        except Exception as error:
            await self._fail(method, context, error)
            raise

    def _begin(self, method: str, request: Message) -> None:
        request_id.set(next(_numbers))
        self._say("request", method, request)

    def _say(self, what: str, method: str, message: Message) -> None:
        if self._level is not None and self._logger.isEnabledFor(self._level):
            text = MessageToString(message, as_one_line=True)
            self._logger.log(self._level, "%s %d %s: %s", what, request_id.get(), method, text)

    async def _fail(self, method: str, context: Any, error: Exception) -> None:
        """Log the failure and end the call with its text; a bug of ours is logged with its trace."""
        if isinstance(error, grpc.aio.AbortError):
            self._logger.error("request %d %s failed: %s", request_id.get(), method, context.details())
            return
        expected = isinstance(error, PluginError | CdiError | KubeError | OSError)
        text = readable(str(error))
        self._logger.error("request %d %s failed: %s", request_id.get(), method, text, exc_info=not expected)
        await context.abort(_code(error), text or type(error).__name__)


def _code(error: Exception) -> grpc.StatusCode:
    if isinstance(error, NotFound):
        return grpc.StatusCode.NOT_FOUND
    if isinstance(error, PluginError | CdiError):
        return grpc.StatusCode.FAILED_PRECONDITION
    return grpc.StatusCode.UNKNOWN
