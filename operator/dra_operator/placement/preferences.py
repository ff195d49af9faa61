"""What a pod would rather have, as kube-scheduler weighs it (NR-21 to NR-26): scores of nodes that fit.

Each preference gives a node a raw value. Over all nodes that fit, raw values become points from 0 to 100, which count
with the weight of the preference. Only preferences that the pod uses are there, so that a pod without any goes to the
first node that fits. ``is_ideal`` says that no node can have more: then the search need not look further.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from dra_api.core import Pod, PreferredSchedulingTerm

from dra_operator.allocator.basics.errors import NodeSelectionError
from dra_operator.allocator.published.node_selectors import NodeTerm

from .leaning import Leaning
from .node import LoadedNode
from .residents import Residents
from .soft_spread import SoftSpread
from .tolerations import intolerable
from .topology import Topologies

MOST = 100
"""Points of the best node."""
Raw = tuple[float, ...]
Points = tuple[tuple[str, int], ...]
"""What each preference gave, weighted."""


class Preference(Protocol):
    """One of them. ``best`` is the most that a node can have."""

    name: str
    weight: int
    best: float

    def raw(self, state: LoadedNode) -> float:
        """How good a node is; more is better."""
        ...

    def points(self, raws: Sequence[float]) -> list[int]:
        """The raw values of all nodes that fit, from 0 to 100."""
        ...


class Preferences:
    """Those that one pod uses, each with the most that a node can have."""

    def __init__(self, used: Iterable[Preference]) -> None:
        self._used = tuple(used)
        self._best = tuple(it.best for it in self._used)

    def __bool__(self) -> bool:
        return bool(self._used)

    def raw(self, state: LoadedNode) -> Raw:
        """How good a node is in each respect."""
        return tuple(it.raw(state) for it in self._used)

    def is_ideal(self, raw: Raw) -> bool:
        """Whether no node can be better."""
        return all(value >= best for value, best in zip(raw, self._best, strict=True))

    def points(self, raws: Sequence[Raw]) -> list[Points]:
        """The weighted points of all nodes that fit."""
        columns = [it.points([raw[number] for raw in raws]) for number, it in enumerate(self._used)]
        rows = zip(*columns, strict=True) if columns else ((),) * len(raws)
        return [tuple((it.name, it.weight * value) for it, value in zip(self._used, row, strict=True)) for row in rows]


class SoftTaints:
    """``PreferNoSchedule`` taints that the pod does not tolerate; the fewer the better."""

    name, weight, best = "taints", 3, 0.0

    def __init__(self, pod: Pod) -> None:
        self._tolerations = pod.spec.tolerations or ()

    def raw(self, state: LoadedNode) -> float:
        """How many there are, negative."""
        return -float(intolerable(state.soft_taints, self._tolerations)) if state.soft_taints else 0.0

    def points(self, raws: Sequence[float]) -> list[int]:
        """None is best, the most is worst."""
        worst = min(raws)
        return [MOST - int(MOST * raw / worst) if worst else MOST for raw in raws]


class NodeAffinity:
    """Preferred node affinity: the sum of the weights of the terms that a node meets."""

    name, weight = "node affinity", 2

    def __init__(self, preferred: Sequence[PreferredSchedulingTerm]) -> None:
        self._terms = [(it.weight, term) for it in preferred if (term := _parsed(it)) is not None]
        self.best = float(sum(weight for weight, _ in self._terms))

    def raw(self, state: LoadedNode) -> float:
        """The sum on the node."""
        labels, fields = state.node.metadata.labels or {}, {"metadata.name": state.name}
        return float(sum(weight for weight, term in self._terms if term.matches(labels, fields)))

    def points(self, raws: Sequence[float]) -> list[int]:
        """In proportion to the best node."""
        most = max(raws)
        return [int(MOST * raw / most) if most else 0 for raw in raws]


def _parsed(preferred: PreferredSchedulingTerm) -> NodeTerm | None:
    """None for a term that cannot be understood: a preference is no reason to refuse a pod."""
    try:
        return NodeTerm(preferred.preference)
    except NodeSelectionError:
        return None


def preferences(
    pod: Pod, residents: Residents, topologies: Topologies, *, nodes: int, has_soft_taints: bool
) -> Iterator[Preference]:
    """Those that the pod uses. ``has_soft_taints``: some of the nodes have taints that only ask politely."""
    if has_soft_taints:
        yield SoftTaints(pod)
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    if affinity is not None and (preferred := affinity.preferred_during_scheduling_ignored_during_execution):
        yield NodeAffinity(preferred)
    if pod.spec.topology_spread_constraints and (spread := SoftSpread(pod, residents, topologies)):
        yield spread
    if (pod.spec.affinity is not None or residents.leaning(pod)) and (
        leaning := Leaning(pod, residents, topologies, nodes)
    ):
        yield leaning
