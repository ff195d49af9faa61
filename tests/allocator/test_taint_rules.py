"""DeviceTaintRules merged into slices (allocator.md section 13, scheduling.md 9)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from allocator_lab import claim, device, lab, pool, request
from corpus import cases
from dra_api.codec import convert, to_dict
from dra_api.resource import DeviceTaintRule, ResourceSlice
from dra_ledger.taints import SliceChange, TaintedSlices
from dra_operator.allocator import Semantics

Json = dict[str, Any]


def feed(tracker: TaintedSlices, event: Json) -> list[SliceChange]:
    about = event.get("new") or event["old"]
    name = about["metadata"]["name"]
    if about["kind"] == "ResourceSlice":
        if event["op"] == "delete":
            return tracker.remove_slice(name)
        return tracker.put_slice(convert(ResourceSlice, about))
    if about["kind"] == "DeviceTaintRule":
        if event["op"] == "delete":
            return tracker.remove_rule(name)
        return tracker.put_rule(convert(DeviceTaintRule, about))
    return []


def interleavings(groups: list[list[Json]], limit: int = 60) -> Iterator[list[Json]]:
    """All orders that keep the order within each group, as far as the limit goes."""
    labels = [number for number, group in enumerate(groups) for _ in group]
    for order in itertools.islice(dict.fromkeys(itertools.permutations(labels)), limit):
        queues = [iter(group) for group in groups]
        yield [next(queues[number]) for number in order]


def same(one: Json, other: Json) -> bool:
    return bool(to_dict(convert(ResourceSlice, one)) == to_dict(convert(ResourceSlice, other)))


def test_merged_slices_do_not_depend_on_the_order_of_events() -> None:
    for case in cases("tracker/cases.json"):
        for order in interleavings(case["eventGroups"]):
            tracker = TaintedSlices(Semantics.reference())
            for event in order:
                feed(tracker, event)
            for expected in case["expectedPatchedSlices"]:
                merged = tracker.get(expected["metadata"]["name"])
                assert merged is not None, case["name"]
                assert same(to_dict(merged), expected), case["name"]


def test_listeners_hear_what_changed() -> None:
    for case in cases("tracker/cases.json"):
        tracker = TaintedSlices(Semantics.reference())
        changes = [change for group in case["eventGroups"] for event in group for change in feed(tracker, event)]
        assert len(changes) == len(case["expectedHandlerEvents"]), case["name"]
        for change, expected in zip(changes, case["expectedHandlerEvents"], strict=True):
            kind = "add" if change.old is None else "delete" if change.new is None else "update"
            assert kind == expected["event"], case["name"]
            if change.new is not None:
                assert same(to_dict(change.new), expected["new"]), case["name"]


def rule(selector: Json | None, name: str = "rule") -> DeviceTaintRule:
    spec: Json = {"taint": {"key": "example.com/broken", "effect": "NoSchedule"}}
    if selector is not None:
        spec["deviceSelector"] = selector
    return convert(DeviceTaintRule, {"metadata": {"name": name}, "spec": spec})


def test_a_rule_taints_the_devices_that_it_selects_until_it_goes() -> None:
    made = lab(pool(device("a"), device("b")), [claim(request("r"))])
    inventory = made.allocator.inventory
    inventory.put_rule(rule({"driver": "drv", "pool": "p", "device": "a"}))
    assert made.devices() == [["r=drv/p/b"]]
    inventory.put_rule(rule({"driver": "drv"}))
    assert made.devices() == "none"
    inventory.put_rule(rule({"driver": "other"}))
    assert made.devices() == [["r=drv/p/a"]]
    inventory.put_rule(rule({}))
    assert made.devices() == "none"
    inventory.remove_rule("rule")
    assert made.devices() == [["r=drv/p/a"]]


@pytest.mark.rule("K37-TAINT-07")
def test_a_rule_without_selector_taints_nothing() -> None:
    """The reference's slice tracker taints everything (PRJ-010)."""
    documented = lab(pool(device("a")), [claim(request("r"))])
    documented.allocator.inventory.put_rule(rule(None))
    assert documented.devices() == [["r=drv/p/a"]]
    reference = lab(pool(device("a")), [claim(request("r"))], semantics=Semantics.reference())
    reference.allocator.inventory.put_rule(rule(None))
    assert reference.devices() == "none"


def test_a_rule_that_changes_nothing_leaves_slices_alone() -> None:
    tracker = TaintedSlices(Semantics())
    (slice_,) = pool(device("a"))
    original = convert(ResourceSlice, slice_)
    tracker.put_slice(original)
    assert tracker.put_rule(rule({"device": "other"})) == []
    assert tracker.get(original.metadata.name) is original


@pytest.mark.parametrize("named", [None, "gpu-0"], ids=["rules for all devices", "one rule for a device"])
def test_devices_with_the_same_taints_of_rules_hold_them_once(named: str | None) -> None:
    """A copy for each device of 5,000 rules took hundreds of megabytes."""
    tracker = TaintedSlices(Semantics())
    for number in range(5):
        tracker.put_rule(rule({"driver": "d"}, f"rule-{number}"))
    if named is not None:
        tracker.put_rule(rule({"driver": "d", "device": named}, "named"))
    spec: Json = {"driver": "d", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "nodeName": "n"}
    spec["devices"] = [{"name": f"gpu-{number}"} for number in range(4)]
    tracker.put_slice(convert(ResourceSlice, {"metadata": {"name": "s"}, "spec": spec}))
    merged = tracker.get("s")
    assert merged is not None
    first, *others = merged.spec.devices or ()
    assert len(first.taints or ()) == (5 if named is None else 6)
    assert len({id(it.taints) for it in others}) == 1
    assert len(others[0].taints or ()) == 5
