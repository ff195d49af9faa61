"""A node for tests of drivers: everything around the plugin that a driver can see, in one process and one folder.

A kubelet calls the plugin over its sockets; interceptors record the calls, and fail them on order.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest import mock

import grpc
from dra_api.codec import convert, to_dict
from dra_api.resource import POD_CLAIM_NAME_ANNOTATION, ResourceClaim
from dra_cdi import CdiDirectory, ContainerEdits
from dra_kube import NODES, RESOURCE_CLAIMS
from dra_proto.health.v1 import api_pb2 as health_pb2
from dra_proto.registration.v1 import api_pb2 as registration_pb2
from dra_proto.registration.v1 import api_pb2_grpc as registration_grpc
from google.protobuf.message import Message

from dra_kubeletplugin.claims.calls import V1, WireVersion
from dra_kubeletplugin.driver import ClaimRef, Driver
from dra_kubeletplugin.errors import PluginError
from dra_kubeletplugin.files import checkpoint
from dra_kubeletplugin.health import HEALTH_SERVICES
from dra_kubeletplugin.kubelet import Interceptor, Stream, Unary
from dra_kubeletplugin.plugin import KubeletPlugin
from dra_kubeletplugin.settings import PluginSettings

from .api import PluginApi


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


class ClaimFailed(PluginError):
    """The plugin answered a claim with an error; the message is what the kubelet shows."""


@dataclass(frozen=True, slots=True)
class Container:
    """What a container with a prepared claim gets: its devices, as ``pool/device``, their CDI ids, and their edits."""

    devices: tuple[str, ...]
    cdi_ids: tuple[str, ...]
    edits: ContainerEdits

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the edits set."""
        return self.edits.environment()


class DriverNode:
    """A node named ``name`` whose folders lie in ``root``; a context manager.

    ``api`` is its API server. ``files`` are the CDI files that a container runtime reads.
    """

    def __init__(self, root: Path, name: str = "worker-1") -> None:
        self.root = root
        self.name = name
        self.api = PluginApi()
        self.cdi_dir = root / "cdi"
        self.registry_dir = root / "registry"
        self.files = CdiDirectory(self.cdi_dir)
        self._boot_id = root / "boot_id"
        self._boots = itertools.count(1)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.registry_dir.mkdir(parents=True, exist_ok=True)
        self._boot_id.write_text(f"boot-{next(self._boots)}")
        self._stack.enter_context(mock.patch.object(checkpoint, "BOOT_ID", self._boot_id))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def settings(self, driver: str, **changes: Any) -> PluginSettings:
        """The settings of a plugin on this node, in its folders."""
        folders = {"registry_dir": self.registry_dir, "data_dir": self.root / driver, "cdi_dir": self.cdi_dir}
        return PluginSettings(**{"driver_name": driver, "node_name": self.name, **folders, **changes})

    @asynccontextmanager
    async def run(
        self, driver: Callable[[], Driver], name: str, *, interceptors: Iterable[Interceptor] = (), **settings: Any
    ) -> AsyncIterator[RunningDriver]:
        """The driver ``name`` at work; ``driver`` makes its object, anew after each restart.

        ``settings`` are fields of PluginSettings, beside those for the folders.
        """
        await self.api.put(NODES, {"metadata": {"name": self.name}})
        running = RunningDriver(self, driver, self.settings(name, **settings), tuple(interceptors))
        await running.start()
        try:
            yield running
        finally:
            await running.stop()

    def container(self, devices: Iterable[str], cdi_ids: Iterable[str]) -> Container:
        """What a container runtime makes of these ids.

        Raises CdiError, which names the file at fault, as for each file in the folder that a runtime would refuse.
        """
        index = self.files.index()
        for file, error in index.errors.items():
            raise type(error)(f"{file}: {error}")
        ids = tuple(dict.fromkeys(cdi_ids))
        return Container(tuple(devices), ids, index.resolve(ids))

    def new_boot(self) -> None:
        """What a reboot does to the folders: ``/run`` is empty, and the boot has another id."""
        for path in self.cdi_dir.glob("*"):
            path.unlink()
        self._boot_id.write_text(f"boot-{next(self._boots)}")


