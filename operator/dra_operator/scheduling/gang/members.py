"""The members of a gang in a joint plan, their equality, and their order.

Members that are equal are tried in one order only. A pod may need others to be there before it: by affinity to them, or
by an even spread, which allows one more in a zone once all other zones have one. Members are placed kind by kind first,
and where there is such a rule equal members take nodes in turns. If no plan comes of that and a rule of this sort kept
a member from a node, any other kind may be next.

Members of the same kinds on the same nodes may lead to a plan or not, independent of their order. So a failure is
recorded by kinds and nodes, and looked up at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dra_api.codec import encode
from dra_api.core import Pod
from dra_api.resource import AllocationResult, ResourceClaim
from msgspec import structs

from dra_operator.scheduling.claims.usable import PodClaim
from dra_operator.scheduling.cycle.filter import PodFilter
from dra_operator.scheduling.cycle.pre_filter import CycleState
from dra_operator.scheduling.cycle.result import NodeStatus, Obstructed, Plan
from dra_operator.scheduling.rules import DO_NOT_SCHEDULE, POD_AFFINITY, SPREAD
from dra_operator.scheduling.rules.volumes import NO_VOLUMES
from dra_operator.scheduling.state.requests import pod_requests
from dra_operator.scheduling.state.selection import affinity, anti_affinity

Kind = tuple[object, ...]
Size = tuple[bool, int, int]


@dataclass(eq=False, slots=True)
class Member:
    """One pod. Members of the same ``kind`` differ in nothing that matters to the plan.

    ``shared``: UIDs of claims without devices that another member uses as well.
    """

    number: int
    state: CycleState
    kind: Kind
    shared: frozenset[str]

    @property
    def pod(self) -> Pod:
        """The pod."""
        return self.state.pod


@dataclass(eq=False, slots=True)
class MemberFrame:
    """A member's turn in the search: the nodes in its order, and where it is now."""

    member: Member
    question: PodFilter
    order: Sequence[str]
    position: int
    """Of the node that it is on, or of the next one that is asked."""
    plan: Plan | None = None
    has_fitted: bool = False
    has_moved: bool = False
    """Whether it was on a node before that takes it."""
    rechosen: list[tuple[MemberFrame, Plan]] = field(default_factory=list)
    """Members on the same node that got other devices for this one, with what they had."""
    answers: list[NodeStatus] = field(default_factory=list)
    others: Sequence[Member] = ()
    """Members that may have this turn instead."""
    first: int = 0
    """At which node of the order the turn begins; it ends with the one before it."""
    returns: int = 0
    """When the rules of the question were made: see ``Overlay``."""
    needs_others: bool = False
    """This member, or one after it, was kept from a node by a rule that others of the gang may fulfil."""

    def node(self, position: int) -> str:
        """The node at a position, counted from the first one."""
        return self.order[(self.first + position) % len(self.order)]


def members_of(states: Sequence[CycleState]) -> list[Member]:
    """The members in the order of the plan, equal ones beside each other.

    Members with claims of devices come first, and then the largest: small ones, such as the driver of a job, would
    leave many nodes a little too full for one of its workers.
    """
    users = Counter(claim.metadata.uid for state in states for claim in state.resource_claims if is_open(claim))
    made = [_member(number, state, users) for number, state in enumerate(states)]
    ranks: dict[Kind, tuple[bool, Size, int]] = {}
    for member in made:
        if member.kind not in ranks:
            is_free = all(map(is_open, member.state.resource_claims))
            ranks[member.kind] = is_free, _smallness(member.state), member.number
    return sorted(made, key=lambda it: (ranks[it.kind], it.number))


def _smallness(state: CycleState) -> Size:
    """What sorts the largest first: whoever wants all devices of a node, then by number of devices, then by cpu."""
    requests = [request for claim in state.resource_claims for request in claim.spec.devices.requests or ()]
    asked = [it for one in requests if (it := one.exactly or next(iter(one.first_available or ()), None)) is not None]
    wants_all = any(it.allocation_mode == "All" for it in asked)
    return not wants_all, -sum(it.count for it in asked), -pod_requests(state.pod).get("cpu", 0)


def is_open(claim: ResourceClaim) -> bool:
    """Whether the claim has no devices yet."""
    return claim.status.allocation is None


def with_devices(state: CycleState, found: dict[str, AllocationResult]) -> CycleState:
    """The pod, where other members get its shared claims allocated. ``found`` is by claim UID."""
    if not found:
        return state
    claims = tuple(PodClaim(entry, _allocated(claim, found)) for entry, claim in state.claims)
    return replace(state, claims=claims)


