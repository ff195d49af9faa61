"""Devices that come and go: when the host is looked at, what is published, what claims get anew.

A device that is there is published. One that vanished stays for a while, with a taint: a cable that is pulled and
plugged in again is no new device, and claims that hold it show what happened. Then it is withdrawn. If it comes back,
the taint goes (``Inventory``). Another taint marks a device that a claim of another driver has: two configurations may
match the same one, and a claim that got it here would not be prepared.

What the patterns of the file match is cheap to see, and a device that is plugged in again is another file of the same
name. So ``Looking`` sees that once a second. All that sysfs and udev say costs a millisecond per device, with a hundred
PCI devices a tenth of a processor. So a thorough look follows each change for some seconds, until drivers are bound and
udev is done, and otherwise comes every ten seconds.

``Hotplug`` publishes what the looks find. A look needs nothing but files: no udev daemon, no network namespace of the
host, no event that may be lost. An exception in a look is logged and changes nothing: what could not be looked at is
not gone.

The kernel gives the lowest free number to what is plugged in, so a device that is plugged in again may have the node
that another one had. After each thorough look the claims whose devices have other nodes now, or are gone, are prepared
again (``replugged``): their CDI files are rewritten, or withdrawn. A network interface that is in its pod counts as
unchanged. In a rolling update the newest instance alone does so. The other one may have another configuration: devices
that it does not know would be gone for it, and it would withdraw their claims.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol

from dra_api.resource import Device, DeviceTaint
from msgspec.structs import replace

from dra_kubeletplugin import DeviceHealth, KubeletPlugin, Pool, Resources
from dra_kubeletplugin.drivers.hostdev.config import Found, GoneConfig, HostdevConfig, HostDevice
from dra_kubeletplugin.drivers.hostdev.facts import HostTree
from dra_kubeletplugin.drivers.hostdev.interfaces import InPods
from dra_kubeletplugin.drivers.hostdev.scan import scan

MOST_WITHDRAWN_DEVICES: Final = 100
"""Withdrawn devices whose health is told; each adapter that is plugged in once may have a name of its own."""


class PartsElsewhere(Protocol):
    """As ``KubeletPlugin.parts_elsewhere``."""

    def __call__(self, *, shared: bool = False) -> Mapping[str, str]: ...


class Inventory:
    """The devices of ``driver``; the taint ``<driver>/gone`` marks those that are gone.

    ``<driver>/in-use-elsewhere`` marks those that claims of another driver have, which is its value.
    """

    def __init__(self, driver: str, gone: GoneConfig) -> None:
        self._driver = driver
        self._gone = DeviceTaint(key=f"{driver}/gone", effect=gone.effect)
        self._elsewhere: Mapping[str, str] = {}
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

    def lacks(self, found: dict[str, HostDevice]) -> bool:
        """Return whether a published device is not among the found ones."""
        return not self._known.keys() <= found.keys()

    def update(
        self,
        found: dict[str, HostDevice],
        now: float,
        held: Collection[str] = (),
        elsewhere: Mapping[str, str] = MappingProxyType({}),
    ) -> list[Device]:
        """Take in a look at the host, and return the devices to publish; ``held`` are in pods, and so not gone.

        ``elsewhere`` has the drivers whose claims have the same hardware, by device. Devices keep their place in the
        order: the allocator prefers earlier ones, and a change in the middle would rewrite every slice behind it.
        """
        self._elsewhere = elsewhere
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
        known, taints = self._known[name], []
        if name in self._gone_since:
            taints.append(self._gone)
        if other := self._elsewhere.get(name):
            taints.append(DeviceTaint(key=f"{self._driver}/in-use-elsewhere", value=other, effect="NoSchedule"))
        return replace(known, taints=tuple(taints)) if taints else known


_SETTLE_SECONDS = 5.0
_THOROUGH_LOOK_SECONDS = 10.0
_LOOKS_WHILE_NODES_CHANGE = 5

Seen = tuple[tuple[str, tuple[int, ...]], ...]


class Looking:
    """Call it once a second; ``clock`` gives seconds. ``held`` returns the devices of prepared claims."""

    def __init__(
        self,
        config: HostdevConfig,
        tree: HostTree,
        clock: Callable[[], float] = time.monotonic,
        held: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._config, self._tree, self._clock, self._held = config, tree, clock, held
        self._seen: Seen | None = None
        self._found = Found()
        self._scanning = threading.Lock()
        self._changed_at = self._looked_at = clock()

    def __call__(self) -> Found:
        """The devices that are there now, as they were at the last thorough look."""
        now, seen = self._clock(), self._glance()
        if seen != self._seen:
            self._changed_at = now
        if (
            seen != self._seen
            or now - self._changed_at < _SETTLE_SECONDS
            or now - self._looked_at >= _THOROUGH_LOOK_SECONDS
        ):
            self.thoroughly()
            self._looked_at = now
        self._seen = seen
        return self._found

    def thoroughly(self) -> Found:
        """The devices that are there now; may be called from several threads.

        What is pulled during a look leaves half of itself in it: a number without its node, a node without its serial.
        So such a look is thrown away and begun again, a few times at most: of nodes that come and go all the time, what
        is found last counts, until the next look.
        """
        with self._scanning:
            seen = self._glance()
            for _ in range(_LOOKS_WHILE_NODES_CHANGE):
                found = scan(self._config, self._tree, self._found, self._held)
                before, seen = seen, self._glance()
                if seen == before:
                    break
            self._found = found
            return found

    def _glance(self) -> Seen:
        patterns = (pattern for entry in self._config.devices for pattern in (*entry.paths, *entry.sysfs))
        paths = dict.fromkeys(path for pattern in patterns for path in self._tree.glob(pattern))
        return tuple((path, self._tree.identity(path)) for path in paths)


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
        self.parts_elsewhere: PartsElsewhere = lambda *, shared=False: {}
        """Returns the parts of the host that other drivers gave away. Set when the plugin runs."""
        self._inventory = Inventory(config.driver_name, config.gone)
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
                if found is not self._found:
                    self.in_pods.see(found)
                # The records of all claims are read for it, so not in each second.
                held = self._held() if self._inventory.lacks(found.devices) else set()
                elsewhere = await asyncio.to_thread(self._in_use_elsewhere, found)
            except Exception:
                log.exception("cannot read the devices of the host; published devices stay")
            else:
                if self._take_in(found, held, elsewhere):
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

    def _held(self) -> set[str]:
        """Return the devices that are in the pods of their claims. Raises ClaimError."""
        return {device.device for _, device in self.in_pods.devices()}

    def _in_use_elsewhere(self, found: Found) -> dict[str, str]:
        """Return by device the other driver of which a claim has the same hardware. Raises ClaimError."""
        alone, shared = self.parts_elsewhere(), self.parts_elsewhere(shared=True)
        drivers: dict[str, str] = {}
        for name, made in found.devices.items():
            theirs = alone if made.entry.shares == 1 else shared
            if part := next(filter(theirs.__contains__, found.owned[name]), None):
                drivers[name] = theirs[part]
        return drivers

    def _take_in(self, found: Found, held: set[str], elsewhere: Mapping[str, str]) -> bool:
        """Whether something else is to be published than before."""
        for problem in found.problems:
            if problem not in self._problems:
                log.warning("a device is left out: %s", problem)
        self._problems = found.problems
        before, self._devices = self._devices, self._inventory.update(found.devices, time.monotonic(), held, elsewhere)
        if before != self._devices:
            log.info("devices: %s", ", ".join(map(_shown, self._devices)) or "none")
        return before != self._devices


def _shown(device: Device) -> str:
    taints = [taint.key.rpartition("/")[2] for taint in device.taints or ()]
    return f"{device.name} ({', '.join(taints)})" if taints else device.name


@asynccontextmanager
async def replugged(hotplug: Hotplug, plugin: KubeletPlugin) -> AsyncIterator[None]:
    """Prepare claims again while the plugin runs."""
    hotplug.in_pods.claims = lambda: plugin.prepared_claims
    hotplug.parts_elsewhere = plugin.parts_elsewhere
    task = asyncio.create_task(_follow(hotplug, plugin), name="prepare claims of replugged devices again")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _follow(hotplug: Hotplug, plugin: KubeletPlugin) -> None:
    async for found in hotplug.looks():
        if not plugin.is_newest:
            continue
        try:
            held = {device.device for _, device in hotplug.in_pods.devices()}
            await plugin.prepare_again(_moved(plugin, found) - held)
        except Exception:
            log.exception("cannot prepare the claims of replugged devices again; retrying soon")


def _moved(plugin: KubeletPlugin, found: Found) -> set[str]:
    """The devices of prepared claims that have other nodes now, or are gone."""
    return {
        device.device
        for claim in plugin.prepared_claims
        for device in claim.devices
        if found.owned.get(device.device) != device.owns
    }
