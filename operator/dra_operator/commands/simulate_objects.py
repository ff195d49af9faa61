"""What would become of the pods in files, as values: the operator's plan for each, and every node's answer.

Without pods, all claims that are not allocated yet, and one of each template, are tried together, as if one pod used
them. Every attempt starts from the state in the files; with ``sequential`` from what the one before has left.
``simulate_text`` and ``simulate_json`` render the attempts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

import msgspec
from dra_api.core import Pod
from dra_api.references import pod_is_done
from dra_api.resource import AllocationResult, ResourceClaim

from dra_operator.allocator import AllocationError
from dra_operator.cluster import Cluster
from dra_operator.placement import (
    Case,
    Examination,
    ExtendedResources,
    Faulty,
    GettingReady,
    LoadedNode,
    NodeAnswer,
    NoPlace,
    Plan,
    PodClaim,
    Question,
    Stolen,
    Undecided,
    decided,
    examine,
    plan,
    settled,
)

from .refusal_report import Holders, holders
from .simulated_cluster import SimulatedCluster


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
    examination: Examination | None = None
    """None if the pod already has a node or is done."""
    answers: tuple[tuple[LoadedNode, NodeAnswer], ...] = ()
    outcome: Plan | NoPlace | None = None
    """None where no node was asked."""
    held: Holders = field(default_factory=dict)
    """The holders of devices at that time."""

    @property
    def verdict(self) -> Verdict:
        """The kind of the outcome."""
        if isinstance(self.outcome, Plan):
            return Verdict.FITS
        if isinstance(self.outcome, NoPlace):
            return Verdict.ERROR if self.outcome.is_error else Verdict.REFUSED
        if isinstance(self.examination, Stolen):
            return Verdict.STOLEN
        if isinstance(self.examination, GettingReady):
            return Verdict.GETTING_READY
        if self.examination is not None:
            return Verdict.NOT_TRIED
        return Verdict.PLACED if self.pod is not None and self.pod.spec.node_name else Verdict.DONE

    @property
    def gave_up(self) -> bool:
        """Whether some answer is not known."""
        return any(isinstance(answer, Undecided) for _, answer in self.answers)

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
        yield _asked(None, _together(simulated), simulated.cluster)
    for pod in simulated.pods:
        attempt = _of_pod(pod, simulated)
        if sequential and isinstance(attempt.examination, Case) and isinstance(attempt.outcome, Plan):
            _carry_out(attempt.examination, attempt.outcome, simulated.cluster)
        yield attempt


def _of_pod(pod: Pod, simulated: SimulatedCluster) -> SimulatedAttempt:
    cluster = simulated.cluster
    claims = tuple(claim for _, claim in cluster.claims_of(pod) if claim is not None)
    if pod.spec.node_name or pod_is_done(pod):
        return SimulatedAttempt(pod, claims)
    found = examine(pod, cluster.snapshot(simulated.allocator, datetime.now(UTC)))
    return _asked(pod, found, cluster) if isinstance(found, Case) else SimulatedAttempt(pod, claims, found)


def _together(simulated: SimulatedCluster) -> Case:
    """All claims, as if one pod without other requests used them."""
    cluster, pod = simulated.cluster, Pod()
    claims = tuple(PodClaim(claim.metadata.name, claim) for claim in simulated.claims)
    usage = cluster.holdings.usage.snapshot()
    return Case(pod, claims, ExtendedResources(pod, {}), cluster.loaded_nodes(), simulated.allocator, usage)


def _asked(pod: Pod | None, case: Case, cluster: Cluster) -> SimulatedAttempt:
    claims, held = tuple(case.resource_claims), holders(cluster.claims)
    answers = tuple(_answers(case))
    try:
        outcome = decided(plan(case))
    except AllocationError as error:
        outcome = NoPlace(str(error), is_error=True)
    return SimulatedAttempt(pod, claims, case, answers, outcome, held)


def _answers(case: Case) -> Iterator[tuple[LoadedNode, NodeAnswer]]:
    try:
        question = Question(case)
    except AllocationError as error:
        yield from ((state, Faulty(error)) for state in case.nodes)
        return
    for state in case.nodes:
        try:
            yield state, settled(question.ask(state))
        except AllocationError as error:
            yield state, Faulty(error)


def _carry_out(case: Case, found: Plan, cluster: Cluster) -> None:
    """Take devices and room for the pod, as the operator would, so that the next pod finds what is left."""
    extended = (found.extended.claim,) if found.extended is not None else ()
    for claim in (*case.resource_claims, *extended):
        if claim.metadata.uid in found.allocations:
            status = msgspec.structs.replace(claim.status, allocation=found.allocations[claim.metadata.uid])
            meta = msgspec.structs.replace(claim.metadata, resource_version="simulated")
            cluster.put(msgspec.structs.replace(claim, metadata=meta, status=status))
    cluster.assume_placed(case.pod, found.node, found.served)
    cluster.storage.assume(case.pod.metadata.uid, found.node, found.volumes)
