"""The decision about a pending pod: alone or with its gang, its victims, and the pods that come before it.

The plan is that of the operator. A gang that has all its pods is judged as one, by the joint plan; the pods that would
end for it are found by the same search as in the operator.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

from dra_api.core import Pod
from dra_api.references import is_reserved_for, pod_is_done

from dra_operator.allocator import DeviceId, NodeSelectionError
from dra_operator.kubectl.pipeline import Pipeline, TookTooLong
from dra_operator.kubectl.why.nodes import NodeSaid, survey
from dra_operator.kubectl.why.request_changes import every_request
from dra_operator.kubectl.why.supposed import refused_devices
from dra_operator.scheduling import (
    CycleState,
    Elapsed,
    Lacking,
    NoPlace,
    Obstructed,
    Pause,
    Plan,
    PodFilter,
    PostFilterResult,
    Unschedulable,
    decided,
    pre_filter,
)
from dra_operator.scheduling.gang import JointPlan, SameValues, joint_plan
from dra_operator.scheduling.preemption import (
    GangNomination,
    PreemptionTerms,
    leaves_soon,
    preempt,
    preempt_for_gang,
    seconds_left,
)
from dra_operator.scheduling.state import Gang, has_gate, is_placeholder
from dra_operator.wording import counted, listed


def preemption(made: Pipeline, failed: Unschedulable) -> Generator[Pause, Elapsed, PostFilterResult | None]:
    return preempt(failed, terms_of(made))


def terms_of(made: Pipeline) -> PreemptionTerms:
    """What preemption has to know of the cluster."""
    cluster, any_scheduler = made.cluster, made.settings.preempt_other_schedulers
    return PreemptionTerms(
        find_pod=cluster.pods.get,
        claims_of=cluster.claims_of,
        may_end=lambda pod: any_scheduler or pod.spec.scheduler_name == made.settings.scheduler_name,
        is_leaving=lambda pod: leaves_soon(pod, made.now, made.preemption_patience),
        holders=cluster.holders,
        gang=cluster.gang_of_pod,
        placed_with=cluster.gang_key_of,
        members=cluster.placed_of_gang,
        budgets=cluster.budgets,
        priority=cluster.priority_of,
        seconds_left=lambda pod: seconds_left(pod, cluster.nodes.get(pod.spec.node_name), made.now),
        patience=made.preemption_patience,
    )


def who_ends(made: Pipeline, fits: str, ends: Sequence[Pod], awaited: Sequence[Pod], where: str = "") -> Iterator[str]:
    """``fits`` says what is possible then."""
    if awaited:
        names, one = listed(it.key for it in awaited), len(awaited) == 1
        yield f"{fits}{where} when {names}, being deleted already, {'has' if one else 'have'} terminated"
    if not ends:
        return
    names = listed(f"{it.key} (priority {made.cluster.priority_of(it)})" for it in ends)
    what = f"{counted(len(ends), 'pod')} of lower priority{where}, after which {fits}: {names}"
    yield f"it preempts {what}" if made.settings.preemption else f"with --preemption the operator would preempt {what}"


class PodDecision(NamedTuple):
    """``answer`` is None if each node says no, and no end of other pods may help: that is a decision as well."""

    pod_filter: PodFilter | None
    """None if no node can be asked, and then ``answer`` is an error."""
    said: list[NodeSaid]
    answer: Plan | NoPlace | None
    is_cut: bool = False
    """Whether the time was over before all nodes were asked, and the decision was made."""

    @property
    def error(self) -> str:
        """What ends the attempt for all nodes; empty if nothing does."""
        return self.answer.message if isinstance(self.answer, NoPlace) and self.answer.is_error else ""


def decide(made: Pipeline, cycle_state: CycleState, *, places: bool) -> PodDecision:
    """``places``: the operator gives the pod a node, or devices."""
    try:
        pod_filter = PodFilter(cycle_state)
    except NodeSelectionError as error:
        return PodDecision(None, [], NoPlace(str(error), is_error=True))
    said: list[NodeSaid] = []
    try:
        said.extend(survey(cycle_state, pod_filter, made.pausing))
        return _decided(made, cycle_state, pod_filter, said, places=places)
    except TookTooLong:
        return PodDecision(pod_filter, said, None, is_cut=True)


def _decided(
    made: Pipeline, cycle_state: CycleState, pod_filter: PodFilter, said: list[NodeSaid], *, places: bool
) -> PodDecision:
    is_refused = said and all(isinstance(one.said.answer, Obstructed | Lacking) for one in said)
    if is_refused and not (places and _may_outrank(made, cycle_state)):
        return PodDecision(pod_filter, said, None)
    return PodDecision(pod_filter, said, made.planned(cycle_state, partial(preemption, made) if places else None))


def _may_outrank(made: Pipeline, cycle_state: CycleState) -> bool:
    """Whether some pod has a lower priority, or is about to end."""
    priority = made.cluster.priority_of
    rank = priority(cycle_state.pod)
    return any(priority(it) < rank or it.metadata.deletion_timestamp is not None for it in made.cluster.pods)


SHOWN_GANG_PODS: Final = 8
"""Pods of a gang whose nodes are named."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Together:
    """What becomes of a gang. ``hindered``: a pod that keeps the others waiting, and why."""

    gang: Gang
    pods: tuple[Pod, ...] = ()
    answer: JointPlan | NoPlace | None = None
    nominated: GangNomination | None = None
    hindered: str = ""

    @property
    def is_clear(self) -> bool:
        """Whether all fit."""
        return isinstance(self.answer, tuple)

    @property
    def nodes(self) -> str:
        """Where they are then; empty if they do not fit."""
        return listed(dict.fromkeys(plan.node for plan in self.answer)) if isinstance(self.answer, tuple) else ""

    @property
    def devices(self) -> tuple[str, ...]:
        """What they get then."""
        plans = self.answer if isinstance(self.answer, tuple) else ()
        allocations = {uid: it for plan in plans for uid, it in plan.allocations.items()}
        return tuple(str(DeviceId.of(given)) for it in allocations.values() for given in it.results)

    @property
    def text(self) -> str:
        """In the words of the condition."""
        if isinstance(self.answer, NoPlace):
            return f"gang {self.gang.title}: {self.answer.message}"
        if self.answer is None:
            return f"waits for {self.hindered}"
        places = (f"{pod.metadata.name} on {plan.node}" for pod, plan in zip(self.pods, self.answer, strict=True))
        return f"gang {self.gang.title} fits together: {listed(places, SHOWN_GANG_PODS)}"

    def victims(self, made: Pipeline) -> Iterator[str]:
        """Who ends for the gang."""
        found = self.nominated
        if found is not None:
            yield from who_ends(made, f"all of gang {self.gang.title} fits", found.victims, found.awaited)


