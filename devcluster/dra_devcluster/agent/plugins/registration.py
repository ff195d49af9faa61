"""Registers plugins whose sockets appear, and deregisters those whose sockets go (KM-03 to KM-05).

A loop compares desired and actual state once per period, and when a socket appears or goes; operations on different
sockets run in parallel, on one socket one after the other. Each type of plugin has a handler.

`DraPlugins` is the handler of the type ``DRAPlugin`` (kubelet-manager.md section 4). A registered instance is connected
at once. If it serves the health of its devices, the node follows that.

ResourceSlices whose plugin is gone are removed (KM-10). At start all slices of the node go, since no plugin is
registered yet. Later a driver's slices go when no instance of it has been connected for a while. Slices of other nodes
and slices without a node are never touched.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import grpc
from dra_kube import NODES, RESOURCE_SLICES, Api, KubeError, NotFound
from dra_proto.registration.v1 import api_pb2, api_pb2_grpc

from dra_devcluster.agent.errors import RegistrationError
from dra_devcluster.agent.plugins.health import HealthMonitor, Key
from dra_devcluster.agent.plugins.plugin import (
    HEALTH_SERVICES,
    DraPlugin,
    NodeMetrics,
    PluginInstances,
    choose_health_service,
    choose_legacy_service,
    choose_service,
    describe,
    open_channel,
)
from dra_devcluster.agent.plugins.watcher import PluginSockets, Registered, SocketWatcher
from dra_devcluster.agent.settings import AgentSettings, HostPaths, KubeletDefect
from dra_devcluster.background import cancelled

logger = logging.getLogger(__name__)


class PluginHandler(Protocol):
    """Handles plugins of one type; called in the order validate, register, deregister."""

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Raises RegistrationError when the plugin cannot be used."""

    async def register(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Take the plugin into use. Raises RegistrationError."""

    async def deregister(self, name: str, endpoint: str) -> None:
        """Take it out of use; unknown plugins are fine."""


class Registrar:
    """Keeps registrations in step with the sockets in one directory.

    ``paths`` says where on this machine the paths of the node lie, if they differ. Where a kubelet works on the
    directory as well, ``is_for_kubelet`` tells which plugins are asked for their name and hear nothing else. ``heard``
    is told each call: its socket, the request, and the answer or what went wrong.
    """

    def __init__(
        self,
        directory: Path,
        handlers: Mapping[str, PluginHandler],
        settings: AgentSettings,
        paths: HostPaths | None = None,
        is_for_kubelet: Callable[[api_pb2.PluginInfo], bool] = lambda info: False,
        heard: Callable[[str, Any, Any], object] = lambda socket, request, answer: None,
    ) -> None:
        self.sockets = PluginSockets(settings.registration_backoff)
        self._directory = directory
        self._handlers = handlers
        self._settings = settings
        self._paths = paths
        self._is_for_kubelet = is_for_kubelet
        self._heard = heard
        self._operations: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Work until cancelled, and end all operations then."""
        try:
            async with SocketWatcher(self._directory, self.sockets) as watcher:
                while True:
                    watcher.rescan()
                    watcher.news.clear()
                    now = asyncio.get_running_loop().time()
                    for path in self.sockets.to_unregister(now):
                        self._begin(path, self._unregister)
                    for path in self.sockets.to_register(now):
                        self._begin(path, self._register)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._settings.plugin_period):
                            await watcher.news.wait()
        finally:
            await cancelled(*self._operations)

    def _begin(self, path: str, operation: Callable[[str], Awaitable[None]]) -> None:
        self.sockets.busy.add(path)
        task = asyncio.create_task(self._operate(path, operation), name=f"plugin socket {path}")
        self._operations.add(task)
        task.add_done_callback(self._operations.discard)

    async def _operate(self, path: str, operation: Callable[[str], Awaitable[None]]) -> None:
        try:
            await operation(path)
            self.sockets.succeeded(path)
        except RegistrationError as error:
            logger.warning("plugin socket %s: %s", path, error)
            self.sockets.failed(path, asyncio.get_running_loop().time())
        except Exception:
            logger.exception("plugin socket %s: unexpected failure", path)
            self.sockets.failed(path, asyncio.get_running_loop().time())
        finally:
            self.sockets.busy.discard(path)

    async def _unregister(self, path: str) -> None:
        known = self.sockets.actual.pop(path)
        await self._handlers[known.type].deregister(known.name, known.endpoint)

    async def _register(self, path: str) -> None:
        identity = self.sockets.desired.get(path)
        if identity is None:
            return  # removed since the tick
        channel = open_channel(path)
        try:
            try:
                async with asyncio.timeout(self._settings.dial_timeout):
                    await channel.channel_ready()
            except TimeoutError:
                raise RegistrationError("connecting to the registration socket timed out") from None
            stub = api_pb2_grpc.RegistrationStub(channel)
            info = await self._ask(path, stub.GetInfo, api_pb2.InfoRequest(), self._settings.info_timeout)
            if self._is_for_kubelet(info):
                raise RegistrationError(f"left to the kubelet: {info.name} of type {info.type}")
            endpoint = info.endpoint or path
            if self._paths is not None:
                # A plugin in a container knows the paths of the node, not those of this machine.
                endpoint = str(self._paths.real(endpoint))
            plugin = Registered(identity, info.type, info.name, endpoint)
            try:
                await self._admit(path, plugin, tuple(info.supported_versions))
            except RegistrationError as error:
                await self._notify(path, stub, f"RegisterPlugin error -- plugin registration failed with err: {error}")
                raise
            await self._confirm(path, plugin, stub)
        finally:
            await channel.close(None)

    async def _admit(self, path: str, plugin: Registered, versions: tuple[str, ...]) -> None:
        handler = self._handlers.get(plugin.type)
        if handler is None:
            raise RegistrationError(f"no handler registered for plugin type: {plugin.type} at socket {path}")
        handler.validate(plugin.name, plugin.endpoint, versions)
        # Before registering, so that a removal in the meantime leads to a deregistration.
        self.sockets.actual[path] = plugin
        try:
            await handler.register(plugin.name, plugin.endpoint, versions)
        except BaseException:
            self.sockets.actual.pop(path, None)
            raise

    async def _confirm(self, path: str, plugin: Registered, stub: Any) -> None:
        try:
            await self._notify(path, stub, None)
        except RegistrationError:
            self.sockets.actual.pop(path, None)
            await self._handlers[plugin.type].deregister(plugin.name, plugin.endpoint)
            raise
        logger.info("registered plugin %s of type %s at %s", plugin.name, plugin.type, plugin.endpoint)

    async def _notify(self, path: str, stub: Any, error: str | None) -> None:
        status = api_pb2.RegistrationStatus(plugin_registered=error is None, error=error or "")
        await self._ask(path, stub.NotifyRegistrationStatus, status, self._settings.notify_timeout)

    async def _ask(self, path: str, method: Any, request: Any, timeout: float) -> Any:
        try:
            answer = await method(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            self._heard(path, request, describe(error))
            raise RegistrationError(describe(error)) from error
        self._heard(path, request, answer)
        return answer


class SliceWiper:
    """The pending and running wipes of one node."""

    def __init__(self, api: Api, node_name: str, settings: AgentSettings) -> None:
        self._api = api
        self._node = node_name
        self._settings = settings
        self._at_start: asyncio.Task[None] | None = None
        self._pending: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Wipe everything of this node, in the background."""
        self._at_start = asyncio.create_task(self._wipe(f"spec.nodeName={self._node}"))

    def update(self, driver: str, usable: bool) -> None:
        """A driver's instances changed: cancel its wipe, or schedule one unless one is pending."""
        pending = self._pending.get(driver)
        if usable:
            if pending is not None:
                pending.cancel()
                del self._pending[driver]
        elif pending is None or pending.done():
            selector, delay = f"spec.driver={driver},spec.nodeName={self._node}", self._settings.wipe_delay
            self._pending[driver] = asyncio.create_task(self._wipe(selector, delay))

    async def close(self) -> None:
        """Drop what is pending."""
        tasks = [task for task in (self._at_start, *self._pending.values()) if task is not None]
        await cancelled(*tasks)

    async def _wipe(self, selector: str, delay: float = 0.0) -> None:
        await asyncio.sleep(delay)
        for failures in range(1, self._settings.wipe_attempts + 1):
            try:
                await self._api.get(NODES, self._node)
                with suppress(NotFound):
                    await self._api.delete_collection(RESOURCE_SLICES, fieldSelector=selector)
                logger.info("node %s: removed stale ResourceSlices (%s)", self._node, selector)
                return
            except KubeError as error:
                logger.warning("node %s: removing ResourceSlices (%s) failed: %s", self._node, selector, error)
            jitter = 1 + random.random() * self._settings.wipe_jitter
            await asyncio.sleep(self._settings.wipe_backoff.pause(failures) * jitter)
        logger.error("node %s: gave up removing ResourceSlices (%s)", self._node, selector)


class DraPlugins(PluginInstances[DraPlugin]):
    """``health_changed`` is called with a driver and its devices whose health changed."""

    def __init__(
        self,
        api: Api,
        node_name: str,
        root: Path,
        settings: AgentSettings,
        metrics: NodeMetrics,
        health_changed: Callable[[str, set[Key]], None],
    ) -> None:
        super().__init__()
        self.wiper = SliceWiper(api, node_name, settings)
        self.health = HealthMonitor(root, settings, health_changed)
        self._settings = settings
        self._metrics = metrics

    async def close(self) -> None:
        await self.wiper.close()
        await self.health.close()
        await asyncio.gather(*(plugin.close() for plugin in self.instances()))

    def validate(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Raises RegistrationError when the plugin offers no service that the node agent speaks (KM-06)."""
        self._choose_service(versions)

    async def register(self, name: str, endpoint: str, versions: Sequence[str]) -> None:
        """Add an instance of a driver; one per endpoint, several may run side by side (KM-07)."""
        self.check_free(name, endpoint)
        service, health = self._choose_service(versions), self._choose_health_service(versions)
        plugin = DraPlugin(name, endpoint, service, self._connection_changed, self._metrics, health_service=health)
        self.add(plugin)
        self.health.follow(plugin)
        self._connection_changed(plugin)

    async def deregister(self, name: str, endpoint: str) -> None:
        """Remove this instance and close its connection; does nothing for an unknown one (KM-08)."""
        plugin = self.remove(name, endpoint)
        if plugin is not None:
            self._connection_changed(plugin)
            await self.health.leave(plugin)
            await plugin.close()

    def _connection_changed(self, plugin: DraPlugin) -> None:
        self.wiper.update(plugin.driver, self.is_usable(plugin.driver))

    def _choose_service(self, versions: Sequence[str]) -> str:
        return choose_legacy_service(versions) if self._settings.legacy_service else choose_service(versions)

    def _choose_health_service(self, versions: Sequence[str]) -> str:
        if not self._settings.resource_health_status:
            return ""
        always = KubeletDefect.HEALTH_STREAM_FOR_ALL in self._settings.defects
        return HEALTH_SERVICES[-1] if always else choose_health_service(versions, self._settings.release)
