"""Prepared claims whose devices change: what containers get is written anew, or withdrawn."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dra_api.resource import ResourceClaim
from dra_kubeletplugin import ClaimError, ClaimRef, ContainerEdits, HostPartInUse, Prepared
from dra_kubeletplugin.claims import calls
from dra_kubeletplugin.claims.calls import NodeCalls, Turns
from node_world import DRIVER, NodeWorld, allocated, ref
from waiting import becomes

Answer = Callable[[Prepared], Any]


def at(places: dict[str, str]) -> Answer:
    """A driver whose devices are at these places of the host, each its own."""

    def answer(prepared: Prepared) -> Prepared:
        if missing := [device.device for device in prepared if device.device not in places]:
            raise ClaimError(f"{missing} gone")
        return [
            replace(device, edits=ContainerEdits(env=(f"AT={places[device.device]}",)), owns=(places[device.device],))
            for device in prepared
        ]

    return answer


async def again(node: NodeWorld, *devices: str) -> None:
    """Prepare the claims that hold these devices again."""
    await node.prepared.prepare_again(node.prepared.holders(devices, "p"))


async def test_what_did_not_change_is_not_written(node: NodeWorld) -> None:
    await node.prepared.prepare(allocated("a", "p/gpu-0"))
    before = [path.stat().st_mtime_ns for path in node.leftovers()]
    await again(node, "gpu-0")
    assert node.driver.calls == ["prepare a: p/gpu-0"] * 2
    assert [path.stat().st_mtime_ns for path in node.leftovers()][:-1] == before[:-1], "all but the hardware's own"


async def test_only_claims_that_hold_the_devices_are_prepared_again(node: NodeWorld) -> None:
    for name in ("a", "b"):
        await node.prepared.prepare(allocated(name, f"p/{name}"))
    await node.prepared.prepare(allocated("c", "q/a"))
    node.driver.calls.clear()
    await again(node, "a")
    assert node.driver.calls == ["prepare a: p/a"]


async def test_the_driver_gets_the_configuration_of_the_claim_again(node: NodeWorld) -> None:
    seen: list[object] = []
    prepare = node.driver.prepare

    async def look(claim: Any) -> Prepared:
        seen.append([bytes(config.opaque.parameters) for config in claim.status.allocation.devices.config])
        return await prepare(claim)

    node.driver.prepare = look  # type: ignore[method-assign]  # a spy
    await node.prepared.prepare(allocated("a", "p/gpu-0", config={"color": "red"}))
    await again(node, "gpu-0")
    assert len(seen) == 2
    assert seen[0] == seen[1]


async def test_a_claim_that_cannot_be_prepared_loses_its_files_until_it_can(node: NodeWorld) -> None:
    node.driver.answer = at({"gpu-0": "x"})
    await node.prepared.prepare(allocated("a", "p/gpu-0"))
    node.driver.answer = at({})
    await again(node, "gpu-0")
    assert node.cdi_files() == []
    assert node.prepared.claims() == []
    assert "gone" in str(await node.prepared.prepare(allocated("a", "p/gpu-0")))
    node.start()
    await node.prepared.tidy(sweep=True)
    assert node.cdi_files() == [], "a new process does not write them again"
    node.driver.answer = at({"gpu-0": "y"})
    await again(node)
    assert node.containers("uid-of-a") == ["AT=y"], "whichever devices have changed"
    assert [claim.name for claim in node.prepared.claims()] == ["a"]


async def test_a_withdrawn_claim_is_unprepared_with_the_devices_that_it_had(node: NodeWorld) -> None:
    node.driver.answer = at({"gpu-0": "x"})
    await node.prepared.prepare(allocated("a", "p/gpu-0"))
    node.driver.answer = at({})
    await again(node, "gpu-0")
    assert await node.prepared.unprepare(ref("a")) is None
    assert node.driver.calls[-1] == "unprepare a: p/gpu-0"
    assert node.leftovers() == []


async def test_devices_that_changed_places_get_each_others(node: NodeWorld) -> None:
    node.driver.answer = at({"gpu-0": "x", "gpu-1": "y"})
    await node.give(*(allocated(name, f"p/gpu-{name}") for name in "01"))
    node.driver.answer = at({"gpu-0": "y", "gpu-1": "x"})
    await again(node, "gpu-0", "gpu-1")
    assert (node.containers("uid-of-0"), node.containers("uid-of-1")) == (["AT=y"], ["AT=x"])


async def test_one_claim_at_which_the_driver_works_keeps_no_other_one_from_being_withdrawn(
    node: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet's call for claim 0 hangs, or the driver's look at its device does: claim 1 kept the wrong device."""
    monkeypatch.setattr(calls, "fetch_claim", lambda _api, claim: _fetched(claim))
    turns = Turns(serialize=False, folder=node.root)
    kubelet = NodeCalls(node.prepared, None, turns)  # type: ignore[arg-type]  # unused
    node.driver.answer = at({"gpu-0": "x", "gpu-1": "y"})
    await kubelet.prepare([ref("0"), ref("1")])
    end, prepare = asyncio.Event(), node.driver.prepare

    async def slow(claim: ResourceClaim) -> Prepared:
        if claim.metadata.name == "0":
            await end.wait()
        return await prepare(claim)

    node.driver.prepare = slow  # type: ignore[method-assign]
    node.driver.answer = at({"gpu-0": "y", "gpu-1": "x"})
    uids = node.prepared.holders(["gpu-0", "gpu-1"], "p")
    looking = asyncio.create_task(node.prepared.prepare_again(uids, partial(turns.run, "preparing again")))
    await becomes(lambda: node.containers("uid-of-1") == [])
    assert await kubelet.unprepare([ref("1")]) == {"uid-of-1": None}, "its turn is free again"
    assert not looking.done()
    end.set()
    await looking
    assert (node.containers("uid-of-0"), node.containers("uid-of-1")) == (["AT=y"], []), "it stays unprepared"


