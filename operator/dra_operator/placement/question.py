"""The question whether a pod can run on a node, asked of one node after the other.

::

    ask(state)
    ├── Fits             with these devices
    ├── Obstructed       by the node itself, or because claims of the pod are allocated elsewhere
    ├── Lacking          the node's devices do not serve the claims
    ├── Faulty           the claims cannot be decided there: a selector fails on a device, for instance
    └── Undecided        the allocator gave up, or its time is over
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

from dra_operator.allocator import Allocated, AllocationError, Failed, GaveUp, NodeFailure, Outcome, Refusal, Refused

from .answer import Plan
from .demand import Demand, Demands
from .elsewhere import Allocations
from .examination import Case
from .filters import NodeFilter
from .node import NodeState
from .obstacle import Kind, Obstacle
from .pause import SLICE, Elapsed, Pause
from .unbound import NO_BINDINGS, Bindings
from .wording import text

DECISION_STEPS = 10  # what a decision costs even if there is nothing to search
EXPLANATION_STEPS = 5  # what it costs to find out why a node lacks devices


@dataclass(frozen=True, slots=True)
class Fits:
    """``score`` is that of the chosen alternatives."""

    plan: Plan
    score: int = 0


@dataclass(frozen=True, slots=True)
class Obstructed:
    """``elsewhere``: UIDs of claims that are allocated where this node cannot use them."""

    obstacle: Obstacle
    elsewhere: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Lacking:
    """``outcome`` knows why, and works it out when it is asked."""

    demand: Demand
    outcome: Refused | NodeFailure

    @property
    def refusal(self) -> Refusal:
        """Why, in the words of the pod's author."""
        return self.demand.in_terms_of_pod(self.outcome.refusal)


@dataclass(frozen=True, slots=True)
class Faulty:
    """Another node may do, but the reference ends the attempt."""

    error: AllocationError


@dataclass(frozen=True, slots=True)
class Undecided:
    """The answer is not to be had within the budget, or within the time."""

    text: str


NodeAnswer = Fits | Obstructed | Lacking | Faulty | Undecided


class Question:
    """One pod's question. Raises NodeSelectionError for node selectors of allocations that cannot be understood.

    ``filter_timeout``: seconds that the allocator may take for one node, by the clock of the caller.
    """

    def __init__(self, case: Case, filter_timeout: float = math.inf) -> None:
        self._filter_timeout = filter_timeout
        claims = case.resource_claims
        self._allocator, self._usage = case.allocator, case.usage
        self.neighbours = case.nodes.neighbours_of(case.pod)
        self.preferences = case.nodes.preferences_of(case.pod)
        self.filter = NodeFilter(case.pod, self.neighbours, case.volumes)
        self.allocations = Allocations(claims, case.failed)
        self.demands = Demands(claims, case.extended, case.nodes, case.allocator)
        self._made = case.extended.made
        self._volumes = case.volumes
        self.steps = 0
        """What was asked since the caller last looked has cost so much, in steps of the allocator."""

    def ask(self, state: NodeState) -> Generator[Pause, Elapsed, NodeAnswer]:
        """The node's answer. Raises ClaimError, see ``ExtendedResources.claim_for``, and NodeSelectionError."""
        demand = self.demands.on(state)
        demand.asked += 1
        self.steps += 1
        obstacle = self.filter.obstacle(state, demand.served)
        if obstacle is not None:
            return Obstructed(obstacle)
        elsewhere = self._elsewhere(state, demand)
        if elsewhere:
            return Obstructed(Obstacle(Kind.CLAIM_ELSEWHERE), frozenset(elsewhere))
        if not demand.claims:
            return Fits(Plan(state.name, {}, demand.served, volumes=self._bindings(state)))
        decision = self._allocator.search(state.node, demand.program, self._usage)
        began: Elapsed = None
        while (outcome := decision.advance(SLICE)) is None:
            elapsed = yield Pause.SEARCHING
            began = elapsed if began is None else began
            if elapsed is not None and began is not None and elapsed - began > self._filter_timeout:
                return Undecided(f"node {state.name}: timed out trying to allocate devices")
        self.steps += outcome.steps + DECISION_STEPS
        return self._answer(state, demand, outcome)

    def _bindings(self, state: NodeState) -> Bindings:
        found = self._volumes.bindings(state.node)
        return NO_BINDINGS if isinstance(found, Obstacle) else found  # the filter has asked before

    def _answer(self, state: NodeState, demand: Demand, outcome: Outcome) -> NodeAnswer:
        if isinstance(outcome, Allocated):
            allocations = demand.allocations(outcome.results)
            plan = Plan(state.name, allocations, demand.served, demand.extended, self._bindings(state))
            return Fits(plan, outcome.score)
        if isinstance(outcome, Failed):
            return Faulty(outcome.error)
        if isinstance(outcome, GaveUp):
            return Undecided(str(outcome))
        return Lacking(demand, outcome)

    def _elsewhere(self, state: NodeState, demand: Demand) -> set[str]:
        """UIDs of the claims that the pod has already and that are of no use to it on the node."""
        outdated = {self._made.metadata.uid} if self._made is not None and demand.is_outdated else set()
        return self.allocations.elsewhere(state.node) | outdated


def answer_text(answer: NodeAnswer) -> str:
    """What a node answered, as a clause."""
    match answer:
        case Fits():
            return "fits"
        case Obstructed(obstacle):
            return text(obstacle)
        case Lacking():
            return answer.refusal.line()
        case Faulty(error):
            return str(error)
        case Undecided(why):
            return why


def settled(asking: Generator[Pause, Elapsed, NodeAnswer]) -> NodeAnswer:
    """The answer in one go."""
    while True:
        try:
            next(asking)
        except StopIteration as end:
            answer: NodeAnswer = end.value
            return answer
