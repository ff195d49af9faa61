"""Preferred affinity and anti-affinity between pods: of the pod that comes, and of residents to it.

A node gains the weight of a preferred term for each resident in its domain that the term is about, and loses that of a
term of anti-affinity. A resident that prefers, or must have, the pod near it counts in the same way; what it must have
weighs 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from dra_api.core import Pod

from .node import LoadedNode
from .residents import Residents
from .selection import Selection
from .terms import preferred
from .topology import DomainCounts, Topologies


class Leaning:
    """What the domains of each topology key gain or lose by their residents. ``nodes``: how many there are."""

    name, weight = "pod affinity", 2

    def __init__(self, pod: Pod, residents: Residents, topologies: Topologies, nodes: int) -> None:
        self._by_key: dict[str, Counter[str]] = {}
        self.best = 0.0
        found = list(_counts(pod, residents, topologies))
        for counts, weight in found:
            sums = self._by_key.setdefault(counts.topology.key, Counter())
            for domain, count in counts.by_domain.items():
                sums[domain] += weight * count
        for key, sums in self._by_key.items():
            topology = topologies.get(key)
            gained_by_all = len(sums) == len(topology.size) and len(topology.domain_of) == nodes
            self.best += max((*sums.values(), *(() if gained_by_all else (0,))), default=0)

    def __bool__(self) -> bool:
        return any(map(bool, self._by_key.values()))

    def raw(self, state: LoadedNode) -> float:
        """What the node's domains gained."""
        labels = state.node.metadata.labels or {}
        return float(sum(sums[labels[key]] for key, sums in self._by_key.items() if key in labels))

    def points(self, raws: Sequence[float]) -> list[int]:
        """From the worst node to the best."""
        least, most = min(raws), max(raws)
        return [int(100 * (raw - least) / (most - least)) if most > least else 0 for raw in raws]


def _counts(pod: Pod, residents: Residents, topologies: Topologies) -> Iterator[tuple[DomainCounts, int]]:
    for term, weight in preferred(pod):
        selection = Selection((term.pods(residents.namespaces),))
        yield residents.count(selection).within(topologies.get(term.key)), weight
    for term, carriers in residents.leaning(pod):
        yield carriers.within(topologies.get(term.key)), 1
