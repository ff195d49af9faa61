"""The record of a claim: what a plugin remembers of it, and how that stands in a file.

- ``format`` counts the versions of the file, and ``readableFrom`` is the oldest version that understands it. New
  fields leave ``readableFrom`` alone, so that a driver can be rolled back; older readers ignore them.
- ``checksum`` is that of the text of ``record``, whatever fields it has.
- Every format has ``checksum``, and ``record`` with ``bootId`` and ``holds`` as they are here: who cannot read the rest
  knows at least which devices are not to be given to others.
- The same two stand a second time, in ``<claim uid>.held``, with the parts of the host that the devices own or owned:
  a damaged record frees no device. New fields of that file belong into ``rest``: its checksum covers that text.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from dra_kubeletplugin.driver import ClaimRef, PreparedDevice
from dra_kubeletplugin.errors import CheckpointCorrupted, CheckpointNewer

FORMAT_VERSION: Final = 1
LARGEST_RECORD_BYTES: Final = 16 * 2**20
"""Bytes of a file. A device takes about 500, a claim has at most 32."""

Phase = Literal["preparing", "prepared", "unpreparing"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pass


class HeldDevice(_Part, frozen=True):
    """A device of an allocation: a share of it with ``share_id``, only watched with ``admin_access``.

    ``draws`` are the counters that it draws from its pool, by set and name, as it was published when the claim was
    prepared: they stay drawn while the claim is prepared, however the device is published since.
    """

    pool: str
    device: str
    share_id: str | None = None
    admin_access: bool = False
    draws: dict[str, dict[str, str]] = {}  # msgspec copies defaults


class ClaimRecord(_Part, frozen=True):
    """One claim. ``devices`` is what the driver answered, known in the phase ``prepared``.

    In the phase ``preparing`` it has devices if their files were withdrawn, or are not written yet. ``allocated`` is
    the driver's own part of the claim, as JSON. ``pod_claim_name`` is the pod's name for a claim made from a template.
    ``generations`` counts, by request, how often the metadata of its devices were changed since. ``had`` is what its
    devices owned since this boot and own no more: containers that run may still use it. ``given`` tells whether the
    claim was prepared since this boot, so that there may be such containers. ``unanswered`` is true until the answer of
    its first call is on its way: the call may be given up, or this process killed, before a kubelet has it. ``node`` is
    the name of the node then.
    """

    uid: str
    namespace: str
    name: str
    boot_id: str
    fingerprint: str
    phase: Phase
    holds: tuple[HeldDevice, ...] = ()
    devices: tuple[PreparedDevice, ...] = ()
    pod_claim_name: str = ""
    generations: dict[str, int] = {}  # msgspec copies defaults
    allocated: str = ""
    had: tuple[str, ...] = ()
    given: bool = False
    unanswered: bool = False
    node: str = ""

    @property
    def was_given(self) -> bool:
        """Whether a kubelet has what was prepared; versions without the field only say so as long as it is."""
        return not self.unanswered and (self.given or self.phase == "prepared")

    def exclusive(self) -> Iterator[PreparedDevice]:
        """Yield the devices, without those that an administrator only watches."""
        watched = {(held.pool, held.device, held.share_id) for held in self.holds if held.admin_access}
        return (device for device in self.devices if (device.pool, device.device, device.share_id) not in watched)

    def owned(self) -> set[str]:
        """Return the parts of the host that belong to the claim's devices alone."""
        return {part for device in self.exclusive() for part in device.owns}

    @property
    def ref(self) -> ClaimRef:
        """The claim, with what was prepared for it."""
        return ClaimRef(self.namespace, self.name, self.uid, self.devices)


