"""A driver that does everything right, except for the faults that it is told to have.

It is written without the plugin library, and runs in the process of the tests. The table of tests/drivertest says which
check has to find which fault.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
from bad_driver_claims import ClaimWork
from bad_driver_health import SERVICES, HealthService
from bad_driver_node import BadNode, Damaged
from bad_driver_slices import SliceWork
from dra_driver_test.kit import Place, Running
from dra_kube import Api, KubeError, connection
from dra_proto.dra.v1 import api_pb2 as v1
from dra_proto.dra.v1 import api_pb2_grpc as v1_grpc
from dra_proto.dra.v1beta1 import api_pb2 as v1beta1
from dra_proto.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from dra_proto.registration.v1 import api_pb2 as registration
from dra_proto.registration.v1 import api_pb2_grpc as registration_grpc

V1, V1BETA1 = "v1.DRAPlugin", "v1beta1.DRAPlugin"


class BadLauncher:
    """Starts instances of the driver in this process."""

    overlaps = True

    def __init__(self, driver: str, *faults: str) -> None:
        self._driver = driver
        self._faults = frozenset(faults)
        self._node: BadNode | None = None

    async def start(self, place: Place, uid: str) -> Running:
        """Start an instance."""
        self._node = self._node or BadNode(place, self._driver, self._faults)
        self._node.starts += 1
        instance = Instance(self._node, uid)
        await instance.start()
        return instance


class Instance:
    """One running instance."""

    def __init__(self, node: BadNode, uid: str) -> None:
        self.node = node
        self.name = node.driver_name
        part = "" if node.has("one socket for all instances") else f"-{uid}"
        self.registration_socket = node.place.registry / f"{node.driver}{part}-reg.sock"
        self.service_socket = node.folder / f"dra{part[-8:]}.sock"
        self.stopped = False
        self._ended: str | None = None
        self._stack = AsyncExitStack()
        self._claims: ClaimWork | None = None

    async def _write_anew(self) -> None:
        """Write the state again, soon after the start."""
        if not self.node.has("a start writes its state in place"):
            return
        self._stack.callback(self._later.cancel)
        with suppress(Damaged):
            if state := self.node.state():
                await self.node.write_in_place(state)

    async def start(self) -> None:
        """Serve, publish and register. What goes wrong ends the driver, as it would end a process."""
        try:
            await self._start()
        except Exception as error:
            self._ended = f"the driver ended: {error}"
            await self._stack.aclose()

    async def _start(self) -> None:
        node = self.node
        node.folder.mkdir(exist_ok=True)
        node.check_start()
        api = await self._stack.enter_async_context(Api(connection(node.place.kubeconfig)))
        try:
            await node.check_claims(api)
        except KubeError:
            if node.has("it waits for ever when its start fails"):
                return
            raise
        slices = SliceWork(node, api)
        self._slices = slices
        await slices.start()
        self._stack.push_async_callback(slices.end)
        claims = self._claims = ClaimWork(node, api)
        server = self._dra_server(claims)
        starts = [(self.service_socket, server), (self.registration_socket, self._registration_server(claims))]
        if node.has("it registers before it serves"):
            await self._listen(*starts.pop(1))
            late = asyncio.create_task(self._listen(*starts[0], delay=2.0))
            self._stack.callback(late.cancel)
            return
        for path, each in starts:
            await self._listen(path, each)
        self._later = asyncio.create_task(self._write_anew())

    async def _listen(self, path: Path, server: grpc.aio.Server, delay: float = 0.0) -> None:
        await asyncio.sleep(delay)
        self._bind(path, server)
        await server.start()
        self._stack.push_async_callback(server.stop, None)

    def _bind(self, path: Path, server: grpc.aio.Server) -> None:
        if path.exists() and self.node.has("it trips over stale sockets"):
            raise OSError(f"{path} is in use")
        path.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{path}")
        if self.node.has("every user can write to its sockets"):
            path.chmod(0o777)

    def _dra_server(self, claims: ClaimWork) -> grpc.aio.Server:
        server = grpc.aio.server()
        v1_grpc.add_DRAPluginServicer_to_server(DraService(claims, v1), server)
        if not self.node.has("v1beta1 is offered and not served"):
            v1beta1_grpc.add_DRAPluginServicer_to_server(DraService(claims, v1beta1), server)
        HealthService(self.node, claims).add_to(server)
        return server

    def _registration_server(self, claims: ClaimWork) -> grpc.aio.Server:
        server = grpc.aio.server()
        service = RegistrationService(self, claims)
        registration_grpc.add_RegistrationServicer_to_server(service, server)
        return server

    # --- Running ---

    async def stop(self) -> bool:
        """End as after SIGTERM."""
        if self._ended is None and self.node.has("it withdraws its slices when it stops"):
            await self._slices.withdraw()
        self.node.remember()
        if self._claims and self._claims.last_state is not None and self.node.has("it writes what it knows at its end"):
            await self.node.save(self._claims.last_state)
        await self._stack.aclose()
        for path in (self.registration_socket, self.service_socket):
            path.unlink(missing_ok=True)
        if self.node.has("it leaves its registration socket"):
            _stale(self.registration_socket)
        if self.node.has("it leaves its service socket"):
            _stale(self.service_socket)
        if self.node.has("it takes all sockets along"):
            for path in self.node.place.registry.glob("*.sock"):
                path.unlink()
        return not self.node.has("it ignores SIGTERM")

    async def kill(self) -> None:
        """End as after SIGKILL: the sockets stay."""
        await self._stack.aclose()
        if self._ended is None:
            for path in (self.registration_socket, self.service_socket):
                _stale(path)

    def why_ended(self) -> str | None:
        """Why it could not start, or gave up."""
        return self._ended

    async def give_up(self) -> None:
        """End by its own decision."""
        self._ended = "the driver ended: not registered"
        await self._stack.aclose()


def _stale(path: Path) -> None:
    """A socket at which nothing listens; gRPC removes its own when a server ends."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


