"""What is prepared is remembered in files: across calls, processes, instances and reboots."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import itertools
import json
import logging
import os
import shutil
import stat
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from dra_api.resource import ResourceClaim
from dra_kubeletplugin import (
    CdiError,
    CheckpointCorrupted,
    CheckpointNewer,
    ClaimError,
    ContainerEdits,
    CountersInUse,
    DeviceInUse,
    DeviceNotPublished,
    HostPartInUse,
    Mount,
    Pool,
    Prepared,
    PreparedDevice,
    counter_set,
    device,
)
from dra_kubeletplugin.claims.conflicts import fingerprint
from dra_kubeletplugin.files.checkpoint import ClaimRecords, boot_id, boot_time
from dra_kubeletplugin.files.claim_record import FORMAT_VERSION, ClaimRecord
from dra_kubeletplugin.slices import PoolCounters
from dra_kubeletplugin.slices.pool_sync import DesiredPool
from fake_host import open_files
from hypothesis import given, settings
from hypothesis import strategies as st
from node_world import DRIVER, NodeWorld, allocated, prepared_claim, ref


async def prepared(node: NodeWorld, claim: ResourceClaim) -> Prepared:
    """The devices; the claim must be prepared."""
    devices = await node.prepared.prepare(claim)
    assert not isinstance(devices, Exception), devices
    return devices


async def refused(node: NodeWorld, claim: ResourceClaim) -> Exception:
    """The error; the claim must be refused."""
    error = await node.prepared.prepare(claim)
    assert isinstance(error, Exception), error
    return error


# --- the same claim again ---


@pytest.mark.rule("PH-15", "TD-01")
@pytest.mark.parametrize("restart", [False, True], ids=["the same process", "a new process"])
async def test_a_prepared_claim_is_answered_without_the_driver_and_its_cdi_files_are_written_again(
    node: NodeWorld, restart: bool
) -> None:
    claim = allocated("a", "p/gpu-0", "p/gpu-1")
    first = await prepared(node, claim)
    if restart:
        node.start()
    for path in node.cdi_files():
        path.unlink()
    node.driver.calls.clear()
    assert await prepared(node, claim) == first
    assert node.driver.calls == []
    assert node.containers("uid-of-a") == ["DEVICE=p/gpu-0", "DEVICE=p/gpu-1"]


@pytest.mark.rule("PH-15")
async def test_a_claim_allocated_anew_is_unprepared_and_prepared_with_its_new_device(node: NodeWorld) -> None:
    await prepared(node, allocated("a", "p/gpu-0"))
    (device,) = await prepared(node, allocated("a", "p/gpu-7"))
    assert device.device == "gpu-7"
    assert node.driver.calls == ["prepare a: p/gpu-0", "unprepare a: p/gpu-0", "prepare a: p/gpu-7"]
    assert node.containers("uid-of-a") == ["DEVICE=p/gpu-7"]


@pytest.mark.rule("PH-07")
async def test_the_old_instance_of_a_failed_rolling_update_knows_what_the_new_one_did(node: NodeWorld) -> None:
    """Once it answered from memory: with the device of another claim, without CDI file and without error."""
    old = node.prepared
    await prepared(node, allocated("a", "p/gpu-0"))
    node.start()  # the new instance
    assert await node.prepared.unprepare(ref("a")) is None
    answer = await old.prepare(allocated("a", "p/gpu-7"))  # the new instance has failed
    assert not isinstance(answer, Exception)
    assert [device.device for device in answer] == ["gpu-7"]
    assert node.containers("uid-of-a") == ["DEVICE=p/gpu-7"]


async def test_an_old_allocation_that_cannot_be_unprepared_refuses_the_new_one(
    node: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stuck(claim: object) -> None:
        raise ClaimError("the device does not answer")

    await prepared(node, allocated("a", "p/gpu-0"))
    with monkeypatch.context() as patch:
        patch.setattr(node.driver, "unprepare", stuck)
        assert "does not answer" in str(await refused(node, allocated("a", "p/gpu-7")))
    assert [device.device for device in await prepared(node, allocated("a", "p/gpu-7"))] == ["gpu-7"]


CHANGES: list[tuple[str, ResourceClaim, bool]] = [
    ("nothing", allocated("a", "p/gpu-0", config={"b": 1, "a": 2}), False),
    ("the order of keys", allocated("a", "p/gpu-0", config={"a": 2, "b": 1}), False),
    ("a field that no driver prepares by", allocated("a", "p/gpu-0", config={"b": 1, "a": 2}, tolerations=[]), False),
    ("the device", allocated("a", "p/gpu-1", config={"b": 1, "a": 2}), True),
    ("the pool", allocated("a", "q/gpu-0", config={"b": 1, "a": 2}), True),
    ("the configuration", allocated("a", "p/gpu-0", config={"b": 1, "a": 3}), True),
    ("the share", allocated("a", "p/gpu-0", config={"b": 1, "a": 2}, shareID="s"), True),
]


@pytest.mark.parametrize(("changed", "differs"), [case[1:] for case in CHANGES], ids=[case[0] for case in CHANGES])
def test_what_makes_an_allocation_another_one(changed: ResourceClaim, differs: bool) -> None:
    claim = allocated("a", "p/gpu-0", config={"a": 2, "b": 1})
    assert (fingerprint(DRIVER, claim) != fingerprint(DRIVER, changed)) is differs


def test_the_fingerprint_is_the_same_in_each_version() -> None:
    """A difference would unprepare the claims of running pods after an update of the driver."""
    content = (
        '{"configs":[{"parameters":{"a":1},"requests":[],"source":"FromClaim"}],"results":[{"admin":false,"consumed":{},'
        '"device":"gpu-0","pool":"p","request":"req","share":null}]}'
    )
    claim = allocated("a", "p/gpu-0", config={"a": 1})
    assert fingerprint(DRIVER, claim) == f"1-{hashlib.sha256(content.encode()).hexdigest()}"


# --- reboot ---


@pytest.mark.rule("PH-15")
async def test_after_a_reboot_a_claim_is_prepared_again(node: NodeWorld, reboot: Callable[[], None]) -> None:
    first = await prepared(node, allocated("a", "p/gpu-0"))
    reboot()
    await node.prepared.tidy(sweep=True)
    assert node.cdi_files() == [], "nothing is ready yet"
    assert node.prepared.claims() == []
    assert await prepared(node, allocated("a", "p/gpu-0")) == first
    assert node.driver.calls == ["prepare a: p/gpu-0"]
    assert node.containers("uid-of-a") == ["DEVICE=p/gpu-0"]


async def test_files_of_a_claim_that_was_being_withdrawn_go_when_the_next_process_starts(node: NodeWorld) -> None:
    """The one before was killed between the record and the files, or by a full disk."""
    await prepared(node, allocated("a", "p/gpu-0"))
    record = node.records.read("uid-of-a")
    assert record is not None
    node.records.write(msgspec.structs.replace(record, phase="preparing"), durable=False)
    node.start()
    await node.prepared.tidy(sweep=False)
    assert node.cdi_files() == []


async def test_after_a_reboot_files_of_a_claim_whose_record_is_damaged_go_as_well(
    node: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a node whose CDI folder outlives a reboot."""
    await prepared(node, allocated("a", "p/gpu-0"))
    path = node.records.path("uid-of-a")
    path.write_bytes(path.read_bytes()[:-7])
    node.start()
    await node.prepared.tidy(sweep=True)
    assert node.cdi_files(), "containers of this boot may start again"
    for name in ("files.checkpoint", "claims.prepared"):
        monkeypatch.setattr(f"dra_kubeletplugin.{name}.boot_id", lambda: "after-the-reboot")
    node.start()
    await node.prepared.tidy(sweep=True)
    assert node.cdi_files() == []


