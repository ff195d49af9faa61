"""``kill -9`` at every step of prepare and unprepare, and what the next process makes of it; and a power failure.

A killed process leaves the files as they are. So a trace function looks at the files before each line that the library
and the driver run for a call, and keeps a copy of each state; then a new process starts on each copy.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import node_world
import pytest
from dra_kubeletplugin import ClaimError, PreparedDevice, attribute, decode_metadata
from dra_kubeletplugin.claims import prepared
from dra_kubeletplugin.files import checkpoint, claim_files
from node_world import NodeWorld, allocated, ref

if TYPE_CHECKING:
    from _typeshed import TraceFunction

TRACED = {module.__file__ for module in (checkpoint, claim_files, prepared, node_world)}

Step = Callable[[NodeWorld], Awaitable[None]]


async def prepare(node: NodeWorld) -> None:
    """Prepare the claim; containers and hardware must then be right."""
    devices = await node.prepared.prepare(allocated("a", "p/gpu-7"))
    assert not isinstance(devices, Exception), devices
    assert [device.device for device in devices] == ["gpu-7"]
    assert node.containers("uid-of-a") == ["DEVICE=p/gpu-7"]
    assert (node.hardware / "uid-of-a").read_text() == "p/gpu-7"
    assert told(node) == ["gpu-7"]


async def unprepare(node: NodeWorld) -> None:
    """Unprepare the claim; it must leave nothing behind."""
    assert await node.prepared.unprepare(ref("a")) is None
    assert not [path for path in node.leftovers() if "uid-of-b" not in str(path)]


def told(node: NodeWorld) -> list[str]:
    """The devices that the metadata file of the claim names."""
    content = (node.root / "metadata" / "uid-of-a" / "req" / "metadata.json").read_bytes()
    return [device.name for request in decode_metadata(content).requests for device in request.devices]


async def nothing(_node: NodeWorld) -> None:
    """The node has not heard of the claim."""


async def prepare_before(node: NodeWorld) -> None:
    """Prepare the claim with the allocation that it had before."""
    assert not isinstance(await node.prepared.prepare(allocated("a", "p/gpu-0")), Exception)


async def update_metadata(node: NodeWorld) -> None:
    """Say more of the device, in the file that containers have open."""
    model = {"model": attribute("a-long-name" * 5)}
    device = PreparedDevice(pool="p", device="gpu-7", requests=("req",), attributes=model)
    await node.prepared.update_metadata(ref("a"), "req", [device])


async def prepare_again(node: NodeWorld) -> None:
    """The device is somewhere else on the host now."""
    node.driver.answer = lambda prepared: [replace(device, owns=("elsewhere",)) for device in prepared]
    await node.prepared.prepare_again(["uid-of-a"])
    assert node.containers("uid-of-a") == ["DEVICE=p/gpu-7"]


CALLS: list[tuple[str, Step, Step, int]] = [
    ("prepare", nothing, prepare, 13),
    ("unprepare", prepare, unprepare, 8),
    ("prepare another allocation", prepare_before, prepare, 20),
    ("prepare changed devices again", prepare, prepare_again, 6),
    ("update the metadata", prepare, update_metadata, 5),
]


@pytest.mark.parametrize(("before", "call", "least"), [case[1:] for case in CALLS], ids=[case[0] for case in CALLS])
async def test_a_kill_at_any_step_leaves_what_the_next_process_can_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: Step, call: Step, least: int
) -> None:
    monkeypatch.setattr("os.fsync", lambda _descriptor: None)  # a killed process loses nothing that it wrote
    node = NodeWorld(tmp_path / "node", with_metadata=True)
    assert not isinstance(await node.prepared.prepare(allocated("b", "p/gpu-1")), Exception)
    await before(node)
    with states(node, tmp_path / "states") as found:
        await call(node)
    assert len(found) >= least, f"the walk sees each step: {len(found)}"
    for state in found:
        for then in (prepare, unprepare):
            root = tmp_path / "then"
            shutil.copytree(state, root)
            try:
                await next_process(NodeWorld(root, with_metadata=True), then)
            except AssertionError as error:
                pytest.fail(f"killed with {sorted(files(state))}, then {then.__name__}: {error}")
            shutil.rmtree(root)


def unpublished(node: NodeWorld) -> None:
    """The device is left out of the slices."""
    node.gone.add("p/gpu-7")


def failing(node: NodeWorld) -> None:
    """The driver does not find the device."""

    def answer(_prepared: object) -> object:
        raise ClaimError("gpu-7 is gone")

    node.driver.answer = answer


@pytest.mark.parametrize("lost", [unpublished, failing])
@pytest.mark.parametrize(("before", "call"), [(nothing, prepare), (prepare_before, prepare), (prepare, prepare_again)])
async def test_what_a_killed_instance_has_half_done_is_withdrawn_by_the_next_call_though_the_device_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: Step, call: Step, lost: Callable[[NodeWorld], None]
) -> None:
    """The other instance has served for a while, and tidies no more. The claim was refused, its files stayed."""
    monkeypatch.setattr("os.fsync", lambda _descriptor: None)
    node = NodeWorld(tmp_path / "node", with_metadata=True)
    await before(node)
    with states(node, tmp_path / "states") as found:
        await call(node)
    for state in found:
        for by_driver in (False, True):
            root = tmp_path / "then"
            shutil.copytree(state, root)
            other = NodeWorld(root, with_metadata=True)
            lost(other)
            if by_driver:
                await other.prepared.prepare_again(["uid-of-a"])
            answer = await other.prepared.prepare(allocated("a", "p/gpu-7"))
            held = other.containers("uid-of-a")
            assert bool(held) is not isinstance(answer, Exception), f"killed with {sorted(files(state))}: {answer}"
            assert await other.prepared.unprepare(ref("a")) is None
            assert other.cdi_files() == []  # of records, the next start removes what was half written
            shutil.rmtree(root)


async def next_process(node: NodeWorld, then: Step) -> None:
    """It tidies, finds the other claim as it was, and answers the kubelet's next call."""
    await node.prepared.tidy(sweep=True)
    assert not [path for path in node.leftovers() if path.name.startswith(".")], "half a file"
    if node.containers("uid-of-a"):
        assert "uid-of-a" in node.records.uids(), "a CDI file without a record"
    assert node.containers("uid-of-b") == ["DEVICE=p/gpu-1"]
    await then(node)
    await unprepare(node)


