"""Volumes that tie a pod to nodes: kube-scheduler's VolumeBinding, VolumeZone, VolumeRestrictions, NodeVolumeLimits.

The PersistentVolumeClaims of a pod are looked up once per attempt (``volumes_of``). The result is an obstacle of the
pod (a claim is missing, lost, terminating, not its own, in use, or not bound yet), or its ``PodVolumes``. These say of
each node whether the pod can use its volumes there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Protocol

from dra_api.core import Node, Pod
from dra_api.references import VolumeUse, is_made_for, volume_uses
from dra_api.storage import CSIStorageCapacity, PersistentVolume, PersistentVolumeClaim, StorageClass

from dra_operator.scheduling.state.node import (
    Attachable,
    AttachedVolumes,
    attachable,
    claims_in,
)
from dra_operator.scheduling.state.obstacle import Obstacle, Reason

from .volume_binding import (
    NO_BINDINGS,
    WAIT_FOR_FIRST_CONSUMER,
    Bindings,
    UnboundClaim,
    allows,
    bindings_on,
    reference,
)

VOLUME_AFFINITY: Final = Reason(
    "volume-affinity", "node(s) didn't match PersistentVolume's node affinity", is_about_volumes=True
)
VOLUME_ZONE: Final = Reason("volume-zone", "node(s) had no available volume zone", is_about_volumes=True)
VOLUME_MISSING: Final = Reason(
    "volume-missing",
    "node(s) unavailable: claim {subject} is bound to PersistentVolume {detail}, which does not exist",
    is_about_volumes=True,
)
VOLUMES_UNSEEN: Final = Reason(
    "volumes-unseen",
    "the pod uses PersistentVolumeClaims, and {subject} cannot be seen: "
    "allow dra-operator to list and watch them (manifests/operator/rbac.yaml)",
    is_about_volumes=True,
)
VOLUME_CLAIM_MISSING: Final = Reason(
    "volume-claim-missing",
    'persistentvolumeclaim "{subject}" not found: create it, or correct claimName',
    is_about_volumes=True,
)
VOLUME_CLAIM_UNMADE: Final = Reason(
    "volume-claim-unmade",
    'waiting for ephemeral volume controller to create the persistentvolumeclaim "{subject}"',
    is_about_volumes=True,
)
VOLUME_CLAIM_FOREIGN: Final = Reason(
    "volume-claim-foreign",
    'persistentvolumeclaim "{subject}" was not created for the pod (the pod is not its owner): delete it',
    is_about_volumes=True,
)
VOLUME_CLAIM_LOST: Final = Reason(
    "volume-claim-lost",
    'persistentvolumeclaim "{subject}" bound to non-existent persistentvolume "{detail}"',
    is_about_volumes=True,
)
VOLUME_CLAIM_DELETED: Final = Reason(
    "volume-claim-deleted", 'persistentvolumeclaim "{subject}" is being deleted', is_about_volumes=True
)
VOLUME_CLAIM_UNBOUND: Final = Reason(
    "volume-claim-unbound", 'pod has unbound immediate PersistentVolumeClaim "{subject}"', is_about_volumes=True
)
VOLUME_CLAIM_IN_USE: Final = Reason(
    "volume-claim-in-use",
    'persistentvolumeclaim "{subject}" has the access mode ReadWriteOncePod and is in use by another pod',
    is_about_volumes=True,
)

READ_WRITE_ONCE_POD: Final = "ReadWriteOncePod"
_ZONE, _REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
_OLD_ZONE, _OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
_NEWER: Final = {_ZONE: _ZONE, _REGION: _REGION, _OLD_ZONE: _ZONE, _OLD_REGION: _REGION}
"""The labels of volumes that must agree with those of nodes, each with the name that nodes have today."""
_SEVERAL: Final = "__"


class Storage(AttachedVolumes, Protocol):
    """The storage objects of a snapshot, by look-up."""

    @property
    def unseen(self) -> Iterable[str]:
        """Kinds that the operator cannot see."""
        ...

    def volumes_of_class(self, name: str) -> Iterable[PersistentVolume]: ...

    def capacities(self, storage_class: StorageClass) -> Sequence[CSIStorageCapacity] | None:
        """Return the free capacity for new volumes of the class, or None if its driver does not publish any."""
        ...

    def wait_of(self, pod_uid: str) -> VolumeWait | None:
        """Return the wait of a pod that has its node, and whose claims are being bound there; or None."""
        ...

    def users(self, key: str) -> Iterable[str]:
        """Return UIDs of the bound and binding pods that use the claim."""
        ...


@dataclass(frozen=True, slots=True)
class VolumeWait:
    """The pod's claims are being bound for this node, until ``deadline``."""

    node: str
    deadline: datetime


