"""What moving pods gives back: pods that were refused get the room of others, which go to other nodes.

The cluster is that of a run when the pods have asked for all of its GPUs. A plan makes room for one refused pod on one
node: its victims are the pods on the devices that are cheapest to clear, and pods without GPU where CPU or memory is
short. Plans that gain most GPUs for each moved pod come first; of equal ones that which leaves least fragmentation (F).
Victims go where the policy has them go, and none goes to the node that it leaves.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

from .run import NO_NODE_NUMBER, Run, TracePlacement
from .trace import WHOLE_MILLI, TracePod

MOST_VICTIMS_COUNT: Final = 4
"""Pods that are moved for one."""
COMPARED_PLANS_COUNT: Final = 8
"""Plans of which the one that leaves least fragmentation is taken."""


class Moves(NamedTuple):
    """What came of it."""

    before: int
    """Thousandths of GPUs that pods have."""
    after: int
    pods: int
    """Pods that had a node."""
    moved: int
    placed: int
    """Pods that were refused before."""
    capacity: int
    """Thousandths of GPUs of the cluster."""


class _Plan(NamedTuple):
    """``cost`` orders plans, the best first: minus what is gained for each moved pod, and what is moved."""

    cost: tuple[float, int]
    node: int
    wanted: TracePod
    victims: tuple[TracePlacement, ...]


def moved(run: Run, percent: float) -> Moves:
    """Play the run up to full demand, then move up to ``percent`` of the pods that have a node."""
    capacity = sum(node.gpus for node in run.workload.nodes) * WHOLE_MILLI
    placements: list[TracePlacement] = []
    asked = 0
    for it in run.placements():
        placements.append(it)
        asked += it.pod.shape.total
        if asked >= capacity:
            break
    return _Mover(run, placements).move(int(run.placed * percent / 100), capacity)


class _Mover:
    """The pods on each node, and the plans for each kind of refused pods."""

    def __init__(self, run: Run, placements: Sequence[TracePlacement]) -> None:
        self._run = run
        self._residents: list[list[TracePlacement]] = [[] for _ in run.workload.nodes]
        refused: Counter[TracePod] = Counter()
        for it in placements:
            if it.node != NO_NODE_NUMBER:
                self._residents[it.node].append(it)
            elif it.pod.shape.gpus:
                refused[it.pod._replace(name="")] += 1
        self._refused = refused
        self._plans = {pod: self._plans_for(pod, range(len(self._residents))) for pod in refused}

    def move(self, budget: int, capacity: int) -> Moves:
        """Until the budget is spent, or no plan is left."""
        run = self._run
        before, pods = self._used(), run.placed
        spent = placed = 0
        while plans := self._best(budget - spent):
            grown = [(self._trial(plan), number) for number, plan in enumerate(plans)]
            possible = [(growth, number) for growth, number in grown if growth is not None]
            for growth, number in grown:
                if growth is None:
                    del self._plans[plans[number].wanted][plans[number].node]
            if not possible:
                continue
            plan = plans[min(possible)[1]]
            self._carry_out(plan)
            spent += len(plan.victims)
            placed += 1
        return Moves(before, self._used(), pods, spent, placed, capacity)

    def _used(self) -> int:
        return sum(it.pod.shape.total for it in chain.from_iterable(self._residents))

    def _best(self, budget: int) -> list[_Plan]:
        """Those with the same gain for each moved pod as the best."""
        every = (plan for its in self._plans.values() for plan in its.values() if len(plan.victims) <= budget)
        found = heapq.nsmallest(COMPARED_PLANS_COUNT, every)
        return [plan for plan in found if plan.cost[0] == found[0].cost[0]]

    def _plans_for(self, pod: TracePod, nodes: Sequence[int] | set[int]) -> dict[int, _Plan]:
        accepting = self._run.table.kinds.accepting(pod.shape)
        return {
            node: plan
            for node in nodes
            if accepting[self._run.state(node).kind] and (plan := self._plan(pod, node)) is not None
        }

    def _plan(self, pod: TracePod, node: int) -> _Plan | None:
        """The cheapest way to make room on a node."""
        shape, state, residents = pod.shape, self._run.state(node), self._residents[node]
        if len(state.gpus) < shape.gpus:
            return None
        on = [[it for it in residents if device in it.devices] for device in range(len(state.gpus))]
        if shape.is_share:
            options = [
                (it.pod.shape.total, device, number)
                for device, left in enumerate(state.gpus)
                for number, it in enumerate(on[device])
                if left + it.pod.shape.milli >= shape.milli
            ]
            if max(state.gpus, default=0) >= shape.milli:
                victims = []
            elif options:
                _, device, number = min(options)
                victims = [on[device][number]]
            else:
                return None
        else:
            cheapest = sorted(range(len(on)), key=lambda it: (len(on[it]), sum(v.pod.shape.total for v in on[it]), it))
            chosen = cheapest[: shape.gpus]
            victims = list({id(it): it for device in chosen for it in on[device]}.values())
        others = sorted((it for it in residents if not it.devices), key=lambda it: -it.pod.shape.cpu)
        while self._is_short(pod, node, victims) and others:
            victims.append(others.pop(0))
        if len(victims) > MOST_VICTIMS_COUNT or self._is_short(pod, node, victims):
            return None
        cost = (-shape.total / max(1, len(victims)), sum(it.pod.shape.total for it in victims))
        return _Plan(cost, node, pod, tuple(victims))

    def _is_short(self, pod: TracePod, node: int, victims: Sequence[TracePlacement]) -> bool:
        cpu = self._run.state(node).cpu + sum(it.pod.shape.cpu for it in victims)
        memory = self._run.memory(node) + sum(it.pod.memory for it in victims)
        return cpu < pod.shape.cpu or memory < pod.memory

    def _trial(self, plan: _Plan) -> float | None:
        """By how much fragmentation would grow; None if the plan cannot be carried out."""
        run = self._run
        done = self._attempt(plan)
        nodes = {plan.node, *(it.node for it in done or ())}
        after = [run.number(node) for node in nodes]
        for it in reversed(done or ()):
            run.take_back(it)
        self._vacate(plan.node, ())
        if done is None:
            return None
        before = [run.number(node) for node in nodes]
        return float(
            run.fragmentation.of(run.table.states(after)).sum() - run.fragmentation.of(run.table.states(before)).sum()
        )

    def _attempt(self, plan: _Plan) -> list[TracePlacement] | None:
        """The victims in their new places, and the pod in theirs; None if that cannot be, and all is as before."""
        run = self._run
        done: list[TracePlacement] = []
        self._vacate(plan.node, plan.victims)
        for pod, forbidden in [*((it.pod, plan.node) for it in plan.victims), (plan.wanted, NO_NODE_NUMBER)]:
            found = run.place(pod, forbidden)
            if found.node == NO_NODE_NUMBER:
                for it in reversed(done):
                    run.take_back(it)
                self._vacate(plan.node, ())
                return None
            done.append(found)
        return done

    def _carry_out(self, plan: _Plan) -> None:
        done = self._attempt(plan) or []
        self._residents[plan.node] = [it for it in self._residents[plan.node] if it not in plan.victims]
        for it in done:
            self._residents[it.node].append(it)
        self._refused[plan.wanted] -= 1
        if not self._refused[plan.wanted]:
            del self._plans[plan.wanted]
        changed = {plan.node, *(it.node for it in done)}
        for pod, plans in self._plans.items():
            for node in changed:
                plans.pop(node, None)
            plans.update(self._plans_for(pod, changed))

    def _vacate(self, node: int, victims: Sequence[TracePlacement]) -> None:
        """The node as it is without some of its pods."""
        self._run.refill(node, [it for it in self._residents[node] if it not in victims])
