"""The claims that this node holds, and for which pods (kubelet-manager.md section 5).

A claim enters when the first pod refers to it (the checkpoint is written then, so that a crash leads to
an unprepare), becomes *prepared* when all its drivers have answered, and leaves when its last pod is
gone and all its drivers have unprepared it. No I/O here.

A claim keeps its UID when it is deallocated and allocated anew. What its drivers prepared belongs to the earlier
allocation, so a claim whose allocation differs is refused until it has been unprepared: its pod would run with
devices that are no longer its own.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field

from dra_api.resource import DeviceAllocationResult, DeviceRequestAllocationResult, ResourceClaim

from dra_devcluster.agent.errors import ClaimError
from dra_devcluster.agent.plugins.messages import ClaimRef, PreparedDevice


@dataclass(slots=True)
class ClaimInfo:
    """What the node knows about one claim: the pods that use it, and what each of its drivers prepared.

    ``allocation`` is what the drivers were asked to prepare; None in a checkpoint that does not tell.
    """

    uid: str
    name: str
    namespace: str
    pods: set[str] = field(default_factory=set)
    drivers: dict[str, tuple[PreparedDevice, ...]] = field(default_factory=dict)
    allocation: DeviceAllocationResult | None = None
    prepared: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name: how the cache finds it."""
        return (self.namespace, self.name)

    @property
    def ref(self) -> ClaimRef:
        """How calls of drivers name it."""
        return ClaimRef(self.namespace, self.uid, self.name)

    def is_stale(self, claim: ResourceClaim) -> bool:
        """Whether the claim was allocated anew since the node took hold of it."""
        return claim.metadata.uid == self.uid and self.allocation not in (None, _allocation(claim))


class ClaimCache:
    """The node's claims by namespace and name."""

    def __init__(self, claims: Iterable[ClaimInfo] = ()) -> None:
        self._claims = {claim.key: claim for claim in claims}

    def __iter__(self) -> Iterator[ClaimInfo]:
        return iter(self._claims.values())

    def get(self, namespace: str, name: str) -> ClaimInfo | None:
        """The claim of that name, if the node holds it."""
        return self._claims.get((namespace, name))

    def refer(self, pod_uid: str, claim: ResourceClaim, *, may_be_stale: bool = False) -> ClaimInfo:
        """Note that a pod uses a claim; every driver of its allocation gets an entry (KM-13).

        Raises ClaimError while a claim of the same name and another UID is still held (KM-21), and while the devices of
        an earlier allocation are, unless the claim ``may_be_stale``.
        """
        meta, allocation = claim.metadata, _allocation(claim)
        key = (meta.namespace, meta.name)
        info = self._claims.get(key)
        if info is None:
            info = self._claims[key] = ClaimInfo(meta.uid, meta.name, meta.namespace)
        elif info.uid != meta.uid:
            raise ClaimError(
                f"old ResourceClaim with same name {meta.name} and different UID {info.uid} still exists "
                "(previous pod force-deleted?!)"
            )
        elif info.is_stale(claim) and not may_be_stale:
            raise ClaimError(
                f"ResourceClaim {meta.name} was allocated anew ({_names(allocation)}), but this node still holds "
                f"{_names(info.allocation)}: waiting for the pods that use them to end"
            )
        info.pods.add(pod_uid)
        info.allocation = allocation if info.allocation is None else info.allocation
        for result in results_of(claim):
            info.drivers.setdefault(result.driver, ())
        return info

    def of_pod(self, pod_uid: str) -> list[ClaimInfo]:
        """The claims to which the pod refers."""
        return [claim for claim in self if pod_uid in claim.pods]

    def pods_with(self, driver: str, devices: Container[tuple[str, str]]) -> set[str]:
        """UIDs of the pods whose claims contain one of these devices (pool, device) of the driver (KM-25)."""
        return {
            uid
            for claim in self
            if any((device.pool, device.device) in devices for device in claim.drivers.get(driver, ()))
            for uid in claim.pods
        }

    def pods(self) -> set[str]:
        """UIDs of all pods that refer to a claim."""
        return {uid for claim in self for uid in claim.pods}

    def remove(self, claim: ClaimInfo) -> None:
        """Forget a claim; does nothing if it is gone or its name belongs to another claim."""
        if self._claims.get(claim.key) is claim:
            del self._claims[claim.key]


def results_of(claim: ResourceClaim) -> tuple[DeviceRequestAllocationResult, ...]:
    """The devices that are allocated to the claim."""
    return _allocation(claim).results or ()


def _allocation(claim: ResourceClaim) -> DeviceAllocationResult:
    allocation = claim.status.allocation
    return allocation.devices if allocation is not None else DeviceAllocationResult()


def _names(allocation: DeviceAllocationResult | None) -> str:
    results = allocation.results if allocation is not None else None
    return ", ".join(f"{one.driver}/{one.pool}/{one.device}" for one in results or ()) or "no devices"
