"""Asks one node after the other whether a pod can run on it; their answers, and what an attempt makes of them.

A node answers the question whether a pod can run on it with a value that has its words::

    NodeStatus
    ├── Fits             with these devices
    ├── Obstructed       by the node itself, or because claims of the pod are allocated elsewhere
    ├── Lacking          the node's devices do not serve the claims
    ├── Faulty           the claims cannot be decided there: a selector fails on a device, for instance
    └── Undecided        the allocator gave up, or its time is over

``kind`` is for programs and stable; ``text`` is a clause about the node, without its name. ``kubectl dra why``,
``dra-operator simulate`` and the log use them for every answer of which they have no more to say.

``Reasons`` says in one line why no node takes the pod: equal reasons counted together, the most frequent first. Nodes
that cannot serve the same request differ in their numbers, which change all the time and tell little. They count as one
reason, with the numbers of the node that comes closest; without numbers if no node has a device that matches, since
then none is close.

Before the first node, the pods that the pod's rules and scores ask about are counted. A pod may have a hundred rules
about all pods of the cluster. To compare them takes tens of milliseconds, in which nothing else would run, so
``counted`` does it in pieces. The counts are kept up to date from then on, as long as no others need the room.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Hashable, Iterable
from copy import copy
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar, Final

from dra_api.core import Pod
from dra_api.resource import AllocationResult, DeviceRequestAllocationResult, ResourceClaim

from dra_operator.allocator import (
    Allocated,
    AllocationError,
    Failed,
    GaveUp,
    NodeFailure,
    Refusal,
    Refused,
    RefusedClaim,
    Usage,
)
from dra_operator.scheduling.claims.demand import Demand, Demands, ExtendedClaim, Served
from dra_operator.scheduling.claims.node_allocatable import NO_NODE_USE, NodeUse, node_use, shortage
from dra_operator.scheduling.claims.readiness import Allocations, PodClaim
from dra_operator.scheduling.cycle.pre_filter import CycleState
from dra_operator.scheduling.nodes import RULES, Nodes, PodRules
from dra_operator.scheduling.pieces import PAUSE_STEPS, Elapsed, Pause
from dra_operator.scheduling.rules.rule import Hint, NodeRule
from dra_operator.scheduling.rules.volume_binding import NO_BINDINGS, Bindings
from dra_operator.scheduling.rules.volumes import NO_VOLUMES
from dra_operator.scheduling.scores import SCORES, Score
from dra_operator.scheduling.state.applicants import is_placeholder
from dra_operator.scheduling.state.node import LoadedNode, node_requests, steps_per_node
from dra_operator.scheduling.state.obstacle import Obstacle, Reason
from dra_operator.wording import counted as number_of


@dataclass(frozen=True, slots=True)
class Plan:
    """The pod goes to ``node``; ``allocations`` by claim UID are those that have to be written."""

    node: str
    allocations: dict[str, AllocationResult]
    served: Served = ()
    """Extended resources that devices serve there: the pod takes nothing of what the node counts of them."""
    extended: ExtendedClaim | None = None
    """The claim for them that has to be made; it has its allocation among the others."""
    volumes: Bindings = NO_BINDINGS
    """How the unbound claims of volumes get theirs."""
    node_use: NodeUse = NO_NODE_USE
    """What its devices take of the node's own resources."""
    scores: tuple[tuple[str, int], ...] = ()
    """Why this node among those that fit: what it got for each of the pod's preferences, and for its room."""
    strategy: str = ""
    """The placement strategy that preferred the node; empty if there was none."""

    def requests_of(self, pod: Pod) -> dict[str, int]:
        """What the pod takes of the node by this plan."""
        return node_requests(pod, self.served, self.node_use.amounts)


@dataclass(frozen=True, slots=True)
class PostFilterResult:
    """A nomination: once the victims have ended, the pod gets the node, and the devices there, of this plan."""

    plan: Plan
    victims: tuple[Pod, ...]
    awaited: tuple[Pod, ...] = ()
    """Pods that end anyway, and on whose end the plan relies as well."""

    @property
    def nominated_node(self) -> str:
        """Where the pod goes then."""
        return self.plan.node


@dataclass(frozen=True, slots=True)
class NoPlace:
    """No node takes the pod. ``message`` is for people; the rest decides when to try again."""

    message: str
    reason: str = "error"
    """What most nodes lack, or what is wrong with the pod: a word that fits a metric's label."""
    is_error: bool = False
    """Try again after a while, without waiting for a change: the attempt itself failed."""
    short_of_room: bool = False
    """The end of another pod may help, even if that frees no devices."""
    hints: frozenset[Hint] = frozenset()
    """Which pods may help by their coming, going or change, and what else matters to rules between pods."""
    drivers: frozenset[str] | None = None
    """Of which drivers a device that comes free may help; None: of all that the classes of the claims may mean."""
    stuck: tuple[PodClaim, ...] = ()
    """Claims that are allocated where the pod cannot run, and whose devices it may give back."""
    leftovers: tuple[ResourceClaim, ...] = ()
    """Claims for extended resources that earlier attempts left half made: they have to go first (scheduling.md 4.3)."""
    nominated: PostFilterResult | None = None
    """How a post filter would make room."""
    fits_never: bool = False
    """Pods that are planned together would not fit even if all nodes and devices were free."""


