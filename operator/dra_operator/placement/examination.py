"""What has to come first, or makes planning pointless, before any node is asked (SC-01, scheduling.md 4.1).

::

    examine(pod, snapshot)
    ├── NotTried        an obstacle lies with the pod itself, its claims or their classes
    ├── WriteUnderWay   an allocation of one of its claims is on its way to the server
    ├── Stolen          another claim holds one of its devices, too
    ├── GettingReady    it has its devices, and waits for them to get ready
    ├── VolumesPending  it has its node, and waits for its claims of volumes to be bound there
    ├── VolumesFailed   they were not bound there: it has to be placed anew
    └── Case            nodes can be asked

All but a case have a ``text``: a clause about the pod, without its name. What the operator does then is in
``reconcile.place``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dra_api.core import Pod
from dra_api.references import claims_of_pod, is_reserved_for
from dra_api.resource import ResourceClaim

from dra_operator.allocator import Allocator, DeviceId, Usage

from .claims import NotReady, PodClaim, crowded, extended_claims, ready_claims, unservable
from .extended import ExtendedResources
from .nodes import Nodes
from .obstacle import Obstacle, ObstacleKind
from .readiness import ClaimReadiness, Readiness, claim_readiness, unready
from .snapshot import Snapshot
from .unsupported import unsupported
from .volume_wait import VolumesFailed, VolumesPending, wait_for_volumes
from .volumes import NO_VOLUMES, PodVolumes, volumes_of
from .wording import text


@dataclass(frozen=True, slots=True)
class NotTried:
    """No node is asked. ``stale``: claims for extended resources that an earlier attempt left half made."""

    obstacle: Obstacle
    claims: tuple[PodClaim, ...] = ()
    stale: tuple[ResourceClaim, ...] = ()

    @property
    def text(self) -> str:
        """With the obstacle."""
        return f"is not tried: {text(self.obstacle)}"


@dataclass(frozen=True, slots=True)
class WriteUnderWay:
    """The end of another pod's write comes first: it may give the claim its devices."""

    claim: ResourceClaim

    @property
    def text(self) -> str:
        """With the claim."""
        return f"waits for the end of another pod's write: claim {self.claim.key} is being allocated"


@dataclass(frozen=True, slots=True)
class Stolen:
    """Another scheduler gave devices of the claim to another claim at the same time."""

    claim: ResourceClaim
    devices: tuple[DeviceId, ...]

    @property
    def text(self) -> str:
        """With the devices."""
        devices = ", ".join(map(str, self.devices))
        return f"gives claim {self.claim.key} up and is placed again: another claim holds {devices}, too"


@dataclass(frozen=True, slots=True)
class GettingReady:
    """Devices have to be attached first; ``seconds`` is the longest that the first of the claims may still take."""

    claims: tuple[ResourceClaim, ...]
    seconds: float

    @property
    def text(self) -> str:
        """With every condition that is awaited."""
        awaited = (
            f"claim {claim.key}, device {device}: {', '.join(conditions)} not True"
            for claim in self.claims
            for device, conditions in unready(claim)
        )
        return (
            f"has its devices and waits for them to get ready, {self.seconds:.0f} s more at most: {'; '.join(awaited)}"
        )


@dataclass(frozen=True, slots=True)
class Case:
    """A pod whose claims are in order, and where it is to be placed. ``usage`` must not change, ``nodes`` may."""

    pod: Pod
    claims: tuple[PodClaim, ...]
    extended: ExtendedResources
    """What devices may serve of its extended resources; a claim for them that is made already is in ``claims``, too."""
    nodes: Nodes
    allocator: Allocator
    usage: Usage
    failed: Mapping[str, ClaimReadiness] = field(default_factory=dict)
    """Claims by UID whose devices no node can use any more, and what became of them."""
    volumes: PodVolumes = NO_VOLUMES

    @property
    def resource_claims(self) -> list[ResourceClaim]:
        """The claims without the entries that lead to them."""
        return [claim for _, claim in self.claims]


Examination = NotTried | WriteUnderWay | Stolen | GettingReady | VolumesPending | VolumesFailed | Case


