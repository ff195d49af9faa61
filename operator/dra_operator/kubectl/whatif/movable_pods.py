"""Which pods may be moved, and the fewest moves after which a pod, a gang or most of a mix fits.

A pod may be moved if it says so, if a controller makes it again, and if no budget protects it now. Pods of a PodGroup
that is disrupted as one stay: a move evicts a single pod. A pod of another gang is moved only if each running pod of
the gang may be moved, and if the gang asks for no topology and no attribute.

One more move is allowed when all plans with fewer have failed. A move evicts a pod, and places its successor on a node;
each must be possible when it is made. For a node A the search finds the smallest sets of pods whose eviction lets the
wanted pod in, wherever they go. If all remaining moves are needed for such a set, only pods of these sets are moved.
If there is a move to spare, any pod may be moved to make room for others. A pod
moves once.

First the search moves pods only to where the scheduler sends them while the node that they leave is cordoned; plans
with other targets come after all of these with the same number of moves. The search is complete on one assumption: a
pod that is gone never makes it harder for the wanted one. Only required pod affinity can break it.

A mix has the kinds of pods that are usual. Its room is counted by one more pod of each kind, by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Final

from dra_api.core import Container, Pod, PodResourceClaim, PodSpec, ResourceRequirements
from dra_api.meta import ObjectMeta
from dra_api.references import group_name, pod_is_done
from dra_api.resource import ResourceClaim
from dra_api.scheduling import PodDisruptionBudget, PodGroup
from dra_api.values import parse_quantity
from msgspec.structs import replace

from dra_operator.commands.placing import Placed
from dra_operator.controllers.scheduling.mix import Asked
from dra_operator.kubectl.answer import Fact
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.pipeline import TookTooLong
from dra_operator.kubectl.sanitized import MOVABLE
from dra_operator.kubectl.whatif.drain import STAYING
from dra_operator.kubectl.whatif.overlay import Overlay
from dra_operator.scheduling import NoPlace
from dra_operator.scheduling.preemption import Budget
from dra_operator.scheduling.state import Gang, ends_as_one, gang_of
from dra_operator.wording import counted, listed


def movable_pods(
    seen: Observed,
    selected: Callable[[Mapping[str, str] | None], bool] | None,
    pause: Callable[[], None] = lambda: None,
) -> list[Pod]:
    """By name. ``selected``: labels instead of the annotation; ``pause`` is called before each budget.

    Moves are made one after the other, each when the successor of the one before runs: a budget that allows one
    disruption allows them all.
    """
    as_one = {group.key for group in seen.every(PodGroup) if ends_as_one(group)}
    found = []
    for pod in seen.every(Pod):
        meta, owner = pod.metadata, pod.metadata.controller
        allows = selected(meta.labels) if selected is not None else (meta.annotations or {}).get(MOVABLE) == "true"
        if not allows or not pod.spec.node_name or pod_is_done(pod) or meta.deletion_timestamp is not None:
            continue
        if owner is None or owner.kind in STAYING or f"{meta.namespace}/{group_name(pod)}" in as_one:
            continue
        found.append(pod)
    found = _unprotected(seen, found, pause)
    unwilling = _unwilling(seen, {pod.metadata.uid for pod in found})
    return sorted((pod for pod in found if pod.metadata.uid not in unwilling), key=lambda pod: pod.key)


def _unprotected(seen: Observed, pods: Sequence[Pod], pause: Callable[[], None]) -> list[Pod]:
    """Return the pods that each budget allows to be disrupted."""
    namespaces = {pod.metadata.namespace for pod in pods}
    budgets = [it for it in seen.every(PodDisruptionBudget) if it.metadata.namespace in namespaces]
    left = list(pods)
    for budget in budgets:
        pause()
        # One after the other, since each may be large.
        [whole] = seen.whole([budget])
        terms, namespace = Budget.of(whole), whole.metadata.namespace
        if terms.allowed <= 0:
            left = [pod for pod in left if pod.metadata.namespace != namespace or not terms.covers(pod)]
    return left


def _unwilling(seen: Observed, movable: set[str]) -> set[str]:
    """The UIDs of running pods of gangs whose pods stay."""
    groups = {group.key: group for group in seen.every(PodGroup)}
    gangs: dict[str, set[str]] = {}
    staying = set[str]()
    for pod in seen.every(Pod):
        gang = gang_of(pod, groups.get(f"{pod.metadata.namespace}/{group_name(pod)}"))
        if pod.spec.node_name and not pod_is_done(pod) and isinstance(gang, Gang):
            gangs.setdefault(gang.key, set()).add(pod.metadata.uid)
            if gang.has_domain or pod.metadata.uid not in movable:
                staying.add(gang.key)
    return {uid for key in staying for uid in gangs[key]}


class Move(Fact, frozen=True):
    """``chosen``: where the scheduler would send the successor while the source is cordoned; empty if nowhere."""

    pod: str
    uid: str
    source: str
    target: str
    devices: tuple[str, ...]
    chosen: str


@dataclass(frozen=True, slots=True)
class MovePlan:
    """After the moves the pod fits on ``node``."""

    node: str
    moves: tuple[Move, ...]


class OutOfBudget(Exception):
    """The search took as many steps as it may."""


@dataclass
class MoveSearch:
    """``fits`` says whether one of the ``goals`` is reached: the wanted pod fits on this node, or the gang fits.

    A step is one question. The search takes as long as the overlay's ``pausing`` allows.
    """

    overlay: Overlay
    goals: Sequence[str]
    fits: Callable[[str], bool]
    movable: Sequence[Pod]
    most_steps: int
    steps: int = 0
    _moves: dict[str, Move] = field(default_factory=dict)
    """Those made so far, in their order, by the pod that moved."""
    _failed: set[tuple[str, bool, frozenset[tuple[str, str, tuple[str, ...]]]]] = field(default_factory=set)

    def plan(self, most_moves: int) -> MovePlan | None:
        """Return the plan with the fewest moves, or None if none has at most these. Raises OutOfBudget, TookTooLong."""
        self._nodes = sorted(self.overlay.cluster.nodes.keys())
        for node in self.goals:
            if self._fits(node):
                return MovePlan(node, ())
        open_nodes = {node: pods for node in self.goals if (pods := self._in_the_way(node))}
        for allowed in range(1, most_moves + 1):
            for by_scheduler in (True, False):
                self._failed.clear()
                for node, pods in open_nodes.items():
                    if self._search(node, pods, allowed, by_scheduler=by_scheduler):
                        return MovePlan(node, tuple(self._moves.values()))
        return None

    def _in_the_way(self, node: str) -> list[Pod]:
        """Pods whose end would open the node: those on it if that is enough, otherwise all; none if not even those."""
        for pods in ([pod for pod in self.movable if pod.spec.node_name == node], list(self.movable)):
            with self.overlay.attempt():
                for pod in pods:
                    self.overlay.evict(pod)
                if pods and self._fits(node):
                    return pods
        return []

    def _search(self, node: str, pods: Sequence[Pod], allowed: int, *, by_scheduler: bool) -> bool:
        """Whether the wanted pod fits on the node after so many moves more; then they are in ``_moves``."""
        made = frozenset((key, move.target, move.devices) for key, move in self._moves.items())
        if (node, by_scheduler, made) in self._failed:
            return False
        left = [pod for pod in pods if pod.key not in self._moves]
        sets = self._smallest_sets(node, left, allowed)
        if sets:
            first = {pod.key: pod for each in sets for pod in each}
            spare = self.movable if allowed > len(sets[0]) else ()
            for pod in (first | {pod.key: pod for pod in spare}).values():
                for _ in self._made(pod, by_scheduler=by_scheduler):
                    fits = self._fits(node)
                    if fits or (allowed > 1 and self._search(node, pods, allowed - 1, by_scheduler=by_scheduler)):
                        return True
        self._failed.add((node, by_scheduler, made))
        return False

    def _smallest_sets(self, node: str, pods: Sequence[Pod], most: int) -> list[tuple[Pod, ...]]:
        """The smallest sets of pods whose eviction opens the node; none if they have more than ``most``."""
        for size in range(1, min(most, len(pods)) + 1):
            found = [each for each in combinations(pods, size) if self._opens(node, each)]
            if found:
                return found
        return []

    def _opens(self, node: str, pods: Sequence[Pod]) -> bool:
        with self.overlay.attempt():
            for pod in pods:
                self.overlay.evict(pod)
            return self._fits(node)

    def _made(self, pod: Pod, *, by_scheduler: bool) -> Iterator[None]:
        """Each move of the pod in turn, made while the caller looks at what follows; the last one stays if that ends.

        A caller that is content returns, and the moves are in ``_moves``.
        """
        if pod.key in self._moves:
            return
        mark = self.overlay.mark
        self.overlay.evict(pod)
        with self.overlay.cordoned(pod.spec.node_name):
            chosen = self._placed(self.overlay.successor(pod), None)
        if by_scheduler:
            if chosen is not None:
                yield from self._noted(pod, chosen, chosen.node)
            self.overlay.undo(mark)
            return
        by_scheduler_node = chosen.node if chosen is not None else ""
        self.overlay.undo(mark)
        for target in self._nodes:
            self.overlay.evict(pod)
            placed = self._placed(self.overlay.successor(pod), target)
            if placed is not None:
                yield from self._noted(pod, placed, by_scheduler_node)
            self.overlay.undo(mark)

    def _noted(self, pod: Pod, placed: Placed, chosen: str) -> Iterator[None]:
        self._moves[pod.key] = Move(
            pod=pod.key,
            uid=pod.metadata.uid,
            source=pod.spec.node_name,
            target=placed.node,
            devices=placed.devices,
            chosen=chosen,
        )
        yield
        del self._moves[pod.key]

    def _placed(self, successor: Pod, target: str | None) -> Placed | None:
        self._step()
        if target is None:
            outcome = self.overlay.place(successor, with_gang=True)
            return outcome if isinstance(outcome, Placed) else None
        pod, hindrance = self.overlay.with_claims(successor)
        return self.overlay.place_on(pod, target) if hindrance is None else None

    def _fits(self, node: str) -> bool:
        self._step()
        return self.fits(node)

    def _step(self) -> None:
        self.steps += 1
        self.overlay.made.pausing()
        if self.steps > self.most_steps:
            raise OutOfBudget


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
    overlay: Overlay, wanted: Pod, movable: Sequence[Pod], most_moves: int, most_steps: int
) -> Defragmentation:
    """The fewest moves after which the pod fits. Raises TookTooLong if not even a place without moves was found out."""
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
    search = MoveSearch(overlay, nodes, partial(overlay.fits_on, pod), movable, most_steps)
    found, answer = _searched(search, most_moves, replace(answer, waits_for=now.reason))
    if found is None:
        return answer
    with overlay.made.pausing.within(0):  # which was found in time
        then = overlay.place_on(pod, found.node)
    return replace(answer, node=found.node, moves=found.moves, devices=then.devices if then is not None else ())


def defragmented_for_gang(
    overlay: Overlay, pods: Sequence[Pod], movable: Sequence[Pod], most_moves: int, most_steps: int
) -> Defragmentation:
    """The fewest moves after which all pods of a gang fit together. Those that are not in the cluster come into it.

    Raises TookTooLong as ``defragmented`` does.
    """
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

    search = MoveSearch(overlay, ("",), fits, movable, most_steps)
    found, answer = _searched(search, most_moves, replace(answer, waits_for=now.answer.message))
    with overlay.made.pausing.within(0):
        then = overlay.together(pod) if found is not None else None
    if found is None or then is None:
        return answer
    return replace(answer, node=then.nodes, moves=found.moves, devices=then.devices)


def defragmented_for_mix(
    overlay: Overlay, mix: MixOfPods, movable: Sequence[Pod], most_moves: int, most_steps: int
) -> Defragmentation:
    """Moves after which as many as can be of the usual requests have room, each for itself, and the fewest for that.

    One plan after the other has room for more, as long as time and moves allow. Since each is the shortest that has
    room for more than the one before, it is also the shortest for what it has room.

    Raises TookTooLong as ``defragmented`` does.
    """
    mark, now = overlay.mark, mix.fitting(overlay)
    answer = Defragmentation(pod="the recent mix", node="", moves=(), movable=len(movable), share=now.share)
    if not now.lacking:
        return replace(answer, node=now.nodes)
    answer, reached, steps = replace(answer, waits_for=now.text), now, 0
    while reached.lacking:

        def fits(_: str, least: int = reached.weight) -> bool:
            return mix.fitting(overlay).weight > least

        search = MoveSearch(overlay, ("",), fits, movable, most_steps - steps)
        found, tried = _searched(search, most_moves, answer)
        steps += search.steps
        if found is None:
            return replace(answer, steps=steps, reason="" if answer.node else tried.reason)
        with overlay.made.pausing.within(0):
            reached = mix.fitting(overlay)
        gained = listed(dict.fromkeys(node for node in reached.places if node))
        answer = replace(answer, node=gained, moves=found.moves, share=reached.share)
        overlay.undo(mark)
    return replace(answer, steps=steps)


OUT_OF_TIME: Final = "the time limit was reached; kubectl dra defrag --time-limit gives more"


def _searched(search: MoveSearch, most_moves: int, answer: Defragmentation) -> tuple[MovePlan | None, Defragmentation]:
    """The plan; without one the answer says why."""
    try:
        found = search.plan(most_moves)
        reason = f"not found: no plan of up to {counted(most_moves, 'move')}"
    except OutOfBudget:
        found = None
        reason = f"not found within {search.steps - 1} steps of search: allow fewer moves"
    except TookTooLong:
        found = None
        reason = f"not found: {OUT_OF_TIME}"
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
