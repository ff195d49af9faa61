"""Which devices of a pool may be allocated together: their compatibility groups on each counter set.

A device without groups on a set is in a group of its own kind there, with all others without groups (K37-CG-03).
Spec: kubernetes-1.37.md section 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dra_api.resource import Device

from .slices import Slice

Groups = frozenset[str]
WITHOUT_GROUPS: Final[Groups] = frozenset({""})
"""No group has this name."""

Membership = tuple[tuple[str, Groups], ...]
"""The groups of a device on each counter set from which it draws."""


class CompatibilityTable:
    """The groups of the devices of one pool, those for other nodes included (K37-CG-05).

    Slices that the node sees come first: of two devices with one name theirs counts.
    """

    def __init__(self, slices: Iterable[Slice], devices: Sequence[Device]) -> None:
        self.is_idle = True
        """No device has groups, so that all are compatible."""
        self._memberships: dict[str, Membership] = {}
        for slice_ in slices:
            for device in slice_.devices:
                if device.consumes_counters:
                    self._memberships.setdefault(device.name, _membership(device))
                    self.is_idle &= not has_groups(device)
        kinds: dict[Membership, int] = {}
        self.of: dict[int, Membership] = {}
        """The membership of those devices of the node that draw on counters, by their number in the pool."""
        for number, device in enumerate(devices):
            if device.consumes_counters:
                membership = self.of[number] = _membership(device)
                kinds[membership] = kinds.get(membership, 0) | 1 << number
        self.kinds = list(kinds.items())
        """The devices of the node that are in the same groups."""

    def common(self, allocated: Iterable[str]) -> dict[str, Groups]:
        """The groups that all allocated devices have in common on each set from which any of them draws."""
        found: dict[str, Groups] = {}
        for name in allocated:
            found = narrowed(found, self._memberships.get(name, ()))
        return found


def narrowed(common: Mapping[str, Groups], membership: Membership) -> dict[str, Groups]:
    """The common groups once a device is allocated as well."""
    return {**common, **{set_: common.get(set_, groups) & groups for set_, groups in membership}}


def has_groups(device: Device) -> bool:
    """Whether the device has any group on any set."""
    return any(consumption.compatibility_groups for consumption in device.consumes_counters or ())


def _membership(device: Device) -> Membership:
    return tuple(
        sorted(
            (consumption.counter_set, frozenset(consumption.compatibility_groups or ()) or WITHOUT_GROUPS)
            for consumption in device.consumes_counters or ()
        )
    )
