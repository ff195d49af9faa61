"""The volumes that CSI drivers attach to a node.

The claims that pods use are amounts like cpu, so they count with what a pod takes of its node, from the moment that the
node is decided. A claim without a volume stands for the one that its class will make.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from dra_api.core import Pod
from dra_api.relations.volumes import volume_uses
from dra_api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from dra_api.values.quantity import NANO

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


def volume_amounts(pod: Pod) -> dict[str, int]:
    """What the pod takes of its node, by the claims that it uses."""
    return {f"{_CLAIM}{use.key}": NANO for use in volume_uses(pod)}


def claims_in(used: Iterable[str]) -> list[str]:
    """The claims among the names of amounts, by ``namespace/name``."""
    return [name.removeprefix(_CLAIM) for name in used if name.startswith(_CLAIM)]


def attachable(claims: Iterable[str], storage: AttachedVolumes) -> Iterator[Attachable]:
    """The volumes of these claims that a driver attaches."""
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
