"""The members of a gang in a joint plan: which are equal, and in which order they are placed.

Equal members are tried in one order only. Members are placed kind by kind first. But a pod may need others before it:
by affinity to them, or by an even spread, which allows a second pod in a zone once all zones have one. With such rules
equal members take nodes in turns. If there is no plan, and such a rule kept a member from a node, any kind may be next.

Whether the rest fits depends on which kinds are on which nodes, not on the order in which they came. So a failure is
recorded by kinds and nodes, and not searched again.
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
from dra_operator.scheduling.cycle.filter import NodeStatus, Obstructed, Plan, PodFilter
from dra_operator.scheduling.cycle.pre_filter import CycleState
from dra_operator.scheduling.rules import DO_NOT_SCHEDULE, POD_AFFINITY, SPREAD
from dra_operator.scheduling.rules.volumes import NO_VOLUMES
from dra_operator.scheduling.state.node import pod_requests
from dra_operator.scheduling.state.topology import affinity, anti_affinity

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
    """A member's turn in the search: the nodes in order, and its position among them."""

    member: Member
    question: PodFilter
    order: Sequence[str]
    position: int
    """The position of its node, or of the next node to ask."""
    plan: Plan | None = None
    has_fitted: bool = False
    has_moved: bool = False
    """Whether it has left a node that takes it."""
    rechosen: list[tuple[MemberFrame, Plan]] = field(default_factory=list)
    """Members on the same node that got other devices for this one, with their earlier plans."""
    answers: list[NodeStatus] = field(default_factory=list)
    others: Sequence[Member] = ()
    """Members of other kinds that may have this turn instead."""
    first: int = 0
    """Index in ``order`` of position 0; the turn goes around once."""
    returns: int = 0
    """``GangOverlay.returns`` when the rules of the question were made."""
    needs_others: bool = False
    """Whether a rule that other members can fulfil kept this member, or one after it, from a node."""

    def node(self, position: int) -> str:
        """Return the node at a position."""
        return self.order[(self.first + position) % len(self.order)]


def members_of(states: Sequence[CycleState]) -> list[Member]:
    """Return the members in the order of the search, equal ones beside each other.

    Members with allocated claims come first, because they have the least choice, then the largest ones. Small ones
    first, such as the driver of a job, would leave many nodes a little too full for a worker.
    """
    # A claim that two members use is allocated once, by whoever comes first.
    users = Counter(claim.metadata.uid for state in states for claim in state.resource_claims if is_open(claim))
    # A rule of one member is about the labels of all others, also of members without a rule.
    has_rules = any(state.nodes.rules_between(state.pod) for state in states)
    made = [_member(number, state, users, has_rules=has_rules) for number, state in enumerate(states)]
    ranks: dict[Kind, tuple[bool, Size, int]] = {}
    for member in made:
        if member.kind not in ranks:
            is_free = all(map(is_open, member.state.resource_claims))
            ranks[member.kind] = is_free, _smallness(member.state), member.number
    return sorted(made, key=lambda it: (ranks[it.kind], it.number))


def _smallness(state: CycleState) -> Size:
    """Return a key that sorts the largest first: all devices of a node, then number of devices, then cpu."""
    requests = [request for claim in state.resource_claims for request in claim.spec.devices.requests or ()]
    asked = [it for one in requests if (it := one.exactly or next(iter(one.first_available or ()), None)) is not None]
    # It can only go to a node of which no device is taken yet, so it comes before all others.
    wants_all = any(it.allocation_mode == "All" for it in asked)
    return not wants_all, -sum(it.count for it in asked), -pod_requests(state.pod).get("cpu", 0)


def is_open(claim: ResourceClaim) -> bool:
    """Return whether the claim is not allocated."""
    return claim.status.allocation is None


def with_devices(state: CycleState, found: dict[str, AllocationResult]) -> CycleState:
    """Return the pod's state with the shared claims that other members have allocated. ``found`` is by claim UID."""
    # Nearly always: then the state stays the same object, and memories keyed by it are found again.
    if not found:
        return state
    claims = tuple(PodClaim(entry, _allocated(claim, found)) for entry, claim in state.claims)
    return replace(state, claims=claims)


def _allocated(claim: ResourceClaim, found: dict[str, AllocationResult]) -> ResourceClaim:
    allocation = found.get(claim.metadata.uid)
    if allocation is None:
        return claim
    return structs.replace(claim, status=structs.replace(claim.status, allocation=allocation))


