"""Rules between a pod and the pods around it: computed once, then checked for one node after the other.

Pods on nodes are counted by topology domain (``residents``, ``topology``). The rules here look up the domain of a node,
so that a check costs the same for any number of pods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from dra_api.core import Pod
from dra_api.label_selectors import Labels

from .hints import Hint
from .immediate import is_stand_in
from .obstacle import Obstacle, ObstacleKind
from .pod_affinity import Affinity, AntiAffinity, Repulsion
from .residents import Residents
from .spread import Spread
from .terms import affinity, anti_affinity
from .topology import Topologies


class PodRule(Protocol):
    """One kind of rule between pods."""

    def obstacle(self, labels: Labels) -> Obstacle | None:
        """Why the pod cannot go to a node with these labels."""
        ...

    def hints(self, kinds: frozenset[ObstacleKind]) -> set[Hint]:
        """What can remove obstacles of these kinds."""
        ...

    def counts(self, obstacle: Obstacle) -> Mapping[str, int] | None:
        """The pods that the obstacle is about, by topology domain; None if it is not of this rule."""
        ...


class Neighbours:
    """All rules between one pod and others; false if there are none."""

    def __init__(self, pod: Pod, residents: Residents, topologies: Topologies) -> None:
        self._rules = tuple(_rules(pod, residents, topologies))

    def __bool__(self) -> bool:
        return bool(self._rules)

    def obstacle(self, labels: Labels) -> Obstacle | None:
        """Why the pod cannot go to a node with these labels."""
        return next((found for rule in self._rules if (found := rule.obstacle(labels)) is not None), None)

    def hints(self, kinds: frozenset[ObstacleKind] = frozenset(ObstacleKind)) -> frozenset[Hint]:
        """What can remove obstacles of these kinds."""
        return frozenset(hint for rule in self._rules for hint in rule.hints(kinds))

    def counts(self, obstacle: Obstacle) -> Mapping[str, int] | None:
        """The pods that an obstacle is about, by topology domain; None if it is about no pods."""
        return next((found for rule in self._rules if (found := rule.counts(obstacle)) is not None), None)


def _rules(pod: Pod, residents: Residents, topologies: Topologies) -> Iterator[PodRule]:
    if is_stand_in(pod):
        return  # the claim behind it keeps no pod away, and no pod keeps it away
    if pod.spec.topology_spread_constraints and (spread := Spread(pod, residents, topologies)):
        yield spread
    if pod.spec.affinity is not None and (near := affinity(pod)):
        yield Affinity(pod, near, residents, topologies)
    if pod.spec.affinity is not None and (away := anti_affinity(pod)):
        yield AntiAffinity(away, residents, topologies)
    if repulsion := Repulsion(pod, residents, topologies):
        yield repulsion