@dataclass
class RunningDriver:
    """A driver on a node, which a kubelet calls.

    ``driver`` and ``plugin`` are those of the process that runs now; ``calls`` and ``faults`` outlive a restart.
    """

    node: DriverNode
    make: Callable[[], Driver]
    settings: PluginSettings
    interceptors: tuple[Interceptor, ...] = ()
    calls: CallRecorder = field(default_factory=CallRecorder)
    faults: Faults = field(default_factory=Faults)
    driver: Driver = field(init=False)
    plugin: KubeletPlugin = field(init=False)
    kubelet: FakeKubelet = field(init=False)
    _stack: AsyncExitStack = field(init=False, default_factory=AsyncExitStack)

    async def start(self) -> None:
        """A process without memory: a new driver object, served and registered."""
        self.driver = self.make()
        interceptors = (*self.interceptors, self.calls, self.faults)
        async with AsyncExitStack() as stack:
            self.plugin = await stack.enter_async_context(
                KubeletPlugin(self.driver, self.settings, self.node.api.client, interceptors=interceptors)
            )
            self.kubelet = await stack.enter_async_context(FakeKubelet(self.settings))
            await self.kubelet.register()
            self._stack = stack.pop_all()

    async def stop(self) -> None:
        """The process ends; its files stay."""
        await self._stack.aclose()

    async def restart(self) -> None:
        """The process ends, and another one starts."""
        await self.stop()
        await self.start()

    async def reboot(self) -> None:
        """The machine starts again, with an empty ``/run``."""
        await self.stop()
        self.node.new_boot()
        await self.start()

    async def claim(
        self,
        *devices: str,
        name: str = "claim",
        requests: Mapping[str, Sequence[str]] | None = None,
        parameters: dict[str, Any] | None = None,
        class_parameters: dict[str, Any] | None = None,
        pod_claim_name: str = "",
        **fields: Any,
    ) -> ClaimRef:
        """A new claim of this name, allocated to ``devices``, each ``device`` of the node's pool or ``pool/device``.

        It takes the place of an earlier claim of the name. ``requests`` has devices of further requests by name.
        ``parameters`` is its configuration for the driver, ``class_parameters`` that of its class; ``fields`` go into
        each allocation result, and ``pod_claim_name`` is what the pod calls a claim from a template.
        """

        def placed(names: Iterable[str]) -> list[str]:
            return [device if "/" in device else f"{self.node.name}/{device}" for device in names]

        claim = allocated_claim(
            self.settings.driver_name,
            *placed(devices),
            name=name,
            requests={request: placed(names) for request, names in (requests or {}).items()},
            parameters=parameters,
            class_parameters=class_parameters,
            **fields,
        )
        body = to_dict(claim)
        body["metadata"]["uid"] = uid = str(uuid.uuid4())
        if pod_claim_name:
            body["metadata"]["annotations"] = {POD_CLAIM_NAME_ANNOTATION: pod_claim_name}
        await self.node.api.put(RESOURCE_CLAIMS, body)
        return ClaimRef(claim.metadata.namespace, name, uid)

    async def prepare(self, claim: ClaimRef, *, deadline: float | None = None) -> Container:
        """Prepare a claim as the kubelet does; returns what a container with it gets.

        Raises ClaimFailed with the plugin's error, CdiError when a container runtime would refuse a file, and
        ``grpc.aio.AioRpcError`` when the whole call fails, for example at its ``deadline`` (in seconds).
        """
        answer = (await self.kubelet.prepare([claim], deadline=deadline))[claim.uid]
        _raise(answer)
        devices = [f"{device.pool_name}/{device.device_name}" for device in answer.devices]
        return self.node.container(devices, (name for device in answer.devices for name in device.cdi_device_ids))

    async def unprepare(self, claim: ClaimRef, *, deadline: float | None = None) -> None:
        """Unprepare a claim as the kubelet does. Raises as ``prepare`` does."""
        _raise((await self.kubelet.unprepare([claim], deadline=deadline))[claim.uid])


def _raise(answer: Any) -> None:
    if answer.error:
        raise ClaimFailed(answer.error)
