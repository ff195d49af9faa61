"""Which of the nodes that fit is best (scheduling.md 4.4, NR-20).

First the preferred alternatives of the claims decide, then the scores for what the pod prefers together with that for
the room on the node, then the name. Deterministic, so that the same cluster always gives the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dra_operator.allocator import ClaimProgram
from dra_operator.scheduling.scoring.every_score import PodScores, Raw, WeightedScores
from dra_operator.scheduling.scoring.score import BEST_SCORE

from .result import Plan

ROOM = "room"
"""What prefers a node where no strategy does."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A node that fits. ``alternatives`` is the raw score of the chosen sub-requests (4.4).

    ``room`` is from 0 to 1: that on the node, or what the strategy ``by`` makes of it, normalized. ``score`` is the
    exact number of the strategy.
    """

    plan: Plan
    alternatives: int
    room: float
    raw: Raw = ()
    score: int = 0
    by: str = ROOM

    def named(self) -> Plan:
        """The plan, with the strategy."""
        return self.plan if self.by == ROOM else replace(self.plan, strategy=self.by)


def best(fits: Sequence[Fit], scores: PodScores) -> Plan:
    """The plan of the best node; with its scores, if the pod prefers anything."""
    if not scores:
        return min(fits, key=lambda fit: (-fit.alternatives, -fit.score, -fit.room, fit.plan.node)).named()
    weighted = scores.weighted([fit.raw for fit in fits])
    scored = [(fit, _with_room(fit, its)) for fit, its in zip(fits, weighted, strict=True)]

    def rank(it: tuple[Fit, WeightedScores]) -> tuple[int, int, int, float, str]:
        fit, its = it
        return -fit.alternatives, -total(its), -fit.score, -fit.room, fit.plan.node

    chosen, why = min(scored, key=rank)
    return replace(chosen.named(), scores=why)


def total(scores: WeightedScores) -> int:
    """The sum, by which nodes are compared."""
    return sum(each for _, each in scores)


def _with_room(fit: Fit, scores: WeightedScores) -> WeightedScores:
    return (*scores, (fit.by, int(BEST_SCORE * fit.room)))


def ideal(program: ClaimProgram) -> int:
    """The raw score when every request with alternatives gets its first one (4.4)."""
    return 8 * sum(stage.prioritized for stage in program.stages)


def enough(nodes: int) -> int:
    """After how many nodes that fit the search for better ones stops; all in clusters of up to 100 nodes."""
    return max(100, nodes * max(5, 50 - nodes // 125) // 100)
