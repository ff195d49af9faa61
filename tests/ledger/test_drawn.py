"""A claim keeps its devices, and its draws from counters, although its driver publishes otherwise later."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from allocator_lab import Cel, Json, claim, device_class, make_node, request
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.resource import AllocationResult, DeviceClass, ResourceClaim, ResourceSlice
from dra_ledger.inventory import Inventory
from dra_ledger.usage import AllocatedDevices
from dra_operator.allocator import Allocated, Allocator, Features, Semantics
from rounds import each_of, fewer

POOL = {"name": "p", "generation": 1, "resourceSliceCount": 2}
MEMORY = 8
OLD = {"devices": {"results": [{"request": "r", "driver": "drv", "pool": "p", "device": "d1"}]}}


def published(parts: Mapping[str, int], set_: str = "s", generation: int = 1, **more: Any) -> list[ResourceSlice]:
    """The pool of one device of 8 units: its counter set, and parts that draw on it."""
    pool = {**POOL, "generation": generation}
    spec: Json = {"driver": "drv", "pool": pool, "nodeName": "n1"}
    counters = [{"name": set_, "counters": {"mem": {"value": str(MEMORY)}}}]
    devices = [
        {"name": name, **more, "consumesCounters": [{"counterSet": set_, "counters": {"mem": {"value": str(size)}}}]}
        for name, size in parts.items()
    ]
    made = [
        {"metadata": {"name": "counters"}, "spec": {**spec, "sharedCounters": counters}},
        {"metadata": {"name": "devices"}, "spec": {**spec, "devices": devices}},
    ]
    return [convert(ResourceSlice, slice_) for slice_ in made]


class Stage:
    """What the operator knows of one pool, and its allocator."""

    def __init__(self, semantics: Semantics | None = None) -> None:
        features = Features()
        self.inventory = Inventory(features, language=Cel(features), semantics=semantics)
        self.inventory.put_class(convert(DeviceClass, device_class("any")))
        self.devices = AllocatedDevices(self.inventory)
        self.allocator = Allocator(self.inventory, new_share_id=str)
        self._slices: set[str] = set()

    def publish(self, *slices: ResourceSlice) -> None:
        for slice_ in slices:
            self.inventory.put_slice(slice_)
        for name in self._slices - {slice_.metadata.name for slice_ in slices}:
            self.inventory.remove_slice(name)
        self._slices = {slice_.metadata.name for slice_ in slices}

    def ask(self, uid: str, count: int = 1) -> AllocationResult | None:
        """What a claim for devices gets now."""
        wanted = convert(ResourceClaim, claim(request("r", count=count), name=uid))
        outcome = self.allocator.allocate(make_node("n1"), [wanted], self.devices.usage)
        return outcome.results[0] if isinstance(outcome, Allocated) else None

    def take(self, uid: str, count: int = 1) -> list[str]:
        """Give a claim what it gets; return the names of the devices."""
        found = self.ask(uid, count)
        if found is not None:
            self.devices.assume(convert(ResourceClaim, {"metadata": {"name": uid, "uid": uid}}), found, Pod())
            self.devices.stored(uid, found)
            self.devices.confirm(uid)
        return [result.device for result in found.results] if found is not None else []


@pytest.mark.parametrize(
    ("now", "fits"),
    [
        ({"d1": 1, "d2": 3}, False),
        ({"d9": 1, "d2": 3}, False),
        ({"d2": 3}, False),
        ({"d1": 6, "d2": 2}, True),
        ({"d2": 2}, True),
    ],
    ids=["smaller", "renamed", "not at all", "as before", "not at all, and room is left"],
)
@pytest.mark.parametrize("generation", [1, 2])
def test_what_a_claim_drew_stays_drawn_when_the_device_is_published_otherwise(
    now: dict[str, int], fits: bool, generation: int
) -> None:
    stage = Stage()
    stage.publish(*published({"d1": 6}))
    assert stage.take("old") == ["d1"]
    stage.publish(*published(now, generation=generation))
    if "d9" in now:
        assert stage.take("renamed") == ["d9"]
    assert bool(stage.take("new")) == fits
    for uid in ("old", "renamed", "new"):
        stage.devices.stored(uid, None)
    fresh = Stage()
    fresh.publish(*published(now, generation=generation))
    assert stage.ask("later", len(now)) == fresh.ask("later", len(now))


def test_the_reference_gives_it_out_again() -> None:
    stage = Stage(Semantics.reference())
    stage.publish(*published({"d1": 6}))
    assert stage.take("old") == ["d1"]
    stage.publish(*published({"d1": 1, "d2": 3}))
    assert stage.take("new") == ["d2"]


def test_between_two_generations_nothing_is_forgotten() -> None:
    stage = Stage()
    stage.publish(*published({"d1": 6}))
    assert stage.take("old") == ["d1"]
    stage.publish()
    stage.publish(*published({"d2": 3}, generation=2)[:1])
    stage.publish(*published({"d2": 3}, generation=2))
    assert not stage.take("new")


def test_after_a_restart_nothing_is_left_of_counters_beside_an_unknown_device() -> None:
    stage = Stage()
    stage.publish(*published({"d2": 1}))
    held = convert(AllocationResult, OLD)
    stage.devices.load([("old", held)])
    assert not stage.take("new")
    view = stage.inventory.view(make_node("n1"))
    assert view.pools[0].counters.unknown(["d1", "d2"]) == ["d1"]
    stage.devices.stored("old", None)
    assert stage.take("new") == ["d2"]


def test_a_set_with_another_name_may_be_the_same_set() -> None:
    stage = Stage()
    stage.publish(*published({"d1": 6}))
    assert stage.take("old") == ["d1"]
    stage.publish(*published({"d2": 1}, set_="t"))
    assert not stage.take("new")
    stage.devices.stored("old", None)
    assert stage.take("new") == ["d2"]


def test_a_device_that_is_taken_anew_draws_what_it_is_published_with_then() -> None:
    stage = Stage()
    stage.publish(*published({"d1": 6}))
    assert stage.take("old") == ["d1"]
    stage.publish(*published({"d1": 1, "d2": 7}))
    assert not stage.take("other")
    stage.devices.stored("old", None)
    assert stage.take("new") == ["d1"]
    assert stage.take("other") == ["d2"]


def test_a_claim_whose_status_changes_keeps_what_it_drew() -> None:
    stage = Stage()
    stage.publish(*published({"d1": 6}))
    assert stage.take("old") == ["d1"]
    stage.publish(*published({"d1": 1, "d2": 3}))
    stage.devices.stored("old", convert(AllocationResult, {**OLD, "allocationTimestamp": "2026-11-01T00:00:00Z"}))
    assert not stage.take("new")


@each_of(range(fewer(300)))
def test_in_no_history_do_claims_draw_more_than_there_is(seed: int) -> None:
    """A driver cuts its device anew, while claims come and go, and the operator starts again now and then."""
    random = Random(seed)
    stage, drawn, parts, generation, set_ = Stage(), dict[str, int](), dict[str, int](), 1, "s"
    names: dict[str, list[str]] = {}
    unseen: set[str] = set()
    """Names of devices that were in use at a restart: what they drew, nobody can know if they are published again."""
    for step in range(40):
        chance = random.random()
        if chance < 0.35:
            parts = {f"d{random.randint(1, 6)}": random.randint(1, 4) for _ in range(random.randint(0, 5))}
            parts = {name: size for name, size in parts.items() if name not in unseen}
            generation += random.random() < 0.4
            set_ = random.choice("sst") if random.random() < 0.2 else set_
            slices = published(parts, set_, generation)
            random.shuffle(slices)
            for cut in {random.randint(0, 2), 2}:
                stage.publish(*slices[:cut])
        elif chance < 0.75:
            uid = f"c{step}"
            names[uid] = stage.take(uid, random.randint(1, 2))
            drawn[uid] = sum(parts[name] for name in names[uid])
        elif chance < 0.95 and drawn:
            uid = random.choice(sorted(drawn))
            del drawn[uid], names[uid]
            stage.devices.stored(uid, None)
        elif not {name for held in names.values() for name in held} & parts.keys():
            holders = list(stage.devices.holders())
            stage = Stage()
            unseen |= {name for held in names.values() for name in held}
            stage.publish(*published(parts, set_, generation))
            stage.devices.load(holders)
        assert sum(drawn.values()) <= MEMORY, f"after step {step}"
    for uid in drawn:
        stage.devices.stored(uid, None)
    stage.publish(*published(parts, set_, generation))
    fresh = Stage()
    fresh.publish(*published(parts, set_, generation))
    assert stage.ask("last") == fresh.ask("last")


def sharing(**shared: bool) -> ResourceSlice:
    """Devices that their driver shares, or gives to one claim only."""
    devices = [{"name": name, "allowMultipleAllocations": shared[name]} for name in shared]
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec: Json = {"driver": "drv", "pool": pool, "nodeName": "n1", "devices": devices}
    return convert(ResourceSlice, {"metadata": {"name": "devices"}, "spec": spec})


@pytest.mark.parametrize("known", [True, False], ids=["seen before", "after a restart"])
def test_a_device_that_is_no_longer_shared_waits_for_its_last_share(known: bool) -> None:
    stage = Stage()
    stage.publish(sharing(d1=True))
    first, second = stage.ask("one"), stage.ask("two")
    assert first is not None
    assert second is not None
    stage.devices.load([("one", first), ("two", second)])
    if not known:
        stage = Stage()
        stage.devices.load([("one", first), ("two", second)])
    stage.publish(sharing(d1=False, d2=False))
    assert stage.take("new") == ["d2"]
    stage.devices.stored("one", None)
    assert not stage.take("late")
    stage.devices.stored("two", None)
    assert stage.take("late") == ["d1"]


@each_of(range(fewer(200)))
def test_in_no_history_is_a_device_both_shared_and_given_alone(seed: int) -> None:
    random = Random(seed)
    stage, holders = Stage(), dict[str, AllocationResult]()
    for step in range(40):
        chance = random.random()
        if chance < 0.3:
            stage.publish(sharing(**{f"d{number}": random.random() < 0.5 for number in range(random.randint(0, 3))}))
        elif chance < 0.8:
            found = stage.ask(f"c{step}")
            if found is not None:
                holders[f"c{step}"] = found
                stage.devices.stored(f"c{step}", found)
        elif holders:
            uid = random.choice(sorted(holders))
            del holders[uid]
            stage.devices.stored(uid, None)
        results = [result for found in holders.values() for result in found.results]
        alone = [result.device for result in results if result.share_id is None]
        assert len(alone) == len(set(alone)), f"step {step}"
        assert not {*alone} & {result.device for result in results if result.share_id is not None}, f"step {step}"
