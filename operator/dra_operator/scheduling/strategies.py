"""Placement strategies: which of the nodes that fit wastes least.

A strategy gives a whole number for a node and the devices that a pod would take there; the largest is best. It is pure
and exact. Nodes with equal numbers follow each other by their names, so the same cluster always gives the same answer.
A new strategy is a class beside the others and a name in ``_ALL``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import ClassVar, Final, NamedTuple, Protocol

from dra_operator.allocator import WEIGHT_OF_ALL, Mix, Totals, wasted_with


class Candidate(NamedTuple):
    """A node with the devices that a pod would take there. Devices count in thousandths."""

    mix: Mix
    """What pods usually ask for."""
    before: Totals
    """The devices of the node as they are."""
    after: Totals
    """As they would be."""
    milli_cpu: int
    """What the node has left of cpu, before the pod."""
    pod_milli_cpu: int = 0
    """What the pod asks for of it."""

    @property
    def milli_cpu_after(self) -> int:
        """What is left then."""
        return max(0, self.milli_cpu - self.pod_milli_cpu)


class Strategy(Protocol):
    """One way to prefer nodes."""

    name: ClassVar[str]
    device_order: ClassVar[str]
    """The order of devices within a node that goes with it, unless a setting names another."""
    uses_mix: ClassVar[bool]
    """It looks at what pods usually ask for, of devices and of cpu."""
    ranks_all_pods: ClassVar[bool]
    """It also places pods without claims: where their cpu is not missed."""

    def score(self, candidate: Candidate) -> int:
        """How good the node is."""


class EmptiestStrategy(Strategy):
    """The node whose devices have most left: load is spread, and so are failures."""

    name = "emptiest"
    device_order = "reference"
    uses_mix = False
    ranks_all_pods = False

    def score(self, candidate: Candidate) -> int:
        """What is left afterwards."""
        return candidate.after.idle


CORES_PER_DEVICE: Final = 16
"""A device weighs as much as so many cores: 8 and 128 of the largest nodes in the study of the trace openb."""


class BestFitStrategy(Strategy):
    """The node that has least left of devices and cpu: full nodes become full first."""

    name = "best-fit"
    device_order = "best-fit"
    uses_mix = False
    ranks_all_pods = True

    def score(self, candidate: Candidate) -> int:
        """What is left, negative. The pod's own cpu is the same on every node, and left out."""
        return -(candidate.after.idle * CORES_PER_DEVICE + candidate.milli_cpu)


SHARED_SCORE, IN_USE_SCORE, WHOLE_SCORE = 100, 50, 33
"""The most that a node gets where nothing free is begun, where it is in use, and where all of it is free."""
HALF_SCORE: Final = 50


class PackingStrategy(Strategy):
    """Devices that are shared already first, then free ones of nodes in use, whole nodes last: whole nodes stay whole.

    As GpuPacking of the study "Beware of Fragmentation" has it.
    """

    name = "packing"
    device_order = "best-fit"
    uses_mix = False
    ranks_all_pods = True

    def score(self, candidate: Candidate) -> int:
        """By what the pod begins."""
        before, after = candidate.before, candidate.after
        begun = before.whole - after.whole
        if not before.units:  # only pods without claims fit there
            return SHARED_SCORE
        if before.whole == before.units:
            return max(WHOLE_SCORE - begun, 1)
        if begun:
            return max(IN_USE_SCORE - begun, WHOLE_SCORE)
        shared = before.idle - 1000 * before.whole
        return max(SHARED_SCORE - shared // 100, HALF_SCORE)


_UNIT: Final = 1000 * WEIGHT_OF_ALL
"""One device, lost to the whole mix."""
_STEPS: Final = tuple(math.ceil(_UNIT * math.log(score / (100 - score))) for score in range(1, 100))
"""The least decrease that gives each score from 1 to 99."""


class FgdStrategy(Strategy):
    """Fragmentation gradient descent: the node where least becomes useless to the pods that usually come.

    A node's fragmentation is the idle part of devices that cannot serve a request, averaged over the mix. The score is
    ``100 * sigmoid(decrease of the fragmentation, in devices)`` without its fraction, as in the study "Beware of
    Fragmentation" (Weng et al., USENIX ATC 2023). To leave the fraction out matters: nodes that are nearly equal follow
    each other by name then, and fill one after the other. It is computed in whole numbers, from a table of decreases at
    which the score grows. Devices are also lost where a request lacks cpu; the cpu of a request is the mean of its
    class, where the study has a kind of pods for each amount.
    """

    name = "fgd"
    device_order = "least-fragmentation"
    uses_mix = True
    ranks_all_pods = True

    def score(self, candidate: Candidate) -> int:
        """From 0 to 99; 50 where nothing changes."""
        mix = candidate.mix
        before = wasted_with(mix, candidate.before, candidate.milli_cpu, lost=1, unused=0)
        after = wasted_with(mix, candidate.after, candidate.milli_cpu_after, lost=1, unused=0)
        return bisect_right(_STEPS, before - after)


LOST_WEIGHT: Final = 4
UNUSED_WEIGHT: Final = 6
IDLE_DIVISOR: Final = 50
"""What is idle beside a pod without devices counts so many times less than what is in vain to all."""


class FragStrategy(Strategy):
    """The node where least is wasted afterwards: lost to requests that fit no device, or more than requests could use.

    Six parts of ten are the amounts that requests of one class alone could not use, however they were placed, with the
    cpu that their pods need; four are the fragmentation of ``fgd``. A pod that takes no devices goes where few are
    idle: its cpu is worth most to pods with devices where these are. The score is exact: nodes differ where their
    numbers differ.
    """

    name = "frag"
    device_order = "least-loss"
    uses_mix = True
    ranks_all_pods = True

    def score(self, candidate: Candidate) -> int:
        """How much less is in vain."""
        before, after = candidate.before, candidate.after
        less = _in_vain(candidate, before, candidate.milli_cpu) - _in_vain(candidate, after, candidate.milli_cpu_after)
        if after.idle != before.idle:
            return less
        return less - before.idle * WEIGHT_OF_ALL * (LOST_WEIGHT + UNUSED_WEIGHT) // IDLE_DIVISOR


def _in_vain(candidate: Candidate, totals: Totals, milli_cpu: int) -> int:
    return wasted_with(candidate.mix, totals, milli_cpu, lost=LOST_WEIGHT, unused=UNUSED_WEIGHT)


FIRST_FIT: Final = "first-fit"
"""No strategy: the first node that fits, in the order of the room on the nodes."""
_ALL: Final[tuple[Strategy, ...]] = (
    EmptiestStrategy(),
    BestFitStrategy(),
    PackingStrategy(),
    FgdStrategy(),
    FragStrategy(),
)
BY_NAME: Final = {it.name: it for it in _ALL}
PLACEMENT_STRATEGIES: Final = (FIRST_FIT, *BY_NAME)
ANNOTATION: Final = "dra.kopf.dev/placement-strategy"
"""Of a DeviceClass: the strategy for pods whose first request names the class."""
