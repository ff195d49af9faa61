"""What would become of the pods in files: the operator's plan for each, every node's answer, and how both are printed.

Without pods, all claims that are not allocated yet, and one of each template, are tried together, as if one pod used
them; if they do not fit, each is tried alone as well. Every attempt starts from the state in the files; with
``sequential`` from what the one before has left. ``report`` prints them for people, ``document`` as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from dra_api.codec import to_dict
from dra_api.core import Node, Pod
from dra_api.references import pod_is_done
from dra_api.resource import AllocationResult, ResourceClaim
from dra_operator.allocator import AllocationError, DeviceId, Inventory, Refusal
from dra_operator.commands.refusal_report import Holders, grouped, holders, names
from dra_operator.commands.simulated import HeldBack, SimulatedCluster, closed_gate, refusal, reserve
from dra_operator.scheduling import (
    CycleState,
    Faulty,
    Fits,
    GettingReady,
    Lacking,
    NodeStatus,
    NoPlace,
    NotTried,
    Obstructed,
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
from dra_operator.scheduling.claims import Demand, ExtendedResources, PodClaim
from dra_operator.scheduling.state import LoadedNode, Obstacle
from dra_operator.wording import counted


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
    return CycleState(pod, claims, extended, nodes, simulated.allocator, usage)


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


JSON = dict[str, Any]
VERSION: Final = 1


def document(attempts: Iterable[SimulatedAttempt], notes: Sequence[str]) -> JSON:
    """The attempts as one document."""
    listed = [_attempt_value(attempt) for attempt in attempts]
    verdicts = Counter(attempt["verdict"] for attempt in listed)
    return {"version": VERSION, "notes": list(notes), "attempts": listed, "summary": dict(sorted(verdicts.items()))}


def _attempt_value(attempt: SimulatedAttempt) -> JSON:
    report: JSON = {
        "pod": attempt.pod.key if attempt.pod is not None else None,
        "claims": [claim.key for claim in attempt.claims],
        "verdict": attempt.verdict.value,
        "node": _node(attempt),
        "nodes": [{"node": state.name, **_answer(attempt, answer)} for state, answer in attempt.answers],
    }
    if attempt.alone:
        report["fitsAlone"] = [key for key, fits in attempt.alone.items() if fits]
    if isinstance(attempt.outcome, NoPlace):
        report["message"] = attempt.outcome.message
    if attempt.held_back is not None:
        reason = {"subject": attempt.held_back.subject, "text": attempt.held_back.reason}
        report["message"] = attempt.held_back.text
        report["obstacle"] = {"kind": attempt.held_back.kind.value, **reason}
    return report | _before_nodes(attempt.pre_filter_result)


def _node(attempt: SimulatedAttempt) -> str | None:
    if isinstance(attempt.outcome, Plan):
        return attempt.outcome.node
    return (attempt.pod.spec.node_name or None) if attempt.pod is not None else None


def _before_nodes(found: PreFilterResult | None) -> JSON:
    if found is None or isinstance(found, CycleState):
        return {}
    report: JSON = {"message": found.text}
    return report | ({"obstacle": _obstacle_value(found.obstacle)} if isinstance(found, NotTried) else {})


def _answer(attempt: SimulatedAttempt, answer: NodeStatus) -> JSON:
    fields: JSON = {"answer": answer.kind}
    if isinstance(answer, Fits):
        results = attempt.allocations(answer.plan)
        return fields | {"allocations": {key: to_dict(result) for key, result in results.items()}}
    if isinstance(answer, Obstructed):
        elsewhere = sorted(claim.key for claim in attempt.claims if claim.metadata.uid in answer.elsewhere)
        return fields | {"obstacle": _obstacle_value(answer.obstacle), "claimsElsewhere": elsewhere}
    if isinstance(answer, Lacking):
        return fields | {"refusal": _refusal(answer.refusal)}
    return fields | {"message": str(answer.error) if isinstance(answer, Faulty) else answer.text}


def _obstacle_value(obstacle: Obstacle) -> JSON:
    return {"kind": obstacle.reason.name, "subject": obstacle.subject, "text": obstacle.text}


def _refusal(refusal: Refusal) -> JSON:
    claim = refusal.claim
    return {
        "kind": refusal.rule.value,
        "claim": claim.key,
        "extendedResource": claim.resource or None,
        "deviceClass": claim.device_class or None,
        "request": refusal.request,
        "needs": refusal.needs,
        "devices": refusal.devices,
        "matching": refusal.matching,
        "lost": {lost.rule.value: lost.devices for lost in refusal.lost},
        "pools": list(refusal.pools),
        "held": [str(device) for device in refusal.held],
        "fix": refusal.fix,
        "text": refusal.line(),
    }


Counts = tuple[tuple[str, str, str, int], ...]
"""How many devices each claim and request gets from each driver: nodes that give the same answer alike."""


def report(attempts: Iterable[SimulatedAttempt], inventory: Inventory, *, sequential: bool) -> Iterator[str]:
    """Lines for each attempt, and one at the end."""
    verdicts: Counter[Verdict] = Counter()
    failing: list[str] = []
    has_pods = False
    for attempt in attempts:
        yield from _attempt(attempt, inventory, sequential=sequential)
        verdicts[attempt.verdict] += 1
        if attempt.pod is not None:
            has_pods = True
            if attempt.verdict not in (Verdict.FITS, Verdict.PLACED, Verdict.DONE):
                failing.append(attempt.pod.key)
    if has_pods:
        yield _summary(verdicts, failing)


def _summary(verdicts: Counter[Verdict], failing: list[str]) -> str:
    parts = [f"{verdict.value} {count}" for verdict in Verdict if (count := verdicts[verdict])]
    waiting = f"; without a node: {names(failing)}" if failing else ""
    return f"summary: {counted(verdicts.total(), 'pod')}: {', '.join(parts)}{waiting}"


def _attempt(attempt: SimulatedAttempt, inventory: Inventory, *, sequential: bool) -> Iterator[str]:
    claims = ", ".join(claim.key for claim in attempt.claims)
    if attempt.pod is None:
        yield f"claims {claims}"
    else:
        yield f"pod {attempt.pod.key}, claims {claims or 'none'}"
        if attempt.pre_filter_result is None and attempt.held_back is None:
            node = attempt.pod.spec.node_name
            yield f"has its node already: {node}" if node else "is done"
            return
    if attempt.held_back is not None:
        yield attempt.held_back.text
        return
    if attempt.pre_filter_result is not None and not isinstance(attempt.pre_filter_result, CycleState):
        yield attempt.pre_filter_result.text
        return
    fits = sum(isinstance(answer, Fits) for _, answer in attempt.answers)
    nodes = counted(len(attempt.answers), "node")
    if isinstance(attempt.outcome, NoPlace) and attempt.outcome.is_error:
        but = f", although the devices of {fits} would do" if fits else ""
        yield f"would fit none of {nodes}{but}: held back by an error: {attempt.outcome.message}"
    else:
        yield f"would fit {fits} of {nodes}"
    yield from _alone(attempt)
    yield from _fitting(attempt)
    yield from _obstructed(attempt)
    yield from _lacking(attempt, inventory)
    if isinstance(attempt.outcome, Plan) and attempt.outcome.strategy:
        yield f"best is {attempt.outcome.node} by the placement strategy {attempt.outcome.strategy}"
    if sequential and isinstance(attempt.outcome, Plan):
        yield f"gets node {attempt.outcome.node}"
    elif sequential and isinstance(attempt.outcome, NoPlace):
        yield f"waits: {attempt.outcome.message}"


def _alone(attempt: SimulatedAttempt) -> Iterator[str]:
    """Which claims would fit alone; they were tried together because no pod says which belong together."""
    good = [key for key, fits in attempt.alone.items() if fits]
    if len(good) == len(attempt.alone) and good:
        yield "each of these claims would fit alone: add a pod that uses the ones that belong together"
    elif good:
        yield f"alone would fit: {names(good)}"


def _fitting(attempt: SimulatedAttempt) -> Iterator[str]:
    groups: dict[Counts, list[tuple[LoadedNode, Fits]]] = {}
    for state, answer in attempt.answers:
        if isinstance(answer, Fits):
            groups.setdefault(_counts(attempt, answer.plan), []).append((state, answer))
    for members in groups.values():
        (first, answer), *others = members
        yield f"node {first.name}: fits"
        for key, result in attempt.allocations(answer.plan).items():
            yield f"  claim {key}"
            yield from _devices(result)
        if others:
            more = counted(len(others), "other node gives", "other nodes give")
            yield f"  {more} as many devices: {names([state.name for state, _ in others])}"


def _counts(attempt: SimulatedAttempt, found: Plan) -> Counts:
    counts = Counter(
        (key, given.request, given.driver)
        for key, result in attempt.allocations(found).items()
        for given in result.results
    )
    return tuple((*what, count) for what, count in sorted(counts.items()))


def _devices(result: AllocationResult) -> Iterator[str]:
    for given in result.results:
        amounts = ", ".join(f"{name} {amount}" for name, amount in (given.consumed_capacity or {}).items())
        share = f" (a share: {amounts or 'no capacity'})" if given.share_id is not None else ""
        admin = " (admin access)" if given.admin_access else ""
        yield f"    {given.request}: {DeviceId.of(given)}{share}{admin}"
    if not result.results:
        yield "    no devices"


def _obstructed(attempt: SimulatedAttempt) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for state, answer in attempt.answers:
        if not isinstance(answer, Fits | Lacking):
            reason = _obstacle(attempt, answer) if isinstance(answer, Obstructed) else answer.text
            groups.setdefault(reason, []).append(state.name)
    for reason, where in sorted(groups.items(), key=lambda group: -len(group[1])):
        yield f"{'node' if len(where) == 1 else 'nodes'} {names(where)}: {reason}"


def _obstacle(attempt: SimulatedAttempt, answer: Obstructed) -> str:
    elsewhere = sorted(claim.key for claim in attempt.claims if claim.metadata.uid in answer.elsewhere)
    if elsewhere:
        return f"claim {', '.join(elsewhere)} is allocated for other nodes"
    return f"the pod cannot run there: {answer.text}"


def _lacking(attempt: SimulatedAttempt, inventory: Inventory) -> Iterator[str]:
    refusals: dict[Demand, list[tuple[Node, Refusal]]] = {}
    for state, answer in attempt.answers:
        if isinstance(answer, Lacking):
            refusals.setdefault(answer.demand, []).append((state.node, answer.refusal))
    for demand, members in refusals.items():
        yield from grouped(members, inventory, demand.program, attempt.held)
