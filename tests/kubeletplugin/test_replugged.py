"""Devices that are pulled and plugged in again while claims hold them: none lands in another claim's container."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import pytest
from dra_kubeletplugin import ClaimRef, KubeletPlugin, PluginSettings
from dra_kubeletplugin.claims.prepared import PreparedClaims
from dra_kubeletplugin.drivers.hostdev.config import Found, HostdevConfig
from dra_kubeletplugin.drivers.hostdev.driver import HostdevDriver
from dra_kubeletplugin.drivers.hostdev.hotplug import Hotplug, Looking, replugged
from dra_kubeletplugin.drivers.hostdev.scan import scan
from dra_kubeletplugin.testing import FakeKubelet
from dra_kubeletplugin.testing.api import PluginApi
from fake_host import FakeHost
from node_world import MakeClaim
from waiting import becomes

Look = Callable[[], Found]


@dataclass
class Running:
    """A hostdev plugin at work, and the kubelet."""

    kubelet: FakeKubelet
    plugin: KubeletPlugin
    hotplug: Hotplug

    async def looks(self, count: int) -> None:
        """Wait until it has looked at the host so often."""
        looks = self.hotplug.looks()
        for _ in range(count):
            await asyncio.wait_for(anext(looks), 30)

    async def prepare(self, name: str) -> str:
        """The error of the claim, empty if it is prepared."""
        return str((await self.kubelet.prepare([ref(name)]))[f"uid-of-{name}"].error)

    async def damage(self, name: str) -> None:
        """Damage the record of a claim, when nothing is about to write it again from what it has read."""
        path = self.plugin.settings.records_dir / f"uid-of-{name}.json"
        await becomes(lambda: b'"unanswered":true' not in path.read_bytes())
        path.write_bytes(b"{")

    async def unprepare(self, name: str) -> str:
        """The error of the claim, empty if it is unprepared."""
        return str((await self.kubelet.unprepare([ref(name)]))[f"uid-of-{name}"].error)


def ref(name: str) -> ClaimRef:
    """A claim as the kubelet names it."""
    return ClaimRef("default", name, f"uid-of-{name}")


@dataclass
class Bench:
    """A host, and what a plugin on it leaves."""

    host: FakeHost
    settings: PluginSettings
    api: PluginApi
    config: HostdevConfig

    @asynccontextmanager
    async def run(self, look: Callable[[Look], Look] = lambda look: look) -> AsyncIterator[Running]:
        """Start the plugin; ``look`` surrounds what ``prepare`` looks with."""
        looking = Looking(self.config, self.host)
        hotplug = Hotplug(self.config, looking, seconds=0.02)
        driver = HostdevDriver(self.settings.driver_name, look(looking.thoroughly), hotplug.health)

        async def publish(plugin: KubeletPlugin) -> None:
            async for resources in hotplug.resources():
                await plugin.publish(resources)

        async with (
            KubeletPlugin(driver, self.settings, self.api.client) as plugin,
            FakeKubelet(self.settings) as kubelet,
            replugged(hotplug, plugin),
        ):
            task = asyncio.create_task(publish(plugin))
            try:
                yield Running(kubelet, plugin, hotplug)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def gone(self) -> list[str]:
        """The published devices that have a taint."""
        devices = [device for item in self.api.slices() for device in item["spec"].get("devices", ())]
        return [device["name"] for device in devices if "taints" in device]

    def given(self) -> dict[str, str]:
        """By claim, the node of the host that a container gets which starts now."""
        nodes = {}
        for path in Path(self.settings.cdi_dir).glob("*.json"):
            try:
                (device,) = json.loads(path.read_text())["devices"]
            except FileNotFoundError:  # withdrawn since it was listed
                continue
            (node,) = device["containerEdits"]["deviceNodes"]
            nodes[path.name.partition("uid-of-")[2][0]] = node["hostPath"]
        return nodes


@pytest.fixture
async def bench(tmp_path: Path, settings: PluginSettings, api: PluginApi, claim: MakeClaim) -> Bench:
    """Two adapters known by their serial numbers, and a claim for each."""
    (tmp_path / "host/dev").mkdir(parents=True)
    host = FakeHost(tmp_path / "host")
    host.serial_adapter("ttyUSB0", "1-2", serial="A")
    host.serial_adapter("ttyUSB1", "1-4", serial="B")
    entry = {"name": "s", "paths": ["/dev/ttyUSB*"], "id": "{serial}", "container": {"path": "/dev/modem"}}
    content = {"driverName": settings.driver_name, "nodeName": settings.node_name, "devices": [entry]}
    for name in ("a", "b"):
        await claim(name, device=f"s-{name}")
    return Bench(host, settings, api, msgspec.convert(content, HostdevConfig))


def swap(host: FakeHost) -> None:
    """Both are pulled, and plugged in again in the other order."""
    pull(host)
    swap_back(host)


def swap_back(host: FakeHost) -> None:
    """Both are plugged in, in the other order."""
    host.serial_adapter("ttyUSB0", "1-4", serial="B")
    host.serial_adapter("ttyUSB1", "1-2", serial="A")


def pull(host: FakeHost) -> None:
    """Both are pulled."""
    host.unplug("ttyUSB0")
    host.unplug("ttyUSB1")


SWAPPED = {"a": "/dev/ttyUSB1", "b": "/dev/ttyUSB0"}


async def test_swapped_adapters_swap_what_their_claims_get(bench: Bench) -> None:
    async with bench.run() as node:
        assert [await node.prepare(name) for name in ("a", "b")] == ["", ""]
        assert bench.given() == {"a": "/dev/ttyUSB0", "b": "/dev/ttyUSB1"}
        swap(bench.host)
        await becomes(lambda: bench.given() == SWAPPED)
        assert [await node.prepare(name) for name in ("a", "b")] == ["", ""], "as a kubelet that was restarted asks"
        assert bench.given() == SWAPPED


async def test_adapters_that_are_swapped_one_after_the_other_are_never_mixed_up(bench: Bench) -> None:
    async with bench.run() as node:
        assert [await node.prepare(name) for name in ("a", "b")] == ["", ""]
        pull(bench.host)
        await becomes(lambda: bench.given() == {})
        bench.host.serial_adapter("ttyUSB0", "1-4", serial="B")
        await becomes(lambda: not node.plugin.prepared_claims)
        assert bench.given() == {}, "the containers of a may still use /dev/ttyUSB0"
        bench.host.serial_adapter("ttyUSB1", "1-2", serial="A")
        await becomes(lambda: bench.given() == SWAPPED)


async def test_adapters_that_are_pulled_as_the_kubelet_gets_their_claims_swap_as_well(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it has the answer is noted after the files were withdrawn: the claims count as given all the same."""
    noted, late = PreparedClaims.answered, list[Callable[[], None]]()
    monkeypatch.setattr(PreparedClaims, "answered", lambda *given: late.append(partial(noted, *given)))
    async with bench.run() as node:
        assert [await node.prepare(name) for name in ("a", "b")] == ["", ""]
        pull(bench.host)
        await becomes(lambda: bench.given() == {})
        for note in late:
            note()
        swap_back(bench.host)
        await becomes(lambda: bench.given() == SWAPPED)


