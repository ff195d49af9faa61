"""A call for many claims beside many others: who holds what is found at a cost per claim, and stays right."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from dra_kubeletplugin import ClaimError, DeviceInUse, HostPartInUse, PreparedDevice
from dra_kubeletplugin.claims.calls import Turns
from dra_kubeletplugin.claims.conflicts import Conflicts
from dra_kubeletplugin.errors import CountersInUse
from dra_kubeletplugin.files import checkpoint, claim_record
from dra_kubeletplugin.files.checkpoint import ClaimRecords, boot_id
from dra_kubeletplugin.files.claim_record import ClaimRecord, HeldDevice, Remainder
from dra_kubeletplugin.slices import PoolCounters
from msgspec.structs import replace as with_fields
from node_world import NodeWorld, allocated, ref

CLAIMS = 40
LOOKS = 16
"""Times that a call may look at the file of a claim. Before there was a list of holders it was 120 and more."""


def counters(*devices: str, available: int = 1000) -> PoolCounters:
    """A pool whose devices draw one slice each."""
    return PoolCounters({"gpu": {"slices": str(available)}}, {name: {"gpu": {"slices": "1"}} for name in devices})


async def in_turn(turns: Turns, node: NodeWorld, *names: str) -> list[object]:
    """The results of a call for these claims, each of the device of the same name."""

    async def work() -> list[object]:
        return [await node.prepared.prepare(allocated(name, f"p/{name}")) for name in names]

    return await turns.run("a call", [f"uid-of-{name}" for name in names], work)


@pytest.mark.parametrize("has_locks", [True, False], ids=["with lock files", "without"])
async def test_a_call_looks_at_each_claim_a_few_times(tmp_path: Path, has_locks: bool) -> None:
    turns = Turns(serialize=True, folder=tmp_path if has_locks else None)
    node = NodeWorld(tmp_path / "node", deciding=turns.deciding)
    old, new = [f"old-{number}" for number in range(CLAIMS)], [f"new-{number}" for number in range(CLAIMS)]
    node.counters = {"p": counters(*old, *new)}
    node.driver.answer = lambda given: [replace(each, owns=(f"/dev/{each.device}",)) for each in given]
    assert all(isinstance(each, list) for each in await in_turn(turns, node, *old))
    node.start()
    node.driver.answer = lambda given: [replace(each, owns=(f"/dev/{each.device}",)) for each in given]
    with (
        mock.patch.object(checkpoint, "_version", side_effect=checkpoint._version) as looked_at,
        mock.patch.object(checkpoint, "decoded", side_effect=claim_record.decoded) as decoded,
        mock.patch.object(Remainder, "of", side_effect=Remainder.of) as listed,
    ):
        results = await in_turn(turns, node, *new)
    assert all(isinstance(each, list) for each in results)
    for counted in (looked_at, decoded, listed):
        assert CLAIMS <= counted.call_count <= LOOKS * CLAIMS, counted


async def test_a_call_counts_what_its_own_claims_hold(tmp_path: Path) -> None:
    turns = Turns(serialize=True, folder=tmp_path)
    node = NodeWorld(tmp_path / "node", deciding=turns.deciding)

    async def work() -> list[object]:
        first = await node.prepared.prepare(allocated("a", "p/gpu-0"))
        second = await node.prepared.prepare(allocated("b", "p/gpu-0"))
        assert await node.prepared.unprepare(ref("a")) is None
        return [first, second, await node.prepared.prepare(allocated("b", "p/gpu-0"))]

    first, second, third = await turns.run("a call", ["uid-of-a", "uid-of-b"], work)
    assert isinstance(second, DeviceInUse)
    assert isinstance(first, list)
    assert isinstance(third, list)


async def test_a_turn_counts_what_another_instance_did_before_it(tmp_path: Path) -> None:
    one, two = (Turns(serialize=True, folder=tmp_path) for _ in range(2))
    here, there = (NodeWorld(tmp_path / "node", deciding=turns.deciding) for turns in (one, two))
    assert isinstance((await in_turn(one, here, "gpu-0"))[0], list)
    assert isinstance((await in_turn(two, there, "gpu-1"))[0], list)
    error = await one.run("a call", ["uid-of-b"], lambda: here.prepared.prepare(allocated("b", "p/gpu-1")))
    assert isinstance(error, DeviceInUse)


async def test_a_record_that_is_damaged_in_place_is_noticed_by_the_next_turn(tmp_path: Path) -> None:
    turns = Turns(serialize=True, folder=tmp_path)
    node = NodeWorld(tmp_path / "node", deciding=turns.deciding)
    assert all(isinstance(each, list) for each in await in_turn(turns, node, "gpu-0", "gpu-1"))
    (node.root / "claims" / "uid-of-gpu-0.json").write_bytes(b"{")
    error = await turns.run("a call", ["uid-of-b"], lambda: node.prepared.prepare(allocated("b", "p/gpu-0")))
    assert "uid-of-gpu-0 (its record is damaged)" in str(error)


async def test_an_instance_that_takes_no_turns_is_noticed_within_a_call(tmp_path: Path) -> None:
    """As the one that a driver without ``rolling_update_uid`` replaces."""
    turns = Turns(serialize=True, folder=None)
    here = NodeWorld(tmp_path / "node", deciding=turns.deciding)
    there = NodeWorld(tmp_path / "node")

    async def work() -> list[object]:
        await here.give(allocated("a", "p/gpu-0"))
        await asyncio.sleep(0.05)  # the time of a folder counts in a few milliseconds
        await there.give(allocated("b", "p/gpu-1"))
        assert await here.prepared.unprepare(ref("a")) is None  # an own change does not hide that of the other one
        refused = await here.prepared.prepare(allocated("c", "p/gpu-1"))
        await asyncio.sleep(0.05)
        assert await there.prepared.unprepare(ref("b")) is None
        return [refused, await here.prepared.prepare(allocated("c", "p/gpu-1"))]

    refused, given = await turns.run("a call", ["uid-of-a", "uid-of-c"], work)
    assert isinstance(refused, DeviceInUse)
    assert isinstance(given, list)


# --- any order of changes, against a look at each record ---


def _record(dice: random.Random, uid: str) -> ClaimRecord:
    """Any record: of this boot or an earlier one, of the node's name now or before."""
    node = dice.choice(["p", "p", "former"])
    pools = [node, node, f"{node}/x", "elsewhere"]
    holds, devices = [], []
    for name in dice.sample(["d0", "d1", "d2", "d3"], dice.randrange(4)):
        pool, share = dice.choice(pools), dice.choice([None, None, "s0", "s1"])
        draws = dice.choice([{}, {"gpu": {"slices": "1"}}])
        holds.append(HeldDevice(pool=pool, device=name, share_id=share, admin_access=dice.random() < 0.2, draws=draws))
        owns = tuple(dice.sample(["/dev/0", "/dev/1", "/dev/2"], dice.randrange(3)))
        if dice.random() < 0.7:
            devices.append(PreparedDevice(pool=pool, device=name, share_id=share, owns=owns))
    return ClaimRecord(
        uid=uid,
        namespace="default",
        name=uid,
        boot_id=dice.choice([boot_id(), boot_id(), boot_id(), "earlier"]),
        fingerprint="1-",
        phase=dice.choice(["preparing", "prepared", "unpreparing"]),
        holds=tuple(holds),
        devices=tuple(devices),
        had=tuple(dice.sample(["/dev/0", "/dev/1", "/dev/2"], dice.randrange(2))),
        given=dice.random() < 0.5,
        node=node,
    )


