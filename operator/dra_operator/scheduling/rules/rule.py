"""What a rule is: a filter for nodes, with its reasons, their words, and what can help a pod that it keeps waiting.

A rule is made once per attempt, and asked about one node after the other. A new one is a file beside the others and a
line in ``every_rule``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from dra_api.core import Pod

from dra_operator.scheduling.state.inter_pod.domain_query import DomainQuery
from dra_operator.scheduling.state.inter_pod.pods_by_node import PodsByNode
from dra_operator.scheduling.state.inter_pod.terms import Namespaces
from dra_operator.scheduling.state.inter_pod.topology import Topologies
from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.obstacle import Obstacle, Reason

from .queueing_hints import Hint
from .volumes import NO_VOLUMES, PodVolumes


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What rules look at, apart from the pod and the node. ``volumes`` are those of the pod."""

    pods_by_node: PodsByNode
    topologies: Topologies
    volumes: PodVolumes = NO_VOLUMES


class Rule(ABC):
    """What one pod asks of any node in one respect."""

    @classmethod
    @abstractmethod
    def of(cls, pod: Pod, around: Surroundings) -> Self | None:
        """The rule for the pod; None if it asks nothing in this respect."""

    @classmethod
    def queries(cls, pod: Pod, namespaces: Namespaces) -> Iterable[DomainQuery]:
        """Which pods the rule counts when it is made for the pod: they are counted before, in pieces."""
        return ()

    @abstractmethod
    def obstacle(self, state: LoadedNode, served: Collection[str]) -> Obstacle | None:
        """Why the pod cannot run on the node; None if it can.

        ``served``: resources that devices serve on this node, so that it does not have to offer them itself.
        Raises NodeSelectionError when the pod's affinity cannot be understood.
        """

    def hints(self, reasons: Collection[Reason] | None) -> Iterable[Hint]:
        """Which changes of other pods can remove obstacles with these reasons, with any if None."""
        return ()

    def counts(self, obstacle: Obstacle) -> Mapping[str, int] | None:
        """The pods that the obstacle is about, by topology domain; None if it is about no pods."""
        return None
