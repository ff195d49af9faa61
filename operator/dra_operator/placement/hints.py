"""Queueing hints of rules between pods: which change of pods, namespaces or nodes can help a pod that waits.

A hint is a value. Pods of one workload have the same ones, so that a change is compared with each hint once (NR-07).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from dra_api.core import Pod

from .anchors import Anchor
from .residents import Residents
from .selection import Selection
from .terms import anti_affinity


class Turn(Enum):
    """How the pods of a selection have to change."""

    MORE = auto()
    FEWER = auto()
    NONE_LEFT = auto()
    ANY = auto()


class Elsewhere(Enum):
    """Changes that matter to rules between pods but are not changes of pods."""

    NAMESPACE = auto()
    """The labels of a namespace changed, or it is new or gone."""
    NODE_GONE = auto()
    """A node is gone, and with it a topology domain or its pods."""


@dataclass(frozen=True, slots=True)
class PodsChange:
    """More or fewer pods on nodes are in the selection."""

    selection: Selection
    turn: Turn

    @property
    def anchor(self) -> Anchor:
        """A label of the pods that can help."""
        return self.selection.anchor

    def helped_by(self, before: Pod | None, after: Pod | None, residents: Residents) -> bool:
        """Whether a pod on a node helps that was ``before`` and is ``after`` now; None: it is on no node."""
        had = before is not None and self.selection.matches(before)
        has = after is not None and self.selection.matches(after)
        if had == has:
            return False
        if self.turn is Turn.NONE_LEFT:
            return had and not residents.count(self.selection).by_node
        return self.turn is Turn.ANY or self.turn is (Turn.MORE if has else Turn.FEWER)


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

    def helped_by(self, before: Pod | None, after: Pod | None, residents: Residents) -> bool:
        """As ``PodsChange.helped_by``."""
        if before is None or after is not None:
            return False  # terms of a pod never change
        labels: Mapping[str, str] = dict(self.labels)
        there = residents.namespaces.get(self.namespace, {})
        return any(term.concerns(self.namespace, there, labels) for term in anti_affinity(before))


Hint = PodsChange | RepellerGone | Elsewhere
