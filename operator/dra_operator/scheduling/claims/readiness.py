"""Whether a pod's claims can be used: before any node is looked at, on which nodes, and when the pod may be bound.

Before any node the claims must exist, be the pod's, and be small enough to allocate (SC-01, scheduling.md 4.1). Claims
that are allocated already decide where their pod can run (scheduling.md 4.2).

A pod that has its node and its devices may still have to wait. Devices may name conditions that their driver, or a
controller that attaches them, sets in the claim's status when the device is ready, and others for a failure. The
scheduler that allocated the device waits for them, up to a limit (scheduling.md 4.7, binding conditions).

Claims to volumes have to be bound on the node. The operator has reserved volumes, or selected the node for claims
without; the PV controller and provisioners do the rest. A provisioner that fails removes the annotation; a claim that
was made anew never had it. Then, or when the time is over, the pod releases its devices and is rescheduled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final, NamedTuple

from dra_api.core import Node, NodeSelector, NodeSelectorTerm, Pod
from dra_api.meta import Condition
from dra_api.references import (
    ClaimNotCreatedYet,
    ClaimNotOwned,
    ClaimReferenceError,
    check_owned_by,
    claim_names,
    is_for_extended_resources,
    is_pod_group,
    is_reserved_for,
    volume_uses,
)
from dra_api.releases import NEWEST, Release
from dra_api.resource import MOST_CONSUMERS, DeviceRequestAllocationResult, ResourceClaim
from dra_api.selectors import declares_optional_node_operations, has_skipped_operations
from dra_api.storage import SELECTED_NODE
from dra_api.values import parse_time

from dra_operator.allocator import DeviceId, NodeSelectionError, node_selectors
from dra_operator.scheduling.nodes import Nodes
from dra_operator.scheduling.rules.volumes import Storage, VolumeWait
from dra_operator.scheduling.state.applicants import is_parked
from dra_operator.scheduling.state.large import LENT_BYTES, bytes_of_large, is_set_aside, size_refusal
from dra_operator.scheduling.state.node import extended_resources
from dra_operator.scheduling.state.obstacle import Obstacle, Reason

CLAIM_ELSEWHERE: Final = Reason("claim-elsewhere", "resourceclaim not available on the node")
GROUP_CLAIM_ELSEWHERE: Final = Reason(
    "group-claim-elsewhere",
    "resource claim {subject} allocation requires DRAOptionalNodeOperations feature on the node",
)


class Allocations:
    """The allocated ones of a pod's claims. Those whose UIDs are ``failed`` cannot be used anywhere.

    From Kubernetes 1.37 on, one whose drivers skip calls can be used on nodes that declare the feature (K37-ONO-05).
    Raises NodeSelectionError when the node selector of an allocation cannot be understood (4.1).
    """

    def __init__(self, claims: Sequence[ResourceClaim], failed: Collection[str], *, release: Release = NEWEST) -> None:
        self._selectors: dict[str, NodeSelector] = {}
        self._skipping: dict[str, ResourceClaim] = {}
        self.bound: dict[str, frozenset[str]] = {}
        """Claims bound to nodes named one by one: UID -> names."""
        for claim in claims:
            allocation = claim.status.allocation
            if allocation is None:
                continue
            uid, selector = claim.metadata.uid, allocation.node_selector
            if release >= Release.V1_37 and has_skipped_operations(allocation):
                self._skipping[uid] = claim
            # Bound to no node at all, so that every node has this obstacle.
            if uid in failed:
                self.bound[uid] = frozenset()
            elif selector is not None:
                _check(claim, selector)
                names = _named(selector)
                if names is not None:
                    self.bound[uid] = names
                self._selectors[uid] = selector

    @property
    def nodes(self) -> frozenset[str] | None:
        """The only nodes where all claims can be used; None if no claim names its nodes."""
        # A pod needs all of its claims on one node.
        sets = list(self.bound.values())
        return sets[0].intersection(*sets[1:]) if sets else None

    def is_usable(self, uid: str, node: str) -> bool:
        """Whether the bound claim names the node."""
        return node in self.bound[uid]

    def elsewhere(self, node: Node) -> set[str]:
        """UIDs of the claims that cannot be used on the node."""
        out = {uid for uid, selector in self._selectors.items() if not node_selectors.matches(selector, node)}
        out |= {uid for uid, names in self.bound.items() if not names}
        # A kubelet without the feature would call the driver, which is not there.
        if self._skipping and not declares_optional_node_operations(node):
            out |= self._skipping.keys()
        return out

    def obstacle(self, node: Node, elsewhere: Collection[str]) -> Obstacle:
        """What keeps the pod from a node where these claims cannot be used.

        The feature is named if a claim lacks it that is reserved for the pod's PodGroup (K37-ONO-06).
        """
        for uid, claim in () if declares_optional_node_operations(node) else self._skipping.items():
            if uid in elsewhere and any(map(is_pod_group, claim.status.reserved_for or ())):
                return Obstacle(GROUP_CLAIM_ELSEWHERE, claim.key)
        return Obstacle(CLAIM_ELSEWHERE)


def _check(claim: ResourceClaim, selector: NodeSelector) -> None:
    """Raises NodeSelectionError, which names the claim."""
    try:
        node_selectors.parse(selector)
    except NodeSelectionError as error:
        raise NodeSelectionError(f"claim {claim.key}: allocation: {error}") from error


def _named(selector: NodeSelector) -> frozenset[str] | None:
    """The names that a selector demands; None if it has a term that demands no name."""
    # Allocations name their node in most cases: then a look-up takes the place of a comparison with each node.
    names = [_name(term) for term in selector.node_selector_terms or ()]
    return None if None in names else frozenset(name for name in names if name is not None)


def _name(term: NodeSelectorTerm) -> str | None:
    for field in term.match_fields or ():
        if (field.key, field.operator) == ("metadata.name", "In") and len(field.values or ()) == 1:
            return (field.values or ("",))[0]
    return None


CLAIM_REFERENCE: Final = Reason("claim-reference", "{detail}")
CLAIM_UNMADE: Final = Reason("claim-unmade", "{detail}")
CLAIM_MISSING: Final = Reason(
    "claim-missing", 'resourceclaim "{subject}" not found: create it, or correct resourceClaimName'
)
CLAIM_DELETED: Final = Reason("claim-deleted", 'resourceclaim "{subject}" is being deleted')
CLAIM_FULL: Final = Reason(
    "claim-full",
    f"claim {{subject}} is used by {MOST_CONSUMERS} pods, the most that can share one claim: "
    "wait until one of them ends, or use another claim",
)
CLAIM_PARKED: Final = Reason(
    "claim-parked",
    "claim {subject} keeps {detail}, which another scheduler gave to another claim at the same time, until that claim "
    "is released and no pod of another scheduler waits for such devices; use another claim, or wait",
)
CLAIM_TOO_LARGE: Final = Reason("claim-too-large", "claim {subject} {detail}")
SET_ASIDE: Final = Reason(
    "set-aside",
    "{subject} is read from the API server first: its namespace has more large objects than dra-operator keeps in "
    f"memory; if this lasts, pods that are placed together have more than {LENT_BYTES >> 20} MiB of them, where equal "
    "parts count once: make the pods and claims alike, by one template, or shorten them",
)
CLASS_MISSING: Final = Reason(
    "class-missing", "{subject}: device class {detail} does not exist: create it, or correct deviceClassName"
)
ALTERNATIVES_OFF: Final = Reason(
    "alternatives-off", "resource {subject}: has subrequests, but the DRAPrioritizedList feature is disabled"
)


class PodClaim(NamedTuple):
    """A claim of the pod and the first entry that leads to it; none leads to the claim for extended resources."""

    entry: str | None
    claim: ResourceClaim


class ExtendedClaims(NamedTuple):
    """What earlier attempts made for a pod's extended resources."""

    made: ResourceClaim | None
    """The complete one: allocated, reserved and recorded, so that only the binding is missing."""
    leftovers: tuple[ResourceClaim, ...]
    """All others: they may hold devices, but perhaps no longer the right ones."""


