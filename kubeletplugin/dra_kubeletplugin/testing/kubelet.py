"""A kubelet that calls a plugin over its sockets, a record of the calls, and faults on order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from dra_api.codec import convert
from dra_api.resource import ResourceClaim
from dra_proto.health.v1 import api_pb2 as health_pb2
from dra_proto.registration.v1 import api_pb2 as registration_pb2
from dra_proto.registration.v1 import api_pb2_grpc as registration_grpc
from google.protobuf.message import Message

from dra_kubeletplugin.claims.calls import V1, WireVersion
from dra_kubeletplugin.driver import ClaimRef
from dra_kubeletplugin.errors import PluginError
from dra_kubeletplugin.kubelet.health import HEALTH_SERVICES
from dra_kubeletplugin.kubelet.server import Interceptor, Stream, Unary
from dra_kubeletplugin.settings import PluginSettings


def allocated_claim(
    driver: str,
    *devices: str,
    name: str = "claim",
    requests: Mapping[str, Sequence[str]] | None = None,
    parameters: dict[str, Any] | None = None,
    class_parameters: dict[str, Any] | None = None,
    **fields: Any,
) -> ResourceClaim:
    """A claim that holds devices, each given as ``pool/device``, for its request ``req``.

    ``requests`` has devices of further requests by their names (``request`` or ``request/subrequest``). ``parameters``
    is the claim's configuration for the driver, ``class_parameters`` that of its class; ``fields`` go into each
    allocation result.
    """
    results = []
    for request, names in {"req": devices, **(requests or {})}.items():
        for device in names:
            pool, _, device_name = device.rpartition("/")
            results.append({"request": request, "driver": driver, "pool": pool, "device": device_name, **fields})
    config = [
        {"source": source, "opaque": {"driver": driver, "parameters": given}}
        for source, given in (("FromClass", class_parameters), ("FromClaim", parameters))
        if given is not None
    ]
    claim: ResourceClaim = convert(
        ResourceClaim,
        {
            "metadata": {"namespace": "default", "name": name, "uid": f"uid-of-{name}"},
            "status": {"allocation": {"devices": {"results": results, "config": config}}},
        },
    )
    return claim


class FakeKubelet:
    """Calls a plugin over its sockets as a kubelet would; an async context manager.

    A call raises ``grpc.aio.AioRpcError`` if the plugin fails it.
    """

    def __init__(self, settings: PluginSettings) -> None:
        self._settings = settings
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        registration = await self._channel(self._settings.registration_path)
        self._registration: Any = registration_grpc.RegistrationStub(registration)
        self._plugin = await self._channel(self._settings.plugin_path)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def get_info(self) -> registration_pb2.PluginInfo:
        """The plugin's answer to GetInfo."""
        info: registration_pb2.PluginInfo = await self._registration.GetInfo(registration_pb2.InfoRequest())
        return info

    async def notify(self, *, registered: bool, error: str = "") -> None:
        """Tell the plugin whether it is registered."""
        status = registration_pb2.RegistrationStatus(plugin_registered=registered, error=error)
        await self._registration.NotifyRegistrationStatus(status)

    async def register(self) -> registration_pb2.PluginInfo:
        """The whole registration, with success."""
        info = await self.get_info()
        await self.notify(registered=True)
        return info

    async def prepare(
        self, claims: Iterable[ClaimRef], version: WireVersion = V1, *, deadline: float | None = None
    ) -> dict[str, Any]:
        """The answers by claim uid, with ``devices`` and ``error``; ``deadline`` seconds later the kubelet gives up."""
        return await self._call(version, "NodePrepareResources", claims, deadline)

    async def unprepare(
        self, claims: Iterable[ClaimRef], version: WireVersion = V1, *, deadline: float | None = None
    ) -> dict[str, Any]:
        """The answers by claim uid, with ``error``; ``deadline`` seconds later the kubelet gives up."""
        return await self._call(version, "NodeUnprepareResources", claims, deadline)

    async def health(self, service: str = HEALTH_SERVICES[0]) -> AsyncIterator[list[health_pb2.DeviceHealth]]:
        """The reports of devices' health, as they come."""
        watch: Any = self._plugin.unary_stream(
            f"/{service}/NodeWatchResources",
            request_serializer=health_pb2.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health_pb2.NodeWatchResourcesResponse.FromString,
        )
        async for message in watch(health_pb2.NodeWatchResourcesRequest()):
            yield list(message.devices)

    async def _call(
        self, version: WireVersion, method: str, claims: Iterable[ClaimRef], deadline: float | None
    ) -> dict[str, Any]:
        messages = version.messages
        request = getattr(messages, f"{method}Request")(
            claims=[messages.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims]
        )
        call: Any = self._plugin.unary_unary(
            f"/{version.service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(messages, f"{method}Response").FromString,
        )
        return dict((await call(request, timeout=deadline)).claims)

    async def _channel(self, path: Path) -> grpc.aio.Channel:
        # Without an authority of its own, the percent-encoded path would be sent, which some servers refuse.
        options = [("grpc.default_authority", "localhost")]
        channel = grpc.aio.insecure_channel(f"unix:{path}", options=options)
        return await self._stack.enter_async_context(channel)


