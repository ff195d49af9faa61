"""The claims of this node: which pods they are for, in memory and in a file (KM-11).

A claim enters when the first pod refers to it. The checkpoint is written then, so that a crash leads to an unprepare.
The claim becomes *prepared* when all its drivers have answered. It leaves when its last pod is gone and all its drivers
have unprepared it (kubelet-manager.md section 5). The cache does no I/O.

A claim keeps its UID when it is deallocated and allocated anew. The devices that its drivers prepared belong to the
earlier allocation. So a claim whose allocation differs is refused until it has been unprepared: its pod would run with
devices that are no longer its own.

The file has the format of the kubelet: JSON around JSON text. A checksum covers the inner text, so a torn or edited
file is noticed. It is written to a temporary file and renamed, so a reader never sees half of it. The file does not say
whether a claim is *prepared*, so drivers are called again after a restart. One field is ours: ``Allocation``, the
devices and configuration that the claim had when it entered. A kubelet ignores it, and a kubelet's file has none.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_api.codec import convert, to_dict
from dra_api.resource import DeviceAllocationResult, DeviceRequestAllocationResult, ResourceClaim

from dra_devcluster.agent.errors import CheckpointCorrupted, ClaimError
from dra_devcluster.agent.plugins.plugin import ClaimRef, PreparedDevice
from dra_devcluster.agent.settings import write_whole

API_VERSION = "checkpoint.dra.kubelet.k8s.io/v1"
FILE_NAME = "dra_manager_state"
_LARGEST_FILE_BYTES = 64 * 2**20


def encode(claims: Iterable[ClaimInfo]) -> bytes:
    data = json.dumps(
        {
            "kind": "DRACheckpoint",
            "apiVersion": API_VERSION,
            "ClaimInfoStateList": [_claim_to_json(claim) for claim in claims],
        },
        separators=(",", ":"),
        ensure_ascii=False,
    )
    checksum = zlib.crc32(data.encode())
    return json.dumps({"Data": data, "Checksum": checksum}, separators=(",", ":"), ensure_ascii=False).encode()


def decode(content: bytes) -> list[ClaimInfo]:
    """The claims of a checkpoint file; unknown and missing fields are tolerated. Raises CheckpointCorrupted."""
    try:
        envelope = json.loads(content)
        data: str = envelope["Data"]
        checksum = zlib.crc32(data.encode())
        if envelope["Checksum"] != checksum:
            raise CheckpointCorrupted(
                f"checkpoint is corrupted: checksum is {envelope['Checksum']}, content has {checksum}"
            )
        return [_claim_from_json(entry) for entry in json.loads(data).get("ClaimInfoStateList") or ()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointCorrupted(f"checkpoint is corrupted: {error!r}") from error


class CheckpointFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> list[ClaimInfo]:
        """The claims; a missing file is created empty. Raises CheckpointCorrupted with the remedy."""
        try:
            with self.path.open("rb") as file:
                content = file.read(_LARGEST_FILE_BYTES + 1)
        except FileNotFoundError:
            self.store(())
            return []
        try:
            if len(content) > _LARGEST_FILE_BYTES:
                raise CheckpointCorrupted(f"checkpoint is corrupted: it is larger than {_LARGEST_FILE_BYTES >> 20} MiB")
            return decode(content)
        except CheckpointCorrupted as error:
            raise CheckpointCorrupted(
                f"{self.path}: {error}; drain the node, remove this file, and start again"
            ) from error

    def store(self, claims: Iterable[ClaimInfo]) -> None:
        """Replace the file in one step. Raises OSError."""
        write_whole(self.path, encode(claims))


def _claim_to_json(claim: ClaimInfo) -> dict[str, Any]:
    known = {} if claim.allocation is None else {"Allocation": to_dict(claim.allocation)}
    return known | {
        "ClaimUID": claim.uid,
        "ClaimName": claim.name,
        "Namespace": claim.namespace,
        "PodUIDs": {uid: {} for uid in sorted(claim.pods)},
        "DriverState": {
            driver: {"Devices": [_device_to_json(device) for device in devices]}
            for driver, devices in sorted(claim.drivers.items())
        },
    }


def _device_to_json(device: PreparedDevice) -> dict[str, Any]:
    return {
        "PoolName": device.pool,
        "DeviceName": device.device,
        "ShareID": device.share_id,
        "RequestNames": list(device.requests) or None,
        "CDIDeviceIDs": list(device.cdi_ids) or None,
    }


def _claim_from_json(entry: dict[str, Any]) -> ClaimInfo:
    allocation = entry.get("Allocation")
    return ClaimInfo(
        uid=entry.get("ClaimUID") or "",
        name=entry.get("ClaimName") or "",
        namespace=entry.get("Namespace") or "",
        pods=set(entry.get("PodUIDs") or ()),
        drivers={
            driver: tuple(_device_from_json(device) for device in (state or {}).get("Devices") or ())
            for driver, state in (entry.get("DriverState") or {}).items()
        },
        allocation=None if allocation is None else convert(DeviceAllocationResult, allocation),
    )


def _device_from_json(entry: dict[str, Any]) -> PreparedDevice:
    return PreparedDevice(
        pool=entry.get("PoolName") or "",
        device=entry.get("DeviceName") or "",
        share_id=entry.get("ShareID"),
        requests=tuple(entry.get("RequestNames") or ()),
        cdi_ids=tuple(entry.get("CDIDeviceIDs") or ()),
    )


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
        return {uid for claim in self for uid in claim.pods}

    def remove(self, claim: ClaimInfo) -> None:
        """Forget a claim; does nothing if it is gone or its name belongs to another claim."""
        if self._claims.get(claim.key) is claim:
            del self._claims[claim.key]


def results_of(claim: ResourceClaim) -> tuple[DeviceRequestAllocationResult, ...]:
    return _allocation(claim).results or ()


def _allocation(claim: ResourceClaim) -> DeviceAllocationResult:
    allocation = claim.status.allocation
    return allocation.devices if allocation is not None else DeviceAllocationResult()


def _names(allocation: DeviceAllocationResult | None) -> str:
    results = allocation.results if allocation is not None else None
    return ", ".join(f"{one.driver}/{one.pool}/{one.device}" for one in results or ()) or "no devices"
