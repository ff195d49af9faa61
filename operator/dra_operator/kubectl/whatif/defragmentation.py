"""What ``kubectl dra defrag`` finds out: moves after which a pod fits, or why there are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dra_api.core import Pod
from msgspec.structs import replace

from dra_operator.kubectl.answer import Fact
from dra_operator.wording import counted

from .moves import Move, MoveSearch, OutOfBudget
from .outcome import Placed
from .overlay import Overlay


class Defragmentation(Fact, frozen=True):
    """``node`` is where the pod fits after the moves; empty if no moves were found, and then ``reason`` says why."""

    pod: str
    node: str
    moves: Sequence[Move]
    movable: int
    """So many pods may be moved."""
    waits_for: str = ""
    """Why it does not fit without moves."""
    reason: str = ""
    steps: int = 0

    @property
    def is_by_scheduler(self) -> bool:
        """The scheduler would send each successor to its target while the source is cordoned."""
        return all(move.target == move.chosen for move in self.moves)


def defragmented(
    overlay: Overlay, wanted: Pod, movable: Sequence[Pod], most_moves: int, most_steps: int, is_over: Callable[[], bool]
) -> Defragmentation:
    """The fewest moves after which the pod fits."""
    pod, hindrance = overlay.with_claims(wanted)
    movable = [each for each in movable if each.key != wanted.key]
    answer = Defragmentation(pod=wanted.key, node="", moves=(), movable=len(movable))
    if hindrance is not None:
        return replace(answer, waits_for=hindrance.text, reason="moves do not help: it is not a matter of room")
    with overlay.attempt():
        now = overlay.place(pod)
    if isinstance(now, Placed):
        return replace(answer, node=now.node)
    search = MoveSearch(overlay, pod, movable, most_steps, is_over)
    try:
        found = search.plan(most_moves)
        reason = f"not found: no plan of up to {counted(most_moves, 'move')}"
    except OutOfBudget:
        found = None
        reason = f"not found within {search.steps - 1} steps of search: allow more time, or fewer moves"
    answer = replace(answer, waits_for=now.reason, steps=search.steps)
    return replace(answer, reason=reason) if found is None else replace(answer, node=found.node, moves=found.moves)
