"""Required affinity and anti-affinity between pods (kube-scheduler's InterPodAffinity).

A pod may have to be near pods (**affinity**: one pod that all terms select, in the same domain of each term's topology
key), must stay away from pods (**anti-affinity**), and is kept away by pods on nodes whose anti-affinity is about it
(**repulsion**). The first pod of a group with affinity to its own kind may go anywhere: while no such pod is in any
domain, a pod that its own terms select needs only the topology labels (NR-02 to NR-05).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dra_api.core import Pod
from dra_api.label_selectors import Labels

from .hints import Elsewhere, Hint, PodsChange, RepellerGone, Turn
from .obstacle import Obstacle, ObstacleKind
from .residents import Residents
from .selection import Selection
from .terms import AffinityTerm
from .topology import Topologies

Counts = Mapping[str, int]
"""Pods by topology domain."""


class Affinity:
    """The pods that the pod must be near."""

    def __init__(self, pod: Pod, terms: Sequence[AffinityTerm], residents: Residents, topologies: Topologies) -> None:
        self._terms = terms
        self._selection = Selection(tuple(term.pods(residents.namespaces) for term in terms))
        near = residents.count(self._selection)
        self._counts = {term.key: near.within(topologies.get(term.key)).by_domain for term in terms}
        self._is_of_group = self._selection.matches(pod)

    def obstacle(self, labels: Labels) -> Obstacle | None:
        """Why the pod cannot go to a node with these labels."""
        missing = next((key for key in self._counts if key not in labels), None)
        if missing is None:
            missing = next((key for key, counts in self._counts.items() if labels[key] not in counts), None)
            if missing is not None and self._is_of_group and not any(self._counts.values()):
                return None
        return Obstacle(ObstacleKind.POD_AFFINITY, missing) if missing is not None else None

    def hints(self, kinds: frozenset[ObstacleKind]) -> set[Hint]:
        """What can remove obstacles of these kinds."""
        if ObstacleKind.POD_AFFINITY not in kinds:
            return set()
        found = {PodsChange(self._selection, Turn.MORE), *_of_namespaces(self._terms)}
        if self._is_of_group:
            found |= {PodsChange(self._selection, Turn.NONE_LEFT), Elsewhere.NODE_GONE}
        return found

    def counts(self, obstacle: Obstacle) -> Counts | None:
        """The pods to be near, by domain, if the obstacle is of this rule."""
        return self._counts[obstacle.subject] if obstacle.kind is ObstacleKind.POD_AFFINITY else None


class AntiAffinity:
    """The pods that the pod must not be near."""

    def __init__(self, terms: Sequence[AffinityTerm], residents: Residents, topologies: Topologies) -> None:
        self._terms = terms
        self._selections = [Selection((term.pods(residents.namespaces),)) for term in terms]
        self._counts = [
            (term.key, residents.count(selection).within(topologies.get(term.key)).by_domain)
            for term, selection in zip(terms, self._selections, strict=True)
        ]

    def obstacle(self, labels: Labels) -> Obstacle | None:
        """Why the pod cannot go to a node with these labels."""
        key = _hit(self._counts, labels)
        return Obstacle(ObstacleKind.POD_ANTI_AFFINITY, key) if key is not None else None

    def hints(self, kinds: frozenset[ObstacleKind]) -> set[Hint]:
        """What can remove obstacles of these kinds."""
        if ObstacleKind.POD_ANTI_AFFINITY not in kinds:
            return set()
        fewer = {PodsChange(selection, Turn.FEWER) for selection in self._selections}
        return {*fewer, Elsewhere.NODE_GONE, *_of_namespaces(self._terms)}

    def counts(self, obstacle: Obstacle) -> Counts | None:
        """The pods to stay away from, by domain, if the obstacle is of this rule."""
        return _of_key(self._counts, obstacle) if obstacle.kind is ObstacleKind.POD_ANTI_AFFINITY else None


class Repulsion:
    """The pods on nodes whose anti-affinity is about the pod."""

    def __init__(self, pod: Pod, residents: Residents, topologies: Topologies) -> None:
        self._pod = pod
        found = residents.repelling(pod)
        self._terms = [term for term, _ in found]
        self._counts = [(term.key, carriers.within(topologies.get(term.key)).by_domain) for term, carriers in found]

    def __bool__(self) -> bool:
        return bool(self._counts)

    def obstacle(self, labels: Labels) -> Obstacle | None:
        """Why the pod cannot go to a node with these labels."""
        key = _hit(self._counts, labels)
        return Obstacle(ObstacleKind.REPELLED, key) if key is not None else None

    def hints(self, kinds: frozenset[ObstacleKind]) -> set[Hint]:
        """What can remove obstacles of these kinds."""
        if ObstacleKind.REPELLED not in kinds:
            return set()
        return {RepellerGone.of(self._pod), Elsewhere.NODE_GONE, *_of_namespaces(self._terms)}

    def counts(self, obstacle: Obstacle) -> Counts | None:
        """The pods that keep this one away, by domain, if the obstacle is of this rule."""
        return _of_key(self._counts, obstacle) if obstacle.kind is ObstacleKind.REPELLED else None


def _of_key(counts: Sequence[tuple[str, Counts]], obstacle: Obstacle) -> Counts:
    found: Counter[str] = Counter()
    for key, domains in counts:
        if key == obstacle.subject:
            found.update(domains)
    return found


def _hit(counts: Sequence[tuple[str, Counts]], labels: Labels) -> str | None:
    """The first topology key whose domain excludes the node."""
    return next((key for key, domains in counts if key in labels and labels[key] in domains), None)


def _of_namespaces(terms: Sequence[AffinityTerm]) -> set[Hint]:
    return {Elsewhere.NAMESPACE} if any(term.minds_namespaces for term in terms) else set()
