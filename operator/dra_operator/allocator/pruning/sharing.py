"""How many shares of a device can still be given, and which devices several requests may get at all.

Allowing multiple allocations does not make a device shared: where the first share takes so much of some capacity that
no second one can fit, the device is as good as any other that only one request can have, and is counted like those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dra_operator.allocator.basics.bits import each
from dra_operator.allocator.problem.problem import Problem
from dra_operator.allocator.published.pool_view import Amounts


class Sharing:
    """Upper bounds for the shares of one problem."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._offers = offers(problem)
        self._least: dict[int, dict[str, int]] = {}
        self.several = sum(1 << device for device in self._find_several())
        """Devices that several requests may get.

        Those whose counters are paid already count, too: they are free. When admin access is exempt, all that can be
        shared do: whatever is left of them, admin access gets them as well.
        """

    def most(self, device: int) -> int:
        """At most so many further shares of a device."""
        least = self._least.get(device)
        if least is None:
            least = self._least[device] = self._least_share(device)
        left = self._problem.shares.left(device)
        return min(
            (left[name] // amount for name, amount in least.items() if amount > 0), default=len(self._problem.domains)
        )

    def _least_share(self, device: int) -> dict[str, int]:
        """The least that any request would consume of each capacity."""
        least: dict[str, int] = {}
        for amounts, usable in self._offers:
            if usable >> device & 1:
                for name, amount in amounts.get(device, {}).items():
                    least[name] = min(amount.nanos, least.get(name, amount.nanos))
        return least

    def _find_several(self) -> Iterator[int]:
        shareable = self._problem.view.shareable if self._problem.sharing else 0
        if self._problem.admin_exempt:
            return each(shareable)
        paid = 0
        for counters in self._problem.counters:
            paid |= counters.paid
        return (device for device in each(shareable) if paid >> device & 1 or self.most(device) > 1)


def offers(problem: Problem) -> list[tuple[Mapping[int, Amounts], int]]:
    """What a share of each device consumes, and the devices of which such shares may be taken; each once."""
    found: dict[int, tuple[Mapping[int, Amounts], int]] = {}
    for domains in problem.domains:
        for domain in domains:
            amounts, usable = found.get(id(domain.amounts), (domain.amounts, 0))
            if amounts:
                found[id(amounts)] = amounts, usable | domain.usable
    return list(found.values())
