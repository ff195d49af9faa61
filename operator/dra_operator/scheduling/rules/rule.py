"""A rule: a filter for nodes, with its reasons, their words, and its queueing hints.

A rule is made once per attempt, and asked about one node after the other. A new one is a class in ``node_rules`` (about
the node alone) or in a file of its own (about other pods), and a line in ``nodes``. A queueing hint says which
change of pods, namespaces or nodes can help a pod that the rule keeps waiting. It is a value: pods of one workload have
the same ones, so a change is compared with each hint once (NR-07).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Self

from dra_api.core import Pod

from dra_operator.scheduling.rules.volumes import NO_VOLUMES, PodVolumes
from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.obstacle import Obstacle, Reason
from dra_operator.scheduling.state.pods_by_node import DomainQuery, PodsByNode
from dra_operator.scheduling.state.topology import Anchor, Namespaces, Selection, Topologies, anti_affinity


class Direction(Enum):
    """How the pods of a selection have to change."""

    MORE = auto()
    FEWER = auto()
    NONE_LEFT = auto()
    ANY = auto()


class ClusterEvent(Enum):
    """Changes of other objects that matter to rules between pods."""

    NAMESPACE = auto()
    """The labels of a namespace changed, or it is new or gone."""
    NODE_GONE = auto()
    """A node is gone, and with it a topology domain or its pods."""


@dataclass(frozen=True, slots=True)
class PodsChange:
    """More or fewer pods on nodes are in the selection."""

    selection: Selection
    turn: Direction

    @property
    def anchor(self) -> Anchor:
        """A label of the pods that can help."""
        return self.selection.anchor

    def helped_by(self, before: Pod | None, after: Pod | None, pods_by_node: PodsByNode) -> bool:
        """Return whether the change of a pod helps. ``before`` and ``after`` are None while it is on no node."""
        had = before is not None and self.selection.matches(before)
        has = after is not None and self.selection.matches(after)
        # A change of a pod that stays in the selection, or out of it, moves no count.
        if had == has:
            return False
        if self.turn is Direction.NONE_LEFT:
            return had and not pods_by_node.count(self.selection).by_node
        # An even spread may be helped by either: a pod more in the emptiest domain, or a pod less in the fullest.
        return self.turn is Direction.ANY or self.turn is (Direction.MORE if has else Direction.FEWER)


@dataclass(frozen=True, slots=True)
class RepellerGone:
    """A pod is gone whose anti-affinity is about pods of the namespace with these labels."""

    namespace: str
    labels: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, pod: Pod) -> RepellerGone:
        """The hint that helps if this pod's repeller goes."""
        return cls(pod.metadata.namespace, frozenset((pod.metadata.labels or {}).items()))

    @property
    def anchor(self) -> Anchor:
        """None, because any pod can help, whatever its labels."""
        return None

    def helped_by(self, before: Pod | None, after: Pod | None, pods_by_node: PodsByNode) -> bool:
        if before is None or after is not None:
            return False  # terms of a pod never change
        labels: Mapping[str, str] = dict(self.labels)
        # As they are now: the repeller was compared with the labels of its time, and they may have changed since.
        there = pods_by_node.namespaces.get(self.namespace, {})
        return any(term.concerns(self.namespace, there, labels) for term in anti_affinity(before))


@dataclass(frozen=True, slots=True)
class AnyPod:
    """Some pod on a node came, went or changed."""

    @property
    def anchor(self) -> Anchor:
        """None, because any pod can help."""
        return None

    def helped_by(self, before: Pod | None, after: Pod | None, pods_by_node: PodsByNode) -> bool:
        return True


Hint = PodsChange | RepellerGone | AnyPod | ClusterEvent
ANY_CHANGE: Final[frozenset[Hint]] = frozenset((AnyPod(), *ClusterEvent))
"""Of a pod whose rules are not made yet."""
MOST_HINTS: Final = 8
"""The most selectors of pods whose changes one pod waits for."""


def is_of_fewer_pods(hint: Hint) -> bool:
    """Return whether the deletion of a pod can be the change."""
    if isinstance(hint, PodsChange):
        return hint.turn is not Direction.MORE
    return not isinstance(hint, ClusterEvent)


def few(hints: Iterable[Hint]) -> frozenset[Hint]:
    """Return the hints, or fewer ones that cover them.

    Every change of a pod is compared with the hints of all pending pods. So a pod with more than ``MOST_HINTS``
    selectors is retried at any change of a pod instead, and its namespace pays for the attempts.
    """
    found = frozenset(hints)
    of_pods = [hint for hint in found if isinstance(hint, PodsChange)]
    selectors = sum(len(hint.selection.sets) for hint in of_pods)
    # Fewer hints must never mean fewer wake-ups: ``AnyPod`` covers the removed ones.
    return found if selectors <= MOST_HINTS else found.difference(of_pods) | {AnyPod()}


@dataclass(frozen=True, slots=True)
class RuleSurroundings:
    """The input of rules beside the pod and the node. ``volumes`` belong to the pod."""

    pods_by_node: PodsByNode
    topologies: Topologies
    volumes: PodVolumes = NO_VOLUMES


class NodeRule(ABC):
    """A filter for nodes in one respect, made for one pod."""

    @classmethod
    @abstractmethod
    def of(cls, pod: Pod, around: RuleSurroundings) -> Self | None:
        """Return the rule for the pod, or None if the pod has no requirement in this respect."""

    @classmethod
    def queries(cls, pod: Pod, namespaces: Namespaces) -> Iterable[DomainQuery]:
        """Return the counts that the rule needs. They are made before the rule, in pieces."""
        return ()

    @abstractmethod
    def obstacle(self, state: LoadedNode, served: Collection[str]) -> Obstacle | None:
        """Return why the pod cannot run on the node, or None.

        ``served``: extended resources that devices provide on this node, so that the node need not offer them.
        Raises NodeSelectionError for a malformed affinity of the pod.
        """

    def obstacles(self, state: LoadedNode, served: Collection[str]) -> Iterable[Obstacle]:
        """Return all obstacles on the node, for people: a node may lack several resources."""
        # Most rules have one answer for a node.
        found = self.obstacle(state, served)
        return () if found is None else (found,)

    def hints(self, reasons: Collection[Reason] | None) -> Iterable[Hint]:
        """Return the changes that can remove obstacles with these reasons, or with any reason if None."""
        return ()

    def counts(self, obstacle: Obstacle) -> Mapping[str, int] | None:
        """Return the number of pods behind the obstacle by topology domain, or None if it is not about pods."""
        return None
