"""The members of a gang in a joint plan, and the domains in which they may be placed together.

Equal members are tried in one order only. Members are placed kind by kind first. But a pod may need others before it:
by affinity to them, or by an even spread, which allows a second pod in a zone once all zones have one. With such rules
equal members take nodes in turns. If there is no plan, and such a rule kept a member from a node, any kind may be next.

Whether the rest fits depends on which kinds are on which nodes, not on the order in which they came. So a failure is
recorded by kinds and nodes, and not searched again.

The nodes or devices of a domain have a value in common. The smallest domain is tried first. With a topology, the nodes
have the same value of a label. A domain is smaller if its nodes have less free room. With an attribute, the devices
have the same value, or a common one if values are lists, as for ``matchAttribute``. A domain is smaller if fewer of its
devices are free. With both, each topology domain is divided by the values of the attribute. So large domains stay free
for large gangs.

Allocated devices of the gang fix the value: those of its running pods, and those of its claims.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, NamedTuple

from dra_api.codec import encode
from dra_api.core import Pod
from dra_api.resource import AllocationResult, ResourceClaim
from msgspec import structs

from dra_operator.allocator import AttributeValue, DeviceId, Values, ValueSupply
from dra_operator.scheduling.claims.readiness import PodClaim
from dra_operator.scheduling.cycle.filter import NodeStatus, NoPlace, Obstructed, Plan, PodFilter
from dra_operator.scheduling.cycle.pre_filter import CycleState
from dra_operator.scheduling.pieces import Elapsed, InPieces, Pause
from dra_operator.scheduling.rules import DO_NOT_SCHEDULE, POD_AFFINITY, SPREAD
from dra_operator.scheduling.rules.volumes import NO_VOLUMES
from dra_operator.scheduling.state.node import LoadedNode, pod_requests
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


MOST_DOMAIN_PAIRS: Final = 50_000
"""Limit on pairs of a label value and an attribute value. A cluster of 5,000 nodes has fewer devices."""
GROUPS_BETWEEN_PAUSES: Final = 64
FIXED: Final = "gang-value"
"""The kind of a refusal because the allocated devices of the gang have no value in common."""


class GangDomain(NamedTuple):
    """A domain. ``nodes`` are its nodes, or None for all nodes.

    All devices must have ``value``, if there is one. Only ``nodes_with_value`` have such devices.
    """

    nodes: Collection[str] | None = None
    value: AttributeValue | None = None
    nodes_with_value: Collection[str] | None = None

    def nodes_for(self, state: CycleState) -> Collection[str] | None:
        """Return the nodes worth asking for a pod. A pod without devices may go to any node of the domain."""
        needs_devices = any(is_open(claim) and claim.spec.devices.requests for claim in state.resource_claims)
        return self.nodes_with_value if self.value is not None and needs_devices else self.nodes


EVERYWHERE: Final = GangDomain()


@dataclass(frozen=True, slots=True)
class SameValues:
    """The condition on the places of a gang: one value of a node label, of a device attribute, or both.

    ``label`` is the only allowed value of the label if pods of the gang run already. ``running`` has the allocations of
    its running pods.
    """

    topology: str = ""
    attribute: str = ""
    label: str | None = None
    running: tuple[AllocationResult, ...] = ()

    def where(self, closest: GangDomain) -> str:
        """Return a clause that continues "pods fit together", about a domain."""
        common = [f"nodes with the same value of {self.topology}"] if self.topology else []
        if closest.value is not None:
            common.append(f"devices with the same value of {self.attribute}, closest with {closest.value.text}")
        return f" on {' and '.join(common)}" if common else ""

    def allocated(self, states: Sequence[CycleState]) -> Iterator[DeviceId]:
        """Yield the allocated devices of the gang, which fix the value of the attribute."""
        # Claims without a pod count as well: whoever uses them next has to be in the same domain.
        held = (claim.status.allocation for state in states for claim in state.resource_claims)
        for allocation in (*self.running, *held) if self.attribute else ():
            yield from map(DeviceId.of, allocation.results if allocation is not None else ())

    def are_given(self, states: Sequence[CycleState]) -> bool:
        """Return whether running pods or allocated claims of the gang fix a value."""
        return self.label is not None or any(True for _ in self.allocated(states))


NOTHING_SAME: Final = SameValues()


def domains_of(
    states: Sequence[CycleState], same: SameValues
) -> Generator[Pause, Elapsed, Sequence[GangDomain] | NoPlace]:
    """Return the domains in the order of the trials, or why there are none."""
    if not same.topology and not same.attribute:
        return [EVERYWHERE]
    # One group of all nodes, without a set of their names.
    groups: list[Collection[str] | None] = [None]
    if same.topology:
        groups = list(_by_label(states[0].nodes, same))
        if not groups:
            return NoPlace(f"no node has the label {same.topology}", "gang")
    if not same.attribute:
        return [GangDomain(nodes) for nodes in groups]
    allocator = states[0].allocator
    counting = InPieces(allocator.supplies(same.attribute, states[0].usage))
    for _ in counting:
        yield Pause.SEARCHING
    # A gang that grows or restarts must stay with the devices it has: only values of all of them remain.
    common: Values | None = None
    for device in same.allocated(states):
        values = allocator.values(device, same.attribute)
        if values is not None:  # None for a device that is not published any more: its value is not known
            common = values if common is None else common & values
            if not common:
                why = "which has none" if not values else "which has another one than others of the gang"
                text = f"its pods have devices without a common value of {same.attribute}, such as {device}, {why}"
                return NoPlace(text, FIXED)
    found = [it for it in counting.answer if common is None or it.value.value in common]
    if not found:
        return NoPlace(f"no published device has the attribute {same.attribute}", "gang")
    domains = yield from _divided(groups, found)
    if len(domains) > MOST_DOMAIN_PAIRS:
        many = f"{same.topology} and {same.attribute} have more than {MOST_DOMAIN_PAIRS} values together"
        return NoPlace(f"gave up: {many}; ask for one of them", is_error=True)
    return domains or NoPlace(
        f"no node with the label {same.topology} has a device with the attribute {same.attribute}", "gang"
    )


def _by_label(nodes: Iterable[LoadedNode], same: SameValues) -> Iterator[Collection[str]]:
    found: dict[str, list[LoadedNode]] = {}
    for state in nodes:
        of_node = (state.node.metadata.labels or {}).get(same.topology)
        if of_node is not None and same.label in (None, of_node):
            found.setdefault(of_node, []).append(state)
    # The fullest domain first, so that emptier ones stay whole for larger gangs.
    room = {name: sum(state.emptiness for state in states) for name, states in found.items()}
    for name in sorted(found, key=lambda it: (room[it], it)):
        yield frozenset(state.name for state in found[name])


def _divided(
    groups: Sequence[Collection[str] | None], supplies: Sequence[ValueSupply]
) -> Generator[Pause, Elapsed, list[GangDomain]]:
    """Return each group divided by its values, at most ``MOST_DOMAIN_PAIRS`` + 1 domains.

    Values are looked up by node. A label with a value per node and an attribute with a value per device have billions
    of pairs, of which nearly all are empty.
    """
    # Their devices can be used from several nodes, so such a value is possible in every group.
    anywhere = [number for number, supply in enumerate(supplies) if supply.anywhere]
    by_node: defaultdict[str, list[int]] = defaultdict(list)
    for number, supply in enumerate(supplies):
        if not supply.anywhere:
            for node in supply.nodes:
                by_node[node].append(number)
    found: list[GangDomain] = []
    for count, nodes in enumerate(groups, 1):
        if count % GROUPS_BETWEEN_PAUSES == 0:
            yield Pause.SEARCHING
        here = by_node if nodes is None else (node for node in nodes if node in by_node)
        for number in sorted({*anywhere, *chain.from_iterable(by_node[node] for node in here)}):
            supply = supplies[number]
            own = nodes if supply.anywhere else supply.nodes if nodes is None else supply.nodes.intersection(nodes)
            found.append(GangDomain(nodes, supply.value, own))
        if len(found) > MOST_DOMAIN_PAIRS:
            return found[: MOST_DOMAIN_PAIRS + 1]
    return found
