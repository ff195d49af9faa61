"""What a strategy is: a whole number for a node and the devices that a pod would take there; the largest is best.

A strategy is pure and exact. Nodes with equal numbers follow each other by their names, so that the same cluster always
gives the same answer. A new strategy is a file beside the others and a line in ``every_strategy``.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol

from dra_operator.allocator import Mix, Totals


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