@dataclass(frozen=True, slots=True)
class BoundVolume:
    """A bound claim. ``zoned``: zone labels of the volume count, as they do except for ephemeral volumes."""

    claim: PersistentVolumeClaim
    volume: PersistentVolume | None
    zoned: bool

    def obstacle(self, node: Node) -> Obstacle | None:
        """Return why it cannot be used on the node, or None."""
        # The claim says that it is bound; the volume may have been deleted, or the watch may be late.
        if self.volume is None:
            return Obstacle(VOLUME_MISSING, self.claim.key, self.claim.spec.volume_name)
        if not allows(self.volume, node):
            return Obstacle(VOLUME_AFFINITY)
        # Old volumes have their zone in labels only, and no node affinity.
        if self.zoned and not _is_in_zone(self.volume, node):
            return Obstacle(VOLUME_ZONE)
        return None


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """The volumes of a pod. ``unbound`` claims are sorted by size, the smallest first (``volume_binding``)."""

    bound: tuple[BoundVolume, ...] = ()
    unbound: tuple[UnboundClaim, ...] = ()
    limits: AttachLimits | None = None

    def obstacle(self, node: Node, used: Mapping[str, int]) -> Obstacle | None:
        """Return why the pod cannot use its volumes on the node, or None. ``used``: amounts that pods there use."""
        # The limit first, as kube-scheduler's NodeVolumeLimits comes before VolumeBinding.
        exceeded = self.limits.obstacle(node.metadata.name, used) if self.limits is not None else None
        if exceeded is not None:
            return exceeded
        found = self.bindings(node)
        return found if isinstance(found, Obstacle) else None

    def bindings(self, node: Node) -> Bindings | Obstacle:
        """Return how the claims get volumes on the node, or why they cannot."""
        for volume in self.bound:
            if (obstacle := volume.obstacle(node)) is not None:
                return obstacle
        return bindings_on(node, self.unbound) if self.unbound else NO_BINDINGS

    def after(self, others: Sequence[tuple[str, Bindings]]) -> PodVolumes:
        """Return the volumes as they are after these bindings of other pods, each on its node."""
        # Members of a gang are planned together and written one by one: each sees the volumes that those before it get
        # taken.
        taken = {volume.metadata.name: reference(claim) for _, it in others for claim, volume in it.reserve}
        nodes = {claim.key: node for node, it in others for claim in it.provision}
        if not self.unbound or not (taken or nodes):
            return self
        return replace(self, unbound=tuple(it.after(taken, nodes) for it in self.unbound))


NO_VOLUMES: Final = PodVolumes()


def volumes_of(pod: Pod, storage: Storage) -> PodVolumes | Obstacle:
    """Return the volumes of the pod, or why no node can have them."""
    uses = list(volume_uses(pod))
    if not uses:
        return NO_VOLUMES
    # A claim that cannot be listed looks like a missing one, and the advice for that would be wrong.
    unseen = ", ".join(storage.unseen)
    if unseen:
        return Obstacle(VOLUMES_UNSEEN, unseen)
    bound: list[BoundVolume] = []
    unbound: dict[str, UnboundClaim] = {}
    for use in uses:
        claim = storage.claim(use.key)
        if claim is None:
            return Obstacle(VOLUME_CLAIM_UNMADE if use.is_ephemeral else VOLUME_CLAIM_MISSING, use.name)
        if (obstacle := _obstacle(pod, use, claim, storage)) is not None:
            return obstacle
        if claim.is_bound:
            bound.append(BoundVolume(claim, storage.volume(claim.spec.volume_name), zoned=not use.is_ephemeral))
        elif (waiting := _unbound(claim, storage)) is not None:
            unbound[use.key] = waiting
        else:
            return Obstacle(VOLUME_CLAIM_UNBOUND, use.name)
    # Each claim takes the smallest volume that suffices, the smallest claim first. In another order a small claim could
    # take the only volume that is large enough for a large one.
    in_order = tuple(sorted(unbound.values(), key=lambda it: it.size))
    return PodVolumes(tuple(bound), in_order, AttachLimits.of(pod, storage))


