"""The claim checkpoint: which claims this node holds, in the file format of the kubelet (KM-11).

The file is JSON around JSON text: the inner text is covered by a checksum, so a torn or edited file is
noticed. It is written to a temporary file and renamed, so a reader never sees half of it. The file does not say whether
a claim is *prepared*, so that drivers are called again after a restart.

One field is ours: ``Allocation``, the devices and configuration that the claim had when the node took hold of it. A
kubelet ignores it, and a kubelet's file has none.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dra_api.codec import convert, to_dict
from dra_api.resource import DeviceAllocationResult

from dra_devcluster.agent.errors import CheckpointCorrupted
from dra_devcluster.agent.files import write_whole
from dra_devcluster.agent.plugins.messages import PreparedDevice

from .claim_info import ClaimInfo

API_VERSION = "checkpoint.dra.kubelet.k8s.io/v1"
FILE_NAME = "dra_manager_state"
_LARGEST_FILE_BYTES = 64 * 2**20


def encode(claims: Iterable[ClaimInfo]) -> bytes:
    """The content of a checkpoint file."""
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
    """The checkpoint on disk."""

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
