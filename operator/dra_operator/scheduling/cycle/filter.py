"""The question whether a pod can run on a node, asked of one node after the other (``node_status``).

Before the first node, the pods that the pod's rules and scores ask about are counted. A pod may have a hundred rules
about all pods of the cluster. To compare them takes tens of milliseconds, in which nothing else would run, so
``counting`` does it in pieces. The counts are kept up to date from then on, as long as no others need the room.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Hashable, Iterable
from copy import copy
from dataclasses import replace
from itertools import chain
from typing import Final

from dra_api.core import Pod
from dra_api.resource import DeviceRequestAllocationResult

from dra_operator.allocator import Allocated, AllocationError, Failed, GaveUp, Outcome, Usage
from dra_operator.scheduling.claims.demand import Demand, Demands
from dra_operator.scheduling.claims.node_allocatable import node_use, shortage
from dra_operator.scheduling.claims.usable import Allocations
from dra_operator.scheduling.cycle.pre_filter import CycleState
from dra_operator.scheduling.cycle.result import Faulty, Fits, Lacking, NodeStatus, Obstructed, Plan, Undecided
from dra_operator.scheduling.nodes import Nodes
from dra_operator.scheduling.pieces import PAUSE_STEPS, Elapsed, Pause
from dra_operator.scheduling.rules.every_rule import RULES, PodRules
from dra_operator.scheduling.rules.rule import NodeRule
from dra_operator.scheduling.rules.volume_binding import NO_BINDINGS, Bindings
from dra_operator.scheduling.scores import SCORES, Score
from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.obstacle import Obstacle
from dra_operator.scheduling.state.placeholder import is_placeholder
from dra_operator.scheduling.state.topology import steps_per_node

LABELS_PER_STEP: Final = 100
"""Labels that are compared in the time of one step of the allocator."""


def counting(kinds: Iterable[type[NodeRule] | type[Score]]) -> list[type[NodeRule] | type[Score]]:
    """Those that count pods; most do not, and each pod would have them say so."""
    return [kind for kind in kinds if "queries" in vars(kind)]


COUNTING: Final = counting((*RULES, *SCORES))


def counted(pod: Pod, nodes: Nodes) -> Generator[Pause, Elapsed, None]:
    """Count what the pod's rules and preferences ask about. Each piece compares about ``SLICE * PER_STEP`` labels."""
    if is_placeholder(pod) or not nodes.minds_pods(pod):
        return
    compared = 0
    queries = chain.from_iterable(kind.queries(pod, nodes.pods_by_node.namespaces) for kind in COUNTING)
    for piece in chain(chain.from_iterable(map(nodes.prepare, queries)), nodes.prepare_others(pod)):
        compared += piece
        if compared >= PAUSE_STEPS * LABELS_PER_STEP:
            compared = 0
            yield Pause.SEARCHING


DECISION_STEPS = 10  # what a decision costs even if there is nothing to search
EXPLANATION_STEPS = 5  # what it costs to find out why a node lacks devices