def _obstacle(pod: Pod, use: VolumeUse, claim: PersistentVolumeClaim, storage: Storage) -> Obstacle | None:
    # The PV controller never mends it: a person has to.
    if claim.status.phase == "Lost":
        return Obstacle(VOLUME_CLAIM_LOST, use.name, claim.spec.volume_name)
    if claim.metadata.deletion_timestamp is not None:
        return Obstacle(VOLUME_CLAIM_DELETED, use.name)
    # Somebody else's claim has the name: the pod would write into the volume of another one.
    if use.is_ephemeral and not is_made_for(pod, claim):
        return Obstacle(VOLUME_CLAIM_FOREIGN, use.name)
    if READ_WRITE_ONCE_POD in (claim.spec.access_modes or ()) and _is_used_by_others(pod, use, storage):
        return Obstacle(VOLUME_CLAIM_IN_USE, use.name)
    return None


def _is_used_by_others(pod: Pod, use: VolumeUse, storage: Storage) -> bool:
    return any(uid != pod.metadata.uid for uid in storage.users(use.key))


def _unbound(claim: PersistentVolumeClaim, storage: Storage) -> UnboundClaim | None:
    """Return the claim if it is bound when its first consumer has a node, or None if the PV controller binds it."""
    found = storage.storage_class(claim.storage_class)
    if found is None or found.volume_binding_mode != WAIT_FOR_FIRST_CONSUMER or claim.spec.volume_name:
        return None
    # Once for the claim, and not once for each node.
    room = storage.capacities(found)
    return UnboundClaim(claim, found, tuple(storage.volumes_of_class(claim.storage_class)), room)


def _is_in_zone(volume: PersistentVolume, node: Node) -> bool:
    """Return whether the node is in the zones of the volume. A node without zone labels is in every zone."""
    labels = node.metadata.labels or {}
    # As in kube-scheduler: a cluster without zones has no node in a wrong one.
    if labels.keys().isdisjoint(_NEWER):
        return True
    wanted = ((name, _zones((volume.metadata.labels or {}).get(name))) for name in _NEWER)
    return all(labels.get(name, labels.get(_NEWER[name])) in zones for name, zones in wanted if zones)


def _zones(value: str | None) -> frozenset[str]:
    """Return the values of a zone label; none for a missing or malformed label."""
    # The label of a regional disk joins its zones by two underscores.
    zones = frozenset(part.strip() for part in (value or "").split(_SEVERAL))
    return frozenset() if "" in zones else zones


VOLUME_LIMIT: Final = Reason(
    "volume-limit", "node(s) exceed max volume count of driver {subject}", ends_with_any_pod=True, is_about_volumes=True
)


@dataclass(frozen=True, slots=True)
class AttachLimits:
    """Limits of CSI drivers on attached volumes per node (kube-scheduler's NodeVolumeLimits).

    ``wanted`` are the volumes of one pod. A volume counts once, however many pods of the node use it, and also while it
    is still attached but no pod uses it.
    """

    wanted: frozenset[Attachable]
    storage: AttachedVolumes

    @classmethod
    def of(cls, pod: Pod, storage: AttachedVolumes) -> AttachLimits:
        """Return the limits for the pod's volumes that CSI drivers attach."""
        return cls(frozenset(attachable((use.key for use in volume_uses(pod)), storage)), storage)

    def obstacle(self, node: str, used: Mapping[str, int]) -> Obstacle | None:
        """Return a driver that would have to attach too many volumes, or None. ``used``: see ``node_requests``."""
        # A limit of a driver that the pod does not use is no matter of the pod's.
        drivers = {it.driver for it in self.wanted}
        limits = {name: most for name, most in self.storage.attach_limits(node).items() if name in drivers}
        claims = claims_in(used)
        attachments = frozenset(self.storage.attachments(node)) if limits else frozenset()
        # Look-ups of every claim on the node are costly. Most nodes are far below their limits, even if all claims were
        # of one driver.
        if len(claims) + len(attachments) + len(self.wanted) <= min(limits.values(), default=math.inf):
            return None
        in_use = frozenset(attachable(claims, self.storage))
        attached = in_use | attachments
        # A volume that the node has attached already takes no further place.
        new = self.wanted - in_use
        for driver in sorted({it.driver for it in new} & limits.keys()):
            there, more = (sum(it.driver == driver for it in volumes) for volumes in (attached, new))
            if there + more > limits[driver]:
                return Obstacle(VOLUME_LIMIT, driver)
        return None
