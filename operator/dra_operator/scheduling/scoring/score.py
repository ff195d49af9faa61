"""What a score is: how much a pod prefers one node to another, in one respect.

A score gives each node a raw score. Over all nodes that fit, raw scores are normalized to 0 to 100, and count with the
weight of the score. A score is made once per attempt, only for pods that use it. A new one is a file beside the others
and a line in ``every_score``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from dra_api.core import Pod

from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.pods_by_node import DomainQuery, PodsByNode
from dra_operator.scheduling.state.selection import Namespaces
from dra_operator.scheduling.state.topology import Topologies

BEST_SCORE = 100
"""The normalized score of the best node."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What scores look at, apart from the pod and the node."""

    pods_by_node: PodsByNode
    topologies: Topologies
    nodes: int
    """How many nodes there are."""
    has_soft_taints: bool
    """Some nodes have ``PreferNoSchedule`` taints."""


class Score(ABC):
    """One respect in which a pod prefers nodes."""

    name: str
    """For people: ``kubectl dra why`` shows it beside the score."""
    weight: int
    best: float
    """The most that a node can have as its raw score: a node that has it ends the search for a better one."""

    @classmethod
    @abstractmethod
    def of(cls, pod: Pod, cluster: Cluster) -> Self | None:
        """The score for the pod; None if the pod prefers no node in this respect."""

    @classmethod
    def queries(cls, pod: Pod, namespaces: Namespaces) -> Iterable[DomainQuery]:
        """Which pods the score counts when it is made for the pod: they are counted before, in pieces."""
        return ()

    @abstractmethod
    def raw(self, state: LoadedNode) -> float:
        """How good a node is; more is better."""

    @abstractmethod
    def normalized(self, raws: Sequence[float]) -> list[int]:
        """The raw scores of all nodes that fit, from 0 to 100."""
