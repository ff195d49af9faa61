"""Place pods in a cluster without writing: all of them or none, each after the pods before it.

A pod gets its claims from templates, a node and devices, as the operator would give them, and holds them in the cache
of the cluster. ``undo`` restores the cache as it was at a ``mark``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as replaced
from datetime import datetime
from functools import partial

from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.resource import ResourceClaim, ResourceClaimTemplate

from dra_operator.allocator import AllocationError, Allocator, DeviceId
from dra_operator.cache import Cluster
from dra_operator.commands.simulated import (
    ClaimQuotas,
    HeldBack,
    PodClaims,
    apply_changed,
    closed_gate,
    refusal,
    reserve,
)
from dra_operator.scheduling import (
    CycleState,
    Fits,
    NoPlace,
    Plan,
    PodFilter,
    PreFilterResult,
    decided,
    plan,
    pre_filter,
)
from dra_operator.scheduling.gang import NOTHING_SAME, joint_plan
from dra_operator.scheduling.state import Gang


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod with the node and the devices that it got, by this plan."""

    pod: Pod
    node: str
    devices: tuple[str, ...]
    plan: Plan


@dataclass(frozen=True, slots=True)
class NotPlaced:
    """``reason``: the words of the pipeline. ``fits_never``: the pods would not fit if nothing else were there."""

    pod: Pod
    reason: str
    fits_never: bool = False


