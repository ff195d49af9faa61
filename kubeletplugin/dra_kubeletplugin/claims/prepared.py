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
- A device that another claim holds is refused (``conflicts.py``), and one that draws from counters of which devices of
  other claims leave too little. Of two claims that want it at the same instant, even in two instances, the one whose
  record is written first gets it: nothing comes between looking at the other records and writing the own one
  (``deciding``). What the driver's answer owns is decided in the same way between 2 and 3, and between all drivers of
  the node (``HostParts``).
- A device that its pool is no longer published with is refused, unless the claim is prepared: a driver need not know
  which of its devices are gone. ``offers`` tells.
- A record that cannot be read refuses its claim only. Unpreparing removes it, as the driver needs the uid alone; but
  not one of a newer version.
- Unpreparing needs no room on the disk: without the record "unpreparing" it goes on. Nor does withdrawing CDI files:
  without room for the record, this process keeps it in memory.
- A prepared claim keeps its CDI files while a write fails, for want of room or of descriptors: only files that differ
  are written, and only an unprepared claim loses those that are there.
- Devices may change while their claims are prepared (``prepare_again``). An answer that is another one replaces the
  files; a claim that cannot be prepared loses its CDI files, so that no container starts with them, and its record says
  "preparing" until one of the next attempts succeeds. What the devices owned before is given to no new claim. A claim
  whose record cannot be read may have any device, so it loses its CDI files as well. A claim is new until a kubelet has
  the answer: if that call was given up, and the devices have changed since, its next call begins anew. The record says
  ``unanswered`` until shortly after, since a process may be killed before. The next process does not know whether the
  claim has containers: it gets no part that others had, and others get no part that it had.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

import msgspec
from dra_api.codec import decode, encode
from dra_api.references import base_request
from dra_api.resource import POD_CLAIM_NAME_ANNOTATION, ResourceClaim
from dra_cdi import CdiError
from dra_kube.spans import span

from dra_kubeletplugin.driver import (
    ClaimRef,
    Driver,
    Prepared,
    PreparedDevice,
    PrepareResults,
    all_prepared_by,
    answer_of,
    prepared_by,
    text_of,
)
from dra_kubeletplugin.errors import (
    CheckpointCorrupted,
    CheckpointNewer,
    ClaimError,
    DeviceNotPublished,
    PluginError,
)
from dra_kubeletplugin.files.checkpoint import ClaimRecords, boot_id
from dra_kubeletplugin.files.claim_files import ClaimFiles, with_metadata
from dra_kubeletplugin.files.claim_record import ClaimRecord
from dra_kubeletplugin.kubelet import request_id

from .conflicts import Conflicts, Counters, fingerprint, held_devices, own_part, with_answer

log = logging.getLogger(__name__)

_CHANGED_CLAIMS = 8
"""Claims that are looked at beside each other, whether they or their files have changed."""
_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT})

Result = TypeVar("Result")


class InTurn(Protocol):
    """Runs work when nothing else works on the claims."""

    async def __call__(self, uids: Collection[str], work: Callable[[], Awaitable[Result]], /) -> Result:
        """Return the result of ``work``."""


async def _at_once(_uids: Collection[str], work: Callable[[], Awaitable[Result]]) -> Result:
    return await work()


