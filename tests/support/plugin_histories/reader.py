"""What a scheduler makes of the slices: devices only of a pool that is complete, and no mixture of two states.

A pool is complete when it has as many slices of its newest generation as these say. Then its devices are as the
driver wanted them at some time, whatever was written, lost or repeated in between. Slices may change one after the
other without a new generation: then each is as the driver wanted it at some time, and no device is there twice.
Slices that another client has changed are no state of the driver's until it has written again. Of two instances of a
rolling update the older one may have sent a create just before it learned of the other: the device is there twice
then, which no reader takes for a pool. And what a process has sent that is no more may arrive late, unknown to the
next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Shown = tuple[tuple[str, ...], ...]
"""The names of the devices of each slice, in order; those with a taint end with an exclamation mark."""


class Reader:
    """``wanted`` are the states that some process wanted."""

    def __init__(self, find: Callable[[str], None], *, overlaps: bool) -> None:
        self._find, self._overlaps = find, overlaps
        self.has_late_writes: Callable[[], bool] = lambda: False
        self.wanted: set[Shown] = set()
        self._touched: set[str] = set()  # names of slices as others have changed them

    def touched(self, name: str) -> None:
        """Another client has changed or made a slice."""
        self._touched.add(name)

    def wrote(self, name: str) -> None:
        """The plugin has."""
        self._touched.discard(name)

    def looks(self, slices: Sequence[dict[str, Any]]) -> None:
        """At what the server has now."""
        newest = max((item["spec"]["pool"]["generation"] for item in slices), default=0)
        there = [item for item in slices if item["spec"]["pool"]["generation"] == newest]
        if len(there) != (there[0]["spec"]["pool"]["resourceSliceCount"] if there else -1):
            return
        if self._touched & {item["metadata"]["name"] for item in there}:
            return
        shown = tuple(shown_in(item) for item in sorted(there, key=lambda item: str(item["metadata"]["name"])))
        names = [name for devices in shown for name in devices]
        if self.has_late_writes() or (self._overlaps and len(set(names)) < len(names)):
            return
        if not self._may_be(shown, names):
            self._find(f"readers take {shown} for the whole pool, which no process wanted")

    def _may_be(self, shown: Shown, names: Sequence[str]) -> bool:
        """Return whether some process wanted this state, or is on its way from one to another, slice by slice.

        On the way each device is as it was wanted at some time, and never there twice. One that was always wanted is
        missing only while it moves to another slice, since it got a taint, or lost one.
        """
        if shown in self.wanted:
            return True
        states = [{name for part in state for name in part} for state in self.wanted]
        known = set[str]().union(*states)
        always = set[str].intersection(*({name.rstrip("!") for name in state} for state in states)) if states else set()
        moves = {name for name in always if {name, f"{name}!"} <= known}
        bare = [name.rstrip("!") for name in names]
        return len(set(bare)) == len(bare) and known >= set(names) and set(bare) >= always - moves


def shown_in(item: dict[str, Any]) -> tuple[str, ...]:
    """The devices of a slice."""
    return tuple(device["name"] + "!" * bool(device.get("taints")) for device in item["spec"].get("devices") or ())