def _others(records: ClaimRecords, wanted: ClaimRecord) -> Iterator[tuple[str, Remainder, bool]]:
    """Each other claim of the boot, what it has, and whether its record cannot be read."""
    entries = [(uid, Remainder.of(record), False) for uid, record in records.all().items()]
    entries += [(path.stem, rest, True) for path, rest in records.unreadable().items()]
    return (each for each in entries if each[0] != wanted.uid and each[1].boot_id == wanted.boot_id)


def _now(pool: str, node: str) -> str:
    return "p" + pool[len(node) :] if node and (pool == node or pool.startswith(f"{node}/")) else pool


def _held_by_others(records: ClaimRecords, wanted: ClaimRecord) -> bool:
    for mine in (held for held in wanted.holds if not held.admin_access):
        for _, rest, _ in _others(records, wanted):
            if rest.holds is None:
                return True
            for held in (held for held in rest.holds if not held.admin_access):
                is_same = (mine.pool, mine.device) == (_now(held.pool, rest.node), held.device)
                if is_same and (None in (mine.share_id, held.share_id) or mine.share_id == held.share_id):
                    return True
    return False


def _owned_by_others(records: ClaimRecords, wanted: ClaimRecord, beside: set[str]) -> bool:
    for mine in wanted.exclusive():
        for uid, rest, is_damaged in _others(records, wanted):
            assert isinstance(rest.owned, dict)
            for part in mine.owns:
                device = rest.owned.get(part, (mine.pool, mine.device))
                counts = not wanted.given or not (is_damaged or uid in beside)
                if (counts and device != (mine.pool, mine.device)) or (part in rest.had and not wanted.given):
                    return True
    return False


