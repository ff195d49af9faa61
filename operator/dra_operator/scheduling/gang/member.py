"""A member of a gang in a joint plan, and which members are equal: for those one order is tried, not all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dra_api.codec import encode
from dra_api.core import Pod
from dra_api.resource import AllocationResult, ResourceClaim
from msgspec import structs

from dra_operator.scheduling.claims.usable import PodClaim
from dra_operator.scheduling.cycle.filter import PodFilter
from dra_operator.scheduling.cycle.pre_filter import CycleState
from dra_operator.scheduling.cycle.result import NodeStatus, Plan
from dra_operator.scheduling.rules.volumes import NO_VOLUMES

Kind = tuple[object, ...]


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
class Frame:
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
    rechosen: list[tuple[Frame, Plan]] = field(default_factory=list)
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
    """The members in the order of the plan: those that have claims with devices first, equal ones beside each other."""
    users = Counter(claim.metadata.uid for state in states for claim in state.resource_claims if is_open(claim))
    made = [_member(number, state, users) for number, state in enumerate(states)]
    ranks: dict[Kind, tuple[bool, int]] = {}
    for member in made:
        ranks.setdefault(member.kind, (all(map(is_open, member.state.resource_claims)), member.number))
    return sorted(made, key=lambda it: (ranks[it.kind], it.number))


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
