"""Counts the pods that a pod's rules and scores ask about in pieces, before these are made and look the numbers up.

A pod may have a hundred rules about all pods of the cluster. To compare them takes tens of milliseconds, in which
nothing else would run. What is counted is kept up to date from then on, as long as no others need the room.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import chain
from typing import Final

from dra_api.core import Pod

from dra_operator.scheduling.nodes import Nodes
from dra_operator.scheduling.rules.every_rule import RULES
from dra_operator.scheduling.rules.rule import Rule
from dra_operator.scheduling.scoring.every_score import SCORES
from dra_operator.scheduling.scoring.score import Score
from dra_operator.scheduling.state.placeholder import is_placeholder

from .pause import PAUSE_STEPS, Elapsed, Pause

LABELS_PER_STEP: Final = 100
"""Labels that are compared in the time of one step of the allocator."""


def counting(kinds: Iterable[type[Rule] | type[Score]]) -> list[type[Rule] | type[Score]]:
    """Those that count pods; most do not, and each pod would have them say so."""
    return [kind for kind in kinds if "queries" in vars(kind)]


COUNTING: Final = counting((*RULES, *SCORES))


def counted(pod: Pod, nodes: Nodes) -> Generator[Pause, Elapsed, None]:
    """Count what the pod's rules and preferences ask about. Each piece compares about ``SLICE * PER_STEP`` labels."""
    if is_placeholder(pod) or not nodes.minds_pods(pod):
        return
    compared = 0
    queries = chain.from_iterable(kind.queries(pod, nodes.pods_by_node.namespaces) for kind in COUNTING)
    for piece in chain(chain.from_iterable(map(nodes.prepare, queries)), nodes.prepare_others(pod)):
        compared += piece
        if compared >= PAUSE_STEPS * LABELS_PER_STEP:
            compared = 0
            yield Pause.SEARCHING
