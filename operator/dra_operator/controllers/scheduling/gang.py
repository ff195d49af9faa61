"""One gang on its way to nodes: the states of its life here, the attempt to place its pods together, and its binding.

A gang has one object, ``GangProgress``, with a state. One pod *leads*: its decision is that of all. Only the table
``TRANSITIONS`` leads from one state to the next::

    FREE ---------LEAD------> PLANNING --TAKE--> WRITING ---END--> FREE
      |  ^                     ^ | |
      |  +---------END---------|-+ +--REFUSE--> REFUSING --END--> REFUSED
      |                        |                                     |
      +--AWAIT--> AWAITING ----+-----------------LEAD----------------+
      |
      +--DISSOLVE--> DISSOLVING --END--> FREE

In PLANNING, WRITING, REFUSING and DISSOLVING the gang *is led*: decisions about other pods of it do nothing, and these
pods are looked at when that is over (``asked``). In AWAITING, REFUSED and FREE any pod may lead next.

``GangAttempt`` is the plan in the making: the pods are looked at one by one, then planned together.

``GangBinding`` carries the plan out: all devices are written before the first pod is bound. The devices and the room of
all members are taken at once. Then the claims of all are written, side by side. If one write fails, all give back what
they got, and no pod was bound. Only when the devices of all are certain and ready are the pods bound. A binding that
fails then leaves its pod to wait as one that joins late, with its devices: the others may run already. If no binding
succeeds, all give back what they have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, NoReturn

from dra_api.core import Pod
from dra_api.references import is_reserved_for
from dra_api.resource import ResourceClaim
from dra_kube.spans import span

from dra_operator.cache import Cluster, DeviceTaken, TimesFreed
from dra_operator.controllers.errors import BindingRefused, PlacementFailed, PodVanished
from dra_operator.controllers.scheduling.binding import UNSEEN_LOOK_SECONDS, BindingCycle, Permit
from dra_operator.controllers.scheduling.planning import (
    BindStep,
    InProgress,
    SchedulingContext,
    has_devices,
    has_room,
    is_promised,
)
from dra_operator.controllers.scheduling.preemption import Preemption
from dra_operator.controllers.scheduling.report import AGAIN, SCHEDULER_ERROR, WaitingReport
from dra_operator.controllers.workers import AttemptResult
from dra_operator.scheduling import (
    ConflictCheckDue,
    CycleState,
    Elapsed,
    NoPlace,
    NotTried,
    Pause,
    PreFilterResult,
    Snapshot,
    pre_filter,
)
from dra_operator.scheduling.gang import JointPlan, SameValues, joint_plan
from dra_operator.scheduling.preemption import GangNomination
from dra_operator.scheduling.rules import NO_BINDINGS
from dra_operator.scheduling.state import Gang, Obstacle, title

LOOKED_AT_PODS: Final = 8
"""Pods that are looked at between two pauses."""
NO_OBSTACLES: Final[Mapping[str, Obstacle]] = {}


class GangState(Enum):
    """The states of a gang."""

    FREE = "nothing"
    AWAITING = "too few of its pods have their claims; one of them says so"
    PLANNING = "the leader's plan for all is being made, at once or in pieces"
    WRITING = "devices and nodes are taken, and the plan is being written"
    REFUSING = "there is no plan, and its pods give devices back"
    REFUSED = "the leader waits for what may help, and the others wait with it"
    DISSOLVING = "the gang has too few pods, which give devices back"


class GangEvent(Enum):
    """What changes the state of a gang."""

    LEAD = "a pod begins to plan for all"
    AWAIT = "a pod finds that claims are not made"
    TAKE = "the plan has its devices"
    REFUSE = "there is no plan"
    DISSOLVE = "a pod finds that the gang has too few pods"
    FORGET = "the reason to wait does not count any more"
    END = "what the leader has begun is over"


_WHILE_NOT_LED: Final = {
    GangEvent.LEAD: GangState.PLANNING,
    GangEvent.AWAIT: GangState.AWAITING,
    GangEvent.DISSOLVE: GangState.DISSOLVING,
}
TRANSITIONS: Final[Mapping[GangState, Mapping[GangEvent, GangState]]] = {
    GangState.FREE: _WHILE_NOT_LED,
    GangState.AWAITING: {**_WHILE_NOT_LED, GangEvent.FORGET: GangState.FREE},
    GangState.REFUSED: {**_WHILE_NOT_LED, GangEvent.FORGET: GangState.FREE},
    GangState.PLANNING: {
        GangEvent.TAKE: GangState.WRITING,
        GangEvent.REFUSE: GangState.REFUSING,
        GangEvent.END: GangState.FREE,
    },
    GangState.WRITING: {GangEvent.END: GangState.FREE},
    GangState.REFUSING: {GangEvent.END: GangState.REFUSED},
    GangState.DISSOLVING: {GangEvent.END: GangState.FREE},
}
LED: Final = frozenset({GangState.PLANNING, GangState.WRITING, GangState.REFUSING, GangState.DISSOLVING})


class OutOfTurn(RuntimeError):
    """What happened to a gang is not possible in its state: a bug."""


class GangProgress:
    """The life of one gang. Each method is an event, and raises OutOfTurn in states that do not have it.

    ``leader`` is the key of the pod that leads, or empty. ``asked`` are keys of pods that were to be decided on
    meanwhile. ``mate_looks_at``: when one of its pods looks whether the write for another one is over.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.state = GangState.FREE
        self.leader = ""
        self.attempt: GangAttempt | None = None
        """The plan, while it is put aside until the leader's next turn."""
        self.refusal: GangRefusal | None = None
        """Why the gang has no place: in REFUSING and REFUSED."""
        self.former: GangRefusal | None = None
        """Why it had none before the attempt: in PLANNING."""
        self.awaited: AwaitedClaims | None = None
        """For which claims it waits: in AWAITING."""
        self.pods: Sequence[str] = ()
        """Keys of the pods of which the gang has the next write: the leader, or all that are being bound."""
        self.asked: set[str] = set()
        self.mate_looks_at = 0.0
        self.awaited_pod = ""
        """Key of a pod that has devices and cannot be planned yet: no other pod takes its place."""

    @property
    def is_led(self) -> bool:
        """Return whether a pod decides or writes for all."""
        return self.state in LED

    @property
    def waits_because(self) -> GangRefusal | AwaitedClaims | None:
        """Return why the gang waits, or None. A gang that a pod leads does not wait."""
        return None if self.is_led else self.refusal or self.awaited

    def lead(self, pod: Pod) -> None:
        """Have the pod plan for all. An attempt that comes to no end leaves no refusal to wait with."""
        # First, since it raises: an event out of turn must change nothing.
        self._move(GangEvent.LEAD)
        self.leader, self.pods, self.awaited = pod.key, [pod.key], None
        self.former, self.refusal, self.awaited_pod = self.refusal, None, ""

    def await_claims(self, awaited: AwaitedClaims) -> None:
        """Note that too few pods have their claims."""
        self._move(GangEvent.AWAIT)
        self.refusal, self.awaited = None, awaited

    def dissolve(self, pod: Pod) -> None:
        """Have the pod make all give up what they have."""
        self._move(GangEvent.DISSOLVE)
        self.leader, self.pods, self.refusal, self.awaited = pod.key, [pod.key], None, None

    def take(self, members: Iterable[Pod]) -> None:
        """Note that devices and room of these are taken; the leader is one of them."""
        self._move(GangEvent.TAKE)
        self.pods, self.former = [pod.key for pod in members], None

    def refuse(self, refusal: GangRefusal) -> None:
        """Note that there is no place for the gang. The pod that says so has the gang's next write, like the leader."""
        self._move(GangEvent.REFUSE)
        self.refusal, self.former = refusal, None
        self.pods = list({self.leader: None, refusal.teller.key: None})

    def forget(self) -> None:
        """Forget why the gang waits: it has changed since it was refused, or its claims are made."""
        self._move(GangEvent.FORGET)
        self.refusal = self.awaited = None

    def end(self) -> None:
        """Close the leader's attempt, with success or without: another pod may lead."""
        self._move(GangEvent.END)
        self.leader, self.pods, self.attempt, self.former = "", (), None, None

    def _move(self, event: GangEvent) -> None:
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            raise OutOfTurn(f"gang {self.key} is {self.state.name}, led by {self.leader or 'no pod'}: no {event.name}")
        self.state = after


