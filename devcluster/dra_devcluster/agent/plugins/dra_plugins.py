"""Registered DRA plugins, and the ResourceSlices of those that are gone.

Removes ResourceSlices whose plugin is gone (KM-10).

At start all slices of the node go, since no plugin is registered yet. Later a driver's slices go when no
instance of it has been connected for a while. Slices of other nodes and those without a node are never touched.

The DRA plugins of a node: the registration handler for plugins of type ``DRAPlugin`` (kubelet-manager.md section 4).

A registered instance is connected at once and, if it offers that, followed for the health of its devices. When no
instance of a driver is connected any more, the driver's slices are removed after a while.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from dra_kube import NODES, RESOURCE_SLICES, Api, KubeError, NotFound

from dra_devcluster.agent.plugins.health import HealthMonitor, Key
from dra_devcluster.agent.plugins.metrics import NodeMetrics
from dra_devcluster.agent.plugins.plugin import (
    HEALTH_SERVICES,
    DraPlugin,
    PluginInstances,
    choose_health_service,
    choose_legacy_service,
    choose_service,
)
from dra_devcluster.agent.settings import AgentSettings, KubeletDefect

logger = logging.getLogger(__name__)


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
            self._pending[driver] = asyncio.create_task(self._wipe_later(driver))

    async def close(self) -> None:
        """Drop what is pending."""
        tasks = [task for task in (self._at_start, *self._pending.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wipe_later(self, driver: str) -> None:
        await asyncio.sleep(self._settings.wipe_delay)
        await self._wipe(f"spec.driver={driver},spec.nodeName={self._node}")

    async def _wipe(self, selector: str) -> None:
        for failures in range(1, self._settings.wipe_attempts + 1):
            try:
                await self._api.get(NODES, self._node)
                await self._delete(selector)
                logger.info("node %s: removed stale ResourceSlices (%s)", self._node, selector)
                return
            except KubeError as error:
                logger.warning("node %s: removing ResourceSlices (%s) failed: %s", self._node, selector, error)
            jitter = 1 + random.random() * self._settings.wipe_jitter
            await asyncio.sleep(self._settings.wipe_backoff.pause(failures) * jitter)
        logger.error("node %s: gave up removing ResourceSlices (%s)", self._node, selector)

    async def _delete(self, selector: str) -> None:
        try:
            await self._api.delete_collection(RESOURCE_SLICES, fieldSelector=selector)
        except NotFound:
            return


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
        """Close all connections."""
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
