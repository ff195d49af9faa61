"""Which calls of a driver a claim does without: the drivers of its devices said so in their slices. No I/O here.

A driver is not called if every device that it has in the claim says so. The allocation keeps what the slices said, and
the checkpoint keeps the allocation, so a slice that changes later changes nothing for the claim (K37-ONO-02, -09, -11).
"""

from __future__ import annotations

from dra_api.resource import DeviceAllocationResult
from dra_api.validation.fields.node_operations import ALL, PREPARE, UNPREPARE

__all__ = ["PREPARE", "UNPREPARE", "is_skipped"]


def is_skipped(operation: str, driver: str, allocation: DeviceAllocationResult | None) -> bool:
    """Whether the driver does without this call; False for a driver of which the allocation has no device."""
    results = (allocation.results if allocation else None) or ()
    skipped = [result.skip_node_operations or () for result in results if result.driver == driver]
    return bool(skipped) and all(operation in one or ALL in one for one in skipped)
