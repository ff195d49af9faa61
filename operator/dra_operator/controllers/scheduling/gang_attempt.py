"""The attempt to place a gang: its pods are looked at one by one, then planned together."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Final, NamedTuple

from dra_api.core import Pod
from dra_api.relations.references import is_reserved_for

from dra_operator.cache import Cluster, TimesFreed
from dra_operator.controllers.scheduling.planning import InProgress
from dra_operator.controllers.scheduling.preemption import MakesRoom
from dra_operator.scheduling import CycleState, Elapsed, NoPlace, Pause, PreFilterResult, Snapshot, pre_filter
from dra_operator.scheduling.gang import JointPlan, SameValues, joint_plan
from dra_operator.scheduling.preemption import GangNomination
from dra_operator.scheduling.state import Gang

LOOKED_AT_PODS: Final = 8
"""Pods that are looked at between two pauses."""


class Unready(NamedTuple):
    """Too few pods of the gang can be planned; this is the first one that cannot, and why."""

    pod: Pod
    found: PreFilterResult


Fingerprint = tuple[object, ...]
"""Of a pod and its claims: where it is the same, the pod asks for the same as before."""


class GangAttempt(InProgress[JointPlan | NoPlace | Unready]):
    """``leader`` is the pod whose decision this is; it is a member. ``members`` have ``states`` in the same order.

    ``tried_at``: how often something had come free when it began.
    """

    def __init__(
        self,
        gang: Gang,
        leader: Pod,
        waiting: Sequence[Pod],
        wanted: int,
        same: SameValues,
        snapshot: Callable[[], Snapshot],
        is_unsure: Callable[[Pod], bool],
        makes_room: MakesRoom | None,
        tried_at: TimesFreed,
    ) -> None:
        super().__init__(self._plan())
        self.gang, self.leader, self._same = gang, leader, same
        self._waiting, self.wanted, self._snapshot, self._is_unsure = waiting, wanted, snapshot, is_unsure
        self._makes_room, self.tried_at = makes_room, tried_at
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
        """The pods that are planned."""
        return [state.pod for state in self.states]

    def _plan(self) -> Generator[Pause, Elapsed, JointPlan | NoPlace | Unready]:
        snapshot, unready = self._snapshot(), None
        for number, pod in enumerate(self._in_order()):
            if len(self.states) == self.wanted:
                break
            if number % LOOKED_AT_PODS == LOOKED_AT_PODS - 1:
                yield Pause.SEARCHING
            found = pre_filter(pod, snapshot)
            if isinstance(found, CycleState) and (pod is self.leader or not self._is_unsure(pod)):
                self.states.append(found)
            elif unready is None:
                unready = Unready(pod, found)
        if unready is not None and len(self.states) < self.wanted:
            return unready
        self._is_looked_at = True
        answer = yield from joint_plan(self.states, self._same)
        has_refusal = isinstance(answer, NoPlace) and not answer.is_error
        if has_refusal and self._makes_room is not None and not self._holds_devices():
            self.nominated = yield from self._makes_room.for_gang(self.gang, self.states, self._same)
        return answer

    def _holds_devices(self) -> bool:
        """Whether a pod has devices, which it gives back first: they may be what keeps the gang from a place."""
        return any(is_reserved_for(state.pod, claim) for state in self.states for claim in state.resource_claims)

    def is_of(self, cluster: Cluster) -> bool:
        """Whether all that was looked at is as it was."""
        return all(
            cluster.pods.get(state.pod.key) is state.pod
            and all(cluster.claims.get(claim.key) is claim for claim in state.resource_claims)
            for state in self.states
        )

    def fingerprints(self) -> Mapping[str, Fingerprint]:
        """By the key of the pod."""
        return {state.pod.key: fingerprint(state) for state in self.states}


def fingerprint(state: CycleState) -> Fingerprint:
    """What the pod asks for. Claims are compared as objects, of which each change makes a new one."""
    claims = tuple((claim.metadata.uid, claim.metadata.resource_version) for claim in state.resource_claims)
    return state.pod.metadata.uid, state.pod.spec, state.pod.metadata.labels, claims
