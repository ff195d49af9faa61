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
    """A node with the devices that a pod would get there. Devices count in thousandths."""

    mix: Mix
    """The usual requests of pods."""
    before: Totals
    """The devices of the node now."""
    after: Totals
    """The devices of the node with the pod."""
    milli_cpu: int
    """Free cpu of the node now."""
    pod_milli_cpu: int = 0
    """The cpu request of the pod."""

    @property
    def milli_cpu_after(self) -> int:
        """Free cpu of the node with the pod."""
        return max(0, self.milli_cpu - self.pod_milli_cpu)


class Strategy(Protocol):
    """One way to prefer nodes."""

    name: ClassVar[str]
    device_order: ClassVar[str]
    """Its order of devices within a node, unless a setting names another one."""
    uses_mix: ClassVar[bool]
    """Whether it looks at the usual requests of pods, for devices and cpu."""
    ranks_all_pods: ClassVar[bool]
    """Whether it also ranks nodes for pods without claims, by the cpu that pods with devices would miss there."""

    def score(self, candidate: Candidate) -> int:
        """Return the score of the node; the highest is best."""


class EmptiestStrategy(Strategy):
    """Prefers the node with most free devices: load is spread, and so are failures."""

    name = "emptiest"
    device_order = "reference"
    uses_mix = False
    ranks_all_pods = False

    def score(self, candidate: Candidate) -> int:
        """Return the free devices afterwards."""
        # After the pod and not before it: of two nodes the pod may take more of one, by other alternatives.
        return candidate.after.idle


CORES_PER_DEVICE: Final = 16
"""The weight of a device in cores: the largest nodes of the trace openb have 8 devices and 128 cores."""


class BestFitStrategy(Strategy):
    """Prefers the node with least free devices and cpu: nodes that are nearly full become full first."""

    name = "best-fit"
    device_order = "best-fit"
    uses_mix = False
    ranks_all_pods = True

    def score(self, candidate: Candidate) -> int:
        """Return the free devices and cpu, negated. The pod's own cpu is equal on all nodes and left out."""
        # Cpu as well: a node that is out of cpu cannot use its devices.
        return -(candidate.after.idle * CORES_PER_DEVICE + candidate.milli_cpu)


SHARED_SCORE, IN_USE_SCORE, WHOLE_SCORE = 100, 50, 33
"""The highest scores of a node whose shared devices suffice, of a node in use, and of an empty node."""
HALF_SCORE: Final = 50


class PackingStrategy(Strategy):
    """Prefers shared devices, then free devices of nodes in use, then empty nodes, so that empty nodes stay empty.

    This is GpuPacking of the study "Beware of Fragmentation" (Weng et al., USENIX ATC 2023).
    """

    name = "packing"
    device_order = "best-fit"
    uses_mix = False
    ranks_all_pods = True

    def score(self, candidate: Candidate) -> int:
        """Return the score by the number of devices that the pod is the first to use."""
        before, after = candidate.before, candidate.after
        begun = before.whole - after.whole
        if not before.units:  # only pods without claims fit there
            return SHARED_SCORE
        # An empty node: to begin it is the last resort, the more so the more devices are begun.
        if before.whole == before.units:
            return max(WHOLE_SCORE - begun, 1)
        # A node in use, of which whole devices are begun: never worse than an empty node.
        if begun:
            return max(IN_USE_SCORE - begun, WHOLE_SCORE)
        # What is left of shared devices: the fuller they are, the better.
        shared = before.idle - 1000 * before.whole
        return max(SHARED_SCORE - shared // 100, HALF_SCORE)


_UNIT: Final = 1000 * WEIGHT_OF_ALL
"""One device that no request of the mix can use."""
_STEPS: Final = tuple(math.ceil(_UNIT * math.log(score / (100 - score))) for score in range(1, 100))
"""The smallest decrease for each score from 1 to 99. Whole numbers, so that scores are compared exactly."""


class FgdStrategy(Strategy):
    """Fragmentation gradient descent: prefers the node on which least becomes useless to usual pods.

    A node's fragmentation is the idle part of devices that cannot serve a request, averaged over the mix. The score is
    the whole part of ``100 * sigmoid(decrease of the fragmentation, in devices)``, as in the study "Beware of
    Fragmentation" (Weng et al., USENIX ATC 2023). Dropping the fraction matters: nearly equal nodes are then ordered by
    name, and fill one after the other. Devices are also useless if the node lacks the cpu of a request. The cpu of a
    request is the mean of its class; the study has a kind of pods for each amount.
    """

    name = "fgd"
    device_order = "least-fragmentation"
    uses_mix = True
    ranks_all_pods = True

    def score(self, candidate: Candidate) -> int:
        """Return the score, from 0 to 99; 50 if the fragmentation stays the same."""
        mix = candidate.mix
        # The cpu counts before and after: a pod may make devices useless by taking the cpu beside them.
        before = wasted_with(mix, candidate.before, candidate.milli_cpu, lost=1, unused=0)
        after = wasted_with(mix, candidate.after, candidate.milli_cpu_after, lost=1, unused=0)
        return bisect_right(_STEPS, before - after)


LOST_WEIGHT: Final = 4
UNUSED_WEIGHT: Final = 6
IDLE_DIVISOR: Final = 50
"""For a pod without devices, an idle device counts a fiftieth of a wasted one."""


class FragStrategy(Strategy):
    """Prefers the node on which least is wasted afterwards.

    With weight 6, an amount is wasted that requests of one class alone could not use, in any placement, with the cpu of
    their pods. With weight 4, it is the fragmentation of ``fgd``. A pod without devices goes where few devices are
    idle, because idle devices need cpu beside them. The score is not rounded.
    """

    name = "frag"
    device_order = "least-loss"
    uses_mix = True
    ranks_all_pods = True

    def score(self, candidate: Candidate) -> int:
        """Return the decrease of the waste; for a pod without devices also less for idle devices."""
        before, after = candidate.before, candidate.after
        less = _in_vain(candidate, before, candidate.milli_cpu) - _in_vain(candidate, after, candidate.milli_cpu_after)
        # A pod without devices wastes none, so all nodes would be equal to it but for the term below.
        if after.idle != before.idle:
            return less
        return less - before.idle * WEIGHT_OF_ALL * (LOST_WEIGHT + UNUSED_WEIGHT) // IDLE_DIVISOR


def _in_vain(candidate: Candidate, totals: Totals, milli_cpu: int) -> int:
    return wasted_with(candidate.mix, totals, milli_cpu, lost=LOST_WEIGHT, unused=UNUSED_WEIGHT)


FIRST_FIT: Final = "first-fit"
"""No strategy: the first node that fits, by the free room of nodes."""
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
"""Annotation of a DeviceClass: the strategy for pods whose first request names the class."""
