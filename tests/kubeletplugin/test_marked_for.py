"""Devices that a driver gives to one scheduler, by a taint that it publishes."""

from __future__ import annotations

import pytest
from dra_api.resource import DeviceTaint
from dra_kubeletplugin import (
    PluginSettings,
    Pool,
    SettingsError,
    Slice,
    check_resources,
    counter_set,
    device,
    marked_for,
)
from dra_kubeletplugin.slices.model import RICH_DEVICES_PER_SLICE

MARK = DeviceTaint(key="dra.kopf.dev/scheduler", value="dra-scheduler", effect="NoSchedule")
BROKEN = DeviceTaint(key="example.com/broken", effect="NoExecute")


def test_every_device_has_the_taint_beside_its_own() -> None:
    old = DeviceTaint(key=MARK.key, value="another", effect="NoSchedule")
    plain = {"p": Pool.of([device("a"), device("b", taints=(BROKEN,)), device("c", taints=(old,))], generation=7)}
    (slice_,) = marked_for("dra-scheduler", plain)["p"].slices
    assert [one.taints for one in slice_.devices] == [(MARK,), (BROKEN, MARK), (MARK,)]
    assert marked_for("dra-scheduler", plain)["p"].generation == 7
    assert marked_for("", plain) is plain


@pytest.mark.parametrize("number", [0, 1, 64, 65, 128])
def test_slices_stay_small_enough_for_taints(number: int) -> None:
    """A slice may have 128 devices, but only 64 as soon as one has a taint."""
    slice_ = Slice(devices=tuple(device(f"d-{one}") for one in range(number)), skip_node_operations=("*",))
    counters = Slice(shared_counters=(counter_set("c", {"x": "1"}),))
    marked = marked_for("dra-scheduler", {"p": Pool(slices=(counters, slice_))})
    assert [one.name for part in marked["p"].slices for one in part.devices] == [f"d-{one}" for one in range(number)]
    assert all(len(part.devices) <= RICH_DEVICES_PER_SLICE for part in marked["p"].slices)
    assert marked["p"].slices[0] == counters
    assert all(part.skip_node_operations == ("*",) for part in marked["p"].slices[1:])
    check_resources(marked, driver="gpu.example.com", node_name="n")


@pytest.mark.parametrize("name", ["not a name", "-x", "x" * 64])
def test_a_name_that_cannot_stand_in_a_taint_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="cannot stand in a taint"):
        PluginSettings(driver_name="gpu.example.com", scheduler=name)
