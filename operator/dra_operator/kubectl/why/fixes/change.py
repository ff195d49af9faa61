"""A change of the cluster as a value: in words, as what it does to objects, and as the objects that it leaves.

A patch is a function of the object as it is, so that changes of one object add up in any order, and a change can be
left out again to see whether the others do without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from dra_api.meta import Object


class Effort(IntEnum):
    """What some changes ask of people: first that the devices are what the author meant, last that he wants less."""

    MENDED_SELECTOR = 2
    OTHER_VALUE = 4
    WAIT_FOR_REPAIR = 5
    FEWER_TERMS = 6
    NO_SELECTOR = 8
    TOLERATED_BREAKAGE = 9


class Patch(NamedTuple):
    """``make`` returns the object as the change leaves it, or None if it is gone."""

    kind: type[Object]
    key: str
    make: Callable[[Any], Object | None]


class Edit(NamedTuple):
    """``after`` is the object as all changes leave it; None if it is gone."""

    kind: type[Object]
    key: str
    after: Object | None


@dataclass(frozen=True, slots=True)
class Change:
    """``text`` is an imperative. ``effort`` ranks changes: what a pod's author can do alone comes first.

    Of changes with the same ``group`` the first that helps is enough, such as the largest count of devices.
    """

    text: str
    patches: tuple[Patch, ...]
    effort: int
    group: str = ""


@dataclass(frozen=True, slots=True)
class Fix:
    """With all of the changes the pod gets the ``node``: it was tried, and that node was chosen."""

    node: str
    changes: tuple[Change, ...]
    edits: Sequence[Edit] = ()
    """What becomes of each object in the end."""

    @property
    def text(self) -> str:
        """One sentence without its full stop."""
        return ", and ".join(change.text for change in self.changes)

    @property
    def effort(self) -> int:
        """Of all changes together."""
        return sum(change.effort for change in self.changes)

    @property
    def rank(self) -> tuple[int, int, str]:
        """The most promising fix is the least."""
        return self.effort, len(self.changes), self.node


def applied(objects: Iterable[Object], edits: Sequence[Edit]) -> list[Object]:
    """The objects of a cluster after the edits."""
    left = {(edit.kind, edit.key): edit.after for edit in edits}
    found = (left.get((type(obj), obj.key), obj) for obj in objects)
    return [obj for obj in found if obj is not None]
