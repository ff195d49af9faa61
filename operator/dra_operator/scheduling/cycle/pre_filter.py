"""What has to come first, or makes planning pointless, before any node is asked (SC-01, scheduling.md 4.1).

A ``Snapshot`` is the cluster at one moment, as one decision looks at it::

    pre_filter(pod, snapshot)
    ├── NotTried        an obstacle lies with the pod itself, its claims or their classes
    ├── WriteUnderWay   an allocation of one of its claims is on its way to the server
    ├── Stolen          a device was also allocated to another claim
    ├── GettingReady    it has its devices, and waits for them to get ready
    ├── VolumesPending  it has its node, and waits for its claims of volumes to be bound there
    ├── VolumesFailed   they were not bound there: it has to be rescheduled
    ├── Unsettled       a write to one of its claims was not answered
    ├── Deferring       other schedulers decide first on devices that it wants
    └── CycleState      nodes can be asked

All but a ``CycleState`` have a ``text``: a clause about the pod, without its name. What the operator does then is in
``controllers.scheduling.cycle``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from dra_api.core import Pod
from dra_api.references import (
    claims_of_pod,
    classes_of,
    group_name,
    is_for_extended_resources,
    is_reserved_for,
    stands_for,
)
from dra_api.resource import AllocationResult, ResourceClaim
from dra_api.scheduling import PodGroup

from dra_operator.allocator import Allocator, AttributeValue, DeviceId, Features, Usage
from dra_operator.scheduling.claims.demand import ExtendedResources
from dra_operator.scheduling.claims.readiness import (
    BINDING_TIMEOUT_SECONDS,
    CLAIM_PARKED,
    CLAIM_UNMADE,
    ClaimReadiness,
    Pending,
    PodClaim,
    Readiness,
    VolumesFailed,
    VolumesPending,
    claim_readiness,
    crowded,
    extended_claims,
    not_at_hand,
    ready_claims,
    too_large,
    unready,
    unservable,
    wait_for_volumes,
)
from dra_operator.scheduling.nodes import Nodes
from dra_operator.scheduling.rules.node_rules import group_obstacle, unsupported
from dra_operator.scheduling.rules.volumes import NO_VOLUMES, PodVolumes, Storage, volumes_of
from dra_operator.scheduling.state.applicants import (
    GANG_CROWDED,
    GANG_INCOMPLETE,
    GATE,
    MOST_GANG_PODS,
    Gang,
    gang_of,
    is_immediate,
    is_placeholder,
)
from dra_operator.scheduling.state.node import NO_NOMINATIONS, Nominations
from dra_operator.scheduling.state.obstacle import Obstacle, Reason

ANY_DRIVER: Final = "*"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Objects by look-up, because a decision needs few of many."""

    claim: Callable[[str], ResourceClaim | None]
    """By ``namespace/name``."""
    claims_owned_by: Callable[[Pod], Iterable[ResourceClaim]]
    has_class: Callable[[str], bool]
    classes_serving: Callable[[Pod], Mapping[str, str]]
    """The class of each extended resource that the pod asks for and that one serves."""
    assumed: Callable[[ResourceClaim], bool]
    """Whether an allocation of the claim is on its way to the server, or the end of its reservation for a group."""
    clashes: Callable[[ResourceClaim], Sequence[DeviceId]]
    """The claim's devices that another claim holds as well."""
    is_dispensable: Callable[[Pod, ResourceClaim], bool]
    """Whether no other pod than those that wait, as this one does, relies on the claim."""
    is_parked: Callable[[ResourceClaim], bool]
    """Whether the claim lost a contest, or gave the devices of one back just now: no pod may use it."""
    is_unsettled: Callable[[ResourceClaim], bool]
    """Whether a write to this version of the claim was not answered, and may still take effect."""
    drivers_of: Callable[[Iterable[str]], frozenset[str]]
    """The drivers whose devices the classes may hold; ``ANY_DRIVER`` for a class that does not say."""
    defers: Callable[[Pod, frozenset[str]], float]
    """Seconds for which the pod lets other schedulers decide first on devices of the drivers."""
    storage: Storage
    nodes: Nodes
    allocator: Allocator
    usage: Callable[[], Usage]
    """The devices in use; the result must not change."""
    now: datetime
    gang_pods: Callable[[Gang], int] = lambda gang: gang.size
    """How many pods of the gang run, have run or wait; ``MOST_PODS`` are counted, and one more if there are more."""
    features: Features = field(default_factory=Features)
    group_of: Callable[[Pod], PodGroup | None] = lambda _: None
    """The PodGroup of the pod; None if the pod is in none, or if it does not exist."""
    has_placed_members: Callable[[Pod], bool] = lambda _: False
    """Whether another pod of the pod's PodGroup has a node, or is on its way to one."""
    nominations: Callable[[Pod], Nominations] = lambda _: NO_NOMINATIONS
    """What pods are to get once others have ended, as the pod has to see it."""
    binding_timeout: float = BINDING_TIMEOUT_SECONDS
    """Seconds from the allocation until a device that is not ready counts as failed."""