def _drawn_by_others(records: ClaimRecords, wanted: ClaimRecord, published: PoolCounters) -> bool:
    """Whether the devices of the pool ``p`` draw too much with those of others; each draws one slice."""

    def draws(held: HeldDevice, node: str) -> bool:
        is_known = bool(held.draws) or held.device in published.draws
        return _now(held.pool, node) == "p" and not held.admin_access and is_known

    if not any(held.pool == "p" and held.draws for held in wanted.holds):
        return False
    mine = {held.device for held in wanted.holds if held.pool == "p" and draws(held, "p")}
    beside = {held.device for held in wanted.holds if held.pool == "p" and not held.admin_access}
    theirs = {
        held.device
        for _, rest, _ in _others(records, wanted)
        for held in rest.holds or ()
        if draws(held, rest.node) and held.device not in beside
    }
    return bool(mine and theirs) and len(mine | theirs) > int(published.available["gpu"]["slices"])


def _refused(error: type[ClaimError], refuse: Callable[..., None], *arguments: object) -> bool:
    try:
        refuse(*arguments)
    except error:
        return True
    return False


def _change(dice: random.Random, records: ClaimRecords) -> None:
    """A write, one that fails, or the end of a claim; now and then somebody looks at all records in between."""
    uid = f"u{dice.randrange(6)}"
    if dice.random() < 0.3:
        records.remove(uid)
    elif dice.random() < 0.3:
        with mock.patch("os.replace", side_effect=OSError(28, "no space")), suppress(ClaimError):
            records.write(_record(dice, uid), durable=False)
    else:
        records.write(_record(dice, uid), durable=dice.random() < 0.1)
    if dice.random() < 0.2:
        records.all()


def _disturb(dice: random.Random, folder: Path) -> None:
    """What befalls the folder between two turns: another instance's writes, damage, a newer version's records."""
    other = ClaimRecords(folder)
    for _ in range(dice.randrange(3)):
        _change(dice, other)
    for uid in other.uids():
        path = folder / f"{uid}.json"
        kind = dice.random()
        if kind < 0.15:
            path.write_bytes(path.read_bytes()[:-9])
        elif kind < 0.2:
            path.write_bytes(b"nothing")
            path.with_suffix(".held").unlink(missing_ok=True)
        elif kind < 0.25:
            path.write_bytes(path.read_bytes().replace(b'"readableFrom":1', b'"readableFrom":9'))


@pytest.mark.parametrize("seed", range(12))
def test_after_any_changes_a_claim_is_refused_what_a_look_at_each_record_refuses(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    records = ClaimRecords(tmp_path / "claims")
    records.create()
    conflicts = Conflicts(records, "p")
    published = counters("d0", "d1", "d2", available=2)
    seen: set[tuple[int, bool]] = set()
    for turn in range(12):
        _disturb(dice, records.folder)
        for _ in range(6):
            conflicts.look(turn)
            for _ in range(6):
                wanted = with_fields(_record(dice, f"u{dice.randrange(8)}"), node="p")
                beside = {f"u{number}" for number in range(6) if dice.random() < 0.2}
                found = [
                    _refused(DeviceInUse, conflicts.refuse_held, wanted),
                    _refused(HostPartInUse, partial(conflicts.refuse_owned, beside=beside), wanted),
                    _refused(CountersInUse, conflicts.refuse_drawn, wanted, {"p": published}.get),
                ]
                assert found == [
                    _held_by_others(records, wanted),
                    _owned_by_others(records, wanted, beside),
                    _drawn_by_others(records, wanted, published),
                ], wanted
                seen.update(enumerate(found))
            _change(dice, records)
    assert len(seen) == 6, "each of the three refuses, and does not"
    kept = {name: of for name, of in vars(conflicts._holders).items() if isinstance(of, dict)}
    assert len(kept) == 8
    assert any(kept.values())
    conflicts._holders.replace({})
    assert not any(kept.values()), "what is gone is forgotten"
