"""The results of an attempt to place a pod: a plan or no place, the answer of each node, and all answers in one line.

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
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Final

from dra_api.core import Pod
from dra_api.resource import AllocationResult, ResourceClaim

from dra_operator.allocator import AllocationError, DeviceId, NodeFailure, Refusal, Refused, RefusedClaim
from dra_operator.scheduling.claims.demand import Demand, ExtendedClaim, Served
from dra_operator.scheduling.claims.node_allocatable import NO_NODE_USE, NodeUse
from dra_operator.scheduling.claims.usable import PodClaim
from dra_operator.scheduling.rules.rule import Hint
from dra_operator.scheduling.rules.volume_binding import NO_BINDINGS, Bindings
from dra_operator.scheduling.state.obstacle import Obstacle, Reason
from dra_operator.scheduling.state.requests import node_requests
from dra_operator.wording import counted


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

    @property
    def nominated_devices(self) -> frozenset[DeviceId]:
        """What the pod's claims get there, apart from what they have."""
        results = (result for allocation in self.plan.allocations.values() for result in allocation.results)
        return frozenset(map(DeviceId.of, results))


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
        reasons.sort(key=lambda item: (-item[0], item[1]))
        line = ""
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
        return f"error: {text}" + (f" ({counted(others, 'other error')} not shown)" if others else "")

    def _reason(self, request: RefusedRequest) -> str:
        best, lines = self._best[request], self._lines[request]
        looked_at = lines.total()
        if not best.has_prospects and (len(lines) > 1 or looked_at < self._refused[request]):
            where = f" on the {looked_at} nodes looked at" if looked_at < self._refused[request] else ""
            return best.without_numbers(f"no device matches{where}")
        return best.line(*([f"best node: {best.node}"] if len(lines) > 1 else []))
