"""The seat of the kubelet: it registers plugins whose sockets appear, and calls them.

Registration is the node agent's of the development cluster, and so are the calls with their judgement of the answers
(KM-03, KM-06, KM-07, KM-14, KM-19).
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import grpc
from dra_devcluster.agent.errors import ClaimError
from dra_devcluster.agent.plugins.plugin import (
    ClaimRef,
    DraPlugin,
    PluginInstances,
    PreparedDevice,
    choose_service,
    describe,
    open_channel,
)
from dra_devcluster.agent.plugins.registration import Registrar
from dra_devcluster.agent.settings import AgentSettings, Backoff
from dra_devcluster.background import cancelled
from dra_proto.health.v1 import api_pb2 as health_pb2
from dra_proto.registration.v1 import api_pb2 as registration_pb2
from dra_proto.registration.v1 import api_pb2_grpc as registration_grpc
from google.protobuf.text_format import MessageToString

from dra_driver_test.errors import Finding
from dra_driver_test.harness.waiting import Limits

from .waiting import eventually

Answer = dict[str, tuple[PreparedDevice, ...]]
"""The prepared devices by claim uid."""
TYPE = "DRAPlugin"
"""What GetInfo of a DRA driver says that it is."""
V1, V1BETA1 = "v1.DRAPlugin", "v1beta1.DRAPlugin"


MOST_CALLS = 20
"""Different calls for registration that are remembered."""


class Call(NamedTuple):
    socket: str
    request: str
    answer: str


@dataclass(frozen=True, slots=True)
class Registration:
    identity: uuid.UUID
    socket: Path
    driver: str
    endpoint: str


class Handler:
    """Takes registered plugins into use (KM-06 to KM-08)."""

    def __init__(self) -> None:
        self.instances: PluginInstances[DraPlugin] = PluginInstances()

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Raises RegistrationError for a plugin without a version of the service that a kubelet speaks."""
        choose_service(versions)

    async def register(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Raises RegistrationError for an endpoint that is taken."""
        self.instances.check_free(name, endpoint)
        self.instances.add(DraPlugin(name, endpoint, choose_service(versions), lambda _: None))

    async def deregister(self, name: str, endpoint: str) -> None:
        plugin = self.instances.remove(name, endpoint)
        if plugin is not None:
            await plugin.close()

    async def close(self) -> None:
        await asyncio.gather(*(plugin.close() for plugin in self.instances.instances()))


class KubeletSeat:
    """An async context manager: while it is entered, plugins get registered.

    ``shares_registry``: the folder is that of a real node, and other plugins in it are not to notice the bench. These
    are all but DRA drivers, or all but ``driver`` if it is named.
    """

    def __init__(self, registry: Path, limits: Limits, *, shares_registry: bool = False, driver: str = "") -> None:
        self._registry = registry
        self._limits = limits
        self._shares_registry = shares_registry
        self._driver = driver
        self._handler = Handler()
        settings = AgentSettings(
            plugin_period=limits.tick,
            dial_timeout=limits.notify,
            info_timeout=limits.info,
            notify_timeout=limits.notify,
            registration_backoff=Backoff(2 * limits.tick, 1.0),
        )
        self._calls: Counter[Call] = Counter()
        self._registrar = Registrar(
            registry, {TYPE: self._handler}, settings, is_for_kubelet=self._is_of_others, heard=self._note
        )
        self._work: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._work = asyncio.create_task(self._registrar.run(), name="plugin registration")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._work is not None
        await cancelled(self._work)
        await self._handler.close()

    def _is_of_others(self, info: registration_pb2.PluginInfo) -> bool:
        """Whether the plugin is one of a real node, and not the driver under test."""
        return self._shares_registry and (info.type != TYPE or self._driver not in ("", info.name))

    # --- registration ---

    def registrations(self) -> list[Registration]:
        """What is registered now and stays so: the plugin has been notified, and its socket was not made anew since."""
        sockets = self._registrar.sockets
        return [
            Registration(known.identity, Path(path), known.name, known.endpoint)
            for path, known in sockets.actual.items()
            if path not in sockets.busy and sockets.desired.get(path) == known.identity
        ]

    def sockets(self) -> list[Path]:
        return sorted(path for path in self._registry.rglob("*") if path.is_socket() and path.name[0] != ".")

    async def drivers(self) -> list[tuple[Path, str]]:
        """Socket and name of each DRA driver in the registration folder."""
        found = []
        for socket in self.sockets():
            with suppress(Finding):
                info = await self.info(socket)
                if info.type == TYPE:
                    found.append((socket, str(info.name)))
        return found

    async def registered(
        self, but: Iterable[Registration] = (), ended: Callable[[], str | None] = lambda: None, driver: str = ""
    ) -> Registration:
        """Wait for a registration, of this driver if one is named, that is not among those, unless the driver ended.

        Raises Finding, which says what stands in the way.
        """
        old = {known.identity for known in but}

        async def look() -> Registration | str | None:
            found = [known for known in self.registrations() if known.identity not in old]
            return next((known for known in found if driver in ("", known.driver)), None) or ended()

        try:
            seen: Registration | str = await eventually(
                "the driver is registered", look, self._limits.registered, self._limits
            )
        except Finding:
            text = f"the driver is not registered after {self._limits.registered:g} s: {await self.obstacle()}"
            raise Finding(text + self.told()) from None
        if isinstance(seen, str):
            raise Finding("the driver ended before it was registered" + self.told())
        return seen

    def _note(self, socket: str, request: Any, answer: Any) -> None:
        name = "GetInfo" if isinstance(request, registration_pb2.InfoRequest) else "NotifyRegistrationStatus"
        shown = answer if isinstance(answer, str) else MessageToString(answer, as_one_line=True) or "no error"
        call = Call(Path(socket).name, f"{name}({MessageToString(request, as_one_line=True)})", shown)
        if call in self._calls or len(self._calls) < MOST_CALLS:
            self._calls[call] += 1

    def told(self) -> str:
        """The calls for registration so far, with requests and answers, as lines; empty if there were none."""
        lines = []
        for call, times in self._calls.items():
            often = f" ({times} times)" * (times > 1)
            lines.append(f"\n  {call.socket}: {call.request}{often}: {call.answer}")
        return "".join(["\ncalls to the driver, with its answers:", *lines]) if lines else ""

    async def obstacle(self) -> str:
        """Why no plugin gets registered, in words."""
        sockets = self.sockets()
        if not sockets:
            return f"there is no socket in {self._registry}"
        found = []
        for socket in sockets:
            try:
                info = await self.info(socket)
                if info.type != TYPE:
                    found.append(f"{socket.name}: the type is {info.type!r} instead of {TYPE!r}")
                elif self._is_of_others(info):
                    found.append(f"{socket.name}: the driver is {info.name}, not {self._driver}")
                else:
                    choose_service(list(info.supported_versions))
                    await self.notify(socket)
            except Exception as error:
                found.append(f"{socket.name}: {error}")
        return "; ".join(found) or "unknown"

    async def info(self, socket: Path, timeout: float | None = None) -> registration_pb2.PluginInfo:
        """What the plugin says to GetInfo. Raises Finding."""
        request = registration_pb2.InfoRequest()
        info: registration_pb2.PluginInfo = await self._call(socket, "GetInfo", request, timeout or self._limits.answer)
        return info

    async def notify(self, socket: Path, error: str = "") -> None:
        """Tell the plugin that it is registered, or why not. Raises Finding."""
        status = registration_pb2.RegistrationStatus(plugin_registered=not error, error=error)
        await self._call(socket, "NotifyRegistrationStatus", status, self._limits.notify)

    async def _call(self, socket: Path, method: str, request: Any, timeout: float) -> Any:
        """The answer on a connection of its own. Raises Finding."""
        channel = open_channel(str(socket))
        try:
            answer = await getattr(registration_grpc.RegistrationStub(channel), method)(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            self._note(str(socket), request, describe(error))
            raise Finding(f"{method}: {describe(error)}") from error
        finally:
            await channel.close(None)
        self._note(str(socket), request, answer)
        return answer

    # --- calls ---

    def plugin(self, registration: Registration) -> DraPlugin:
        """The connection that a kubelet uses for this registration."""
        for plugin in self._handler.instances.instances():
            if plugin.endpoint == registration.endpoint:
                return plugin
        raise Finding(f"the plugin at {registration.endpoint} is not registered any more")

    @asynccontextmanager
    async def connection(self, registration: Registration, service: str) -> AsyncIterator[DraPlugin]:
        """A connection of its own that speaks one version of the service."""
        plugin = DraPlugin(registration.driver, registration.endpoint, service, lambda _: None)
        try:
            yield plugin
        finally:
            await plugin.close()

    async def prepare(self, plugin: DraPlugin, refs: Iterable[ClaimRef], timeout: float | None = None) -> Answer:
        """Devices by claim uid. Raises Finding for what a kubelet would report."""
        try:
            return await plugin.prepare(refs, timeout or self._limits.call)
        except ClaimError as error:
            raise Finding(str(error)) from error

    async def unprepare(self, plugin: DraPlugin, refs: Iterable[ClaimRef], timeout: float | None = None) -> None:
        """Raises Finding for what a kubelet would report."""
        try:
            await plugin.unprepare(refs, timeout or self._limits.call)
        except ClaimError as error:
            raise Finding(str(error)) from error

    @asynccontextmanager
    async def health(self, registration: Registration, service: str) -> AsyncIterator[AsyncIterator[Any]]:
        """The messages of a version of the health service on a connection of its own; all have the same messages."""
        channel = open_channel(registration.endpoint)
        try:
            watch = channel.unary_stream(
                f"/{service}/NodeWatchResources",
                request_serializer=health_pb2.NodeWatchResourcesRequest.SerializeToString,
                response_deserializer=health_pb2.NodeWatchResourcesResponse.FromString,
            )
            call = watch(health_pb2.NodeWatchResourcesRequest())
            yield aiter(call)
            call.cancel()
        finally:
            await channel.close(None)