def extended_claims(pod: Pod, owned: Iterable[ResourceClaim]) -> ExtendedClaims:
    """Find the claims for extended resources among those that a pod without node owns (7.2).

    Only pods that ask for a resource that devices might serve have some. A claim to which an entry of the pod leads is
    none, whatever its annotations: a person made it, or its template decides on them.

    A complete claim is no leftover: its pod may wait for its devices to become ready, or the answer to the binding may
    have been lost. Like any other allocated claim it decides where the pod can run.
    """
    # Claims that others made in the pod's name do not matter: the pod requests no such resource.
    if not extended_resources(pod):
        return ExtendedClaims(None, ())
    recorded = pod.status.extended_resource_claim_status
    name = recorded.resource_claim_name if recorded is not None else ""
    # An annotation alone does not make a claim ours to delete.
    named = {entry.resource_claim_name for entry in pod.spec.resource_claims or ()}
    found = [
        it for it in owned if is_for_extended_resources(it) and it.metadata.name not in named and not is_parked(it)
    ]
    # The kubelet uses the recorded one and no other, so only that one can be complete.
    made = next((claim for claim in found if claim.metadata.name == name and _is_complete(pod, claim)), None)
    return ExtendedClaims(made, tuple(claim for claim in found if claim is not made))


def _is_complete(pod: Pod, claim: ResourceClaim) -> bool:
    # One that is being deleted goes in any case.
    is_allocated = claim.status.allocation is not None and claim.metadata.deletion_timestamp is None
    return is_allocated and is_reserved_for(pod, claim)


