"""The health of devices: from the streams of drivers to pods, and to a file that bridges a restart (KM-22 to KM-26).

Each instance of a driver reports for itself, on one stream of the connection that its other calls use. The latest
report about a device counts, so the end of an old instance during a rolling update takes nothing away from the new one.
A report that is older than its timeout counts no more: the device's health is unknown then. A stream that ends takes
its reports with it. It is opened again after a pause, until the instance is deregistered, or from 1.37 on until it says
that it has no such service (K37-HEALTH-09).

The file has the last known health in the format of the kubelet. Pods keep the health of their devices over a restart of
the agent, until drivers report again or the reports expire. Nothing else depends on the file, so a file that cannot be
read counts as empty. It is written after each change; reports that only confirm the last ones are not worth a write.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
from dra_api.releases import Release

from dra_devcluster.agent.errors import HealthNotServed, HealthStreamEnded
from dra_devcluster.agent.plugins.plugin import DraPlugin
from dra_devcluster.agent.settings import AgentSettings, KubeletDefect, write_whole
from dra_devcluster.background import cancelled

Status = Literal["Healthy", "Unhealthy", "Unknown"]
Key = tuple[str, str]
"""Pool and device."""

LONGEST_REASON_BYTES = 1024


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """One report about a device; ``received`` is when the node got it, in seconds since the epoch."""

    status: Status
    message: str
    timeout: float
    received: float

    @property
    def expires(self) -> float:
        return self.received + self.timeout

    def says_the_same_as(self, other: DeviceHealth) -> bool:
        """Whether only the time differs."""
        return replace(self, received=other.received) == other


Reports = Mapping[Key, DeviceHealth]
UNKNOWN = DeviceHealth("Unknown", "", 0.0, 0.0)


class HealthCache:
    """The reports of all instances. An instance is any object; its identity counts.

    ``restored`` are the reports of an earlier node agent by driver. The first instance of the driver that reports
    takes them over.
    """

    def __init__(self, restored: Mapping[str, Reports]) -> None:
        self._reports: dict[str, dict[object, dict[Key, DeviceHealth]]] = {
            driver: {None: dict(reports)} for driver, reports in restored.items()
        }

    def get(self, driver: str, key: Key, now: float) -> DeviceHealth:
        """The latest report about a device that still counts, or ``UNKNOWN``."""
        reports = (reports[key] for reports in self._reports.get(driver, {}).values() if key in reports)
        latest = max(reports, key=lambda report: report.received, default=UNKNOWN)
        return latest if latest.expires >= now else UNKNOWN

    def update(self, driver: str, instance: object, reports: Reports, now: float) -> set[Key]:
        """Take the full list of an instance; returns the devices whose health changed.

        Devices that are missing from the list keep their reports until these expire.
        """
        instances = self._reports.setdefault(driver, {})
        known = instances.setdefault(instance, {})
        before = {key: self.get(driver, key, now) for key in reports}
        known.update(instances.pop(None, {}) | dict(reports))
        return self._changed(driver, before, now)

    def forget(self, driver: str, instance: object, now: float) -> set[Key]:
        """An instance reports no more; returns the devices whose health changed."""
        instances = self._reports.get(driver, {})
        before = {key: self.get(driver, key, now) for key in instances.get(instance, ())}
        instances.pop(instance, None)
        if not instances:
            self._reports.pop(driver, None)
        return self._changed(driver, before, now)

    def _changed(self, driver: str, before: Reports, now: float) -> set[Key]:
        return {key for key, health in before.items() if not self.get(driver, key, now).says_the_same_as(health)}

    def forget_driver(self, driver: str) -> None:
        self._reports.pop(driver, None)

    def expire(self, now: float) -> dict[str, set[Key]]:
        """Drop reports that no longer count; returns the devices per driver whose health is unknown since."""
        expired: dict[str, set[Key]] = {}
        for driver, instances in self._reports.items():
            for reports in instances.values():
                for key in [key for key, report in reports.items() if report.expires < now]:
                    del reports[key]
                    if self.get(driver, key, now) is UNKNOWN:
                        expired.setdefault(driver, set()).add(key)
        return expired

    def next_expiry(self) -> float | None:
        times = (
            report.expires
            for instances in self._reports.values()
            for reports in instances.values()
            for report in reports.values()
        )
        return min(times, default=None)

    def latest(self) -> dict[str, dict[Key, DeviceHealth]]:
        return {driver: _latest(instances.values()) for driver, instances in sorted(self._reports.items())}


def shortened(message: str) -> str:
    """The message as the pod's status may show it: at most 1024 bytes."""
    content = message.encode()
    if len(content) <= LONGEST_REASON_BYTES:
        return message
    return content[: LONGEST_REASON_BYTES - 3].decode(errors="ignore") + "..."


