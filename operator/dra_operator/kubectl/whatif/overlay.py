"""A cluster in which pods are placed, evicted and moved without a write: each finds what the ones before have left.

Nothing that was observed is removed, because a store lets nothing of a known UID come back: an evicted pod stays as
one that has failed, which counts for no gang, and a claim that ends as one without devices. A successor has a name and
a UID that no object had before. ``undo`` takes back what was done since a ``mark``: what was made since then never was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace as replaced
from functools import partial
from itertools import count

from dra_api.core import Node, Pod, PodStatus
from dra_api.meta import Object
from dra_api.quota import ResourceQuota
from dra_api.references import is_pod_group, is_reserved_for, stands_for
from dra_api.releases.release import Release
from dra_api.resource import (
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
    ResourceClaimTemplate,
)
from msgspec.structs import replace

from dra_operator.allocator import AllocationError, DeviceId
from dra_operator.commands.simulated.claims import ClaimQuotas, HeldBack, PodClaims
from dra_operator.commands.simulated.cluster import (
    apply_changed,
    closed_gate,
    extended_resource,
    refusal,
    reserve,
)
from dra_operator.controllers.scheduling.same_places import same_values
from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.kubectl.why.decision import Together, together
from dra_operator.scheduling import (
    CycleState,
    Fits,
    NoPlace,
    Plan,
    PodFilter,
    PreFilterResult,
    decided,
    pre_filter,
)
from dra_operator.scheduling.gang import NOTHING_SAME, joint_plan
from dra_operator.scheduling.state import Gang, is_immediate

from .outcome import NotPlaced, Placed


class Overlay:
    """Over the view of a pipeline, which changes with it.

    ``pause`` is called before each pod, and every few milliseconds while a node is looked for; what it raises ends
    that.
    """

    def __init__(self, made: Pipeline, pause: Callable[[], None] = lambda: None) -> None:
        self.made, self.cluster = made, made.cluster
        made.pausing.limit = pause
        self.cluster.gives_hints = False
        serves = partial(extended_resource, made.cluster)
        self._quotas = ClaimQuotas(made.seen.every(ResourceQuota), made.seen.every(ResourceClaim), serves)
        self._templates = {template.key: template for template in made.seen.every(ResourceClaimTemplate)}
        self._numbers = count(1)
        self._successors: set[str] = set()
        self._undo: list[Callable[[], object]] = []

    @property
    def has_quotas(self) -> bool:
        """Whether any quota counts claims."""
        return bool(self._quotas)

    # --- placing ---

    def add(self, objects: Iterable[ResourceClaimTemplate | ResourceClaim]) -> None:
        """As if these were there. Of a claim that is there already, what it has is known to the cluster alone."""
        for obj in objects:
            if isinstance(obj, ResourceClaimTemplate):
                before = self._templates.get(obj.key)
                self._templates[obj.key] = obj
                self._undo.append(partial(self._restore_template, obj.key, before))
            elif obj.key not in self.cluster.claims:
                self.cluster.apply(obj)
                self._undo.append(partial(self.cluster.retract, ResourceClaim, obj.key))

    def _restore_template(self, key: str, before: ResourceClaimTemplate | None) -> None:
        if before is None:
            del self._templates[key]
        else:
            self._templates[key] = before

    def place(self, pod: Pod, *, with_gang: bool = False) -> Placed | NotPlaced:
        """Where the scheduler would place the pod; what it takes there is taken.

        ``with_gang``: a pod of a gang is planned as in the operator, with the pods of the gang that wait.
        """
        self.made.pausing()
        pod, hindrance = self.with_claims(pod)
        if hindrance is not None:
            return NotPlaced(pod, hindrance.text)
        state = self._pre_filtered(pod)
        outcome = self._outcome(state, with_gang=with_gang)
        while isinstance(outcome, NoPlace) and outcome.stuck:
            for _, claim in outcome.stuck:
                self._put(replace(claim, status=ResourceClaimStatus()))
            state = self._pre_filtered(pod)
            outcome = self._outcome(state, with_gang=with_gang)
        if not isinstance(state, CycleState):
            return NotPlaced(pod, state.text)
        if not isinstance(outcome, Plan):
            return NotPlaced(pod, outcome.message if outcome is not None else "")
        return self._within_quotas(state, outcome)

    def place_together(self, pods: Sequence[Pod]) -> Sequence[Placed | NotPlaced]:
        """Place all of these pods at the same time, or none, and then say why the first one has no place.

        Pods of a gang go where the gang may be. Gangs are planned one after the other, single pods at once.
        """
        mark, quotas, placed = self.mark, self._quotas.fork(), False
        try:
            found = self._placed_together(pods)
            placed = not isinstance(found, str)
        finally:
            if not placed:
                self.undo(mark)
                self._quotas = quotas
        return [NotPlaced(pod, found) if isinstance(found, str) else found[pod.key] for pod in pods]

    def place_gang(self, gang: Gang, pods: Sequence[Pod]) -> Sequence[Placed | NotPlaced]:
        """Place as many pods of one gang as it needs, or none. Further pods join them one by one.

        If fewer are here than it needs, its pending pods in the cluster are planned with them.
        """
        running, _ = self.cluster.members_of(gang)
        wanted = max(gang.size - len(running), 1)
        if len(pods) < wanted or wanted == 1:
            return [self.place(pod, with_gang=True) for pod in pods]
        found = self.place_together(pods[:wanted])
        if isinstance(found[0], NotPlaced):
            return [*found, *(NotPlaced(pod, found[0].reason) for pod in pods[wanted:])]
        return [*found, *(self.place(pod, with_gang=True) for pod in pods[wanted:])]

    def _placed_together(self, pods: Sequence[Pod]) -> dict[str, Placed] | str:
        """By the key of each pod; or why they do not fit."""
        groups: dict[str, list[Pod]] = {}
        for pod in pods:
            self.made.pausing()
            made, hindrance = self.with_claims(pod)
            if hindrance is not None:
                return f"pod {pod.metadata.name} {hindrance.text}"
            key = self.cluster.gang_key_of(made) if self.cluster.is_ours_to_place(made) else None
            groups.setdefault(key or "", []).append(made)
        found: dict[str, Placed] = {}
        for key, members in groups.items():
            states: list[CycleState] = []
            for pod in members:
                state = self._pre_filtered(pod)
                if not isinstance(state, CycleState):
                    return f"pod {pod.metadata.name} {state.text}"
                states.append(state)
            gang, same = self.cluster.gang_of(members[0]), NOTHING_SAME
            if key and isinstance(gang, Gang):
                same = same_values(self.cluster, gang, self.cluster.members_of(gang)[0])
            answer = decided(joint_plan(states, same), self.made.pausing)
            if isinstance(answer, NoPlace):
                return answer.message
            for number in answer.order:
                # A claim that several of them use has the devices that the first one got by now.
                pod = states[number].pod
                state = self._pre_filtered(pod)
                if not isinstance(state, CycleState):
                    return f"pod {pod.metadata.name} {state.text}"
                outcome = self._within_quotas(state, answer[number])
                if isinstance(outcome, NotPlaced):
                    return f"pod {pod.metadata.name} {outcome.reason}"
                found[outcome.pod.key] = outcome
        return found

    def _within_quotas(self, state: CycleState, found: Plan) -> Placed | NotPlaced:
        """The plan is carried out, unless a quota allows no claim for the pod's extended resources."""
        extended = [found.extended.claim] if found.extended is not None else []
        if over := self._quotas.refusal(extended, extended_of=state.pod, lasting=True):
            return NotPlaced(state.pod, over.text)
        return self._carried_out(state, found)

    def _outcome(self, state: PreFilterResult, *, with_gang: bool) -> Plan | NoPlace | None:
        if not isinstance(state, CycleState):
            return None
        gang = together(self.made, state, preempts=False) if with_gang else None
        if gang is None:
            return self.made.planned(state)
        if isinstance(gang.answer, tuple):
            return gang.answer[0]
        return gang.answer or NoPlace(gang.text, "with-gang")

    def place_on(self, pod: Pod, node: str) -> Placed | None:
        """The pod, which has its claims, on this very node, if it can run there."""
        state = self._pre_filtered(pod)
        found = self._plan_on(state, node) if isinstance(state, CycleState) else None
        return self._carried_out(state, found) if isinstance(state, CycleState) and found is not None else None

    def fits_on(self, pod: Pod, node: str) -> bool:
        """Whether the pod, which has its claims, can run on the node."""
        state = self._pre_filtered(pod)
        return isinstance(state, CycleState) and self._plan_on(state, node) is not None

    def node_for(self, pod: Pod) -> str:
        """Where the scheduler would place the pod, which has its claims; empty if nowhere. Nothing is taken."""
        outcome = self._outcome(self._pre_filtered(pod), with_gang=False)
        return outcome.node if isinstance(outcome, Plan) else ""

    def together(self, pod: Pod) -> Together | None:
        """What becomes of the gang of the pod, all of which have their claims; None if it cannot be tried."""
        state = self._pre_filtered(pod)
        return together(self.made, state, preempts=False) if isinstance(state, CycleState) else None

    def with_claims(self, pod: Pod) -> tuple[Pod, HeldBack | None]:
        """The pod with the claims that are made for it, and what keeps it from being tried."""
        is_new = pod.key not in self.cluster.pods
        known = {key for key in _recorded(pod) if key in self.cluster.claims}
        maker = PodClaims(self.cluster, self._templates, where="in the cluster")
        pod = maker.give(pod)
        there = self.cluster.pods.get(pod.key)
        if there is not None and there.status != pod.status:
            self._put(pod)  # the pods of a gang are looked up there
        claims = [claim for _, claim in self.cluster.claims_of(pod) if claim is not None]
        self._undo += [partial(self.cluster.retract, ResourceClaim, key) for key in _recorded(pod) if key not in known]
        if is_new:
            self._undo.append(partial(self.cluster.retract, Pod, pod.key))
        is_charged = pod.metadata.uid in self._successors
        refused = None if is_charged else refusal(claims, self.cluster, self._quotas, lasting=True)
        return pod, maker.lacking.get(pod.key) or refused or closed_gate(pod)

    def _pre_filtered(self, pod: Pod) -> PreFilterResult:
        snapshot = self.cluster.snapshot(self.made.allocator, self.made.now)
        if not self.cluster.is_ours_to_place(pod):  # another scheduler does not wait for all pods of our gangs
            snapshot = replaced(snapshot, gang_pods=lambda gang: gang.size)
        return pre_filter(pod, snapshot)

    def _plan_on(self, cycle_state: CycleState, node: str) -> Plan | None:
        state = cycle_state.nodes.get(node)
        if state is None:
            return None
        try:
            status = decided(PodFilter(cycle_state).filter(state), self.made.pausing)
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
        return Placed(pod, found.node, tuple(str(DeviceId.of(given)) for claim in claims for given in claim.results))

    # --- evicting ---

    def evict(self, pod: Pod) -> tuple[str, ...]:
        """The pod ends, and gives back what no other pod has with it; the devices that it used."""
        self.made.pausing()
        lost: list[str] = []
        claims = {claim.key: claim for _, claim in self.cluster.claims_of(pod) if claim is not None}
        own = {claim.key: claim for claim in self.cluster.claims_owned_by(pod)}
        if (held := self.cluster.loads.take_out(pod.metadata.uid)) is not None:
            self._undo.append(partial(self.cluster.loads.place, pod, *held))
        self._put(replace(pod, status=replace(pod.status, phase="Failed")))
        for key, claim in (claims | own).items():
            if key not in own and not is_reserved_for(pod, claim):
                continue
            lost += [str(DeviceId.of(given)) for given in claim.results]
            left = tuple(user for user in claim.status.reserved_for or () if self._outlasts(user, claim, pod))
            is_kept = key not in own and (left or is_immediate(claim))
            status = replace(claim.status, reserved_for=left) if is_kept else ResourceClaimStatus()
            self._put(replace(claim, status=status))
        return tuple(lost)

    def _outlasts(self, consumer: ResourceClaimConsumerReference, claim: ResourceClaim, pod: Pod) -> bool:
        """Whether a reservation of the claim outlasts the pod, which has ended: that for its PodGroup ends with the
        last of the pods, up to 1.36 with the group."""
        if not (is_pod_group(consumer) and stands_for(consumer, pod)):
            return consumer.uid != pod.metadata.uid
        groups, features = self.cluster.groups, self.cluster.features
        is_there = groups.store.get(f"{claim.metadata.namespace}/{consumer.name}", consumer.uid) is not None
        if not features.workload_resource_claims or (is_there and features.release < Release.V1_37):
            return True
        return groups.needs(claim, consumer)

    def successor(self, pod: Pod) -> Pod:
        """The pod that its controller makes in its place; ``~`` keeps its name apart from those of real pods."""
        name = f"{pod.metadata.name.partition('~')[0]}~{next(self._numbers)}"
        meta = replace(pod.metadata, name=name, uid=f"successor {pod.metadata.namespace}/{name}", resource_version="")
        self._successors.add(meta.uid)
        return replace(pod, metadata=meta, spec=replace(pod.spec, node_name=""), status=PodStatus())

    def cordon(self, node: Node) -> None:
        """No further pod goes there."""
        self._put(replace(node, spec=replace(node.spec, unschedulable=True)))

    @contextmanager
    def cordoned(self, name: str) -> Iterator[None]:
        """Inside the block no further pod goes to the node."""
        node = self.cluster.nodes.get(name)
        if node is not None:
            self.cordon(node)
        try:
            yield
        finally:
            if node is not None:
                self._put(node)

    # --- undoing ---

    @property
    def mark(self) -> int:
        """Where ``undo`` can return to."""
        return len(self._undo)

    def undo(self, mark: int) -> None:
        """Take back all that was done since the mark."""
        while len(self._undo) > mark:
            self._undo.pop()()

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """What is done inside the block is undone at its end."""
        mark, quotas = self.mark, self._quotas.fork()
        try:
            yield
        finally:
            self.undo(mark)
            self._quotas = quotas

    def _put(self, obj: Object) -> None:
        before = self.cluster.store_of(type(obj)).get(obj.key)
        if before is not None:
            self._undo.append(partial(apply_changed, self.cluster, before))
        apply_changed(self.cluster, obj)


def _recorded(pod: Pod) -> list[str]:
    """The keys of the claims that the pod has from templates."""
    statuses = pod.status.resource_claim_statuses or ()
    return [f"{pod.metadata.namespace}/{it.resource_claim_name}" for it in statuses if it.resource_claim_name]
