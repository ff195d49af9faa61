"""The DRA plugins of a node: the registration handler for plugins of type ``DRAPlugin`` (kubelet-manager.md section 4).

A registered instance is connected at once and, if it offers that, followed for the health of its devices. When no
instance of a driver is connected any more, the driver's slices are removed after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from dra_kube import Api

from dra_devcluster.agent.defects import KubeletDefect
from dra_devcluster.agent.settings import AgentSettings

from .health import Key
from .health_monitor import HealthMonitor
from .metrics import NodeMetrics
from .plugin import DraPlugin
from .plugin_instances import (
    HEALTH_SERVICES,
    PluginInstances,
    choose_health_service,
    choose_legacy_service,
    choose_service,
)
from .wiping import SliceWiper


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
