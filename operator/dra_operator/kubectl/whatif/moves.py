"""Which pods may be moved, and the fewest moves after which a pod or a gang fits.

Those may be moved that say so, that a controller makes again, and that no budget protects now. Pods of a PodGroup that
ends as one stay: a move ends a pod alone. A pod of another gang is moved only if each running pod of the gang may be
moved, and if the gang asks for no topology and no attribute.

One more move is allowed when all plans with fewer have failed. A move evicts a pod, and places its successor on a node;
each must be possible when it is made. For a node A the search asks how many pods have to leave at least, wherever they
go: the smallest sets whose eviction lets the wanted pod in. Where that number is all that is left of the allowed moves,
only pods of such sets are moved. Where there is a move to spare, any pod may be moved to make room for others. A pod
moves once.

First the search moves pods only to where the scheduler sends them while the node that they leave is cordoned; plans
with other targets come after all of these with the same number of moves. That nothing was missed relies on one
assumption: a pod that is gone never makes it harder for the wanted one, which only required pod affinity can break.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from dra_api.core import Pod
from dra_api.references import group_name, pod_is_done
from dra_api.scheduling import PodDisruptionBudget, PodGroup

from dra_operator.commands.simulated.placing import Placed
from dra_operator.kubectl.answer import Fact
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.sanitized import MOVABLE
from dra_operator.scheduling.preemption import Budget
from dra_operator.scheduling.state import Gang, ends_as_one, gang_of

from .drain import STAYING
from .overlay import Overlay


def movable_pods(seen: Observed, selected: Callable[[Mapping[str, str] | None], bool] | None) -> list[Pod]:
    """By name. ``selected``: labels instead of the annotation.

    Moves are made one after the other, each when the successor of the one before runs: a budget that allows one
    disruption allows them all.
    """
    budgets = [(it.metadata.namespace, Budget.of(it)) for it in seen.every(PodDisruptionBudget)]
    as_one = {group.key for group in seen.every(PodGroup) if ends_as_one(group)}
    found = []
    for pod in seen.every(Pod):
        meta, owner = pod.metadata, pod.metadata.controller
        allows = selected(meta.labels) if selected is not None else (meta.annotations or {}).get(MOVABLE) == "true"
        if not allows or not pod.spec.node_name or pod_is_done(pod) or meta.deletion_timestamp is not None:
            continue
        if owner is None or owner.kind in STAYING or f"{meta.namespace}/{group_name(pod)}" in as_one:
            continue
        if all(it.allowed > 0 for namespace, it in budgets if namespace == meta.namespace and it.covers(pod)):
            found.append(pod)
    unwilling = _unwilling(seen, {pod.metadata.uid for pod in found})
    return sorted((pod for pod in found if pod.metadata.uid not in unwilling), key=lambda pod: pod.key)


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
    """The search took as many steps or as long as it may."""


@dataclass
class MoveSearch:
    """``fits`` says whether one of the ``goals`` is reached: the wanted pod fits on this node, or the gang fits.

    ``is_over``: whether the time is up. A step is one question.
    """

    overlay: Overlay
    goals: Sequence[str]
    fits: Callable[[str], bool]
    movable: Sequence[Pod]
    most_steps: int
    is_over: Callable[[], bool] = lambda: False
    steps: int = 0
    _moves: dict[str, Move] = field(default_factory=dict)
    """Those made so far, in their order, by the pod that moved."""
    _failed: set[tuple[str, bool, frozenset[tuple[str, str, tuple[str, ...]]]]] = field(default_factory=set)

    def plan(self, most_moves: int) -> MovePlan | None:
        """The plan with the fewest moves; None if there is none with so many. Raises OutOfBudget."""
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
        if self.steps > self.most_steps or self.is_over():
            raise OutOfBudget
