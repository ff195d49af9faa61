"""A cluster in which pods are placed, evicted and moved without a write, each after the ones before it.

No observed object is removed, because a store lets nothing of a known UID come back. An evicted pod stays as a failed
one, and counts for no gang. A deleted claim stays as one without devices. A successor has a name and a UID that no
object had before. ``undo`` removes everything that was made since a ``mark``.

``PodFact`` tells the fate of a pod that is placed so, ``LeftFact`` what remains free.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count

from dra_api.core import Node, Pod, PodStatus
from dra_api.quota import ResourceQuota
from dra_api.references import is_pod_group, is_reserved_for, stands_for
from dra_api.releases import Release
from dra_api.resource import ResourceClaim, ResourceClaimConsumerReference, ResourceClaimStatus, ResourceClaimTemplate
from msgspec.structs import replace

from dra_operator.allocator import DeviceId
from dra_operator.commands.placing import NotPlaced, Placed, Placing
from dra_operator.commands.simulated import ClaimQuotas, HeldBack, extended_resource
from dra_operator.kubectl.answer import Fact
from dra_operator.kubectl.facts import devices_of
from dra_operator.kubectl.free import best_offer, members
from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.kubectl.why.decision import Together, together
from dra_operator.scheduling import CycleState, NoPlace, Plan, PreFilterResult
from dra_operator.scheduling.preemption import priority
from dra_operator.scheduling.state import Gang, is_immediate


class Overlay(Placing):
    """Over the view of a pipeline, which changes with it.

    ``pause`` is called before each pod, and every few milliseconds while a node is looked for; what it raises ends
    that.
    """

    def __init__(self, made: Pipeline, pause: Callable[[], None] = lambda: None) -> None:
        self.made = made
        made.pausing.limit = pause
        serves = partial(extended_resource, made.cluster)
        quotas = ClaimQuotas(made.seen.every(ResourceQuota), made.seen.every(ResourceClaim), serves)
        # Nothing is written to the second one.
        self._given: ChainMap[str, ResourceClaimTemplate] = ChainMap({}, made.seen.templates)  # type: ignore[arg-type]
        super().__init__(made.cluster, made.allocator, self._given, quotas, lambda: made.now, made.pausing)
        self._numbers = count(1)

    @property
    def has_quotas(self) -> bool:
        """Whether any quota counts claims."""
        return bool(self._quotas)

    # --- placing ---

    def add(self, objects: Iterable[ResourceClaimTemplate | ResourceClaim]) -> None:
        """As if these were there. Of a claim that is there already, what it has is known to the cluster alone."""
        for obj in objects:
            if isinstance(obj, ResourceClaimTemplate):
                before = self._given.get(obj.key)
                self._given[obj.key] = obj
                self._undo.append(partial(self._restore_template, obj.key, before))
            elif obj.key not in self.cluster.claims:
                self.cluster.apply(obj)
                self._undo.append(partial(self.cluster.retract, ResourceClaim, obj.key))

    def _restore_template(self, key: str, before: ResourceClaimTemplate | None) -> None:
        if before is None:
            del self._given[key]
        else:
            self._given[key] = before

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
                self.put(replace(claim, status=ResourceClaimStatus()))
            state = self._pre_filtered(pod)
            outcome = self._outcome(state, with_gang=with_gang)
        if not isinstance(state, CycleState):
            return NotPlaced(pod, state.text)
        if not isinstance(outcome, Plan):
            return NotPlaced(pod, outcome.message if outcome is not None else "")
        return self._within_quotas(state, outcome)

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

    def _outcome(self, state: PreFilterResult, *, with_gang: bool) -> Plan | NoPlace | None:
        if not isinstance(state, CycleState):
            return None
        gang = together(self.made, state, preempts=False) if with_gang else None
        if gang is None:
            return self.made.planned(state)
        if isinstance(gang.answer, tuple):
            return gang.answer[0]
        return gang.answer or NoPlace(gang.text, "with-gang")

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

    # --- evicting ---

    def evict(self, pod: Pod) -> tuple[str, ...]:
        """The pod ends, and gives back what no other pod has with it; the devices that it used."""
        self.made.pausing()
        lost: list[str] = []
        claims = {claim.key: claim for _, claim in self.cluster.claims_of(pod) if claim is not None}
        own = {claim.key: claim for claim in self.cluster.claims_owned_by(pod)}
        if (held := self.cluster.loads.take_out(pod.metadata.uid)) is not None:
            self._undo.append(partial(self.cluster.loads.place, pod, *held))
        self.put(replace(pod, status=replace(pod.status, phase="Failed")))
        for key, claim in (claims | own).items():
            if key not in own and not is_reserved_for(pod, claim):
                continue
            lost += [str(DeviceId.of(given)) for given in claim.results]
            left = tuple(user for user in claim.status.reserved_for or () if self._outlasts(user, claim, pod))
            is_kept = key not in own and (left or is_immediate(claim))
            status = replace(claim.status, reserved_for=left) if is_kept else ResourceClaimStatus()
            self.put(replace(claim, status=status))
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

    def with_claims(self, pod: Pod) -> tuple[Pod, HeldBack | None]:
        """As in the base, of the whole pod. Raises Problem."""
        [pod] = self.made.at_hand([pod])
        return super().with_claims(pod)

    def _pre_filtered(self, pod: Pod) -> PreFilterResult:
        [pod] = self.made.at_hand([pod])
        return super()._pre_filtered(pod)

    def successor(self, pod: Pod) -> Pod:
        """The pod that its controller makes in its place; ``~`` keeps its name apart from those of real pods."""
        [pod] = self.made.at_hand([pod])
        name = f"{pod.metadata.name.partition('~')[0]}~{next(self._numbers)}"
        meta = replace(pod.metadata, name=name, uid=f"successor {pod.metadata.namespace}/{name}", resource_version="")
        self._successors.add(meta.uid)
        return replace(pod, metadata=meta, spec=replace(pod.spec, node_name=""), status=PodStatus())

    def cordon(self, node: Node) -> None:
        """No further pod goes there."""
        self.put(replace(node, spec=replace(node.spec, unschedulable=True)))

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
                self.put(node)


class PodFact(Fact, frozen=True):
    """Where a pod would be; ``reason`` says why not if ``node`` is empty."""

    pod: str
    node: str = ""
    devices: tuple[str, ...] = ()
    reason: str = ""

    @classmethod
    def of(cls, outcome: Placed | NotPlaced, pod: str = "") -> PodFact:
        """``pod``: the name to tell, if it is not that of the outcome."""
        name = pod or outcome.pod.key
        if isinstance(outcome, NotPlaced):
            return cls(pod=name, reason=outcome.reason)
        return cls(pod=name, node=outcome.node, devices=outcome.devices)


class LeftFact(Fact, frozen=True):
    """The largest request of a class that still fits, and where; ``keeps_away`` as in ``free``."""

    device_class: str
    largest: int
    node: str = ""
    keeps_away: str = ""

    @property
    def text(self) -> str:
        """``2 gpu on gpu-1``."""
        tolerated = f" ({self.keeps_away})" if self.keeps_away else ""
        return f"{self.largest} {self.device_class}" + (f" on {self.node}{tolerated}" if self.largest else "")


def left_in(made: Pipeline) -> Sequence[LeftFact]:
    """By class, as the view is now."""
    ledger = made.ledger()
    devices, found = devices_of(made.seen, ledger), []
    for name in ledger.classes:
        best = best_offer(made, name, members(ledger, name, devices))
        if best is None:
            found.append(LeftFact(device_class=name, largest=0))
        else:
            found.append(LeftFact(device_class=name, largest=best.largest, node=best.node, keeps_away=best.keeps_away))
    return found


def successors(overlay: Overlay, pods: Iterable[Pod]) -> Iterator[tuple[str, Placed | NotPlaced]]:
    """Yield the key of each evicted pod with the place of its successor.

    Successors of the most important pods are placed first, then of the oldest; each leaves less for the next.
    """
    in_order = sorted(pods, key=lambda pod: (-priority(pod), pod.metadata.creation_timestamp or "", pod.key))
    for pod in in_order:
        overlay.made.pausing()
        yield pod.key, overlay.place(overlay.successor(pod))