async def test_no_container_starts_with_a_claim_whose_adapter_is_gone(bench: Bench) -> None:
    async with bench.run() as node:
        assert await node.prepare("a") == ""
        bench.host.unplug("ttyUSB0")
        await becomes(lambda: bench.given() == {})
        assert "device s-a is gone" in await node.prepare("a")
        bench.host.serial_adapter("ttyUSB5", "1-2", serial="A")
        await becomes(lambda: bench.given() == {"a": "/dev/ttyUSB5"})
        assert await node.unprepare("a") == ""
        assert bench.given() == {}


async def test_the_node_of_a_pulled_adapter_is_nobody_elses_while_its_pod_may_run(bench: Bench) -> None:
    async with bench.run() as node:
        assert await node.prepare("a") == ""
        pull(bench.host)
        bench.host.serial_adapter("ttyUSB0", "1-4", serial="B")
        await becomes(lambda: bench.given() == {})
        error = await node.prepare("b")
        assert "device s-b is at /dev/ttyUSB0, which was given to claim default/a" in error
        assert "delete the pods of that claim, or bring its device back" in error
        assert bench.given() == {}
        assert await node.unprepare("a") == ""
        assert await node.prepare("b") == ""
        assert bench.given() == {"b": "/dev/ttyUSB0"}


async def test_the_node_that_an_adapter_had_is_given_to_no_new_claim_while_its_pod_may_run(bench: Bench) -> None:
    async with bench.run() as node:
        assert await node.prepare("a") == ""  # its container opens /dev/ttyUSB0
        pull(bench.host)
        await becomes(lambda: bench.given() == {})
        swap_back(bench.host)
        await becomes(lambda: bench.given() == {"a": "/dev/ttyUSB1"})
        error = await node.prepare("b")
        assert "device s-b is at /dev/ttyUSB0, which was given to claim default/a" in error
        assert "although its device is elsewhere now: delete the pods of that claim" in error
        assert await node.unprepare("a") == ""
        assert await node.prepare("b") == ""
        assert bench.given() == {"b": "/dev/ttyUSB0"}


async def test_a_claim_whose_record_is_damaged_gets_no_node_that_its_adapter_has_left(bench: Bench) -> None:
    """Its CDI file stayed, and gave a container that started again the adapter of another claim."""
    async with bench.run() as node:
        assert [await node.prepare(name) for name in ("a", "b")] == ["", ""]
        await node.damage("a")
        swap(bench.host)
        await becomes(lambda: bench.given() == {"b": "/dev/ttyUSB0"})
        assert "uid-of-a.json" in await node.prepare("a")
        assert await node.unprepare("a") == ""