def ready_claims(pod: Pod, find: Callable[[str], ResourceClaim | None]) -> list[PodClaim] | Obstacle:
    """The claims of the pod, each once, however many entries name it (PRJ-009), or what is wrong with one of them.

    ``find`` looks a claim up by ``namespace/name``.
    """
    claims: dict[str, PodClaim] = {}
    name_of = claim_names(pod)
    for entry in pod.spec.resource_claims or ():
        try:
            name, must_check_owner = name_of(entry)
        except ClaimReferenceError as error:
            reason = CLAIM_UNMADE if isinstance(error, ClaimNotCreatedYet) else CLAIM_REFERENCE
            return Obstacle(reason, entry.name, str(error))
        if name is None:
            continue
        claim = find(f"{pod.metadata.namespace}/{name}")
        if claim is None:
            # A deleted generated claim is made again, so there is nothing to report.
            gone = Obstacle(CLAIM_UNMADE, name, f'resourceclaim "{name}" not found; it is being recreated')
            return gone if must_check_owner else Obstacle(CLAIM_MISSING, name)
        if claim.metadata.deletion_timestamp is not None:
            return Obstacle(CLAIM_DELETED, name)
        # The name follows from a status, which may name somebody else's claim.
        if must_check_owner:
            try:
                check_owned_by(pod, claim)
            except ClaimNotOwned as error:
                return Obstacle(CLAIM_REFERENCE, name, str(error))
        # By UID: two entries may lead to one claim, which is allocated and reserved once.
        claims.setdefault(claim.metadata.uid, PodClaim(entry.name, claim))
    return list(claims.values())


def crowded(pod: Pod, claims: Sequence[ResourceClaim]) -> Obstacle | None:
    """The first claim that takes no further consumer; None if all can take the pod."""
    for claim in claims:
        # The API server refuses one consumer more; a pod that is among them already needs none.
        if len(claim.status.reserved_for or ()) >= MOST_CONSUMERS and not is_reserved_for(pod, claim):
            return Obstacle(CLAIM_FULL, claim.key)
    return None


def not_at_hand(pod: Pod, claims: Iterable[ResourceClaim]) -> Obstacle | None:
    """The pod or the first claim that has to be read before it can be placed; None if there is none."""
    if is_set_aside(pod):
        return Obstacle(SET_ASIDE, f"pod {pod.key}")
    aside = next(filter(is_set_aside, claims), None)
    return Obstacle(SET_ASIDE, f"claim {aside.key}") if aside is not None else None


def too_large(claims: Sequence[ResourceClaim]) -> Obstacle | None:
    """The first claim of which too little is kept to allocate it; None if there is none."""
    for claim in claims:
        # The cache has not even all requests of such a claim.
        size = bytes_of_large(claim.spec)
        if size is not None:
            return Obstacle(CLAIM_TOO_LARGE, claim.key, size_refusal(size))
    return None


def unservable(
    claims: Sequence[ResourceClaim], has_class: Callable[[str], bool], *, prioritized_list: bool
) -> Obstacle | None:
    """The first request that no node can serve for now; None if there is none (4.1)."""
    for claim in claims:
        for request in claim.spec.devices.requests or ():
            # A server without the gate may still have such a claim from a time when the gate was on.
            if request.first_available and not prioritized_list:
                return Obstacle(ALTERNATIVES_OFF, f"claim {claim.key}, request {request.name}")
            named = [(request.name, request.exactly.device_class_name)] if request.exactly else []
            named += [(f"{request.name}/{sub.name}", sub.device_class_name) for sub in request.first_available or ()]
            for reference, name in named:
                # An empty name is a fault of the claim. The allocator words it.
                if name and not has_class(name):
                    return Obstacle(CLASS_MISSING, f"claim {claim.key}, request {reference}", name)
    return None


BINDING_TIMEOUT_SECONDS = 600.0
"""Seconds from the allocation until a device that is not ready counts as failed."""


class Readiness(Enum):
    """How far a claim's devices are."""

    READY = "ready"
    PENDING = "pending"
    FAILED = "failed"
    TIMED_OUT = "timed out"


class ClaimReadiness(NamedTuple):
    """``text`` says what failed; ``seconds`` how long a pending claim may still take."""

    state: Readiness
    text: str = ""
    seconds: float = 0.0

    @property
    def is_lost(self) -> bool:
        """The devices will not get ready."""
        return self.state in (Readiness.FAILED, Readiness.TIMED_OUT)


