"""Whose a device is: random slices and rules that come, change and go, against a count from scratch."""

from __future__ import annotations

from random import Random

import pytest
from dra_api.core import Taint
from dra_api.meta import ObjectMeta
from dra_api.resource import (
    SCHEDULER_KEY,
    Device,
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    DeviceTaintSelector,
    DeviceToleration,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_ledger.taints import TaintedSlices
from dra_operator.allocator import DeviceId, Semantics, Territory, enters, schedulers_of

OURS = DeviceTaint(key=SCHEDULER_KEY, value="ours", effect="NoSchedule")
TAINTS = (
    OURS,
    DeviceTaint(key=SCHEDULER_KEY, value="theirs", effect="NoSchedule"),
    DeviceTaint(key=SCHEDULER_KEY, value="ours", effect="NoExecute"),
    DeviceTaint(key=SCHEDULER_KEY, value="ours", effect="None"),
    DeviceTaint(key="example.com/broken", effect="NoSchedule"),
)
NODE_TAINTS = (
    (Taint(key=SCHEDULER_KEY, value="ours", effect="NoSchedule"),),
    (Taint(key=SCHEDULER_KEY, value="theirs", effect="NoSchedule"),),
    (Taint(key="example.com/gpu", effect="NoSchedule"), Taint(key=SCHEDULER_KEY, value="ours", effect="NoExecute")),
)


def slice_of(random: Random, name: str) -> ResourceSlice:
    pool = random.choice("pq")
    devices = tuple(
        Device(
            name=f"{random.choice((name, 'twice'))}-{number}",
            taints=tuple(random.sample(TAINTS, random.choice((0, 0, 1, 2)))) or None,
        )
        for number in range(random.randint(0, 3))
    )
    spec = ResourceSliceSpec(
        driver=random.choice("de"),
        pool=ResourcePool(name=pool),
        node_name=random.choice((None, "n0", "n1")),
        devices=devices,
    )
    return ResourceSlice(metadata=ObjectMeta(name=name), spec=spec)


def rule_of(random: Random, name: str) -> DeviceTaintRule:
    selector = DeviceTaintSelector(
        driver=random.choice(("d", "e", None)),
        pool=random.choice(("p", "q", None, None)),
        device=random.choice((None, None, "s0-0")),
    )
    spec = DeviceTaintRuleSpec(device_selector=random.choice((selector, selector, None)), taint=random.choice(TAINTS))
    return DeviceTaintRule(metadata=ObjectMeta(name=name), spec=spec)


def taints(device: Device, slice_: ResourceSlice, rules: dict[str, DeviceTaintRule]) -> list[DeviceTaint]:
    """Those of a device and of all rules about it."""
    found = list(device.taints or ())
    for _, rule in sorted(rules.items()):
        selector = rule.spec.device_selector
        where = (slice_.spec.driver, slice_.spec.pool.name, device.name)
        if selector is not None and all(
            one in (None, its)
            for one, its in zip((selector.driver, selector.pool, selector.device), where, strict=True)
        ):
            found.append(rule.spec.taint)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_whose_devices_are_does_not_depend_on_how_it_came_about(seed: int) -> None:
    random, territory = Random(seed), Territory()
    territory.scheduler = "ours"
    tracker = TaintedSlices(Semantics(), territory)
    slices, rules, nodes = (
        dict[str, ResourceSlice](),
        dict[str, DeviceTaintRule](),
        dict[str | None, tuple[Taint, ...]](),
    )
    for _ in range(60):
        name = f"{random.choice('ssrrn')}{random.randint(0, 3)}"
        gone = random.random() < 0.3
        if name.startswith("s"):
            slices.pop(name, None)
            if gone:
                tracker.remove_slice(name)
            else:
                slices[name] = slice_of(random, name)
                tracker.put_slice(slices[name])
        elif name.startswith("n"):
            nodes[name] = random.choice(NODE_TAINTS) if not gone else ()
            tracker.put_node(name, nodes[name], {})
        elif gone:
            rules.pop(name, None)
            tracker.remove_rule(name)
        else:
            rules[name] = rule_of(random, name)
            tracker.put_rule(rules[name])
        published, open_ = set(), set()
        own: dict[DeviceId, bool] = {}
        for slice_ in slices.values():
            merged = tracker.get(slice_.metadata.name)
            assert merged is not None
            is_changed = False
            for device, seen in zip(slice_.spec.devices or (), merged.spec.devices or (), strict=True):
                every = taints(device, slice_, rules)
                by_node = nodes.get(slice_.spec.node_name, ())
                schedulers = {*schedulers_of(every), *schedulers_of(by_node)}
                id_ = DeviceId(slice_.spec.driver, slice_.spec.pool.name, device.name)
                own[id_] = own.get(id_, True) and schedulers == {"ours"}  # of two devices of one name both count
                assert list(seen.taints or ()) == [one for one in every if one != OURS]
                is_changed |= seen is not device
                published.add(id_.driver)
                open_ |= set() if schedulers else {id_.driver}
            assert is_changed == (merged is not slice_)
        assert all(territory.is_own(id_) is is_own for id_, is_own in own.items())
        for driver in "de":
            assert territory.has_open(driver) == (driver in open_ or driver not in published)


def test_a_device_gained_is_one_that_was_known_before() -> None:
    territory = Territory()
    territory.scheduler = "ours"
    tracker = TaintedSlices(Semantics(), territory)
    spec = ResourceSliceSpec(driver="d", pool=ResourcePool(name="p"), devices=(Device(name="a"),))
    plain = ResourceSlice(metadata=ObjectMeta(name="s"), spec=spec)
    rule = DeviceTaintRule(
        metadata=ObjectMeta(name="r"),
        spec=DeviceTaintRuleSpec(device_selector=DeviceTaintSelector(driver="d"), taint=OURS),
    )
    tracker.put_slice(plain)
    assert territory.gains["d"] == 0
    tracker.put_rule(rule)
    assert territory.gains["d"] == 1
    tracker.put_slice(plain)  # nothing of it is news
    tracker.put_slice(ResourceSlice(metadata=ObjectMeta(name="t"), spec=spec))
    assert territory.gains["d"] == 1
    tracker.remove_rule("r")
    tracker.put_rule(rule)
    assert territory.gains["d"] == 3  # both slices


@pytest.mark.parametrize(
    ("toleration", "opens"),
    [
        (DeviceToleration(operator="Exists"), True),
        (DeviceToleration(key=SCHEDULER_KEY, operator="Exists"), True),
        (DeviceToleration(key=SCHEDULER_KEY, operator="Exists", effect="NoExecute"), False),
        (DeviceToleration(key=SCHEDULER_KEY, operator="Equal", value="ours"), True),
        (DeviceToleration(key=SCHEDULER_KEY, operator="Equal", value="theirs"), False),
    ],
)
def test_who_may_enter(toleration: DeviceToleration, opens: bool) -> None:
    assert enters([toleration], "ours") is opens