class RegistrationService(registration_grpc.RegistrationServicer):
    def __init__(self, instance: Instance, claims: ClaimWork) -> None:
        self._instance = instance
        self._claims = claims
        self._infos = 0
        self._leaving: asyncio.Task[None] | None = None

    async def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802  (name of the RPC)
        has, instance = self._instance.node.has, self._instance
        self._infos += 1
        if has("GetInfo takes long"):
            await asyncio.sleep(2)
        if has("GetInfo waits for calls"):
            await self._claims.idle()
        if has("GetInfo works once") and self._infos > 1:
            await context.abort(grpc.StatusCode.INTERNAL, "asked already")
        endpoint = str(instance.service_socket)
        if has("the endpoint is relative"):
            endpoint = instance.service_socket.name
        if has("the endpoint does not exist"):
            endpoint += ".missing"
        return registration.PluginInfo(
            type="CSIPlugin" if has("it is a CSI plugin") else "DRAPlugin",
            name=instance.name,
            endpoint=endpoint,
            supported_versions=_services(has) + (["v1.Extra"] * (self._infos % 2) if has("GetInfo changes") else []),
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802  (name of the RPC)
        has = self._instance.node.has
        if has("it refuses its registration"):
            await context.abort(grpc.StatusCode.INTERNAL, "not wanted")
        if not request.plugin_registered and has("it gives up after a refusal"):
            self._leaving = asyncio.create_task(self._instance.give_up())
        return registration.RegistrationStatusResponse()


def _services(has: Any) -> list[str]:
    if has("it offers version numbers"):
        return ["1.0.0"]
    if has("it offers v1beta1 only"):
        return [V1BETA1]
    services = [V1BETA1, V1] if has("it offers v1beta1 first") else [V1, V1BETA1]
    if has("it offers a misspelt service"):
        services.append("v1.DRAHealth")
    unsaid = [name for name in SERVICES if has("health is served and not offered", f"{name} is served and not offered")]
    return [*services, *(name for name in SERVICES if name not in unsaid)]


class DraService(v1_grpc.DRAPluginServicer, v1beta1_grpc.DRAPluginServicer):
    """Serves either version: they have the same methods."""

    def __init__(self, claims: ClaimWork, messages: Any) -> None:
        self._claims = claims
        self._messages = messages

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802  (name of the RPC)
        return await self._claims.prepare(list(request.claims), self._messages, context)

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802  (name of the RPC)
        return await self._claims.unprepare(list(request.claims), self._messages, context)