@dataclass(frozen=True, slots=True)
class Fits:
    """``score`` is that of the chosen alternatives."""

    kind: ClassVar = "fits"
    text: ClassVar = "fits"
    plan: Plan
    score: int = 0


@dataclass(frozen=True, slots=True)
class Obstructed:
    """``elsewhere``: UIDs of claims that are allocated where this node cannot use them."""

    kind: ClassVar = "obstructed"
    obstacle: Obstacle
    elsewhere: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """What is in the way."""
        return self.obstacle.text


@dataclass(frozen=True, slots=True)
class Lacking:
    """``outcome`` knows why, and works it out when it is asked."""

    kind: ClassVar = "lacking"
    demand: Demand
    outcome: Refused | NodeFailure

    @property
    def refusal(self) -> Refusal:
        """Why, in the words of the pod's author."""
        return self.demand.in_terms_of_pod(self.outcome.refusal)

    @property
    def outline(self) -> Refusal:
        """The refusal without its hints, for comparing nodes."""
        return self.demand.in_terms_of_pod(self.outcome.outline)

    @property
    def text(self) -> str:
        """The refusal in one line."""
        return self.refusal.line()


@dataclass(frozen=True, slots=True)
class Faulty:
    """The claims cannot be decided there.

    ``is_of_node``: the fault is in what the node sees, and other nodes are tried. Otherwise it is the claims', and ends
    the attempt.
    """

    kind: ClassVar = "faulty"
    error: AllocationError
    is_of_node: bool = False

    @property
    def text(self) -> str:
        """The error, marked as one."""
        return f"error: {self.error}"


@dataclass(frozen=True, slots=True)
class Undecided:
    """The answer is not to be had within the budget, or within the time."""

    kind: ClassVar = "undecided"
    text: str


NodeStatus = Fits | Obstructed | Lacking | Faulty | Undecided


TOO_FEW_DEVICES: Final = Reason("too-few-devices", "cannot satisfy {subject} (too few free devices match)")

RefusedRequest = tuple[RefusedClaim, str]
"""A claim, and the name of one of its requests."""

SHOWN_REASONS = 4
LONGEST_DIAGNOSIS_CHARACTERS = 1024  # characters of an event's message


def _rank(refusal: Refusal) -> tuple[tuple[int, ...], str]:
    """For the closest node; of nodes that are equally close the first by name, whichever was asked first: a line that
    changed with the order of the nodes would be news at each attempt."""
    return tuple(-each for each in refusal.closeness), refusal.node


