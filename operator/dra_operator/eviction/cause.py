"""Why a pod is evicted, and when."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from dra_api.resource import DeviceTaint

from dra_operator.allocator import DeviceId

NO_DEVICE = DeviceId("", "", "")


class Cause(NamedTuple):
    """One taint that evicts: of a DeviceTaintRule (``rule``, ``rule_uid``), or of a device in its slice.

    Fields are in the order in which causes are listed: rules first, by name, then devices by driver, pool and name,
    and the taints of a device by their place in the slice.
    """

    is_of_device: bool
    rule: str
    device: DeviceId
    place: int
    rule_uid: str
    taint: DeviceTaint

    @classmethod
    def of_rule(cls, name: str, uid: str, taint: DeviceTaint) -> Cause:
        """The taint of a rule, on whatever devices it selects."""
        return cls(False, name, NO_DEVICE, 0, uid, taint)

    @classmethod
    def of_device(cls, device: DeviceId, place: int, taint: DeviceTaint) -> Cause:
        """A taint that the driver publishes."""
        return cls(True, "", device, place, "", taint)

    def __str__(self) -> str:
        value = f"={self.taint.value}" if self.taint.value else ""
        source = f"device {self.device}" if self.is_of_device else f"DeviceTaintRule {self.rule}"
        return f"{source} has taint {self.taint.key}{value}:{self.taint.effect}"


class Eviction(NamedTuple):
    """The pod may be deleted from ``due`` on; ``causes`` are sorted, without repetition."""

    due: datetime
    causes: tuple[Cause, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.causes))


def merged(evictions: Iterable[Eviction]) -> Eviction | None:
    """The earliest due time with the causes of all; None for none."""
    known = list(evictions)
    if not known:
        return None
    causes = {cause[:4]: cause for eviction in known for cause in eviction.causes}
    return Eviction(min(eviction.due for eviction in known), tuple(causes[key] for key in sorted(causes)))
