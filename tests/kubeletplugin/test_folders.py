"""Somebody removes, replaces or protects a folder or a file of a plugin that runs: each of them, in each way."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest
from dra_api.resource import ResourceClaim
from dra_kubeletplugin import (
    ClaimRef,
    ContainerEdits,
    DeviceInUse,
    Driver,
    Prepared,
    PreparedDevice,
    ServerDied,
    kubelet,
    plugin,
    results_for,
)
from dra_kubeletplugin.testing import ClaimFailed, DriverNode
from dra_kubeletplugin.testing.node import RunningDriver
from fake_host import open_files
from grpc.aio import AioRpcError
from node_world import Disk, NodeWorld, allocated, ref
from waiting import becomes

NAME = "gpu.example.com"


class Gpu(Driver):
    """Gives containers the name of their device."""

    async def prepare(self, claim: ResourceClaim) -> Prepared:
        results = results_for(NAME, claim)
        return [PreparedDevice.of(each, edits=ContainerEdits(env=(f"GPU={each.device}",))) for each in results]


PLACES: dict[str, Callable[[RunningDriver, ClaimRef], Path]] = {
    "the data": lambda driver, claim: driver.settings.folder,
    "the records": lambda driver, claim: driver.settings.records_dir,
    "the metadata": lambda driver, claim: driver.settings.metadata_dir,
    "the metadata of a claim": lambda driver, claim: driver.settings.metadata_dir / claim.uid,
    "the CDI files": lambda driver, claim: Path(driver.settings.cdi_dir),
    "the kubelet's sockets": lambda driver, claim: Path(driver.settings.registry_dir),
    "a record": lambda driver, claim: driver.settings.records_dir / f"{claim.uid}.json",
    "the second file of a record": lambda driver, claim: driver.settings.records_dir / f"{claim.uid}.held",
    "a metadata file": lambda driver, claim: driver.settings.metadata_dir / claim.uid / "req/metadata.json",
    "a CDI file": lambda driver, claim: next(Path(driver.settings.cdi_dir).glob(f"*{claim.uid}*")),
    "a lock file": lambda driver, claim: driver.settings.folder / "serialize.lock",
    "the socket": lambda driver, claim: driver.settings.plugin_path,
    "the registration socket": lambda driver, claim: driver.settings.registration_path,
}
"""Folders and files of a plugin; those of a claim are of the first one."""
WITH_SOCKETS = ("the data", "the kubelet's sockets", "the socket", "the registration socket")


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def _removed(path: Path) -> Iterator[None]:
    _remove(path)
    yield
    if path.name == "registry":  # it is the kubelet's
        path.mkdir(exist_ok=True)


@contextmanager
def _a_folder(path: Path) -> Iterator[None]:
    was_file = path.is_file() or path.is_socket()
    _remove(path)
    path.mkdir()
    yield
    if was_file and path.parent.name != "claims":  # who removes a record frees its devices
        with suppress(OSError):  # the plugin has its file there again
            path.rmdir()


@contextmanager
def _a_file(path: Path) -> Iterator[None]:
    was_folder = path.is_dir()
    _remove(path)
    path.write_bytes(b"{")
    yield
    if was_folder:
        path.unlink()
        if path.name == "registry":
            path.mkdir()
    elif path.suffix == ".sock":
        path.unlink()


@contextmanager
def _read_only(path: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, Disk(path, 1, errno.EROFS, lasts=True).failing(patch):
        yield


FATES = {"removed": _removed, "an empty folder": _a_folder, "a file": _a_file, "read-only": _read_only}


def _files(driver: RunningDriver) -> dict[str, bytes]:
    """What there is of claims."""
    folders = (driver.settings.records_dir, driver.settings.metadata_dir, Path(driver.settings.cdi_dir))
    paths = (path for folder in folders if folder.is_dir() for path in folder.rglob("[!.]*"))
    return {str(path): path.read_bytes() for path in paths if path.is_file()}


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("place", PLACES)
async def test_whatever_becomes_of_a_folder_or_file(
    driver_node: DriverNode,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: str,
    fate: str,
) -> None:
    monkeypatch.setattr(kubelet, "_SOCKET_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(plugin, "_FILES_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(plugin, "_LONGEST_FILES_LOOK_SECONDS", 0.2)
    async with driver_node.run(Gpu, NAME, device_metadata=True, serialize=False) as driver:
        claims = [await driver.claim(f"gpu-{number}", name=f"claim-{number}") for number in range(2)]
        other = await driver.claim("gpu-0", name="other")
        containers = [await driver.prepare(claim) for claim in claims]
        await becomes(lambda: b"unanswered" not in b"".join(_files(driver).values()))
        before = _files(driver)
        path = PLACES[place](driver, claims[0])
        is_forgotten = (place, fate) == ("a record", "removed")  # as people do it, to free a device
        is_damaged = place == "a record" and fate in ("an empty folder", "a file")

        async def nobody_else_gets_the_device() -> None:
            with nullcontext() if is_forgotten else pytest.raises((ClaimFailed, AioRpcError)):
                await driver.prepare(other)

        ends = place in WITH_SOCKETS and fate != "read-only"
        with FATES[fate](path):
            if ends:
                with pytest.raises(ServerDied):
                    await asyncio.wait_for(driver.plugin.wait(), 10)
                await driver.stop()
            else:
                await nobody_else_gets_the_device()
        if ends:
            await driver.start()
        if (place, fate) == ("the data", "a file"):
            assert "the next process will not know the prepared claims" in caplog.text
            return

        # Nothing asks for the files of claims that are prepared, and yet they come back.
        damaged = {str(path)} if place in ("a record", "the second file of a record") else set()
        if fate == "a file" and place in ("a CDI file", "a metadata file"):
            damaged = {str(path)}  # until the next call
        await becomes(lambda: before.items() - _files(driver).items() <= {(name, before[name]) for name in damaged}, 10)
        await nobody_else_gets_the_device()
        if is_forgotten:
            await driver.unprepare(other)
        for claim, container in zip(claims, containers, strict=True):
            if is_damaged and claim is claims[0]:
                with pytest.raises(ClaimFailed, match="cannot be read"):
                    await driver.prepare(claim)
            else:
                assert (await driver.prepare(claim)).environment == container.environment
            await driver.unprepare(claim)
        assert _files(driver) == {}
        assert (await driver.prepare(other)).environment == {"GPU": "gpu-0"}


async def test_a_folder_of_records_that_is_made_again_frees_no_device(
    node: NodeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Between two looks: the plugin took the empty folder for its own."""
    await node.give(allocated("a", "p/gpu-0"), allocated("b", "p/gpu-1"))
    folder = node.records.folder
    (folder / "uid-of-b.json").write_text("{")  # its second file names its devices, and goes as well
    assert isinstance(await node.prepared.prepare(allocated("c", "p/gpu-1")), DeviceInUse)
    for _ in range(3):  # file systems give the number of a removed folder to the next one
        shutil.rmtree(folder)
        folder.mkdir()
        for device in ("p/gpu-0", "p/gpu-1"):
            assert isinstance(await node.prepared.prepare(allocated("c", device)), DeviceInUse)
    assert caplog.text.count("was removed or replaced: the records of 2 claims are written again") == 3
    node.start()
    for device in ("p/gpu-0", "p/gpu-1"):
        assert isinstance(await node.prepared.prepare(allocated("c", device)), DeviceInUse)
    for name in ("a", "b"):
        assert await node.prepared.unprepare(ref(name)) is None
    assert node.leftovers() == []