STALE_CLAIM: Final = Reason("stale-claim", "waiting for stale extended-resource claim {subject} to be deleted")
EXTENDED_AT_GATE: Final = Reason(
    "extended-at-gate",
    f"the pod's scheduler allocates devices for the extended resource {{subject}}: remove the scheduling gate {GATE}, "
    "or ask for the devices by a claim (spec.resourceClaims)",
)


@dataclass(frozen=True, slots=True)
class NotTried:
    """No node is asked. ``stale``: claims for extended resources that an earlier attempt left half made."""

    obstacle: Obstacle
    stale: tuple[ResourceClaim, ...] = ()

    @property
    def text(self) -> str:
        return f"is not tried: {self.obstacle.text}"


@dataclass(frozen=True, slots=True)
class WriteUnderWay:
    """The end of another write comes first: it may give the claim its devices, or end its reservation for a group."""

    claim: ResourceClaim

    @property
    def text(self) -> str:
        return f"waits for claim {self.claim.key}, to which another write is under way"


@dataclass(frozen=True, slots=True)
class Stolen:
    """Another scheduler gave devices of the claim to another claim at the same time."""

    claim: ResourceClaim
    devices: tuple[DeviceId, ...]

    @property
    def text(self) -> str:
        devices = ", ".join(map(str, self.devices))
        were = "was" if len(self.devices) == 1 else "were"
        return f"releases claim {self.claim.key} and is rescheduled: {devices} {were} also allocated to another claim"


@dataclass(frozen=True, slots=True)
class GettingReady(Pending):
    """Devices have to be attached first; ``seconds`` is the longest that the first of the claims may still take."""

    claims: tuple[ResourceClaim, ...]
    seconds: float

    @property
    def awaited(self) -> str:
        """Every condition that is awaited."""
        awaited = (
            f"claim {claim.key}, device {device}: {', '.join(conditions)} not True"
            for claim in self.claims
            for device, conditions in unready(claim)
        )
        return f"binding conditions: {'; '.join(awaited)}"


