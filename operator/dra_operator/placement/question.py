"""The question whether a pod can run on a node, asked of one node after the other (``node_answer``)."""

from __future__ import annotations

import math
from collections.abc import Generator

from dra_operator.allocator import Allocated, Failed, GaveUp, Outcome

from .answer import Plan
from .demand import Demand, Demands
from .elsewhere import Allocations
from .examination import Case
from .filters import NodeFilter
from .node import LoadedNode
from .node_answer import Faulty, Fits, Lacking, NodeAnswer, Obstructed, Undecided
from .obstacle import Obstacle, ObstacleKind
from .pause import SLICE, Elapsed, Pause
from .rule_count import steps_per_node
from .unbound import NO_BINDINGS, Bindings

DECISION_STEPS = 10  # what a decision costs even if there is nothing to search
EXPLANATION_STEPS = 5  # what it costs to find out why a node lacks devices


class Question:
    """One pod's question. Raises NodeSelectionError for node selectors of allocations that cannot be understood.

    ``filter_timeout``: seconds that the allocator may take for one node, by the clock of the caller.
    """

    def __init__(self, case: Case, filter_timeout: float = math.inf) -> None:
        self.filter_timeout = filter_timeout
        claims = case.resource_claims
        self._allocator, self._usage = case.allocator, case.usage
        self.neighbours = case.nodes.neighbours_of(case.pod)
        self.preferences = case.nodes.preferences_of(case.pod)
        self.filter = NodeFilter(case.pod, self.neighbours, case.volumes)
        self.allocations = Allocations(claims, case.failed)
        self.demands = Demands(claims, case.extended, case.nodes, case.allocator)
        self._made = case.extended.made
        self._volumes = case.volumes
        self._steps_per_node = steps_per_node(case.pod)
        self.steps = 0
        """What was asked since the caller last looked has cost so much, in steps of the allocator."""

    def ask(self, state: LoadedNode) -> Generator[Pause, Elapsed, NodeAnswer]:
        """The node's answer. Raises ClaimError, see ``ExtendedResources.claim_for``, and NodeSelectionError."""
        demand = self.demands.on(state)
        demand.asked += 1
        self.steps += self._steps_per_node
        obstacle = self.filter.obstacle(state, demand.served)
        if obstacle is not None:
            return Obstructed(obstacle)
        elsewhere = frozenset(self._elsewhere(state, demand))
        if not demand.claims:
            return _obstructed(elsewhere) or Fits(Plan(state.name, {}, demand.served, volumes=self._bindings(state)))
        decision = self._allocator.search(state.node, demand.program, self._usage)
        began: Elapsed = None
        while (outcome := decision.advance(SLICE)) is None:
            elapsed = yield Pause.SEARCHING
            began = elapsed if began is None else began
            if elapsed is not None and began is not None and elapsed - began > self.filter_timeout:
                return Undecided("timed out trying to allocate devices")
        self.steps += outcome.steps + DECISION_STEPS
        return self._answer(state, demand, outcome, elsewhere)

    def _bindings(self, state: LoadedNode) -> Bindings:
        found = self._volumes.bindings(state.node)
        return NO_BINDINGS if isinstance(found, Obstacle) else found  # the filter has asked before

    def _answer(self, state: LoadedNode, demand: Demand, outcome: Outcome, elsewhere: frozenset[str]) -> NodeAnswer:
        if isinstance(outcome, Allocated):
            if (obstructed := _obstructed(elsewhere)) is not None:
                return obstructed
            allocations = demand.allocations(outcome.results)
            plan = Plan(state.name, allocations, demand.served, demand.extended, self._bindings(state))
            return Fits(plan, outcome.score)
        if isinstance(outcome, Failed):
            return Faulty(outcome.error)
        if isinstance(outcome, GaveUp):
            return Undecided(outcome.text)
        return Lacking(demand, outcome)

    def _elsewhere(self, state: LoadedNode, demand: Demand) -> set[str]:
        """UIDs of the claims that the pod has already and that are of no use to it on the node."""
        outdated = {self._made.metadata.uid} if self._made is not None and demand.is_outdated else set()
        return self.allocations.elsewhere(state.node) | outdated


def _obstructed(elsewhere: frozenset[str]) -> Obstructed | None:
    """By allocated claims. They are the last obstacle of a node: giving them back is of use where all else fits."""
    return Obstructed(Obstacle(ObstacleKind.CLAIM_ELSEWHERE), elsewhere) if elsewhere else None


def settled(asking: Generator[Pause, Elapsed, NodeAnswer]) -> NodeAnswer:
    """The answer in one go."""
    while True:
        try:
            next(asking)
        except StopIteration as end:
            answer: NodeAnswer = end.value
            return answer
