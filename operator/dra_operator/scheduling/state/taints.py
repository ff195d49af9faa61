"""Node taints and the tolerations of pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dra_api.core import Pod, Taint, Toleration
from dra_api.resource import SCHEDULER_KEY

from dra_operator.allocator import tolerates

from .scheduling_gate import is_at_gate

_REPELLING = ("NoSchedule", "NoExecute")
NODE_CONDITION = "node.kubernetes.io/"
"""The keys of taints that say how a node is; others say what it is for."""
UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def tolerations_of(pod: Pod) -> tuple[Toleration, ...]:
    """Return the pod's tolerations, and that of the nodes which belong to its scheduler.

    A pod at our scheduling gate has not the latter: another scheduler binds it, which knows nothing of that.
    """
    said, name = pod.spec.tolerations or (), pod.spec.scheduler_name
    if not name or is_at_gate(pod):
        return said
    return (*said, of_nodes(name))


def of_nodes(scheduler: str) -> Toleration:
    """Return the toleration of the nodes that belong to a scheduler."""
    return Toleration(key=SCHEDULER_KEY, operator="Equal", value=scheduler, effect="NoSchedule")


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
