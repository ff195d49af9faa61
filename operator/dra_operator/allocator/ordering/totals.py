"""What units of a node could still serve, class by class of the mix, and what of their room is in vain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from .mix import Mix

DEVICE_THOUSANDTHS: Final = 1000
"""Thousandths of a device."""
REQUEST_THOUSANDTHS: Final = 1000
"""Thousandths of a request."""


class Totals(NamedTuple):
    """Of units, or of a whole node. ``usable`` and ``lost``: by class, in thousandths of a device."""

    idle: int
    usable: tuple[int, ...]
    """What requests of the class alone could still take."""
    lost: tuple[int, ...]
    """What is idle on units that cannot serve the class."""
    takes: tuple[int, ...]
    """How many requests of a single device of the class could be served, in thousandths; of partitions, with what else
    makes a unit worth keeping (``partitions``)."""
    whole: int = 0
    """Units of which nothing is taken."""
    units: int = 0
    served: tuple[int, ...] = ()
    """How many requests of a single device of the class could be served, by class."""


def summed(units: Sequence[Totals], classes: int) -> Totals:
    """Of several units."""
    none = (0,) * classes
    if not units:
        return Totals(0, none, none, none, served=none)
    idle, usable, lost, takes, whole, number, served = zip(*units, strict=True)
    return Totals(sum(idle), _added(usable), _added(lost), _added(takes), sum(whole), sum(number), _added(served))


def _added(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*rows, strict=True)))


def wasted(mix: Mix, totals: Totals, *, lost: int, unused: int) -> int:
    """What of the idle devices is in vain for the mix: exact, in thousandths of a device times weights.

    For each class, ``lost`` counts what is idle on units that cannot serve it, ``unused`` what it could not use in all.
    """
    waste = 0
    for number, it in enumerate(mix.classes):
        waste += it.weight * (lost * totals.lost[number] + unused * (totals.idle - totals.usable[number]))
    return waste


def wasted_with(mix: Mix, totals: Totals, milli_cpu: int, *, lost: int, unused: int) -> int:
    """The same of a node that has so much cpu left, where a request also needs as many devices as it asks for.

    What the cpu does not suffice for cannot be used; all that is idle is lost to a class of which the node serves none.
    """
    waste, idle = 0, totals.idle
    for number, it in enumerate(mix.classes):
        served, count = totals.served[number], it.alternative.count
        requests = served // count
        if it.milli_cpu and requests * it.milli_cpu > milli_cpu:
            requests = milli_cpu // it.milli_cpu
        if requests:
            usable = totals.usable[number] * requests * count // served
            waste += it.weight * (lost * totals.lost[number] + unused * (idle - usable))
        else:
            waste += it.weight * (lost + unused) * idle
    return waste
