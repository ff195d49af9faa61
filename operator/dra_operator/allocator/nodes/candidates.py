"""Which nodes can hold the requests at all, without looking at all nodes (design.md section 3).

The index may let too many nodes through, never too few: taints, capacity, counters and constraints between ordinary
requests are left to the decision itself. Nodes on which the attempt may end for all nodes (see ``error_nodes``) are let
through even if they lack devices, and have to be tried first (E2E-055).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dra_operator.allocator.refusal import Refusal

from .device_counts import DeviceCounts


class Want(NamedTuple):
    """One alternative: it needs so many devices of these counts, the node's own and cluster-wide ones together."""

    counts: DeviceCounts
    need: int

    @property
    def least(self) -> int:
        """How many must be the node's own."""
        return self.need - self.counts.cluster_wide


@dataclass(frozen=True, slots=True)
class Candidates:
    """The nodes worth trying. Iterating yields names lazily, those that may error first; ``in`` tests one node.

    ``anywhere``: the index cannot exclude any node, iterating yields only those that may error, try them all.
    ``refusal`` says why excluded nodes are out.
    """

    may_error: Collection[str]
    anywhere: bool
    wants: tuple[tuple[Want, ...], ...]
    refusal: Refusal | None
    erring: tuple[DeviceCounts, ...] = ()
    """The counts of alternatives with which the decision may end with an error on some node."""

    def suspects(self) -> list[str]:
        """Return the nodes on which the decision may end with an error: that may be why a pod does not fit there."""
        return list(dict.fromkeys(node for counts in self.erring for node in counts.may_error()))

    def __contains__(self, node: object) -> bool:
        if self.anywhere or node in self.may_error:
            return True
        return isinstance(node, str) and all(_holds(wants, node) for wants in self.wants)

    @property
    def refusal_holds_for_all(self) -> bool:
        """Whether every excluded node is out because of the request that ``refusal`` names."""
        return len(self.wants) == 1 or not any(want.counts.number(want.least) for want in scarcest(self.wants))

    def closest(self) -> str | None:
        """The node with most free devices for the request that ``refusal`` names; None if no node has any."""
        if self.anywhere:
            return None
        counts = scarcest(self.wants)[0].counts
        most = counts.best() - counts.cluster_wide
        return next(counts.nodes(most), None) if most else None

    def __iter__(self) -> Iterator[str]:
        yield from self.may_error
        if self.anywhere:
            return
        if len(self.wants) == 1 and len(self.wants[0]) == 1 and not self.may_error:
            want = self.wants[0][0]
            yield from want.counts.nodes(want.least)
            return
        first = scarcest(self.wants)
        others = [wants for wants in self.wants if wants is not first]
        seen = set(self.may_error)
        for want in first:
            for node in want.counts.nodes(want.least):
                if node not in seen and (not others or all(_holds(wants, node) for wants in others)):
                    seen.add(node)
                    yield node


def _holds(wants: Iterable[Want], node: str) -> bool:
    """Whether an alternative of a request finds enough devices on the node."""
    return any(want.counts.totals.get(node, 0) >= want.least for want in wants)


def scarcest(wants: Sequence[tuple[Want, ...]]) -> tuple[Want, ...]:
    """The request that the fewest nodes can serve."""
    return min(wants, key=lambda wants: sum(want.counts.number(want.least) for want in wants))
