"""What ``kubectl dra defrag`` finds out: moves after which a pod, a gang or most of a mix fits, or why none helps.

A mix is what pods usually ask for: there is room for so much of it by one more pod of each kind, by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from dra_api.core import Container, Pod, PodResourceClaim, PodSpec, ResourceRequirements
from dra_api.meta import ObjectMeta
from dra_api.quantity import parse_quantity
from dra_api.resource import ResourceClaim
from msgspec.structs import replace

from dra_operator.commands.simulated.placing import Placed
from dra_operator.controllers.scheduling.mix import Asked
from dra_operator.kubectl.answer import Fact
from dra_operator.scheduling import NoPlace
from dra_operator.wording import counted, listed

from .moves import Move, MovePlan, MoveSearch, OutOfBudget
from .overlay import Overlay

IsOver = Callable[[], bool]


class Defragmentation(Fact, frozen=True):
    """``node`` is where the pod or gang fits after the moves, with these ``devices``; empty if no moves were found:
    ``reason`` says why."""

    pod: str
    node: str
    moves: Sequence[Move]
    movable: int
    """So many pods may be moved."""
    waits_for: str = ""
    """Why it does not fit without moves."""
    reason: str = ""
    devices: tuple[str, ...] = ()
    share: float | None = None
    """Of a mix: the part of the requests that has room after the moves, from 0 to 1."""
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
        return replace(answer, node=now.node, devices=now.devices)
    nodes = sorted(overlay.cluster.nodes.keys())
    search = MoveSearch(overlay, nodes, partial(overlay.fits_on, pod), movable, most_steps, is_over)
    found, answer = _searched(search, most_moves, replace(answer, waits_for=now.reason))
    if found is None:
        return answer
    then = overlay.place_on(pod, found.node)
    return replace(answer, node=found.node, moves=found.moves, devices=then.devices if then is not None else ())


def defragmented_for_gang(
    overlay: Overlay, pods: Sequence[Pod], movable: Sequence[Pod], most_moves: int, most_steps: int, is_over: IsOver
) -> Defragmentation:
    """The fewest moves after which all pods of a gang fit together. Those that are not in the cluster come into it."""
    with_claims = [overlay.with_claims(pod) for pod in pods]
    hindrance = next((it.text for _, it in with_claims if it is not None), "")
    pod, now = with_claims[0][0], None if hindrance else overlay.together(with_claims[0][0])
    answer = Defragmentation(pod=f"gang of pod {pod.key}", node="", moves=(), movable=len(movable))
    if now is None or now.answer is None:
        reason = "moves do not help: it is not a matter of room"
        return replace(answer, waits_for=hindrance or (now.text if now else "it is not tried"), reason=reason)
    answer = replace(answer, pod=f"gang {now.gang.title}")
    if not isinstance(now.answer, NoPlace):
        return replace(answer, node=now.nodes, devices=now.devices)

    def fits(_: str) -> bool:
        found = overlay.together(pod)
        return found is not None and found.is_clear

    search = MoveSearch(overlay, ("",), fits, movable, most_steps, is_over)
    found, answer = _searched(search, most_moves, replace(answer, waits_for=now.answer.message))
    then = overlay.together(pod) if found is not None else None
    if found is None or then is None:
        return answer
    return replace(answer, node=then.nodes, moves=found.moves, devices=then.devices)


def defragmented_for_mix(
    overlay: Overlay, mix: MixOfPods, movable: Sequence[Pod], most_moves: int, most_steps: int, is_over: IsOver
) -> Defragmentation:
    """Moves after which as many as can be of the usual requests have room, each for itself, and the fewest for that.

    One plan after the other has room for more, as long as time and moves allow. Since each is the shortest that has
    room for more than the one before, it is also the shortest for what it has room.
    """
    mark, now = overlay.mark, mix.fitting(overlay)
    answer = Defragmentation(pod="the recent mix", node="", moves=(), movable=len(movable), share=now.share)
    if not now.lacking:
        return replace(answer, node=now.nodes)
    answer, reached, steps = replace(answer, waits_for=now.text), now, 0
    while reached.lacking:

        def fits(_: str, least: int = reached.weight) -> bool:
            return mix.fitting(overlay).weight > least

        search = MoveSearch(overlay, ("",), fits, movable, most_steps - steps, is_over)
        found, tried = _searched(search, most_moves, answer)
        steps += search.steps
        if found is None:
            return replace(answer, steps=steps, reason="" if answer.node else tried.reason)
        reached = mix.fitting(overlay)
        gained = listed(dict.fromkeys(node for node in reached.places if node))
        answer = replace(answer, node=gained, moves=found.moves, share=reached.share)
        overlay.undo(mark)
    return replace(answer, steps=steps)


def _searched(search: MoveSearch, most_moves: int, answer: Defragmentation) -> tuple[MovePlan | None, Defragmentation]:
    """The plan; without one the answer says why."""
    try:
        found = search.plan(most_moves)
        reason = f"not found: no plan of up to {counted(most_moves, 'move')}"
    except OutOfBudget:
        found = None
        reason = f"not found within {search.steps - 1} steps of search: allow more time, or fewer moves"
    answer = replace(answer, steps=search.steps)
    return found, replace(answer, reason=reason) if found is None else answer


SHOWN_REQUESTS: Final = 4
"""Requests without room that are named."""


@dataclass(frozen=True, slots=True)
class MixFitting:
    """``weight`` of the requests that have room, of ``total``. ``places``: their nodes; ``lacking``: the others."""

    weight: int
    total: int
    places: Sequence[str]
    lacking: Sequence[str]

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return round(self.weight / self.total, 3)

    @property
    def nodes(self) -> str:
        """Where there is room."""
        return listed(dict.fromkeys(self.places))

    @property
    def text(self) -> str:
        """What has no room."""
        return f"{1 - self.share:.0%} of the requests have no room: {listed(self.lacking, SHOWN_REQUESTS)}"


class MixOfPods:
    """A pod for each kind of request, which asks for the cpu that such pods ask for, and tolerates nothing."""

    def __init__(self, overlay: Overlay, asked: Sequence[Asked], namespace: str) -> None:
        self._pods: list[tuple[Pod, Asked]] = []
        for number, it in enumerate(asked):
            pod, claim = _sample(it, namespace, f"recent-mix-{number}", overlay.cluster.scheduler_name)
            overlay.add([claim])
            self._pods.append((overlay.with_claims(pod)[0], it))
        self._total = sum(it.weight for it in asked)

    def fitting(self, overlay: Overlay) -> MixFitting:
        """For what there is room now."""
        found = [(it, overlay.node_for(pod)) for pod, it in self._pods]
        return MixFitting(
            sum(it.weight for it, node in found if node),
            self._total,
            [node for _, node in found if node],
            [f"{_title(it)} ({it.weight / self._total:.0%})" for it, node in found if not node],
        )


def _sample(asked: Asked, namespace: str, name: str, scheduler: str) -> tuple[Pod, ResourceClaim]:
    uses = (PodResourceClaim(name="request", resource_claim_name=name),)
    requests = ResourceRequirements(requests={"cpu": parse_quantity(f"{asked.milli_cpu}m")})
    container = Container(name="main", resources=requests)
    spec = PodSpec(scheduler_name=scheduler, containers=(container,), resource_claims=uses)
    meta = ObjectMeta(name=name, namespace=namespace, uid=f"uid {name}")
    return Pod(metadata=meta, spec=spec), replace(asked.claim, metadata=replace(meta, uid=f"uid of claim {name}"))


def _title(asked: Asked) -> str:
    """``3 gpu``."""
    [request] = asked.claim.spec.devices.requests or ()
    exactly = request.exactly
    return f"{exactly.count} {exactly.device_class_name}" if exactly is not None else request.name