async def test_adapters_that_are_swapped_while_the_plugin_is_away(bench: Bench) -> None:
    async with bench.run() as node:
        assert [await node.prepare(name) for name in ("a", "b")] == ["", ""]
    swap(bench.host)
    async with bench.run():
        await becomes(lambda: bench.given() == SWAPPED)
    pull(bench.host)
    async with bench.run():
        await becomes(lambda: bench.given() == {})


async def test_an_adapter_that_is_pulled_while_its_claim_is_prepared(bench: Bench) -> None:
    def swapping(look: Look) -> Look:
        def looks() -> Found:
            found = look()
            if bench.host.number("/dev/ttyUSB7") is None:
                bench.host.simple("ttyUSB7", "188:7")
                swap(bench.host)
            return found

        return looks

    async with bench.run(swapping) as node:
        assert await node.prepare("a") == ""
        await becomes(lambda: bench.given() == {"a": "/dev/ttyUSB1"})


async def test_an_adapter_with_the_serial_number_of_another_one_does_not_take_its_place(bench: Bench) -> None:
    bench.host.unplug("ttyUSB0")
    bench.host.serial_adapter("ttyUSB3", "1-2", serial="A")
    async with bench.run() as node:
        assert await node.prepare("a") == ""
        bench.host.serial_adapter("ttyUSB0", "1-7", serial="A")  # the first in the order of numbers
        bench.host.unplug("ttyUSB1")
        await becomes(lambda: "s-b" in bench.gone(), 30)  # after a look at all of them
        assert await node.prepare("a") == ""
        assert bench.given() == {"a": "/dev/ttyUSB3"}
    async with bench.run():  # which cannot know who was first
        await becomes(lambda: bench.given() == {})


def instances(bench: Bench) -> tuple[Bench, Bench]:
    """A rolling update brings another hostdev.yaml: the old instance knows the adapter A only."""
    old, new = (f"00000000-0000-4000-8000-00000000000{number}" for number in (1, 2))
    (entry,) = bench.config.devices
    only_a = msgspec.structs.replace(bench.config, devices=(msgspec.structs.replace(entry, match={"serial": "A"}),))
    return (
        replace(bench, settings=replace(bench.settings, rolling_update_uid=old), config=only_a),
        replace(bench, settings=replace(bench.settings, rolling_update_uid=new)),
    )


@pytest.mark.rule("PH-07")
async def test_the_old_instance_leaves_claims_alone_whose_devices_only_the_new_one_knows(bench: Bench) -> None:
    """It withdrew them at each look, and no container of theirs could start while both ran."""
    asked = []

    def counting(look: Look) -> Look:
        def looks() -> Found:
            asked.append(look)
            return look()

        return looks

    before, after = instances(bench)
    async with before.run(counting) as old:
        assert await old.prepare("a") == ""
        async with after.run() as new:
            assert await new.prepare("b") == ""
            asked.clear()
            await old.looks(10)
            assert not asked, "the old instance's driver has nothing to prepare"
            assert bench.given() == {"a": "/dev/ttyUSB0", "b": "/dev/ttyUSB1"}


@pytest.mark.rule("PH-07")
@pytest.mark.parametrize("fails", [False, True], ids=["the update succeeds", "the new instance ends"])
async def test_in_a_rolling_update_an_instance_that_stays_follows_the_devices(bench: Bench, fails: bool) -> None:
    before, after = instances(bench)
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        old = await first.enter_async_context(before.run())
        new = await second.enter_async_context(after.run())
        assert await new.prepare("a") == ""
        bench.host.unplug("ttyUSB0")
        await becomes(lambda: bench.given() == {})
        await (second if fails else first).aclose()
        bench.host.serial_adapter("ttyUSB5", "1-2", serial="A")
        await becomes(lambda: bench.given() == {"a": "/dev/ttyUSB5"})
        assert (old if fails else new).plugin.is_newest


def test_a_node_that_two_entries_match_is_one_device(bench: Bench) -> None:
    twice = (*bench.config.devices, msgspec.structs.replace(bench.config.devices[0], name="t"))
    found = scan(msgspec.structs.replace(bench.config, devices=twice), bench.host)
    assert list(found.devices) == ["s-a", "s-b"]
    assert found.problems == (
        "entry 't', device /dev/ttyUSB0: s-a has its node already; match each once",
        "entry 't', device /dev/ttyUSB1: s-b has its node already; match each once",
    )


async def test_a_damaged_record_keeps_the_node_that_its_adapter_has_left(bench: Bench) -> None:
    """The other adapter got the number, and with it a new claim the node that the container still had open."""
    async with bench.run() as node:
        assert await node.prepare("a") == ""
        await node.damage("a")
        pull(bench.host)
        await becomes(lambda: sorted(bench.gone()) == ["s-a", "s-b"])
        bench.host.serial_adapter("ttyUSB0", "1-4", serial="B")
        await becomes(lambda: bench.gone() == ["s-a"])
        error = await node.prepare("b")
        assert "device s-b is at /dev/ttyUSB0, which was given to claim uid-of-a (its record is damaged)" in error
        assert await node.unprepare("a") == ""
        assert await node.prepare("b") == ""