@dataclass(frozen=True, slots=True)
class CycleState:
    """A pod whose claims are in order, and where it is to be placed. ``usage`` must not change, ``nodes`` may."""

    pod: Pod
    claims: tuple[PodClaim, ...]
    extended: ExtendedResources
    """What devices may serve of its extended resources; a claim that is made for them already is also in ``claims``."""
    nodes: Nodes
    allocator: Allocator
    usage: Usage
    failed: Mapping[str, ClaimReadiness] = field(default_factory=dict)
    """Claims by UID whose devices no node can use any more, and what became of them."""
    volumes: PodVolumes = NO_VOLUMES
    nominations: Nominations = NO_NOMINATIONS
    is_group_idle: bool = False
    """The pod is in a PodGroup of which no other pod has a node, or is on its way to one."""
    value: AttributeValue | None = None
    """All devices that it gets have this value, because those of its gang have it."""

    @property
    def resource_claims(self) -> list[ResourceClaim]:
        """The claims without the entries that lead to them."""
        return [claim for _, claim in self.claims]

    @property
    def wanted_classes(self) -> set[str]:
        """The classes of the devices that the pod has yet to get."""
        wanted = [claim for claim in self.resource_claims if claim.status.allocation is None]
        return {name for claim in wanted for name in classes_of(claim)} | set(self.extended.classes.values())

    def may_give_back(self, claim: ResourceClaim) -> bool:
        """Whether the pod may give the claim's devices back: an immediate claim keeps them, unless they failed.

        Those of a claim that is reserved for its PodGroup only while the group is idle (K37-WL-25).
        """
        # Its owner wants the devices whether or not a pod uses them; failed ones are of use to nobody.
        is_kept = is_immediate(claim) and claim.metadata.uid not in self.failed
        consumers = claim.status.reserved_for or ()
        is_of_idle_group = self.is_group_idle and all(stands_for(consumer, self.pod) for consumer in consumers)
        return (is_alone(self.pod, claim) or is_of_idle_group) and not is_kept


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A write to claims that the pod seems to have was not answered, and may still take them from it."""

    claims: tuple[ResourceClaim, ...]

    @property
    def text(self) -> str:
        names = ", ".join(claim.key for claim in self.claims)
        return f"releases {names} and is rescheduled: a write to it was not answered, and may still take effect"


@dataclass(frozen=True, slots=True)
class Deferring:
    """Other schedulers allocate devices of the same drivers, and decide first; the pod is looked at again after so many
    seconds. ``cycle_state`` is what nodes can be asked with then."""

    cycle_state: CycleState
    drivers: frozenset[str]
    seconds: float

    @property
    def text(self) -> str:
        devices = "devices" if ANY_DRIVER in self.drivers else f"devices of {', '.join(sorted(self.drivers))}"
        return f"lets other schedulers decide first, which allocate {devices} as well"


@dataclass(frozen=True, slots=True)
class ConflictCheckDue:
    """The pod has all its claims, of devices that another scheduler gives away as well: not bound before that is clear.

    ``pre_filter`` does not say it: the pod is planned, which keeps its room, and its last write is put off.
    """

    claims: tuple[ResourceClaim, ...]

    @classmethod
    def of(
        cls, cycle_state: CycleState, has_shared_driver: Callable[[AllocationResult], bool]
    ) -> ConflictCheckDue | None:
        """None if a claim is still to be allocated or reserved, or no driver is shared."""
        pod, claims = cycle_state.pod, cycle_state.resource_claims
        shared = [it for it in claims if it.status.allocation is not None and has_shared_driver(it.status.allocation)]
        # An open claim is written once more before the bind step, and that write is what others are checked against.
        is_complete = all(it.status.allocation is not None and is_reserved_for(pod, it) for it in claims)
        return cls(tuple(shared)) if shared and is_complete else None

    @property
    def text(self) -> str:
        names = ", ".join(claim.key for claim in self.claims)
        return f"waits for a list of all claims, to see that no other scheduler allocated devices of {names} as well"


PreFilterResult = (
    NotTried
    | WriteUnderWay
    | Stolen
    | GettingReady
    | VolumesPending
    | VolumesFailed
    | Unsettled
    | Deferring
    | CycleState
)


def pre_filter(pod: Pod, snapshot: Snapshot) -> PreFilterResult:
    """What is to be said of a waiting pod before nodes are asked."""
    claims = ready_claims(pod, snapshot.claim)
    if isinstance(claims, Obstacle):
        return _not_ready(pod, claims, snapshot)
    owned = tuple(snapshot.claims_owned_by(pod))
    # A claim for extended resources is compared with what the pod asks for, so it has to be whole.
    if (obstacle := not_at_hand(pod, filter(is_for_extended_resources, owned))) is not None:
        return NotTried(obstacle)
    made, stale = extended_claims(pod, owned)
    # Half made by an earlier attempt: they may hold devices, and the pod must not get others beside them.
    if stale:
        names = ", ".join(claim.metadata.name for claim in stale)
        return NotTried(Obstacle(STALE_CLAIM, names), stale)
    if made is not None:
        claims.append(PodClaim(None, made))
    held = [claim for _, claim in claims]
    # Asked before the nodes: a write under way decides which devices the pod has.
    readiness = {it.metadata.uid: claim_readiness(it, snapshot.now, snapshot.binding_timeout) for it in held}
    coming_first = _coming_first(pod, held, readiness, snapshot)
    if coming_first is not None:
        return coming_first
    # Its devices are kept so that no other scheduler loses one, and no pod may run with them.
    if parked := next(filter(snapshot.is_parked, held), None):
        return NotTried(Obstacle(CLAIM_PARKED, parked.key, _devices_of(parked)))
    # The pod has its node and devices already: it is not planned again while its volumes come.
    wait = snapshot.storage.wait_of(pod.metadata.uid)
    if wait is not None:
        state = wait_for_volumes(pod, held, wait, snapshot.storage, snapshot.nodes, snapshot.now)
        if state is not None:
            return state
    serving = snapshot.classes_serving(pod)
    obstacle = _obstacle(pod, held, snapshot)
    # Schedulers make the claim for extended resources together with the binding, and delete one that is there.
    if obstacle is None and pod.spec.scheduling_gates and serving:
        obstacle = Obstacle(EXTENDED_AT_GATE, ", ".join(serving))
    if obstacle is not None:
        return NotTried(obstacle)
    # Asked last before the nodes, since it may look at all volumes of a class.
    volumes = volumes_of(pod, snapshot.storage) if pod.spec.volumes else NO_VOLUMES
    if isinstance(volumes, Obstacle):
        return NotTried(volumes)
    cycle_state = CycleState(
        pod,
        tuple(claims),
        ExtendedResources(pod, serving, made),
        snapshot.nodes,
        snapshot.allocator,
        snapshot.usage(),
        {uid: found for uid, found in readiness.items() if found.is_lost},
        volumes,
        snapshot.nominations(pod),
        group_name(pod) is not None and not snapshot.has_placed_members(pod),
    )
    return _others_first(cycle_state, snapshot)


def _not_ready(pod: Pod, obstacle: Obstacle, snapshot: Snapshot) -> Stolen | NotTried:
    # a claim may not be made because its group is missing
    group = snapshot.group_of(pod)
    # The group comes first: while it is missing nobody can tell whose claim is lacking.
    missing = group_obstacle(pod, group, snapshot.features) if obstacle.reason is CLAIM_UNMADE else None
    return _stolen(pod, _reserved(pod, snapshot), snapshot) or NotTried(missing or obstacle)


def _others_first(state: CycleState, snapshot: Snapshot) -> Unsettled | Deferring | CycleState:
    """A claim that the pod does not hold yet is written once more before the pod is bound, which settles the matter."""
    held = [claim for claim in state.resource_claims if claim.status.allocation is not None]
    # A write that may still land would take the claim from the pod after it was bound.
    unsettled = tuple(it for it in held if is_reserved_for(state.pod, it) and snapshot.is_unsettled(it))
    if unsettled:
        return Unsettled(unsettled)
    is_served = state.extended.made is not None  # which is done last
    drivers = frozenset[str]() if is_served else snapshot.drivers_of(state.wanted_classes)
    # Asked last, for the pause counts from the first time: a pod with an obstacle must not use it up.
    seconds = snapshot.defers(state.pod, drivers)
    return Deferring(state, drivers, seconds) if seconds else state


def is_alone(pod: Pod, claim: ResourceClaim) -> bool:
    """Whether no other pod relies on the claim."""
    return all(consumer.uid == pod.metadata.uid for consumer in claim.status.reserved_for or ())


def _coming_first(
    pod: Pod, claims: Sequence[ResourceClaim], readiness: Mapping[str, ClaimReadiness], snapshot: Snapshot
) -> WriteUnderWay | Stolen | GettingReady | None:
    for claim in claims:
        if snapshot.assumed(claim):
            return WriteUnderWay(claim)
    if stolen := _stolen(pod, claims, snapshot):
        return stolen
    pending = [it for it in claims if readiness[it.metadata.uid].state is Readiness.PENDING]
    # A pod that still lacks a claim has more to get: it is planned while the others get ready.
    if pending and not any(it.is_lost for it in readiness.values()) and all(is_reserved_for(pod, it) for it in claims):
        return GettingReady(tuple(pending), min(readiness[it.metadata.uid].seconds for it in pending))
    return None


def _stolen(pod: Pod, claims: Iterable[ResourceClaim], snapshot: Snapshot) -> Stolen | None:
    for claim in claims:
        if (devices := snapshot.clashes(claim)) and snapshot.is_dispensable(pod, claim):
            return Stolen(claim, tuple(devices))
    return None


def _devices_of(claim: ResourceClaim) -> str:
    # A parked claim has devices by definition; a late version of it may not.
    results = claim.status.allocation.results if claim.status.allocation is not None else ()
    return ", ".join(str(DeviceId.of(result)) for result in results) or "devices"


def _reserved(pod: Pod, snapshot: Snapshot) -> Iterator[ResourceClaim]:
    """The claims that the pod has, whatever is wrong with them: one may be deleted already."""
    for use in claims_of_pod(pod):
        claim = snapshot.claim(f"{pod.metadata.namespace}/{use.name}")
        if claim is not None and is_reserved_for(pod, claim):
            yield claim


def _obstacle(pod: Pod, claims: Sequence[ResourceClaim], snapshot: Snapshot) -> Obstacle | None:
    # Only claims that have to be allocated: an allocated claim needs no class any more.
    wanted = [claim for claim in claims if claim.status.allocation is None]
    return (
        not_at_hand(pod, wanted)
        or unsupported(pod)
        or group_obstacle(pod, snapshot.group_of(pod), snapshot.features)
        or _without_gang(pod, snapshot)
        or crowded(pod, claims)
        or too_large(wanted)
        or unservable(wanted, snapshot.has_class, prioritized_list=snapshot.features.prioritized_list)
    )


def _without_gang(pod: Pod, snapshot: Snapshot) -> Obstacle | None:
    """What is wrong with the pod's wish for a gang, or that its gang lacks pods. Only pods that we bind have gangs."""
    # Another scheduler gives a gated pod its node, and sees to its gang.
    gang = None if pod.spec.scheduling_gates or is_placeholder(pod) else gang_of(pod, snapshot.group_of(pod))
    if gang is None or isinstance(gang, Obstacle):
        return gang
    # Counted before the pod is planned: an incomplete gang would otherwise be planned with each of its pods.
    pods = snapshot.gang_pods(gang)
    if pods > MOST_GANG_PODS:
        return Obstacle(GANG_CROWDED, gang.title, str(pods))
    return Obstacle(GANG_INCOMPLETE, gang.title, str(gang.size)) if pods < gang.size else None