async def test_after_a_reboot_no_container_runs_on_a_device_of_before(
    node: NodeWorld, reboot: Callable[[], None]
) -> None:
    await prepared(node, allocated("a", "p/gpu-0"))
    reboot()
    await prepared(node, allocated("b", "p/gpu-0"))
    assert await node.prepared.unprepare(ref("a")) is None
    assert node.containers("uid-of-b") == ["DEVICE=p/gpu-0"]


# --- one device, two claims ---


@pytest.mark.rule("PH-15")
async def test_a_device_that_another_claim_holds_is_refused_until_that_is_unprepared(node: NodeWorld) -> None:
    await prepared(node, allocated("a", "p/gpu-0"))
    error = await refused(node, allocated("b", "p/gpu-1", "p/gpu-0"))
    assert isinstance(error, DeviceInUse)
    assert "device gpu-0 of pool p is still prepared for claim default/a: wait until the pods" in str(error)
    assert str(node.root / "claims" / "uid-of-a.json") in str(error)
    assert node.driver.calls == ["prepare a: p/gpu-0"]
    await node.prepared.unprepare(ref("a"))
    assert len(await prepared(node, allocated("b", "p/gpu-1", "p/gpu-0"))) == 2


async def test_a_device_of_another_process_is_refused_too(node: NodeWorld) -> None:
    old = node.prepared
    node.start()
    await prepared(node, allocated("a", "p/gpu-0"))
    assert isinstance(await old.prepare(allocated("b", "p/gpu-0")), DeviceInUse)


TOGETHER: list[tuple[str, ResourceClaim, ResourceClaim]] = [
    ("an administrator's access", allocated("a", "p/gpu-0"), allocated("b", "p/gpu-0", adminAccess=True)),
    ("beside an administrator", allocated("a", "p/gpu-0", adminAccess=True), allocated("b", "p/gpu-0")),
    ("two shares", allocated("a", "p/gpu-0", shareID="s1"), allocated("b", "p/gpu-0", shareID="s2")),
    ("the same name in another pool", allocated("a", "p/gpu-0"), allocated("b", "q/gpu-0")),
]


@pytest.mark.parametrize(("one", "other"), [case[1:] for case in TOGETHER], ids=[case[0] for case in TOGETHER])
async def test_what_may_be_prepared_for_two_claims(node: NodeWorld, one: ResourceClaim, other: ResourceClaim) -> None:
    await prepared(node, one)
    await prepared(node, other)


@pytest.mark.parametrize("share", [None, "s1"], ids=["without a share", "the same share"])
async def test_a_share_does_not_go_with_the_whole_device(node: NodeWorld, share: str | None) -> None:
    await prepared(node, allocated("a", "p/gpu-0", shareID="s1"))
    assert isinstance(await refused(node, allocated("b", "p/gpu-0", shareID=share)), DeviceInUse)


# --- a device that is not published ---


@pytest.mark.rule("PH-15")
async def test_a_device_that_is_not_published_is_refused_before_the_driver_is_asked(node: NodeWorld) -> None:
    node.gone = {"p/gpu-1"}
    error = await refused(node, allocated("a", "p/gpu-0", "p/gpu-1"))
    assert isinstance(error, DeviceNotPublished)
    assert "device gpu-1 of pool p is not published on this node: bring the device back, or delete" in str(error)
    assert node.driver.calls == []
    assert node.leftovers() == []
    node.gone.clear()
    assert len(await prepared(node, allocated("a", "p/gpu-0", "p/gpu-1"))) == 2


async def test_a_prepared_claim_keeps_a_device_that_is_withdrawn_until_a_reboot(
    node: NodeWorld, reboot: Callable[[], None]
) -> None:
    await prepared(node, allocated("a", "p/gpu-0"))
    node.gone = {"p/gpu-0"}
    assert len(await prepared(node, allocated("a", "p/gpu-0"))) == 1
    reboot()
    assert isinstance(await refused(node, allocated("a", "p/gpu-0")), DeviceNotPublished)
    assert await node.prepared.unprepare(ref("a")) is None
    assert node.leftovers() == []


async def test_equal_names_in_two_pools_of_one_claim_have_a_cdi_device_each(node: NodeWorld) -> None:
    devices = await prepared(node, allocated("a", "p/gpu-0", "q/gpu-0"))
    assert len({name for device in devices for name in device.cdi_ids}) == 2
    assert node.containers("uid-of-a") == ["DEVICE=p/gpu-0", "DEVICE=q/gpu-0"]


# --- unprepare ---


@pytest.mark.rule("TD-03")
async def test_unpreparing_tells_the_driver_what_was_prepared_and_leaves_nothing(node: NodeWorld) -> None:
    await prepared(node, allocated("a", "p/gpu-0"))
    node.start()
    assert await node.prepared.unprepare(ref("a")) is None
    assert node.driver.calls == ["unprepare a: p/gpu-0"]
    assert node.leftovers() == []


@pytest.mark.rule("TD-03")
async def test_an_unknown_claim_is_unprepared_all_the_same(node: NodeWorld) -> None:
    assert await node.prepared.unprepare(ref("a")) is None
    assert node.driver.calls == ["unprepare a: "]


@pytest.mark.parametrize("uid", ["../x", "", "a/b", ".hidden"])
async def test_a_uid_that_is_no_file_name_is_refused(node: NodeWorld, uid: str) -> None:
    assert "is not the uid of a claim" in str(await node.prepared.unprepare(type(ref("a"))("default", "a", uid)))


# --- disks that are full, and processes without descriptors ---


FAILING: list[tuple[str, int]] = [
    (call, number)
    for call in ("tempfile.mkstemp", "os.replace", "os.fsync", "pathlib.Path.read_bytes", "os.open")
    for number in (errno.ENOSPC, errno.EMFILE)
]