def examine(pod: Pod, snapshot: Snapshot) -> Examination:
    """What is to be said of a waiting pod before nodes are asked."""
    try:
        claims = ready_claims(pod, snapshot.claim)
    except NotReady as reason:
        return _stolen(pod, _reserved(pod, snapshot), snapshot) or NotTried(reason.obstacle)
    made, stale = extended_claims(pod, snapshot.claims_owned_by(pod))
    if stale:
        names = ", ".join(claim.metadata.name for claim in stale)
        return NotTried(Obstacle(ObstacleKind.STALE_CLAIM, names), tuple(claims), stale)
    if made is not None:
        claims.append(PodClaim(None, made))
    held = [claim for _, claim in claims]
    coming_first = _coming_first(pod, held, snapshot)
    if coming_first is not None:
        return coming_first
    wait = snapshot.storage.wait_of(pod.metadata.uid)
    if wait is not None:
        state = wait_for_volumes(pod, held, wait, snapshot.storage, snapshot.nodes, snapshot.now)
        if state is not None:
            return state
    serving = snapshot.classes_serving(pod)
    obstacle = _obstacle(pod, held, snapshot) or _not_at_gate(pod, serving)
    if obstacle is not None:
        return NotTried(obstacle, tuple(claims))
    volumes = volumes_of(pod, snapshot.storage)
    if isinstance(volumes, Obstacle):
        return NotTried(volumes, tuple(claims))
    extended = ExtendedResources(pod, serving, made)
    states = {claim.metadata.uid: claim_readiness(claim, snapshot.now, snapshot.binding_timeout) for claim in held}
    failed = {uid: readiness for uid, readiness in states.items() if readiness.is_lost}
    return Case(pod, tuple(claims), extended, snapshot.nodes, snapshot.allocator, snapshot.usage(), failed, volumes)


def is_alone(pod: Pod, claim: ResourceClaim) -> bool:
    """Whether no other pod relies on the claim."""
    return all(consumer.uid == pod.metadata.uid for consumer in claim.status.reserved_for or ())


def _coming_first(
    pod: Pod, claims: Sequence[ResourceClaim], snapshot: Snapshot
) -> WriteUnderWay | Stolen | GettingReady | None:
    for claim in claims:
        if snapshot.in_flight(claim):
            return WriteUnderWay(claim)
    if stolen := _stolen(pod, claims, snapshot):
        return stolen
    states = [(claim, claim_readiness(claim, snapshot.now, snapshot.binding_timeout)) for claim in claims]
    pending = [(claim, readiness.seconds) for claim, readiness in states if readiness.state is Readiness.PENDING]
    has_failed = any(readiness.is_lost for _, readiness in states)
    if pending and not has_failed and all(is_reserved_for(pod, claim) for claim in claims):
        return GettingReady(tuple(claim for claim, _ in pending), min(seconds for _, seconds in pending))
    return None


def _stolen(pod: Pod, claims: Iterable[ResourceClaim], snapshot: Snapshot) -> Stolen | None:
    for claim in claims:
        if (devices := snapshot.clashes(claim)) and snapshot.is_dispensable(pod, claim):
            return Stolen(claim, tuple(devices))
    return None


def _reserved(pod: Pod, snapshot: Snapshot) -> Iterator[ResourceClaim]:
    """The claims that the pod has, whatever is wrong with them: one may be deleted already."""
    for use in claims_of_pod(pod):
        claim = snapshot.claim(f"{pod.metadata.namespace}/{use.name}")
        if claim is not None and is_reserved_for(pod, claim):
            yield claim


def _not_at_gate(pod: Pod, serving: Mapping[str, str]) -> Obstacle | None:
    """Schedulers make the claim for extended resources together with the binding, and delete one that is there."""
    if pod.spec.scheduling_gates and serving:
        return Obstacle(ObstacleKind.EXTENDED_AT_GATE, ", ".join(serving))
    return None


def _obstacle(pod: Pod, claims: Sequence[ResourceClaim], snapshot: Snapshot) -> Obstacle | None:
    wanted = [claim for claim in claims if claim.status.allocation is None]
    return (
        unsupported(pod)
        or crowded(pod, claims)
        or unservable(wanted, snapshot.has_class, prioritized_list=snapshot.prioritized_list)
    )
