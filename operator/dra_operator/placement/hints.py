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
    """Changes of other things than pods that matter to rules between pods."""

    NAMESPACE = auto()
    """The labels of a namespace changed, or it is new or gone."""
    NODE_GONE = auto()
    """With it goes a topology domain, or the pods of one."""


@dataclass(frozen=True, slots=True)
class PodsChange:
    """The pods on nodes that are in the selection become more or fewer."""

    selection: Selection
    turn: Turn

    @property
    def anchor(self) -> Anchor:
        """A label of the pods that can help."""
        return self.selection.anchor

    def helped_by(self, before: Pod | None, after: Pod | None, residents: Residents) -> bool:
        """Whether the pod helps that was on a node as ``before``, and is there now as ``after``; None: it is not."""
        had = before is not None and self.selection.matches(before)
        has = after is not None and self.selection.matches(after)
        if had == has:
            return False
        if self.turn is Turn.NONE_LEFT:
            return had and not residents.count(self.selection).by_node
        return self.turn is Turn.ANY or self.turn is (Turn.MORE if has else Turn.FEWER)


@dataclass(frozen=True, slots=True)
class RepellerGone:
    """A pod goes whose anti-affinity is about pods of the namespace with these labels."""

    namespace: str
    labels: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, pod: Pod) -> RepellerGone:
        """What keeps this pod away goes."""
        return cls(pod.metadata.namespace, frozenset((pod.metadata.labels or {}).items()))

    @property
    def anchor(self) -> Anchor:
        """The labels of the pods that can help do not matter."""
        return None

    def helped_by(self, before: Pod | None, after: Pod | None, residents: Residents) -> bool:
        """As ``PodsChange.helped_by``."""
        if before is None or after is not None:
            return False  # terms of a pod never change
        labels: Mapping[str, str] = dict(self.labels)
        there = residents.namespaces.get(self.namespace, {})
        return any(term.concerns(self.namespace, there, labels) for term in anti_affinity(before))


Hint = PodsChange | RepellerGone | Elsewhere