class GangRefusal:
    """A gang that cannot be bound: the leader of that attempt, who says so, and what each member asked for.

    ``untried``: by key, what keeps a pod of the gang from being tried, if that is why.
    """

    def __init__(self, attempt: GangAttempt, untried: Mapping[str, Obstacle] = NO_OBSTACLES) -> None:
        self.gang, self.teller, self.members = attempt.gang, attempt.leader, dict(attempt.fingerprints())
        self.untried, self._wanted = untried, attempt.wanted

    def is_of(self, gang: Gang, wanted: int) -> bool:
        """Return whether the gang asked for the same then. ``wanted``: so many pods of it need a node."""
        return (self.gang, self._wanted) == (gang, wanted)


@dataclass(slots=True, eq=False)
class AwaitedClaims:
    """A gang whose plan waits for claims of some of its pods to be made.

    ``teller``: the pod that says so. ``lacking``: the pod of which it does. ``since``: by the loop's clock.
    """

    teller: Pod
    lacking: Pod
    since: float
    is_told: bool = False


class Unready(NamedTuple):
    """Too few pods of the gang can be planned; this is the first one that cannot, and why.

    Or the pod has devices and cannot be planned yet, and the plan would have another pod in its place.
    """

    pod: Pod
    found: PreFilterResult


