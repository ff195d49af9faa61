"""The clock for leases and time limits."""

from __future__ import annotations

import time


def boot_time() -> float:
    """Seconds on a clock that counts while the process is stopped and while the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.clock_gettime(time.CLOCK_MONOTONIC)  # macOS: this one counts while the machine is suspended
