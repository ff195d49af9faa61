"""CSI drivers attach only so many volumes to a node (kube-scheduler's NodeVolumeLimits).

The claims that pods use are amounts like cpu, so they come and go with what a pod takes of its node, from the moment
that the node is decided. A volume counts once, however many pods of the node use it. A volume that is still attached,
although no pod of the node uses it, counts too. A claim without a volume stands for the one that its class will make.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from dra_api.core import Pod
from dra_api.quantity import NANO
from dra_api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from dra_api.volumes import volume_uses

from .obstacle import Obstacle, ObstacleKind

_CLAIM: Final = "volume of claim "


class Attachable(NamedTuple):
    """A volume of a CSI driver."""

    driver: str
    handle: str


class AttachedVolumes(Protocol):
    """What nodes have, and the look-ups that lead from a claim to its volume."""

    def claim(self, key: str) -> PersistentVolumeClaim | None:
        """By ``namespace/name``."""
        ...

    def volume(self, name: str) -> PersistentVolume | None:
        """By name."""
        ...

    def storage_class(self, name: str) -> StorageClass | None:
        """By name."""
        ...

    def attach_limits(self, node: str) -> Mapping[str, int]:
        """How many volumes each driver attaches to the node; none for drivers without limit."""
        ...

    def attachments(self, node: str) -> Iterable[Attachable]:
        """The volumes that are attached to the node, or are being attached or detached."""
        ...


@dataclass(frozen=True, slots=True)
class AttachLimits:
    """``wanted`` are the volumes of one pod."""

    wanted: frozenset[Attachable]
    storage: AttachedVolumes

    @classmethod
    def of(cls, pod: Pod, storage: AttachedVolumes) -> AttachLimits:
        """The pod's volumes that drivers attach."""
        return cls(frozenset(_attachable((use.key for use in volume_uses(pod)), storage)), storage)

    def obstacle(self, node: str, used: Mapping[str, int]) -> Obstacle | None:
        """A driver that would have to attach too many volumes to the node. ``used``: see ``volume_amounts``."""
        drivers = {it.driver for it in self.wanted}
        limits = {name: most for name, most in self.storage.attach_limits(node).items() if name in drivers}
        claims = [name.removeprefix(_CLAIM) for name in used if name.startswith(_CLAIM)]
        attachments = frozenset(self.storage.attachments(node)) if limits else frozenset()
        if len(claims) + len(attachments) + len(self.wanted) <= min(limits.values(), default=math.inf):
            return None  # whatever the claims are
        in_use = frozenset(_attachable(claims, self.storage))
        attached = in_use | attachments
        new = self.wanted - in_use
        for driver in sorted({it.driver for it in new} & limits.keys()):
            there, more = (sum(it.driver == driver for it in volumes) for volumes in (attached, new))
            if there + more > limits[driver]:
                return Obstacle(ObstacleKind.VOLUME_LIMIT, driver)
        return None


def volume_amounts(pod: Pod) -> dict[str, int]:
    """What the pod takes of its node, by the claims that it uses."""
    return {f"{_CLAIM}{use.key}": NANO for use in volume_uses(pod)}


def _attachable(claims: Iterable[str], storage: AttachedVolumes) -> Iterator[Attachable]:
    for key in claims:
        claim = storage.claim(key)
        if claim is None:
            continue
        volume = storage.volume(claim.spec.volume_name)
        if volume is not None:
            if volume.spec.csi is not None:
                yield Attachable(volume.spec.csi.driver, volume.spec.csi.volume_handle)
        elif (found := storage.storage_class(claim.storage_class)) is not None:
            yield Attachable(found.provisioner, f"to be made for {key}")
