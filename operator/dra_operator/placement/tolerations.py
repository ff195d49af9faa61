"""Node taints and the tolerations of pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dra_api.core import Taint, Toleration

_REPELLING = ("NoSchedule", "NoExecute")  # PreferNoSchedule only asks politely
UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def repelling(taints: Iterable[Taint]) -> Iterator[Taint]:
    """Those that keep pods away."""
    return (taint for taint in taints if taint.effect in _REPELLING)


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """The first of some repelling taints that keeps a pod with these tolerations away, if any does."""
    accepted = tuple(tolerations)
    for taint in taints:
        if not any(_tolerates(toleration, taint) for toleration in accepted):
            return taint
    return None


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    # An empty key means every taint, but only together with Exists.
    return toleration.operator in ("", "Equal") and bool(toleration.key) and toleration.value == taint.value
