"""The adapters of the host: each has a name that stays, and the node that the kernel gave it.

The drivers of the histories: a small one, the simulated one, and hostdev on a host of plain files.

Each is one that fails now and then (``Faulty``): it raises, hangs, or returns a device that the claim does not have.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from dra_api.resource import ResourceClaim
from dra_kubeletplugin import (
    ClaimError,
    ClaimRef,
    ContainerEdits,
    DeviceNode,
    Driver,
    KubeletPlugin,
    Pool,
    Prepared,
    PreparedDevice,
    Resources,
    Slice,
    device,
    results_for,
)
from dra_kubeletplugin.drivers.hostdev.config import Found, HostdevConfig
from dra_kubeletplugin.drivers.hostdev.driver import HostdevDriver
from dra_kubeletplugin.drivers.hostdev.facts import Number
from dra_kubeletplugin.drivers.hostdev.hotplug import Hotplug, Looking, replugged
from dra_kubeletplugin.drivers.hostdev.scan import scan
from dra_kubeletplugin.drivers.simulated import SimulatedDriver
from fake_host import FakeHost
from history_kit.game import Weather

from .process import Process
from .script import ADAPTERS, Script

T = TypeVar("T")


@dataclass(frozen=True)
class RememberingHost(FakeHost):
    """Reads each file once until something has changed: a thorough look reads a hundred of them."""

    known: dict[tuple[str, ...], Any] = field(default_factory=dict, compare=False)

    def glob(self, pattern: str) -> list[str]:
        return list(self._once("glob", pattern, super().glob))

    def resolved(self, path: str) -> str | None:
        return self._once("resolved", path, super().resolved)

    def number(self, path: str) -> Number | None:
        return self._once("number", path, super().number)

    def identity(self, path: str) -> tuple[int, ...]:
        return self._once("identity", path, super().identity)

    def text(self, path: str) -> str | None:
        return self._once("text", path, super().text)

    def link(self, path: str) -> str | None:
        return self._once("link", path, super().link)

    def _once(self, what: str, path: str, read: Callable[[str], T]) -> T:
        if (what, path) not in self.known:
            self.known[what, path] = read(path)
        found: T = self.known[what, path]
        return found


def scanned(
    config: HostdevConfig, host: RememberingHost, before: Found, held: Callable[[], Collection[str]] = tuple
) -> Found:
    """What ``scan`` finds; on a host in which nothing has changed since, that of the last time, as a new look."""
    key = "scan", str(id(config)), f"{id(before.devices)} {sorted(held())}"
    if key not in host.known:
        found = scan(config, host, before, held)
        if found.devices == before.devices:
            found = replace(found, devices=before.devices)
        host.known[key] = found, config, before.devices  # which keeps their ids
    known: Found = host.known[key][0]
    return replace(known)


class Hardware:
    """``nodes`` says where each adapter is that is there; ``had`` which nodes it ever had. Devices are ``s-<adapter>``.

    With a ``host`` they are in its files as well.
    """

    def __init__(self, folder: Path | None, *, is_fixed: bool) -> None:
        self.host = RememberingHost(folder) if folder else None
        self.is_fixed = is_fixed
        self.nodes: dict[str, str] = {}
        self.twins: dict[str, str] = {}
        self.had: dict[str, set[str]] = {}
        self.set_up: set[str] = set()
        """Uids of claims for which a driver has done something to devices."""
        for number, adapter in enumerate(ADAPTERS):
            self.plug(adapter, number)

    def plug(self, adapter: str, number: int) -> None:
        """It gets this node, or the next one that is free."""
        if adapter in self.nodes:
            return
        self.nodes[adapter] = node = self._free_node(number)
        self.had.setdefault(device_of(adapter), set()).add(node)
        if self.host:
            self.host.serial_adapter(node.rpartition("/")[2], f"1-{ADAPTERS.index(adapter) + 1}", serial=adapter)
            self.host.known.clear()

    def pull(self, adapter: str) -> None:
        """Its node is gone. Its twin, if it has one, is the adapter from now on."""
        if self.is_fixed or not (node := self.nodes.pop(adapter, None)):
            return
        if self.host:
            self.host.unplug(node.rpartition("/")[2])
            self.host.known.clear()
        if twin := self.twins.pop(adapter, None):
            self.nodes[adapter] = twin
            self.had[device_of(adapter)].add(twin)

    def plug_twin(self, adapter: str) -> None:
        """Another adapter has the same serial number: it is left out while the first one is there."""
        if self.host and adapter in self.nodes and adapter not in self.twins:
            self.twins[adapter] = node = self._free_node(0)
            self.host.serial_adapter(node.rpartition("/")[2], f"1-{ADAPTERS.index(adapter) + 5}", serial=adapter)
            self.host.known.clear()

    def pull_twin(self, adapter: str) -> None:
        if self.host and (node := self.twins.pop(adapter, None)):
            self.host.unplug(node.rpartition("/")[2])
            self.host.known.clear()

    def _free_node(self, number: int) -> str:
        names = [f"/dev/ttyUSB{(number + more) % 9}" for more in range(9)]
        return next(name for name in names if name not in (*self.nodes.values(), *self.twins.values()))

    def swap(self, adapter: str, other: str) -> None:
        """Both are pulled, and plugged in again in the other order."""
        if self.is_fixed or adapter == other or not {adapter, other} <= self.nodes.keys():
            return
        first, second = (int(self.nodes[each][-1]) for each in (adapter, other))
        self.pull(adapter)
        self.pull(other)
        self.plug(adapter, second)
        self.plug(other, first)

    def node_of(self, device: str) -> str | None:
        return self.nodes.get(device.removeprefix("s-"))

    def devices(self) -> list[str]:
        return sorted(map(device_of, self.nodes))


def device_of(adapter: str) -> str:
    return f"s-{adapter}"


NAME = "gpu.example.com"
NODE = "worker-1"
LOOK_SECONDS = 1.0
HANG_SECONDS = (3.0, 30.0, 70.0)


class Made(NamedTuple):
    """A driver for one process: what it publishes, and what runs beside the plugin."""

    driver: Driver
    resources: AsyncIterable[Resources]
    beside: Callable[[KubeletPlugin], AbstractAsyncContextManager[object]] = nullcontext


def made(script: Script, hardware: Hardware, weather: Weather, known: tuple[str, ...]) -> Made:
    """The driver of a script, in a version that knows some adapters."""
    if script.driver == "simulated":
        return Made(
            Faulty(SimulatedDriver(NAME), weather, hardware), _always([device_of(each) for each in known], script)
        )
    if script.driver == "hostdev":
        assert hardware.host is not None
        (entry,) = _CONFIG.devices
        config = msgspec.structs.replace(_CONFIG, devices=(msgspec.structs.replace(entry, match={"serial": known}),))
        looking = Looking(config, hardware.host, asyncio.get_running_loop().time)
        hotplug = Hotplug(config, looking, LOOK_SECONDS)
        driver = HostdevDriver(NAME, looking.thoroughly, hotplug.health)
        return Made(Faulty(driver, weather, hardware), hotplug.resources(), partial(replugged, hotplug))
    toy = Toy(hardware, script, known)
    return Made(Faulty(toy, weather, hardware), toy.resources(), toy.followed)


_CONFIG = msgspec.convert(
    {
        "driverName": NAME,
        "nodeName": NODE,
        "devices": [
            {
                "name": "s",
                "paths": ["/dev/ttyUSB*"],
                "id": "{serial}",
                "container": {"path": "/dev/modem-{serial}", "env": {"DEVICE": "s-{serial}"}},
            }
        ],
    },
    HostdevConfig,
)


async def _always(names: Sequence[str], script: Script) -> AsyncIterator[Resources]:
    yield _pools(names, script)


def _pools(names: Sequence[str], script: Script) -> Resources:
    devices = [device(name) for name in names]
    if script.spread and devices:
        return {NODE: Pool(slices=tuple(Slice(devices=(each,)) for each in devices))}
    return {NODE: Pool.of(devices)}


class Toy(Driver):
    """Gives containers the node of an adapter, which it looks up in a dict."""

    def __init__(self, hardware: Hardware, script: Script, known: tuple[str, ...]) -> None:
        self._hardware, self._script = hardware, script
        self._known = tuple(map(device_of, known))

    def _node_of(self, name: str) -> str | None:
        return self._hardware.node_of(name) if name in self._known else None

    async def prepare(self, claim: ResourceClaim) -> Prepared:
        return await asyncio.to_thread(lambda: [self._prepared(result) for result in results_for(NAME, claim)])

    def _prepared(self, result: object) -> PreparedDevice:
        name: str = result.device  # type: ignore[attr-defined]  # a result of an allocation
        node = self._node_of(name)
        if node is None:
            raise ClaimError(f"device {name} is gone")
        nodes = (DeviceNode(path=f"/dev/{name}", host_path=node),)
        edits = ContainerEdits(env=(f"DEVICE_{name[-1]}={name}",), device_nodes=nodes)
        return PreparedDevice.of(result, edits=edits, owns=[node])  # type: ignore[arg-type]  # as above

    async def resources(self) -> AsyncIterator[Resources]:
        """The adapters that are there."""
        shown: list[str] | None = None
        while True:
            if shown != (found := [name for name in self._hardware.devices() if name in self._known]):
                shown = found
                yield _pools(found, self._script)
            await asyncio.sleep(LOOK_SECONDS)

    @asynccontextmanager
    async def followed(self, plugin: KubeletPlugin) -> AsyncIterator[None]:
        """Claims whose adapters have moved are prepared again while the plugin runs."""
        task = asyncio.create_task(self._follow(plugin))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _follow(self, plugin: KubeletPlugin) -> None:
        while True:
            if plugin.is_newest:
                with suppress(ClaimError, OSError):  # the next look comes soon
                    await plugin.prepare_again(self._moved(plugin))
            await asyncio.sleep(LOOK_SECONDS)

    def _moved(self, plugin: KubeletPlugin) -> set[str]:
        return {
            found.device
            for claim in plugin.prepared_claims
            for found in claim.devices
            if found.owns != (self._node_of(found.device),)
        }


class DriverFailed(Exception):
    """What the driver raises now and then."""


class Faulty(Driver):
    """Another driver in bad weather. What it sets up for a claim, in a thread, is in ``hardware.set_up``."""

    def __init__(self, driver: Driver, weather: Weather, hardware: Hardware) -> None:
        self._driver, self._weather, self._hardware = driver, weather, hardware
        odds = 0.15 * weather.chance("driver")
        self._of_unprepare = (("raises", odds), ("hangs", odds / 3), ("sticks", odds / 3), ("late", odds))
        self._of_prepare = (*self._of_unprepare, ("lies", odds))

    async def prepare(self, claim: ResourceClaim) -> Prepared:
        uid = claim.metadata.uid
        with self._at_work():
            strike = await self._suffer(f"prepare {uid}", self._of_prepare, lambda: self._hardware.set_up.add(uid))
            prepared = list(await self._driver.prepare(claim))
        if strike == "late":
            raise DriverFailed("the device is on fire, after all")
        if strike == "lies" and prepared:
            others = [device_of(each) for each in ADAPTERS if device_of(each) not in {one.device for one in prepared}]
            prepared[-1] = replace(prepared[-1], device=(others or ["s-x"])[0])
        return prepared

    async def unprepare(self, claim: ClaimRef) -> None:
        uid = claim.uid
        with self._at_work():
            discard = partial(self._hardware.set_up.discard, uid)
            strike = await self._suffer(f"unprepare {uid}", self._of_unprepare, discard)
            await self._driver.unprepare(claim)
        if strike == "late":
            raise DriverFailed("the device is on fire, after all")

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        process = Process.present()
        process.calls += 1
        try:
            yield
        finally:
            process.calls -= 1

    async def _suffer(self, name: str, chances: tuple[tuple[str, float], ...], work: Callable[[], None]) -> str:
        fate = self._weather.fate(name, chances)
        await asyncio.sleep(fate.before)
        seconds = HANG_SECONDS[int(fate.before * 1e6) % len(HANG_SECONDS)]
        if fate.strike == "raises":
            raise DriverFailed("the device is on fire")
        if fate.strike == "hangs":
            await asyncio.sleep(seconds)
        await Process.present().thread(seconds if fate.strike == "sticks" else 0.001, work)
        return fate.strike
