"""Search a joint plan for all members of a gang: depth-first over the nodes of each member, on an explicit stack.

A member is tried on one node after the other in a ``GangOverlay``, in which the members before it use their devices and
node resources. Others do not see the overlay. Rules between pods count all pods on nodes, so the members are entered
among those while the search works, and removed at every pause (``through``).

Equal members take nodes in one order only, so equal pods fill one node after the other. If the devices of a node do not
serve one more member, one search of the allocator chooses the devices of all members on that node anew. So the choices
of earlier members do not matter.

A gang may require a common value of its places. The domains of these values are tried one by one (``domains``).

When a member fits nowhere, the last member of another kind moves on. To move members of the same kind would not help:
each is on the first node that takes it, so they would only leave room on nodes that were refused. This argument fails
if rules between pods, or devices of several nodes, connect nodes; then every member is moved.

The search asks at most ``MOST_QUESTIONS`` times, then gives up, which is not "does not fit". Other orders of the
members get ``REORDERED_QUESTIONS`` (``members``). A node on which the allocator gives up is left out, as long as there
is a plan without it (allocator.md 15).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from dra_api.core import Pod
from dra_api.resource import AllocationResult

from dra_operator.allocator import Allocated, Allocator, AttributeValue, GaveUp, Usage
from dra_operator.scheduling.claims.demand import Demand
from dra_operator.scheduling.cycle.attempt import HASTE_FACTOR, MOST_UNDECIDED_NODES, Aborted
from dra_operator.scheduling.cycle.filter import Faulty, Fits, Lacking, NodeStatus, Plan, PodFilter, Undecided, counted
from dra_operator.scheduling.gang.members import (
    EVERYWHERE,
    GangDomain,
    Kind,
    Member,
    MemberFrame,
    Order,
    SameValues,
    connects_nodes,
    with_devices,
)
from dra_operator.scheduling.nodes import Nodes
from dra_operator.scheduling.pieces import PAUSE_STEPS, Elapsed, InPieces, Pause
from dra_operator.scheduling.rules.volume_binding import NO_BINDINGS
from dra_operator.scheduling.rules.volumes import NO_VOLUMES
from dra_operator.scheduling.state.node import Amounts, LoadedNode, add, subtract

T = TypeVar("T")


class GangOverlay:
    """The cluster with the members placed so far.

    ``has_rules``: a member has rules between pods. ``is_empty``: no pod runs and no device is in use, which answers
    whether the gang could ever fit.
    """

    def __init__(self, nodes: Nodes, usage: Usage, *, has_rules: bool, is_empty: bool) -> None:
        self._nodes, self._has_rules, self._is_empty = nodes, has_rules, is_empty
        self.usage = Usage() if is_empty else usage.snapshot()
        self._loads: dict[str, Amounts] = {}
        self._placed: dict[str, tuple[Pod, str]] = {}
        self.returns = 0
        """Number of pauses. Counts of rules from before a pause are out of date, since other pods were placed."""

    def state(self, name: str) -> LoadedNode | None:
        """Return the node with the members on it, or None if it is gone."""
        state, load = self._nodes.get(name), self._loads.get(name)
        if state is None or (load is None and not self._is_empty):
            return state
        return state.with_load(add({} if self._is_empty else state.used, load or {}))

    def place(self, pod: Pod, plan: Plan) -> None:
        """Give the member the node and devices of the plan."""
        # By the sum of the members alone: the node's own load may change while the search pauses.
        self._loads[plan.node] = add(self._loads.get(plan.node, {}), plan.requests_of(pod))
        self.give(plan)
        self._placed[pod.metadata.uid] = (pod, plan.node)
        self._enter(pod, plan.node)

    def remove(self, pod: Pod, plan: Plan) -> None:
        """Undo ``place``."""
        rest = subtract(self._loads[plan.node], plan.requests_of(pod))
        self._loads[plan.node] = rest
        if not rest:
            del self._loads[plan.node]
        self.take(plan)
        del self._placed[pod.metadata.uid]
        self._leave(pod)

    def give(self, plan: Plan) -> None:
        """Mark the devices of the plan as in use."""
        for allocation in plan.allocations.values():
            self.usage.add(allocation)

    def take(self, plan: Plan) -> None:
        """Undo ``give``."""
        for allocation in plan.allocations.values():
            self.usage.remove(allocation)

    def through(self, work: Generator[Pause, Elapsed, T]) -> Generator[Pause, Elapsed, T]:
        """Do the work, and remove the members from the nodes during its pauses."""
        if not self._has_rules:
            return (yield from work)
        pieces = InPieces(work)
        for pause in pieces:
            # Others are decided on at a pause, and must not meet members that are only planned.
            self.clear()
            pieces.elapsed = yield pause
            for pod, node in self._placed.values():
                self._enter(pod, node)
            self.returns += 1
        return pieces.answer

    def clear(self) -> None:
        """Remove all members from the nodes."""
        for pod, _ in self._placed.values():
            self._leave(pod)

    def _enter(self, pod: Pod, node: str) -> None:
        if self._has_rules:
            self._nodes.pods_by_node.put(pod, node)

    def _leave(self, pod: Pod) -> None:
        if self._has_rules:
            self._nodes.pods_by_node.remove(pod.metadata.uid)


MOST_QUESTIONS: Final = 20_000
"""Limit of a search in trials of a member on a node. Each member, and each pair of kind and node, adds one."""
REORDERED_QUESTIONS: Final = 5_000
"""Limit on trials in other orders of the members."""
RECHOICE_STEPS: Final = 20_000
"""Steps of the allocator for choosing the devices of all members on a node anew."""
Work = Generator[Pause, Elapsed, T]
Worth = Callable[[Member], Container[str]] | None


class JointPlan(tuple[Plan, ...]):
    """One plan per member, by the number of the member.

    ``order`` has the numbers in the order of the search: placed so, each member fits beside the earlier ones.
    """

    order: Sequence[int] = ()

    @classmethod
    def of(cls, frames: Sequence[MemberFrame]) -> JointPlan:
        """Return the joint plan of frames that all have a place."""
        plans = {frame.member.number: frame.plan for frame in frames if frame.plan is not None}
        # By the number of the member, since callers know members by their place; the order of the search is kept beside
        # it.
        made = cls(plans[number] for number in sorted(plans))
        made.order = tuple(plans)
        return made


class JointSearch:
    """One search. ``failed`` is the member without a node for which most others had a place.

    ``worth`` replaces the allocator's index: it returns the nodes worth asking for a member. Without ``minds_pods``
    rules between pods are ignored. ``filter_timeout`` limits the allocator's seconds per node.
    """

    def __init__(
        self,
        members: Sequence[Member],
        *,
        is_empty: bool,
        worth: Worth,
        minds_pods: bool = True,
        filter_timeout: float,
    ) -> None:
        self._worth, self._minds_pods, self._filter_timeout = worth, minds_pods, filter_timeout
        first = members[0].state
        self.members, self.nodes, self._is_empty = members, first.nodes, is_empty
        self._allocator = first.allocator
        # Of all members: a rule of one is about the places of the others.
        self.has_rules = minds_pods and any(self.nodes.rules_between(member.pod) for member in members)
        self._base = first.usage
        self._overlay = GangOverlay(self.nodes, self._base, has_rules=self.has_rules, is_empty=is_empty)
        self._ranks: dict[Kind, dict[str, int]] = {}
        """Ranks of the nodes worth asking, by kind, so that a small domain does not sort all nodes again."""
        self._frames: list[MemberFrame] = []
        self._order = Order(members)
        self._domain = EVERYWHERE
        # Large gangs and clusters have more to ask even where each question succeeds at once.
        self._left = MOST_QUESTIONS + len(members) + len(self.nodes) * len({it.kind for it in members})
        self._steps = 0
        self.is_connected = minds_pods and any(connects_nodes(member.pod) for member in members)
        """Whether the place of one member can matter to a member on another node."""
        self.has_given_up = self.has_left_orders = False
        """Whether the search has given up, and whether it has left orders of the members untried."""
        self._undecided: dict[tuple[Kind, str, AttributeValue | None], str] = {}
        """Nodes on which the allocator gave up, by kind and common value, with its message."""
        self.failed: MemberFrame | None = None
        self._placed, self._closest = -1, EVERYWHERE
        """Number of members with a place when ``failed`` found none, and the domain."""

    def failure(self, same: SameValues) -> str:
        """Return a clause with the number of members that fit together, and the domain."""
        return f"only {self._placed} of {len(self.members)} pods fit together{same.where(self._closest)}"

    def in_domains(self, domains: Iterable[GangDomain]) -> Work[JointPlan | None]:
        """Return the plan in the first domain that takes all, or None if there is none.

        Raises AllocationError, and Aborted if there may be one with a node on which the allocator gave up.
        """
        found = yield from self._in_domains(domains)
        # A rule kept a member from a node until others are there. So the members may fit in another order. There are
        # too many orders to try all, so these trials have a limit of their own, and using it up is not "gave up".
        if found is None and self._order.keeps_off and not self.has_given_up:
            self._order.is_free, self._left = True, REORDERED_QUESTIONS
            found = yield from self._in_domains(domains)
            self.has_given_up, self.has_left_orders = False, self.has_given_up
        if found is None and self._undecided:
            raise Aborted(next(iter(self._undecided.values())))
        return found

    def _in_domains(self, domains: Iterable[GangDomain]) -> Work[JointPlan | None]:
        for domain in domains:
            self._domain = domain
            try:
                found = yield from self._overlay.through(self._search())
            finally:
                self._overlay.clear()
            if found:
                return JointPlan.of(self._frames)
            if self._left <= 0:
                self.has_given_up = True
                return None
        return None

    def _search(self) -> Work[bool]:
        # A domain starts afresh: what failed elsewhere may hold here.
        self._order.begin()
        self._frames = [(yield from self._open(self._order.next([])))]
        while self._left > 0:
            # Forward: the member on top finds a place, and the next one gets its turn.
            frame = self._frames[-1]
            if (yield from self._advance(frame)):
                if len(self._frames) == len(self.members):
                    return True
                self._frames.append((yield from self._open(self._order.next(self._frames))))
                continue
            # Backward: it has no place. Another kind may have this turn first, else the member below moves on.
            self._give_up(frame)
            if frame.others and frame.needs_others:
                self._frames.append((yield from self._open(frame.others)))
                continue
            self._order.fail(frame)
            if not self._frames:
                return False
            self._frames[-1].needs_others |= frame.needs_others
            self._take_back(self._frames[-1])
        # The budget is spent: nothing of the unfinished plan may stay in the overlay.
        while self._frames:
            self._take_back(self._frames.pop())
        return False

    def _give_up(self, frame: MemberFrame) -> None:
        """Remove the member, which has no place, from the stack, and with it members that need not move on."""
        self._frames.pop()
        # It had a place before, with later members unplaced: these know better what is missing.
        if frame.has_fitted:
            return
        if len(self._frames) > self._placed:
            self.failed, self._placed, self._closest = frame, len(self._frames), self._domain
        # With rules between nodes a member that moves may open a node behind it, so every one has its turn.
        if not self.is_connected:
            self._leave_kind(frame.member.kind)

    def _leave_kind(self, kind: Kind) -> None:
        """Remove equal members from the top of the stack whose moving on cannot help.

        No node from the last one's on takes one more of this kind, so moving the last one does not help. The same holds
        for the one before it, unless the last one has moved: then nodes before its own may take one more.
        """
        while self._frames and self._frames[-1].member.kind == kind:
            last = self._frames.pop()
            is_first = not last.has_moved
            self._take_back(last)
            if not is_first:
                return

    def _open(self, choice: Sequence[Member]) -> Work[MemberFrame]:
        """Return the turn of the first of these members. The others may have it instead."""
        member, *others = choice
        # An earlier member may have allocated a shared claim already: then this one has to go where the devices are.
        found: dict[str, AllocationResult] = {}
        for frame in self._frames if member.shared else ():
            plan = frame.plan
            found.update(
                {} if plan is None else {uid: plan.allocations[uid] for uid in plan.allocations.keys() & member.shared}
            )
        state = with_devices(member.state, found)
        if member.state.volumes != NO_VOLUMES:
            plans = [frame.plan for frame in self._frames if frame.plan is not None]
            taken = [(plan.node, plan.volumes) for plan in plans if plan.volumes != NO_BINDINGS]
            state = replace(state, volumes=member.state.volumes.after(taken))
        if self._domain.value is not None:
            state = replace(state, value=self._domain.value)
        if self.has_rules:
            yield from counted(member.pod, self.nodes)
        question, returns = PodFilter(state, self._filter_timeout), self._overlay.returns
        if not self._minds_pods:
            question.rules = self.nodes.rules_without_pods(member.pod, state.volumes)
        # Equal members take nodes in one order, so this one begins where the last one is.
        before = self._frames[-1] if self._frames else None
        if before is not None and before.member.kind == member.kind:
            return self._order.after(before, member, question, others, returns)
        ranks = self._ranks.get(member.kind)
        if ranks is None or member.shared:
            order = yield from self._ordered(member, question)
            ranks = self._ranks[member.kind] = {name: rank for rank, name in enumerate(order)}
        nodes = self._domain.nodes_for(state)
        order = list(ranks) if nodes is None else sorted(filter(ranks.__contains__, nodes), key=ranks.__getitem__)
        return MemberFrame(member, question, order, 0, others=others, returns=returns)

    def _ordered(self, member: Member, question: PodFilter) -> Work[Sequence[str]]:
        """Return the nodes worth asking: first those on which a claim may meet an error, then by free room.

        An error of a claim ends the attempt. It has to be met first, or whether it is met would depend on free room.
        """
        pinned = question.allocations.nodes
        if pinned is not None:
            return sorted(pinned)
        # The index counts devices in use, and this question is about a cluster without any.
        if self._is_empty:
            return self.nodes.names()
        # Preemption asks about a cluster with fewer pods than the index knows.
        if self._worth is not None:
            return list(filter(self._worth(member).__contains__, self.nodes.best_first()))
        demands = question.demands.all()
        faulty: list[str] = []
        for demand in demands:
            yield from look_up(demand, self._allocator, self._base)
            if demand.candidates is not None:
                faulty += question.demands.nodes_of(demand, demand.candidates.may_error)
        best = (name for name in self.nodes.best_first() if question.demands.may_fit(name))
        return list(dict.fromkeys([*faulty, *best]))

    def _advance(self, frame: MemberFrame) -> Work[bool]:
        """Place the member on the next node that takes it. Raises AllocationError and Aborted."""
        for position in range(frame.position, len(frame.order)):
            if self._order.has_failed(frame, frame.node(position)):
                continue
            # The allocator would use its whole budget on this node again.
            if self._undecided and self._about(frame, frame.node(position)) in self._undecided:
                continue
            state = self._overlay.state(frame.node(position))
            self._left -= 1
            if state is None or self._left <= 0:
                continue
            yield from self._bring_up_to_date(frame)
            question = frame.question.given(self._overlay.usage)
            # The first node may cost all of the budget; the others together get about as much as that one had.
            question.haste = HASTE_FACTOR if self._undecided else 1
            answer = yield from question.filter(state)
            yield from self._pause(question.steps)
            # The members before it may have taken the very devices that it needs, although others would do for them.
            if isinstance(answer, Lacking):
                answer = (yield from self._rechosen(frame, state, answer.demand)) or answer
            if isinstance(answer, Fits):
                self._place(frame, position, answer.plan)
                return True
            self._refused(frame, state, answer)
        return False

    def _bring_up_to_date(self, frame: MemberFrame) -> Work[None]:
        """Make the rules of the member anew after a pause, in which other pods may have been placed."""
        # Counting pauses as well, so it repeats until no pause came between counting and use.
        while self.has_rules and frame.returns != self._overlay.returns:
            frame.returns = self._overlay.returns
            yield from counted(frame.member.pod, self.nodes)
            rules = self.nodes.rules_of(frame.member.pod, frame.question.volumes)
            frame.question = frame.question.given(self._overlay.usage, rules)

    def _place(self, frame: MemberFrame, position: int, plan: Plan) -> None:
        frame.position, frame.plan, frame.has_fitted = position, plan, True
        changed = [plan, *(mate.plan for mate, _ in frame.rechosen if mate.plan is not None)]
        found = (allocation for it in changed for allocation in it.allocations.values())
        # A device of several nodes that is taken here is missing on the others.
        self.is_connected = self.is_connected or not all(map(is_of_one_node, found))
        self._order.place(frame.member, plan.node)
        self._overlay.place(frame.member.pod, plan)

    def _refused(self, frame: MemberFrame, state: LoadedNode, answer: NodeStatus) -> None:
        # A fault of the claims is the same on every node, and for every order of the members.
        if isinstance(answer, Faulty) and not answer.is_of_node:
            raise answer.error
        if isinstance(answer, Undecided):
            self._undecided[self._about(frame, state.name)] = f"node {state.name}: {answer.text}"
            if len(self._undecided) >= MOST_UNDECIDED_NODES:
                raise Aborted(next(iter(self._undecided.values())))
        self._order.refused(frame, answer)
        # Reasons of a member that had a place are those of a search that went on without it.
        if not frame.has_fitted:
            frame.answers.append(answer)

    def _about(self, frame: MemberFrame, node: str) -> tuple[Kind, str, AttributeValue | None]:
        return frame.member.kind, node, self._domain.value

    def _take_back(self, frame: MemberFrame) -> None:
        """Remove the member from its node. It continues with the next one."""
        if frame.plan is None:
            return
        self._overlay.remove(frame.member.pod, frame.plan)
        self._order.remove(frame.member, frame.plan.node)
        # Members that got other devices for it get back their own.
        for mate, plan in frame.rechosen:
            if mate.plan is not None:
                self._overlay.take(mate.plan)
            mate.plan = plan
            self._overlay.give(plan)
        frame.plan, frame.rechosen, frame.has_moved = None, [], True
        frame.position += 1

    def _rechosen(self, frame: MemberFrame, state: LoadedNode, demand: Demand) -> Work[Fits | None]:
        """Choose devices anew for all members on the node, so that this one gets some as well; None if impossible.

        With the gate for node-allocatable resources it is not tried: the new devices may take more of the node.
        """
        takes_resources = self._allocator.inventory.features.node_allocatable_resources
        # Its claim is not made yet, and what its devices take of the node would be another amount.
        if demand.extended is not None or takes_resources:
            return None
        mates = [(mate, plan) for mate in self._frames if (plan := _open_plan(mate, state.name)) is not None]
        if not mates:
            return None
        for _, plan in mates:
            self._overlay.take(plan)
        # In the order of the members: the results come in the same.
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
        # Not tried to its end, so "does not fit" would be more than is known.
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
        own = {claim.metadata.uid: found[claim.metadata.uid] for claim in demand.claims}
        return Fits(Plan(state.name, own, demand.served, volumes=frame.question.bindings(state)))

    def _pause(self, steps: int) -> Work[None]:
        self._steps += steps
        if self._steps >= PAUSE_STEPS:
            self._steps = 0
            yield Pause.SEARCHING


def look_up(demand: Demand, allocator: Allocator, usage: Usage) -> Work[None]:
    """Have the allocator's index say which nodes can meet the demand."""
    if demand.claims:
        for expression in allocator.catch_up(demand.program, usage):
            yield Pause.SEARCHING if expression else Pause.INDEXING
        demand.candidates = allocator.candidates(demand.program, usage)


def _open_plan(frame: MemberFrame, node: str) -> Plan | None:
    """Return the member's plan if it is on the node and its devices can be chosen anew, or None.

    They can be if all users of its claims are on this node.
    """
    plan = frame.plan
    if plan is None or plan.node != node or not plan.allocations or plan.extended is not None:
        return None
    # A user of the claim on another node would lose its devices.
    shared = plan.allocations.keys() & frame.member.shared
    return plan if all(is_of_one_node(plan.allocations[uid]) for uid in shared) else None


def is_of_one_node(allocation: AllocationResult) -> bool:
    """Return whether no other node can use the devices."""
    selector = allocation.node_selector
    # The allocator names one node by its field; several nodes may have the same labels.
    terms = () if selector is None else selector.node_selector_terms or ()
    return bool(terms) and all(term.match_fields for term in terms)