async def test_records_of_another_instance_or_of_a_backup_stay(node: NodeWorld) -> None:
    await node.give(allocated("a", "p/gpu-0"), allocated("b", "p/gpu-1"))
    folder = node.records.folder
    shutil.copytree(folder, folder.with_name("backup"))
    await node.give(allocated("c", "p/gpu-2"))
    shutil.rmtree(folder)
    folder.with_name("backup").rename(folder)
    before = (folder / "uid-of-a.json").stat().st_ino
    for device in ("p/gpu-0", "p/gpu-1", "p/gpu-2"):
        assert isinstance(await node.prepared.prepare(allocated("d", device)), DeviceInUse)
    assert (folder / "uid-of-a.json").stat().st_ino == before


async def test_another_instance_that_unprepares_a_claim_is_not_undone(
    node: NodeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Its files are gone, as if somebody had removed them."""
    await node.give(allocated("a", "p/gpu-0"))
    other = NodeWorld(node.root)
    assert await other.prepared.unprepare(ref("a")) is None
    assert await node.prepared.restore()
    assert node.leftovers() == []
    caplog.clear()
    assert await node.prepared.restore()
    assert caplog.text == "", "it is looked at once"


async def test_a_plugin_that_starts_on_an_empty_folder_of_records_sweeps_nothing(driver_node: DriverNode) -> None:
    """Somebody may have emptied it: the containers of claims that nobody knows any more still need their files."""
    async with driver_node.run(Gpu, NAME) as driver:
        await driver.prepare(await driver.claim("gpu-0"))
        before = sorted(driver_node.cdi_dir.iterdir())
        await driver.stop()
        shutil.rmtree(driver.settings.records_dir)
        driver.settings.records_dir.mkdir()
        await driver.start()
        await asyncio.sleep(0.5)
        assert sorted(driver_node.cdi_dir.iterdir()) == before


def test_the_folder_is_let_go_of_with_its_records(node: NodeWorld) -> None:
    def held() -> list[str]:
        return [path for path in open_files() if path.endswith(str(node.records.folder))]

    assert len(held()) == 1
    shutil.rmtree(node.records.folder)
    node.records.restore()
    assert len(held()) == 1
    node.records.close()
    assert held() == []
