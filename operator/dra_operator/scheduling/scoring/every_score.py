"""All scores, and what they say together of a pod, as kube-scheduler weighs them (NR-21 to NR-26).

Only scores that the pod uses are made, so that a pod without any is placed on the first node that fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dra_api.core import Pod

from dra_operator.scheduling.state.node import LoadedNode

from .prefer_no_schedule import PreferNoScheduleScore
from .preferred_affinity import PreferredAffinityScore
from .preferred_node_affinity import PreferredNodeAffinityScore
from .schedule_anyway import ScheduleAnywayScore
from .score import Cluster, Score

OF_NODES_SCORES: Final[tuple[type[Score], ...]] = (PreferNoScheduleScore, PreferredNodeAffinityScore)
SCORES: Final[tuple[type[Score], ...]] = (*OF_NODES_SCORES, ScheduleAnywayScore, PreferredAffinityScore)

Raw = tuple[float, ...]
"""The raw scores of one node."""
WeightedScores = tuple[tuple[str, int], ...]
"""What each score gave a node, normalized and weighted."""


class PodScores:
    """The scores that one pod uses; false if there are none."""

    def __init__(self, pod: Pod, cluster: Cluster, scores: Sequence[type[Score]] = SCORES) -> None:
        self._scores = tuple(score for kind in scores if (score := kind.of(pod, cluster)) is not None)
        self._best = tuple(it.best for it in self._scores)

    def __bool__(self) -> bool:
        return bool(self._scores)

    def raw(self, state: LoadedNode) -> Raw:
        """How good a node is in each respect."""
        return tuple(it.raw(state) for it in self._scores)

    def is_ideal(self, raw: Raw) -> bool:
        """Whether no node can be better."""
        return all(value >= best for value, best in zip(raw, self._best, strict=True))

    def weighted(self, raws: Sequence[Raw]) -> list[WeightedScores]:
        """The weighted scores of all nodes that fit."""
        columns = [it.normalized([raw[number] for raw in raws]) for number, it in enumerate(self._scores)]
        rows = zip(*columns, strict=True) if columns else ((),) * len(raws)
        return [
            tuple((it.name, it.weight * value) for it, value in zip(self._scores, row, strict=True)) for row in rows
        ]
