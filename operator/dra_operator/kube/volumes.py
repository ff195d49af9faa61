"""Writing volumes and claims to them, so that the PV controller and provisioners bind them.

Both writes decide on what the server has at that moment: a volume that got another claim, or a claim that got another
node, is left alone. A repetition finds its own write done and writes nothing. Neither is ever taken back: the PV
controller completes what was begun, whatever becomes of the pod.
"""

from __future__ import annotations

from collections.abc import Callable

from dra_api.codec import convert
from dra_api.meta import Object as Struct
from dra_api.storage import BOUND_BY_CONTROLLER, SELECTED_NODE, PersistentVolume, PersistentVolumeClaim
from dra_kube import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, Object

from .changed import VolumeChanged
from .client import Client
from .rewrite import rewrite


class VolumeWriter:
    """All writes to volumes; every answer goes to ``seen`` at once."""

    def __init__(self, client: Client, seen: Callable[[Struct], None]) -> None:
        self._client, self._seen = client, seen

    async def reserve(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> None:
        """Have this very volume be for the claim and no other. Raises VolumeChanged, NotFound."""

        def edit(raw: Object) -> bool:
            current = convert(PersistentVolume, raw)
            if current.metadata.uid != volume.metadata.uid:
                raise VolumeChanged(f"PersistentVolume {volume.key} was replaced by another one of the same name")
            if current.spec.claim_ref is not None and not current.is_reserved_for(claim):
                raise VolumeChanged(f"PersistentVolume {volume.key} got another claim in the meantime")
            if current.metadata.deletion_timestamp is not None:
                raise VolumeChanged(f"PersistentVolume {volume.key} got deleted in the meantime")
            if current.spec.claim_ref is None:
                raw["metadata"].setdefault("annotations", {})[BOUND_BY_CONTROLLER] = "yes"
            elif current.spec.claim_ref.uid:
                return False
            raw["spec"]["claimRef"] = _reference(claim)
            return True

        raw = await rewrite(self._client, PERSISTENT_VOLUMES, "", volume.metadata.name, edit)
        self._seen(convert(PersistentVolume, raw))

    async def select_node(self, claim: PersistentVolumeClaim, node: str) -> None:
        """Have the class of the claim make a volume for the node. Raises VolumeChanged, NotFound."""
        meta = claim.metadata

        def edit(raw: Object) -> bool:
            current = convert(PersistentVolumeClaim, raw)
            if current.metadata.uid != meta.uid or current.metadata.deletion_timestamp is not None:
                raise VolumeChanged(f"PersistentVolumeClaim {claim.key} got deleted in the meantime")
            selected = (current.metadata.annotations or {}).get(SELECTED_NODE)
            if selected == node or current.spec.volume_name:
                return False
            if selected is not None:
                raise VolumeChanged(f"PersistentVolumeClaim {claim.key} got node {selected} in the meantime")
            raw["metadata"].setdefault("annotations", {})[SELECTED_NODE] = node
            return True

        raw = await rewrite(self._client, PERSISTENT_VOLUME_CLAIMS, meta.namespace, meta.name, edit)
        self._seen(convert(PersistentVolumeClaim, raw))


def _reference(claim: PersistentVolumeClaim) -> Object:
    meta = claim.metadata
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": meta.namespace,
        "name": meta.name,
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
    }