@pytest.mark.rule("PH-15")
async def test_what_was_answered_is_on_the_disk_when_the_power_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file that is not synced, its content may be lost, and of a folder that is not, its newest names."""
    contents: dict[int, bytes] = {}
    names: dict[str, dict[str, int]] = {}

    def sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if path.is_dir():
            names[path.name] = {entry.name: entry.stat().st_ino for entry in path.iterdir()}
        else:
            contents[path.stat().st_ino] = path.read_bytes()

    monkeypatch.setattr("os.fsync", sync)
    node = NodeWorld(tmp_path / "node")
    await node.prepared.prepare(allocated("a", "p/gpu-7"))
    (record,) = (name for name in names["claims"] if name.endswith(".json"))
    assert record == "uid-of-a.json"
    assert b'"phase":"prepared"' in contents[names["claims"][record]]
    (file,) = names["cdi"]
    assert b"DEVICE=p/gpu-7" in contents[names["cdi"][file]]
    assert await node.prepared.unprepare(ref("a")) is None
    assert names["claims"] == {}


@contextmanager
def states(node: NodeWorld, folder: Path) -> Iterator[list[Path]]:
    """Copies of the states that the node's files take while the block runs."""
    found: list[Path] = []
    last: dict[str, bytes] = {}

    def look() -> None:
        nonlocal last
        if (now := files(node.root)) != last:
            last = now
            found.append(Path(shutil.copytree(node.root, folder / str(len(found)))))

    def trace(frame: FrameType, event: str, _argument: object) -> TraceFunction | None:
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line":
            look()
        return trace

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())  # only new threads are traced
    sys.settrace(trace)
    threading.settrace(trace)
    try:
        yield found
    finally:
        sys.settrace(None)
        threading.settrace(None)
        look()


def files(root: Path) -> dict[str, bytes]:
    """Names and content. It is asked before each line, and ``Path.rglob`` takes four times as long."""
    found: dict[str, bytes] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    found[os.path.relpath(path, root)] = file.read()
    return found