class Remainder(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The known part of a damaged or ``newer`` record. It may hold any device if ``holds`` is None.

    ``owned`` are the parts of the host that its devices own, with the pool and the name of the device: another share of
    that device owns them as well. ``had`` is what they owned before. Files of former versions have both in ``owned``,
    without the devices.
    """

    boot_id: str = ""
    holds: tuple[HeldDevice, ...] | None = None
    owned: dict[str, tuple[str, str]] | tuple[str, ...] = {}  # msgspec copies defaults
    had: tuple[str, ...] = ()
    newer: bool = False
    node: str = ""

    @classmethod
    def of(cls, record: ClaimRecord) -> Remainder:
        """Return the part of a record that decides about other claims."""
        owned = {part: (device.pool, device.device) for device in record.exclusive() for part in device.owns}
        return cls(record.boot_id, record.holds, owned, tuple(sorted(record.had)), node=record.node)


class _HeldFile(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """``<claim uid>.held``; the ``checksum`` is that of the other fields."""

    uid: str
    rest: msgspec.Raw
    checksum: int = 0

    @property
    def sum(self) -> int:
        """The right checksum. ``rest`` counts as it stands: a later version adds fields to it."""
        return zlib.crc32(msgspec.json.encode(_HeldFile(self.uid, self.rest)))


class _File(_Part, frozen=True):
    format: int
    readable_from: int
    checksum: int
    record: msgspec.Raw


def encoded(record: ClaimRecord) -> bytes:
    """Return the text of a record's file."""
    text = msgspec.json.encode(record)
    return msgspec.json.encode(
        _File(format=FORMAT_VERSION, readable_from=1, checksum=zlib.crc32(text), record=msgspec.Raw(text))
    )


def encoded_rest(uid: str, rest: Remainder) -> bytes:
    """Return the text of the second file of a claim."""
    text = msgspec.Raw(msgspec.json.encode(rest))
    return msgspec.json.encode(_HeldFile(uid, text, _HeldFile(uid, text).sum))


def decoded(path: Path, content: bytes) -> ClaimRecord:
    """Return the record in the file ``path``. Raises CheckpointCorrupted, or its CheckpointNewer."""
    if len(content) > LARGEST_RECORD_BYTES:
        raise CheckpointCorrupted(path, f"it is larger than {LARGEST_RECORD_BYTES >> 20} MiB")
    try:
        file = msgspec.json.decode(content, type=_File)
        if file.readable_from > file.format:
            raise CheckpointCorrupted(path, f"its format is {file.format}, readable from {file.readable_from}")
        if file.readable_from > FORMAT_VERSION:
            raise CheckpointNewer(path, f"format {file.format}, this one reads {FORMAT_VERSION}")
        if file.checksum != zlib.crc32(file.record):
            raise CheckpointCorrupted(path, f"its checksum is {file.checksum}, not {zlib.crc32(file.record)}")
        record = msgspec.json.decode(file.record, type=ClaimRecord)
    except (ValueError, TypeError, RecursionError) as error:  # of msgspec, and of what checks a prepared device
        raise CheckpointCorrupted(path, str(error)) from error
    if record.uid != path.stem:
        raise CheckpointCorrupted(path, f"it is about the claim {record.uid}")
    return record


def rest_of_newer(content: bytes | None) -> Remainder | None:
    """Return the remainder of a newer version's record, or None if that is damaged or names no boot."""
    try:
        file = msgspec.json.decode(content or b"", type=_File)
        rest = msgspec.json.decode(file.record, type=Remainder)
    except (ValueError, TypeError, RecursionError):
        return None
    return rest if rest.boot_id and file.checksum == zlib.crc32(file.record) else None


def decoded_rest(uid: str, content: bytes | None) -> Remainder | None:
    """Return the remainder in a second file, or None if that is missing, damaged or about another claim."""
    try:
        held = msgspec.json.decode(content or b"", type=_HeldFile)
        rest = msgspec.json.decode(held.rest, type=Remainder)
    except (ValueError, TypeError, RecursionError):
        return None
    return rest if held.uid == uid and held.checksum == held.sum else None
