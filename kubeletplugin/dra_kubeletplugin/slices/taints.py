"""Taint times: where they come from, and when they count as equal.

A taint published without a time gets the time of the write from the API server. Publishing it again
must keep that time, and must not look like a change. Spec: plugin-helper.md 4.1, 4.4 (steps 5 and 8).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from dra_api.resource import Device, DeviceTaint
from dra_api.values import format_time
from msgspec.structs import replace

_TOLERANCE = timedelta(seconds=1)


def round_times(device: Device) -> Device:
    """The device with the times of its taints rounded to seconds. Raises ValueError for a malformed time."""
    return _with_taints(device, tuple(_rounded(taint) for taint in device.taints or ()))


def keep_times(wanted: Device, stored: Device | None) -> Device:
    """``wanted`` with the stored times of those taints that are the same and have no time of their own."""
    times = {_identity(taint): taint.time_added for taint in (stored.taints if stored else None) or ()}
    return _with_taints(
        wanted,
        tuple(
            replace(taint, time_added=times.get(_identity(taint))) if taint.time_added is None else taint
            for taint in wanted.taints or ()
        ),
    )


def same_device(wanted: Device, stored: Device) -> bool:
    """Whether the stored device is the wanted one; a missing time equals any, others may differ by a second."""
    times = zip(wanted.taints or (), stored.taints or (), strict=False)
    return _without_times(wanted) == _without_times(stored) and all(_same_time(a, b) for a, b in times)


def _rounded(taint: DeviceTaint) -> DeviceTaint:
    if taint.time_added is None:
        return taint
    exact = _time(taint.time_added)
    full = exact.replace(microsecond=0) + timedelta(seconds=exact.microsecond >= 500_000)
    return replace(taint, time_added=format_time(full))


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone: write it as in 2026-01-31T12:00:00Z")
    return moment.astimezone(UTC)


def _same_time(wanted: DeviceTaint, stored: DeviceTaint) -> bool:
    if wanted.time_added is None or wanted.time_added == stored.time_added:
        return True
    if stored.time_added is None:
        return False
    return abs(_time(wanted.time_added) - _time(stored.time_added)) < _TOLERANCE


def _identity(taint: DeviceTaint) -> tuple[str, str, str]:
    return taint.key, taint.value, taint.effect


def _with_taints(device: Device, taints: tuple[DeviceTaint, ...]) -> Device:
    return replace(device, taints=taints) if taints else device


def _without_times(device: Device) -> Device:
    return _with_taints(device, tuple(replace(taint, time_added=None) for taint in device.taints or ()))
