"""Why a gang has no joint plan, in the words of the member that found no node."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from dra_operator.scheduling.cycle.attempt import plan
from dra_operator.scheduling.cycle.filter import EXPLANATION_STEPS, settled
from dra_operator.scheduling.cycle.pause import PAUSE_STEPS, Elapsed, Pause
from dra_operator.scheduling.cycle.result import (
    TOO_FEW_DEVICES,
    Faulty,
    Lacking,
    NodeStatus,
    NoPlace,
    Obstructed,
    Reasons,
)
from dra_operator.scheduling.state.obstacle import Obstacle

from .member import Frame

EXPLAINED_GANG_NODES: Final = 16
"""Nodes without enough devices that are asked why."""
EXPLAINED_SUSPECT_NODES: Final = 4
"""Nodes on which an error may be met that are asked for it."""


def _suspects(failed: Frame) -> Iterator[NodeStatus]:
    """What a few nodes say that the index leaves out, and on which an error may be met."""
    demands, state_of_pod = failed.question.demands.all(), failed.member.state
    nodes, usage = state_of_pod.nodes, state_of_pod.usage
    known = [state_of_pod.allocator.candidates(demand.program, usage) for demand in demands if demand.claims]
    names = dict.fromkeys(name for candidates in known for name in candidates.suspects() if name not in candidates)
    for name in islice(names, EXPLAINED_SUSPECT_NODES):
        state = nodes.get(name)
        if state is not None and isinstance(answer := settled(failed.question.filter(state)), Faulty):
            yield answer


def unplaced(failed: Frame, failure: str, *, is_confined: bool) -> Generator[Pause, Elapsed, NoPlace]:
    """``failed`` is the member that found no node with the most others before it, ``failure`` how many and where.

    ``is_confined``: not all nodes were asked.
    """
    pod = failed.member.pod
    found = f"{failure}; pod {pod.metadata.name} fits on no other node"
    alone = yield from plan(failed.member.state)
    if isinstance(alone, NoPlace):
        return replace(alone, message=f"{found}: {alone.message}", stuck=())
    reasons, steps, left = Reasons(), 0, EXPLAINED_GANG_NODES
    for answer in [*_suspects(failed), *failed.answers]:
        if isinstance(answer, Obstructed):
            reasons.add(answer.obstacle)
        elif isinstance(answer, Lacking) and left:
            left -= 1
            steps += EXPLANATION_STEPS
            reasons.refuse(answer.refusal)
        elif isinstance(answer, Faulty) and left:
            left -= 1
            reasons.fail(answer.error)
        if steps >= PAUSE_STEPS:
            steps = 0
            yield Pause.SEARCHING
    nodes = len(failed.member.state.nodes)
    shown = reasons.obstacles.total() + EXPLAINED_GANG_NODES - left
    if shown < nodes and not is_confined:
        reasons.add(Obstacle(TOO_FEW_DEVICES, "one of the requests"), nodes - shown)
    return NoPlace(
        f"{found}: {reasons.line(shown if is_confined else nodes)}",
        reasons.main,
        short_of_room=True,
        hints=failed.question.rules.hints(),
    )
