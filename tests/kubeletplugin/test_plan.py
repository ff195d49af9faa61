"""The planner: which writes turn the slices that exist into the pool that is wanted (plugin-helper.md 4.4)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from dra_api.resource import CounterSet, Device, DeviceTaint
from dra_kubeletplugin import Owner, Pool, PoolInvalid, Slice, counter_set, device
from dra_kubeletplugin.slices.plan import Plan, Publication, Stored, Write, body, plan_pool
from dra_kubeletplugin.slices.pool_sync import checked
from dra_kubeletplugin.slices.writer import stored
from hypothesis import given
from hypothesis import strategies as st

PUBLICATION = Publication("gpu.example.com", "pool", Owner.node("worker-1", "uid"), "worker-1")
_suffix = itertools.count(1)


def pool(*names: str, **others: Any) -> Pool:
    """A pool with one slice per argument, each holding the devices that its text names: ``"a b", "c"``."""
    return Pool(slices=tuple(Slice(devices=tuple(map(device, text.split()))) for text in names), **others)


def publish(wanted: Pool, existing: Iterable[Stored] = ()) -> list[Stored]:
    """The slices after everything that the planner wants is done."""
    *_, last = steps(wanted, list(existing))
    return last


def steps(wanted: Pool, existing: list[Stored]) -> Iterator[list[Stored]]:
    """The slices before the first and after each write."""
    plan = plan_pool(PUBLICATION, wanted, existing)
    now = {item.name: item for item in existing}
    yield list(now.values())
    for item in plan.delete:
        del now[item.name]
        yield list(now.values())
    for write in (*plan.update, *plan.create):
        item = carry_out(wanted, write)
        now[item.name] = item
        yield list(now.values())


def carry_out(wanted: Pool, write: Write) -> Stored:
    """The slice that an API server holds after a write."""
    sent = body(PUBLICATION, wanted, write)
    meta = dict(sent["metadata"])
    meta.setdefault("name", f"{meta.pop('generateName', '')}{next(_suffix):05}")
    return stored({**sent, "metadata": meta})


def named(item: Stored, name: str, generation: int | None = None) -> Stored:
    """The slice under another name, or of another generation."""
    spec = dict(item.raw["spec"])
    if generation is not None:
        spec["pool"] = {**spec["pool"], "generation": generation}
    return stored({**item.raw, "metadata": {**item.raw["metadata"], "name": name}, "spec": spec})


def shape(plan: Plan) -> tuple[int, int, int, int]:
    """Generation, and how many slices are deleted, updated, created."""
    return plan.generation, len(plan.delete), len(plan.update), len(plan.create)


CASES = [
    ("the first publication has generation 1", (), pool("a"), (1, 0, 0, 1)),
    ("several slices at once", (), pool("a", "b", "c"), (1, 0, 0, 3)),
    ("nothing changed", publish(pool("a", "b")), pool("a", "b"), (1, 0, 0, 0)),
    ("one changed slice keeps the generation", publish(pool("a")), pool("b"), (1, 0, 1, 0)),
    ("one of two changed keeps the generation", publish(pool("a", "b")), pool("a", "c"), (1, 0, 1, 0)),
    ("two changed raise it", publish(pool("a", "b")), pool("c", "d"), (2, 0, 2, 0)),
    ("reordered devices are a change", publish(pool("a b")), pool("b a"), (1, 0, 1, 0)),
    ("reordered slices raise the generation", publish(pool("a", "b")), pool("b", "a"), (2, 0, 2, 0)),
    ("one more slice raises it and updates the rest", publish(pool("a")), pool("a", "b"), (2, 0, 1, 1)),
    ("one slice less of two", publish(pool("a", "b")), pool("a"), (1, 1, 1, 0)),
    ("one slice less of three", publish(pool("a", "b", "c")), pool("a", "b"), (2, 1, 2, 0)),
    ("a pool that offers nothing now keeps its slice", publish(pool("a")), pool(""), (1, 0, 1, 0)),
    ("no slice wanted at all", publish(pool("a", "b")), pool(), (1, 2, 0, 0)),
    ("pool no longer wanted", publish(pool("a", "b")), None, (1, 2, 0, 0)),
    ("the driver's generation counts when it is larger", publish(pool("a")), pool("a", generation=7), (7, 0, 1, 0)),
    ("and not when it is smaller", publish(pool("a", generation=7)), pool("b", generation=3), (7, 0, 1, 0)),
    ("a first generation given by the driver", (), pool("a", generation=7), (7, 0, 0, 1)),
    (
        "calls to skip are a change",
        publish(pool("a")),
        Pool.of([device("a")], skip_node_operations=("*",)),
        (1, 0, 1, 0),
    ),
    ("all nodes are a change", publish(pool("a")), pool("a", all_nodes=True), (1, 0, 1, 0)),
]


@pytest.mark.parametrize(("existing", "wanted", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_plan(existing: list[Stored], wanted: Pool | None, expected: tuple[int, int, int, int]) -> None:
    assert shape(plan_pool(PUBLICATION, wanted, existing)) == expected


def test_what_is_created_after_a_create_without_an_answer_has_a_newer_generation() -> None:
    assert shape(plan_pool(PUBLICATION, pool("a"), (), unanswered=4)) == (5, 0, 0, 1)
    assert shape(plan_pool(PUBLICATION, pool("a", "b"), publish(pool("a")), unanswered=4)) == (5, 0, 1, 1)
    assert shape(plan_pool(PUBLICATION, pool("b"), publish(pool("a")), unanswered=4)) == (1, 0, 1, 0)
    assert shape(plan_pool(PUBLICATION, pool("a", generation=4), (), unanswered=4)) == (5, 0, 0, 1)


OBSOLETE = [
    ("an older generation", "00000-x", 1),
    ("a name without index", "gpu-x", 2),
    ("an index of other length", "0000-x", 2),
    ("an index out of range", "00001-x", 2),
    ("an index that is no number", "0000g-x", 2),
    ("upper case is no index", "0000A-x", 2),
    ("an index that is taken", "00000-z", 2),
]


@pytest.mark.parametrize(("name", "generation"), [c[1:] for c in OBSOLETE], ids=[c[0] for c in OBSOLETE])
def test_obsolete_slices_are_deleted(name: str, generation: int) -> None:
    (current,) = publish(pool("a", generation=2))
    current = named(current, "00000-a")
    plan = plan_pool(PUBLICATION, pool("a"), [current, named(current, name, generation)])
    assert shape(plan) == (2, 1, 0, 0)
    assert plan.delete[0].name == name


def test_a_pool_begins_anew_where_another_client_has_used_up_the_generations() -> None:
    ours = publish(pool("a", "b"))
    last = [named(publish(pool("z"))[0], "00000-other", 2**63 - 1)]
    assert shape(plan_pool(PUBLICATION, pool("a", "b"), [*ours, *last])) == (1, 3, 0, 2)
    assert shape(plan_pool(PUBLICATION, pool("z", generation=2**63 - 1), last)) == (2**63 - 1, 0, 0, 0)


def test_names_carry_index_driver_and_owner() -> None:
    sent = [body(PUBLICATION, pool("a", "b"), write) for write in plan_pool(PUBLICATION, pool("a", "b"), ()).create]
    assert [item["metadata"]["generateName"] for item in sent] == [
        "00000-gpu.example.com-worker-1-",
        "00001-gpu.example.com-worker-1-",
    ]
    assert sent[0]["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "worker-1", "uid": "uid", "controller": True}
    ]


def test_the_index_has_more_digits_when_it_must() -> None:
    assert PUBLICATION.generate_name(17, 100).startswith("00011-")
    assert PUBLICATION.generate_name(0, 16**5).startswith("00000-")
    assert PUBLICATION.generate_name(0, 16**5 + 1).startswith("000000-")


def test_without_owner_there_is_neither_owner_nor_node() -> None:
    publication = Publication("net.example.com", "pool", None)
    (write,) = plan_pool(publication, pool("a", all_nodes=True), ()).create
    sent = body(publication, pool("a", all_nodes=True), write)
    assert sent["metadata"] == {"generateName": "00000-net.example.com-"}
    assert sent["spec"] == {
        "driver": "net.example.com",
        "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1},
        "allNodes": True,
        "devices": [{"name": "a"}],
    }


def test_an_update_keeps_what_others_put_on_the_object() -> None:
    (existing,) = publish(pool("a"))
    existing = stored({**existing.raw, "metadata": {**existing.raw["metadata"], "labels": {"mine": "yes"}}})
    (write,) = plan_pool(PUBLICATION, pool("b"), [existing]).update
    assert body(PUBLICATION, pool("b"), write)["metadata"]["labels"] == {"mine": "yes"}


def test_equal_quantities_and_empty_collections_are_no_change() -> None:
    existing = publish(Pool.of([device("a", capacity={"memory": "1024Mi"})]))
    same = Pool.of(
        [Device(name="a", capacity=device("", capacity={"memory": "1Gi"}).capacity, taints=(), attributes={})]
    )
    assert plan_pool(PUBLICATION, checked("pool", same), existing).is_empty


def test_a_malformed_slice_is_replaced() -> None:
    (good,) = publish(pool("a"))
    bad = stored({**good.raw, "spec": {**good.raw["spec"], "devices": [{"name": 7}]}})
    assert shape(plan_pool(PUBLICATION, pool("a"), [bad])) == (0, 0, 1, 0)


# --- taints ---


def tainted(time: str | None, value: str = "") -> Pool:
    """A pool of one device with one taint."""
    taint = DeviceTaint(key="k", value=value, effect="NoSchedule", time_added=time)
    return checked("pool", Pool.of([device("a", taints=(taint,))]))


TIMES = [
    ("not given: any time is right", tainted(None), True),
    ("the same", tainted("2026-01-01T10:00:00Z"), True),
    ("the same in another zone", tainted("2026-01-01T12:00:00+02:00"), True),
    ("rounded up to another second", tainted("2026-01-01T10:00:00.6Z"), False),
    ("rounded down", tainted("2026-01-01T10:00:00.4Z"), True),
    ("a second off", tainted("2026-01-01T10:00:01Z"), False),
    ("another value", tainted(None, "v"), False),
]


@pytest.mark.parametrize(("wanted", "same"), [case[1:] for case in TIMES], ids=[case[0] for case in TIMES])
def test_taint_times(wanted: Pool, same: bool) -> None:
    existing = publish(tainted("2026-01-01T10:00:00Z"))
    assert plan_pool(PUBLICATION, wanted, existing).is_empty is same


def test_an_update_keeps_the_time_of_an_unchanged_taint_and_of_no_other() -> None:
    (existing,) = publish(tainted("2026-01-01T10:00:00Z"))
    kept, fresh = DeviceTaint(key="k", effect="NoSchedule"), DeviceTaint(key="new", effect="NoExecute")
    wanted = Pool.of([device("a", taints=(fresh, kept))])
    (write,) = plan_pool(PUBLICATION, wanted, [existing]).update
    (planned,) = write.spec.devices or ()
    assert [taint.time_added for taint in planned.taints or ()] == [None, "2026-01-01T10:00:00Z"]


# --- validation before any write (4.3) ---

SETS = (counter_set("mem", {"slices": 8}),)
INVALID = [
    ("a device twice", [device("a"), device("a")], (), 'found duplicate device "a" in pool "p"'),
    ("a counter set twice", [], SETS * 2, 'found duplicate counter set "mem" in pool "p"'),
    ("an unknown counter set", [device("a", consumes={"x": {"slices": 1}})], SETS,
     'counter set "x" referenced by device "a" not found'),
    ("an unknown counter", [device("a", consumes={"mem": {"x": 1}})], SETS,
     'counter "x" referenced by device "a" not found in counter set "mem"'),
    ("a time that is none", [device("a", taints=(DeviceTaint(key="k", time_added="noon"),))], (), "invalid time"),
    ("a time without zone", [device("a", taints=(DeviceTaint(key="k", time_added="2026-01-01T00:00:00"),))], (),
     "no time zone"),
]  # fmt: skip


@pytest.mark.parametrize(("devices", "sets", "message"), [case[1:] for case in INVALID], ids=[c[0] for c in INVALID])
def test_a_pool_that_contradicts_itself(devices: list[Device], sets: tuple[CounterSet, ...], message: str) -> None:
    with pytest.raises(PoolInvalid, match=message):
        checked("p", Pool.of(devices, shared_counters=sets))


def test_counters_and_devices_may_be_in_different_slices() -> None:
    wanted = Pool.of([device("a", consumes={"mem": {"slices": 1}})], shared_counters=SETS)
    assert [len(part.devices) for part in checked("p", wanted).slices] == [0, 1]


SPLITS = [
    ("nothing is one empty slice", [], [0]),
    ("128 plain devices", [device(f"d{i}") for i in range(129)], [128, 1]),
    ("64 with taints", [device(f"d{i}", taints=(DeviceTaint(key="k"),)) for i in range(65)], [64, 1]),
    ("64 with lists", [device(f"d{i}", attributes={"a": ["x", "y"]}) for i in range(65)], [64, 1]),
]


@pytest.mark.parametrize(("devices", "sizes"), [case[1:] for case in SPLITS], ids=[case[0] for case in SPLITS])
def test_devices_are_split_at_the_limits_of_the_api(devices: list[Device], sizes: list[int]) -> None:
    assert [len(part.devices) for part in Pool.of(devices).slices] == sizes


# --- laws ---

names = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=3)
wishes = st.lists(names, max_size=4).map(lambda parts: unique(parts))
generations = st.integers(0, 4)
LARGEST = 2**63 - 1
"""The largest generation that an API server takes."""
pools = st.builds(lambda parts, generation: pool(*parts, generation=generation), wishes, generations)
leftovers = st.lists(
    st.tuples(st.sampled_from(["00000", "00001", "00002", "0000", "gpu"]), generations | st.just(LARGEST), wishes),
    max_size=4,
)


def unique(parts: list[list[str]]) -> list[str]:
    """Slices whose devices are distinct within the pool."""
    seen: set[str] = set()
    distinct = []
    for part in parts:
        distinct.append(" ".join(name for name in dict.fromkeys(part) if name not in seen))
        seen.update(part)
    return distinct


def reader(slices: list[Stored]) -> list[tuple[str, ...]] | None:
    """What an allocator sees: the devices by slice of the newest generation, None while it is incomplete."""
    newest = max((item.slice.spec.pool.generation for item in slices), default=0)
    current = [item for item in slices if item.slice.spec.pool.generation == newest]
    if any(item.slice.spec.pool.resource_slice_count != len(current) for item in current):
        return None
    return sorted(tuple(entry.name for entry in item.slice.spec.devices or ()) for item in current)


@given(pools, leftovers)
def test_whatever_exists_one_round_of_writes_leads_to_what_is_wanted(
    wanted: Pool, existing: list[tuple[str, int, list[str]]]
) -> None:
    clutter = [
        named(item, f"{prefix}-{number}", generation)
        for number, (prefix, generation, texts) in enumerate(existing)
        for item in publish(pool(*texts))[:1]
    ]
    after = publish(wanted, clutter)
    assert plan_pool(PUBLICATION, wanted, after).is_empty
    assert [item.slice.spec.devices or () for item in sorted(after, key=lambda item: item.name)] == [
        part.devices for part in wanted.slices
    ]
    assert len({item.slice.spec.pool for item in after}) <= 1
    assert all(item.slice.spec.pool.generation <= LARGEST for item in after)
    assert all(item.slice.spec.pool.resource_slice_count == len(after) for item in after)


@given(pools, pools)
def test_at_no_moment_a_reader_takes_a_mixture_for_the_pool(before: Pool, wanted: Pool) -> None:
    *moments, last = [reader(slices) for slices in steps(wanted, publish(before))]
    start = reader(publish(before))
    complete = [moment for moment in moments if moment is not None]
    assert all(moment in (start, last, []) for moment in complete)
    assert last == sorted(tuple(entry.name for entry in part.devices) for part in wanted.slices)


@given(pools, pools)
def test_the_generation_never_falls(before: Pool, wanted: Pool) -> None:
    existing = publish(before)
    newest = max((item.slice.spec.pool.generation for item in existing), default=0)
    assert plan_pool(PUBLICATION, wanted, existing).generation >= newest
    assert plan_pool(PUBLICATION, replace(wanted, generation=9), existing).generation == 9
