"""Which taints of devices count, and on which devices a change of a slice changes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from dra_api.resource import ResourceSlice
from dra_operator.allocator import DeviceId
from dra_operator.eviction import DeviceTaints, TaintOfDevice
from hypothesis import given
from hypothesis import strategies as st
from objects import DRIVER, POOL, slice_of, taint

Pair = tuple[ResourceSlice | None, ResourceSlice | None]
CLEAN, BROKEN = slice_of({"dev-0": [], "dev-1": []}), slice_of({"dev-0": [taint()], "dev-1": []})
NEWER = slice_of({"dev-0": []}, generation=2, name="newer")


@pytest.mark.parametrize(
    ("before", "pair", "devices"),
    [
        ([], (None, CLEAN), []),
        ([], (None, BROKEN), ["dev-0"]),
        ([], (None, slice_of({"dev-0": [taint(effect="NoSchedule")]})), []),
        ([CLEAN], (CLEAN, BROKEN), ["dev-0"]),
        ([BROKEN], (BROKEN, CLEAN), ["dev-0"]),
        ([BROKEN], (BROKEN, None), ["dev-0"]),
        ([BROKEN], (BROKEN, BROKEN), []),
        ([BROKEN], (BROKEN, slice_of({"dev-0": [taint(value="ecc")], "dev-1": []})), ["dev-0"]),
        ([BROKEN], (BROKEN, slice_of({"dev-0": [taint()], "dev-1": [taint()]})), ["dev-1"]),
        ([BROKEN], (None, NEWER), ["dev-0"]),
        ([BROKEN, NEWER], (NEWER, None), ["dev-0"]),
        ([NEWER], (None, BROKEN), []),
        ([BROKEN], (BROKEN, slice_of({"dev-0": [taint()]}, pool="moved")), ["dev-0", "dev-0"]),
    ],
    ids=[
        "no taint",
        "a new slice with a taint",
        "a taint that does not evict",
        "tainted",
        "the taint is gone",
        "the slice is gone",
        "the same again",
        "another value",
        "one more device",
        "a newer generation without it",
        "the newer generation is gone",
        "an older generation",
        "the device moves to another pool",
    ],
)
def test_devices_whose_taints_changed(before: Sequence[ResourceSlice], pair: Pair, devices: list[str]) -> None:
    taints = DeviceTaints()
    for slice_ in before:
        taints.replace(None, slice_)
    assert sorted(device.device for device in taints.replace(*pair)) == devices


def test_the_place_of_a_taint_is_that_in_the_slice() -> None:
    taints = DeviceTaints()
    slice_ = slice_of({"dev-0": [taint("a", "None"), taint("b")]})
    taints.replace(None, slice_)
    device = (slice_.spec.devices or ())[0]
    assert taints.of(DeviceId(DRIVER, POOL, "dev-0")) == (TaintOfDevice(1, (device.taints or ())[1]),)


DEVICES = ("dev-0", "dev-1")
KINDS: dict[str, list[Any]] = {"none": [], "some": [taint()], "other": [taint("hot"), taint(effect="NoSchedule")]}
SLICES = st.builds(
    lambda name, generation, kinds: slice_of(
        {device: KINDS[kind] for device, kind in zip(DEVICES, kinds, strict=True)}, generation=generation, name=name
    ),
    st.sampled_from(["s1", "s2", "s3"]),
    st.integers(1, 3),
    st.tuples(*[st.sampled_from(sorted(KINDS))] * 2),
)


@given(st.lists(st.one_of(SLICES, st.sampled_from(["s1", "s2", "s3"])), max_size=12))
def test_what_is_kept_is_what_a_fresh_start_finds_and_every_difference_is_reported(
    history: list[ResourceSlice | str],
) -> None:
    taints, present = DeviceTaints(), dict[str, ResourceSlice]()
    ids = [DeviceId(DRIVER, POOL, device) for device in DEVICES]
    for step in history:
        name = step if isinstance(step, str) else step.metadata.name
        old, new = present.pop(name, None), None if isinstance(step, str) else step
        before = [taints.of(device) for device in ids]
        reported = taints.replace(old, new)
        if new is not None:
            present[name] = new
        assert reported == {device for device, had in zip(ids, before, strict=True) if taints.of(device) != had}
        fresh = DeviceTaints()
        for slice_ in present.values():
            fresh.replace(None, slice_)
        assert [taints.of(device) for device in ids] == [fresh.of(device) for device in ids]
        assert bool(taints) == bool(fresh)
