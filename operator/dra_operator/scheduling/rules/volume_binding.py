"""Claims of volumes that are bound when their first consumer has a node (kube-scheduler's VolumeBinding).

The class of such a claim says ``WaitForFirstConsumer``. A node can be used if a free volume fits, or if the class can
provision one there. The PV controller and the provisioner of the class do the binding. Each claim gets the smallest
volume that suffices, smallest claims first, so that large volumes are left for large claims.

Once a node was selected for a claim (annotation), or a volume reserved for it, the claim is tied to them: another pod,
or an earlier attempt for this one, has begun the binding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from dra_api.core import Node
from dra_api.selectors import Selector
from dra_api.storage import (
    SELECTED_NODE,
    ClaimReference,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    TopologyTerm,
)
from dra_api.values import Quantity
from msgspec.structs import replace

from dra_operator.allocator import NodeSelectionError, node_selectors
from dra_operator.scheduling.state.large import has_lost_selector
from dra_operator.scheduling.state.obstacle import Obstacle, Reason

WAIT_FOR_FIRST_CONSUMER: Final = "WaitForFirstConsumer"
NO_PROVISIONER: Final = frozenset({"", "kubernetes.io/no-provisioner"})
VOLUME_BINDING: Final = Reason(
    "volume-binding", "node(s) didn't find available persistent volumes to bind", is_about_volumes=True
)
VOLUME_SPACE: Final = Reason("volume-space", "node(s) did not have enough free storage", is_about_volumes=True)
SELECTOR_SET_ASIDE: Final = Reason(
    "volume-selector",
    "the selector of a persistent volume claim is not kept, since its namespace has more large objects than "
    "dra-operator keeps in memory: shorten the selector",
    is_about_volumes=True,
)
_NO_VOLUME: Final = Obstacle(VOLUME_BINDING)
_NO_SELECTOR: Final = Obstacle(SELECTOR_SET_ASIDE)


@dataclass(frozen=True, slots=True)
class Bindings:
    """Volumes for a pod's unbound claims on one node: existing ones, each with its claim, and claims to provision."""

    reserve: tuple[tuple[PersistentVolumeClaim, PersistentVolume], ...] = ()
    provision: tuple[PersistentVolumeClaim, ...] = ()


NO_BINDINGS: Final = Bindings()


@dataclass(frozen=True)
class UnboundClaim:
    """``volumes`` are those of its class. ``capacities``: see ``Storage.capacities``."""

    claim: PersistentVolumeClaim
    storage_class: StorageClass
    volumes: tuple[PersistentVolume, ...]
    capacities: Sequence[CSIStorageCapacity] | None = None

    @property
    def selected_node(self) -> str | None:
        """The node for which its volume is being provisioned, or None."""
        return (self.claim.metadata.annotations or {}).get(SELECTED_NODE)

    @cached_property
    def size(self) -> int:
        """The requested storage, in billionths of a byte."""
        return _storage(self.claim.spec.resources.requests)

    @cached_property
    def reserved(self) -> PersistentVolume | None:
        """The volume that is reserved for this claim, or None."""
        return next((it for it in self._fitting if it.spec.claim_ref is not None), None)

    @cached_property
    def free(self) -> tuple[PersistentVolume, ...]:
        """The free volumes that fit, the smallest first."""
        # No selector selects every volume; an empty one as well.
        selector = self.claim.spec.selector
        selects = Selector.of(selector).matches if selector is not None else lambda _: True
        modes = set(self.claim.spec.access_modes or ())
        free = (it for it in self._fitting if it.spec.claim_ref is None and it.status.phase == "Available")
        fit = [it for it in free if selects(it.metadata.labels or {}) and modes.issubset(it.spec.access_modes or ())]
        # The smallest first, so that large volumes are left for large claims; by name among equals.
        return tuple(sorted(fit, key=lambda it: (_storage(it.spec.capacity), it.metadata.name)))

    @cached_property
    def _fitting(self) -> tuple[PersistentVolume, ...]:
        spec = self.claim.spec
        return tuple(
            it
            for it in self.volumes
            if (it.spec.claim_ref is None or it.is_reserved_for(self.claim))
            and _storage(it.spec.capacity) >= self.size
            and (it.spec.volume_mode or "Filesystem") == (spec.volume_mode or "Filesystem")
            and (it.spec.volume_attributes_class_name or "") == (spec.volume_attributes_class_name or "")
            and it.metadata.deletion_timestamp is None
        )

    def after(self, taken: Mapping[str, ClaimReference], nodes: Mapping[str, str]) -> UnboundClaim:
        """Return the claim after reservations of volumes, by name, and selections of nodes, by key of the claim."""
        node = nodes.get(self.claim.key)
        claim = self.claim if node is None else with_node(self.claim, node)
        named = ((it, taken.get(it.metadata.name)) for it in self.volumes)
        volumes = tuple(it if ref is None else with_claim(it, ref) for it, ref in named)
        # A new object, since what fits is worked out once and kept.
        return UnboundClaim(claim, self.storage_class, volumes, self.capacities)

    def volume_on(self, node: Node, taken: Iterable[str]) -> PersistentVolume | None:
        """Return an existing volume for the node that is not among ``taken``, or None."""
        # The PV controller binds the claim to this volume, wherever the pod goes.
        if self.reserved is not None:
            return self.reserved if allows(self.reserved, node) else None
        return next((it for it in self.free if it.metadata.name not in taken and allows(it, node)), None)

    def may_be_made_on(self, node: Node) -> bool:
        """Return whether the class can provision a volume for the node."""
        # Without the field the provisioner may make a volume anywhere.
        topologies = self.storage_class.allowed_topologies
        return self.storage_class.provisioner not in NO_PROVISIONER and (
            not topologies or any(_is_met(term, node) for term in topologies)
        )

    def has_room_on(self, node: Node) -> bool:
        """Return whether the driver has capacity for the volume there. A driver that publishes none is assumed to."""
        # The driver says nothing, so kube-scheduler does not ask either: provisioning may fail, and the pod is placed
        # anew.
        if self.capacities is None or not self.size:
            return True
        return any(_room(it) >= self.size and _reaches(it, node) for it in self.capacities)


