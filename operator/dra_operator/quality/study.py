"""Runs: the pods of a workload arrive one at a time, and each is placed by a policy, or turned away for good.

A policy scores a state of a node, not a node. A score is kept for each shape of pods and state, and only nodes that
changed since a shape came last are looked at again.

A study has many runs, policies times seeds on one trace, and the figures that they give together. A curve has allocated
and lost GPUs over the demand that has arrived. Demand counts in whole percent of the cluster's GPUs. The figures of a
percent are means over the arrivals that round to it, of values rounded to two places, as in the published tables.

A run may also say what moving pods gives back (``moved``): pods that were refused get the room of others, which go to
other nodes. The cluster is that of a run when the pods have asked for all of its GPUs. A plan makes room for one
refused pod on one node: its victims are the pods on the devices that are cheapest to clear, and pods without GPU where
CPU or memory is short. Plans that gain most GPUs for each moved pod come first; of equal ones that which leaves least
fragmentation (F). Victims go where the policy has them go, and none goes to the node that it leaves.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from .policies import POLICIES, Policy
from .states import Floats, Fragmentation, Ints, NodeKinds, State, StateTable, whole_devices
from .trace import WHOLE_MILLI, Shape, TraceNode, TracePod, Workload, members, workload

MakePolicy = Callable[[Workload, StateTable, Fragmentation], Policy]
NO_NODE_NUMBER = -1


class TracePlacement(NamedTuple):
    """What became of a pod."""

    pod: TracePod
    node: int
    """Its place in the order of nodes; ``NO_NODE_NUMBER`` if none has room."""
    devices: tuple[int, ...]
    left: int
    """The number of the state in which the node was."""
    reached: int
    """The number of the state in which the node is."""


class Run:
    """A cluster that fills."""

    def __init__(self, workload: Workload, make_policy: MakePolicy) -> None:
        nodes = workload.nodes
        self.workload = workload
        kinds = NodeKinds(nodes)
        self.table = StateTable(kinds)
        self.fragmentation = Fragmentation(workload.typical, kinds)
        self._policy = make_policy(workload, self.table, self.fragmentation)
        self._memory = np.array([node.memory for node in nodes], np.int64)
        seen = self._policy.looks_at_memory
        self.empty = [self.table.number(kinds.empty(node, node.memory if seen else 0)) for node in nodes]
        self._at = list(self.empty)
        self._changed: list[int] = []
        """The nodes that got pods, or gave some back, in that order."""
        self._known: dict[Shape, _Known] = {}
        self.placed = 0
        """How many pods have a node."""

    def placements(self) -> Iterator[TracePlacement]:
        """One for each pod, in the order of arrival; of a gang one for each member."""
        for pod in self.workload.arrivals:
            yield from self._together(members(pod)) if self.workload.has_gangs else (self.place(pod),)

    def _together(self, pods: Sequence[TracePod]) -> list[TracePlacement]:
        """All of them, or none."""
        found: list[TracePlacement] = []
        for pod in pods:
            found.append(self.place(pod))
            if found[-1].node == NO_NODE_NUMBER:
                for it in reversed(found[:-1]):
                    self.take_back(it)
                return [TracePlacement(it, NO_NODE_NUMBER, (), 0, 0) for it in pods]
        return found

    def take_back(self, placement: TracePlacement) -> None:
        """The last placement on its node did not happen."""
        self._at[placement.node] = placement.left
        self._memory[placement.node] += placement.pod.memory
        self._changed.append(placement.node)
        self.placed -= 1

    def refill(self, node: int, placements: Sequence[TracePlacement]) -> None:
        """From now on the node has these, on their devices, and no others."""
        table, sees_memory = self.table, self._policy.looks_at_memory
        state = table.state(self.empty[node])
        for it in placements:
            state = state.after(it.pod.shape, it.devices, it.pod.memory if sees_memory else 0)
        self._at[node] = table.number(state)
        self._memory[node] = self.workload.nodes[node].memory - sum(it.pod.memory for it in placements)
        self._changed.append(node)

    def number(self, node: int) -> int:
        return self._at[node]

    def state(self, node: int) -> State:
        return self.table.state(self._at[node])

    def memory(self, node: int) -> int:
        """MiB that a node has left."""
        return int(self._memory[node])

    def place(self, pod: TracePod, forbidden: int = NO_NODE_NUMBER) -> TracePlacement:
        """The next pod, on any node but one."""
        scores = self._scores(pod.shape)
        if pod.memory:
            scores = np.where(self._memory >= pod.memory, scores, -np.inf)
        if forbidden != NO_NODE_NUMBER:
            scores = scores.copy()
            scores[forbidden] = -np.inf
        node = self._policy.pick(scores)
        if scores[node] == -np.inf:
            return TracePlacement(pod, NO_NODE_NUMBER, (), 0, 0)
        left = self._at[node]
        state = self.table.state(left)
        share = pod.shape.is_share
        devices = [self._policy.device(pod.shape, state)] if share else whole_devices(state, pod.shape)
        memory = pod.memory if self._policy.looks_at_memory else 0
        self._at[node] = self.table.number(state.after(pod.shape, devices, memory))
        self._memory[node] -= pod.memory
        self._changed.append(node)
        self.placed += 1
        return TracePlacement(pod, node, tuple(devices), left, self._at[node])

    def _scores(self, shape: Shape) -> Floats:
        known = self._known.get(shape)
        if known is None:
            known = self._known[shape] = _Known(len(self._at))
            stale: set[int] | range = range(len(self._at))
        else:
            stale = set(self._changed[known.seen :])
        known.seen = len(self._changed)
        numbers = {node: self._at[node] for node in stale}
        unknown = list(dict.fromkeys(number for number in numbers.values() if number not in known.by_state))
        if unknown:
            known.by_state.update(zip(unknown, self._evaluated(shape, unknown), strict=True))
        for node, number in numbers.items():
            known.by_node[node] = known.by_state[number]
        return known.by_node

    def _evaluated(self, shape: Shape, numbers: list[int]) -> list[float]:
        states = self.table.states(numbers)
        found = np.full(len(numbers), -np.inf)
        feasible = np.nonzero(states.feasible(shape, self.table.kinds))[0]
        if len(feasible):
            found[feasible] = self._policy.scores(shape, states.taken(feasible))
        scores: list[float] = found.tolist()
        return scores


class _Known:
    """What a shape thinks of states and nodes."""

    def __init__(self, nodes: int) -> None:
        self.by_state: dict[int, float] = {}
        self.by_node = np.full(nodes, -np.inf)
        self.seen = 0


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


MEASURED_STATES: Final = 4096
"""States that are measured at once."""
PERCENT_DIGITS: Final = 2


class Curve(NamedTuple):
    """A row for each percent of demand, from 0; NaN where no arrival rounds to it."""

    allocated: Floats
    """Percent of the cluster's GPUs that pods have."""
    lost: Floats
    """Percent of the idle GPUs that are lost to the typical pods (F)."""
    lost_at_first: float
    """That of the empty cluster."""

    def at(self, percent: int) -> tuple[float, float]:
        """Both figures at a percent of demand, or at the highest below."""
        known = np.nonzero(~np.isnan(self.allocated[: percent + 1]))[0]
        if not len(known):
            return 0.0, self.lost_at_first  # the first pod asks for more than that
        return float(self.allocated[known[-1]]), float(self.lost[known[-1]])


