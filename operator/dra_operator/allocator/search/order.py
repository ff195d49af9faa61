"""The interface of an order of devices; the room ``ordering`` has those that can be chosen.

An order says which devices of a request are tried first. The search tries all of them, whatever the order: what can be
allocated stays the same, and so do the chosen alternatives. For this

- the order counts from the last request with alternatives on: the devices of earlier requests decide which alternative
  is possible;
- it does not count where a selector may fail on a device: whether the search reaches that device would depend on it;
- a search that fails often starts again with a pruner, and in the reference's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dra_operator.allocator.problem.domain import Domain
from dra_operator.allocator.problem.problem import Problem

Grant = tuple[Domain, int, int, int]
"""One device given to one alternative; and what was taken before, in all and by the claim, to be restored."""


class Tried(NamedTuple):
    """The devices, each once, in the order in which they are tried, and what it cost to find that out."""

    devices: Sequence[int]
    steps: int = 0


class DeviceOrder(Protocol):
    """Which devices are tried first."""

    def tried(self, problem: Problem, grants: Sequence[Grant], domain: Domain, devices: int, missing: int) -> Tried:
        """Puts the devices in order. The request lacks so many, the next one included; ``grants`` were made before."""


def ordered_from(problem: Problem) -> int:
    """The first stage at which an order may count; behind the last one if it may not count at all."""
    domains = problem.domains
    if not all(domain.cannot_raise for stage in problem.reached for domain in stage):
        return len(domains)
    prioritized = (number for number in reversed(range(len(domains))) if len(domains[number]) > 1)
    return next(prioritized, 0)
