"""Writing ResourceClaims: generate, commit, release, delete.

Every answer of the server is handed to ``seen`` or ``gone`` at once (the assume cache), so that nothing waits for the
watch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection

from dra_api.codec import convert, to_dict
from dra_api.meta import Object as Struct
from dra_api.resource import FINALIZER, AllocationResult, ResourceClaim, ResourceClaimConsumerReference
from dra_kube import RESOURCE_CLAIMS, Conflict, NotFound, Object

from .client import Client
from .rewrite import Edit, rewrite

Seen = Callable[[Struct], None]
Gone = Callable[[ResourceClaim], None]
FRESH = 1000  # claims just created whose answer is kept until they are allocated


class ClaimChanged(Exception):
    """Somebody changed the claim so that what was planned for it makes no sense any more."""


class ClaimWriter:
    """All writes to claims.

    ``timestamp`` gives the time that goes into new reservations (``allocationTimestamp``), or None to write none.
    """

    def __init__(self, client: Client, seen: Seen, gone: Gone, timestamp: Callable[[], str | None]) -> None:
        self._client, self._seen, self._gone, self._timestamp = client, seen, gone, timestamp
        self._fresh: OrderedDict[str, Object] = OrderedDict()  # saves the read before the first update

    async def read(self, claim: ResourceClaim) -> ResourceClaim:
        """The claim as the server has it now. Raises NotFound."""
        meta = claim.metadata
        return self._took(await self._client.get(RESOURCE_CLAIMS, meta.name, meta.namespace))

    async def create(self, body: Object) -> ResourceClaim:
        """A new claim. Raises Forbidden (quota, admin access), Invalid, ..."""
        raw = await self._client.create(RESOURCE_CLAIMS, body, body["metadata"]["namespace"])
        self._fresh[raw["metadata"]["uid"]] = raw
        if len(self._fresh) > FRESH:
            self._fresh.popitem(last=False)
        return self._took(raw)

    async def commit(
        self, claim: ResourceClaim, allocation: AllocationResult | None, consumer: ResourceClaimConsumerReference
    ) -> ResourceClaim:
        """Write the allocation, if one is given, and the reservation in a single status update (scheduling.md 4.7).

        The finalizer is there before the allocation: without it an allocated claim could vanish together with the
        knowledge that its devices are in use. Raises ClaimChanged when the claim was deleted, replaced, allocated or
        deallocated by somebody else in the meantime.
        """
        known = None
        if allocation is not None:
            known = self._fresh.pop(claim.metadata.uid, None)
            known = await self._rewrite(
                claim, lambda raw: _add_finalizer(_expect(raw, claim, allocated=False)), known=known
            )

        def edit(raw: Object) -> bool:
            status = _expect(raw, claim, allocated=allocation is None).setdefault("status", {})
            if allocation is not None:
                if FINALIZER not in raw["metadata"].get("finalizers", ()):
                    raise ClaimChanged(f"claim {claim.key} lost its finalizer in the meantime")
                status["allocation"] = to_dict(allocation)
            stamped = self._stamp(status["allocation"])
            return _add_consumer(status, consumer) or stamped or allocation is not None

        return self._took(await self._rewrite(claim, edit, "status", known))

    async def reserve(self, claim: ResourceClaim, consumer: ResourceClaimConsumerReference) -> ResourceClaim:
        """Add a consumer to a claim that is allocated already (claim-controller.md 5.5). Raises ClaimChanged."""

        def edit(raw: Object) -> bool:
            return _add_consumer(_expect(raw, claim, allocated=True)["status"], consumer)

        return self._took(await self._rewrite(claim, edit, "status"))

    async def release(self, claim: ResourceClaim, consumers: Collection[str], *, deallocate: bool) -> ResourceClaim:
        """Drop the consumers with these UIDs; after the last one, if so wanted, the allocation goes too (6.2).

        Claims without the built-in finalizer keep their allocation (CC-06).
        """

        def edit(raw: Object) -> bool:
            status = _same(raw, claim).setdefault("status", {})
            before = status.get("reservedFor") or []
            status["reservedFor"] = [entry for entry in before if entry.get("uid") not in consumers]
            frees = deallocate and not status["reservedFor"] and FINALIZER in raw["metadata"].get("finalizers", ())
            freed = frees and status.pop("allocation", None) is not None
            return freed or len(before) != len(status["reservedFor"])

        return self._took(await self._rewrite(claim, edit, "status"))

    async def clear(self, claim: ResourceClaim, consumer: str) -> ResourceClaim:
        """Take the devices from a claim that nobody uses but ``consumer``, who cannot run with them (4.3).

        The finalizer stays for the next allocation. Raises ClaimChanged when somebody else reserved the claim.
        """

        def edit(raw: Object) -> bool:
            status = _same(raw, claim).setdefault("status", {})
            if any(entry.get("uid") != consumer for entry in status.get("reservedFor") or ()):
                raise ClaimChanged(f"claim {claim.key} got reserved by somebody else in the meantime")
            cleared = [status.pop(field, None) for field in ("reservedFor", "allocation", "devices")]
            return any(value is not None for value in cleared)

        return self._took(await self._rewrite(claim, edit, "status"))

    async def remove_finalizer(self, claim: ResourceClaim) -> ResourceClaim:
        """Let an unallocated claim be deleted; one that got allocated in the meantime keeps its finalizer."""

        def edit(raw: Object) -> bool:
            meta = _same(raw, claim)["metadata"]
            finalizers = meta.get("finalizers") or []
            if FINALIZER not in finalizers or raw.get("status", {}).get("allocation") is not None:
                return False
            meta["finalizers"] = [name for name in finalizers if name != FINALIZER]
            return True

        return self._took(await self._rewrite(claim, edit))

    async def delete(self, claim: ResourceClaim) -> None:
        """Delete this very claim; that it is gone, or replaced by another one, is fine."""
        meta = claim.metadata
        try:
            answer = await self._client.delete(RESOURCE_CLAIMS, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            answer = {}
        except Conflict:
            answer = await self._client.get(RESOURCE_CLAIMS, meta.name, meta.namespace)
            if answer["metadata"]["uid"] == meta.uid:
                raise
        if answer.get("metadata", {}).get("uid") != meta.uid or not answer["metadata"].get("deletionTimestamp"):
            self._gone(claim)  # it does not wait for somebody's finalizer

    async def discard(self, claim: ResourceClaim, consumer: str) -> None:
        """Undo a claim that was made for ``consumer`` only: take its devices, let it go, delete it (4.3).

        One step after the other, so that at no time it is allocated without the finalizer; a repetition goes on where
        the last one stopped. Raises ClaimChanged when somebody else reserved the claim.
        """
        try:
            claim = await self.remove_finalizer(await self.clear(claim, consumer))
        except NotFound:
            self._gone(claim)
            return
        await self.delete(claim)

    def _stamp(self, allocation: Object) -> bool:
        now = None if allocation.get("allocationTimestamp") else self._timestamp()
        if now is not None:
            allocation["allocationTimestamp"] = now
        return now is not None

    async def _rewrite(
        self, claim: ResourceClaim, edit: Edit, subresource: str | None = None, known: Object | None = None
    ) -> Object:
        meta = claim.metadata
        return await rewrite(
            self._client, RESOURCE_CLAIMS, meta.namespace, meta.name, edit, subresource=subresource, known=known
        )

    def _took(self, raw: Object) -> ResourceClaim:
        claim = convert(ResourceClaim, raw)
        self._seen(claim)
        return claim


def _same(raw: Object, claim: ResourceClaim) -> Object:
    if raw["metadata"].get("uid", "") != claim.metadata.uid:
        raise ClaimChanged(f"claim {claim.key} was replaced by another one of the same name in the meantime")
    return raw


def _expect(raw: Object, claim: ResourceClaim, *, allocated: bool) -> Object:
    if _same(raw, claim)["metadata"].get("deletionTimestamp"):
        raise ClaimChanged(f"claim {claim.key} got deleted in the meantime")
    if (raw.get("status", {}).get("allocation") is not None) != allocated:
        raise ClaimChanged(f"claim {claim.key} got {'de' * allocated}allocated elsewhere in the meantime")
    return raw


def _add_finalizer(raw: Object) -> bool:
    finalizers = raw["metadata"].get("finalizers") or []
    if FINALIZER in finalizers:
        return False
    raw["metadata"]["finalizers"] = [*finalizers, FINALIZER]
    return True


def _add_consumer(status: Object, consumer: ResourceClaimConsumerReference) -> bool:
    consumers = status.get("reservedFor") or []
    if any(entry.get("uid") == consumer.uid for entry in consumers):
        return False
    status["reservedFor"] = [*consumers, to_dict(consumer)]
    return True