class Reasons:
    """The nodes' answers, counted as they come."""

    def __init__(self) -> None:
        self.obstacles: Counter[Obstacle] = Counter()
        self._refused: Counter[RefusedRequest] = Counter()
        self._best: dict[RefusedRequest, Refusal] = {}
        self._errors: Counter[str] = Counter()
        """What cannot be decided, by the number of nodes."""
        self._lines: dict[RefusedRequest, Counter[str]] = {}

    def add(self, obstacle: Obstacle, nodes: int = 1) -> None:
        """So many nodes have the obstacle."""
        # By the obstacle and not by its text: thousands of nodes have the same, and the text is made once.
        self.obstacles[obstacle] += nodes

    def fail(self, error: AllocationError) -> None:
        """A node on which the claims cannot be decided."""
        self._errors[str(error)] += 1

    def refuse(self, refusal: Refusal) -> None:
        """A node whose devices do not serve the claims."""
        request = (refusal.claim, refusal.request)
        self._refused[request] += 1
        self._lines.setdefault(request, Counter())[refusal.line()] += 1
        best = self._best.get(request)
        if best is None or _rank(refusal) < _rank(best):
            self._best[request] = refusal

    def refuse_others(self, claim: RefusedClaim, request: str, nodes: int) -> None:
        """So many nodes, not looked at one by one, cannot serve the request either."""
        if (claim, request) in self._best:
            self._refused[(claim, request)] += nodes
        else:
            self.add(Obstacle(TOO_FEW_DEVICES, claim.named(request)), nodes)

    @property
    def main(self) -> str:
        """What most nodes lack: the kind of an obstacle, or ``devices``."""
        # One word for a metric: all that devices lack counts together, since which request lacks them differs by node.
        counts = Counter({"devices": self._refused.total() + self._errors.total(), "no-nodes": 0})
        for obstacle, nodes in self.obstacles.items():
            counts["devices" if obstacle.reason is TOO_FEW_DEVICES else obstacle.reason.name] += nodes
        return max(counts, key=lambda kind: counts[kind]) if counts.total() else "no-nodes"

    def line(self, nodes: int) -> str:
        """``0/3 nodes are available: 2 Insufficient cpu, 1 ...``; rare reasons are only counted."""
        if not nodes:
            return "0/0 nodes are available: the cluster has no nodes"
        reasons = [(count, obstacle.text) for obstacle, count in self.obstacles.items()]
        reasons += [(count, self._reason(request)) for request, count in self._refused.items()]
        if self._errors:
            reasons.append((self._errors.total(), self._error()))
        # By the text among equals: a message that changed with the order of the nodes would be a new event each time.
        reasons.sort(key=lambda item: (-item[0], item[1]))
        line = ""
        # Fewer reasons rather than a cut sentence; the others are counted.
        for shown in range(SHOWN_REASONS, 0, -1):
            parts = [f"{count} {reason}" for count, reason in reasons[:shown]]
            hidden = sum(count for count, _ in reasons[shown:])
            parts += [f"{hidden} for other reasons"] if hidden else []
            line = f"0/{nodes} nodes are available: {', '.join(parts)}"
            if len(line) <= LONGEST_DIAGNOSIS_CHARACTERS:
                return line
        return line[: LONGEST_DIAGNOSIS_CHARACTERS - 3] + "..."

    def _error(self) -> str:
        """The error of most nodes, of those of equally many the first by its text."""
        text, _ = min(self._errors.items(), key=lambda item: (-item[1], item[0]))
        others = len(self._errors) - 1
        return f"error: {text}" + (f" ({number_of(others, 'other error')} not shown)" if others else "")

    def _reason(self, request: RefusedRequest) -> str:
        best, lines = self._best[request], self._lines[request]
        looked_at = lines.total()
        # No node comes near, so the numbers of one of them would only mislead.
        if not best.has_prospects and (len(lines) > 1 or looked_at < self._refused[request]):
            where = f" on the {looked_at} nodes looked at" if looked_at < self._refused[request] else ""
            return best.without_numbers(f"no device matches{where}")
        return best.line(*([f"best node: {best.node}"] if len(lines) > 1 else []))


LABELS_PER_STEP: Final = 100
"""Labels that are compared in the time of one step of the allocator."""


def counting(kinds: Iterable[type[NodeRule] | type[Score]]) -> list[type[NodeRule] | type[Score]]:
    """Those that count pods; most do not, and each pod would have them say so."""
    return [kind for kind in kinds if "queries" in vars(kind)]


COUNTING: Final = counting((*RULES, *SCORES))


def counted(pod: Pod, nodes: Nodes) -> Generator[Pause, Elapsed, None]:
    """Count what the pod's rules and preferences ask about. Each piece compares about ``SLICE * PER_STEP`` labels."""
    # Nearly every pod: neither it nor a pod on a node has such a rule.
    if is_placeholder(pod) or not nodes.minds_pods(pod):
        return
    compared = 0
    queries = chain.from_iterable(kind.queries(pod, nodes.pods_by_node.namespaces) for kind in COUNTING)
    for piece in chain(chain.from_iterable(map(nodes.prepare, queries)), nodes.prepare_others(pod)):
        compared += piece
        if compared >= PAUSE_STEPS * LABELS_PER_STEP:
            compared = 0
            yield Pause.SEARCHING


NOWHERE: Final = frozenset[str]()
DECISION_STEPS = 10  # what a decision costs even if there is nothing to search
EXPLANATION_STEPS = 5  # what it costs to find out why a node lacks devices