@pytest.mark.parametrize(("call", "number"), FAILING)
@pytest.mark.parametrize("restart", [False, True], ids=["the same process", "a new process"])
async def test_a_write_that_fails_removes_no_file_of_a_prepared_claim(
    node: NodeWorld, monkeypatch: pytest.MonkeyPatch, call: str, number: int, restart: bool
) -> None:
    """A kubelet that restarts, and the second pod of a claim, prepare it again."""
    claim = allocated("a", "p/gpu-0", "p/gpu-1")
    await prepared(node, claim)
    before = {path.name: path.read_bytes() for path in node.cdi_files()}
    if restart:
        node.start()

    def fail(*args: Any, **named: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(call, fail)
        with suppress(ClaimError):
            await node.prepared.tidy(sweep=True)
        await node.prepared.prepare(claim)
    assert {path.name: path.read_bytes() for path in node.cdi_files()} == before
    await prepared(node, claim)


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_file_that_is_missing_comes_back_while_the_other_one_stays(
    node: NodeWorld, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    claim = allocated("a", "p/gpu-0", "p/gpu-1")
    await prepared(node, claim)
    before = node.cdi_files()
    before[lost].unlink()

    def fail(*args: Any, **named: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.mkstemp", fail)
        assert "No space left" in str(await refused(node, claim))
        assert node.cdi_files() == [path for path in before if path != before[lost]]
    await prepared(node, claim)
    assert node.cdi_files() == before


async def test_files_of_an_earlier_attempt_go_when_a_claim_is_not_prepared(
    node: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = allocated("a", "p/gpu-0", "p/gpu-1")
    replace_file, count = os.replace, 0

    def fail(source: Any, target: Any) -> None:
        nonlocal count
        count += str(target).endswith(".json") and "/cdi/" in str(target)
        if count == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace_file(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fail)
        assert "No space left" in str(await refused(node, claim))
    assert node.cdi_files() == []


async def test_a_folder_of_records_that_was_removed_frees_no_device(node: NodeWorld) -> None:
    """A process has no other memory than the disk; here it has."""
    for name in ("a", "b"):
        await prepared(node, allocated(name, f"p/{name}"))
    folder = node.records.folder
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    shutil.rmtree(folder)
    assert isinstance(await refused(node, allocated("c", "p/a")), DeviceInUse)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    calls = list(node.driver.calls)
    for _ in range(2):
        await prepared(node, allocated("a", "p/a"))
        assert node.driver.calls == calls, "it is prepared"
        shutil.rmtree(folder)
    await node.prepared.unprepare(ref("b"))
    shutil.rmtree(folder, ignore_errors=True)
    await prepared(node, allocated("c", "p/b"))
    assert isinstance(await refused(node, allocated("d", "p/a")), DeviceInUse)


async def test_a_folder_of_records_that_cannot_be_made_again_frees_no_device_either(
    node: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        await prepared(node, allocated(name, f"p/{name}"))
    shutil.rmtree(node.records.folder)

    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert "cannot write the records into the folder" in str(await refused(node, allocated("c", "p/a")))
    for name in ("a", "b"):
        assert isinstance(await refused(node, allocated("c", f"p/{name}")), DeviceInUse)


async def test_a_cdi_folder_that_was_removed_is_made_again(node: NodeWorld) -> None:
    """Every claim failed until the plugin was restarted."""
    await prepared(node, allocated("a", "p/gpu-0"))
    shutil.rmtree(node.root / "cdi")
    await prepared(node, allocated("b", "p/gpu-1"))
    await prepared(node, allocated("a", "p/gpu-0"))
    assert len(node.cdi_files()) == 2


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
async def test_a_driver_that_lacks_resources_costs_no_prepared_claim_its_files(node: NodeWorld, number: int) -> None:
    """The library withdraws a claim whose devices changed; that the driver could not look says nothing of them."""
    await prepared(node, allocated("a", "p/gpu-0"))
    before = node.cdi_files()

    def lack(devices: Prepared) -> Prepared:
        try:
            raise OSError(number, os.strerror(number))
        except OSError as error:
            raise ClaimError("cannot look at the devices") from error

    node.driver.answer = lack
    await node.prepared.prepare_again(["uid-of-a"])
    assert node.cdi_files() == before


async def test_a_disk_that_is_read_only_keeps_no_unknown_claim(
    node: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pod could not terminate, although there was nothing to remove."""
    await prepared(node, allocated("a", "p/gpu-0"))
    before = {path: path.read_bytes() for path in node.leftovers()}

    def refuse(path: object = "", *_: object, **__: object) -> None:
        if Path(str(path)).parent != node.hardware:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        for call in ("tempfile.mkstemp", "os.replace", "pathlib.Path.unlink"):
            patch.setattr(call, refuse)
        assert await node.prepared.unprepare(ref("unknown")) is None
        assert len(await prepared(node, allocated("a", "p/gpu-0"))) == 1
        assert "Read-only file system" in str(await node.prepared.unprepare(ref("a")))
        assert {path: path.read_bytes() for path in node.leftovers() if path in before} == before
    assert await node.prepared.unprepare(ref("a")) is None


# --- damaged records free no device ---


async def test_no_changed_byte_of_a_record_frees_its_device(node: NodeWorld) -> None:
    """A checksum told that the record was damaged, and its device was given to the next claim."""
    await prepared(node, allocated("a", "p/gpu-0"))
    path = node.root / "claims" / "uid-of-a.json"
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        node.start()
        assert isinstance(await refused(node, allocated("b", "p/gpu-0")), DeviceInUse), at
    await prepared(node, allocated("b", "p/gpu-3"))


async def test_no_changed_byte_of_a_record_keeps_its_claim_from_being_unprepared(node: NodeWorld) -> None:
    """One made it look like a record of a newer version. Such a record is kept."""
    await prepared(node, allocated("a", "p/gpu-0"))
    path = node.root / "claims" / "uid-of-a.json"
    for at, bit in itertools.product(range(path.read_bytes().index(b"checksum")), range(8)):
        await prepared(node, allocated("a", "p/gpu-0"))
        whole = path.read_bytes()
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        node.start()
        assert await node.prepared.unprepare(ref("a")) is None, (at, bit)


async def test_no_changed_byte_of_a_newer_versions_record_frees_its_device(node: NodeWorld) -> None:
    """Its checksum was not looked at: another device, or another boot, was believed."""
    await prepared(node, allocated("a", "p/gpu-0"))
    path = node.root / "claims" / "uid-of-a.json"
    _edit(lambda content: content.update(format=9, readableFrom=9))(path)
    whole = path.read_bytes()
    for at in range(whole.index(b"checksum"), len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        node.start()
        assert isinstance(await refused(node, allocated("b", "p/gpu-0")), DeviceInUse), at


async def test_a_second_file_of_a_version_to_come_may_have_more_fields(node: NodeWorld) -> None:
    """It counted as damaged: nothing told which device is in use, and all others were refused."""
    await prepared(node, allocated("a", "p/gpu-0"))
    path = node.root / "claims" / "uid-of-a.held"
    content = json.loads(path.read_text())
    content["rest"]["mood"] = "good"
    del content["checksum"]
    content["checksum"] = zlib.crc32(_text(content).encode())
    path.write_text(_text(content))
    path.with_suffix(".json").write_bytes(b"{")
    node.start()
    assert isinstance(await refused(node, allocated("b", "p/gpu-0")), DeviceInUse)
    await prepared(node, allocated("b", "p/gpu-3"))


@pytest.mark.parametrize("damage", [b"", b"\0" * 512, b'{"uid":"uid-of-a","bootId":"x","holds":[],"checksum":1}'])
async def test_a_device_is_in_doubt_when_nothing_tells_what_a_damaged_record_holds(
    node: NodeWorld, damage: bytes
) -> None:
    await prepared(node, allocated("a", "p/gpu-0"))
    for path in (node.root / "claims").glob("uid-of-a.*"):
        path.write_bytes(damage)
    node.start()
    error = await refused(node, allocated("b", "p/gpu-3"))
    assert isinstance(error, DeviceInUse)
    assert "device gpu-3 of pool p may still be prepared for claim uid-of-a (its record is damaged)" in str(error)
    await prepared(node, allocated("watcher", "p/gpu-3", adminAccess=True))
    assert await node.prepared.unprepare(ref("a")) is None
    await prepared(node, allocated("b", "p/gpu-3"))


@pytest.mark.parametrize("restarts", [False, True])
async def test_other_shares_of_a_device_are_given_beside_a_damaged_record(node: NodeWorld, restarts: bool) -> None:
    """All shares own the same part of the host; what another device owned is refused."""

    def owning(prepared: Prepared) -> list[PreparedDevice]:
        return [replace(each, owns=(f"/dev/{each.device}",)) for each in prepared]

    node.driver.answer = owning
    await prepared(node, allocated("a", "p/gpu-0", shareID="s1"))
    (node.root / "claims" / "uid-of-a.json").write_bytes(b"{")
    if restarts:
        node.start()
        node.driver.answer = owning
    assert isinstance(await refused(node, allocated("b", "p/gpu-0", shareID="s1")), DeviceInUse)
    await prepared(node, allocated("c", "p/gpu-0", shareID="s2"))

    assert await node.prepared.unprepare(ref("c")) is None
    node.driver.answer = lambda given: [replace(each, owns=("/dev/gpu-0",)) for each in given]
    error = str(await refused(node, allocated("d", "p/gpu-3")))
    assert "device gpu-3 is at /dev/gpu-0, which was given to claim uid-of-a (its record is damaged), whose" in error
    assert error.endswith(f"or if none is left on this node, remove {node.root}/claims/uid-of-a.json")


async def test_a_damaged_record_keeps_its_device_by_a_second_file_of_a_former_version(node: NodeWorld) -> None:
    """That one lists the parts of the host without their devices; its other devices stay free."""

    def owning(prepared: Prepared) -> list[PreparedDevice]:
        return [replace(each, owns=("/dev/one",) if each.device != "gpu-1" else ()) for each in prepared]

    node.driver.answer = owning
    await prepared(node, allocated("a", "p/gpu-0"))
    (node.root / "claims" / "uid-of-a.json").write_bytes(b"{")
    path = node.root / "claims" / "uid-of-a.held"
    content = json.loads(path.read_bytes())
    del content["checksum"]
    content["rest"]["owned"] = list(content["rest"]["owned"])
    content["checksum"] = zlib.crc32(_text(content).encode())
    path.write_text(_text(content))
    node.start()
    node.driver.answer = owning
    assert isinstance(await refused(node, allocated("b", "p/gpu-0")), DeviceInUse)
    assert isinstance(await refused(node, allocated("c", "p/gpu-3")), HostPartInUse)
    await prepared(node, allocated("d", "p/gpu-1"))


@pytest.mark.parametrize("where", ["edits", "owns"])
async def test_an_answer_that_is_too_large_to_be_remembered_is_the_error_of_its_claim(
    node: NodeWorld, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Written down, its record would count as damaged, and keep all devices from other claims."""
    monkeypatch.setattr("dra_kubeletplugin.files.checkpoint.LARGEST_RECORD_BYTES", 2 << 20)
    monkeypatch.setattr("dra_kubeletplugin.files.claim_record.LARGEST_RECORD_BYTES", 2 << 20)
    large = "/" + "x" * (3 << 20)
    more: dict[str, Any] = {"edits": ContainerEdits(env=(f"A={large}",))} if where == "edits" else {"owns": (large,)}
    node.driver.answer = lambda given: [replace(each, **more) for each in given]
    error = str(await refused(node, allocated("a", "p/gpu-0")))
    assert error.startswith("the driver returned 3 MiB for claim default/a, and a record has at most 2 MiB")
    assert node.cdi_files() == []
    node.start()
    await prepared(node, allocated("b", "p/gpu-1"))
    assert await node.prepared.unprepare(ref("a")) is None
    await prepared(node, allocated("c", "p/gpu-0"))


async def test_a_process_remembers_what_a_record_held_before_it_was_damaged(node: NodeWorld) -> None:
    await prepared(node, allocated("a", "p/gpu-0"))
    await prepared(node, allocated("b", "p/gpu-1"))
    for path in (node.root / "claims").glob("uid-of-a.*"):
        path.write_bytes(b"")
    assert isinstance(await refused(node, allocated("c", "p/gpu-0")), DeviceInUse)
    await prepared(node, allocated("d", "p/gpu-3"))


async def test_a_record_of_a_former_version_gets_its_second_file_at_the_start(node: NodeWorld) -> None:
    await prepared(node, allocated("a", "p/gpu-0"))
    (node.root / "claims" / "uid-of-a.held").unlink()
    node.start()
    await node.prepared.tidy(sweep=True)
    (node.root / "claims" / "uid-of-a.json").write_bytes(b"")
    node.start()
    assert isinstance(await refused(node, allocated("b", "p/gpu-0")), DeviceInUse)
    await prepared(node, allocated("c", "p/gpu-3"))


@pytest.mark.parametrize("damage", [b"", b"{"])
@pytest.mark.parametrize("seconds", [-3600, 3600], ids=["back", "forward"])
async def test_a_clock_that_is_set_frees_no_device(
    node: NodeWorld, monkeypatch: pytest.MonkeyPatch, seconds: int, damage: bytes
) -> None:
    """Machines without a clock of their own set it long after their boot. The kernel moves the time of that with it."""
    await node.give(allocated("a", "p/gpu-0"), allocated("b", "p/gpu-1"))
    stat = _file(node.root / "stat", f"btime {int(time.time()) - 10 + seconds}\n")
    monkeypatch.setattr("dra_kubeletplugin.files.checkpoint.PROC_STAT", stat)
    (node.root / "claims" / "uid-of-a.json").write_bytes(damage)
    node.start()
    await node.prepared.tidy(sweep=True)
    assert isinstance(await refused(node, allocated("c", "p/gpu-0")), DeviceInUse)
    await prepared(node, allocated("b", "p/gpu-1"))
    assert node.driver.calls == []
    assert await node.prepared.unprepare(ref("a")) is None
    await prepared(node, allocated("c", "p/gpu-0"))


@pytest.mark.parametrize("phase", ["prepared", "withdrawn", "unpreparing"])
@pytest.mark.parametrize("content", [b"", b"\0" * 300], ids=["empty", "zeros"])
@pytest.mark.parametrize("seconds", [3600, 5], ids=["long before", "just before"])
@pytest.mark.parametrize("held", ["of an earlier boot", "empty", "missing"])
async def test_an_empty_record_of_an_earlier_boot_is_as_if_it_were_not_there(
    node: NodeWorld, monkeypatch: pytest.MonkeyPatch, held: str, seconds: int, phase: str, content: bytes
) -> None:
    """A power failure leaves such files: the pod hung until it was deleted."""
    await prepared(node, allocated("a", "p/gpu-0"))
    if phase != "prepared":
        with monkeypatch.context() as patch:
            patch.setattr(node.driver, "prepare" if phase == "withdrawn" else "unprepare", _fails)
            await node.prepared.prepare_again(["uid-of-a"])
            assert phase == "withdrawn" or await node.prepared.unprepare(ref("a")) is not None
    path = node.root / "claims" / "uid-of-a.json"
    path.write_bytes(content)
    if held == "empty":
        path.with_suffix(".held").write_bytes(content)
    elif held == "missing":
        path.with_suffix(".held").unlink()
    monkeypatch.setattr("dra_kubeletplugin.files.checkpoint.BOOT_ID", _file(node.root / "boot", "another"))
    monkeypatch.setattr(
        "dra_kubeletplugin.files.checkpoint.PROC_STAT",
        _file(node.root / "stat", f"cpu 1\nbtime {int(time.time()) + seconds}\n"),
    )
    node.start()
    await prepared(node, allocated("b", "p/gpu-0"))
    assert await node.prepared.unprepare(ref("b")) is None
    await prepared(node, allocated("a", "p/gpu-0"))


def _file(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


async def _fails(_: object) -> Any:
    raise ClaimError("not now")


# --- a node that gets another name ---


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("below", ["", "/gpus"])
async def test_devices_are_the_same_when_the_node_has_another_name(node: NodeWorld, below: str, damaged: bool) -> None:
    """Its pools are named like the node: the same device was prepared for two claims."""
    node.node_name = "worker-1"
    node.start()
    await prepared(node, allocated("a", f"worker-1{below}/gpu-0", "worker-10/gpu-2"))
    if damaged:
        (node.root / "claims" / "uid-of-a.json").write_bytes(b"")
    node.node_name = "renamed"
    node.start()
    error = await refused(node, allocated("b", f"renamed{below}/gpu-0"))
    assert isinstance(error, DeviceInUse)
    assert f"device gpu-0 of pool renamed{below} is still prepared" in str(error)
    await prepared(node, allocated("c", f"renamed{below}/gpu-1", "renamed0/gpu-2"))
    assert await node.prepared.unprepare(ref("a")) is None
    await prepared(node, allocated("b", f"renamed{below}/gpu-0"))


# --- devices that draw from the same counters ---

WHOLE: dict[str, dict[str, int | str]] = {"whole": {"memory": "80Gi", "slices": 7}}
PARTS: dict[str, dict[str, int | str]] = {f"part-{number}": {"memory": "20Gi", "slices": 2} for number in range(3)}
GPU = {**WHOLE, **PARTS}


def partitioned(draws: Mapping[str, Mapping[str, int | str]]) -> PoolCounters | None:
    """A pool with a GPU and these devices of it."""
    devices = [device(name, consumes={"gpu": amounts}) for name, amounts in draws.items()]
    pool = Pool.of(devices, shared_counters=[counter_set("gpu", {"memory": "80Gi", "slices": 7})])
    return DesiredPool("p", pool).counters


async def test_a_whole_device_and_a_part_of_it_are_not_both_prepared(node: NodeWorld) -> None:
    node.counters = {"p": partitioned(GPU)}
    await prepared(node, allocated("a", "p/part-0"))
    error = await refused(node, allocated("b", "p/whole"))
    assert isinstance(error, CountersInUse)
    assert str(error).startswith(
        "device whole of pool p needs 80Gi of the counter gpu/memory, of whose 80Gi the devices part-0 of claim "
        "default/a have 20Gi: wait until"
    )
    node.start()
    assert isinstance(await refused(node, allocated("b", "p/whole")), CountersInUse), "by the record"
    await prepared(node, allocated("watcher", "p/whole", adminAccess=True))
    await prepared(node, allocated("c", "p/part-1", "p/part-2"))
    for name in ("a", "c"):
        assert await node.prepared.unprepare(ref(name)) is None
    await prepared(node, allocated("b", "p/whole"))
    assert isinstance(await refused(node, allocated("a", "p/part-0")), CountersInUse)
    await prepared(node, allocated("b", "p/whole"))  # a prepared claim is answered


@pytest.mark.parametrize(
    "now",
    [
        pytest.param({**WHOLE, **PARTS, "part-0": {"memory": "1Gi"}}, id="smaller"),
        pytest.param({**WHOLE, "part-9": {"memory": "20Gi"}}, id="renamed"),
        pytest.param(WHOLE, id="not at all"),
    ],
)
async def test_counters_stay_drawn_when_the_device_is_published_otherwise(
    node: NodeWorld, now: dict[str, Mapping[str, int | str]]
) -> None:
    node.counters = {"p": partitioned(GPU)}
    await prepared(node, allocated("a", "p/part-0"))
    node.counters = {"p": partitioned(now)}
    assert isinstance(await refused(node, allocated("b", "p/whole")), CountersInUse)
    node.start()
    (node.root / "claims" / "uid-of-a.json").write_bytes(b"")
    assert isinstance(await refused(node, allocated("b", "p/whole")), CountersInUse), "by the second file"


async def test_a_record_of_a_former_version_draws_what_its_device_is_published_with(node: NodeWorld) -> None:
    await prepared(node, allocated("a", "p/part-0"))
    node.counters = {"p": partitioned(GPU)}
    assert isinstance(await refused(node, allocated("b", "p/whole")), CountersInUse)


async def test_shares_of_a_device_draw_its_counters_once(node: NodeWorld) -> None:
    node.counters = {"p": partitioned(GPU)}
    for number in range(4):
        await prepared(node, allocated(f"s{number}", "p/whole", shareID=f"share-{number}"))
    assert isinstance(await refused(node, allocated("a", "p/part-0")), CountersInUse)


AMOUNTS = st.dictionaries(st.sampled_from(["memory", "slices"]), st.integers(1, 7), min_size=1)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.sampled_from([f"d{n}" for n in range(6)]), AMOUNTS, min_size=2),
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=12),
)
def test_no_counter_is_drawn_beyond_its_end(
    tmp_path_factory: pytest.TempPathFactory, draws: dict[str, dict[str, int]], steps: list[tuple[int, bool]]
) -> None:
    async def story() -> None:
        node = NodeWorld(tmp_path_factory.mktemp("node"))
        names = sorted(draws)
        pool = Pool.of(
            [device(name, consumes={"gpu": amounts}) for name, amounts in draws.items()],
            shared_counters=[counter_set("gpu", {"memory": 7, "slices": 7})],
        )
        node.counters = {"p": DesiredPool("p", pool).counters}
        held: set[str] = set()
        for number, takes in steps:
            name = names[number % len(names)]
            if takes:
                fits = all(sum(draws[each].get(counter, 0) for each in held | {name}) <= 7 for counter in draws[name])
                answer = await node.prepared.prepare(allocated(name, f"p/{name}"))
                assert isinstance(answer, CountersInUse) == (not fits)
                held |= {name} if fits else set()
            else:
                assert await node.prepared.unprepare(ref(name)) is None
                held -= {name}

    asyncio.run(story())


# --- damaged and foreign records ---


def _edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def edit(path: Path) -> None:
        content = json.loads(path.read_text())
        change(content)
        path.write_text(_text(content))

    return edit


def _text(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"))


DAMAGES: list[tuple[str, Callable[[Path], object], str]] = [
    ("empty", lambda path: path.write_text(""), "truncated"),
    ("torn", lambda path: path.write_bytes(path.read_bytes()[:-20]), "truncated"),
    ("no JSON", lambda path: path.write_bytes(b"\xff\0"), "malformed"),
    ("another device", lambda path: path.write_text(path.read_text().replace("gpu-0", "gpu-1")), "its checksum is"),
    (
        "of another claim",
        lambda path: path.write_text(path.with_stem("uid-of-b").read_text()),
        "about the claim uid-of-b",
    ),
]


@pytest.mark.rule("PH-15")
@pytest.mark.parametrize(("damage", "reason"), [case[1:] for case in DAMAGES], ids=[case[0] for case in DAMAGES])
async def test_a_damaged_record_concerns_its_claim_only(
    node: NodeWorld, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], object], reason: str
) -> None:
    await prepared(node, allocated("a", "p/gpu-0"))
    await prepared(node, allocated("b", "p/gpu-2"))
    path = node.root / "claims" / "uid-of-a.json"
    damage(path)
    node.start()
    await node.prepared.tidy(sweep=True)
    assert f"the checkpoint {path} cannot be read: " in caplog.text
    assert node.containers("uid-of-a") == ["DEVICE=p/gpu-0"], "a container may use it"

    error = await refused(node, allocated("a", "p/gpu-0"))
    assert isinstance(error, CheckpointCorrupted)
    with pytest.raises(CheckpointCorrupted, match=reason):
        raise error
    assert f"{path}" in str(error)
    assert "remove the file" in str(error)
    await prepared(node, allocated("b", "p/gpu-2"))
    await prepared(node, allocated("c", "p/gpu-3"))

    assert await node.prepared.unprepare(ref("a")) is None, "the kubelet's unprepare mends it"
    await prepared(node, allocated("a", "p/gpu-0"))


def _into_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _copied(path: Path) -> None:
    path.with_name(f"{path.stem} (copy).json").write_bytes(path.read_bytes())


@pytest.fixture
def bad_sector(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """A file that the disk cannot read any more."""

    def spoil(path: Path) -> None:
        opened = os.open

        def fail(name: Any, flags: int, *args: Any, **named: Any) -> int:
            if name == path and path.exists():
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(name))
            return opened(name, flags, *args, **named)

        monkeypatch.setattr("os.open", fail)

    return spoil


async def _others_go_on(node: NodeWorld) -> None:
    """A process starts, writes the missing files of claim c, and prepares b."""
    for file in node.cdi_files():
        file.unlink()
    node.start()
    await node.prepared.tidy(sweep=True)
    assert node.containers("uid-of-c") == ["DEVICE=p/gpu-2"]
    await prepared(node, allocated("b", "p/gpu-1"))
    assert {claim.name for claim in node.prepared.claims()} >= {"b", "c"}


def _linked_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _into_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _into_a_socket(path: Path) -> None:
    path.unlink()
    os.mknod(path, stat.S_IFSOCK)  # one that is bound has a short path


@pytest.mark.parametrize("damage", [_linked_to_itself, _into_a_pipe, _into_a_folder, _into_a_socket])
async def test_what_stands_in_place_of_a_record_frees_no_device_and_goes_with_its_claim(
    node: NodeWorld, damage: Callable[[Path], None]
) -> None:
    """The link refused every claim of the node, and a pipe blocked the plugin for ever."""
    await prepared(node, allocated("a", "p/gpu-0"))
    path = node.root / "claims/uid-of-a.json"
    damage(path)
    node.start()
    assert isinstance(await refused(node, allocated("a", "p/gpu-0")), CheckpointCorrupted)
    assert isinstance(await refused(node, allocated("b", "p/gpu-0")), DeviceInUse)
    assert await node.prepared.unprepare(ref("a")) is None
    assert path.name not in [each.name for each in path.parent.iterdir()]
    await prepared(node, allocated("b", "p/gpu-0"))


@pytest.mark.parametrize("suffix", [".json", ".held"])
@pytest.mark.parametrize("damage", [_linked_to_itself, _into_a_pipe, _into_a_folder, _into_a_socket])
async def test_what_stands_in_place_of_a_record_takes_no_descriptors(
    node: NodeWorld, damage: Callable[[Path], None], suffix: str
) -> None:
    """A folder took one at each look: after a thousand the plugin could not read anything any more."""
    await prepared(node, allocated("a", "p/gpu-0"))
    await prepared(node, allocated("b", "p/gpu-1"))
    damage(node.root / f"claims/uid-of-a{suffix}")
    node.start()
    before = open_files()
    for _ in range(3):
        await node.prepared.tidy(sweep=True)
        node.prepared.claims()
        await node.prepared.prepare_again(["uid-of-a", "uid-of-b"])
    assert open_files() <= before
    assert await node.prepared.unprepare(ref("a")) is None
    assert [path.name for path in (node.root / "claims").glob("uid-of-a*")] == []


async def test_a_folder_in_place_of_a_record_that_is_not_empty_is_named(node: NodeWorld) -> None:
    await prepared(node, allocated("a", "p/gpu-0"))
    path = node.root / "claims/uid-of-a.json"
    _into_a_folder(path)
    (path / "of somebody").write_text("")
    error = await node.prepared.unprepare(ref("a"))
    assert f"cannot remove the checkpoint {path}: [Errno 39] Directory not empty" in str(error)
    assert (path / "of somebody").exists()


async def test_a_file_in_place_of_the_metadata_keeps_no_claim_from_being_unprepared(node: NodeWorld) -> None:
    await prepared(node, allocated("a", "p/gpu-0"))
    (node.root / "metadata").write_text("")
    assert await node.prepared.unprepare(ref("a")) is None


@pytest.mark.parametrize(
    "damage",
    [_into_a_folder, _copied, _linked_to_itself, _into_a_pipe],
    ids=["a folder in its place", "a copy beside it", "a link to itself", "a pipe"],
)
async def test_what_is_no_record_stops_no_other_claim(node: NodeWorld, damage: Callable[[Path], None]) -> None:
    """Every claim of the node was refused, and no CDI file came back at a start."""
    await prepared(node, allocated("a", "p/gpu-0"))
    await prepared(node, allocated("c", "p/gpu-2"))
    damage(node.root / "claims/uid-of-a.json")
    await _others_go_on(node)


async def test_a_record_on_a_bad_sector_stops_no_other_claim_and_can_be_removed(
    node: NodeWorld, bad_sector: Callable[[Path], None]
) -> None:
    await prepared(node, allocated("a", "p/gpu-0"))
    await prepared(node, allocated("c", "p/gpu-2"))
    path = node.root / "claims/uid-of-a.json"
    bad_sector(path)
    await _others_go_on(node)
    error = await refused(node, allocated("a", "p/gpu-0"))
    assert isinstance(error, CheckpointCorrupted)
    assert f"the checkpoint {path} cannot be read: [Errno 5] Input/output error" in str(error)
    assert await node.prepared.unprepare(ref("a")) is None
    await prepared(node, allocated("a", "p/gpu-0"))


async def test_a_record_that_cannot_be_read_for_a_while_refuses_all_claims(
    node: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds which device is not known then."""
    await prepared(node, allocated("a", "p/gpu-0"))
    node.start()

    def fail(name: Any, *args: Any, **named: Any) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(name))

    with monkeypatch.context() as patch:
        patch.setattr("os.open", fail)
        assert "Too many open files" in str(await refused(node, allocated("b", "p/gpu-0")))
    assert isinstance(await refused(node, allocated("b", "p/gpu-0")), DeviceInUse)


NEWER: list[tuple[str, dict[str, Any], list[str]]] = [
    ("that says what it holds", {}, ["gpu-0"]),
    ("of which nothing is understood", {"record": "v9"}, ["gpu-0", "gpu-3"]),
    ("that does not say of which boot", {"record": {}, "checksum": zlib.crc32(b"{}")}, ["gpu-0", "gpu-3"]),
]


@pytest.mark.parametrize(("changes", "withheld"), [case[1:] for case in NEWER], ids=[case[0] for case in NEWER])
async def test_what_a_newer_version_prepared_is_kept_for_it(
    node: NodeWorld, changes: dict[str, Any], withheld: list[str]
) -> None:
    await prepared(node, allocated("a", "p/gpu-0"))
    path = node.root / "claims" / "uid-of-a.json"
    _edit(lambda content: content.update(format=9, readableFrom=9, **changes))(path)
    node.start()
    before = node.leftovers()
    await node.prepared.tidy(sweep=True)
    for name in withheld:
        error = await refused(node, allocated("b", f"p/{name}"))
        assert isinstance(error, DeviceInUse)
        assert f"device {name} of pool p is still prepared for claim uid-of-a (by a newer version)" in str(error)
    told = await node.prepared.unprepare(ref("a"))
    assert isinstance(told, CheckpointNewer)
    assert "a newer version of the driver wrote it (format 9, this one reads 1); start that version again" in str(told)
    assert isinstance(await refused(node, allocated("a", "p/gpu-0")), CheckpointNewer)
    assert (node.driver.calls, node.leftovers()) == ([], before), "nothing is forgotten"
    path.unlink()
    await prepared(node, allocated("b", "p/gpu-0"))


async def test_a_version_to_come_may_add_fields(node: NodeWorld) -> None:
    def later(content: dict[str, Any]) -> None:
        text = _text({**content["record"], "mood": "good"})
        content |= {
            "format": FORMAT_VERSION + 1,
            "checksum": zlib.crc32(text.encode()),
            "record": json.loads(text),
            "size": 1,
        }

    first = await prepared(node, allocated("a", "p/gpu-0"))
    path = node.root / "claims" / "uid-of-a.json"
    content = json.loads(path.read_text())
    later(content)
    path.write_text(_text(content))
    node.start()
    assert await prepared(node, allocated("a", "p/gpu-0")) == first
    assert node.driver.calls == []


async def test_a_record_removed_by_hand_frees_its_device(node: NodeWorld) -> None:
    await prepared(node, allocated("a", "p/gpu-0"))
    (node.root / "claims" / "uid-of-a.json").unlink()
    await prepared(node, allocated("b", "p/gpu-0"))


async def test_a_full_disk_fails_the_claim_and_leaves_no_half_file(
    node: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        error = await refused(node, allocated("a", "p/gpu-0"))
    assert str(error).startswith("cannot write the ")
    assert "No space left" in str(error)
    assert not [path for path in node.leftovers() if path.name.startswith(".")]
    await prepared(node, allocated("a", "p/gpu-0"))


async def test_unpreparing_needs_no_room(node: NodeWorld, full: Callable[[Path], None]) -> None:
    """Otherwise the pod that fills the disk could never be deleted."""
    await prepared(node, allocated("a", "p/gpu-0"))
    full(node.root)
    assert await node.prepared.unprepare(ref("a")) is None
    assert node.leftovers() == []


async def test_a_claim_that_finds_no_room_leaves_nothing(node: NodeWorld, full: Callable[[Path], None]) -> None:
    full(node.root)
    error = await refused(node, allocated("a", "p/gpu-0"))
    assert "cannot write the checkpoint" in str(error)
    assert "No space left on device" in str(error)
    assert (node.driver.calls, node.leftovers()) == ([], [])


async def test_a_claim_that_finds_room_for_its_first_device_only_leaves_no_cdi_file(
    node: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers would start with one of their devices."""
    rename, moved = os.replace, []

    def fill(source: str, target: Path) -> None:
        if target.suffix == ".json" and target.parent.name == "cdi":
            moved.append(target)
            if len(moved) == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source)
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fill)
        assert "No space left" in str(await refused(node, allocated("a", "p/gpu-0", "p/gpu-1")))
    assert node.cdi_files() == []
    assert len(await prepared(node, allocated("a", "p/gpu-0", "p/gpu-1"))) == 2


# --- files that belong to nothing ---


@pytest.mark.rule("PH-15")
async def test_at_the_start_files_of_unknown_claims_go_and_missing_ones_come_back(node: NodeWorld) -> None:
    for name in ("a", "b"):
        await prepared(node, allocated(name, f"p/{name}"))
    folder = node.root / "cdi"
    (folder / f"{DRIVER}-uid-of-a-req-0.json").unlink()
    orphan = (folder / f"{DRIVER}-uid-of-b-req-0.json").read_text().replace("uid-of-b", "uid-of-x")
    (folder / f"{DRIVER}-uid-of-x-req-0.json").write_text(orphan)
    (folder / f".{DRIVER}=uid-of-x-xyz.tmp").touch()
    others = [folder / f"{DRIVER}-x-uid-of-b-req-0.json", folder / "other.json", folder / ".other.tmp"]
    others[0].write_text(orphan.replace(DRIVER, f"{DRIVER}-x"))  # of a driver whose name begins like ours
    for path in others[1:]:
        path.touch()
    (node.root / "claims" / ".half.tmp").touch()
    node.start()
    await node.prepared.tidy(sweep=True)
    ours = [folder / f"{DRIVER}-uid-of-{name}-req-0.json" for name in ("a", "b")]
    assert set(node.cdi_files()) == {*ours, *others}
    assert not list((node.root / "claims").glob(".*"))


async def test_a_file_that_cannot_be_removed_keeps_no_file_of_a_prepared_claim_away(
    node: NodeWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await prepared(node, allocated("a", "p/a"))
    (mine,) = node.cdi_files()
    stuck = mine.with_name(mine.name.replace("uid-of-a", "uid-of-x"))
    mine.rename(stuck)

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    node.start()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        await node.prepared.tidy(sweep=True)
    assert set(node.cdi_files()) == {mine, stuck}
    assert f"are left: cannot remove the CDI file {stuck}" in caplog.text


async def test_a_file_beside_the_folders_of_metadata_is_left_alone(
    node: NodeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    notes, unknown = node.root / "metadata" / "notes", node.root / "metadata" / "uid-of-x"
    unknown.mkdir(parents=True)
    notes.touch()
    await node.prepared.tidy(sweep=True)
    assert (notes.exists(), unknown.exists()) == (True, False)
    assert caplog.text == ""


async def test_a_driver_whose_records_are_new_sweeps_nothing(node: NodeWorld) -> None:
    """Its claims may have been prepared by a version without records, and their containers run."""
    path = node.root / "cdi" / f"{DRIVER}-uid-of-x-req-0.json"
    path.write_text(json.dumps({"kind": f"{DRIVER}/claim"}))
    await node.prepared.tidy(sweep=False)
    assert node.cdi_files() == [path]


# --- what a driver answers ---


WRONG: list[tuple[str, Callable[[Prepared], Any], str]] = [
    ("nothing", lambda prepared: None, "prepare returned None: return a list of PreparedDevice"),
    ("a mapping", lambda prepared: {}, "prepare returned {}: return a list"),
    ("a text", lambda prepared: "gpu-0", "prepare returned 'gpu-0': return a list"),
    ("names", lambda prepared: ["gpu-0"], r"returned 'gpu-0' as a device: use PreparedDevice\.of"),
    (
        "another device",
        lambda prepared: [PreparedDevice(pool="p", device="gpu-9")],
        "the device gpu-9 of pool p, which is not allocated to the claim",
    ),
    (
        "for another request",
        lambda prepared: [PreparedDevice(pool="p", device="gpu-0", requests=("other",))],
        "the device gpu-0 for the request other, which it was not allocated for",
    ),
]


@pytest.mark.parametrize(("answer", "message"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
async def test_a_wrong_answer_of_the_driver_is_refused(
    node: NodeWorld, answer: Callable[[Prepared], Any], message: str
) -> None:
    node.driver.answer = answer
    error = await refused(node, allocated("a", "p/gpu-0"))
    with pytest.raises(ClaimError, match=message):
        raise error
    assert node.cdi_files() == []


async def test_what_a_driver_raises_is_logged_with_its_trace(node: NodeWorld, caplog: pytest.LogCaptureFixture) -> None:
    node.driver.answer = lambda prepared: prepared[7]
    assert isinstance(await refused(node, allocated("a", "p/gpu-0")), IndexError)
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage() == "prepare of claim default/a: list index out of range"
    assert record.exc_info


@pytest.mark.parametrize("ending", [asyncio.CancelledError, GeneratorExit])
async def test_an_ending_that_is_the_drivers_own_fails_its_claim_only(
    node: NodeWorld, ending: type[BaseException]
) -> None:
    """Taken for a cancellation of the call it left the kubelet without an answer until its deadline."""

    def end(prepared: Prepared) -> Prepared:
        raise ending

    node.driver.answer = end
    error = await refused(node, allocated("a", "p/gpu-0"))
    assert isinstance(error, ClaimError)
    assert f"the driver raised {ending.__name__}, although nothing cancelled the call" in str(error)


async def test_a_call_that_is_cancelled_is_cancelled(node: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    async def wait(claim: ResourceClaim) -> Prepared:
        begun.set()
        await asyncio.sleep(60)
        return []

    monkeypatch.setattr(node.driver, "prepare", wait)
    call = asyncio.ensure_future(node.prepared.prepare(allocated("a", "p/gpu-0")))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


def test_a_folder_that_cannot_be_read_is_no_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = ClaimRecords(tmp_path / "claims")
    records.create()

    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with (
        monkeypatch.context() as patch,
        pytest.raises(ClaimError, match=r"cannot read the checkpoints in \S+/claims: "),
    ):
        patch.setattr("dra_kubeletplugin.files.checkpoint.os.scandir", fail)
        records.all()


def test_a_claim_is_forgotten_with_the_folder_of_its_record(tmp_path: Path) -> None:
    records = ClaimRecords(tmp_path / "claims")
    records.create()
    (tmp_path / "claims").rmdir()
    records.remove("a")


def test_a_record_of_a_text_that_is_no_utf_8_is_the_error_of_its_claim(tmp_path: Path) -> None:
    records = ClaimRecords(tmp_path / "claims")
    records.create()
    _, record = prepared_claim(DRIVER, "p", "gpu-0", "a")
    device = replace(record.devices[0], edits=ContainerEdits(env=("A=\udc80",)))
    with pytest.raises(ClaimError, match="a text that the driver returned for claim default/a is no UTF-8"):
        records.write(msgspec.structs.replace(record, devices=(device,)), durable=False)
    assert list((tmp_path / "claims").iterdir()) == []


def test_a_system_that_tells_no_boot_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BOOT_ID", "PROC_STAT"):
        monkeypatch.setattr(f"dra_kubeletplugin.files.checkpoint.{name}", tmp_path / "missing")
    assert (boot_id(), boot_time()) == ("", None)


def test_records_are_for_their_owner_only(tmp_path: Path) -> None:
    records = ClaimRecords(tmp_path / "claims")
    assert records.create(), "it has no record"
    assert (tmp_path / "claims").stat().st_mode & 0o777 == 0o700


MISTAKES: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("a text for requests", {"requests": "req"}, TypeError, r"device gpu-0: requests is 'req': give a list of strings"),
    (
        "a text for CDI ids",
        {"cdi_ids": "v.com/gpu=0"},
        TypeError,
        "device gpu-0: cdi_ids is 'v.com/gpu=0': give a list",
    ),
    ("numbers", {"requests": [7]}, TypeError, r"device gpu-0: requests is \[7\]"),
    ("a CDI id without kind", {"cdi_ids": ["gpu0"]}, CdiError, "device gpu-0: 'gpu0' is not a CDI id such as"),
    ("a CDI id without class", {"cdi_ids": ["v.com=0"]}, CdiError, "device gpu-0: 'v.com=0' is not a CDI id such as"),
    ("a CDI id with a bad name", {"cdi_ids": ["v.com/gpu=a/b"]}, CdiError, "device name 'a/b' is not valid"),
]


@pytest.mark.parametrize(
    ("fields", "kind", "message"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES]
)
def test_a_prepared_device_that_cannot_be_is_refused_where_it_is_made(
    fields: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        PreparedDevice(pool="p", device="gpu-0", **fields)


async def test_a_record_that_another_instance_removes_meanwhile_is_passed_over(
    node: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        await prepared(node, allocated(name, f"p/{name}"))
    node.start()
    read = node.records.read

    def read_late(uid: str) -> ClaimRecord | None:
        (node.root / "claims" / "uid-of-a.json").unlink(missing_ok=True)
        return read(uid)

    monkeypatch.setattr(node.records, "read", read_late)
    assert [claim.name for claim in node.prepared.claims()] == ["b"]


WRONG_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"share_id": 7}, "Expected `str | null`, got `int` - at `share_id`"),
    ({"edits": ["A=b"]}, "got `array` - at `edits`"),
    ({"edits": ContainerEdits(device_nodes=("/dev/null",))}, "got `str` - at `edits.deviceNodes[0]`"),  # type: ignore[arg-type]
    ({"edits": ContainerEdits(mounts=(Mount(Path("/a"), "/b"),))}, "PosixPath('/a') is no text"),  # type: ignore[arg-type]
    ({"edits": ContainerEdits(env=("A=\udcff",))}, "'A=\\udcff' is no UTF-8"),
    ({"attributes": {"model": "A100"}}, "got `str` - at `attributes[...]`"),
    ({"network": {"interfaceName": 0}}, "got `int` - at `network.interfaceName`"),
]


@pytest.mark.parametrize(("fields", "error"), WRONG_VALUES)
async def test_a_value_that_its_field_cannot_have_costs_its_claim_and_no_other(
    node: NodeWorld, fields: dict[str, Any], error: str
) -> None:
    """It was in the record, which nothing could read any more, or failed the whole call."""
    node.driver.answer = lambda prepared: [replace(device, **fields) for device in prepared]
    answer = await node.prepared.prepare(allocated("a", "p/gpu-0"))
    assert isinstance(answer, ClaimError)
    assert "returned the device gpu-0 of pool p with a value that its field cannot have: " in str(answer)
    assert error in str(answer)
    assert node.records.unreadable() == {}
    node.driver.answer = lambda prepared: prepared
    assert not isinstance(await node.prepared.prepare(allocated("a", "p/gpu-0")), Exception)


async def test_lists_in_place_of_tuples_are_taken(node: NodeWorld) -> None:
    node.driver.answer = lambda prepared: [replace(prepared[0], edits=ContainerEdits(env=["A=b"]))]  # type: ignore[arg-type]
    assert not isinstance(await node.prepared.prepare(allocated("a", "p/gpu-0")), Exception)
    assert node.containers("uid-of-a") == ["A=b"]
