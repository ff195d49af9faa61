"""A pod of a gang that has all its pods: whether all of them fit together, by the same plan as in the operator."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from dra_api.core import Pod
from dra_api.references import is_reserved_for

from dra_operator.allocator import DeviceId
from dra_operator.controllers.scheduling.planning import same_values
from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.scheduling import CycleState, Elapsed, NoPlace, Pause, pre_filter
from dra_operator.scheduling.gang import JointPlan, SameValues, joint_plan
from dra_operator.scheduling.preemption import GangNomination, preempt_for_gang
from dra_operator.scheduling.state import Gang, has_gate, is_placeholder
from dra_operator.wording import counted, listed

from .claim_making import refused_devices
from .preemption import terms_of, who_ends

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
    for other in waiting:
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
    return _planned(made, gang, states, same_values(cluster, gang, running), preempts=preempts)


def missing_members(gang: Gang, there: int) -> str:
    """How many pods of the gang are not there; its own pod is among those that are."""
    lacking = gang.size - there
    if lacking <= 0:
        return "other pods of its gang"
    are = "is" if there == 1 else "are"
    return f"{counted(lacking, 'more pod')} of gang {gang.title}, which needs {gang.size}: {there} {are} there"


def _planned(made: Pipeline, gang: Gang, states: list[CycleState], same: SameValues, *, preempts: bool) -> Together:
    answer, nominated = _in_one_go(joint_plan(states, same), made.pausing), None
    holds = any(is_reserved_for(state.pod, claim) for state in states for claim in state.resource_claims)
    if preempts and not holds and isinstance(answer, NoPlace) and not answer.is_error:
        nominated = _in_one_go(preempt_for_gang(states, same, terms_of(made)), made.pausing)
    return Together(gang, tuple(state.pod for state in states), answer, nominated)


def _in_one_go(work: Generator[Pause, Elapsed, T], pause: Callable[[], None]) -> T:
    while True:
        try:
            next(work)
            pause()
        except StopIteration as end:
            answer: T = end.value
            return answer