def claim_readiness(claim: ResourceClaim, now: datetime, timeout: float = BINDING_TIMEOUT_SECONDS) -> ClaimReadiness:
    """Whether a pod may be bound to the claim's devices."""
    for result in claim.results:
        conditions = _conditions(claim, result)
        # Failures before readiness: a device that reports both must not be used.
        for name in result.binding_failure_conditions or ():
            failure = conditions.get(name)
            if failure is not None and failure.status == "True":
                detail = f"claim={claim.metadata.name}, reason={failure.reason}, message={failure.message}"
                return ClaimReadiness(Readiness.FAILED, f"device binding failed: {detail}")
    if not any(unready(claim)):
        return ClaimReadiness(Readiness.READY)
    # By the time in the allocation, so that a restart does not begin the wait anew.
    left = timeout - age_of_allocation(claim, now)
    if left < 0:
        return ClaimReadiness(Readiness.TIMED_OUT, f"device binding timeout: claim={claim.metadata.name}")
    return ClaimReadiness(Readiness.PENDING, seconds=left)


def unready(claim: ResourceClaim) -> Iterator[tuple[DeviceId, list[str]]]:
    """The devices of an allocated claim that are not ready yet, each with the conditions that are awaited."""
    for result in claim.results:
        conditions = _conditions(claim, result)
        awaited = [
            name
            for name in result.binding_conditions or ()
            if name not in conditions or conditions[name].status != "True"
        ]
        if awaited:
            yield DeviceId.of(result), awaited


def _conditions(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> dict[str, Condition]:
    # With the share: of one device several claims, and several requests, have shares of their own.
    wanted = (result.driver, result.pool, result.device, result.share_id)
    for status in claim.status.devices or ():
        if (status.driver, status.pool, status.device, status.share_id) == wanted:
            return {condition.type: condition for condition in status.conditions or ()}
    return {}


def age_of_allocation(claim: ResourceClaim, now: datetime) -> float:
    """Seconds since the allocation; 0 if the claim does not say when that was."""
    allocation = claim.status.allocation
    allocated = parse_time(allocation.allocation_timestamp) if allocation is not None else None
    return (now - allocated).total_seconds() if allocated is not None else 0.0


class Pending(ABC):
    """Something that a placed pod waits for; ``seconds`` is the longest that it may still take."""

    __slots__ = ()
    seconds: float

    @property
    @abstractmethod
    def awaited(self) -> str:
        """What is awaited, for a sentence."""

    @property
    def text(self) -> str:
        """A clause about the pod."""
        return f"waits up to {self.seconds:.0f} s for {self.awaited}"

    @property
    def lasting(self) -> str:
        """The same without the seconds, which differ at each look."""
        return f"waits for {self.awaited}"


@dataclass(frozen=True, slots=True)
class VolumesPending(Pending):
    """Claims are being bound."""

    claims: tuple[str, ...]
    node: str
    seconds: float

    @property
    def awaited(self) -> str:
        """The claims, and the node."""
        return f"{', '.join(self.claims)} to be bound on node {self.node}"


@dataclass(frozen=True, slots=True)
class VolumesFailed:
    """Claims were not bound. The pod gives up the ``held`` claims of devices, and is rescheduled."""

    reason: str
    held: tuple[ResourceClaim, ...]

    @property
    def text(self) -> str:
        """A clause about the pod."""
        return f"is rescheduled: {self.reason}"


def wait_for_volumes(
    pod: Pod, held: Sequence[ResourceClaim], wait: VolumeWait, storage: Storage, nodes: Nodes, now: datetime
) -> VolumesPending | VolumesFailed | None:
    """How the binding is getting on; None when every claim is bound."""
    pending: list[str] = []
    for use in volume_uses(pod):
        claim = storage.claim(use.key)
        # What was begun for it is lost: the pod has to be placed again with the claim that follows.
        if claim is None or claim.metadata.deletion_timestamp is not None:
            lost = f"PersistentVolumeClaim {use.name} is {'gone' if claim is None else 'being deleted'}"
            return VolumesFailed(lost, tuple(held))
        if claim.is_bound:
            continue
        # A provisioner that fails removes the annotation to have the pod scheduled anew.
        selected = (claim.metadata.annotations or {}).get(SELECTED_NODE)
        reserved = (it for it in storage.volumes_of_class(claim.storage_class) if it.is_reserved_for(claim))
        if selected != wait.node and not any(reserved):
            lost = f"PersistentVolumeClaim {use.name} is no longer meant for node {wait.node}"
            return VolumesFailed(f"{lost}: provisioning failed, or it was changed or recreated", tuple(held))
        pending.append(claim.metadata.name)
    if not pending:
        return None
    seconds = (wait.deadline - now).total_seconds()
    # Nobody provisions for a node that is gone, and no event would say so.
    if wait.node not in nodes:
        return VolumesFailed(f"node {wait.node} is gone", tuple(held))
    if seconds <= 0:
        late = f"timed out waiting for PersistentVolumeClaim {', '.join(pending)} to be bound"
        return VolumesFailed(late, tuple(held))
    return VolumesPending(tuple(pending), wait.node, seconds)
