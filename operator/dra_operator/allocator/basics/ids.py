"""Names of pools, devices and shares.

Driver, pool and name together identify a device (scheduling.md 5.3): two drivers may use the same pool name, for
example that of the node.
"""

from __future__ import annotations

from typing import NamedTuple

from dra_api.resource import DeviceRequestAllocationResult, ResourceSlice


class PoolId(NamedTuple):
    """One driver's pool; prints as ``driver/pool`` and sorts in the order in which pools are tried."""

    driver: str
    pool: str

    @classmethod
    def of(cls, slice_: ResourceSlice) -> PoolId:
        """The pool that a slice is part of."""
        return cls(slice_.spec.driver, slice_.spec.pool.name)

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}"


class DeviceId(NamedTuple):
    """One device; prints as ``driver/pool/device``."""

    driver: str
    pool: str
    device: str

    @classmethod
    def of(cls, result: DeviceRequestAllocationResult) -> DeviceId:
        """The device that a claim was given."""
        return cls(result.driver, result.pool, result.device)

    @property
    def pool_id(self) -> PoolId:
        """The pool that publishes the device."""
        return PoolId(self.driver, self.pool)

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


class ShareId(NamedTuple):
    """One share of a device that allows multiple allocations; ``share`` is a UUID."""

    device: DeviceId
    share: str

    def __str__(self) -> str:
        return f"{self.device}/{self.share}"
