"""What would become of the pods in files, as values: the operator's plan for each, and every node's answer.

Without pods, all claims that are not allocated yet, and one of each template, are tried together, as if one pod used
them; if they do not fit, each is tried alone as well. Every attempt starts from the state in the files; with
``sequential`` from what the one before has left. ``text_report`` and ``json_report`` render the attempts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

from dra_api.core import Pod
from dra_api.references import pod_is_done
from dra_api.resource import AllocationResult, ResourceClaim
from dra_operator.allocator import AllocationError
from dra_operator.commands.refusal_report import Holders, holders
from dra_operator.commands.simulated.claims import HeldBack
from dra_operator.commands.simulated.cluster import SimulatedCluster, closed_gate, refusal, reserve
from dra_operator.scheduling import (
    CycleState,
    Faulty,
    GettingReady,
    NodeStatus,
    NoPlace,
    Placement,
    Plan,
    PodFilter,
    PreFilterResult,
    Stolen,
    Undecided,
    decided,
    plan,
    pre_filter,
)
from dra_operator.scheduling.claims import ExtendedResources, PodClaim
from dra_operator.scheduling.state import LoadedNode


class Verdict(StrEnum):
    """The result of an attempt; the values are stable."""

    FITS = "fits"
    REFUSED = "refused"
    ERROR = "error"
    NOT_TRIED = "not-tried"
    STOLEN = "stolen"
    GETTING_READY = "getting-ready"
    PLACED = "placed"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class SimulatedAttempt:
    """One pod; None stands for the claims of files without pods."""

    pod: Pod | None
    claims: tuple[ResourceClaim, ...]
    held_back: HeldBack | None = None
    """Why the pod is not even examined."""
    pre_filter_result: PreFilterResult | None = None
    """None if the pod already has a node, is done or is held back."""
    answers: tuple[tuple[LoadedNode, NodeStatus], ...] = ()
    outcome: Plan | NoPlace | None = None
    """None where no node was asked."""
    held: Holders = field(default_factory=dict)
    """The holders of devices at that time."""
    alone: Mapping[str, bool] = field(default_factory=dict)
    """By the key of a claim whether it would fit alone; only if claims without a pod do not fit together."""

    @property
    def verdict(self) -> Verdict:
        """The kind of the outcome."""
        if isinstance(self.outcome, Plan):
            return Verdict.FITS
        if isinstance(self.outcome, NoPlace):
            return Verdict.ERROR if self.outcome.is_error else Verdict.REFUSED
        if isinstance(self.pre_filter_result, Stolen):
            return Verdict.STOLEN
        if isinstance(self.pre_filter_result, GettingReady):
            return Verdict.GETTING_READY
        if self.pre_filter_result is not None or self.held_back is not None:
            return Verdict.NOT_TRIED
        return Verdict.PLACED if self.pod is not None and self.pod.spec.node_name else Verdict.DONE

    @property
    def is_open(self) -> bool:
        """Whether some answer is not known: the files lack a claim of the pod, or the allocator gave up."""
        lacks_input = self.held_back is not None and self.held_back.lacks_input
        return lacks_input or any(isinstance(answer, Undecided) for _, answer in self.answers)

    def allocations(self, found: Plan) -> Mapping[str, AllocationResult]:
        """What a plan allocates, by the key of the claim."""
        extended = (found.extended.claim,) if found.extended is not None else ()
        return {
            claim.key: found.allocations[claim.metadata.uid]
            for claim in (*self.claims, *extended)
            if claim.metadata.uid in found.allocations
        }


def attempts(simulated: SimulatedCluster, *, sequential: bool = False) -> Iterator[SimulatedAttempt]:
    """Each is complete before the next one changes the cluster."""
    if not simulated.pods:
        claims = tuple(simulated.claims)
        held_back = refusal(claims, simulated.cluster, simulated.quotas, lasting=sequential)
        yield SimulatedAttempt(None, claims, held_back) if held_back else _of_claims(claims, simulated)
    for pod in simulated.pods:
        attempt = _of_pod(pod, simulated, sequential=sequential)
        if sequential and isinstance(attempt.pre_filter_result, CycleState) and isinstance(attempt.outcome, Plan):
            reserve(attempt.pre_filter_result, attempt.outcome, simulated.cluster)
        yield attempt


def _of_claims(claims: Sequence[ResourceClaim], simulated: SimulatedCluster) -> SimulatedAttempt:
    """The claims together, and if that fails each of them alone: templates may be alternatives."""
    attempt = _asked(None, _together(simulated, claims), simulated)
    if isinstance(attempt.outcome, Plan) or len(claims) == 1:
        return attempt
    alone = {claim.key: isinstance(_planned(_together(simulated, [claim]), simulated), Plan) for claim in claims}
    return replace(attempt, alone=alone)


def _of_pod(pod: Pod, simulated: SimulatedCluster, *, sequential: bool) -> SimulatedAttempt:
    cluster = simulated.cluster
    claims = tuple(claim for _, claim in cluster.claims_of(pod) if claim is not None)
    if pod.spec.node_name or pod_is_done(pod):
        return SimulatedAttempt(pod, claims)
    refused = refusal(claims, simulated.cluster, simulated.quotas, lasting=sequential)
    if held_back := simulated.lacking.get(pod.key) or refused or closed_gate(pod):
        return SimulatedAttempt(pod, claims, held_back)
    found = pre_filter(pod, cluster.snapshot(simulated.allocator, datetime.now(UTC)))
    if not isinstance(found, CycleState):
        return SimulatedAttempt(pod, claims, pre_filter_result=found)
    attempt = _asked(pod, found, simulated)
    if isinstance(attempt.outcome, Plan) and (extended := attempt.outcome.extended):
        held_back = simulated.quotas.refusal([extended.claim], extended_of=pod, lasting=sequential)
    return attempt if held_back is None else SimulatedAttempt(pod, claims, held_back)


def _together(simulated: SimulatedCluster, wanted: Sequence[ResourceClaim]) -> CycleState:
    """The claims, as if one pod without other requests used them."""
    cluster, pod = simulated.cluster, Pod()
    claims = tuple(PodClaim(claim.metadata.name, claim) for claim in wanted)
    usage = cluster.allocated_devices.usage.snapshot()
    extended, nodes = ExtendedResources(pod, {}), cluster.loaded_nodes()
    return CycleState(pod, claims, extended, nodes, simulated.allocator, usage, cluster.claims.get)


def _asked(pod: Pod | None, cycle_state: CycleState, simulated: SimulatedCluster) -> SimulatedAttempt:
    claims, held = tuple(cycle_state.resource_claims), holders(simulated.cluster.claims)
    simulated.learner.see(cycle_state.pod, claims)
    answers = tuple(_answers(cycle_state, simulated.placement))
    return SimulatedAttempt(pod, claims, None, cycle_state, answers, _planned(cycle_state, simulated), held)


def _planned(cycle_state: CycleState, simulated: SimulatedCluster) -> Plan | NoPlace:
    try:
        return decided(plan(cycle_state, placement=simulated.placement))
    except AllocationError as error:
        return NoPlace(str(error), is_error=True)


def _answers(cycle_state: CycleState, placement: Placement) -> Iterator[tuple[LoadedNode, NodeStatus]]:
    try:
        pod_filter = PodFilter(cycle_state)
        demands = pod_filter.demands.all()
    except AllocationError as error:
        yield from ((state, Faulty(error)) for state in cycle_state.nodes)
        return
    if len(demands) == 1 and demands[0].claims:
        pod_filter.device_order = placement.device_order(demands[0].program)
    for state in cycle_state.nodes:
        try:
            yield state, decided(pod_filter.filter(state))
        except AllocationError as error:
            yield state, Faulty(error)