def measured(run: Run) -> Curve:
    """Play a run to its end."""
    capacity = sum(node.gpus for node in run.workload.nodes) * WHOLE_MILLI
    placements = list(run.placements())
    lost_in = _lost_in(run)
    placed = np.array([it.node != NO_NODE_NUMBER for it in placements])
    asked = np.array([it.pod.shape.total for it in placements], np.int64)
    growth = [lost_in[it.reached] - lost_in[it.left] if it.node != NO_NODE_NUMBER else 0.0 for it in placements]
    at_first = lost_in[run.empty].sum()
    lost = at_first + np.cumsum(growth)
    used = np.cumsum(np.where(placed, asked, 0))
    idle = capacity - used
    arrived = 100 * np.cumsum(asked) / capacity
    ratio = np.divide(100 * lost, idle, out=np.zeros(len(idle)), where=idle > 0)
    percents = np.rint(arrived).astype(np.int64)
    allocated, lost_percents = (_means(percents, np.round(it, PERCENT_DIGITS)) for it in (100 * used / capacity, ratio))
    return Curve(allocated, lost_percents, float(np.round(100 * at_first / capacity, PERCENT_DIGITS)))


def _lost_in(run: Run) -> Floats:
    numbers = range(len(run.table))
    parts = [run.table.states(numbers[at : at + MEASURED_STATES]) for at in range(0, len(numbers), MEASURED_STATES)]
    return np.concatenate([run.fragmentation.of(states) for states in parts])


def _means(percents: Ints, values: Floats) -> Floats:
    counts = np.bincount(percents)
    sums = np.bincount(percents, weights=values)
    means: Floats = np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)
    return means


T_95: Final = (
    *(12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23),
    *(2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09),
)
"""Student's t for intervals of 95 %, from one degree of freedom."""
T_VALUE_OF_MANY: Final = 1.96


class StudiedCluster(NamedTuple):
    """What all runs have in common."""

    pods: Sequence[TracePod]
    nodes: Sequence[TraceNode]
    inflate: float
    has_gangs: bool = False
    move_percent: float = 0
    """Pods that are moved at full demand, in percent of those that have a node."""


class RunResult(NamedTuple):
    policy: str
    seed: int
    curve: Curve
    moves: Moves | None = None
    """None if none were asked for."""


class Mean(NamedTuple):
    """A mean, and half the width of its confidence interval of 95 %; NaN for a single value."""

    value: float
    half_width: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Of some values."""
        free = len(values) - 1
        if not free:
            return cls(values[0], math.nan)
        t = T_95[free - 1] if free <= len(T_95) else T_VALUE_OF_MANY
        return cls(statistics.fmean(values), t * statistics.stdev(values) / math.sqrt(len(values)))


def result(cluster: StudiedCluster, policy: str, seed: int) -> RunResult:
    its = workload(cluster.pods, cluster.nodes, seed, cluster.inflate, has_gangs=cluster.has_gangs)
    curve = measured(Run(its, POLICIES[policy]))
    if not cluster.move_percent:
        return RunResult(policy, seed, curve)
    again = workload(cluster.pods, cluster.nodes, seed, cluster.inflate)
    return RunResult(policy, seed, curve, moved(Run(again, POLICIES[policy]), cluster.move_percent))