def together(made: Pipeline, state: CycleState, *, preempts: bool) -> Together | None:
    """The gang of a pod that can be tried; None if it is planned by itself, as a pod that comes later is."""
    pod, cluster = state.pod, made.cluster
    gang = None if has_gate(pod) or is_placeholder(pod) else cluster.gang_of(pod)
    if not isinstance(gang, Gang):
        return None
    running, waiting = cluster.members_of(gang)
    wanted = max(gang.size - len(running), 1)
    if len(running) >= gang.size and not gang.has_domain:
        return None
    states, snapshot = [state], cluster.snapshot(made.allocator, made.now)
    hindered = ""
    # The pod is among them, so that it stays at hand.
    for other in made.at_hand([pod, *waiting])[1:]:
        if other.key == pod.key or len(states) == wanted:
            continue
        found = pre_filter(other, snapshot)
        refused = refused_devices(made, found.resource_claims) if isinstance(found, CycleState) else found.text
        if isinstance(found, CycleState) and not refused:
            states.append(found)
        else:
            hindered = hindered or f"pod {other.metadata.name} of its gang, which {refused}"
    if len(states) < wanted:
        return Together(gang, hindered=hindered or missing_members(gang, len(running) + len(waiting)))
    return _planned(made, gang, states, cluster.same_values(gang, running), preempts=preempts)


def missing_members(gang: Gang, there: int) -> str:
    """Return how many pods of the gang are missing, in words. The pod itself counts as present."""
    lacking = gang.size - there
    if lacking <= 0:
        return "other pods of its gang"
    are = "is" if there == 1 else "are"
    return f"{counted(lacking, 'more pod')} of gang {gang.title}, which needs {gang.size}: {there} {are} there"


def _planned(made: Pipeline, gang: Gang, states: list[CycleState], same: SameValues, *, preempts: bool) -> Together:
    answer, nominated = decided(joint_plan(states, same), made.pausing), None
    holds = any(is_reserved_for(state.pod, claim) for state in states for claim in state.resource_claims)
    if preempts and not holds and isinstance(answer, NoPlace) and not answer.is_error:
        nominated = decided(preempt_for_gang(states, same, terms_of(made)), made.pausing)
    return Together(gang, tuple(state.pod for state in states), answer, nominated)


def ahead_in_line(made: Pipeline, pod: Pod) -> Iterator[str]:
    """Who of higher priority waits for devices of the same classes, and the pod's place among all that do."""
    cluster, rank = made.cluster, made.cluster.priority_of
    pending = [it for _, it in cluster.claims_of(pod) if it is not None and it.status.allocation is None]
    classes = {wanted.device_class_name for claim in pending for _, wanted in every_request(claim)}

    def wants_the_same(other: Pod) -> bool:
        keys = cluster.pods_by_claim.values_of(other.key)
        return any(classes & cluster.claims_by_class.values_of(key) for key in keys)

    waiting = [it for it in cluster.pods if not it.spec.node_name and not pod_is_done(it) and it.key != pod.key]
    rivals = [other for other in waiting if wants_the_same(other)]
    ahead = sorted(other.key for other in rivals if rank(other) > rank(pod))
    if ahead:
        wait = "waits" if len(ahead) == 1 else "wait"
        what = f"{counted(len(ahead), 'pod')} of higher priority {wait} for devices of the same classes"
        yield f"{what}: {listed(ahead)}"
    before = [it for it in rivals if (-rank(it), _since(it)) < (-rank(pod), _since(pod))]
    if rivals and any(map(_since, (pod, *rivals))):
        place = f"number {len(before) + 1} of the {len(rivals) + 1} pods that wait for devices of these classes"
        yield f"by priority and age it is {place}"


def _since(pod: Pod) -> str:
    return pod.metadata.creation_timestamp or ""