def with_node(claim: PersistentVolumeClaim, node: str) -> PersistentVolumeClaim:
    """Return the claim with the node selected for it, unless it has one."""
    # The claim's own annotation wins: a node that was selected once is the provisioner's to give up.
    annotations = {SELECTED_NODE: node, **(claim.metadata.annotations or {})}
    return replace(claim, metadata=replace(claim.metadata, annotations=annotations))


def with_claim(volume: PersistentVolume, claim: ClaimReference) -> PersistentVolume:
    """Return the volume reserved for the claim, unless it is reserved."""
    if volume.spec.claim_ref is not None:
        return volume
    return replace(volume, spec=replace(volume.spec, claim_ref=claim))


def reference(claim: PersistentVolumeClaim) -> ClaimReference:
    return ClaimReference(claim.metadata.namespace, claim.metadata.name, claim.metadata.uid)


def bindings_on(node: Node, claims: Sequence[UnboundClaim]) -> Bindings | Obstacle:
    """Return the volumes of the claims on the node, or an obstacle. ``claims`` are sorted by size."""
    reserve: list[tuple[PersistentVolumeClaim, PersistentVolume]] = []
    provision: list[PersistentVolumeClaim] = []
    taken: set[str] = set()
    for it in claims:
        # Its provisioner is at work for another node, and only the provisioner may take the annotation back.
        if it.selected_node is not None and it.selected_node != node.metadata.name:
            return _NO_VOLUME
        # With a selected node an existing volume must not be taken as well, or the claim might get two.
        volume = it.volume_on(node, taken) if it.selected_node is None else None
        if volume is not None:
            taken.add(volume.metadata.name)
            reserve.append((it.claim, volume))
        elif not it.may_be_made_on(node):
            return _NO_SELECTOR if has_lost_selector(it.claim) else _NO_VOLUME
        elif not it.has_room_on(node):
            return Obstacle(VOLUME_SPACE)
        else:
            provision.append(it.claim)
    return Bindings(tuple(reserve), tuple(provision))


def allows(volume: PersistentVolume, node: Node) -> bool:
    """Return whether the volume can be used on the node. A malformed affinity allows no node."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return True
    try:
        # Other drivers write volumes, and a pod that waits is better than one on a node that cannot mount.
        terms = node_selectors.parse(affinity.required)
    except NodeSelectionError:
        return False
    return any(term.matches(node.metadata.labels or {}, {}) for term in terms)


def _storage(amounts: Mapping[str, Quantity] | None) -> int:
    amount = (amounts or {}).get("storage")
    return amount.nanos if amount is not None else 0


def _room(capacity: CSIStorageCapacity) -> int:
    """Return the size of the largest possible volume: maximumVolumeSize, or else capacity; -1 without both."""
    # The total says nothing if it lies in several pieces, so the largest possible volume counts where it is known.
    room = capacity.maximum_volume_size or capacity.capacity
    return room.nanos if room is not None else -1


def _reaches(capacity: CSIStorageCapacity, node: Node) -> bool:
    return Selector.of(capacity.node_topology).matches(node.metadata.labels or {})


def _is_met(term: TopologyTerm, node: Node) -> bool:
    """Return whether the node meets the term. No node meets a term without expressions."""
    wanted, labels = term.match_label_expressions, node.metadata.labels or {}
    return bool(wanted) and all(labels.get(it.key) in (it.values or ()) for it in wanted or ())
