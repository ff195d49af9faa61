"""One attempt to place a pod: from a pod to a plan, or why there is none (scheduling.md 4.2 to 4.4).

Planning changes nothing. A plan is only a proposal until its devices are assumed.

An attempt looks at as few nodes as it can: those where allocated claims can be used, otherwise those that the index of
the allocator names, the best first. The first one that fits is then the answer, unless another could get better
alternatives. Nodes on which the claims may turn out to be faulty always come first: which node is best must not decide
whether a broken claim is noticed. A fault of what one node sees keeps the pod from that node only (allocator.md 15).

If no node fits, post filters may preempt others for the pod (PostFilter, kube-scheduler's phase). A post filter gets
the results of the cycle (``Unschedulable``) and answers with a nomination, or with None. It only decides:
``controllers.scheduling.preemption`` says who carries a nomination out. It works in pieces, as the rest of a
plan does, and its pieces are charged to the pod like those of a search. To find out whether a pod fits after others
have ended, ask a node again with what is left then::

    question = failed.question.given(usage_without_the_victims)
    status = yield from question.filter(state.with_load(load_without_the_victims))

A pod's own claims come first: as long as the pod may give one of them back, no post filter is asked. kube-scheduler has
the same order, with the plugin DynamicResources before DefaultPreemption (scheduling.md 4.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import assert_never

from dra_api.references import is_pod_group
from dra_ledger.errors import shortened

from dra_operator.allocator import AllocationError, Candidates
from dra_operator.scheduling.claims.demand import Demand
from dra_operator.scheduling.claims.readiness import CLAIM_ELSEWHERE, PodClaim
from dra_operator.scheduling.cycle.filter import (
    EXPLANATION_STEPS,
    TOO_FEW_DEVICES,
    Faulty,
    Fits,
    Lacking,
    NodeStatus,
    NoPlace,
    Obstructed,
    Plan,
    PodFilter,
    PostFilterResult,
    Reasons,
    Undecided,
)
from dra_operator.scheduling.cycle.pre_filter import CycleState
from dra_operator.scheduling.cycle.select_host import ChosenStrategy, Fit, Placement, best, enough, ideal
from dra_operator.scheduling.pieces import PAUSE_STEPS, Elapsed, Pause
from dra_operator.scheduling.scores import Raw
from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.obstacle import Obstacle, Reason


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """What the cycle knows of a pod that no node takes.

    ``cycle_state`` has the pod, its claims, the nodes with the pods on them, and the devices in use. ``question`` has
    what was worked out once for all nodes: rules, demands, the nodes of allocated claims. ``refusal`` is what the pod
    is told if nothing makes room. A node that is absent from ``statuses`` was not asked: too few devices are free there
    for the claims, or an allocated claim cannot be used there.
    """

    cycle_state: CycleState
    question: PodFilter
    refusal: NoPlace
    statuses: Mapping[str, NodeStatus]

    def is_resolvable(self, state: LoadedNode) -> bool:
        """Return whether the end of pods may open the node to this one. Raises ClaimError.

        Other nodes need another change: a label, a taint, a volume, or devices that do not exist.
        """
        # Without an answer the node was left out by the index or by the pod's own claims, see below.
        status = self.statuses.get(state.name)
        rules = self.question.rules
        # An allocated claim elsewhere is given back by its own pod, not by the end of others.
        if isinstance(status, Obstructed):
            return not status.elsewhere and rules.may_end_with_pods(status.obstacle)
        if status is not None:
            return isinstance(status, Lacking) or (isinstance(status, Faulty) and status.is_of_node)
        # Only the nodes of the allocated claims were asked, and no end of a pod moves these claims.
        if self.question.allocations.nodes is not None:
            return False
        # Not asked, since too few of its devices are free: the end of a pod may free some.
        obstacle = rules.obstacle(state, self.question.demands.on(state).served)
        return obstacle is None or rules.may_end_with_pods(obstacle)


PostFilter = Callable[[Unschedulable], Generator[Pause, Elapsed, PostFilterResult | None]]
"""Answers with a nomination, or with None if the end of others does not help or is not allowed."""


UNAVAILABLE = Obstacle(CLAIM_ELSEWHERE)
FEW_CANDIDATES = (
    64  # candidates that are put in order themselves, instead of being looked for in the order of all nodes
)
SAMPLE_NODES = 16  # nodes without enough devices that are asked all the same, for an explanation with numbers

Answered = Callable[[str, NodeStatus], None]
"""Gets each node that was asked, and what it answered."""
Work = Generator[Pause, Elapsed, None]


MOST_UNDECIDED_NODES = 10  # nodes on which the allocator may give up in one attempt
HASTE_FACTOR = 10  # after the first of them, the others together get about as much time as that one had


class Aborted(Exception):
    """The allocator gave up on nodes, and no other node fits, so the answer is unknown."""


class Attempt:
    """What the nodes answered so far. Raises NodeSelectionError for node selectors that cannot be understood."""

    def __init__(
        self,
        cycle_state: CycleState,
        filter_timeout: float,
        answered: Answered | None,
        placement: Placement | None,
    ) -> None:
        self._answered = answered
        self._placement = placement
        self._chosen: ChosenStrategy | None = None
        """The strategy, if there is one."""
        self._cycle_state, self._nodes, self._allocator, self._usage = (
            cycle_state,
            cycle_state.nodes,
            cycle_state.allocator,
            cycle_state.usage,
        )
        self.question = PodFilter(cycle_state, filter_timeout)
        self._allocations, self._demands = self.question.allocations, self.question.demands
        self._ideal = 0
        self._asked: set[str] = set()
        self._steps = 0
        self._reasons = Reasons()
        self._lacking: list[Lacking] = []
        """Nodes whose devices do not serve the claims; why is worked out if no node fits."""
        self._undecided: list[str] = []
        """Nodes on which the allocator gave up, with its words."""
        self._unavailable: set[str] = set()
        self._elsewhere: set[Reason] = set()
        """Obstacles on nodes where the pod could run if its allocated claims were allocated anew."""
        self._is_best = False
        """No node that was not asked can be better than those that fit."""
        self.fits: list[Fit] = []
        self.statuses: dict[str, NodeStatus] = {}
        """The answers, for a post filter."""

    def search(self) -> Work:
        """Ask nodes until the best one is known. Raises AllocationError or Aborted when that ends the attempt."""
        # Few nodes or none can do: all of them are asked, so that the pod is told about each.
        pinned = self._allocations.nodes
        if pinned is not None:
            yield from self._try_all(sorted(pinned))
            return
        # Pods were preempted for this node: as kube-scheduler, it is taken if it fits, however good others are.
        if nominated := self._cycle_state.nominations.node:
            yield from self._try(nominated)
            if self.fits:
                return
        # All demands first: whether a node is ideal depends on the best alternative of any of them.
        demands = self._demands.all()
        for demand in demands:
            yield from self._look_up(demand)
        for demand in demands:
            if demand.candidates is not None and demand.candidates.may_error:
                # Nodes on which a selector may fail: a fault of the claims must be found whichever nodes fit.
                yield from self._try_all(list(self._demands.nodes_of(demand, demand.candidates.may_error)))
        # After those: a fault of the claims is reported before time is spent on scores.
        yield from self._choose_strategy(demands)
        # The nodes worth trying, or, if they are many, all nodes; those that a strategy has not ranked come last.
        by_room = self._by_room()
        for name in by_room if self._chosen is None else chain(self._chosen.ranking.best_first(), by_room):
            if name not in self._asked and self._demands.may_fit(name):
                yield from self._try(name)
                # No other node can be better, or enough of them fit: kube-scheduler stops at as many.
                if self._is_best or len(self.fits) >= enough(len(self._nodes)):
                    return
            yield from self._pause(1)

    def refuse(self) -> Generator[Pause, Elapsed, NoPlace]:
        """The answer when no node fits. Raises Aborted if that is not known of some."""
        # It is not known whether one of them would have fitted, so nothing can be said of why the pod fits nowhere.
        if self._undecided:
            raise Aborted(self._undecided[0])
        nodes = len(self._nodes)
        # With pinned claims no index was asked, so nothing was left out by one.
        demands: list[tuple[Demand, Candidates]] = []
        if self._allocations.nodes is not None:
            yield from self._refuse_unpinned(nodes - len(self._asked))
        # The index has left nodes out. A few are asked all the same, so that the refusal has numbers.
        elif len(self._asked) < nodes:
            demands = [(demand, demand.candidates) for demand in self._demands.all() if demand.candidates is not None]
            yield from self._ask_some(demands)
        for answer in self._lacking:
            self._reasons.refuse(answer.refusal)
            yield from self._pause(EXPLANATION_STEPS)
        for demand, candidates in demands:
            self._refuse_excluded(demand, candidates)
        # Also obstacles on nodes where the pod's claims are not: if they pass, the claims may be allocated anew there.
        reasons = self._elsewhere.union(obstacle.reason for obstacle in self._reasons.obstacles)
        failed = [readiness.text for readiness in self._cycle_state.failed.values()]
        return NoPlace(
            "; ".join(filter(None, (self._reasons.line(nodes), *failed))),
            self._reasons.main,
            short_of_room=any(reason.ends_with_any_pod for reason in reasons),
            hints=self.question.rules.hints(reasons),
            drivers=self._helpful_drivers(),
            stuck=tuple(sorted(filter(self._is_stuck, self._cycle_state.claims), key=_is_for_group)),
        )

    def _helpful_drivers(self) -> frozenset[str] | None:
        """Of which drivers a device that comes free may help, if something has to be allocated and the index knows."""
        demands = [demand for demand in self._demands.all() if demand.claims]
        if self._allocations.nodes is not None or not demands:
            return None
        found: set[str] = set()
        for demand in demands:
            # One demand of which nothing is known, and every device may help.
            drivers = self._allocator.drivers(demand.program, self._usage)
            if drivers is None:
                return None
            found |= drivers
        return frozenset(found)

    def _is_stuck(self, held: PodClaim) -> bool:
        claim = held.claim
        return claim.metadata.uid in self._unavailable and self._cycle_state.may_give_back(claim)

    # --- which nodes ---

    def _look_up(self, demand: Demand) -> Work:
        """Have the index say which nodes can meet the demand."""
        self._ideal = max(self._ideal, ideal(demand.program))
        if not demand.claims:
            return
        # The selectors are evaluated on all devices. That is work for this pod, and its time is limited; what brings
        # the index up to date other pods need as well, so it is not charged.
        began: Elapsed = None
        for expression in self._allocator.catch_up(demand.program, self._usage):
            elapsed = yield Pause.SEARCHING if expression else Pause.INDEXING
            began = elapsed if began is None else began
            spent = elapsed - began if elapsed is not None and began is not None else 0.0
            if expression and spent > self.question.filter_timeout:
                raise Aborted(self._too_slow(demand, expression))
        demand.candidates = self._allocator.candidates(demand.program, self._usage)

    def _too_slow(self, demand: Demand, expression: str) -> str:
        # The cost is said, since it alone tells the author by how much the selector is too dear.
        cost = self._allocator.inventory.compiled.cost(expression)
        return (
            f"gave up after {self.question.filter_timeout:g} s of evaluating selectors: "
            f"{demand.program.named(expression)} may cost {cost:,} units of CEL on each device; what it said "
            f"so far is kept for the next attempt; make it cheaper, such as by fewer loops: {shortened(expression)}"
        )

    def _choose_strategy(self, demands: Sequence[Demand]) -> Work:
        """Have the nodes ranked, if a strategy says how. Pods that need other claims on other nodes have none."""
        # With several demands the nodes' scores would be about different claims.
        if self._placement is None or len(demands) != 1 or not (demands[0].claims or not self._cycle_state.claims):
            return
        self._chosen = yield from self._placement.choose(self._cycle_state, demands[0])
        if self._chosen is not None:
            self.question.device_order = self._chosen.device_order

    def _by_room(self) -> Iterable[str]:
        # To put a few in order is cheaper than to go through the order of all nodes for them.
        few = self._demands.short_list(len(self._asked) + FEW_CANDIDATES)
        if few is None:
            return self._nodes.best_first()
        states = (state for name in few if (state := self._nodes.get(name)) is not None)
        return [state.name for state in sorted(states, key=lambda it: (-self._nodes.room(it), it.name))]

    # --- asking a node ---

    def _try_all(self, names: Iterable[str]) -> Work:
        for name in names:
            yield from self._try(name)

    def _try(self, name: str) -> Work:
        state = self._nodes.get(name)
        if state is None:
            return
        self._asked.add(name)
        answer = yield from self.question.filter(state)
        self.statuses[name] = answer
        if self._answered is not None:
            self._answered(name, answer)
        self._take_in(state, answer)
        yield from self._pause()

    def _take_in(self, state: LoadedNode, answer: NodeStatus) -> None:
        match answer:
            case Fits(plan, score):
                scores = self.question.scores
                raw = scores.raw(state) if scores is not None else ()
                if score >= self._ideal and (scores is None or scores.is_ideal(raw)):
                    # Nodes come by their room. One that fits before may still win by it, once all fits are compared.
                    self._is_best = self._is_best or not any(fit.alternatives >= self._ideal for fit in self.fits)
                self.fits.append(self._fit(plan, score, state, raw))
            case Obstructed(obstacle, elsewhere):
                self._unavailable |= elsewhere
                self._reasons.add(obstacle)
            case Lacking():
                self._lacking.append(answer)
            case Faulty(error, is_of_node):
                if not is_of_node:
                    raise error
                self._reasons.fail(error)
            case Undecided(why):
                self._undecided.append(f"node {state.name}: {why}")
                # Each further node may take as long: a thousand of them would keep the pod, and its namespace, busy for
                # hours.
                self.question.haste = HASTE_FACTOR
                if len(self._undecided) >= MOST_UNDECIDED_NODES:
                    if not self.fits:
                        raise Aborted(self._undecided[0])
                    self._is_best = True  # of those that are known
            case _:
                assert_never(answer)

    def _fit(self, plan: Plan, alternatives: int, state: LoadedNode, raw: Raw) -> Fit:
        if self._chosen is None:
            return Fit(plan, alternatives, self._nodes.room(state), raw)
        ranking = self._chosen.ranking
        # Normalized over all ranked nodes, so that room and preferences weigh alike in large and small clusters.
        room, score = ranking.normalized(state.name), ranking.score(state.name)
        return Fit(plan, alternatives, room, raw, score, self._chosen.strategy.name)

    def _pause(self, steps: int = 0) -> Work:
        """Let others run if so many steps, and those of the questions since the last call, make a piece."""
        self._steps += steps + self.question.steps
        # Taken over here, so that the steps of a question are counted once, whoever asks next.
        self.question.steps = 0
        if self._steps >= PAUSE_STEPS:
            self._steps = 0
            yield Pause.SEARCHING

    # --- nodes that were not asked ---

    def _refuse_unpinned(self, others: int) -> Work:
        """Nodes where allocated claims cannot be used. Giving devices back helps if all else fits on one of them."""
        if not others:
            return
        self._reasons.add(UNAVAILABLE, others)
        for demand in self._demands.all():
            yield from self._look_up(demand)
        # One node on which all but the claims fits is enough to know that giving the devices back helps.
        missing = set(self._allocations.bound)
        for name in [state.name for state in self._nodes if self._demands.may_fit(state.name)]:
            if not missing:
                return
            state = self._nodes.get(name)
            if state is None or all(self._allocations.is_usable(uid, name) for uid in missing):
                continue
            answer = yield from self.question.filter(state)
            if isinstance(answer, Obstructed):
                self._elsewhere.add(answer.obstacle.reason)
                self._unavailable |= answer.elsewhere
                missing -= answer.elsewhere
            yield from self._pause()

    def _ask_some(self, demands: Sequence[tuple[Demand, Candidates]]) -> Work:
        closest = [name for _, candidates in demands if (name := candidates.closest()) is not None]
        suspects = [name for _, candidates in demands for name in islice(candidates.suspects(), SAMPLE_NODES)]
        # The one that comes closest, those where selectors may fail, and some from all over the cluster.
        names = closest + suspects + self._nodes.spread(SAMPLE_NODES)
        yield from self._try_all(name for name in dict.fromkeys(names) if name not in self._asked)

    def _refuse_excluded(self, demand: Demand, candidates: Candidates) -> None:
        # Nodes that were asked have given their own reasons already.
        others = self._demands.size(demand) - demand.asked
        if others <= 0:
            return
        found = candidates.refusal
        if found is not None and candidates.refusal_holds_for_all:
            refusal = demand.in_terms_of_pod(found)
            self._reasons.refuse_others(refusal.claim, refusal.request, others)
        else:
            self._reasons.add(Obstacle(TOO_FEW_DEVICES, "one of the requests"), others)


def _is_for_group(held: PodClaim) -> bool:
    """Claims that are reserved for a PodGroup are given back last (K37-WL-25)."""
    return any(is_pod_group(consumer) for consumer in held.claim.status.reserved_for or ())


Planning = Generator[Pause, Elapsed, Plan | NoPlace]


def plan(
    cycle_state: CycleState,
    filter_timeout: float = math.inf,
    answered: Answered | None = None,
    post_filter: PostFilter | None = None,
    placement: Placement | None = None,
) -> Planning:
    """The best node for a pod whose claims are in order, each given once.

    A generator that pauses every few milliseconds, so that the caller can let others run, and says at what; it
    returns the answer. A caller with a clock sends the seconds of search so far: a node that takes the allocator longer
    than ``filter_timeout`` counts as one that does not fit, and the answer is an error if no other one does.
    ``answered`` gets the answer of each node. ``post_filter`` may make room where no node fits. ``placement`` has
    strategies that prefer nodes; None: the first node that fits.

    Faults of the claims end the attempt. A fault of what one node sees (a selector that fails on one of its devices)
    keeps the pod from that node only.
    """
    try:
        attempt = Attempt(cycle_state, filter_timeout, answered, placement)
        yield from attempt.search()
        if attempt.fits:
            return best(attempt.fits, attempt.question.scores)
        refusal = yield from attempt.refuse()
        # A pod that can give devices back does that first: others end for it only if that does not help.
        if post_filter is None or refusal.stuck:
            return refusal
        nominated = yield from post_filter(Unschedulable(cycle_state, attempt.question, refusal, attempt.statuses))
    except (AllocationError, Aborted) as error:
        return NoPlace(str(error), is_error=True)
    return replace(refusal, nominated=nominated)
