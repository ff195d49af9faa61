"""Each write of a call fails, one after the other: for want of room or quota, on a bad or a read-only disk."""

from __future__ import annotations

import errno
import itertools
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dra_kubeletplugin import PreparedDevice, attribute
from fake_host import open_files
from node_world import Disk, NodeWorld, allocated, ref
from waiting import NotObserved, becomes

FAULTS = [(errno.EIO, False), (errno.ENOSPC, False), (errno.EDQUOT, True), (errno.EROFS, True)]
"""Errors, each with whether it lasts: a bad sector, a disk that is full for a moment, a quota, a disk set read-only."""


async def nothing(_node: NodeWorld) -> None:
    """The node has not heard of the claim."""


async def prepare(node: NodeWorld) -> Any:
    """Prepare it."""
    return await node.prepared.prepare(allocated("a", "p/gpu-7"))


async def prepare_other(node: NodeWorld) -> Any:
    """Prepare it for the device that it had before."""
    return await node.prepared.prepare(allocated("a", "p/gpu-0"))


async def unprepare(node: NodeWorld) -> Any:
    """Unprepare it."""
    return await node.prepared.unprepare(ref("a"))


async def prepare_again(node: NodeWorld) -> None:
    """Its device is somewhere else on the host."""
    node.driver.answer = lambda prepared: [replace(device, owns=("elsewhere",)) for device in prepared]
    await node.prepared.prepare_again(["uid-of-a"])


async def update_metadata(node: NodeWorld) -> Any:
    """Say more of its device."""
    device = PreparedDevice(pool="p", device="gpu-7", requests=("req",), attributes={"model": attribute("x")})
    try:
        await node.prepared.update_metadata(ref("a"), "req", [device])
    except Exception as error:
        return error


async def lose_files(node: NodeWorld) -> None:
    """Its CDI files vanish, and the second files of records."""
    await prepare(node)
    for path in (*node.cdi_files(), *(node.root / "claims").glob("*.held")):
        path.unlink()


async def start(node: NodeWorld) -> None:
    """A process starts, and finds files missing."""
    node.start()
    await node.prepared.tidy(sweep=True)


Call = Callable[[NodeWorld], Awaitable[Any]]
CALLS: list[tuple[Call, Call, int]] = [
    (nothing, prepare, 20),
    (prepare, prepare, 0),
    (prepare, unprepare, 9),
    (prepare_other, prepare, 30),
    (prepare, prepare_again, 15),
    (prepare, update_metadata, 5),
    (lose_files, start, 15),
]


def _paths() -> Counter[str]:
    """Return how often each path is open: a new process may hold the folder of records by another number."""
    return Counter(entry.partition(" ")[2] for entry in open_files())


async def _is_closed(before: Counter[str]) -> bool:
    """Return whether no more is open than before. A thread lets its last work go a moment after its end."""
    with suppress(NotObserved):
        await becomes(lambda: _paths() <= before, 5)
    return _paths() <= before


@pytest.mark.parametrize(("number", "lasts"), FAULTS, ids=[errno.errorcode[number] for number, _ in FAULTS])
@pytest.mark.parametrize(
    ("before", "call", "least"), CALLS, ids=[f"{one.__name__} {two.__name__}" for one, two, _ in CALLS]
)
async def test_a_write_that_fails_at_any_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: Call,
    call: Call,
    least: int,
    number: int,
    lasts: bool,
) -> None:
    for at in itertools.count(1):
        node = NodeWorld(tmp_path / str(at), with_metadata=True)
        await node.give(allocated("b", "p/gpu-1"))
        await before(node)
        node.prepared.answered({"uid-of-a": []})
        node.prepared.record_answered(["uid-of-a"])
        before_call = _paths()
        disk = Disk(node.root, at, number, lasts=lasts)
        with disk.failing(monkeypatch):
            answer = await call(node)
        where = f"change {at} of {disk.seen}: {answer!r}"
        assert await _is_closed(before_call), where

        # A call that fails says of what, and gives containers nothing that its answer does not name.
        given = node.containers("uid-of-a")
        if isinstance(answer, Exception):
            assert os.strerror(number) in str(answer), where
            assert str(node.root) in str(answer), where
        if call in (prepare, unprepare) and before is not prepare:
            assert lasts or (given == ["DEVICE=p/gpu-7"]) == (not isinstance(answer, Exception)), where
        if before is prepare and call in (prepare, update_metadata):
            assert given == ["DEVICE=p/gpu-7"], where
        assert call is start or node.containers("uid-of-b") == ["DEVICE=p/gpu-1"], where
        if not lasts:
            assert not [path for path in node.leftovers() if path.name.startswith(".")], f"half a file: {where}"

        # No device is free that may be in use, and with the disk well again the next calls mend all.
        if not (call is unprepare and answer is None):
            other = await node.prepared.prepare(
                allocated("c", given[0].removeprefix("DEVICE=") if given else "p/gpu-1")
            )
            assert isinstance(other, Exception), where
        node.start()
        await node.prepared.tidy(sweep=True)
        assert node.containers("uid-of-b") == ["DEVICE=p/gpu-1"], where
        assert not isinstance(await prepare(node), Exception), where
        assert node.containers("uid-of-a") == ["DEVICE=p/gpu-7"], where
        for name in ("a", "b", "c"):
            assert await node.prepared.unprepare(ref(name)) is None, where
        assert node.leftovers() == [], where
        if disk.seen < at:
            assert at > least, "each step was reached"
            return