async def _fetched(claim: ClaimRef) -> ResourceClaim:
    return allocated(claim.name, f"p/gpu-{claim.name}")


async def test_a_claim_that_the_kubelet_has_prepared_meanwhile_keeps_that_answer(node: NodeWorld) -> None:
    node.driver.answer = at({"gpu-0": "x", "gpu-1": "y"})
    await node.give(*(allocated(name, f"p/gpu-{name}") for name in "01"))
    node.driver.answer = at({"gpu-0": "y", "gpu-1": "x"})

    async def in_turn(uids: Collection[str], work: Callable[[], Any]) -> Any:
        if len(uids) == 2:  # all are withdrawn: now the kubelet is quicker
            node.driver.answer = at({"gpu-0": "z", "gpu-1": "x"})
            assert not isinstance(await node.prepared.prepare(allocated("0", "p/gpu-0")), Exception)
        return await work()

    await node.prepared.prepare_again(["uid-of-0", "uid-of-1"], in_turn)
    assert (node.containers("uid-of-0"), node.containers("uid-of-1")) == (["AT=z"], ["AT=x"])


async def test_two_devices_that_say_to_be_at_one_place_are_not_both_given(node: NodeWorld) -> None:
    node.driver.answer = at({"gpu-0": "x", "gpu-1": "y"})
    for name in ("0", "1"):
        await node.prepared.prepare(allocated(name, f"p/gpu-{name}"))
    node.driver.answer = at({"gpu-0": "z", "gpu-1": "z"})
    await again(node, "gpu-0", "gpu-1")
    assert (node.containers("uid-of-0"), node.containers("uid-of-1")) == (["AT=z"], [])


async def unrecorded(node: NodeWorld, full: Callable[[Path], None]) -> None:
    """gpu-0 at x and gpu-1 at y are pulled, gpu-2 is at y; the disk of the records is full, not that of CDI files."""
    node.driver.answer = at({"gpu-0": "x", "gpu-1": "y"})
    for name in ("0", "1"):
        await node.prepared.prepare(allocated(name, f"p/gpu-{name}"))
    node.driver.answer = at({"gpu-2": "y"})
    full(node.root / "claims")
    await again(node, "gpu-0", "gpu-1")


async def test_a_full_disk_keeps_no_claim_from_being_withdrawn(node: NodeWorld, full: Callable[[Path], None]) -> None:
    """Containers of the second claim got the device that is at y now, for as long as the disk was full."""
    await unrecorded(node, full)
    assert node.cdi_files() == []
    assert node.prepared.claims() == []
    assert isinstance(await node.prepared.prepare(allocated("0", "p/gpu-0")), ClaimError), "as a kubelet asks"
    assert node.cdi_files() == []
    assert await node.prepared.unprepare(ref("0")) is None
    assert node.driver.calls[-1] == "unprepare 0: p/gpu-0"


