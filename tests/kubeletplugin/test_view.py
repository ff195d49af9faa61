"""What a publisher believes to be in the API server, whatever comes late, twice or never (RS-03)."""

from __future__ import annotations

from typing import Any

import pytest
from dra_kubeletplugin.slices.writer import SliceView, stored


def slice_of(version: int, device: str, uid: str = "u") -> dict[str, Any]:
    """A slice named ``s`` in one of its versions."""
    spec = {
        "driver": "d",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": device}],
    }
    return {"metadata": {"name": "s", "uid": uid, "resourceVersion": str(version)}, "spec": spec}


def shown(view: SliceView, now: float = 0.0) -> list[str]:
    """The devices that the view shows."""
    return [device.name for item in view.pool("p", now) for device in item.slice.spec.devices or ()]


@pytest.fixture
def view() -> SliceView:
    return SliceView(overlay_seconds=60.0)


def test_an_event_that_comes_late_does_not_hide_what_was_read(view: SliceView) -> None:
    view.see("MODIFIED", slice_of(7, "new"))
    view.see("ADDED", slice_of(5, "old"))
    assert shown(view) == ["new"]
    view.see("MODIFIED", slice_of(7, "new"))
    view.see("MODIFIED", slice_of(9, "newest"))
    assert shown(view) == ["newest"]


def test_a_slice_made_again_under_its_name_is_another_one(view: SliceView) -> None:
    view.see("ADDED", slice_of(7, "first", uid="u1"))
    view.see("ADDED", slice_of(5, "second", uid="u2"))
    assert shown(view) == ["second"]


def test_what_we_deleted_is_gone_at_once_and_its_end_hides_no_successor(view: SliceView) -> None:
    view.see("ADDED", slice_of(5, "old"))
    view.forget(stored(slice_of(5, "another", uid="u9")))
    assert shown(view) == ["old"]
    view.forget(stored(slice_of(5, "old")))
    assert shown(view) == []
    view.wrote(slice_of(9, "made again", uid="u2"), now=0.0)
    view.see("DELETED", slice_of(8, "old"))
    assert shown(view) == ["made again"]
    view.read(slice_of(10, "read", uid="u2"))
    view.see("DELETED", slice_of(8, "old"))
    assert shown(view, 100.0) == ["read"]


@pytest.mark.rule("RS-03")
def test_an_answer_that_comes_after_the_deletion_of_its_slice_brings_nothing_back(view: SliceView) -> None:
    """It stood there until the next list half an hour later, and no slice was published meanwhile."""
    view.see("ADDED", slice_of(5, "old"))
    view.see("DELETED", slice_of(8, "old"))
    view.read(slice_of(7, "read"))
    assert shown(view) == []
    view.wrote(slice_of(7, "written"), now=0.0)
    assert shown(view) == []
    view.wrote(slice_of(9, "made again", uid="u2"), now=0.0)
    assert shown(view) == ["made again"]
    view.replace([], "12")
    view.read(slice_of(11, "read"))
    assert shown(view) == []
    view.read(slice_of(13, "newer than the watch"))
    assert shown(view) == ["newer than the watch"]


@pytest.mark.rule("RS-03")
def test_a_write_counts_until_its_time_is_over(view: SliceView) -> None:
    view.see("ADDED", slice_of(5, "old"))
    view.wrote(slice_of(7, "new"), now=100.0)
    assert shown(view, 159.9) == ["new"]
    assert shown(view, 160.0) == ["old"]


@pytest.mark.rule("RS-03")
@pytest.mark.parametrize(("version", "devices"), [("6", ["new"]), ("7", []), ("9", [])])
def test_a_list_that_is_as_new_as_a_write_ends_it(view: SliceView, version: str, devices: list[str]) -> None:
    view.wrote(slice_of(7, "new"), now=0.0)
    view.replace([], version)
    assert shown(view) == devices


def test_a_list_that_has_the_slice_leaves_the_newer_one(view: SliceView) -> None:
    view.wrote(slice_of(7, "new"), now=0.0)
    view.replace([stored(slice_of(5, "old"))], "6")
    assert shown(view) == ["new"]