class PodFilter:
    """One pod's question. Raises NodeSelectionError for node selectors of allocations that cannot be understood.

    ``filter_timeout``: seconds that the allocator may take for one node, by the clock of the caller.
    """

    def __init__(self, cycle_state: CycleState, filter_timeout: float = math.inf) -> None:
        self.filter_timeout = filter_timeout
        claims = cycle_state.resource_claims
        self._allocator, self._nominations = cycle_state.allocator, cycle_state.nominations
        self.usage = self._nominations.usage(cycle_state.usage)
        self.rules = cycle_state.nodes.rules_of(cycle_state.pod, cycle_state.volumes)
        self.scores = cycle_state.nodes.scores_of(cycle_state.pod)
        self.allocations = Allocations(
            claims, cycle_state.failed, release=cycle_state.allocator.inventory.features.release
        )
        self.demands = Demands(
            claims, cycle_state.extended, cycle_state.nodes, cycle_state.allocator, cycle_state.value
        )
        self._state = cycle_state
        self._made = cycle_state.extended.made
        self._has_devices = self._made is not None or any(claim.status.allocation is not None for claim in claims)
        self.volumes = cycle_state.volumes
        self._steps_per_node = steps_per_node(cycle_state.pod)
        self.haste = 1
        """The allocator gets so many times less time and steps for each node, once it has spent all on one of them."""
        self.device_order = ""
        """In which order devices are tried, if not in the allocator's own."""
        self.steps = 0
        """What was asked since the caller last looked has cost so much, in steps of the allocator."""

    def given(self, usage: Usage, rules: PodRules | None = None) -> PodFilter:
        """The same question where other devices are in use; with ``rules``, where other pods are on the nodes."""
        other = copy(self)
        other.usage = self._nominations.usage(usage)
        other.rules = self.rules if rules is None else rules
        other.steps = 0
        return other

    def filter(self, state: LoadedNode) -> Generator[Pause, Elapsed, NodeStatus]:
        """The node's answer. Raises ClaimError, see ``ExtendedResources.claim_for``, and NodeSelectionError."""
        obstacle = self.obstacle(state)
        return Obstructed(obstacle) if obstacle is not None else (yield from self.serve(state))

    def obstacle(self, state: LoadedNode) -> Obstacle | None:
        """The first rule that keeps the pod from the node. Raises as ``filter`` does."""
        demand = self.demands.on(state)
        demand.asked += 1
        self.steps += self._steps_per_node
        return self.rules.obstacle(self._nominations.loaded(state), demand.served)

    def obstacles(self, state: LoadedNode) -> list[Obstacle]:
        """Return what each rule has against the node, for people. Raises as ``filter`` does."""
        return self.rules.obstacles(self._nominations.loaded(state), self.demands.on(state).served)

    def serve(self, state: LoadedNode) -> Generator[Pause, Elapsed, NodeStatus]:
        """What the node's devices say, whatever the rules do. Raises as ``filter`` does."""
        demand = self.demands.on(state)
        elsewhere = frozenset(self._elsewhere(state, demand))
        if not demand.claims:
            plan = Plan(state.name, {}, demand.served, volumes=self.bindings(state))
            return self._obstructed(state, elsewhere) or self._with_node_use(state, plan)
        budget = self._allocator.budget // self.haste
        decision = self._allocator.search(
            state.node, demand.program, self.usage, budget=budget, order=self.device_order
        )
        began: Elapsed = None
        while (outcome := decision.advance(PAUSE_STEPS)) is None:
            elapsed = yield Pause.SEARCHING
            began = elapsed if began is None else began
            if elapsed is not None and began is not None and elapsed - began > self.filter_timeout / self.haste:
                return Undecided("timed out trying to allocate devices")
        self.steps += outcome.steps + DECISION_STEPS
        return self._answer(state, demand, outcome, elsewhere)

    def likeness(self, state: LoadedNode) -> Hashable | None:
        """Equal for nodes that ``serve`` answers alike, but for the names of nodes, pools and devices; None: unknown.

        Raises as ``filter`` does.
        """
        if self._has_devices or self._allocator.inventory.features.node_allocatable_resources:
            return None  # where the devices are, and the room on the node, count as well
        demand = self.demands.on(state)
        if not demand.claims:
            return None
        alike = self._allocator.likeness(state.node, demand.program, self.usage)
        return None if alike is None else (demand, alike)

    def bindings(self, state: LoadedNode) -> Bindings:
        """How the pod's unbound claims of volumes get theirs on a node that no rule keeps it from."""
        found = self.volumes.bindings(state.node)
        return NO_BINDINGS if isinstance(found, Obstacle) else found  # the filter has asked before

    def _answer(self, state: LoadedNode, demand: Demand, outcome: Outcome, elsewhere: frozenset[str]) -> NodeStatus:
        if isinstance(outcome, Allocated):
            if (obstructed := self._obstructed(state, elsewhere)) is not None:
                return obstructed
            allocations = demand.allocations(outcome.results)
            plan = Plan(state.name, allocations, demand.served, demand.extended, self.bindings(state))
            return self._with_node_use(state, plan, outcome.score)
        if isinstance(outcome, Failed):
            return Faulty(outcome.error, is_of_node=outcome.is_of_node)
        if isinstance(outcome, GaveUp):
            return Undecided(outcome.text)
        return Lacking(demand, outcome)

    def _with_node_use(self, state: LoadedNode, plan: Plan, score: int = 0) -> NodeStatus:
        """Whether the node has what the devices of the plan take of its own resources."""
        pod = self._state.pod
        if not self._allocator.inventory.features.node_allocatable_resources or is_placeholder(pod):
            return Fits(plan, score)
        extended: tuple[DeviceRequestAllocationResult, ...] = self._made.results if self._made is not None else ()
        if plan.extended is not None:
            extended = plan.allocations[plan.extended.claim.metadata.uid].results
        held = [
            (claim, planned.results if (planned := plan.allocations.get(claim.metadata.uid)) else claim.results)
            for entry, claim in self._state.claims
            if entry is not None
        ]
        try:
            use = node_use(pod, held, self._allocator.published, extended, is_group_idle=self._state.is_group_idle)
        except AllocationError as error:
            stays = self._allocator.inventory.semantics.errors_stay_on_node
            return Faulty(error, is_of_node=stays and error.is_of_node)
        if isinstance(use, Obstacle):
            return Obstructed(use)
        short = shortage(pod, self._nominations.loaded(state), use)
        return Obstructed(short) if short is not None else Fits(replace(plan, node_use=use), score)

    def _elsewhere(self, state: LoadedNode, demand: Demand) -> set[str]:
        """UIDs of the claims that the pod has already and that are of no use to it on the node."""
        outdated = {self._made.metadata.uid} if self._made is not None and demand.is_outdated else set()
        return self.allocations.elsewhere(state.node) | outdated

    def _obstructed(self, state: LoadedNode, elsewhere: frozenset[str]) -> Obstructed | None:
        """By allocated claims. They are the last obstacle of a node: giving them back is of use where all else fits."""
        return Obstructed(self.allocations.obstacle(state.node, elsewhere), elsewhere) if elsewhere else None
