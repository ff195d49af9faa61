"""The last known health of the node's devices on disk, in the file format of the kubelet (KM-23).

The file bridges the restart of a node agent: pods keep the health of their devices until drivers report again or the
reports expire. Nothing else depends on it, so a file that cannot be read counts as empty.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from dra_devcluster.agent.files import write_whole

from .health import DeviceHealth, Key, Reports, Status

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
        return {name: dict(map(_report, driver.devices.values())) for name, driver in drivers.items()}

    def store(self, drivers: Mapping[str, Reports]) -> None:
        """Replace the file in one step."""
        content = {
            driver: _Driver(
                {f"{pool}/{device}": _device(pool, device, report) for (pool, device), report in all_.items()}
            )
            for driver, all_ in drivers.items()
        }
        try:
            write_whole(self._path, msgspec.json.encode(content))
        except OSError as error:
            logger.warning("%s cannot be written: %s", self._path, error)


def _device(pool: str, device: str, report: DeviceHealth) -> _Device:
    received = datetime.fromtimestamp(report.received, UTC)
    return _Device(
        pool, device, report.status, received, round(report.timeout * _NANOSECONDS_PER_SECOND), report.message
    )


def _report(device: _Device) -> tuple[Key, DeviceHealth]:
    received, timeout = device.last_updated.timestamp(), device.health_check_timeout / _NANOSECONDS_PER_SECOND
    return (device.pool_name, device.device_name), DeviceHealth(device.health, device.message, timeout, received)
