"""A plan for all members of a gang, or none: depth-first over the nodes of each member, on an explicit stack.

Each member is asked about one node after the other over an ``Overlay`` in which the members before it have their
places. Equal members take their nodes in one order only, so a gang of equal pods fills one node after the other. Where
the devices of a node do not serve one more member, those of all members on that node are chosen anew in one search of
the allocator: which device a member took first then does not matter.

A gang may ask for places that have a value in common. The domains of such values are tried one by one, the smallest
first (``domains``).

When a member fits nowhere, the last member of another kind moves on; members of the same kind could only make it worse,
unless rules between pods or devices for several nodes connect the nodes. The search asks ``MOST_QUESTIONS`` times at
most, and then it has given up, which is not "does not fit".
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from dra_api.resource import AllocationResult

from dra_operator.allocator import Allocated, AllocationError, GaveUp
from dra_operator.scheduling.claims.demand import Demand
from dra_operator.scheduling.cycle.attempt import Aborted
from dra_operator.scheduling.cycle.counting import counted
from dra_operator.scheduling.cycle.filter import PodFilter
from dra_operator.scheduling.cycle.node_status import Faulty, Fits, Lacking, NodeStatus, Undecided
from dra_operator.scheduling.cycle.pause import PAUSE_STEPS, Elapsed, Pause
from dra_operator.scheduling.cycle.pre_filter import CycleState
from dra_operator.scheduling.cycle.result import NoPlace, Plan
from dra_operator.scheduling.rules.volume_binding import NO_BINDINGS
from dra_operator.scheduling.state.node import LoadedNode

from .domains import EVERYWHERE, NOTHING_SAME, Domain, SameValues, domains_of
from .explanation import unplaced
from .member import Frame, Kind, Member, members_of, with_devices
from .overlay import Overlay

MOST_QUESTIONS: Final = 20_000
"""Nodes that are asked for one gang, beside one for each member and node."""
RECHOICE_STEPS: Final = 20_000
"""Steps of the allocator to choose the devices of all members on one node anew."""

T = TypeVar("T")
Work = Generator[Pause, Elapsed, T]
JointPlan = tuple[Plan, ...]
"""One plan for each member, in the order of the members."""


def joint_plan(states: Sequence[CycleState], same: SameValues = NOTHING_SAME) -> Work[JointPlan | NoPlace]:
    """Places and devices for all these pods of one gang, whose claims are in order, or why there are none.

    ``same``: what the places have in common. Pauses as ``cycle.plan`` does.
    """
    members = members_of(states)
    try:
        domains = yield from domains_of(states, same)
        if isinstance(domains, NoPlace):
            return domains
        search = Search(members, is_empty=False)
        found = yield from search.in_domains(domains)
        if found is not None:
            return found
        if search.failed is None or search.has_given_up:
            return NoPlace(f"gave up: too many ways to place {len(members)} pods together were tried", is_error=True)
        refusal = yield from unplaced(search.failed, search.failure(same), is_confined=domains != [EVERYWHERE])
        if same.are_given(states):
            return refusal
        ideal = Search(members, is_empty=True)
        if (yield from ideal.in_domains(domains)) is None and not ideal.has_given_up:
            too_large = "the pods would not fit even if all nodes and devices were free"
            refusal = replace(refusal, message=f"{refusal.message}; {too_large}")
    except (AllocationError, Aborted) as error:
        return NoPlace(str(error), is_error=True)
    return refusal


class Search:
    """One search. ``failed`` is the member that found no node with the most others placed before it.

    ``worth`` says which nodes are asked for a member, in the place of the allocator's index.
    """

    def __init__(
        self, members: Sequence[Member], *, is_empty: bool, worth: Callable[[Member], Container[str]] | None = None
    ) -> None:
        self._worth = worth
        first = members[0].state
        self.members, self.nodes, self._is_empty = members, first.nodes, is_empty
        self._allocator = first.allocator
        self.has_rules = any(self.nodes.rules_between(member.pod) for member in members)
        self._base = first.usage
        self._overlay = Overlay(self.nodes, self._base, has_rules=self.has_rules, is_empty=is_empty)
        self._ranks: dict[Kind, dict[str, int]] = {}
        """The nodes worth asking for a kind, in their order: a small domain does not go through all of them."""
        self._frames: list[Frame] = []
        self._domain = EVERYWHERE
        self._left = MOST_QUESTIONS + len(members) + len(self.nodes) * len({it.kind for it in members})
        self._steps = 0
        self._is_connected = self.has_rules
        """What a member takes on one node may be missing on another one."""
        self.has_given_up = False
        self.failed: Frame | None = None
        self._placed, self._closest = -1, EVERYWHERE
        """How many members had a place when ``failed`` found none, and where that was."""

    def failure(self, same: SameValues) -> str:
        """How many members fit together, and where."""
        return f"only {self._placed} of {len(self.members)} pods fit together{same.where(self._closest)}"

    def in_domains(self, domains: Iterable[Domain]) -> Work[JointPlan | None]:
        """The plan in the first domain that takes all. Raises AllocationError and Aborted."""
        for domain in domains:
            self._domain = domain
            try:
                found = yield from self._overlay.through(self._search())
            finally:
                self._overlay.clear()
            if found:
                plans = {frame.member.number: frame.plan for frame in self._frames if frame.plan is not None}
                return tuple(plans[number] for number in sorted(plans))
            if self._left <= 0:
                self.has_given_up = True
                return None
        return None

    def _search(self) -> Work[bool]:
        self._frames = [(yield from self._open(0))]
        while self._left > 0:
            frame = self._frames[-1]
            if (yield from self._advance(frame)):
                if len(self._frames) == len(self.members):
                    return True
                self._frames.append((yield from self._open(len(self._frames))))
                continue
            self._give_up(frame)
            if not self._frames:
                return False
            self._take_back(self._frames[-1])
        while self._frames:
            self._take_back(self._frames.pop())
        return False

    def _give_up(self, frame: Frame) -> None:
        """The member found no node, so it leaves the stack, and with it those whose moving on cannot help."""
        self._frames.pop()
        if frame.has_fitted:
            return
        if len(self._frames) > self._placed:
            self.failed, self._placed, self._closest = frame, len(self._frames), self._domain
        if not self._is_connected:
            while self._frames and self._frames[-1].member.kind == frame.member.kind:
                self._take_back(self._frames.pop())

    def _open(self, depth: int) -> Work[Frame]:
        member = self.members[depth]
        found: dict[str, AllocationResult] = {}
        for frame in self._frames if member.shared else ():
            plan = frame.plan
            found.update(
                {} if plan is None else {uid: plan.allocations[uid] for uid in plan.allocations.keys() & member.shared}
            )
        state = with_devices(member.state, found)
        if self._domain.value is not None:
            state = replace(state, value=self._domain.value)
        if self.has_rules:
            yield from counted(member.pod, self.nodes)
        question = PodFilter(state)
        before = self._frames[-1] if self._frames else None
        if before is not None and before.member.kind == member.kind:
            return Frame(member, question, before.order, before.position)
        ranks = self._ranks.get(member.kind)
        if ranks is None or member.shared:
            order = yield from self._order(member, question)
            ranks = self._ranks[member.kind] = {name: rank for rank, name in enumerate(order)}
        nodes = self._domain.nodes_for(state)
        order = list(ranks) if nodes is None else sorted(filter(ranks.__contains__, nodes), key=ranks.__getitem__)
        return Frame(member, question, order, 0)

    def _order(self, member: Member, question: PodFilter) -> Work[Sequence[str]]:
        """The nodes worth asking: those on which a claim may turn out to be faulty first, then by their room."""
        pinned = question.allocations.nodes
        if pinned is not None:
            return sorted(pinned)
        if self._is_empty:
            return self.nodes.names()
        if self._worth is not None:
            return list(filter(self._worth(member).__contains__, self.nodes.best_first()))
        demands = question.demands.all()
        faulty: list[str] = []
        for demand in demands:
            yield from self._look_up(demand)
            if demand.candidates is not None:
                faulty += question.demands.nodes_of(demand, demand.candidates.may_error)
        best = (name for name in self.nodes.best_first() if question.demands.may_fit(name))
        return list(dict.fromkeys([*faulty, *best]))

    def _look_up(self, demand: Demand) -> Work[None]:
        if demand.claims:
            for expression in self._allocator.catch_up(demand.program, self._base):
                yield Pause.SEARCHING if expression else Pause.INDEXING
            demand.candidates = self._allocator.candidates(demand.program, self._base)

    def _advance(self, frame: Frame) -> Work[bool]:
        """Place the member on the next node that takes it. Raises AllocationError and Aborted."""
        for position in range(frame.position, len(frame.order)):
            state = self._overlay.state(frame.order[position])
            self._left -= 1
            if state is None or self._left <= 0:
                continue
            question = frame.question.given(self._overlay.usage)
            answer = yield from question.filter(state)
            yield from self._pause(question.steps)
            if isinstance(answer, Lacking):
                answer = (yield from self._rechosen(frame, state, answer.demand)) or answer
            if isinstance(answer, Fits):
                self._place(frame, position, answer.plan)
                return True
            self._refused(frame, state, answer)
        return False

    def _place(self, frame: Frame, position: int, plan: Plan) -> None:
        if plan.volumes != NO_BINDINGS:
            raise Aborted(
                f"pod {frame.member.pod.metadata.name} uses PersistentVolumeClaims that are not bound, which is not "
                "supported in a gang: bind them first (volumeBindingMode: Immediate)"
            )
        frame.position, frame.plan, frame.has_fitted = position, plan, True
        self._is_connected = self._is_connected or not all(map(is_of_one_node, plan.allocations.values()))
        self._overlay.place(frame.member.pod, plan)

    def _refused(self, frame: Frame, state: LoadedNode, answer: NodeStatus) -> None:
        if isinstance(answer, Faulty):
            raise answer.error
        if isinstance(answer, Undecided):
            raise Aborted(f"node {state.name}: {answer.text}")
        if not frame.has_fitted:
            frame.answers.append(answer)

    def _take_back(self, frame: Frame) -> None:
        """The member leaves its node, and continues with the next one."""
        if frame.plan is None:
            return
        self._overlay.remove(frame.member.pod, frame.plan)
        for mate, plan in frame.rechosen:
            if mate.plan is not None:
                self._overlay.take(mate.plan)
            mate.plan = plan
            self._overlay.give(plan)
        frame.plan, frame.rechosen = None, []
        frame.position += 1

    def _rechosen(self, frame: Frame, state: LoadedNode, demand: Demand) -> Work[Fits | None]:
        """Other devices for all members on the node, so that this one gets some as well.

        Not while devices may take resources of the node: other devices may take more.
        """
        takes_resources = self._allocator.inventory.features.node_allocatable_resources
        if demand.extended is not None or frame.member.shared or takes_resources:
            return None
        mates = [(mate, plan) for mate in self._frames if (plan := _open_plan(mate, state.name)) is not None]
        if not mates:
            return None
        for _, plan in mates:
            self._overlay.take(plan)
        claims = [claim for mate, _ in mates for claim in mate.question.demands.on(state).claims]
        decision = self._allocator.search(
            state.node,
            self._allocator.compile([*claims, *demand.claims], self._domain.value),
            frame.question.given(self._overlay.usage).usage,
            budget=RECHOICE_STEPS,
        )
        while (outcome := decision.advance(PAUSE_STEPS)) is None:
            yield Pause.SEARCHING
        for _, plan in mates:
            self._overlay.give(plan)
        yield from self._pause(outcome.steps)
        self.has_given_up = self.has_given_up or isinstance(outcome, GaveUp)
        if not isinstance(outcome, Allocated):
            return None
        uids = [claim.metadata.uid for claim in (*claims, *demand.claims)]
        found = dict(zip(uids, outcome.results, strict=True))
        for mate, plan in mates:
            self._overlay.take(plan)
            mate.plan = replace(plan, allocations={uid: found[uid] for uid in plan.allocations})
            self._overlay.give(mate.plan)
            frame.rechosen.append((mate, plan))
        return Fits(
            Plan(state.name, {claim.metadata.uid: found[claim.metadata.uid] for claim in demand.claims}, demand.served)
        )

    def _pause(self, steps: int) -> Work[None]:
        self._steps += steps
        if self._steps >= PAUSE_STEPS:
            self._steps = 0
            yield Pause.SEARCHING


def _open_plan(frame: Frame, node: str) -> Plan | None:
    """The plan of a member on the node whose devices may be chosen anew."""
    plan = frame.plan
    is_open = plan is not None and plan.node == node and plan.allocations and plan.extended is None
    return plan if is_open and not frame.member.shared else None


def is_of_one_node(allocation: AllocationResult) -> bool:
    """Whether no other node can use the devices."""
    selector = allocation.node_selector
    terms = () if selector is None else selector.node_selector_terms or ()
    return bool(terms) and all(term.match_fields for term in terms)
