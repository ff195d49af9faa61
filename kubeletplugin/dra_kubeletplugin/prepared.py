"""The life of a prepared claim on its node: what is asked of the driver, remembered, and given to containers.

Each step leaves a state from which the same call, made again by another process, arrives at the same end::

    prepare                                     unprepare
    1. record "preparing" (allocation, devices) 1. record "unpreparing"
    2. the driver prepares                      2. the driver unprepares
    3. CDI files                                3. CDI files are removed
    4. record "prepared", on disk               4. the record is removed
    5. the answer                               5. the answer

- A record "prepared" of the same allocation answers the call, without the driver; the CDI files are written again.
- After a reboot, and after an interrupted prepare, the driver prepares again.
- The allocation differs: the kubelet has lost the claim it knew, or another instance unprepared it. Only unused claims
  are allocated anew, and a refusal would last until the pod is deleted, so the old allocation is unprepared first. The
  same mends an interrupted unprepare.
- A device that another claim holds since this boot is refused until that claim is unprepared: its containers may still
  run. Administrators' access and different shares of a device do not exclude each other. Of two claims that want it at
  the same instant, even in two instances, the one whose record is written first gets it: nothing comes between looking
  at the other records and writing the own one (``deciding``).
- A device that its pool is no longer published with is refused, unless the claim is prepared: a driver need not know
  which of its devices are gone. ``offers`` tells.
- A record that cannot be read refuses its claim only. Unpreparing removes it, as the driver needs the uid alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any

import msgspec
from dra_api.references import base_request
from dra_api.resource import POD_CLAIM_NAME_ANNOTATION, ResourceClaim
from dra_cdi import CdiError, ContainerEdits
from dra_kube.spans import span

from .allocated import fingerprint, held_devices
from .cdi import CdiFolder
from .checkpoint import ClaimRecord, ClaimRecords, boot_id
from .driver import ClaimRef, Driver, Prepared, PreparedDevice, results_for
from .driver_code import answer_of
from .errors import CheckpointCorrupted, ClaimError, DeviceInUse, DeviceNotPublished, PluginError
from .interceptor import request_id
from .metadata_files import MetadataFiles, with_metadata

log = logging.getLogger(__name__)


class PreparedClaims:
    """Prepares and unprepares claims of the driver ``name``, one call of each claim at a time.

    ``offers`` tells whether a device, by pool and name, is published. While ``deciding`` is held, no other instance
    decides on devices.
    """

    def __init__(
        self,
        driver: Driver,
        name: str,
        records: ClaimRecords,
        cdi: CdiFolder,
        metadata: MetadataFiles | None = None,
        offers: Callable[[str, str], bool] = lambda pool, device: True,
        deciding: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        self._driver = driver
        self._name = name
        self._records = records
        self._cdi = cdi
        self._metadata = metadata
        self._offers = offers
        self._deciding = deciding

    async def prepare(self, claim: ResourceClaim) -> Prepared | Exception:
        """The claim's devices with their CDI ids, or its error."""
        try:
            with span("prepare", claim=claim.key, uid=claim.metadata.uid, driver=self._name, request=request_id.get()):
                return await self._prepare(claim)
        except Exception as error:
            _tell("prepare", claim.key, error)
            return error

    async def unprepare(self, claim: ClaimRef) -> Exception | None:
        """None, or the claim's error."""
        try:
            record = self._records.read(claim.uid)
        except CheckpointCorrupted as error:
            log.warning("claim %s is unprepared without its record: %s", claim, error)
            record = None
        except ClaimError as error:
            return error
        try:
            with span("unprepare", claim=str(claim), uid=claim.uid, driver=self._name, request=request_id.get()):
                await self._undo(record.ref if record else claim, record)
        except Exception as error:
            _tell("unprepare", str(claim), error)
            return error
        return None

    def claims(self) -> list[ClaimRef]:
        """The claims that are prepared."""
        return [record.ref for record in self._records.all().values() if _is_prepared(record)]

    async def update_metadata(self, claim: ClaimRef, request: str, devices: Sequence[PreparedDevice]) -> None:
        """Replace what the metadata of a request say of its devices. Raises ClaimError."""
        record = self._records.read(claim.uid)
        if self._metadata is None:
            raise ClaimError("device metadata are off: set device_metadata in the settings")
        if record is None or not _is_prepared(record):
            raise ClaimError(f"claim {claim} is not prepared on this node")
        changed = with_metadata(record, base_request(request), devices)
        await asyncio.to_thread(self._records.write, changed, durable=True)
        self._metadata.write(changed)

    async def tidy(self, *, sweep: bool) -> None:
        """Bring the CDI files in line with the records, as a process finds them when it starts.

        Files of unknown claims go if ``sweep``: in a new folder of records nothing is known.
        """
        self._records.remove_unfinished()
        records = self._records.all(on_corrupted=lambda error: log.error("%s", error))
        if sweep:
            outdated = {uid for uid, record in records.items() if record.boot_id != boot_id()}
            keep = [uid for uid in self._records.uids() if uid not in outdated]
            self._cdi.sweep(keep=keep)
            if self._metadata:
                self._metadata.sweep(keep=keep)
        for record in records.values():
            if _is_prepared(record):
                try:
                    self._emit(record)
                except (PluginError, CdiError) as error:
                    log.error("claim %s: %s", record.ref, error)

    async def _prepare(self, claim: ResourceClaim) -> Prepared:
        wanted = self._wanted(claim)
        record = self._records.read(wanted.uid)
        if record and _is_prepared(record) and record.fingerprint == wanted.fingerprint:
            return await asyncio.to_thread(self._emit, record)
        if record and (record.fingerprint != wanted.fingerprint or record.phase == "unpreparing"):
            log.warning("claim %s was prepared for another allocation, which is unprepared first", claim.key)
            await self._undo(record.ref, record)
        self._refuse_unpublished(wanted)
        async with self._deciding():
            self._refuse_held(wanted)
            self._records.write(wanted, durable=False)
        with span("driver", claim=claim.key):
            devices = _checked(await answer_of(self._driver.prepare(claim)), claim, self._name)
        prepared = msgspec.structs.replace(wanted, phase="prepared", devices=devices)
        return await asyncio.to_thread(self._finish, prepared)

    def _finish(self, prepared: ClaimRecord) -> Prepared:
        """The CDI files first, so that a record which says "prepared" has them."""
        answer = self._emit(prepared)
        self._records.write(prepared, durable=True)
        return answer

    async def _undo(self, claim: ClaimRef, record: ClaimRecord | None) -> None:
        if record:
            self._records.write(msgspec.structs.replace(record, phase="unpreparing"), durable=False)
        with span("driver", claim=str(claim)):
            answer: object = await answer_of(self._driver.unprepare(claim))
        if answer is not None:
            raise ClaimError(f"the driver's unprepare returned {answer!r}: return nothing, and raise what failed")
        await asyncio.to_thread(self._forget, claim.uid)

    def _forget(self, uid: str) -> None:
        self._cdi.remove(uid)
        if self._metadata:
            self._metadata.remove(uid)
        self._records.remove(uid)

    def _wanted(self, claim: ResourceClaim) -> ClaimRecord:
        return ClaimRecord(
            uid=claim.metadata.uid,
            namespace=claim.metadata.namespace,
            name=claim.metadata.name,
            boot_id=boot_id(),
            fingerprint=fingerprint(self._name, claim),
            phase="preparing",
            holds=held_devices(self._name, claim),
            pod_claim_name=(claim.metadata.annotations or {}).get(POD_CLAIM_NAME_ANNOTATION, ""),
        )

    def _refuse_unpublished(self, wanted: ClaimRecord) -> None:
        for device in wanted.holds:
            if not self._offers(device.pool, device.device):
                raise DeviceNotPublished(device.pool, device.device)

    def _refuse_held(self, wanted: ClaimRecord) -> None:
        for other in self._records.all().values():
            if other.uid == wanted.uid or other.boot_id != wanted.boot_id:
                continue
            for device in wanted.holds:
                if any(device.excludes(held) for held in other.holds):
                    raise DeviceInUse(device.pool, device.device, str(other.ref), self._records.path(other.uid))

    def _emit(self, record: ClaimRecord) -> Prepared:
        """Write the files of a record; returns its devices with the ids."""
        mounts = self._metadata.write(record) if self._metadata else {}
        return [
            self._written(
                record.uid, index, device, (device.edits or ContainerEdits()) + mounts.get(index, ContainerEdits())
            )
            for index, device in enumerate(record.devices)
        ]

    def _written(self, uid: str, index: int, device: PreparedDevice, edits: ContainerEdits) -> PreparedDevice:
        if not edits:
            return device
        part = "-".join([*(base_request(request) for request in device.requests[:1]), str(index)])
        return replace(device, cdi_ids=(self._cdi.write(uid, part, edits), *device.cdi_ids))


