"""Node taints and the tolerations of pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dra_api.core import Taint, Toleration

from dra_operator.allocator import tolerates

_REPELLING = ("NoSchedule", "NoExecute")
NODE_CONDITION = "node.kubernetes.io/"
"""The keys of taints that say how a node is; others say what it is for."""
UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def repelling(taints: Iterable[Taint]) -> Iterator[Taint]:
    """The taints that keep pods away."""
    return (taint for taint in taints if taint.effect in _REPELLING)


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """The first of some repelling taints that keeps a pod with these tolerations away, if any does."""
    accepted = tuple(tolerations)
    for taint in taints:
        if not any(_tolerates(toleration, taint) for toleration in accepted):
            return taint
    return None


def soft(taints: Iterable[Taint]) -> Iterator[Taint]:
    """Those that only ask politely."""
    return (taint for taint in taints if taint.effect == "PreferNoSchedule")


def intolerable(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> int:
    """How many of the taints are not tolerated."""
    accepted = tuple(tolerations)
    return sum(not any(_tolerates(toleration, taint) for toleration in accepted) for taint in taints)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    # For nodes, an empty key means every taint only together with Exists.
    return bool(toleration.key or toleration.operator == "Exists") and tolerates(toleration, taint)