def _allocated(claim: ResourceClaim, found: dict[str, AllocationResult]) -> ResourceClaim:
    allocation = found.get(claim.metadata.uid)
    if allocation is None:
        return claim
    return structs.replace(claim, status=structs.replace(claim.status, allocation=allocation))


def _member(number: int, state: CycleState, users: Counter[str]) -> Member:
    claims = state.resource_claims
    shared = frozenset(claim.metadata.uid for claim in claims if users[claim.metadata.uid] > 1)
    is_alone = shared or state.volumes != NO_VOLUMES or not all(map(is_open, claims))
    kind: Kind = (number,) if is_alone else _kind(state)
    return Member(number, state, kind, shared)


def _kind(state: CycleState) -> Kind:
    spec = structs.replace(state.pod.spec, resource_claims=None)
    labels = tuple(sorted((state.pod.metadata.labels or {}).items()))
    has_rules = bool(state.nodes.rules_between(state.pod))
    return encode(spec), labels if has_rules else (), tuple(encode(claim.spec) for claim in state.resource_claims)


HOSTNAME: Final = "kubernetes.io/hostname"
"""The label of which each node has a value of its own."""


class Order:
    """``is_free``: any kind may be next."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self._matters = any(_may_need_others(member.pod) for member in members)
        self.is_free = False
        self.keeps_off = False
        """Whether a member that needs others was kept from a node."""
        self._state = 0
        """How many members of which kind are on which node: a number of which each digit is for one kind and node."""
        self._digits: dict[tuple[Kind, str], int] = {}
        self._failed: dict[int, bool] = {}
        """The states that lead to no plan, and whether a rule kept a member from a node then that others may fulfil."""

    def begin(self) -> None:
        """No member has a place."""
        self._state, self._failed = 0, {}

    def next(self, frames: Sequence[MemberFrame]) -> Sequence[Member]:
        """The member whose turn it is, and those that may have it instead."""
        if not self.is_free:
            return self._members[len(frames) : len(frames) + 1]
        placed, first = {frame.member.number for frame in frames}, dict[Kind, Member]()
        for member in self._members:
            if member.number not in placed:
                first.setdefault(member.kind, member)
        return list(first.values())

    def after(
        self, before: MemberFrame, member: Member, question: PodFilter, others: Sequence[Member], returns: int
    ) -> MemberFrame:
        """The turn of a member that is equal to the one before it."""
        if not self._matters:
            return MemberFrame(member, question, before.order, before.position, returns=returns)
        first = (before.first + before.position) % len(before.order)
        return MemberFrame(member, question, before.order, 0, others=others, first=first, returns=returns)

    def place(self, member: Member, node: str) -> None:
        """The member is on the node."""
        self._state += self._digit(member, node) if self._matters else 0

    def remove(self, member: Member, node: str) -> None:
        """The reverse of ``place``."""
        self._state -= self._digit(member, node) if self._matters else 0

    def fail(self, frame: MemberFrame) -> None:
        """With the members that have a place now there is no plan, since this one leads to none."""
        if self._matters:
            self._failed[self._state] = frame.needs_others

    def has_failed(self, frame: MemberFrame, node: str) -> bool:
        """Whether it is known that there is none with this member on the node either."""
        known = self._failed.get(self._state + self._digit(frame.member, node)) if self._failed else None
        if known is not None:
            frame.has_fitted = True
            frame.needs_others |= known
        return known is not None

    def _digit(self, member: Member, node: str) -> int:
        pair = (member.kind, node)
        if pair not in self._digits:
            self._digits[pair] = (len(self._members) + 1) ** len(self._digits)
        return self._digits[pair]

    def refused(self, frame: MemberFrame, answer: NodeStatus) -> None:
        """A node does not take the member."""
        if isinstance(answer, Obstructed) and answer.obstacle.reason in (POD_AFFINITY, SPREAD):
            self.keeps_off = frame.needs_others = True


def connects_nodes(pod: Pod) -> bool:
    """Whether it matters to others of the gang on other nodes where the pod is: not if it only wants a node alone."""
    return _may_need_others(pod) or any(it.key != HOSTNAME for it in anti_affinity(pod))


def _may_need_others(pod: Pod) -> bool:
    return bool(affinity(pod)) or any(
        it.when_unsatisfiable == DO_NOT_SCHEDULE for it in pod.spec.topology_spread_constraints or ()
    )