def _member(number: int, state: CycleState, users: Counter[str], *, has_rules: bool) -> Member:
    claims = state.resource_claims
    shared = frozenset(claim.metadata.uid for claim in claims if users[claim.metadata.uid] > 1)
    # Such a member is equal to no other one: its devices or volumes decide where it can go.
    is_alone = shared or state.volumes != NO_VOLUMES or not all(map(is_open, claims))
    kind: Kind = (number,) if is_alone else _kind(state, has_rules=has_rules)
    return Member(number, state, kind, shared)


def _kind(state: CycleState, *, has_rules: bool) -> Kind:
    # The names of claims differ from pod to pod; what they ask for is compared instead. Labels matter to rules only.
    spec = structs.replace(state.pod.spec, resource_claims=None)
    labels = tuple(sorted((state.pod.metadata.labels or {}).items()))
    return encode(spec), labels if has_rules else (), tuple(encode(claim.spec) for claim in state.resource_claims)


HOSTNAME: Final = "kubernetes.io/hostname"
"""The label with a different value on each node."""


class Order:
    """Whose turn is next, and which placements are known to fail. ``is_free``: any kind may be next."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self._matters = any(_may_need_others(member.pod) for member in members)
        self.is_free = False
        self.keeps_off = False
        """Whether a rule that other members can fulfil kept a member from a node."""
        self._state = 0
        """The number of members of each kind on each node, as one number with a digit per kind and node.

        To place a member is one addition, and to compare two placements one comparison.
        """
        self._digits: dict[tuple[Kind, str], int] = {}
        self._failed: dict[int, bool] = {}
        """The states without a plan, each with ``needs_others`` of the member that failed."""

    def begin(self) -> None:
        """Begin with no member placed."""
        self._state, self._failed = 0, {}

    def next(self, frames: Sequence[MemberFrame]) -> Sequence[Member]:
        """Return the member whose turn it is, and those that may have it instead."""
        # Kind by kind: the places of one kind do not depend on the order, so one order is enough.
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
        """Return the turn of a member that is equal to the one before it."""
        # Equal members need not try the nodes that the one before them has tried, unless places of others matter.
        if not self._matters:
            return MemberFrame(member, question, before.order, before.position, returns=returns)
        # With rules that need others, an earlier node may take it by now: so the turn goes around once.
        first = (before.first + before.position) % len(before.order)
        return MemberFrame(member, question, before.order, 0, others=others, first=first, returns=returns)

    def place(self, member: Member, node: str) -> None:
        """Note that the member is on the node."""
        self._state += self._digit(member, node) if self._matters else 0

    def remove(self, member: Member, node: str) -> None:
        """Undo ``place``."""
        self._state -= self._digit(member, node) if self._matters else 0

    def fail(self, frame: MemberFrame) -> None:
        """Note that there is no plan with the members that have a place now."""
        if self._matters:
            self._failed[self._state] = frame.needs_others

    def has_failed(self, frame: MemberFrame, node: str) -> bool:
        """Return whether a plan with this member on the node is known not to exist."""
        known = self._failed.get(self._state + self._digit(frame.member, node)) if self._failed else None
        if known is not None:
            frame.has_fitted = True
            frame.needs_others |= known
        return known is not None

    def _digit(self, member: Member, node: str) -> int:
        # By kind and not by member: a plan with two equal members exchanged is the same plan.
        pair = (member.kind, node)
        if pair not in self._digits:
            self._digits[pair] = (len(self._members) + 1) ** len(self._digits)
        return self._digits[pair]

    def refused(self, frame: MemberFrame, answer: NodeStatus) -> None:
        """Note that a node does not take the member."""
        if isinstance(answer, Obstructed) and answer.obstacle.reason in (POD_AFFINITY, SPREAD):
            self.keeps_off = frame.needs_others = True


def connects_nodes(pod: Pod) -> bool:
    """Return whether the pod's place can matter to members on other nodes.

    Anti-affinity by host name cannot: it concerns the pod's own node only.
    """
    return _may_need_others(pod) or any(it.key != HOSTNAME for it in anti_affinity(pod))


def _may_need_others(pod: Pod) -> bool:
    return bool(affinity(pod)) or any(
        it.when_unsatisfiable == DO_NOT_SCHEDULE for it in pod.spec.topology_spread_constraints or ()
    )
