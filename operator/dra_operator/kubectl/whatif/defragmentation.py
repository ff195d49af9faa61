"""What ``kubectl dra defrag`` finds out: moves after which a pod or a gang fits, or why there are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from dra_api.core import Pod
from msgspec.structs import replace

from dra_operator.kubectl.answer import Fact
from dra_operator.scheduling import NoPlace
from dra_operator.wording import counted

from .moves import Move, MoveSearch, OutOfBudget, Plan
from .outcome import Placed
from .overlay import Overlay

IsOver = Callable[[], bool]


class Defragmentation(Fact, frozen=True):
    """``node`` is where the pod or gang fits after the moves; empty if no moves were found: ``reason`` says why."""

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
    overlay: Overlay, wanted: Pod, movable: Sequence[Pod], most_moves: int, most_steps: int, is_over: IsOver
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
    nodes = sorted(overlay.cluster.nodes.keys())
    search = MoveSearch(overlay, nodes, partial(overlay.fits_on, pod), movable, most_steps, is_over)
    found, answer = _searched(search, most_moves, replace(answer, waits_for=now.reason))
    return answer if found is None else replace(answer, node=found.node, moves=found.moves)


def defragmented_for_gang(
    overlay: Overlay, pods: Sequence[Pod], movable: Sequence[Pod], most_moves: int, most_steps: int, is_over: IsOver
) -> Defragmentation:
    """The fewest moves after which all pods of a gang, which wait, fit together."""
    with_claims = [overlay.with_claims(pod) for pod in pods]
    hindrance = next((it.text for _, it in with_claims if it is not None), "")
    pod, now = with_claims[0][0], None if hindrance else overlay.together(with_claims[0][0])
    answer = Defragmentation(pod=f"gang of pod {pod.key}", node="", moves=(), movable=len(movable))
    if now is None or now.answer is None:
        reason = "moves do not help: it is not a matter of room"
        return replace(answer, waits_for=hindrance or (now.text if now else "it is not tried"), reason=reason)
    answer = replace(answer, pod=f"gang {now.gang.title}")
    if not isinstance(now.answer, NoPlace):
        return replace(answer, node=now.nodes)

    def fits(_: str) -> bool:
        found = overlay.together(pod)
        return found is not None and found.is_clear

    search = MoveSearch(overlay, ("",), fits, movable, most_steps, is_over)
    found, answer = _searched(search, most_moves, replace(answer, waits_for=now.answer.message))
    then = overlay.together(pod) if found is not None else None
    return answer if found is None or then is None else replace(answer, node=then.nodes, moves=found.moves)


def _searched(search: MoveSearch, most_moves: int, answer: Defragmentation) -> tuple[Plan | None, Defragmentation]:
    """The plan; without one the answer says why."""
    try:
        found = search.plan(most_moves)
        reason = f"not found: no plan of up to {counted(most_moves, 'move')}"
    except OutOfBudget:
        found = None
        reason = f"not found within {search.steps - 1} steps of search: allow more time, or fewer moves"
    answer = replace(answer, steps=search.steps)
    return found, replace(answer, reason=reason) if found is None else answer