class PreparedClaims:
    """Prepares and unprepares claims of the driver ``name``, one call of each claim at a time.

    ``offers`` tells whether a device, by pool and name, is published, and ``counters`` what a pool is published with.
    While ``deciding`` is held, no other instance decides on devices. It gives the number of the turn, if nobody else
    works on claims in that.
    """

    def __init__(  # noqa: PLR0913  # one caller, which has them all
        self,
        driver: Driver,
        name: str,
        records: ClaimRecords,
        files: ClaimFiles,
        offers: Callable[[str, str], bool] = lambda pool, device: True,
        deciding: Callable[[], AbstractAsyncContextManager[int | None]] = nullcontext,
        counters: Counters = lambda pool: None,
        node: str = "",
    ) -> None:
        self._driver = driver
        self._name = name
        self._records = records
        self._conflicts = Conflicts(records, node)
        self._files = files
        self._offers = offers
        self._deciding = deciding
        self._counters = counters
        self._node = node
        self._new: set[str] = set()  # claims that this process has begun, of which no kubelet has an answer
        self._given_up: set[str] = set()  # those of them whose call was given up: they have no containers
        self._arrived: set[str] = set()  # claims of which a kubelet has the answer, and no record says so yet

    async def load(self) -> None:
        """Read what is prepared on the node before a call asks for it. Raises ClaimError."""
        await self._conflicts.load()

    def answered(self, results: PrepareResults) -> None:
        """Take note that a kubelet has these: containers may run."""
        uids = {uid for uid, result in results.items() if not isinstance(result, Exception)}
        self._new -= uids
        self._given_up -= uids
        self._arrived |= uids

    def record_answered(self, uids: Iterable[str]) -> None:
        """Record, in a turn of the claims, of which ones a kubelet has the answer.

        Without room for the record this process knows it. The next one takes the claim for new then, and keeps all that
        it may have from others.
        """
        for uid in self._arrived.intersection(uids):
            error: ClaimError | None = None
            try:
                record = self._records.read(uid)
                if record and record.unanswered:
                    error = self._records.write_or_keep(msgspec.structs.replace(record, unanswered=False))
                self._arrived.discard(uid)
            except ClaimError as unreadable:
                error = unreadable
            if error:
                log.warning("claim with the uid %s is answered without recording that: %s", uid, error)

    def _read(self, uid: str) -> ClaimRecord | None:
        """Return the record of a claim as this process knows it. Raises ClaimError."""
        record = self._records.read(uid)
        if record and record.unanswered and uid in self._arrived:
            return msgspec.structs.replace(record, unanswered=False)
        return record

    def given_up(self, uids: Iterable[str]) -> None:
        """Take note that the kubelet has given up a call: claims that are being prepared first have no containers."""
        self._given_up |= self._new.intersection(uids)

    async def prepare(self, claim: ResourceClaim) -> Prepared | Exception:
        """The claim's devices with their CDI ids, or its error."""
        try:
            with span("prepare", claim=claim.key, uid=claim.metadata.uid, driver=self._name, request=request_id.get()):
                return await self._prepare(claim)
        except Exception as error:
            _tell("prepare", claim.key, error)
            return error

    @property
    def together(self) -> bool:
        """Whether the driver prepares the claims of a call together."""
        return type(self._driver).prepare_all is not Driver.prepare_all

    async def prepare_all(self, claims: Sequence[ResourceClaim]) -> PrepareResults:
        """The devices of each claim with their CDI ids, or its error; the driver is asked once for all."""
        results: dict[str, Prepared | Exception] = {}
        begun: dict[str, tuple[ResourceClaim, ClaimRecord]] = {}
        for claim in claims:
            try:
                found = await self._begin(claim)
                if isinstance(found, ClaimRecord):
                    begun[claim.metadata.uid] = claim, found
                else:
                    results[claim.metadata.uid] = found
            except Exception as error:
                _tell("prepare", claim.key, error)
                results[claim.metadata.uid] = error
        if not begun:
            return results
        with span("driver", claim=", ".join(claim.key for claim, _ in begun.values())):
            answers = await all_prepared_by(self._driver, self._name, [claim for claim, _ in begun.values()])
        for uid, (claim, record) in begun.items():
            answer = answers[uid]
            try:
                if isinstance(answer, Exception):
                    raise answer
                results[uid] = await self._finish(with_answer(record, answer))
            except Exception as error:
                _tell("prepare", claim.key, error)
                results[uid] = error
        return results

    async def unprepare(self, claim: ClaimRef) -> Exception | None:
        """None, or the claim's error."""
        try:
            record = self._records.read(claim.uid)
        except CheckpointNewer as error:
            return error
        except CheckpointCorrupted as error:
            log.warning("unpreparing claim %s without its record: %s", claim, error)
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
        boot = boot_id()  # read once: it is a file
        return [record.ref for record in self._records.all().values() if _is_prepared(record, boot)]

    async def update_metadata(self, claim: ClaimRef, request: str, devices: Sequence[PreparedDevice]) -> None:
        """Replace what the metadata of a request say of its devices. Raises ClaimError."""
        record = self._records.read(claim.uid)
        if not self._files.metadata.versions:
            raise ClaimError("device metadata are off: set device_metadata in the settings")
        if record is None or not _is_prepared(record):
            raise ClaimError(f"claim {claim} is not prepared on this node")
        changed = with_metadata(record, base_request(request), devices)
        await asyncio.to_thread(self._records.write, changed, durable=True)
        self._files.metadata.write(changed)

    def holders(self, devices: Collection[str], pool: str) -> list[str]:
        """The uids of claims that hold one of the devices, of those that are withdrawn, and of damaged records."""
        damaged: list[str] = []
        records = self._records.all(on_corrupted=lambda error: damaged.append(error.path.stem))
        wanted, boot = {(pool, device) for device in devices}, boot_id()
        found = (
            record.uid
            for record in records.values()
            if record.boot_id == boot
            and (_is_withdrawn(record, boot) or any((held.pool, held.device) in wanted for held in record.holds))
        )
        return sorted([*found, *damaged])

    async def prepare_again(self, uids: Collection[str], in_turn: InTurn | None = None) -> None:
        """Prepare those of the claims again that are prepared, or withdrawn.

        First nothing is left that says otherwise than the driver does now, then the new answers are written: of two
        devices that changed places each gets what the other one had. ``in_turn`` runs work on some of the claims when
        nothing else works on these. Raises the first of its errors, when all is done that could be.
        """
        in_turn = in_turn or _at_once
        few = asyncio.Semaphore(_CHANGED_CLAIMS)

        async def changed(uid: str) -> tuple[ClaimRecord, tuple[PreparedDevice, ...]] | None:
            async with few:
                return await in_turn([uid], partial(self._changed, uid))

        # Each claim in a turn of its own: one at which the driver works for a minute keeps no other claim's containers
        # from losing a device that is not theirs any more.
        found = await asyncio.gather(*map(changed, uids), return_exceptions=True)
        answers = {each[0].uid: each for each in found if isinstance(each, tuple)}
        if answers:
            await in_turn(list(answers), partial(self._finish_changed, answers))
        for error in found:
            if isinstance(error, BaseException):
                raise error

    async def _changed(self, uid: str) -> tuple[ClaimRecord, tuple[PreparedDevice, ...]] | None:
        """The record and what the driver answers now, if that is something else; what was answered is withdrawn."""
        try:
            return await self._other_answer(uid)
        except Exception as error:  # the next ones must be withdrawn all the same
            _tell("prepare", f"with the uid {uid}", error)
            return None

    async def _other_answer(self, uid: str) -> tuple[ClaimRecord, tuple[PreparedDevice, ...]] | None:
        try:
            record = self._read(uid)
        except CheckpointNewer:
            return None  # it may be right
        except CheckpointCorrupted as error:
            if await asyncio.to_thread(self._files.withdraw, uid):
                log.error("the CDI files of a claim are withdrawn, since its devices may have changed: %s", error)
            return None
        if record is None or not record.allocated or not (_is_prepared(record) or _is_withdrawn(record)):
            return None
        if _is_withdrawn(record):  # an attempt that was killed may have left files
            await asyncio.to_thread(self._files.withdraw, uid)
        try:
            claim = decode(ResourceClaim, record.allocated)
            devices = await prepared_by(self._driver, self._name, claim)
        except Exception as error:
            if _lacks_resources(error):  # which says nothing of the devices
                _tell("prepare", f"{record.ref}, whose CDI files stay,", error)
            elif _is_prepared(record):
                _tell("prepare", f"{record.ref}, whose CDI files are withdrawn,", error)
                await asyncio.to_thread(self._withdraw, record)
            return None
        if _is_prepared(record):
            if [_in_containers(device) for device in devices] == [_in_containers(device) for device in record.devices]:
                return None
            await asyncio.to_thread(self._withdraw, record)
            if uid in self._given_up:
                return None
        return record, devices

    async def _finish_changed(self, answers: Mapping[str, tuple[ClaimRecord, tuple[PreparedDevice, ...]]]) -> None:
        """Write the new answers of claims that are still withdrawn: the kubelet may have called in between."""
        left = dict(answers)
        for uid, (before, devices) in answers.items():
            del left[uid]
            try:
                record = self._read(uid)
                if record and _is_withdrawn(record) and record.fingerprint == before.fingerprint:
                    begun = msgspec.structs.replace(_preparing(record), given=record.was_given)
                    await self._finish(with_answer(begun, devices), beside=left.keys())
                    log.warning("claim %s is prepared anew, since its devices changed", record.ref)
            except Exception as error:
                _tell("prepare", str(before.ref), error)

    def _withdraw(self, record: ClaimRecord) -> None:
        self._files.withdraw(record.uid)  # first: it needs no room on the disk
        begun = _preparing(record)
        if record.uid in self._given_up:  # no container has anything of it: the kubelet's next call begins anew
            begun = msgspec.structs.replace(begun, devices=(), had=(), given=False)
        self._files.note(begun)
        if error := self._records.write_or_keep(begun):
            log.warning("the CDI files of claim %s are withdrawn without recording that: %s", record.ref, error)

    async def tidy(self, *, sweep: bool) -> None:
        """Bring the CDI files in line with the records, as a process finds them when it starts.

        Files of unknown claims go if ``sweep``: in a new folder of records nothing is known. One that cannot be removed
        is left, and keeps no file of a known claim away. The files of 1,000 claims are compared in a thread: meanwhile
        the plugin registers, and answers the kubelet.
        """
        await asyncio.to_thread(self._tidy, sweep=sweep)

    def _tidy(self, *, sweep: bool) -> None:
        self._records.remove_unfinished()
        records = self._records.all(on_corrupted=lambda error: log.error("%s", error))
        if sweep:
            boot = boot_id()
            keep = [uid for uid, record in records.items() if record.boot_id == boot]
            keep += [path.stem for path in self._records.unreadable()]
            try:
                self._files.sweep(keep=keep)
            except (PluginError, CdiError) as error:
                log.error("files of claims that are not prepared are left: %s", error)
        for record in records.values():
            try:
                self._records.complete(record)
                if _is_prepared(record):
                    self._files.write(record)
                    continue
                self._files.note(record)
                if record.phase == "preparing":
                    self._files.withdraw(record.uid)
            except (PluginError, CdiError) as error:
                log.error("claim %s: %s", record.ref, error)

    async def restore(self, in_turn: InTurn | None = None) -> bool:
        """Write again what somebody else has removed of prepared claims, alone or with its folder.

        Running containers need their CDI files when they start again, and no kubelet asks for those then. False if a
        file could not be written: it is logged, and missed by the next call. Raises ClaimError without the records.
        """
        await asyncio.to_thread(self._records.restore)
        if not (lost := await asyncio.to_thread(self._files.lost)):
            return True
        log.warning("files of %d claims were removed: those of prepared claims are written again", len(lost))
        run = in_turn or _at_once
        few = asyncio.Semaphore(_CHANGED_CLAIMS)

        async def restored(uid: str) -> bool:
            async with few:  # a claim at which the driver works keeps no other one from its files
                return await run([uid], partial(asyncio.to_thread, self._restore_files, uid))

        return all(await asyncio.gather(*map(restored, sorted(lost))))

    def _restore_files(self, uid: str) -> bool:
        try:
            record = self._records.read(uid)
            self._files.forget(uid)
            if record and _is_prepared(record):
                self._files.write(record)
        except CheckpointCorrupted:
            self._files.forget(uid)  # nobody knows what they were
        except (PluginError, CdiError) as error:
            log.error("claim with the uid %s: %s", uid, error)
            return False
        return True

    async def _prepare(self, claim: ResourceClaim) -> Prepared:
        begun = await self._begin(claim)
        if not isinstance(begun, ClaimRecord):
            return begun
        with span("driver", claim=claim.key):
            devices = await prepared_by(self._driver, self._name, claim)
        return await self._finish(with_answer(begun, devices))

    async def _begin(self, claim: ResourceClaim) -> ClaimRecord | Prepared:
        """Record that the claim is being prepared, and return the record; or its devices if it is prepared."""
        wanted = self._wanted(claim)
        record = self._read(wanted.uid)
        if record and _is_prepared(record) and record.fingerprint == wanted.fingerprint:
            return await asyncio.to_thread(self._files.write, record)
        if record and (record.fingerprint != wanted.fingerprint or record.phase == "unpreparing"):
            log.warning("claim %s was prepared for another allocation: unpreparing that first", claim.key)
            await self._undo(record.ref, record)
        elif record:
            # An attempt that was killed, here or in another instance, may have left files. This one may be refused.
            await asyncio.to_thread(self._files.withdraw, wanted.uid)
            if record.boot_id == wanted.boot_id:
                # its containers may have what these own, and owned
                wanted = msgspec.structs.replace(wanted, devices=record.devices, had=record.had, given=record.was_given)
        self._refuse_unpublished(wanted)
        async with self._deciding() as turn:
            self._conflicts.look(turn)
            self._conflicts.refuse_held(wanted)
            self._conflicts.refuse_drawn(wanted, self._counters)
            self._records.write(wanted, durable=False)
        if not wanted.given and not wanted.devices:
            self._new.add(wanted.uid)
        return wanted

    async def _finish(self, record: ClaimRecord, *, beside: Collection[str] = ()) -> Prepared:
        if any(device.owns for device in record.devices):
            async with self._deciding() as turn:
                self._conflicts.look(turn)
                self._conflicts.refuse_owned(record, beside=beside)
                self._files.parts.take(record)
                self._records.write(record, durable=False)
        unanswered = record.unanswered or not record.given
        prepared = msgspec.structs.replace(record, phase="prepared", given=True, unanswered=unanswered)
        return await asyncio.to_thread(self._publish, prepared)

    def _publish(self, prepared: ClaimRecord) -> Prepared:
        """Write the CDI files first, so that a record which says "prepared" has them.

        Whatever fails, the claim has no CDI file afterwards: until here its record does not say "prepared", so that
        files of an earlier attempt may be of other devices.
        """
        try:
            answer = self._files.write(prepared)
            self._records.write(prepared, durable=True)
        except BaseException:
            self._files.withdraw(prepared.uid)
            raise
        return answer

    async def _undo(self, claim: ClaimRef, record: ClaimRecord | None) -> None:
        if record:
            try:
                self._records.write(msgspec.structs.replace(record, phase="unpreparing"), durable=False)
            except ClaimError as error:  # a full disk must not keep what would empty it
                log.warning("unpreparing claim %s without recording that: %s", claim, error)
        with span("driver", claim=str(claim)):
            answer: object = await answer_of(self._driver.unprepare(claim))
        if answer is not None:
            raise ClaimError(f"the driver's unprepare returned {answer!r}: return nothing, and raise what failed")
        await asyncio.to_thread(self._forget, claim.uid)

    def _forget(self, uid: str) -> None:
        self._files.remove(uid)
        self._records.remove(uid)
        for uids in (self._new, self._given_up, self._arrived):
            uids.discard(uid)

    def _wanted(self, claim: ResourceClaim) -> ClaimRecord:
        return ClaimRecord(
            uid=claim.metadata.uid,
            namespace=claim.metadata.namespace,
            name=claim.metadata.name,
            boot_id=boot_id(),
            fingerprint=fingerprint(self._name, claim),
            phase="preparing",
            holds=held_devices(self._name, claim, self._counters),
            allocated=encode(own_part(self._name, claim)).decode(),
            node=self._node,
            pod_claim_name=(claim.metadata.annotations or {}).get(POD_CLAIM_NAME_ANNOTATION, ""),
        )

    def _refuse_unpublished(self, wanted: ClaimRecord) -> None:
        for device in wanted.holds:
            if not self._offers(device.pool, device.device):
                raise DeviceNotPublished(device.pool, device.device)


