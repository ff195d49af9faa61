"""From a pod to a plan: which node, which devices for each claim, or why not (scheduling.md 4.2 to 4.4).

Planning changes nothing. A plan is only a proposal until the ledger has taken its devices.

An attempt looks at as few nodes as it can: those where allocated claims can be used, otherwise those that the index of
the allocator names, the best first. The first one that fits is then the answer, unless another could get better
alternatives. Nodes on which the claims may turn out to be faulty always come first: which node is best must not decide
whether a broken claim is noticed (E2E-055).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from dra_api.core import Pod
from dra_api.resource import AllocationResult, ResourceClaim

from dra_operator.allocator import Allocated, AllocationError, Allocator, Candidates, Failed, GaveUp, Outcome, Usage

from .elsewhere import Allocations
from .explanation import Reasons
from .filters import NodeFilter
from .node import NodeState
from .nodes import Nodes
from .score import enough, ideal, rank

UNAVAILABLE = "resourceclaim not available on the node"
SLICE = 500  # steps of the allocator between two pauses: a few milliseconds
DECISION_STEPS = 10  # what a decision costs even if there is nothing to search
FEW = 64  # candidates that are put in order themselves, instead of being looked for in the order of all nodes
SAMPLE = 16  # nodes without enough devices that are asked all the same, for an explanation with numbers


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
    nodes: Nodes,
    allocator: Allocator,
    usage: Usage,
    failed: Collection[str] = (),
) -> Planning:
    """The best node for a pod whose claims are in order, each given once.

    A generator that pauses every few milliseconds, so that the caller can let others run; its return value is the
    answer. ``usage`` must not change meanwhile, ``nodes`` may. ``failed`` are UIDs of allocated claims that no node
    can use.

    Errors of the input (a selector that fails on a device of one node) end the attempt, although another node might
    do.
    """
    attempt = _Attempt(pod, claims, nodes, allocator, usage, failed)
    try:
        yield from attempt.search()
        if not attempt.fits:
            return (yield from attempt.refuse())
    except (AllocationError, _Aborted) as error:
        return NoPlace(str(error), is_error=True)
    return min(attempt.fits, key=lambda fit: fit[0])[1]


class _Aborted(Exception):
    """The allocator gave up on a node: nobody knows the answer."""


class _Attempt:
    """What the nodes answered so far."""

    def __init__(
        self,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        nodes: Nodes,
        allocator: Allocator,
        usage: Usage,
        failed: Collection[str],
    ) -> None:
        self._filter, self._nodes, self._allocator, self._usage = NodeFilter(pod), nodes, allocator, usage
        self._allocations = Allocations(claims, failed)
        self._open = [claim for claim in claims if claim.status.allocation is None]
        self._recipe = allocator.plan(self._open)
        self._ideal = ideal(self._recipe)
        self._candidates: Candidates | None = None
        self._asked: set[str] = set()
        self._steps = 0
        self._reasons = Reasons()
        self._unavailable: set[str] = set()
        self.fits: list[tuple[tuple[int, float, str], Plan]] = []

    def search(self) -> Generator[None, None, None]:
        """Ask nodes until the best one is known. Raises AllocationError or _Aborted when that ends the attempt."""
        pinned = self._allocations.nodes
        if pinned is not None:
            yield from self._try_all(sorted(pinned))
            return
        if self._open:
            yield from self._allocator.catch_up(self._recipe, self._usage)
            self._candidates = self._allocator.candidates(self._recipe, self._usage)
            yield from self._try_all(self._candidates.suspects)
        for name in self._best_first():
            if name not in self._asked and self._may_hold(name):
                yield from self._try(name)
                if self._is_settled():
                    return
            yield from self._pause(1)

    def refuse(self) -> Generator[None, None, NoPlace]:
        """The answer when no node fits."""
        nodes = len(self._nodes)
        if self._allocations.nodes is not None:
            self._refuse_unpinned(nodes - len(self._asked))
        elif self._candidates is not None and len(self._asked) < nodes:
            yield from self._ask_some(self._candidates)
            self._refuse_excluded(self._candidates, nodes - len(self._asked))
        return NoPlace(
            self._reasons.line(nodes), short_of_room=self._reasons.of_room, unavailable=frozenset(self._unavailable)
        )

    # --- which nodes ---

    def _best_first(self) -> Iterable[str]:
        """The nodes worth trying, or, if they are many, all nodes."""
        if self._candidates is not None and not self._candidates.anywhere:
            few = list(islice(self._candidates, len(self._asked) + FEW))
            if len(few) < len(self._asked) + FEW:
                states = (state for name in few if (state := self._nodes.get(name)) is not None)
                return [state.name for state in sorted(states, key=lambda state: rank(state, 0))]
        return self._nodes.from_emptiest()

    def _may_hold(self, name: str) -> bool:
        return self._candidates is None or self._candidates.anywhere or name in self._candidates

    def _is_settled(self) -> bool:
        """Whether no other node can be better than those that fit: the rest is fuller."""
        best = min((key[0] for key, _ in self.fits), default=1)
        return best <= -self._ideal or len(self.fits) >= enough(len(self._nodes))

    # --- asking a node ---

    def _try_all(self, names: Iterable[str]) -> Generator[None, None, None]:
        for name in names:
            yield from self._try(name)

    def _try(self, name: str) -> Generator[None, None, None]:
        state = self._nodes.get(name)
        if state is None:
            return
        self._asked.add(name)
        reason = self._filter.obstacle(state)
        if reason is not None:
            self._reasons.add(reason)
        elif elsewhere := self._allocations.elsewhere(state.node):
            self._unavailable |= elsewhere
            self._reasons.add(UNAVAILABLE)
        elif not self._open:
            self.fits.append((rank(state, 0), Plan(name, {})))
        else:
            self._take_in(state, (yield from self._allocate(state)))
        yield from self._pause(1)

    def _allocate(self, state: NodeState) -> Generator[None, None, Outcome]:
        decision = self._allocator.search(state.node, self._recipe, self._usage)
        while (outcome := decision.advance(SLICE)) is None:
            yield
        yield from self._pause(outcome.steps + DECISION_STEPS)
        return outcome

    def _take_in(self, state: NodeState, outcome: Outcome) -> None:
        if isinstance(outcome, Failed):
            raise outcome.error
        if isinstance(outcome, GaveUp):
            raise _Aborted(str(outcome))
        if isinstance(outcome, Allocated):
            results = zip((claim.metadata.uid for claim in self._open), outcome.results, strict=True)
            self.fits.append((rank(state, outcome.score), Plan(state.name, dict(results))))
        else:
            self._reasons.refuse(outcome.refusal)

    def _pause(self, steps: int) -> Generator[None, None, None]:
        self._steps += steps
        if self._steps >= SLICE:
            self._steps = 0
            yield

    # --- nodes that were not asked ---

    def _refuse_unpinned(self, others: int) -> None:
        """Nodes where allocated claims cannot be used. Giving devices back helps if the pod can run on one (4.3)."""
        if not others:
            return
        self._reasons.add(UNAVAILABLE, others)
        missing = set(self._allocations.bound)
        for state in self._nodes:
            if not missing:
                return
            stuck = {uid for uid in missing if not self._allocations.is_usable(uid, state.name)}
            if stuck and self._filter.obstacle(state) is None:
                self._unavailable |= stuck
                missing -= stuck

    def _ask_some(self, candidates: Candidates) -> Generator[None, None, None]:
        closest = candidates.closest()
        names = ([closest] if closest is not None else []) + self._nodes.spread(SAMPLE)
        yield from self._try_all(name for name in dict.fromkeys(names) if name not in self._asked)

    def _refuse_excluded(self, candidates: Candidates, others: int) -> None:
        refusal = candidates.refusal
        if not others:
            return
        if refusal is not None and candidates.refusal_holds_for_all:
            self._reasons.refuse_others(refusal.claim, refusal.request, others)
        else:
            self._reasons.add("too few free devices match one of the requests", others)