def _latest(instances: Iterable[Reports]) -> dict[Key, DeviceHealth]:
    latest: dict[Key, DeviceHealth] = {}
    for reports in instances:
        for key, report in reports.items():
            if key not in latest or report.received > latest[key].received:
                latest[key] = report
    return dict(sorted(latest.items()))


logger = logging.getLogger(__name__)
FILE_NAME = "dra_health_state"
_NANOSECONDS_PER_SECOND = 1_000_000_000


class _Device(msgspec.Struct, rename="pascal"):
    pool_name: str
    device_name: str
    health: Status
    last_updated: datetime
    health_check_timeout: int
    message: str = ""

    @classmethod
    def of(cls, key: Key, report: DeviceHealth) -> _Device:
        received, timeout = datetime.fromtimestamp(report.received, UTC), report.timeout * _NANOSECONDS_PER_SECOND
        return cls(*key, report.status, received, round(timeout), report.message)

    @property
    def key(self) -> Key:
        return self.pool_name, self.device_name

    @property
    def report(self) -> DeviceHealth:
        timeout = self.health_check_timeout / _NANOSECONDS_PER_SECOND
        return DeviceHealth(self.health, self.message, timeout, self.last_updated.timestamp())


class _Driver(msgspec.Struct, rename="pascal"):
    devices: dict[str, _Device] = {}


class HealthFile:
    """The file; a failed write is logged, and the next change writes again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> dict[str, Reports]:
        """The reports by driver; empty if there is no file that can be read."""
        try:
            drivers = msgspec.json.decode(self._path.read_bytes(), type=dict[str, _Driver])
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            logger.warning("%s cannot be read, device health starts as unknown: %s", self._path, error)
            return {}
        return {name: {one.key: one.report for one in driver.devices.values()} for name, driver in drivers.items()}

    def store(self, drivers: Mapping[str, Reports]) -> None:
        content = {
            driver: _Driver({"/".join(key): _Device.of(key, report) for key, report in reports.items()})
            for driver, reports in drivers.items()
        }
        try:
            write_whole(self._path, msgspec.json.encode(content))
        except OSError as error:
            logger.warning("%s cannot be written: %s", self._path, error)


_STATUSES: dict[int, Status] = {1: "Healthy", 2: "Unhealthy"}
_SHORTEST_PAUSE_SECONDS = 0.01


class HealthMonitor:
    """The health of the node's devices. ``changed`` is called with a driver and its devices whose health changed."""

    def __init__(self, root: Path, settings: AgentSettings, changed: Callable[[str, set[Key]], None]) -> None:
        self._settings = settings
        self._changed = changed
        self._file = HealthFile(root / FILE_NAME)
        self._cache = HealthCache(self._file.load())
        self._streams: dict[DraPlugin, asyncio.Task[None]] = {}
        self._expiry: asyncio.TimerHandle | None = None

    def get(self, driver: str, pool: str, device: str) -> DeviceHealth:
        return self._cache.get(driver, (pool, device), time.time())

    def follow(self, plugin: DraPlugin) -> None:
        """Follow an instance, if it offers a health service."""
        if plugin.health_service:
            self._streams[plugin] = asyncio.create_task(self._follow(plugin), name=f"health of {plugin.driver}")

    async def leave(self, plugin: DraPlugin) -> None:
        """Follow an instance no more, and forget its reports."""
        stream = self._streams.pop(plugin, None)
        if stream is not None:
            await cancelled(stream)
            self._forget(plugin)

    async def close(self) -> None:
        """End all streams. The file keeps the reports for the next node agent."""
        if self._expiry is not None:
            self._expiry.cancel()
        await cancelled(*self._streams.values())

    async def _follow(self, plugin: DraPlugin) -> None:
        while True:
            try:
                async for message in plugin.watch_health():
                    now = time.time()
                    reports = self._reports(plugin.driver, message, now)
                    self._note({plugin.driver: self._cache.update(plugin.driver, plugin, reports, now)})
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
        self._note({plugin.driver: self._cache.forget(plugin.driver, plugin, time.time())})

    def _expire(self) -> None:
        self._expiry = None
        self._note(self._cache.expire(time.time()))

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
            pause = max(_SHORTEST_PAUSE_SECONDS, expires - time.time())
            self._expiry = asyncio.get_running_loop().call_later(pause, self._expire)
