"""Follows the health streams of all plugin instances, and tells which devices changed (KM-22 to KM-26).

Each instance has one stream, on the connection that its other calls use. A stream that ends takes its reports with it
and is opened again after a pause, until the instance is deregistered, or from 1.37 on until it says that it has no such
service (K37-HEALTH-09). The file is written after each change; reports
that only confirm the last ones are not worth a write.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dra_api.releases.release import Release

from dra_devcluster.agent.defects import KubeletDefect
from dra_devcluster.agent.errors import HealthNotServed, HealthStreamEnded
from dra_devcluster.agent.settings import AgentSettings

from .health import DeviceHealth, HealthCache, Key, Reports, Status, shortened
from .health_file import FILE_NAME, HealthFile
from .plugin import DraPlugin

logger = logging.getLogger(__name__)
_STATUSES: dict[int, Status] = {1: "Healthy", 2: "Unhealthy"}
_SHORTEST_PAUSE_SECONDS = 0.01


class HealthMonitor:
    """The health of the node's devices. ``changed`` is called with a driver and its devices whose health changed."""

    def __init__(
        self,
        root: Path,
        settings: AgentSettings,
        changed: Callable[[str, set[Key]], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._changed = changed
        self._clock = clock
        self._file = HealthFile(root / FILE_NAME)
        self._cache = HealthCache(self._file.load())
        self._streams: dict[DraPlugin, asyncio.Task[None]] = {}
        self._expiry: asyncio.TimerHandle | None = None

    def get(self, driver: str, pool: str, device: str) -> DeviceHealth:
        """The health of a device now."""
        return self._cache.get(driver, (pool, device), self._clock())

    def follow(self, plugin: DraPlugin) -> None:
        """Follow an instance, if it offers a health service."""
        if plugin.health_service:
            self._streams[plugin] = asyncio.create_task(self._follow(plugin), name=f"health of {plugin.driver}")

    async def leave(self, plugin: DraPlugin) -> None:
        """Follow an instance no more, and forget its reports."""
        stream = self._streams.pop(plugin, None)
        if stream is not None:
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)
            self._forget(plugin)

    async def close(self) -> None:
        """End all streams. The file keeps the reports for the next node agent."""
        if self._expiry is not None:
            self._expiry.cancel()
        for stream in self._streams.values():
            stream.cancel()
        await asyncio.gather(*self._streams.values(), return_exceptions=True)

    async def _follow(self, plugin: DraPlugin) -> None:
        while True:
            try:
                async for message in plugin.watch_health():
                    self._received(plugin, message)
            except HealthNotServed as error:
                if self._settings.release >= Release.V1_37:
                    logger.info("driver %s reports no health and is not asked again: %s", plugin.driver, error)
                    self._forget(plugin)
                    return
                logger.warning("driver %s reports no health: %s", plugin.driver, error)
            except HealthStreamEnded as error:
                logger.warning("health of driver %s is not known for now: %s", plugin.driver, error)
            except Exception:  # a report that cannot be handled must not end the health of a driver for good
                logger.exception("health of driver %s: unexpected failure", plugin.driver)
            self._forget(plugin)
            await asyncio.sleep(self._settings.health_retry)

    def _received(self, plugin: DraPlugin, message: Any) -> None:
        now = self._clock()
        reports = self._reports(plugin.driver, message, now)
        self._note({plugin.driver: self._cache.update(plugin.driver, plugin, reports, now)})

    def _reports(self, driver: str, message: Any, now: float) -> Reports:
        reports: dict[Key, DeviceHealth] = {}
        for one in message.devices:
            key = (one.device.pool_name, one.device.device_name)
            seconds = one.health_check_timeout_seconds
            if seconds < 0:
                logger.warning("driver %s: the health timeout of %s/%s is negative: %d s", driver, *key, seconds)
            timeout = float(seconds) if seconds > 0 else self._settings.health_timeout
            reports[key] = DeviceHealth(_STATUSES.get(one.health, "Unknown"), shortened(one.message), timeout, now)
        return reports

    def _forget(self, plugin: DraPlugin) -> None:
        if KubeletDefect.HEALTH_BY_DRIVER in self._settings.defects:
            self._cache.forget_driver(plugin.driver)
            return
        self._note({plugin.driver: self._cache.forget(plugin.driver, plugin, self._clock())})

    def _expire(self) -> None:
        self._expiry = None
        self._note(self._cache.expire(self._clock()))

    def _note(self, changes: dict[str, set[Key]]) -> None:
        """Keep and tell what changed, and wake up when the next report expires."""
        if any(changes.values()):
            self._file.store(self._cache.latest())
            for driver, keys in changes.items():
                self._changed(driver, keys)
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        expires = self._cache.next_expiry()
        if expires is not None:
            pause = max(_SHORTEST_PAUSE_SECONDS, expires - self._clock())
            self._expiry = asyncio.get_running_loop().call_later(pause, self._expire)
