"""Two drivers on one node that publish the same hardware: no part of the host is given to claims of both."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from dra_api.resource import DeviceRequestAllocationResult, ResourceClaim
from dra_kubeletplugin import (
    CdiFolder,
    ClaimRef,
    ContainerEdits,
    Driver,
    KubeletPlugin,
    PluginSettings,
    Prepared,
    PreparedDevice,
    results_for,
)
from dra_kubeletplugin.claims.prepared import PreparedClaims
from dra_kubeletplugin.drivers.hostdev.config import HostdevConfig
from dra_kubeletplugin.drivers.hostdev.driver import HostdevDriver
from dra_kubeletplugin.drivers.hostdev.hotplug import Hotplug, Looking, replugged
from dra_kubeletplugin.errors import ClaimError
from dra_kubeletplugin.files.checkpoint import ClaimRecords, boot_id
from dra_kubeletplugin.files.claim_files import ClaimFiles, MetadataFiles
from dra_kubeletplugin.files.folders import HostParts
from dra_kubeletplugin.testing import FakeKubelet, allocated_claim
from dra_kubeletplugin.testing.api import PluginApi
from fake_host import FakeHost
from node_world import Disk, MakeClaim
from rounds import fewer, fresh
from waiting import becomes

ONE, TWO = "one.example.com", "two.example.com"


class Giver(Driver):
    """Gives each device the parts of the host at which it is; a container has them in the variable ``AT``."""

    def __init__(self, name: str, at: dict[str, tuple[str, ...]]) -> None:
        self.name, self.at = name, at

    async def prepare(self, claim: ResourceClaim) -> Prepared:
        return [self._prepared(result) for result in results_for(self.name, claim)]

    def _prepared(self, result: DeviceRequestAllocationResult) -> PreparedDevice:
        at = self.at[result.device]
        return PreparedDevice.of(result, edits=ContainerEdits(env=(f"AT={','.join(at)}",)), owns=at)


@dataclass
class Side:
    """A driver of the node, without sockets; ``start`` makes a process of it."""

    root: Path
    name: str
    at: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        records = ClaimRecords(self.root / self.name / "claims")
        records.create()
        cdi = CdiFolder(self.root / "cdi", self.name)
        cdi.create()
        metadata = MetadataFiles(self.root / self.name / "metadata", self.name, ())
        self.parts = HostParts(self.root, self.name)
        self.claims = PreparedClaims(
            Giver(self.name, self.at), self.name, records, ClaimFiles(cdi, metadata, self.parts)
        )

    async def restart(self) -> None:
        self.start()
        await self.claims.tidy(sweep=True)

    async def prepare(self, name: str, *devices: str, **fields: Any) -> str:
        """Return the error of a claim, empty if it is prepared."""
        claim = allocated_claim(self.name, *(f"p/{device}" for device in devices), name=name, **fields)
        answer = await self.claims.prepare(claim)
        self.claims.answered({claim.metadata.uid: answer})
        self.claims.record_answered([claim.metadata.uid])
        return str(answer) if isinstance(answer, Exception) else ""

    async def again(self) -> None:
        """All devices may have changed."""
        await self.claims.prepare_again(self.claims.holders(("d", "e"), "p"))

    async def unprepare(self, name: str) -> None:
        assert await self.claims.unprepare(ClaimRef("default", name, f"uid-of-{name}")) is None

    def given(self) -> dict[str, str]:
        """By claim, where its device is for containers that start now."""
        found = {}
        for path in sorted((self.root / "cdi").glob(f"{self.name}-*.json")):
            (device,) = json.loads(path.read_text())["devices"]
            found[path.name.partition("uid-of-")[2].partition("-")[0]] = device["containerEdits"]["env"][0][3:]
        return found


@pytest.fixture
def one(tmp_path: Path) -> Side:
    return Side(tmp_path, ONE, {"d": ("/dev/x", "c 1:2"), "e": ("/dev/y",)})


@pytest.fixture
def two(tmp_path: Path) -> Side:
    return Side(tmp_path, TWO, {"d": ("/dev/z", "c 1:2"), "e": ("/dev/q",)})


async def test_what_a_claim_of_one_driver_has_is_given_to_none_of_another_one(one: Side, two: Side) -> None:
    assert await one.prepare("a", "d") == ""
    error = await two.prepare("b", "d")
    assert "c 1:2 was given to claim default/a by another driver, one.example.com" in error
    assert two.given() == {}
    assert await two.prepare("c", "e") == ""
    assert error.endswith(f"remove {one.root}/.owned/{ONE}/uid-of-a.json")
    await one.unprepare("a")
    assert await two.prepare("b", "d") == ""
    for name in ("b", "c"):
        await two.unprepare(name)
    assert not (two.root / ".owned").exists(), "who owns nothing leaves nothing"


@pytest.mark.parametrize(
    ("part", "first", "second", "is_refused"),
    [
        ("/dev/x", {}, {}, True),
        ("b 8:0", {}, {}, True),
        ("network interface eth1", {}, {}, True),
        ("slot 1", {}, {}, False),
        ("/dev/x", {"shareID": "s"}, {"shareID": "t"}, False),
        ("/dev/x", {"shareID": "s"}, {}, True),
        ("/dev/x", {}, {"shareID": "t"}, True),
        ("/dev/x", {"adminAccess": True}, {}, False),
        ("/dev/x", {}, {"adminAccess": True}, False),
    ],
)
async def test_who_may_have_a_part_that_a_claim_of_another_driver_has(
    tmp_path: Path, part: str, first: dict[str, Any], second: dict[str, Any], is_refused: bool
) -> None:
    one, two = Side(tmp_path, ONE, {"d": (part,)}), Side(tmp_path, TWO, {"d": (part,)})
    assert await one.prepare("a", "d", **first) == ""
    assert bool(await two.prepare("b", "d", **second)) is is_refused


async def test_devices_of_two_drivers_that_change_places_change_what_their_claims_get(one: Side, two: Side) -> None:
    one.at["d"], two.at["d"] = ("/dev/0",), ("/dev/1",)
    assert [await one.prepare("a", "d"), await two.prepare("b", "d")] == ["", ""]
    one.at["d"], two.at["d"] = two.at["d"], one.at["d"]
    for side in (one, two, one):
        await side.again()
        assert not set(one.given().values()) & set(two.given().values())
    assert (one.given(), two.given()) == ({"a": "/dev/1"}, {"b": "/dev/0"})
    one.at["e"] = ("/dev/0",)
    await two.unprepare("b")
    assert "given" in await one.prepare("c", "e"), "containers of a may still use it"


async def test_a_new_claim_gets_nothing_that_a_withdrawn_claim_of_another_driver_had(one: Side, two: Side) -> None:
    assert await one.prepare("a", "d") == ""
    del one.at["d"]  # its device is gone
    await one.again()
    assert one.given() == {}
    assert "claim default/a" in await two.prepare("b", "d")
    await one.restart()
    assert "claim default/a" in await two.prepare("b", "d")


async def test_what_others_have_is_known_after_a_restart_and_written_again(one: Side, two: Side) -> None:
    assert await one.prepare("a", "d") == ""
    owned = one.root / ".owned"
    shutil.rmtree(owned)
    assert await one.claims.restore()
    assert "claim default/a" in await two.prepare("b", "d")
    shutil.rmtree(owned)  # as before an update from a version without it
    await one.restart()
    assert "claim default/a" in await two.prepare("b", "d")


async def test_a_note_of_a_claim_that_is_not_known_goes_at_the_start(one: Side, two: Side) -> None:
    assert await one.prepare("a", "d") == ""
    shutil.rmtree(one.root / ONE / "claims")
    one.start()
    await one.claims.tidy(sweep=False)
    assert await two.prepare("b", "d"), "in a new folder of records nothing is known"
    await one.claims.tidy(sweep=True)
    assert await two.prepare("b", "d") == ""


@pytest.mark.parametrize("damage", ["", "{", '{"bootId": 1}', "\0" * 100])
async def test_a_damaged_note_frees_nothing_and_is_mended_by_its_driver(one: Side, two: Side, damage: str) -> None:
    assert await one.prepare("a", "d") == ""
    (note,) = (one.root / ".owned" / ONE).iterdir()
    note.write_text(damage)
    assert str(note) in await two.prepare("b", "d")
    await one.restart()
    assert "claim default/a" in await two.prepare("b", "d")


async def test_a_note_of_an_earlier_boot_does_not_count(one: Side, two: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await one.prepare("a", "d") == ""
    for module in ("files.checkpoint", "claims.prepared"):
        monkeypatch.setattr(f"dra_kubeletplugin.{module}.boot_id", lambda: "after-the-reboot")
    assert await two.prepare("b", "d") == ""
    assert "claim default/b" in await one.prepare("a", "d")


@pytest.mark.parametrize(
    ("call", "number", "said", "attempts"),
    [
        ("tempfile.mkstemp", errno.ENOENT, r"cannot write \S+/uid-of-a\.json: ", 3),
        ("os.replace", errno.ENOENT, r"cannot write \S+/uid-of-a\.json: ", 3),
        ("os.replace", errno.EROFS, r"cannot write \S+/uid-of-a\.json, for other drivers of this node: ", 1),
    ],
)
def test_a_note_that_cannot_be_written_is_tried_again_if_its_folder_was_removed_and_leaves_no_file(
    one: Side, monkeypatch: pytest.MonkeyPatch, call: str, number: int, said: str, attempts: int
) -> None:
    made = []

    def fail(*arguments: object, **_: object) -> None:
        made.append(arguments)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch, pytest.raises(ClaimError, match=said):
        patch.setattr(f"dra_kubeletplugin.files.folders.{call}", fail)
        one.parts._replace(one.root / ".owned" / ONE / "uid-of-a.json", b"{}")
    assert len(made) == attempts
    assert [path for path in (one.root / ".owned").rglob("*") if path.is_file()] == []


async def test_a_full_disk_keeps_no_prepared_claim_from_its_answer(
    one: Side, two: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await one.prepare("a", "d") == ""
    shutil.rmtree(one.root / ".owned")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("dra_kubeletplugin.files.folders.tempfile.mkstemp", full)
        assert await one.prepare("a", "d") == ""
        assert "No space" in await two.prepare("b", "d"), "others would not see it"
        assert two.given() == {}
    assert await one.claims.restore()
    assert "claim default/a" in await two.prepare("b", "d")


async def test_a_note_that_cannot_be_removed_or_read_gives_nothing_away(
    one: Side, two: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that has become read-only, and in a process without descriptors."""
    assert await one.prepare("a", "d") == ""
    with Disk(one.root / ".owned", 1, errno.EROFS, lasts=True).failing(monkeypatch):
        answer = await one.claims.unprepare(ClaimRef("default", "a", "uid-of-a"))
    assert re.search(r"cannot remove .*\.owned.*Read-only", str(answer))
    listdir = os.listdir

    def scarce(path: Any) -> list[str]:
        if Path(path).name == ".owned":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return listdir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", scarce)
        assert "cannot read which parts of the host other drivers gave away" in await two.prepare("b", "d")
    assert two.given() == {}
    assert "claim default/a" in await two.prepare("b", "d")
    await one.unprepare("a")
    assert await two.prepare("b", "d") == ""


