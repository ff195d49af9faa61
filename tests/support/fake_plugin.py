"""A plugin that speaks the wire protocol and nothing else, with faults to order, and its health service.

A ``CountingSocket`` in front of it counts the connections, and can cut them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, Self

import grpc
from dra_proto.dra.v1 import api_pb2 as v1
from dra_proto.dra.v1 import api_pb2_grpc as v1_grpc
from dra_proto.dra.v1beta1 import api_pb2 as v1beta1
from dra_proto.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from dra_proto.health.v1alpha1 import api_pb2 as messages
from dra_proto.registration.v1 import api_pb2 as registration
from dra_proto.registration.v1 import api_pb2_grpc as registration_grpc


class FakeHealth:
    """``report`` replaces the list that every stream gets; before the first report streams stay silent."""

    def __init__(self) -> None:
        self.streams = 0
        self.watching = 0
        self._list: list[dict[str, Any]] | None = None
        self._changes = 0
        self._news = asyncio.Condition()

    async def report(self, *devices: dict[str, Any]) -> None:
        """Send a full list; a device is given by ``pool``, ``device``, ``health`` and other fields of the message."""
        async with self._news:
            self._list = list(devices)
            self._changes += 1
            self._news.notify_all()

    async def watch(self, request: Any, context: Any) -> AsyncIterator[messages.NodeWatchResourcesResponse]:
        self.streams += 1
        self.watching += 1
        sent = 0
        try:
            while True:
                async with self._news:
                    while self._changes == sent:
                        await self._news.wait()
                    sent, devices = self._changes, self._list or ()
                yield messages.NodeWatchResourcesResponse(devices=[_message(**device) for device in devices])
        finally:
            self.watching -= 1


def _message(pool: str = "pool", device: str = "device-0", health: str = "HEALTHY", **fields: Any) -> Any:
    identifier = messages.DeviceIdentifier(pool_name=pool, device_name=device)
    return messages.DeviceHealth(device=identifier, health=messages.HealthStatus.Value(health), **fields)


# --- A plugin that speaks the wire protocol and nothing else, with faults to order ---

LEGACY = "v1alpha3.NodeService"


class FakePlugin:
    """A driver's plugin: a registration socket and a service socket.

    ``devices`` maps a claim's name to its devices as keyword arguments of the ``Device`` message (other claims get
    one device each). With ``cdi_root`` every prepared claim gets a CDI file that sets ``CLAIM_<name>=true``.
    """

    def __init__(self, folder: Path, driver: str, *, services: tuple[str, ...], instance: str = "") -> None:
        self.driver = driver
        self.services = services
        self.registration_socket = folder / "plugins_registry" / f"{driver}{instance}-reg.sock"
        self.service_socket = folder / "plugins" / f"{driver}{instance}" / "dra.sock"
        self.type = "DRAPlugin"
        self.endpoint: str | None = None
        self.devices: dict[str, list[dict[str, Any]]] = {}
        self.cdi_root: Path | None = None
        self.prepare_error = ""
        self.unprepare_error = ""
        self.prepare_aborts = False
        self.info_failures = 0
        self.notify_failures = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.prepared: list[list[str]] = []
        self.unprepared: list[list[str]] = []
        self.statuses: list[tuple[bool, str]] = []
        self.infos = 0
        self.results: Callable[[dict[str, Any]], dict[str, Any]] = lambda results: results
        self.health = FakeHealth()
        self._servers: dict[Path, grpc.aio.Server] = {}

    # --- life ---

    async def __aenter__(self) -> Self:
        await self.serve()
        await self.register()
        return self

    async def __aexit__(self, *_: object) -> None:
        for socket in list(self._servers):
            await self._end(socket)

    async def serve(self) -> None:
        server = grpc.aio.server()
        if "v1.DRAPlugin" in self.services:
            v1_grpc.add_DRAPluginServicer_to_server(DraService(self, v1), server)
        if "v1beta1.DRAPlugin" in self.services:
            v1beta1_grpc.add_DRAPluginServicer_to_server(DraService(self, v1beta1), server)
        if LEGACY in self.services:
            server.add_generic_rpc_handlers([_legacy(DraService(self, v1beta1))])
        health = [service for service in self.services if service.endswith(".DRAResourceHealth")]
        server.add_generic_rpc_handlers([health_handler(service, self.health.watch) for service in health])
        await self._begin(self.service_socket, server)

    async def register(self) -> None:
        server = grpc.aio.server()
        registration_grpc.add_RegistrationServicer_to_server(_Registration(self), server)
        await self._begin(self.registration_socket, server)

    async def stop_serving(self) -> None:
        """Close the service socket only."""
        await self._end(self.service_socket)

    async def unregister(self) -> None:
        """Close the registration socket only."""
        await self._end(self.registration_socket)

    async def _begin(self, socket: Path, server: grpc.aio.Server) -> None:
        socket.parent.mkdir(parents=True, exist_ok=True)
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        self._servers[socket] = server

    async def _end(self, socket: Path) -> None:
        server = self._servers.pop(socket, None)
        if server is not None:
            await server.stop(None)
            _remove(socket)

    # --- answers ---

    async def prepare(self, request: Any, messages: Any, context: Any) -> Any:
        self.prepared.append([claim.name for claim in request.claims])
        await self.gate.wait()
        if self.prepare_aborts:
            await context.abort(grpc.StatusCode.INTERNAL, "injected")
        results = {claim.uid: self._result(claim, messages) for claim in request.claims}
        return messages.NodePrepareResourcesResponse(claims=self.results(results))

    async def unprepare(self, request: Any, messages: Any, context: Any) -> Any:
        self.unprepared.append([claim.name for claim in request.claims])
        await self.gate.wait()
        result = messages.NodeUnprepareResourceResponse(error=self.unprepare_error)
        if self.cdi_root and not self.unprepare_error:
            for claim in request.claims:
                _remove(self.cdi_root / f"{self.driver}-{claim.name}.json")
        return messages.NodeUnprepareResourcesResponse(
            claims=self.results({claim.uid: result for claim in request.claims})
        )

    def _result(self, claim: Any, messages: Any) -> Any:
        if self.prepare_error:
            return messages.NodePrepareResourceResponse(error=self.prepare_error)
        ids = self._write_cdi(claim.name)
        default = [{"pool_name": "pool", "device_name": "device-0", "cdi_device_ids": ids}]
        devices = self.devices.get(claim.name, default)
        return messages.NodePrepareResourceResponse(devices=[messages.Device(**device) for device in devices])

    def _write_cdi(self, claim: str) -> list[str]:
        if self.cdi_root is None:
            return [f"{self.driver}/claim={claim}"]
        edits = {"env": [f"CLAIM_{claim}=true"]}
        spec = {
            "cdiVersion": "0.6.0",
            "kind": f"{self.driver}/claim",
            "devices": [{"name": claim, "containerEdits": edits}],
        }
        (self.cdi_root / f"{self.driver}-{claim}.json").write_text(json.dumps(spec))
        return [f"{self.driver}/claim={claim}"]


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


class Answering(Protocol):
    """Answers calls; ``messages`` are those of the version in which it is asked."""

    async def prepare(self, request: Any, messages: Any, context: Any) -> Any: ...
    async def unprepare(self, request: Any, messages: Any, context: Any) -> Any: ...


class DraService(v1_grpc.DRAPluginServicer, v1beta1_grpc.DRAPluginServicer):
    """Serves either version: they have the same methods."""

    def __init__(self, plugin: Answering, messages: Any) -> None:
        self._plugin = plugin
        self._messages = messages

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802  (name of the RPC)
        return await self._plugin.prepare(request, self._messages, context)

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802  (name of the RPC)
        return await self._plugin.unprepare(request, self._messages, context)


def health_handler(service: str, watch: Callable[[Any, Any], Any]) -> grpc.GenericRpcHandler[Any, Any]:
    """Serve streams of health under the name of either version."""
    method = grpc.unary_stream_rpc_method_handler(
        watch,
        request_deserializer=messages.NodeWatchResourcesRequest.FromString,
        response_serializer=messages.NodeWatchResourcesResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(service, {"NodeWatchResources": method})


def _legacy(dra: DraService) -> grpc.GenericRpcHandler[Any, Any]:
    """The service of Kubernetes before 1.32: that of v1beta1 under another name."""
    pairs: dict[str, tuple[Any, Any]] = {
        "NodePrepareResources": (v1beta1.NodePrepareResourcesRequest, v1beta1.NodePrepareResourcesResponse),
        "NodeUnprepareResources": (v1beta1.NodeUnprepareResourcesRequest, v1beta1.NodeUnprepareResourcesResponse),
    }
    methods = {
        name: grpc.unary_unary_rpc_method_handler(
            getattr(dra, name), request_deserializer=ask.FromString, response_serializer=answer.SerializeToString
        )
        for name, (ask, answer) in pairs.items()
    }
    return grpc.method_handlers_generic_handler("v1alpha3.Node", methods)


class _Registration(registration_grpc.RegistrationServicer):
    def __init__(self, plugin: FakePlugin) -> None:
        self._plugin = plugin

    async def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802  (name of the RPC)
        plugin = self._plugin
        plugin.infos += 1
        if plugin.info_failures:
            plugin.info_failures -= 1
            await context.abort(grpc.StatusCode.INTERNAL, "injected")
        endpoint = str(plugin.service_socket) if plugin.endpoint is None else plugin.endpoint
        return registration.PluginInfo(
            type=plugin.type, name=plugin.driver, endpoint=endpoint, supported_versions=plugin.services
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802  (name of the RPC)
        plugin = self._plugin
        if plugin.notify_failures:
            plugin.notify_failures -= 1
            await context.abort(grpc.StatusCode.INTERNAL, "injected")
        plugin.statuses.append((request.plugin_registered, request.error))
        return registration.RegistrationStatusResponse()


MakePlugin = Callable[..., FakePlugin]
"""Makes a plugin that is closed at the end of the test."""


class CountingSocket:
    """Listens at ``path`` and passes every connection on to ``target``."""

    def __init__(self, path: Path, target: Path) -> None:
        self.path = path
        self.connections = 0
        self._target = target
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._connected, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        for writer in self._open:
            writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(OSError):
            there, back = await asyncio.open_unix_connection(self._target)
            self._open |= {writer, back}
            await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
            self._open -= {writer, back}


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()