async def test_what_was_withdrawn_on_a_full_disk_comes_back_when_there_is_room(
    node: NodeWorld, full: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    await unrecorded(node, full)
    node.driver.answer = at({"gpu-0": "x", "gpu-1": "y"})
    await again(node)
    assert node.cdi_files() == []
    monkeypatch.undo()
    await again(node)
    assert (node.containers("uid-of-0"), node.containers("uid-of-1")) == (["AT=x"], ["AT=y"])
    assert sorted(claim.name for claim in node.prepared.claims()) == ["0", "1"]


async def test_what_another_instance_writes_counts_instead_of_what_found_no_room(
    node: NodeWorld, full: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    await unrecorded(node, full)
    monkeypatch.undo()
    old = node.prepared
    node.start()
    node.driver.answer = at({"gpu-0": "x", "gpu-1": "z"})
    await again(node, "gpu-1")
    assert [claim.devices[0].owns for claim in old.claims()] == [("z",)]


async def test_a_cdi_file_that_cannot_be_removed_keeps_no_other_claim_from_being_withdrawn(
    node: NodeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.driver.answer = at({"gpu-0": "x", "gpu-1": "y"})
    for name in ("0", "1"):
        await node.prepared.prepare(allocated(name, f"p/gpu-{name}"))
    stuck = node.root / "cdi" / f"{DRIVER}-uid-of-0-req-0.json"
    unlink = Path.unlink

    def removed(path: Path, missing_ok: bool = False) -> None:
        if path == stuck:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", removed)
    node.driver.answer = at({})
    await again(node, "gpu-0", "gpu-1")
    assert node.cdi_files() == [stuck]


async def moved(node: NodeWorld) -> None:
    """Claim a was prepared with gpu-0 at x, which is at y now, and gpu-1 is at x."""
    node.driver.answer = at({"gpu-0": "x"})
    await node.prepared.prepare(allocated("a", "p/gpu-0"))
    node.driver.answer = at({"gpu-0": "y", "gpu-1": "x"})
    await again(node, "gpu-0")
    assert node.containers("uid-of-a") == ["AT=y"]


async def test_what_a_device_owned_before_it_moved_is_given_to_no_new_claim(node: NodeWorld) -> None:
    """Containers of claim a may still use it."""
    await moved(node)
    for _ in range(2):
        error = await node.prepared.prepare(allocated("b", "p/gpu-1"))
        assert isinstance(error, HostPartInUse)
        assert "gpu-1 is at x, which was given to claim default/a, whose containers may still use it" in str(error)
        answer = node.driver.answer
        node.start()  # another process knows it as well
        node.driver.answer = answer
    assert await node.prepared.unprepare(ref("a")) is None
    assert not isinstance(await node.prepared.prepare(allocated("b", "p/gpu-1")), Exception)


@pytest.mark.parametrize("asks", ["the kubelet", "the driver"])
async def test_a_claim_whose_files_could_not_be_written_is_still_new(
    node: NodeWorld, full: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    """It counted as prepared before, and got what a container of claim a has open."""
    node.driver.answer = at({"gpu-0": "x", "gpu-1": "z"})
    await node.prepared.prepare(allocated("a", "p/gpu-0"))
    full(node.root / "cdi")
    assert isinstance(await node.prepared.prepare(allocated("b", "p/gpu-1")), Exception)
    monkeypatch.undo()
    node.driver.answer = at({"gpu-0": "y", "gpu-1": "x"})
    await again(node, *(["gpu-0"] if asks == "the kubelet" else ["gpu-0", "gpu-1"]))
    if asks == "the kubelet":
        assert isinstance(await node.prepared.prepare(allocated("b", "p/gpu-1")), HostPartInUse)
    assert (node.containers("uid-of-a"), node.containers("uid-of-b")) == (["AT=y"], [])
    assert await node.prepared.unprepare(ref("a")) is None
    assert not isinstance(await node.prepared.prepare(allocated("b", "p/gpu-1")), Exception)


@pytest.fixture
def kubelet(node: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> NodeCalls:
    """The calls of a kubelet; claim a has gpu-0, claim b gpu-1."""

    async def fetch(_api: object, claim: ClaimRef) -> ResourceClaim:
        return allocated(claim.name, {"a": "p/gpu-0", "b": "p/gpu-1"}[claim.name])

    monkeypatch.setattr(calls, "fetch_claim", fetch)
    return NodeCalls(node.prepared, None, Turns(serialize=False, folder=None))  # type: ignore[arg-type]  # unused


async def test_that_a_kubelet_has_an_answer_is_recorded_when_it_has(node: NodeWorld, kubelet: NodeCalls) -> None:
    """A process was killed in between: the next one took the claim for one with containers.

    Devices had changed places meanwhile, and it gave the claim what a container of another one has open.
    """

    def seems_new(name: str) -> bool:
        record = node.records.read(f"uid-of-{name}")
        assert record is not None
        return not record.was_given

    await kubelet.prepare([ref("a")])
    assert seems_new("a"), "the answer is not sent before this is over"
    await becomes(lambda: not seems_new("a"))
    await kubelet.prepare([ref("b")])
    await kubelet.stop()
    assert not seems_new("b")


async def test_a_driver_that_hangs_does_not_keep_the_process_from_its_end(
    node: NodeWorld, kubelet: NodeCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of an answer waits for the next work on the claim, as it would for that on any with ``serialize``."""
    monkeypatch.setattr(calls, "_GRACE_SECONDS", 0.05)
    await kubelet.prepare([ref("a")])
    monkeypatch.setattr(node.driver, "unprepare", lambda _claim: asyncio.sleep(3600))
    hangs = asyncio.create_task(kubelet.unprepare([ref("a")]))
    await asyncio.sleep(0)
    await asyncio.wait_for(kubelet.stop(), 10)
    record = node.records.read("uid-of-a")
    assert record is not None
    assert not record.was_given, "the next process takes the claim for one without an answer"
    hangs.cancel()


async def test_an_answer_whose_record_fails_is_told(
    node: NodeWorld, kubelet: NodeCalls, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kubelet._turns, "run", _no_lock(kubelet._turns.run))
    await kubelet.prepare([ref("a")])
    await kubelet.stop()
    assert "1 claims are answered without recording that: no more files" in caplog.text


def _no_lock(run: Callable[..., Any]) -> Callable[..., Any]:
    async def without(what: str, *more: Any, **options: Any) -> Any:
        if what == "record of answers":
            raise OSError("no more files")
        return await run(what, *more, **options)

    return without


async def test_an_answer_of_a_former_allocation_is_not_recorded(node: NodeWorld, kubelet: NodeCalls) -> None:
    await kubelet.prepare([ref("a")])
    await kubelet.unprepare([ref("a")])
    await node.prepared.prepare(allocated("a", "p/gpu-3"))
    await kubelet.stop()
    record = node.records.read("uid-of-a")
    assert record is not None
    assert not record.was_given


@pytest.mark.parametrize("is_answered", [False, True])
async def test_a_claim_is_new_until_a_kubelet_has_the_answer(
    node: NodeWorld, kubelet: NodeCalls, is_answered: bool
) -> None:
    """Its call was given up, and its device moved to where that of claim a was: it got what a container has open."""
    node.driver.answer = at({"gpu-0": "x", "gpu-1": "y"})
    await kubelet.prepare([ref("a")])
    begun, end, prepare = asyncio.Event(), asyncio.Event(), node.driver.prepare

    async def slow(claim: ResourceClaim) -> Prepared:
        begun.set()
        await end.wait()
        return await prepare(claim)

    node.driver.prepare = slow  # type: ignore[method-assign]
    call = asyncio.create_task(kubelet.prepare([ref("b")]))
    await begun.wait()
    call.cancel()
    await asyncio.wait([call])
    end.set()
    await becomes(lambda: node.containers("uid-of-b") == ["AT=y"])
    await becomes(lambda: "b" in [claim.name for claim in node.prepared.claims()])
    if is_answered:
        await kubelet.prepare([ref("b")])
    node.driver.answer = at({"gpu-0": "y", "gpu-1": "x"})
    await again(node, "gpu-0", "gpu-1")
    assert node.containers("uid-of-a") == ["AT=y"]
    assert node.containers("uid-of-b") == (["AT=x"] if is_answered else [])
    if not is_answered:
        assert isinstance((await kubelet.prepare([ref("b")]))["uid-of-b"], HostPartInUse)
        await kubelet.unprepare([ref("a")])
        assert not isinstance((await kubelet.prepare([ref("b")]))["uid-of-b"], Exception)
        assert node.containers("uid-of-b") == ["AT=x"]


@pytest.mark.parametrize("written", [True, False], ids=["", "the disk is full"])
@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_claim_that_was_prepared_when_the_process_was_killed_is_new_unless_a_kubelet_was_answered(
    node: NodeWorld, full: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch, is_answered: bool, written: bool
) -> None:
    """The next process took it for prepared, and gave it what a container of claim a has open."""
    node.driver.answer = at({"gpu-0": "x", "gpu-1": "y"})
    await node.give(allocated("a", "p/gpu-0"))
    if is_answered:
        results = {"uid-of-b": await node.prepared.prepare(allocated("b", "p/gpu-1"))}
        if not written:
            full(node.root / "claims")
        node.prepared.answered(results)
        node.prepared.record_answered(results)
        monkeypatch.undo()
    else:
        await node.prepared.prepare(allocated("b", "p/gpu-1"))
    node.start()
    await node.prepared.tidy(sweep=True)
    assert node.containers("uid-of-b") == ["AT=y"], "it is prepared"
    node.driver.answer = at({"gpu-0": "y", "gpu-1": "x", "gpu-2": "y"})
    await again(node, "gpu-0", "gpu-1")
    assert node.containers("uid-of-a") == ["AT=y"]
    assert node.containers("uid-of-b") == (["AT=x"] if is_answered and written else [])
    # Whether or not it has containers: nobody gets what they may have open.
    assert isinstance(await node.prepared.prepare(allocated("c", "p/gpu-2")), HostPartInUse)
    await node.prepared.unprepare(ref("a"))
    assert isinstance(await node.prepared.prepare(allocated("c", "p/gpu-2")), HostPartInUse), "of claim b"
    await node.give(allocated("b", "p/gpu-1"))
    assert node.containers("uid-of-b") == ["AT=x"]


async def test_what_a_device_owned_is_remembered_until_it_owns_it_again(node: NodeWorld) -> None:
    await moved(node)
    node.driver.answer = at({"gpu-0": "z", "gpu-1": "x"})
    await again(node, "gpu-0")
    node.driver.answer = at({"gpu-1": "x"})
    await again(node, "gpu-0")
    node.driver.answer = at({"gpu-0": "y", "gpu-1": "x", "gpu-2": "z"})
    assert not isinstance(await node.prepared.prepare(allocated("a", "p/gpu-0")), Exception), "as a kubelet asks"
    for device in ("gpu-1", "gpu-2"):
        assert isinstance(await node.prepared.prepare(allocated("b", f"p/{device}")), HostPartInUse)
    file = json.loads(node.records.path("uid-of-a").read_text())
    assert (file["record"]["had"], file["readableFrom"]) == (["x", "z"], 1), "versions that do not know it ignore it"


async def test_after_a_reboot_no_container_has_what_a_device_owned(node: NodeWorld, reboot: Callable[[], None]) -> None:
    await moved(node)
    reboot()
    node.driver.answer = at({"gpu-0": "y", "gpu-1": "x"})
    for name in ("a", "b"):
        device = {"a": "gpu-0", "b": "gpu-1"}[name]
        assert not isinstance(await node.prepared.prepare(allocated(name, f"p/{device}")), Exception)
    assert (node.containers("uid-of-a"), node.containers("uid-of-b")) == (["AT=y"], ["AT=x"])


async def test_an_administrator_takes_nothing_that_a_device_owned(node: NodeWorld) -> None:
    await moved(node)
    answer = await node.prepared.prepare(allocated("b", "p/gpu-1", adminAccess=True))
    assert not isinstance(answer, Exception)
    await again(node, "gpu-1")
    assert isinstance(await node.prepared.prepare(allocated("c", "p/gpu-1")), HostPartInUse)


TOGETHER = [
    ("another device", {}, {}, False),
    ("an administrator's access", {}, {"adminAccess": True}, True),
    ("beside an administrator", {"adminAccess": True}, {}, True),
]


@pytest.mark.parametrize(("first", "second", "fits"), [c[1:] for c in TOGETHER], ids=[c[0] for c in TOGETHER])
async def test_who_may_have_what_a_device_owns(
    node: NodeWorld, first: dict[str, Any], second: dict[str, Any], fits: bool
) -> None:
    node.driver.answer = at({"gpu-0": "x", "gpu-1": "x"})
    await node.prepared.prepare(allocated("a", "p/gpu-0", **first))
    answer = await node.prepared.prepare(allocated("b", "p/gpu-1", **second))
    assert isinstance(answer, HostPartInUse) is not fits
    assert node.containers("uid-of-b") == (["AT=x"] if fits else [])
    await node.prepared.unprepare(ref("a"))
    assert not isinstance(await node.prepared.prepare(allocated("b", "p/gpu-1", **second)), Exception)


async def test_shares_of_a_device_have_what_it_owns_together(node: NodeWorld) -> None:
    node.driver.answer = at({"gpu-0": "x"})
    for name in ("a", "b"):
        answer = await node.prepared.prepare(allocated(name, "p/gpu-0", shareID=name))
        assert not isinstance(answer, Exception), answer
