"""Which slice has which devices, and how few slices a change writes (plugin-helper.md 4.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest
from dra_api.resource import Device, DeviceTaint
from dra_kubeletplugin import Owner, Pool, counter_set, device
from dra_kubeletplugin.slices import model, plan
from dra_kubeletplugin.slices.model import is_rich
from dra_kubeletplugin.slices.plan import Plan, Publication, Stored, body, plan_pool, stay_in_place
from dra_kubeletplugin.slices.pool_sync import checked
from dra_kubeletplugin.slices.writer import stored
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

PUBLICATION = Publication("gpu.example.com", "pool", Owner.node("worker-1", "uid"), "worker-1")
TAINT = (DeviceTaint(key="k", effect="NoSchedule", time_added="2026-01-01T10:00:00Z"),)
Devices = Sequence[Device]


def tainted(one: Device) -> Device:
    return structs.replace(one, taints=TAINT)


def planned(wanted: Pool, existing: Sequence[Stored]) -> tuple[Pool, Plan]:
    pool = stay_in_place(checked("pool", wanted), existing)
    assert pool is not None
    return pool, plan_pool(PUBLICATION, pool, existing)


def steps(wanted: Pool, existing: Sequence[Stored]) -> Iterator[list[Stored]]:
    """The slices after each write."""
    pool, plan = planned(wanted, existing)
    now = {item.name: item for item in existing}
    for item in plan.delete:
        del now[item.name]
        yield list(now.values())
    for write in (*plan.update, *plan.create):
        sent = body(PUBLICATION, pool, write)
        meta = dict(sent["metadata"])
        meta.setdefault("name", f"{meta.pop('generateName', '')}{plan.generation}")
        now[meta["name"]] = stored({**sent, "metadata": meta})
        yield list(now.values())


def publish(wanted: Pool, existing: Sequence[Stored] = ()) -> list[Stored]:
    return published(wanted, existing)[0]


def published(wanted: Pool, existing: Sequence[Stored]) -> tuple[list[Stored], int]:
    """The slices in the end, and the number of writes."""
    after = [list(existing), *steps(wanted, existing)]
    return after[-1], len(after) - 1


def writes(wanted: Pool, existing: Sequence[Stored]) -> int:
    _, plan = planned(wanted, existing)
    return len(plan.delete) + len(plan.update) + len(plan.create)


FULL = [device(f"gpu-{number}", attributes={"index": number}) for number in range(6 * 128 + 16)]
"""Six full slices and one that is not. What is written depends on full slices and the last one, not on their number."""


def changed(index: int, change: Callable[[Device], Device], devices: Devices = FULL) -> Devices:
    return [*devices[:index], change(devices[index]), *devices[index + 1 :]]


OTHER = structs.replace(FULL[0], attributes=device("", attributes={"index": -1}).attributes)
FEW: list[tuple[str, Devices, int]] = [
    ("everything again", FULL, 0),
    ("the first device is gone", FULL[1:], 1),
    ("one in the middle", [*FULL[:400], *FULL[401:]], 1),
    ("the last one", FULL[:-1], 1),
    ("a new one in front", [device("new"), *FULL], 1),
    ("a new one for the first", [device("new"), *FULL[1:]], 1),
    ("a hundred new ones", [*FULL, *(device(f"new-{number}") for number in range(100))], 1),
    ("one attribute", changed(600, lambda one: structs.replace(one, attributes=OTHER.attributes)), 1),
    ("one attribute in each of two slices", [OTHER, *FULL[1:700], structs.replace(OTHER, name="x"), *FULL[701:]], 2),
    ("a taint in the last slice", changed(len(FULL) - 1, tainted), 1),
    ("a taint in a full slice, which may have 64 devices with one", changed(0, tainted), 2),
    ("three taints in a full slice", [*map(tainted, FULL[:3]), *FULL[3:]], 2),
    ("taints in three full slices", [tainted(one) if one in FULL[:300:128] else one for one in FULL], 4),
]


@pytest.fixture(scope="module")
def many() -> list[Stored]:
    return publish(Pool.of(FULL))


@pytest.mark.parametrize(("devices", "expected"), [case[1:] for case in FEW], ids=[case[0] for case in FEW])
def test_little_is_written_of_many_devices(many: list[Stored], devices: Devices, expected: int) -> None:
    assert len(many) == 7
    after, count = published(Pool.of(devices), many)
    assert count == expected
    assert {item.slice.spec.pool.generation for item in after} == {1}, "readers never have to wait"
    assert writes(Pool.of(devices), after) == 0
    assert writes(Pool.of(FULL), after) <= max(expected, 1), "and back"


def test_with_room_for_taints_each_taint_is_one_write() -> None:
    before = publish(Pool.of(FULL, devices_per_slice=64))
    assert len(before) == 13
    for index in (0, 400, len(FULL) - 1):
        assert writes(Pool.of(changed(index, tainted), devices_per_slice=64), before) == 1
    with pytest.raises(TypeError, match=r"'gpu-0' is no Device: make each with device\(\.\.\.\)"):
        Pool.of(["gpu-0"])  # type: ignore[list-item]  # as one writes it at first
    with pytest.raises(ValueError, match="devices_per_slice is 129: use 1 to 128"):
        Pool.of(FULL, devices_per_slice=129)


@pytest.mark.parametrize("count", [65, 100, 128])
def test_a_node_does_not_flip_between_one_slice_and_two(count: int) -> None:
    """Each taint that came and went wrote all slices with a new generation."""
    devices = FULL[:count]
    now = publish(Pool.of(devices))
    counts = []
    for index in (0, 70 % count, 64, 1):
        for state in (changed(index, tainted)[:count], devices):
            counts.append(writes(Pool.of(state), now))
            now = publish(Pool.of(state), now)
    assert counts[0] == 2
    assert max(counts[1:]) <= 2
    assert {item.slice.spec.pool.generation for item in now} == {2}


def test_half_as_many_slices_are_a_new_layout() -> None:
    before = publish(Pool.of(FULL[:640]))
    assert len(publish(Pool.of(FULL[:350]), before)) == 5
    assert len(publish(Pool.of(FULL[:250]), before)) == 2
    assert len(publish(Pool.of([]), before)) == 1


def test_slices_that_the_driver_chose_stay_as_they_are() -> None:
    own = Pool(slices=(model.Slice(devices=tuple(FULL[:2])), model.Slice(devices=tuple(FULL[2:4]))))
    other = Pool(slices=(model.Slice(devices=tuple(FULL[2:4])), model.Slice(devices=tuple(FULL[:2]))))
    after = publish(other, publish(own))
    assert [[one.name for one in item.slice.spec.devices or ()] for item in after] == [
        ["gpu-2", "gpu-3"],
        ["gpu-0", "gpu-1"],
    ]


def test_a_change_of_devices_with_counters_is_seen_as_a_whole() -> None:
    """Between old and new counters a reader could give too much away."""

    def pool(each: int, total: int) -> Pool:
        devices = [device(f"d{number}", consumes={"s": {"c": each}}) for number in range(70)]
        return Pool.of(devices, shared_counters=[counter_set("s", {"c": total})])

    before = publish(pool(1, 70))
    assert {item.slice.spec.pool.generation for item in publish(pool(2, 140), before)} == {2}
    one = Pool.of(
        [device("d0", consumes={"s": {"c": 1}}, taints=TAINT), *(device(f"d{n}", consumes={"s": {"c": 1}})
         for n in range(1, 70))],
        shared_counters=[counter_set("s", {"c": 70})],
    )  # fmt: skip
    assert writes(one, before) == 1


@pytest.mark.parametrize("count", [2, 5, 79])
def test_another_number_of_slices_by_another_client_is_undone(count: int) -> None:
    (item,) = publish(Pool.of(FULL[:3]))
    spec = item.raw["spec"] | {"pool": item.raw["spec"]["pool"] | {"resourceSliceCount": count}}
    (after,) = publish(Pool.of(FULL[:3]), [stored(item.raw | {"spec": spec})])
    assert after.slice.spec.pool.resource_slice_count == 1


# --- laws ---

VARIANTS: dict[str, dict[str, Any]] = {"plain": {}, "other": {"attributes": {"a": 1}}, "rich": {"taints": TAINT}}
states = st.dictionaries(st.sampled_from([f"d{number}" for number in range(14)]), st.sampled_from(list(VARIANTS)))


@contextmanager
def small_limits() -> Iterator[None]:
    """Slices of 4 devices, or 2 with a taint."""
    with ExitStack() as stack:
        for module in (plan, model):
            stack.enter_context(mock.patch.object(module, "RICH_DEVICES_PER_SLICE", 2))
        yield


def pool_of(state: dict[str, str]) -> Pool:
    return Pool.of([device(name, **VARIANTS[kind]) for name, kind in state.items()], devices_per_slice=4)


def seen(slices: list[Stored]) -> dict[str, Device] | None:
    """The devices that an allocator sees; None while the pool is incomplete."""
    newest = max(item.slice.spec.pool.generation for item in slices)
    specs = [item.slice.spec for item in slices if item.slice.spec.pool.generation == newest]
    if any(spec.pool.resource_slice_count != len(specs) for spec in specs):
        return None
    devices = [one for spec in specs for one in spec.devices or ()]
    assert len({one.name for one in devices}) == len(devices), "a device twice"
    return {one.name: one for one in devices}


@given(st.lists(states, min_size=2, max_size=6))
def test_a_reader_sees_each_device_as_it_was_or_is_wanted(history: list[dict[str, str]]) -> None:
    with small_limits():
        now: list[Stored] = []
        before: dict[str, Device] = {}
        for state in history:
            wanted = {one.name: one for part in checked("p", pool_of(state)).slices for one in part.devices}
            *moments, last = [now, *steps(pool_of(state), now)]
            places = [_places(now), _places(last)]
            for slices in moments[1:]:
                if (view := seen(slices)) is None:
                    continue
                for name, one in view.items():
                    assert one in (before.get(name), wanted.get(name))
                stay = {name for name in before.keys() & wanted.keys() if places[0][name] == places[1][name]}
                assert stay <= view.keys()
            assert seen(last) == wanted
            for item in last:
                devices = item.slice.spec.devices or ()
                assert len(devices) <= (2 if any(map(is_rich, devices)) else 4)
            assert writes(pool_of(state), last) == 0
            if len(last) == len(now):
                kept = {item.name: item.slice.spec.devices for item in now}
                different = [item for item in last if item.slice.spec.devices != kept.get(item.name)]
                assert writes(pool_of(state), now) in (len(different), len(last)), "what is the same is not written"
            now, before = last, wanted


def _places(slices: list[Stored]) -> dict[str, str]:
    return {one.name: item.name for item in slices for one in item.slice.spec.devices or ()}


@given(states, st.sets(st.integers(0, 6)))
def test_slices_that_another_client_removes_come_back(state: dict[str, str], gone: set[int]) -> None:
    with small_limits():
        before = publish(pool_of(state))
        left = [item for index, item in enumerate(before) if index not in gone]
        after = publish(pool_of(state), left)
        assert len(after) <= len(before)
        assert seen(after) == seen(before)
