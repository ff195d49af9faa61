"""Which PersistentVolumeClaims a pod uses: those that it names, and those that are made for its ephemeral volumes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dra_api.core import Pod
from dra_api.storage import PersistentVolumeClaim


class VolumeUse(NamedTuple):
    """One volume of a pod that is a claim. ``is_ephemeral``: kube-controller-manager makes it, and the pod owns it."""

    namespace: str
    name: str
    is_ephemeral: bool

    @property
    def key(self) -> str:
        """``namespace/name`` of the claim."""
        return f"{self.namespace}/{self.name}"


def volume_uses(pod: Pod) -> Iterator[VolumeUse]:
    """In the order of ``spec.volumes``. The claim of an ephemeral volume is named after pod and volume."""
    for volume in pod.spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            yield VolumeUse(pod.metadata.namespace, volume.persistent_volume_claim.claim_name, is_ephemeral=False)
        elif volume.ephemeral is not None:
            yield VolumeUse(pod.metadata.namespace, f"{pod.metadata.name}-{volume.name}", is_ephemeral=True)


def is_made_for(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    """Whether the claim was made for an ephemeral volume of this very pod, and not for another one of its name."""
    owner = claim.metadata.controller
    return owner is not None and owner.uid == pod.metadata.uid