Fingerprint = tuple[object, ...]
"""Of a pod and its claims: where it is the same, the pod asks for the same as before."""


class GangTask(NamedTuple):
    """The task of an attempt: to place ``wanted`` of the pending pods, the ``leader`` among them.

    ``same``: values that their places share with the places of running pods. ``tried_at``: how often something had come
    free when the attempt began. ``filter_timeout``: seconds that the allocator may take for one node. ``has_place``:
    whether the pod has devices or a node, from an earlier attempt or by a write that is under way.
    """

    gang: Gang
    leader: Pod
    waiting: Sequence[Pod]
    wanted: int
    same: SameValues
    tried_at: TimesFreed
    filter_timeout: float
    has_place: Callable[[Pod], bool]


class GangAttempt(InProgress[JointPlan | NoPlace | Unready]):
    """``leader`` is the pod whose decision this is; it is a member. ``members`` have ``states`` in the same order."""

    def __init__(
        self,
        task: GangTask,
        snapshot: Callable[[], Snapshot],
        is_unsure: Callable[[Pod], bool],
        preemption: Preemption | None,
    ) -> None:
        super().__init__(self._plan())
        self.gang, self.leader, self.wanted, self.tried_at = task.gang, task.leader, task.wanted, task.tried_at
        self._waiting, self._same, self._filter_timeout = task.waiting, task.same, task.filter_timeout
        self._has_place = task.has_place
        self._snapshot, self._is_unsure, self._preemption = snapshot, is_unsure, preemption
        self.states: list[CycleState] = []
        self.nominated: GangNomination | None = None
        """How room is made, if the gang has no place."""
        self._is_looked_at = False

    @property
    def without_load(self) -> list[Pod]:
        """Pods that keep none of the gang from a node: those that are planned, or are the first to be looked at."""
        return self.members if self._is_looked_at else self._in_order()[: self.wanted]

    def _in_order(self) -> list[Pod]:
        return [self.leader, *(pod for pod in self._waiting if pod.key != self.leader.key)]

    @property
    def members(self) -> list[Pod]:
        return [state.pod for state in self.states]

    def _plan(self) -> Generator[Pause, Elapsed, JointPlan | NoPlace | Unready]:
        unready = yield from self._look()
        if unready is not None:
            return unready
        self._is_looked_at = True
        answer = yield from joint_plan(self.states, self._same, self._filter_timeout)
        has_refusal = isinstance(answer, NoPlace) and not answer.is_error
        # Others must not end for devices that the gang itself is about to give back.
        if has_refusal and self._preemption is not None and not self._holds_devices():
            self.nominated = yield from self._preemption.for_gang(self.gang, self.states, self._same)
        return answer

    def _look(self) -> Generator[Pause, Elapsed, Unready | None]:
        """Look at pods until as many as needed can be planned, or one has to be waited for."""
        snapshot, unready, coming = self._snapshot(), None, None
        for number, pod in enumerate(self._in_order()):
            if len(self.states) == self.wanted:
                return None
            # Those with devices come first. A plan with another pod in the place of one that has some lacks these
            # devices: the others would give theirs back, and all would begin anew, for ever.
            if coming is not None and not self._has_place(pod):
                return coming
            # A look at a pod is cheap, one at each of a thousand is not.
            if number % LOOKED_AT_PODS == LOOKED_AT_PODS - 1:
                yield Pause.SEARCHING
            found = pre_filter(pod, snapshot)
            # A write under way for a pod may take devices that this plan counts on.
            if isinstance(found, CycleState) and (pod is self.leader or not self._is_unsure(pod)):
                self.states.append(found)
            elif coming is None and not isinstance(found, NotTried) and self._has_place(pod):
                coming = Unready(pod, found)
            elif unready is None:
                unready = Unready(pod, found)
        return (coming or unready) if len(self.states) < self.wanted else None

    def _holds_devices(self) -> bool:
        """Return whether a pod has devices, which it gives back first: they may be what keeps the gang from a place."""
        return any(is_reserved_for(state.pod, claim) for state in self.states for claim in state.resource_claims)

    def is_of(self, cluster: Cluster) -> bool:
        """Return whether all that was looked at is as it was."""
        return all(
            cluster.pods.get(state.pod.key) is state.pod
            and all(cluster.claims.get(claim.key) is claim for claim in state.resource_claims)
            for state in self.states
        )

    def fingerprints(self) -> Mapping[str, Fingerprint]:
        """By the key of the pod."""
        return {state.pod.key: fingerprint(state) for state in self.states}


