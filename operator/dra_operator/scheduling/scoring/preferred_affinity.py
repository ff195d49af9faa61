"""Preferred affinity and anti-affinity between pods: of the pod that comes, and of placed pods to it.

A node gains the weight of a preferred term for each placed pod in its domain that the term is about, and loses that of
a term of anti-affinity. A placed pod that prefers, or must have, the pod near it counts in the same way; what it must
have weighs 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from dra_api.core import Pod

from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.placeholder import is_placeholder
from dra_operator.scheduling.state.pods_by_node import DomainQuery, PodsByNode, one_by_one
from dra_operator.scheduling.state.selection import Namespaces, preferred
from dra_operator.scheduling.state.topology import DomainCounts, Topologies

from .score import BEST_SCORE, Cluster, Score


class PreferredAffinityScore(Score):
    """What the domains of each topology key gain or lose by their placed pods. ``nodes``: how many there are."""

    name, weight = "pod affinity", 2

    def __init__(self, pod: Pod, pods_by_node: PodsByNode, topologies: Topologies, nodes: int) -> None:
        self._by_key: dict[str, Counter[str]] = {}
        self.best = 0.0
        found = list(_counts(pod, pods_by_node, topologies))
        for counts, weight in found:
            sums = self._by_key.setdefault(counts.topology.key, Counter())
            for domain, count in counts.by_domain.items():
                sums[domain] += weight * count
        for key, sums in self._by_key.items():
            topology = topologies.get(key)
            gained_by_all = len(sums) == len(topology.size) and len(topology.domain_of) == nodes
            self.best += max((*sums.values(), *(() if gained_by_all else (0,))), default=0)

    @classmethod
    def of(cls, pod: Pod, cluster: Cluster) -> PreferredAffinityScore | None:
        """Only for a pod with such terms, or that placed pods have terms about, if that tells any domains apart."""
        if is_placeholder(pod):
            return None
        others = cluster.pods_by_node.existing_preferences(pod, cluster.topologies.label_keys)
        if pod.spec.affinity is None and not others.by_key:
            return None
        score = cls(pod, cluster.pods_by_node, cluster.topologies, cluster.nodes)
        return score if any(map(bool, score._by_key.values())) else None

    @classmethod
    def queries(cls, pod: Pod, namespaces: Namespaces) -> Iterable[DomainQuery]:
        """The pods of each term."""
        return one_by_one((term for term, _ in preferred(pod)), namespaces)

    def raw(self, state: LoadedNode) -> float:
        """What the node's domains gained."""
        labels = state.node.metadata.labels or {}
        return float(sum(sums[labels[key]] for key, sums in self._by_key.items() if key in labels))

    def normalized(self, raws: Sequence[float]) -> list[int]:
        """From the worst node to the best."""
        least, most = min(raws), max(raws)
        return [int(BEST_SCORE * (raw - least) / (most - least)) if most > least else 0 for raw in raws]


def _counts(pod: Pod, pods_by_node: PodsByNode, topologies: Topologies) -> Iterator[tuple[DomainCounts, int]]:
    terms = list(preferred(pod))
    queries = one_by_one((term for term, _ in terms), pods_by_node.namespaces)
    for it, (_, weight) in zip(queries, terms, strict=True):
        yield it.counts(pods_by_node, topologies), weight
    for key, carriers in pods_by_node.existing_preferences(pod, topologies.label_keys).by_key.items():
        yield carriers.within(topologies.get(key)), 1
