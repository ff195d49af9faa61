"""A ledger that is told of every change at the server, as a watch would, and asked after each one who has what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dra_kube import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_ledger import Ledger
from dra_ledger.basics import DeviceId
from dra_operator.cache import Cluster
from fake_store import key_of
from objects import Obj

from .rest import devices_of

KINDS: Final = {RESOURCE_CLAIMS: "ResourceClaim", RESOURCE_SLICES: "ResourceSlice", DEVICE_CLASSES: "DeviceClass"}


class Bookkeeper:
    """``findings`` has what was ever wrong, each thing once."""

    def __init__(self) -> None:
        self._ledger = Ledger()
        self.findings: dict[str, None] = {}

    def changed(self, event: str, resource: Resource, obj: Obj) -> None:
        """Another state: a claim is among the holders of each of its devices, or has gone from them."""
        if resource not in KINDS:
            return
        named = {"apiVersion": "resource.k8s.io/v1", "kind": KINDS[resource], **obj}
        self._ledger.feed({"type": event, "object": named})
        if resource is RESOURCE_CLAIMS:
            held = self._ledger.holders(obj["metadata"]["namespace"])
            said = {f"{entry.pool}/{entry.name}" for entry, holder in held if holder.key == key_of(obj)}
            has = set(devices_of(obj)) if event != "DELETED" else set()
            if said != has:
                self.findings[f"the ledger says that claim {key_of(obj)} has {said}, not {has}"] = None

    def faults(self, cluster: Cluster) -> Iterator[str]:
        """At rest: where the ledger and the operator differ about devices in use."""
        yield from self.findings
        claims = {claim.metadata.uid: claim.key for claim in cluster.claims}
        held = {
            (str(DeviceId.of(result)), claims.get(uid, uid))
            for uid, allocation in cluster.allocated_devices.holders()
            for result in allocation.results
            if not result.admin_access
        }
        said = {(entry.id, holder.key) for entry, holder in self._ledger.holders()}
        if held != said:
            yield f"the operator says {sorted(held - said)}, the ledger {sorted(said - held)}"
