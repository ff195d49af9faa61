"""The mix: what pods ask for, as classes of requests with weights, and what nodes could still serve of it.

The mix is learned from the pods that are seen, so that a score can tell what a placement destroys. Each pod adds its
requests; after every ``HALF_LIFE_PODS`` pods all weights are halved, so that what is requested no more fades. The mix
that scores look at is taken from that now and then, and changes only if it differs by more than a fifth, or lacks a
class that is new: each change has all nodes scored again. ``Totals`` are what units of a node could still serve, class
by class of the mix; ``wasted`` is their room that no class can use.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from dra_ledger.predicates import Compiled

from dra_operator.allocator.claim_program import Alternative, ClaimProgram

HALF_LIFE_PODS: Final = 1024
"""Pods after which a request counts half."""
WEIGHT_SUM: Final = 1024
"""The sum of the weights that scores look at, and what a pod adds."""
SCORED_CLASSES: Final = 16
"""Classes that scores look at: the commonest."""
COUNTED_CLASSES: Final = 256
"""Classes that are counted: where there are more, the one that is asked for least is forgotten for the newest."""
COUNTED_MILLI_CPU: Final = 256_000
"""The most cpu that a pod counts with: it limits by how much one pod moves the mean of its class."""
CHEAP_UNITS: Final = 200
"""Units of CEL that a class's selectors may cost on a device: what others ask for is evaluated at a pod's expense."""
CHANGED_SHARE_DIVISOR: Final = 5
"""A mix that differs from the last by no more than this part is not taken."""
NEW_WEIGHT: Final = WEIGHT_SUM // 100
"""A class that is asked for as often as this and is not in the mix yet is taken in; not where more classes are asked
for as often as this than scores look at, of which ever others are the commonest."""
NO_WEIGHT: Final = (0, 0)
"""Weight and cpu of a class that is not asked for."""
RENEWAL_PODS: Final = (1, 20, 100, 300)
"""Pods after which the mix is taken anew; later after every so many as the last says."""


class MixClass(NamedTuple):
    """Requests that ask for the same. ``weight``: their share of all requests, of ``WEIGHT_SUM``.

    ``milli_cpu`` is what their pods ask for of cpu, in the mean.
    """

    alternative: Alternative
    weight: int
    milli_cpu: int = 0


class Mix(NamedTuple):
    """What orders look at. ``version`` differs between mixes that differ."""

    classes: tuple[MixClass, ...] = ()
    version: int = 0


class LearnedMix:
    """What was asked for lately."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self._counts: dict[Hashable, MixClass] = {}
        self._shares: Mapping[Hashable, tuple[int, int]] = {}
        """Of the mix: weight and cpu of each class."""
        self._seen = 0
        self.mix = Mix()

    @property
    def counted(self) -> Sequence[MixClass]:
        """The commonest classes, the commonest first; ``weight``: how many requests count now."""
        return [it._replace(weight=it.weight // WEIGHT_SUM) for _, it in self._commonest()]

    def take(self, asked: Iterable[tuple[ClaimProgram, int, int]]) -> None:
        """In the place of all that was learned: what was asked for how often, with how much cpu. Learning continues
        from there."""
        self._counts.clear()
        for program, times, milli_cpu in asked:
            self._count_all(program, times, milli_cpu)
        # As after the last of the first renewals: not looked at again after one more pod, as at a start.
        self._seen = RENEWAL_PODS[-1]
        self._renew()

    def learn(self, program: ClaimProgram, milli_cpu: int = 0) -> bool:
        """A pod asks for this; of alternatives, the preferred one counts. Whether the mix was looked at anew."""
        self._count_all(program, 1, milli_cpu)
        self._seen += 1
        if self._seen % HALF_LIFE_PODS == 0:
            halved = {key: it._replace(weight=it.weight // 2) for key, it in self._counts.items()}
            self._counts = {key: it for key, it in halved.items() if it.weight}
        is_due = self._seen in RENEWAL_PODS or self._seen % RENEWAL_PODS[-1] == 0
        if is_due:
            self._renew()
        return is_due

    def _count_all(self, program: ClaimProgram, times: int, milli_cpu: int) -> None:
        for stage in program.stages:
            wanted = stage.alternatives[0]
            # Admin access takes nothing from others, and a request for all devices leaves a placement no choice.
            if not (wanted.admin or wanted.everything) and wanted.count:
                self._count(wanted, times, milli_cpu)

    def _count(self, wanted: Alternative, times: int, milli_cpu: int) -> None:
        # The offer and the number decide; the claim and the name of the request do not matter.
        key = (wanted.offer, wanted.count)
        known = self._counts.get(key)
        # Counting a class has its selectors evaluated on all devices, at the expense of whoever is scored.
        if known is None and sum(map(self._compiled.cost, wanted.expressions)) > CHEAP_UNITS:
            return
        milli_cpu = min(milli_cpu, COUNTED_MILLI_CPU)
        before, mean = (known.weight, known.milli_cpu) if known is not None else (0, 0)
        weight = before + times * WEIGHT_SUM
        self._counts[key] = MixClass(
            wanted, weight, (before * mean + times * WEIGHT_SUM * milli_cpu + weight // 2) // weight
        )
        if len(self._counts) > COUNTED_CLASSES:
            # Not the newest: it would never be counted twice.
            others = [it for it in self._counts if it != key]
            del self._counts[min(others, key=lambda it: self._counts[it].weight)]

    def _commonest(self) -> list[tuple[Hashable, MixClass]]:
        return sorted(self._counts.items(), key=lambda item: -item[1].weight)[:SCORED_CLASSES]

    def _renew(self) -> None:
        commonest = self._commonest()
        total = sum(it.weight for _, it in commonest)
        # No request was counted yet: the last mix stays.
        if not total:
            return
        shares = {key: (it.weight * WEIGHT_SUM // total, it.milli_cpu) for key, it in commonest}
        before = self._shares
        moved = sum(_moved(before.get(key, NO_WEIGHT), shares.get(key, NO_WEIGHT)) for key in {*shares, *before})
        common = sum([it.weight * WEIGHT_SUM >= NEW_WEIGHT * total for it in self._counts.values()])
        # If more classes are common than can be scored, the commonest change all the time: that is no news then.
        is_new = common <= SCORED_CLASSES and any(
            weight >= NEW_WEIGHT and not before.get(key, NO_WEIGHT)[0] for key, (weight, _) in shares.items()
        )
        if is_new or moved * CHANGED_SHARE_DIVISOR > WEIGHT_SUM:
            self._shares = shares
            classes = tuple(MixClass(it.alternative, *shares[key]) for key, it in commonest if shares[key][0])
            self.mix = Mix(classes, self.mix.version + 1)


def _moved(before: tuple[int, int], after: tuple[int, int]) -> int:
    """By how much of the weights a class differs: all of it, if its pods ask for other cpu."""
    # Cpu decides whether a device is of any use, so other cpu is another class.
    differs = abs(before[1] - after[1]) * CHANGED_SHARE_DIVISOR > max(before[1], after[1])
    return max(before[0], after[0]) if differs else abs(before[0] - after[0])


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
    makes a unit worth keeping (``PartitionedKind``)."""
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
        # Devices without the cpu to use them are as good as taken.
        if it.milli_cpu and requests * it.milli_cpu > milli_cpu:
            requests = milli_cpu // it.milli_cpu
        if requests:
            usable = totals.usable[number] * requests * count // served
            waste += it.weight * (lost * totals.lost[number] + unused * (idle - usable))
        else:
            waste += it.weight * (lost + unused) * idle
    return waste
