"""What is published while devices come and go; pure, with the time in hand.

A device that is there is published. One that vanished stays for a while, with a taint: a cable that is pulled and
plugged in again is no new device, and claims that hold it show what happened. Then it is withdrawn. If it comes back,
the taint goes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dra_api.resource import Device, DeviceTaint
from msgspec.structs import replace

from dra_kubeletplugin import DeviceHealth

from .config import GoneConfig
from .device import HostDevice

MOST_WITHDRAWN_DEVICES: Final = 100
"""Withdrawn devices whose health is told; each adapter that is plugged in once may have a name of its own."""


class Inventory:
    """The devices of a driver; ``taint_key`` marks those that are gone."""

    def __init__(self, taint_key: str, gone: GoneConfig) -> None:
        self._taint = DeviceTaint(key=taint_key, effect=gone.effect)
        self._withdraw_after = gone.withdraw_after_seconds
        self._order: list[str] = []
        self._known: dict[str, Device] = {}
        self._gone_since: dict[str, float] = {}
        self._withdrawn: dict[str, None] = {}

    def health(self) -> list[DeviceHealth]:
        """The devices that are there, and the latest that were: pods may still hold one that was withdrawn."""
        gone = self._gone_since.keys() | self._withdrawn.keys()
        here = [name for name in self._order if name not in gone]
        return [DeviceHealth(device=name, healthy=True) for name in here] + [
            DeviceHealth(device=name, healthy=False, message="not on the host any more") for name in sorted(gone)
        ]

    def update(self, found: dict[str, HostDevice], now: float, held: Collection[str] = ()) -> list[Device]:
        """Take in a look at the host, and return the devices to publish; ``held`` are in pods, and so not gone.

        Devices keep their place in the order: the allocator prefers earlier ones, and a change in the middle would
        rewrite every slice behind it.
        """
        for name, made in found.items():
            if name not in self._known:
                self._order.append(name)
            self._known[name] = made.published
            self._gone_since.pop(name, None)
            self._withdrawn.pop(name, None)
        for name in self._known.keys() - found.keys():
            if name in held:
                self._gone_since.pop(name, None)
            else:
                self._gone_since.setdefault(name, now)
        for name in [name for name, since in self._gone_since.items() if now - since >= self._withdraw_after]:
            del self._gone_since[name], self._known[name]
            self._order.remove(name)
            self._withdrawn[name] = None
        for name in list(self._withdrawn)[: max(0, len(self._withdrawn) - MOST_WITHDRAWN_DEVICES)]:
            del self._withdrawn[name]
        return [self._shown(name) for name in self._order]

    def _shown(self, name: str) -> Device:
        known = self._known[name]
        return replace(known, taints=(self._taint,)) if name in self._gone_since else known
