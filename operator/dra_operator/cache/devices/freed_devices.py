"""Which devices came free, and are free still: what a pod that lacked devices may find when it is tried again.

Where a thousand pods wait, a device that comes free may help any of them, and it is gone when the first one has been
tried. The others need no attempt then: all that was in use when they were tried last is in use again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from dra_api.resource import AllocationResult

from dra_operator.allocator import DeviceId

KEPT_FREED_DEVICES: Final = 10_000
"""The one that came free first is forgotten first; pods that were tried before count as helped then."""


class FreedDevices:
    """A device counts as free until a claim has all of it: whether a share was taken back in full is not looked at."""

    def __init__(self) -> None:
        self._free: OrderedDict[DeviceId, int] = OrderedDict()
        self._forgotten = 0
        self.number = 0
        """How often a device, or a share of one, came free."""

    def freed(self, allocation: AllocationResult) -> None:
        """A claim lost its devices, or a pod those that were kept for it; not those that it only looked at."""
        for result in allocation.results:
            if result.admin_access:
                continue
            self.number += 1
            device = DeviceId.of(result)
            self._free.pop(device, None)
            self._free[device] = self.number
        while len(self._free) > KEPT_FREED_DEVICES:
            _, self._forgotten = self._free.popitem(last=False)

    def taken(self, allocation: AllocationResult) -> None:
        """A claim got these devices."""
        for result in allocation.results:
            if result.share_id is None and not result.admin_access:
                self._free.pop(DeviceId.of(result), None)

    def any_since(self, number: int) -> bool:
        """Whether a device is free that came free after this number of times."""
        latest = next(reversed(self._free.values()), 0)
        return max(latest, self._forgotten) > number
