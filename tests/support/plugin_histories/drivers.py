"""The drivers of the histories: a small one, the simulated one, and hostdev on a host of plain files.

Each is one that fails now and then (``Faulty``): it raises, hangs, or returns a device that the claim does not have.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

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
from dra_kubeletplugin.drivers.hostdev.config import HostdevConfig
from dra_kubeletplugin.drivers.hostdev.driver import HostdevDriver
from dra_kubeletplugin.drivers.hostdev.hotplug import Hotplug, Looking, replugged
from dra_kubeletplugin.drivers.simulated import SimulatedDriver
from history_kit.game import Fate, Weather

from .hardware import Hardware, device_of
from .process import Process
from .script import ADAPTERS, Script

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
        strike = await self._do(f"prepare {uid}", self._of_prepare, lambda: self._hardware.set_up.add(uid))
        prepared = list(await self._driver.prepare(claim))
        if strike == "late":
            raise DriverFailed("the device is on fire, after all")
        if strike == "lies" and prepared:
            others = [device_of(each) for each in ADAPTERS if device_of(each) not in {one.device for one in prepared}]
            prepared[-1] = replace(prepared[-1], device=(others or ["s-x"])[0])
        return prepared

    async def unprepare(self, claim: ClaimRef) -> None:
        uid = claim.uid
        strike = await self._do(f"unprepare {uid}", self._of_unprepare, lambda: self._hardware.set_up.discard(uid))
        await self._driver.unprepare(claim)
        if strike == "late":
            raise DriverFailed("the device is on fire, after all")

    async def _do(self, name: str, chances: tuple[tuple[str, float], ...], work: Callable[[], None]) -> str:
        process = Process.present()
        process.calls += 1
        try:
            return await self._suffer(self._weather.fate(name, chances), work)
        finally:
            process.calls -= 1

    async def _suffer(self, fate: Fate, work: Callable[[], None]) -> str:
        await asyncio.sleep(fate.before)
        seconds = HANG_SECONDS[int(fate.before * 1e6) % len(HANG_SECONDS)]
        if fate.strike == "raises":
            raise DriverFailed("the device is on fire")
        if fate.strike == "hangs":
            await asyncio.sleep(seconds)
        await Process.present().thread(seconds if fate.strike == "sticks" else 0.001, work)
        return fate.strike