class PodFilter:
    """One pod's question. Raises NodeSelectionError for node selectors of allocations that cannot be understood.

    ``filter_timeout``: seconds that the allocator may take for one node, by the clock of the caller.
    """

    def __init__(self, cycle_state: CycleState, filter_timeout: float = math.inf) -> None:
        self.filter_timeout = filter_timeout
        # Once per attempt and not per node: there may be thousands of nodes.
        claims = cycle_state.resource_claims
        self._allocator, self._nominations = cycle_state.allocator, cycle_state.nominations
        # Devices that are kept for pods of the same or a higher priority count as used.
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
        # A shallow copy: what was worked out for all nodes (rules, demands, nodes of the claims) is shared.
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
        # So that a refusal knows how many nodes it speaks for without having been asked.
        demand.asked += 1
        self.steps += self._steps_per_node
        return self.rules.obstacle(self._nominations.loaded(state), demand.served)

    def obstacles(self, state: LoadedNode) -> list[Obstacle]:
        """Return what each rule has against the node, for people. Raises as ``filter`` does."""
        return self.rules.obstacles(self._nominations.loaded(state), self.demands.on(state).served)

    def serve(self, state: LoadedNode) -> Generator[Pause, Elapsed, NodeStatus]:
        """What the node's devices say, whatever the rules do. Raises as ``filter`` does."""
        demand = self.demands.on(state)
        # Claims that the pod has already and that are of no use to it on this node.
        outdated = {self._made.metadata.uid} if self._made is not None and demand.is_outdated else set()
        # Most pods have no devices yet.
        elsewhere = frozenset(self.allocations.elsewhere(state.node) | outdated) if self._has_devices else NOWHERE
        if not demand.claims:
            plan = Plan(state.name, {}, demand.served, volumes=self.bindings(state))
            return self._obstructed(state, elsewhere) or self._with_node_use(state, plan)
        # After a node on which the allocator gave up, the others get less: they are probably as hard.
        budget = self._allocator.budget // self.haste
        decision = self._allocator.search(
            state.node, demand.program, self.usage, budget=budget, order=self.device_order
        )
        began: Elapsed = None
        while (outcome := decision.advance(PAUSE_STEPS)) is None:
            elapsed = yield Pause.SEARCHING
            # The clock of the caller counts from the first pause: what came before this node is not its time.
            began = elapsed if began is None else began
            if elapsed is not None and began is not None and elapsed - began > self.filter_timeout / self.haste:
                return Undecided("timed out trying to allocate devices")
        self.steps += outcome.steps + DECISION_STEPS
        if isinstance(outcome, Failed):
            return Faulty(outcome.error, is_of_node=outcome.is_of_node)
        # Not "does not fit": whether it would is not known, and the pod is told so.
        if isinstance(outcome, GaveUp):
            return Undecided(outcome.text)
        if not isinstance(outcome, Allocated):
            return Lacking(demand, outcome)
        # Claims elsewhere come last: to give them back is of use only where all else fits.
        if (obstructed := self._obstructed(state, elsewhere)) is not None:
            return obstructed
        allocations = demand.allocations(outcome.results)
        plan = Plan(state.name, allocations, demand.served, demand.extended, self.bindings(state))
        # 8 is the most alternatives that the API allows in a request: the last of them still counts more than none
        # (scheduling.md 4.4).
        score = sum([8 - choice.index for choice in outcome.chosen]) if outcome.chosen else 0
        return self._with_node_use(state, plan, score)

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
        if self.volumes is NO_VOLUMES:
            return NO_BINDINGS
        # Asked a second time, and not kept from the rules: few nodes get here.
        found = self.volumes.bindings(state.node)
        return NO_BINDINGS if isinstance(found, Obstacle) else found  # the filter has asked before

    def _with_node_use(self, state: LoadedNode, plan: Plan, score: int = 0) -> NodeStatus:
        """Whether the node has what the devices of the plan take of its own resources."""
        pod = self._state.pod
        # Without the gate devices take nothing of a node, and a placeholder pod has no room to take it from.
        if not self._allocator.inventory.features.node_allocatable_resources or is_placeholder(pod):
            return Fits(plan, score)
        extended: tuple[DeviceRequestAllocationResult, ...] = self._made.results if self._made is not None else ()
        if plan.extended is not None:
            # The claim that the plan makes takes the place of one from an earlier attempt.
            extended = plan.allocations[plan.extended.claim.metadata.uid].results
        held = [
            (claim, planned.results if (planned := plan.allocations.get(claim.metadata.uid)) else claim.results)
            for entry, claim in self._state.claims
            if entry is not None
        ]
        try:
            use = node_use(pod, held, self._allocator.published, extended, is_group_idle=self._state.is_group_idle)
        except AllocationError as error:
            # Kubernetes' rule about faults of what one node publishes: they keep the pod from that node only.
            stays = self._allocator.inventory.semantics.errors_stay_on_node
            return Faulty(error, is_of_node=stays and error.is_of_node)
        if isinstance(use, Obstacle):
            return Obstructed(use)
        # Only now, after the devices are chosen: which ones they are decides what they take of the node (K37-NA-07).
        short = shortage(pod, self._nominations.loaded(state), use)
        return Obstructed(short) if short is not None else Fits(replace(plan, node_use=use), score)

    def _obstructed(self, state: LoadedNode, elsewhere: frozenset[str]) -> Obstructed | None:
        """By allocated claims. They are the last obstacle of a node: giving them back is of use where all else fits."""
        return Obstructed(self.allocations.obstacle(state.node, elsewhere), elsewhere) if elsewhere else None