def _is_prepared(record: ClaimRecord) -> bool:
    """Whether the claim was prepared since the last boot."""
    return record.phase == "prepared" and record.boot_id == boot_id()


def _checked(devices: Any, claim: ResourceClaim, driver: str) -> tuple[PreparedDevice, ...]:
    """What the driver returned. Raises ClaimError, which names the device and what would be right."""
    if not isinstance(devices, Iterable) or isinstance(devices, str | Mapping):
        raise ClaimError(f"the driver's prepare returned {devices!r}: return a list of PreparedDevice")
    allocated: dict[tuple[str, str], set[str]] = {}
    for result in results_for(driver, claim):
        allocated.setdefault((result.pool, result.device), set()).add(base_request(result.request))
    found = tuple(devices)
    for device in found:
        if not isinstance(device, PreparedDevice):
            raise ClaimError(f"the driver's prepare returned {device!r} as a device: use PreparedDevice.of(result)")
        requests = allocated.get((device.pool, device.device))
        if requests is None:
            raise ClaimError(
                f"the driver's prepare returned the device {device.device} of pool {device.pool}, which is not "
                "allocated to the claim: return those of results_for(...)"
            )
        if unknown := {base_request(name) for name in device.requests} - requests:
            raise ClaimError(
                f"the driver's prepare returned the device {device.device} for the request {min(unknown)}, which it "
                "was not allocated for: use PreparedDevice.of(result)"
            )
    return found


def _tell(call: str, claim: str, error: Exception) -> None:
    """Log the error of a claim; with its trace unless it is meant for the kubelet."""
    log.warning(
        "%s of claim %s: %s", call, claim, error, exc_info=None if isinstance(error, PluginError | CdiError) else error
    )
