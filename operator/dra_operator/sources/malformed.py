"""Malformed objects: warns about them, leaves them out, and keeps the devices of malformed claims in use.

Tenants may store tens of thousands of them. So of most only the number is written (``_Lines``).

The last good version of an object stays in the cache. A claim may have none, if it was malformed from the start. To
forget it would free its devices. So the results of its allocation are read leniently, and these devices count as used
until the claim is repaired or gone. Where the status says that there is no allocation, no devices count, not even those
of the last good version.

A malformed version may come late. The good events of a read are taken in before Kopf brings the malformed ones, and a
list may be older than the watch. A version that a newer one has overtaken is ignored: its devices may be free by now.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
from dra_api.codec import TOO_DEEP, DecodeError, convert
from dra_api.meta import ObjectVersion
from dra_api.resource import AllocationResult, DeviceAllocationResult, DeviceRequestAllocationResult
from dra_kube import RESOURCE_CLAIMS, Resource

from dra_operator.allocator import DeviceId
from dra_operator.cache import UidMemory, revision
from dra_operator.controllers.fairness import may_have_another

logger = logging.getLogger(__name__)

WARNING_SECONDS: Final = 60.0
COMMON_WARNING_LINES: Final = 50
"""Lines within that time for namespaces that have had one already."""
FIRST_WARNING_LINES: Final = 200
"""Lines within that time, one for each namespace; objects without a namespace are as one."""

Hold = Callable[[str, AllocationResult | None], object]
"""Counts an allocation for the claim with this UID; None undoes that."""
IsKnown = Callable[[Resource, ObjectVersion], bool]
"""Whether the cache has this version of the object, a newer one, or its end."""


class PartiallyDecoded(NamedTuple):
    """A malformed claim whose devices count as used."""

    uid: str
    resource_version: str


class MalformedObjects:
    """Takes in malformed versions of objects. ``partially_decoded`` has the claims whose devices are kept, by key."""

    def __init__(
        self,
        hold: Hold,
        counted: Callable[[Resource], None] = lambda _: None,
        is_known: IsKnown = lambda _, __: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lines, self._unwarned = _Lines(clock), 0
        self._hold, self._counted, self._is_known = hold, counted, is_known
        self._told = UidMemory(1000)
        self.partially_decoded: dict[str, PartiallyDecoded] = {}

    def take(self, resource: Resource, raw: dict[str, Any] | bytes, error: Exception) -> None:
        """Warn once about a version of an object: its name, the field at fault, and what becomes of it.

        A version that the cache knows, or that a newer one has overtaken, is ignored.
        """
        obj = _document(raw)
        meta = _dict(obj, "metadata")
        identity = f"{meta.get('uid')}/{meta.get('resourceVersion')}"
        if identity in self._told or self._is_overtaken(resource, meta):
            return
        self._told.add(identity)
        if obj.get("spec") == TOO_DEEP:
            error = DecodeError(f"it is {TOO_DEEP}")
        self._counted(resource)
        name = "/".join(str(part) for part in (meta.get("namespace"), meta.get("name")) if part) or "(without a name)"
        kept = self._decode_partially(name, obj) if resource == RESOURCE_CLAIMS else ""
        if not self._lines.may_write(str(meta.get("namespace") or "")):
            self._unwarned += 1
        else:
            others = f" (before that, warnings of {self._unwarned} others were left out)" if self._unwarned else ""
            self._unwarned = 0
            logger.warning(
                "%s %s is malformed and left out until it is corrected%s: %s%s",
                resource.kind,
                name,
                kept,
                error,
                others,
            )

    def deleted(self, key: str, uid: str | None) -> None:
        """A claim is gone; its devices are free."""
        entry = self.partially_decoded.get(key)
        if entry is not None and uid in (None, entry.uid):
            del self.partially_decoded[key]
            self._hold(entry.uid, None)

    def corrected(self, key: str, uid: str) -> bool:
        """The cache has a readable version of the claim, whose devices count from now on; whether others were counted
        before."""
        entry = self.partially_decoded.pop(key, None)
        if entry is not None and entry.uid != uid:
            self._hold(entry.uid, None)
        return entry is not None

    def is_ahead_of(self, key: str, resource_version: str | None) -> bool:
        """Whether the devices of a later version of the claim are kept than this one, which comes late."""
        entry = self.partially_decoded.get(key)
        held = None if entry is None else revision(entry.resource_version)
        came = revision(resource_version or "")
        return held is not None and came is not None and came < held

    def _is_overtaken(self, resource: Resource, meta: dict[str, Any]) -> bool:
        name, uid, came, namespace = (
            str(meta.get(field) or "") for field in ("name", "uid", "resourceVersion", "namespace")
        )
        version = ObjectVersion(name, uid, came, namespace)
        is_older = resource == RESOURCE_CLAIMS and self.is_ahead_of(version.key, came)
        return is_older or self._is_known(resource, version)

    def _decode_partially(self, key: str, obj: dict[str, Any]) -> str:
        results = tuple(_results(obj))
        meta = _dict(obj, "metadata")
        uid = meta.get("uid")
        if not isinstance(uid, str):
            return ""
        if _has_no_allocation(obj):
            self.deleted(key, None)
            self._hold(uid, None)  # what the last good version has
            return ""
        if not results:
            return ""
        self.corrected(key, uid)
        self.partially_decoded[key] = PartiallyDecoded(uid, str(meta.get("resourceVersion")))
        self._hold(uid, AllocationResult(devices=DeviceAllocationResult(results=results)))
        devices = ", ".join(str(DeviceId.of(result)) for result in results)
        return f" (its devices stay in use: {devices})"


class _Lines:
    """Shares the lines of the log among namespaces, so that no tenant silences another.

    The first line of each is sure. The common ones are shared like the workers of a queue: one namespace alone gets two
    thirds of them, the next one two thirds of the rest.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._since = clock, clock()
        self._written: Counter[str] = Counter()

    def may_write(self, namespace: str) -> bool:
        """Return whether a line about an object of the namespace is to be written, and count it."""
        now = self._clock()
        if now - self._since >= WARNING_SECONDS:
            self._since = now
            self._written.clear()
        written = self._written[namespace]
        if written:
            left = COMMON_WARNING_LINES - (self._written.total() - len(self._written))
            may = left > 0 and may_have_another(written - 1, left)
        else:
            may = len(self._written) < FIRST_WARNING_LINES
        if may:
            self._written[namespace] += 1
        return may


