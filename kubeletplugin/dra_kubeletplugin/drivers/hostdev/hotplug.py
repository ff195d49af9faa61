"""Keeps what is published in line with the host: looks once a second, and tells of changes.

A look needs nothing but files: no udev daemon, no network namespace of the host, no event that may be lost. An
exception in a look is logged and changes nothing: what could not be looked at is not gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from dra_api.resource import Device

from dra_kubeletplugin import DeviceHealth, Pool, Resources

from .config import HostdevConfig
from .device import Found
from .interfaces import InPods
from .inventory import Inventory
from .tree import HostTree

log = logging.getLogger(__name__)

_SCAN_SECONDS = 1.0


class Hotplug:
    """``look`` blocks; ``seconds`` lie between two looks. ``in_pods`` tells what left the host without being gone."""

    def __init__(
        self,
        config: HostdevConfig,
        look: Callable[[], Found],
        seconds: float = _SCAN_SECONDS,
        in_pods: InPods | None = None,
    ) -> None:
        self.in_pods = in_pods or InPods(HostTree())
        self._pool = config.node_name
        self._look = look
        self._seconds = seconds
        self._inventory = Inventory(f"{config.driver_name}/gone", config.gone)
        self._devices: list[Device] | None = None
        self._problems: tuple[str, ...] = ()
        self._found: Found | None = None
        self._looked = asyncio.Condition()
        self._changed = asyncio.Condition()

    async def resources(self) -> AsyncIterator[Resources]:
        """What is to be published, now and after each change; the only one who looks."""
        while True:
            try:
                found = await asyncio.to_thread(self._look)
                self.in_pods.see(found)
                held = {device.device for _, device in self.in_pods.devices()}
            except Exception:
                log.exception("cannot read the devices of the host; published devices stay")
            else:
                if self._take_in(found, held):
                    async with self._changed:
                        self._changed.notify_all()
                    yield {self._pool: Pool.of(self._devices or ())}
                if found is not self._found:
                    async with self._looked:
                        self._found = found
                        self._looked.notify_all()
            await asyncio.sleep(self._seconds)

    async def health(self) -> AsyncIterator[Sequence[DeviceHealth]]:
        """Which devices are there, now and after each change."""
        while True:
            yield self._inventory.health()
            async with self._changed:
                await self._changed.wait()

    async def looks(self) -> AsyncIterator[Found]:
        """What each thorough look found; a caller that is slow misses some, but never the latest."""
        latest: Found | None = None
        while True:
            async with self._looked:
                await self._looked.wait_for(partial(self._is_other, latest))
                latest = self._found
            if latest is not None:
                yield latest

    def _is_other(self, found: Found | None) -> bool:
        return self._found is not found

    def _take_in(self, found: Found, held: set[str]) -> bool:
        """Whether something else is to be published than before."""
        for problem in found.problems:
            if problem not in self._problems:
                log.warning("a device is left out: %s", problem)
        self._problems = found.problems
        before, self._devices = self._devices, self._inventory.update(found.devices, time.monotonic(), held)
        if before != self._devices:
            log.info("devices: %s", ", ".join(map(_shown, self._devices)) or "none")
        return before != self._devices


def _shown(device: Device) -> str:
    return f"{device.name} (gone)" if device.taints else device.name
