"""Plays the pods of a week anew with one placement strategy: they come when they came, run as long as they ran.

The filters, strategies and the allocator are the operator's. A pod starts at once where it fits; else it waits until
devices or room come free, and those of higher priority, then the older ones, are tried first. A pod whose end is not
known stays to the end of the week.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from dra_api.codec import to_dict
from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.resource import ResourceClaim, ResourceClaimStatus
from msgspec.structs import replace

from dra_operator.allocator import AllocationError
from dra_operator.commands.arrivals import anew, can_be_copied, without_pods
from dra_operator.commands.device_shares import DeviceShares
from dra_operator.commands.simulated.cluster import SimulatedCluster
from dra_operator.commands.simulated.placing import apply_changed, closed_gate, reserve
from dra_operator.scheduling import CycleState, Plan, decided, plan, pre_filter

from .course import Course, Step, Wait
from .history import History, Life


class Turn(NamedTuple):
    """A pod that waits for a node; the first in order is tried first."""

    minus_priority: int
    number: int
    """In the order of arrival."""
    life: Life


def anew_in_order(history: History, load: float) -> list[Life]:
    """The pods before they had nodes; ``load``: how many times as many come, copies at the time of their pattern."""
    found: list[Life] = []
    for number, life in enumerate(history.lives):
        copies = int((number + 1) * load) - int(number * load) if can_be_copied(life.pod) else 1
        found += (life._replace(pod=anew(life.pod, copy)) for copy in range(copies))
    return found


class Replay:
    """A cluster through the week."""

    def __init__(self, made: SimulatedCluster, history: History, lives: Sequence[Life], shares: DeviceShares) -> None:
        self._made, self._history, self._shares = made, history, shares
        self._pods = {pod.key: pod for pod in made.pods}
        self._alike = {it.pod.key: _alike(it.pod) for it in lives}
        self._lives = lives
        self._waiting: list[Turn] = []
        self._ends: list[tuple[float, str]] = []
        self._refused: set[str] = set()
        """What pods are like that fit nowhere since something came free."""
        self._held: dict[str, int] = {}
        """Thousandths of devices by the UIDs of claims."""
        self.left_out = 0
        """Pods that cannot come: the snapshot lacks a claim of theirs, or another controller's gate is closed."""

    def course(self, name: str) -> Course:
        """Play it to the end."""
        steps: list[Step] = []
        waits: list[Wait] = []
        arrivals = [(max(0.0, it.created), number, it) for number, it in enumerate(self._lives) if self._can_come(it)]
        self.left_out = len(self._lives) - len(arrivals)
        heapq.heapify(arrivals)
        seconds = self._history.seconds
        while (now := min((it[0][0] for it in (arrivals, self._ends) if it), default=math.inf)) <= seconds:
            while self._ends and self._ends[0][0] <= now:
                self._end(self._pods[heapq.heappop(self._ends)[1]])
            while arrivals and arrivals[0][0] <= now:
                _, number, life = heapq.heappop(arrivals)
                heapq.heappush(self._waiting, Turn(-(life.pod.spec.priority or 0), number, life))
            waits += self._started(now)
            steps.append(Step(now, sum(self._held.values()), len(self._waiting)))
        waits += (Wait(seconds - it.life.created, is_over=False) for it in self._waiting if it.life.is_of_window)
        return Course(name, seconds, self._shares.all, steps, waits)

    def _can_come(self, life: Life) -> bool:
        return life.pod.key not in self._made.lacking and closed_gate(life.pod) is None

    def _started(self, now: float) -> list[Wait]:
        """Try those that wait, once each."""
        found, left = [], []
        for turn in sorted(self._waiting):
            if not self._place(turn.life, now):
                left.append(turn)
            elif turn.life.is_of_window:
                found.append(Wait(now - turn.life.created, is_over=True))
        self._waiting = left
        return found

    def _place(self, life: Life, now: float) -> bool:
        alike = self._alike[life.pod.key]
        if alike in self._refused:
            return False
        cluster, pod = self._made.cluster, self._pods[life.pod.key]
        moment = self._history.start + timedelta(seconds=now)
        state = pre_filter(pod, cluster.snapshot(self._made.allocator, moment))
        found = self._planned(state) if isinstance(state, CycleState) else None
        if not isinstance(state, CycleState) or found is None:
            self._refused.add(alike)
            return False
        reserve(state, found, cluster)
        for uid, allocation in found.allocations.items():
            self._held[uid] = sum(map(self._shares.given, allocation.devices.results or ()))
        if life.runs is not None:
            heapq.heappush(self._ends, (now + life.runs, pod.key))
        return True

    def _planned(self, state: CycleState) -> Plan | None:
        self._made.learner.see(state.pod, state.resource_claims)
        try:
            found = decided(plan(state, placement=self._made.placement))
        except AllocationError:
            return None
        return found if isinstance(found, Plan) else None

    def _end(self, pod: Pod) -> None:
        """The pod is gone, its claims with it; one that it shared is left to the others."""
        cluster = self._made.cluster
        own = {claim.key: claim for claim in cluster.claims_owned_by(pod)}
        shared = [it for _, it in cluster.claims_of(pod) if it is not None and it.key not in own]
        for claim in shared:
            left = tuple(user for user in claim.status.reserved_for or () if user.uid != pod.metadata.uid)
            if not left:
                self._held.pop(claim.metadata.uid, None)
            status = replace(claim.status, reserved_for=left) if left else ResourceClaimStatus()
            apply_changed(cluster, replace(claim, status=status))
        for claim in own.values():
            self._held.pop(claim.metadata.uid, None)
            cluster.delete(ResourceClaim, claim.key)
        cluster.delete(Pod, pod.key)
        cluster.storage.written(pod.metadata.uid)
        self._refused.clear()


def _alike(pod: Pod) -> str:
    """Equal for pods that the same nodes suit."""
    return json.dumps((pod.metadata.namespace, pod.metadata.labels, to_dict(pod.spec)), sort_keys=True)


def emptied(objects: Sequence[Object], history: History, lives: Sequence[Life]) -> list[Object]:
    """The objects before the week, with the pods that come in it."""
    return [*without_pods(objects, [it.pod for it in history.lives]), *(it.pod for it in lives)]