async def test_a_claim_that_is_refused_is_never_seen_to_have_anything(
    one: Side, two: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the driver that gave the device away would taint it at each attempt."""
    assert await one.prepare("a", "d") == ""
    refuse = HostParts._refuse
    seen = []

    def looked(parts: HostParts, *more: Any) -> None:
        seen.append(one.parts.elsewhere(boot_id()))
        refuse(parts, *more)

    monkeypatch.setattr(HostParts, "_refuse", looked)
    assert "claim default/a" in await two.prepare("b", "d")
    assert await two.prepare("c", "e") == ""
    assert seen == [{}, {}]
    assert one.parts.elsewhere(boot_id()) == {"/dev/q": TWO}


async def test_a_plugin_that_does_not_register_itself_needs_no_folder_of_sockets(one: Side) -> None:
    one.parts = one.claims._files.parts = HostParts(one.root / "missing", ONE)
    assert await one.prepare("a", "d") == ""
    await one.unprepare("a")
    assert not (one.root / "missing").exists()


async def test_claims_of_others_are_read_once(one: Side, two: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may have thousands: each would be read for each claim."""
    for number in range(200):
        one.at[f"n{number}"] = (f"/dev/n{number}",)
        assert await one.prepare(f"n{number}", f"n{number}") == ""
    await asyncio.sleep(0.2)  # the folder's time tells changes apart from now on
    assert len(two.parts.elsewhere(boot_id())) == 200
    looks: list[Path] = []
    monkeypatch.setattr("dra_kubeletplugin.files.folders._version_of", looks.append)
    assert len(two.parts.elsewhere(boot_id())) == 200
    assert await two.prepare("b", "d") == ""
    assert looks == []
    monkeypatch.undo()
    await one.unprepare("n7")
    assert len(two.parts.elsewhere(boot_id())) == 199


PARTS = ("/dev/0", "/dev/1", "/dev/2", "/dev/3")


@pytest.mark.parametrize("seed", [*range(fewer(24)), *fresh(10)])
async def test_random_lives_of_two_drivers_give_no_part_to_both(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    sides = [Side(tmp_path, name, {"d": (PARTS[at],), "e": (PARTS[at + 1],)}) for at, name in enumerate((ONE, TWO))]
    for _ in range(40):
        side = dice.choice(sides)
        name = f"{side.name[:3]}{dice.randrange(3)}"
        match dice.randrange(7):
            case 0 | 1 | 2:
                await side.prepare(name, dice.choice("de"))
            case 3:
                await side.unprepare(name)
            case 4:
                side.at["d"], side.at["e"] = ((part,) for part in dice.sample(PARTS, 2))
                for each in (*sides, *sides):
                    await each.again()
            case 5:
                await side.restart()
            case 6:
                shutil.rmtree(tmp_path / ".owned", ignore_errors=True)
                for each in sides:
                    await each.claims.restore()
        one, two = (set(each.given().values()) for each in sides)
        assert not one & two
    for side in sides:
        for number in range(3):
            await side.unprepare(f"{side.name[:3]}{number}")
    assert not (tmp_path / ".owned").exists()
    for side in sides:
        assert await side.prepare("last", "d") == "", "nothing is blocked for ever"
        await side.unprepare("last")


def marked(api: PluginApi, driver: str) -> list[tuple[str, str]]:
    """Return the devices of a driver that have taints, with these."""
    return [
        (device["name"], f"{taint['key']}={taint.get('value', '')}:{taint['effect']}")
        for item in api.slices()
        if item["spec"]["driver"] == driver
        for device in item["spec"].get("devices", ())
        for taint in device.get("taints", ())
    ]


async def test_two_configurations_of_hostdev_share_a_node(
    tmp_path: Path, short_path: Path, api: PluginApi, settings: PluginSettings, claim: MakeClaim
) -> None:
    (tmp_path / "host/dev").mkdir(parents=True)
    host = FakeHost(tmp_path / "host")
    host.serial_adapter("ttyUSB0", "1-2", serial="A")
    host.serial_adapter("ttyUSB1", "1-4", serial="B")
    second = replace(settings, driver_name=TWO, data_dir=short_path / "two")
    for name, driver in (("a", settings.driver_name), ("b", TWO)):
        result = {"result": {"driver": driver, "device": "s-a"}}
        await claim(name, **result)
    async with (
        hostdev(host, settings, api) as first,
        hostdev(host, second, api) as other,
    ):
        await becomes(lambda: len(api.slices()) == 2)
        assert not (await first.prepare([ref("a")]))["uid-of-a"].error
        await becomes(
            lambda: marked(api, TWO) == [("s-a", f"{TWO}/in-use-elsewhere={settings.driver_name}:NoSchedule")]
        )
        assert "/dev/ttyUSB0 was given to claim default/a" in (await other.prepare([ref("b")]))["uid-of-b"].error
        assert marked(api, settings.driver_name) == []
        assert not (await first.unprepare([ref("a")]))["uid-of-a"].error
        await becomes(lambda: marked(api, TWO) == [])
        assert not (await other.prepare([ref("b")]))["uid-of-b"].error
        await becomes(lambda: [name for name, _ in marked(api, settings.driver_name)] == ["s-a"])


def ref(name: str) -> ClaimRef:
    """A claim as the kubelet names it."""
    return ClaimRef("default", name, f"uid-of-{name}")


@asynccontextmanager
async def hostdev(host: FakeHost, settings: PluginSettings, api: PluginApi) -> AsyncIterator[FakeKubelet]:
    """Run a driver that publishes the serial adapters of a host."""
    entry = {"name": "s", "paths": ["/dev/ttyUSB*"], "id": "{serial}"}
    content = {"driverName": settings.driver_name, "nodeName": settings.node_name, "devices": [entry]}
    looking = Looking(config := msgspec.convert(content, HostdevConfig), host)
    hotplug = Hotplug(config, looking, seconds=0.02)
    driver = HostdevDriver(settings.driver_name, looking.thoroughly, hotplug.health)

    async def publish(plugin: KubeletPlugin) -> None:
        async for resources in hotplug.resources():
            await plugin.publish(resources)

    async with (
        KubeletPlugin(driver, settings, api.client) as plugin,
        FakeKubelet(settings) as kubelet,
        replugged(hotplug, plugin),
    ):
        task = asyncio.create_task(publish(plugin))
        try:
            yield kubelet
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