class Placing:
    """Places pods in ``cluster``, which it changes. From then on the cluster gives no hints.

    ``pause`` is called before each pod, and every few milliseconds during the search for a node. An exception of
    ``pause`` ends the search. ``quotas`` admit claims; ``templates`` are ResourceClaimTemplates.
    """

    def __init__(
        self,
        cluster: Cluster,
        allocator: Allocator,
        templates: Mapping[str, ResourceClaimTemplate],
        quotas: ClaimQuotas,
        now: Callable[[], datetime],
        pause: Callable[[], None],
    ) -> None:
        self.cluster, self._allocator, self._templates, self._quotas = cluster, allocator, templates, quotas
        self._now, self._pause = now, pause
        self.cluster.gives_hints = False
        self._successors: set[str] = set()
        self._undo: list[Callable[[], object]] = []

    # --- placing ---

    def place_alone(self, pod: Pod) -> Placed | NotPlaced:
        """Place the pod on the best node for it by the rules of nodes."""
        self._pause()
        pod, hindrance = self.with_claims(pod)
        if hindrance is not None:
            return NotPlaced(pod, hindrance.text)
        state = self._pre_filtered(pod)
        if not isinstance(state, CycleState):
            return NotPlaced(pod, state.text)
        answer = decided(plan(state), self._pause)
        return self._within_quotas(state, answer) if isinstance(answer, Plan) else NotPlaced(pod, answer.message)

    def place_together(self, pods: Sequence[Pod], *, says_why: bool = True) -> Sequence[Placed | NotPlaced]:
        """Place all of these pods at the same time, or none, and then say why the first one has no place.

        Pods of a gang go where the gang may be. Gangs are planned one after the other, single pods at once. Without
        ``says_why`` the reason is short and ``fits_never`` unknown: both take several times as long as the search.
        """
        mark, quotas, placed = self.mark, self._quotas.fork(), False
        try:
            found = self._placed_together(pods, says_why=says_why)
            placed = not isinstance(found, NoPlace)
        finally:
            if not placed:
                self.undo(mark)
                self._quotas = quotas
        if isinstance(found, NoPlace):
            return [NotPlaced(pod, found.message, found.fits_never) for pod in pods]
        return [found[pod.key] for pod in pods]

    def _placed_together(self, pods: Sequence[Pod], *, says_why: bool) -> dict[str, Placed] | NoPlace:
        """Return the placements by pod key, or why the pods do not fit."""
        groups: dict[str, list[Pod]] = {}
        for pod in pods:
            self._pause()
            made, hindrance = self.with_claims(pod)
            if hindrance is not None:
                return NoPlace(f"pod {pod.metadata.name} {hindrance.text}")
            key = self.cluster.gang_key_of(made) if self.cluster.is_ours_to_place(made) else None
            groups.setdefault(key or "", []).append(made)
        found: dict[str, Placed] = {}
        for key, members in groups.items():
            states: list[CycleState] = []
            for pod in members:
                state = self._pre_filtered(pod)
                if not isinstance(state, CycleState):
                    return NoPlace(f"pod {pod.metadata.name} {state.text}")
                states.append(state)
            gang, same = self.cluster.gang_of(members[0]), NOTHING_SAME
            if key and isinstance(gang, Gang):
                same = self.cluster.same_values(gang, self.cluster.members_of(gang)[0])
            answer = decided(joint_plan(states, same, says_why=says_why), self._pause)
            if isinstance(answer, NoPlace):
                return answer
            for number in answer.order:
                # A claim that several of them use has the devices that the first one got by now.
                pod = states[number].pod
                state = self._pre_filtered(pod)
                if not isinstance(state, CycleState):
                    return NoPlace(f"pod {pod.metadata.name} {state.text}")
                outcome = self._within_quotas(state, answer[number])
                if isinstance(outcome, NotPlaced):
                    return NoPlace(f"pod {pod.metadata.name} {outcome.reason}")
                found[outcome.pod.key] = outcome
        return found

    def _within_quotas(self, state: CycleState, found: Plan) -> Placed | NotPlaced:
        """The plan is carried out, unless a quota allows no claim for the pod's extended resources."""
        extended = [found.extended.claim] if found.extended is not None else []
        if over := self._quotas.refusal(extended, extended_of=state.pod, lasting=True):
            return NotPlaced(state.pod, over.text)
        return self._carried_out(state, found)

    def place_on(self, pod: Pod, node: str) -> Placed | None:
        """Place the pod on the given node; return None if it cannot run there. The pod has its claims."""
        state = self._pre_filtered(pod)
        found = self._plan_on(state, node) if isinstance(state, CycleState) else None
        return self._carried_out(state, found) if isinstance(state, CycleState) and found is not None else None

    def with_claims(self, pod: Pod) -> tuple[Pod, HeldBack | None]:
        """The pod with the claims that are made for it, and what keeps it from being tried."""
        is_new = pod.key not in self.cluster.pods
        known = {key for key in recorded_claims(pod) if key in self.cluster.claims}
        maker = PodClaims(self.cluster, self._templates, where="in the cluster")
        pod = maker.give(pod)
        there = self.cluster.pods.get(pod.key)
        if there is not None and there.status != pod.status:
            self.put(pod)  # the pods of a gang are looked up there
        claims = self.cluster.known_claims(pod)
        self._undo += [
            partial(self.cluster.retract, ResourceClaim, key) for key in recorded_claims(pod) if key not in known
        ]
        if is_new:
            self._undo.append(partial(self.cluster.retract, Pod, pod.key))
        is_charged = pod.metadata.uid in self._successors
        refused = None if is_charged else refusal(claims, self.cluster, self._quotas, lasting=True)
        return pod, maker.lacking.get(pod.key) or refused or closed_gate(pod)

    def _pre_filtered(self, pod: Pod) -> PreFilterResult:
        snapshot = self.cluster.snapshot(self._allocator, self._now())
        if not self.cluster.is_ours_to_place(pod):  # another scheduler does not wait for all pods of our gangs
            snapshot = replaced(snapshot, gang_pods=lambda gang: gang.size)
        return pre_filter(pod, snapshot)

    def _plan_on(self, cycle_state: CycleState, node: str) -> Plan | None:
        state = cycle_state.nodes.get(node)
        if state is None:
            return None
        try:
            status = decided(PodFilter(cycle_state).filter(state), self._pause)
        except AllocationError:
            return None
        return status.plan if isinstance(status, Fits) else None

    def _carried_out(self, cycle_state: CycleState, found: Plan) -> Placed:
        pod = cycle_state.pod
        extended = [found.extended.claim] if found.extended is not None else []
        self._undo += [partial(self.cluster.retract, ResourceClaim, claim.key) for claim in extended]
        self._undo += [partial(apply_changed, self.cluster, claim) for claim in cycle_state.resource_claims]
        self._undo.append(partial(self.cluster.forget_placed, pod))
        self._undo.append(partial(self.cluster.bound.discard, pod.metadata.uid))
        reserve(cycle_state, found, self.cluster)
        self.cluster.assume_bound(pod)
        keys = [claim.key for claim in (*cycle_state.resource_claims, *extended)]
        claims = [claim for key in keys if (claim := self.cluster.claims.get(key)) is not None]
        return Placed(
            pod, found.node, tuple(str(DeviceId.of(given)) for claim in claims for given in claim.results), found
        )

    # --- undoing ---

    @property
    def mark(self) -> int:
        """A point for ``undo``."""
        return len(self._undo)

    def undo(self, mark: int) -> None:
        """Take back all that was done since the mark."""
        while len(self._undo) > mark:
            self._undo.pop()()

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Undo all changes at the end of the block."""
        mark, quotas = self.mark, self._quotas.fork()
        try:
            yield
        finally:
            self.undo(mark)
            self._quotas = quotas

    def put(self, obj: Object) -> None:
        """Take in another state of an object, or a new one."""
        before = self.cluster.store_of(type(obj)).get(obj.key)
        undo = partial(self.cluster.retract, type(obj), obj.key)
        self._undo.append(undo if before is None else partial(apply_changed, self.cluster, before))
        apply_changed(self.cluster, obj)


def recorded_claims(pod: Pod) -> list[str]:
    """The keys of the claims that the pod has from templates."""
    statuses = pod.status.resource_claim_statuses or ()
    return [f"{pod.metadata.namespace}/{it.resource_claim_name}" for it in statuses if it.resource_claim_name]
