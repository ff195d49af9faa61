"""What the drivers of a node say about the health of their devices (KM-23, KM-24, KM-26). No I/O and no clock here.

Each instance of a driver reports for itself. The latest report about a device counts, so the end of an old instance
during a rolling update takes nothing away from the new one. A report that is older than its timeout counts no more:
the device's health is unknown then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

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
        """When the report stops to count."""
        return self.received + self.timeout

    def says_the_same_as(self, other: DeviceHealth | None) -> bool:
        """Whether only the time differs."""
        return other is not None and (self.status, self.message, self.timeout) == (
            other.status,
            other.message,
            other.timeout,
        )


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
        return {key for key, health in before.items() if not self.get(driver, key, now).says_the_same_as(health)}

    def forget(self, driver: str, instance: object, now: float) -> set[Key]:
        """An instance reports no more; returns the devices whose health changed."""
        instances = self._reports.get(driver, {})
        before = {key: self.get(driver, key, now) for key in instances.get(instance, ())}
        instances.pop(instance, None)
        if not instances:
            self._reports.pop(driver, None)
        return {key for key, health in before.items() if not self.get(driver, key, now).says_the_same_as(health)}

    def forget_driver(self, driver: str) -> None:
        """Drop what all instances of the driver reported."""
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
        """When the next report stops to count."""
        times = (
            report.expires
            for instances in self._reports.values()
            for reports in instances.values()
            for report in reports.values()
        )
        return min(times, default=None)

    def latest(self) -> dict[str, dict[Key, DeviceHealth]]:
        """The latest report about every device, by driver."""
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