@dataclass(slots=True)
class Call:
    """One gRPC call; without ``response`` and ``error`` it is still running."""

    method: str
    request: Any  # a message of the kubelet's gRPC version, which ``method`` names
    response: Any = None
    error: BaseException | None = None


class CallRecorder(Interceptor):
    """Remembers the calls in the order of their arrival."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._changed = asyncio.Condition()

    def count(self, suffix: str) -> int:
        """How many calls of methods ending in ``suffix`` have arrived."""
        return sum(call.method.endswith(suffix) for call in self.calls)

    async def arrived(self, suffix: str, count: int = 1) -> None:
        """Wait until so many such calls have arrived."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.count(suffix) >= count)

    def reset(self) -> None:
        """Forget them all."""
        self.calls.clear()

    async def unary(self, method: str, request: Message, context: Any, proceed: Unary) -> Message:
        """Record the call."""
        call = Call(method, request)
        async with self._changed:
            self.calls.append(call)
            self._changed.notify_all()
        try:
            call.response = response = await proceed(request, context)
        except BaseException as error:
            call.error = error
            raise
        return response


class InjectedFault(PluginError):
    """The failure that a test ordered."""


class Faults(Interceptor):
    """Fails or holds up calls on order. Methods are given by the end of their full name."""

    def __init__(self) -> None:
        self._failing: dict[str, str] = {}
        self._blocked: dict[str, asyncio.Event] = {}

    @contextmanager
    def failing(self, method: str, message: str = "injected error") -> Iterator[None]:
        """Fail such calls before they reach the driver."""
        self._failing[method] = message
        try:
            yield
        finally:
            del self._failing[method]

    @contextmanager
    def blocking(self, method: str) -> Iterator[None]:
        """Hold up such calls until the end of the block."""
        self._blocked[method] = asyncio.Event()
        try:
            yield
        finally:
            self._blocked.pop(method).set()

    async def unary(self, method: str, request: Message, context: Any, proceed: Unary) -> Message:
        """Wait, fail, or proceed."""
        await self._interfere(method)
        return await proceed(request, context)

    async def stream(self, method: str, request: Message, context: Any, proceed: Stream) -> AsyncIterator[Message]:
        """Wait, fail, or proceed."""
        await self._interfere(method)
        async for message in proceed(request, context):
            yield message

    async def _interfere(self, method: str) -> None:
        for suffix, gate in list(self._blocked.items()):
            if method.endswith(suffix):
                await gate.wait()
        for suffix, message in self._failing.items():
            if method.endswith(suffix):
                raise InjectedFault(message)
