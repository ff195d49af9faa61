"""What came free and is free still: what a pod that lacked devices may find when it is tried again."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.codec import convert, to_dict
from dra_api.core import Pod
from dra_api.resource import AllocationResult, ResourceClaim
from dra_ledger import usage as freed_devices
from dra_ledger.cel_language import CelSelectors
from dra_ledger.usage import AllocatedDevices, DeviceTaken, FreedDevices
from dra_operator.allocator import Features, Inventory


def allocation(*devices: str, **more: Any) -> AllocationResult:
    results = [{"request": "r", "driver": "drv", "pool": "p", "device": device, **more} for device in devices]
    return convert(AllocationResult, {"devices": {"results": results}})


def test_a_device_counts_from_when_it_came_free_until_it_is_taken() -> None:
    devices = FreedDevices()
    assert not devices.any_since(0)
    devices.freed(allocation("a", "b"))
    assert devices.any_since(0)
    assert not devices.any_since(devices.number)
    devices.taken(allocation("a"))
    assert devices.any_since(0)
    devices.taken(allocation("b"))
    assert not devices.any_since(0)


def test_what_came_free_before_an_attempt_does_not_count_although_later_ones_are_taken() -> None:
    devices = FreedDevices()
    devices.freed(allocation("a"))
    tried = devices.number
    devices.freed(allocation("b"))
    devices.taken(allocation("b"))
    assert not devices.any_since(tried)
    devices.freed(allocation("a"))  # taken by another kind of writer meanwhile, or twice
    assert devices.any_since(tried)


def test_who_takes_a_share_leaves_the_device_free() -> None:
    devices = FreedDevices()
    share = allocation("a", shareID="5f2f3c0c-0c5b-4a8e-9d7a-1f1f6d2a1b11")
    devices.freed(share)
    devices.taken(share)
    assert devices.any_since(0)


def test_who_only_looked_at_a_device_neither_frees_it_nor_takes_it() -> None:
    devices = FreedDevices()
    devices.freed(allocation("a", adminAccess=True))
    assert not devices.any_since(0)
    devices.freed(allocation("a"))
    devices.taken(allocation("a", adminAccess=True))
    assert devices.any_since(0)


def test_an_answer_that_only_adds_a_time_has_nothing_worked_out_anew() -> None:
    features = Features()
    devices = AllocatedDevices(Inventory(features, language=CelSelectors(features)))
    devices.stored("claim", allocation("a"))
    revision, number = devices.usage.revision, devices.freed_devices.number
    with_time = convert(AllocationResult, {**to_dict(allocation("a")), "allocationTimestamp": "2026-11-29T12:00:00Z"})
    devices.stored("claim", with_time)
    assert (devices.usage.revision, devices.freed_devices.number) == (revision, number)
    assert dict(devices.holders()) == {"claim": with_time}
    devices.stored("claim", allocation("b"))
    assert [str(device) for device in devices.usage.devices()] == ["drv/p/b"]
    devices.stored("claim", None)
    assert not list(devices.usage.devices())


def test_of_very_many_the_first_are_forgotten_and_pods_tried_before_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_devices, "KEPT_FREED_DEVICES", 2)
    devices = FreedDevices()
    devices.freed(allocation("a", "b", "c"))
    devices.taken(allocation("b", "c"))
    assert devices.any_since(0)  # a is free, which is not known any more
    assert not devices.any_since(1)


def test_claims_that_are_loaded_after_others_are_known_count_once_and_come_free_one_by_one() -> None:
    features = Features()
    devices = AllocatedDevices(Inventory(features, language=CelSelectors(features)))
    devices.stored("known", allocation("a"))
    devices.stored("second", allocation("c"))
    devices.load([("known", allocation("b")), ("new", allocation("c")), ("other", allocation("c", "d"))])
    assert {device.device for device in devices.usage.devices()} == {"b", "c", "d"}
    assert dict(devices.holders())["known"] == allocation("b")
    for uid, left in (("second", "bcd"), ("new", "bcd"), ("known", "cd"), ("other", "")):
        devices.stored(uid, None)
        assert {device.device for device in devices.usage.devices()} == set(left)


def test_admin_access_is_assumed_beside_a_claim_that_has_the_device() -> None:
    features = Features()
    devices = AllocatedDevices(Inventory(features, language=CelSelectors(features)))
    devices.stored("claim", allocation("a"))
    wanted = convert(ResourceClaim, {"metadata": {"name": "look", "uid": "look"}})
    with pytest.raises(DeviceTaken):
        devices.assume(wanted, allocation("a"), Pod())
    devices.assume(wanted, allocation("a", adminAccess=True), Pod())
    assert devices.assumed("look") is not None
