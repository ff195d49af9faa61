"""From a pod to a plan: which node, which devices for each claim, or why not (scheduling.md 4.2 to 4.4).

Planning changes nothing. A plan is only a proposal until the ledger has taken its devices.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import dataclass

from dra_api.core import Node, Pod
from dra_api.resource import AllocationResult, ResourceClaim

from dra_operator.allocator import Allocated, AllocationError, Allocator, Failed, GaveUp, Outcome, Usage
from dra_operator.allocator.nodes import matches
from dra_operator.allocator.plan import Plan as Recipe

from .explanation import explain
from .filters import is_shortage, obstacle
from .node import NodeState
from .requests import pod_requests
from .score import enough, rank

UNAVAILABLE = "resourceclaim not available on the node"
SLICE = 500  # steps of the allocator between two pauses: a few milliseconds
NODE_STEPS = 10  # what looking at a node costs even if the allocator has nothing to do


@dataclass(frozen=True, slots=True)
class Plan:
    """The pod goes to ``node``; ``allocations`` by claim UID are those that have to be written."""

    node: str
    allocations: dict[str, AllocationResult]


@dataclass(frozen=True, slots=True)
class NoPlace:
    """No node takes the pod. ``message`` is for people, the rest is for whoever decides when to try again."""

    message: str
    is_error: bool = False
    """Try again after a while, without waiting for a change: the attempt itself failed."""
    short_of_room: bool = False
    """The end of another pod may help, even if that frees no devices."""
    unavailable: frozenset[str] = frozenset()
    """UIDs of claims that are allocated where the pod cannot run; giving their devices back may help (4.3)."""


Planning = Generator[None, None, Plan | NoPlace]


def plan(
    pod: Pod,
    claims: Sequence[ResourceClaim],
    nodes: Iterable[NodeState],
    allocator: Allocator,
    usage: Usage,
    failed: Collection[str] = (),
) -> Planning:
    """The best node for a pod whose claims are in order, each given once.

    A generator that pauses every few milliseconds, so that the caller can let others run; its return value is the
    answer. ``usage`` must not change meanwhile. ``failed`` are UIDs of allocated claims that no node can use.

    Errors of the input (a selector that fails on a device of one node) end the attempt, although another node might
    do: which node comes first must not decide whether a broken claim is noticed.
    """
    states = tuple(nodes)
    attempt = _Attempt(pod, claims, allocator, usage, failed)
    try:
        for state in states:
            yield from attempt.try_node(state)
            if len(attempt.fits) >= enough(len(states)):
                break
    except (AllocationError, _Aborted) as error:
        return NoPlace(str(error), is_error=True)
    if not attempt.fits:
        return attempt.refuse(len(states))
    return min(attempt.fits, key=lambda fit: fit[0])[1]


class _Aborted(Exception):
    """The allocator gave up on a node: nobody knows the answer."""


class _Attempt:
    """What the nodes answered so far."""

    def __init__(
        self,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        allocator: Allocator,
        usage: Usage,
        failed: Collection[str],
    ) -> None:
        self._pod, self._wanted, self._claims = pod, pod_requests(pod), claims
        self._allocator, self._usage, self._failed = allocator, usage, failed
        self._open = [claim for claim in claims if claim.status.allocation is None]
        self._recipe: Recipe | None = None
        self._steps = 0
        self._reasons: list[str] = []
        self._unavailable: set[str] = set()
        self.fits: list[tuple[tuple[int, float, str], Plan]] = []

    def try_node(self, state: NodeState) -> Generator[None, None, None]:
        """Add the node's answer. Raises AllocationError or _Aborted when that ends the attempt."""
        reason = obstacle(self._pod, self._wanted, state)
        if reason is not None:
            self._reasons.append(reason)
            return
        elsewhere = {claim.metadata.uid for claim in self._claims if not self._is_usable(claim, state.node)}
        if elsewhere:
            self._unavailable |= elsewhere
            self._reasons.append(UNAVAILABLE)
        elif not self._open:
            self.fits.append((rank(state, self._wanted, 0), Plan(state.name, {})))
        else:
            self._take_in(state, (yield from self._allocate(state.node)))

    def refuse(self, nodes: int) -> NoPlace:
        """The answer when no node fits."""
        return NoPlace(
            explain(self._reasons, nodes),
            short_of_room=any(map(is_shortage, self._reasons)),
            unavailable=frozenset(self._unavailable),
        )

    def _is_usable(self, claim: ResourceClaim, node: Node) -> bool:
        allocation = claim.status.allocation
        if allocation is None:
            return True
        fits = allocation.node_selector is None or matches(allocation.node_selector, node)
        return fits and claim.metadata.uid not in self._failed

    def _allocate(self, node: Node) -> Generator[None, None, Outcome]:
        if self._recipe is None:
            self._recipe = self._allocator.plan(self._open)
        decision = self._allocator.search(node, self._recipe, self._usage)
        while (outcome := decision.advance(SLICE)) is None:
            yield
        self._steps += outcome.steps + NODE_STEPS
        if self._steps >= SLICE:
            self._steps = 0
            yield
        return outcome

    def _take_in(self, state: NodeState, outcome: Outcome) -> None:
        if isinstance(outcome, Failed):
            raise outcome.error
        if isinstance(outcome, GaveUp):
            raise _Aborted(str(outcome))
        if isinstance(outcome, Allocated):
            results = zip((claim.metadata.uid for claim in self._open), outcome.results, strict=True)
            self.fits.append((rank(state, self._wanted, outcome.score), Plan(state.name, dict(results))))
        else:
            self._reasons.append(outcome.refusal.line())