def _is_prepared(record: ClaimRecord, boot: str | None = None) -> bool:
    """Whether the claim was prepared since the last boot, whose id is ``boot``."""
    return record.phase == "prepared" and record.boot_id == (boot_id() if boot is None else boot)


def _is_withdrawn(record: ClaimRecord, boot: str | None = None) -> bool:
    """Whether the claim was prepared since the last boot, or nearly so, and containers cannot start with it."""
    is_so = record.phase == "preparing" and bool(record.devices)
    return is_so and record.boot_id == (boot_id() if boot is None else boot)


def _preparing(record: ClaimRecord) -> ClaimRecord:
    """The record of a claim whose files are to be written again.

    Whether a kubelet has the answer is asked when they are written: it may become known in between.
    """
    return msgspec.structs.replace(record, phase="preparing", given=record.given or record.phase == "prepared")


def _in_containers(device: PreparedDevice) -> PreparedDevice:
    """The device without its metadata, which may have been changed since."""
    return replace(device, attributes={}, network=None)


def _lacks_resources(error: BaseException | None) -> bool:
    """Return whether an error, or its cause, is for want of descriptors, memory or room on the disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _RESOURCES:
            return True
        error = error.__cause__ or error.__context__
    return False


def _tell(call: str, claim: str, error: Exception) -> None:
    """Log the error of a claim; with its trace unless it is meant for the kubelet."""
    log.warning(
        "%s of claim %s: %s",
        call,
        claim,
        text_of(error),
        exc_info=None if isinstance(error, PluginError | CdiError) else error,
    )