def fingerprint(state: CycleState) -> Fingerprint:
    """Return the pod's requests, to compare them. A claim counts by its resourceVersion."""
    claims = tuple((claim.metadata.uid, claim.metadata.resource_version) for claim in state.resource_claims)
    return state.pod.metadata.uid, state.pod.spec, state.pod.metadata.labels, claims


class GangBinding:
    """The binding cycle of gangs."""

    def __init__(self, context: SchedulingContext, permit: Permit, report: WaitingReport, bind: BindStep) -> None:
        self._context, self._permit, self._report, self._bind = context, permit, report, bind
        self._cluster = context.cluster

    def reserve(self, attempt: GangAttempt, plans: JointPlan) -> list[BindingCycle]:
        """Take the devices and the room of all. Raises PlacementFailed when they are no more what they were."""
        usage, made = attempt.states[0].usage, dict[int, BindingCycle]()
        failed = PlacementFailed(f"the cluster changed while gang {attempt.gang.title} was being planned")
        # Before anything is taken: the devices of one member are no change for the others.
        if not all(has_devices(usage, plan, self._cluster) for plan in plans):
            raise failed
        # In the order in which they were planned: each counts on what those before it take.
        for number in plans.order:
            state, plan = attempt.states[number], plans[number]
            cycle = BindingCycle(self._context, self._bind, state.pod, state.claims, plan)
            try:
                if is_promised(state, plan, self._cluster) or not has_room(state.pod, plan, self._cluster):
                    raise failed
                cycle.reserve()
            except (DeviceTaken, PlacementFailed) as error:
                for it in made.values():
                    it.unreserve()
                raise PlacementFailed(str(error)) from error
            made[number] = cycle
        if any(state.claims for state in attempt.states):
            self._context.delayed_deletion.abundance.placed()
        return [made[number] for number in range(len(attempt.states))]

    async def write(self, attempt: GangAttempt, cycles: Sequence[BindingCycle]) -> AttemptResult | None:
        """Write the plans; None if the pods cannot be bound yet. Raises as ``Permit.write``."""
        try:
            with span("binding_cycle", pod=attempt.leader.key, node=cycles[0].plan.node):
                claims = await self._reserve(attempt, cycles)
        finally:
            for cycle in cycles:
                self._cluster.storage.written(cycle.pod.metadata.uid)
        unready = [cycle for cycle, its in claims.items() if not self._permit.may_bind(cycle.pod, its)]
        if unready:
            if waits_for := self._look_again(attempt, unready, [claim for its in claims.values() for claim in its]):
                await self._report.goes_on_waiting(attempt.leader, SCHEDULER_ERROR, waits_for)
            return None
        await self._end(attempt, claims)
        return AttemptResult.SCHEDULED

    async def _reserve(
        self, attempt: GangAttempt, cycles: Sequence[BindingCycle]
    ) -> dict[BindingCycle, list[ResourceClaim]]:
        # Side by side: a gang of a thousand pods would take minutes one after the other.
        first = [cycle for cycle in cycles if not cycle.waits]
        answers = await asyncio.gather(*(cycle.pre_bind() for cycle in first), return_exceptions=True)
        done: dict[BindingCycle, list[ResourceClaim] | BaseException] = dict(zip(first, answers, strict=True))
        for cycle in cycles:
            if cycle.waits and not _errors(done.values()):
                # Another member has allocated the claim by now: the plan's version of it would conflict.
                cycle.renew()
                [done[cycle]] = await asyncio.gather(cycle.pre_bind(), return_exceptions=True)
        if not _errors(done.values()):
            # Last, since it is never taken back: until here every member may still fail.
            await self._bind_volumes(cycles, done)
        if errors := _errors(done.values()):
            for cycle in cycles:
                if isinstance(done.get(cycle), BaseException):
                    self._come_back(attempt, cycle)
                else:
                    await cycle.take_back()
            await self._raise(attempt, errors[0])
        return {cycle: it for cycle in cycles if not isinstance(it := done[cycle], BaseException)}

    async def _bind_volumes(
        self, cycles: Sequence[BindingCycle], done: dict[BindingCycle, list[ResourceClaim] | BaseException]
    ) -> None:
        """Begun when all have their devices: it is never taken back. Puts errors into ``done``."""
        some = [cycle for cycle in cycles if cycle.plan.volumes != NO_BINDINGS]
        answers = await asyncio.gather(*(cycle.bind_volumes() for cycle in some), return_exceptions=True)
        done.update((cycle, answer) for cycle, answer in zip(some, answers, strict=True) if answer is not None)

    async def _end(self, attempt: GangAttempt, claims: Mapping[BindingCycle, Sequence[ResourceClaim]]) -> None:
        # Without undoing: others of the gang may run already, and the one that failed joins them with its devices.
        ends = (cycle.bind(its, undo=False) for cycle, its in claims.items())
        answers = dict(zip(claims, await asyncio.gather(*ends, return_exceptions=True), strict=True))
        unanswered = self._context.pods.unanswered
        # A binding without an answer counts as one that happened.
        runs = any(
            not isinstance(answer, BaseException) or unanswered(cycle.pod) is not None
            for cycle, answer in answers.items()
        )
        for cycle, answer in answers.items():
            pod = cycle.pod
            if isinstance(answer, BaseException):
                if not isinstance(answer, PodVanished) and unanswered(pod) is None:
                    await self._let_go(cycle, keep=runs)
                self._come_back(attempt, cycle)
            else:
                self._permit.ended(self._cluster.pods.get(pod.key, pod.metadata.uid) or pod, cycle)
        if errors := _errors(answers.values()):
            await self._raise(attempt, errors[0])

    async def _let_go(self, cycle: BindingCycle, *, keep: bool) -> None:
        """Undo a pod that was not bound: it keeps its devices if others of its gang were, else gives them back."""
        if keep:
            cycle.unreserve()
        else:
            await cycle.take_back()

    def _come_back(self, attempt: GangAttempt, cycle: BindingCycle) -> None:
        """Have a pod looked at again of which a write failed. The leader is, since its decision fails."""
        if cycle.pod.key != attempt.leader.key:
            self._context.look_again(cycle.pod.key, self._context.pauses.did(cycle.pod.metadata.uid))

    async def _raise(self, attempt: GangAttempt, error: BaseException) -> NoReturn:
        if isinstance(error, BindingRefused):
            text = f"{title(attempt.leader)} waits with gang {attempt.gang.title}: {error}; {AGAIN}"
            await self._report.waits(attempt.leader, SCHEDULER_ERROR, text)
        raise error

    def _look_again(
        self, attempt: GangAttempt, unready: Sequence[BindingCycle], claims: Sequence[ResourceClaim]
    ) -> str:
        """Have the pods, which have their devices and cannot be bound yet, looked at when that may have changed.

        Return for what they wait, or an empty text if that is seen at once.
        """
        for cycle in unready:
            self._permit.await_volumes(self._cluster.pods.get(cycle.pod.key) or cycle.pod, cycle.plan.node)
        if (wait := self._context.conflict_check.wait(claims)) > 0:
            self._context.look_again(attempt.leader.key, min(wait, UNSEEN_LOOK_SECONDS))
            return self._context.conflict_check.obstacle or ConflictCheckDue(tuple(claims)).text
        for cycle in unready:
            self._context.look_again(cycle.pod.key)
        self._context.look_again(attempt.leader.key, UNSEEN_LOOK_SECONDS)
        return ""


def _errors(answers: Iterable[object]) -> list[BaseException]:
    return [answer for answer in answers if isinstance(answer, BaseException)]