def _has_no_allocation(claim: dict[str, Any]) -> bool:
    """Whether it says so, whatever else is malformed: an allocation that cannot be read may be one."""
    status = claim.get("status")
    return status is None or (isinstance(status, dict) and status.get("allocation") is None)


def _results(claim: dict[str, Any]) -> Iterator[DeviceRequestAllocationResult]:
    """The devices of the allocation, read one by one; a malformed share counts as the whole device."""
    entries = _dict(claim, "status", "allocation", "devices").get("results")
    for entry in entries if isinstance(entries, list) else ():
        try:
            yield convert(DeviceRequestAllocationResult, entry)
        except (DecodeError, ValueError, TypeError):
            names = [_dict(entry).get(field) for field in ("driver", "pool", "device")]
            if all(isinstance(name, str) and name for name in names):
                driver, pool, device = map(str, names)
                yield DeviceRequestAllocationResult(request="", driver=driver, pool=pool, device=device)


def _document(raw: dict[str, Any] | bytes) -> dict[str, Any]:
    try:
        return _dict(msgspec.json.decode(raw) if isinstance(raw, bytes) else raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _dict(obj: Any, *path: str) -> dict[str, Any]:
    """The dict at the end of the path; an empty one if there is none."""
    for name in path:
        obj = obj.get(name) if isinstance(obj, dict) else None
    return obj if isinstance(obj, dict) else {}
