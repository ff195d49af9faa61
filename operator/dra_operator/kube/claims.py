"""Writes ResourceClaims: generate, commit, release, delete.

Every answer of the server goes to ``seen`` or ``gone`` at once (the assume cache), so that nothing waits for the watch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

from dra_api.codec import convert, to_dict
from dra_api.meta import Object as Struct
from dra_api.resource import (
    FINALIZER,
    AllocationResult,
    ResourceClaim,
    ResourceClaimConsumerReference,
)
from dra_kube import RESOURCE_CLAIMS, Conflict, Invalid, NotFound, Object

from dra_operator.placement import HOLD

from .answers import may_have_happened
from .changed import ClaimChanged
from .claim_edits import add_consumers, add_finalizer, expect, this_very, with_consumer
from .client import Client
from .fresh import Fresh
from .reservations import Reservations
from .rewrite import Edit, rewrite

Seen = Callable[[Struct], None]
Gone = Callable[[ResourceClaim], None]
UNSETTLED = 10_000  # claims remembered whose last write got no answer


class ClaimWriter:
    """All writes to claims.

    ``timestamp`` gives the time that goes into new allocations (``allocationTimestamp``), or None to write none.
    """

    def __init__(self, client: Client, seen: Seen, gone: Gone, timestamp: Callable[[], str | None]) -> None:
        self._client, self._seen, self._gone, self._timestamp = client, seen, gone, timestamp
        self._reservations = Reservations(self._reserve_all)
        self._unsettled: OrderedDict[str, str] = OrderedDict()
        self._fresh = Fresh()  # claims just created or deleted, until they are allocated or end

    def is_unsettled(self, claim: ResourceClaim) -> bool:
        """Whether a write of ours that got no answer may still change this version of the claim.

        The write names the version on which it is based. Once another version was seen, it has happened or will fail.
        """
        return self._unsettled.get(claim.metadata.uid) == claim.metadata.resource_version

    async def read(self, claim: ResourceClaim) -> ResourceClaim:
        """The claim as the server has it now, or its successor of the same name. Raises NotFound."""
        return await self.find(claim.metadata.namespace, claim.metadata.name)

    async def find(self, namespace: str, name: str) -> ResourceClaim:
        """The claim of a name as the server has it now. Raises NotFound."""
        return self._took(await self._client.get(RESOURCE_CLAIMS, name, namespace))

    async def create(self, body: Object) -> ResourceClaim:
        """A new claim. Raises Forbidden (quota, admin access), Invalid, ..."""
        raw = await self._client.create(RESOURCE_CLAIMS, body, body["metadata"]["namespace"])
        self._fresh.keep(raw)
        return self._took(raw)

    def came(self, claim: ResourceClaim, raw: Object) -> None:
        """Keep what the watch sent of a claim that is being deleted, until it ends."""
        if claim.metadata.deletion_timestamp is not None:
            self._fresh.keep(raw)

    async def commit(
        self, claim: ResourceClaim, allocation: AllocationResult | None, consumer: ResourceClaimConsumerReference
    ) -> ResourceClaim:
        """Write the allocation, if one is given, and the reservation in a single status update (scheduling.md 4.7).

        The finalizer comes before the allocation: without it an allocated claim could vanish, and its devices would
        look free. An allocation equal to ours comes from our earlier write, whose answer was lost. Raises ClaimChanged
        if another writer deleted, replaced, allocated or deallocated the claim in the meantime, or if it cannot take
        another consumer.
        """
        if allocation is None:
            return with_consumer(await self._reservations.add(claim, consumer), consumer)
        written = await self._allocate(claim, allocation, FINALIZER, [to_dict(consumer)])
        return with_consumer(written, consumer)

    async def allocate_ahead(self, claim: ResourceClaim, allocation: AllocationResult) -> ResourceClaim:
        """Write the allocation of an immediate claim, for no consumer yet. As ``commit`` otherwise."""
        return await self._allocate(claim, allocation, HOLD, ())

    async def _allocate(
        self, claim: ResourceClaim, allocation: AllocationResult, finalizer: str, consumers: Sequence[Object]
    ) -> ResourceClaim:
        known = self._fresh.take(claim)
        wanted = to_dict(allocation)
        known = await self._rewrite(
            claim, lambda raw: add_finalizer(expect(raw, claim, wanted), finalizer), known=known
        )

        def edit(raw: Object) -> bool:
            status = expect(raw, claim, wanted).setdefault("status", {})
            if finalizer not in raw["metadata"].get("finalizers", ()):
                raise ClaimChanged(f"claim {claim.key} lost its finalizer in the meantime")
            is_new = status.get("allocation") is None
            if is_new:
                status["allocation"] = {**wanted, **self._stamp()}
            return add_consumers(status, consumers) or is_new

        return self._took(await self._rewrite(claim, edit, "status", known))

    async def reserve(self, claim: ResourceClaim, consumer: ResourceClaimConsumerReference) -> ResourceClaim:
        """Add a pod that has its node to an allocated claim (claim-controller.md 5.5). Raises ClaimChanged."""
        return with_consumer(await self._reservations.add(claim, consumer), consumer)

    async def _reserve_all(
        self, claim: ResourceClaim, consumers: Sequence[ResourceClaimConsumerReference]
    ) -> ResourceClaim:
        """Add as many of the consumers as the claim can take.

        The allocation stays as it is, also without a time: the API server refuses every change of it.
        """

        def edit(raw: Object) -> bool:
            status = expect(raw, claim)["status"]
            return add_consumers(status, [to_dict(consumer) for consumer in consumers])

        return self._took(await self._rewrite(claim, edit, "status"))

    async def release(
        self, claim: ResourceClaim, consumers: Collection[str], *, deallocate: bool, finalizer: str = FINALIZER
    ) -> ResourceClaim:
        """Drop the consumers with these UIDs; with ``deallocate`` the allocation too, after the last one.

        Claims without the finalizer keep their allocation (claim-controller.md 6.2, CC-06).
        """

        def edit(raw: Object) -> bool:
            status = this_very(raw, claim).setdefault("status", {})
            before = status.get("reservedFor") or []
            status["reservedFor"] = [entry for entry in before if entry.get("uid") not in consumers]
            frees = deallocate and not status["reservedFor"] and finalizer in raw["metadata"].get("finalizers", ())
            freed = frees and status.pop("allocation", None) is not None
            return freed or len(before) != len(status["reservedFor"])

        return self._took(await self._rewrite(claim, edit, "status"))

    async def drop(self, claim: ResourceClaim, gone: Collection[str]) -> ResourceClaim:
        """As ``release`` with deallocation, for consumers that are gone for good: one request, and no conflict.

        The patch tests what it decides on, and names no resourceVersion: so others may change the rest meanwhile, as
        the garbage collector does when it marks the claim as deleted. Late or repeated, it either finds the same
        consumers, which are still gone, or is refused. A claim that is not as the view has it is read and rewritten.
        """
        left = [to_dict(entry) for entry in claim.status.reserved_for or () if entry.uid not in gone]
        patch = [
            _test("/metadata/uid", claim.metadata.uid),
            _test("/status/reservedFor", [to_dict(entry) for entry in claim.status.reserved_for or ()]),
        ]
        if left:
            patch.append({"op": "replace", "path": "/status/reservedFor", "value": left})
        else:
            patch.append({"op": "remove", "path": "/status/reservedFor"})
            if claim.status.allocation is not None and FINALIZER in (claim.metadata.finalizers or ()):
                patch.append(_test("/metadata/finalizers", list(claim.metadata.finalizers or ())))
                patch.append({"op": "remove", "path": "/status/allocation"})
        try:
            return await self._patch(claim, patch, "status")
        except Invalid:
            return await self.release(claim, gone, deallocate=True)

    async def let_go(self, claim: ResourceClaim) -> ResourceClaim:
        """As ``remove_finalizer``, with one request and no conflict, for a claim whose status is empty."""
        finalizers = list(claim.metadata.finalizers or ())
        patch = [
            _test("/metadata/uid", claim.metadata.uid),
            _test("/metadata/finalizers", finalizers),
            _test("/status", {}),  # it got no allocation in the meantime
            {"op": "remove", "path": f"/metadata/finalizers/{finalizers.index(FINALIZER)}"},
        ]
        try:
            return await self._patch(claim, patch)
        except Invalid:
            return await self.remove_finalizer(claim)

    async def end(self, claim: ResourceClaim, gone: Collection[str]) -> None:
        """Delete this version of a claim, unless it is being deleted already, and take off our finalizer, the only one.

        So it goes with its devices. In this order it is never allocated without the finalizer. Raises Conflict if the
        claim has changed, and ClaimChanged if it got a consumer that is not gone.
        """
        meta = claim.metadata
        if meta.deletion_timestamp is None:
            raw = await self._client.delete(
                RESOURCE_CLAIMS, meta.name, meta.namespace, uid=meta.uid, resource_version=meta.resource_version
            )
            if not _is_held(raw, meta.uid):
                self._gone(claim)
                return
            claim = self._took(raw)
            self._fresh.keep(raw)

        def edit(raw: Object) -> bool:
            found = this_very(raw, claim)["metadata"]
            if any(entry.get("uid") not in gone for entry in raw.get("status", {}).get("reservedFor") or ()):
                raise ClaimChanged(f"claim {claim.key} got reserved by another consumer in the meantime")
            found["finalizers"] = [name for name in found.get("finalizers") or () if name != FINALIZER]
            return True

        # an older one might have consumers that are not there any more
        self._took(await self._rewrite(claim, edit, known=self._fresh.take(claim)))

    async def clear(self, claim: ResourceClaim, consumer: str) -> ResourceClaim:
        """Deallocate a claim that only ``consumer`` uses, and with which it cannot run.

        The finalizer stays for the next allocation. Raises ClaimChanged if another consumer reserved the claim.
        """

        def edit(raw: Object) -> bool:
            status = this_very(raw, claim).setdefault("status", {})
            if any(entry.get("uid") != consumer for entry in status.get("reservedFor") or ()):
                raise ClaimChanged(f"claim {claim.key} got reserved by another consumer in the meantime")
            cleared = [status.pop(field, None) for field in ("reservedFor", "allocation", "devices")]
            return any(value is not None for value in cleared)

        return self._took(await self._rewrite(claim, edit, "status"))

    async def swap_finalizers(self, claim: ResourceClaim, former: str, finalizer: str) -> ResourceClaim:
        """Have another finalizer protect an allocated claim; in one write, so that one of both always does."""

        def edit(raw: Object) -> bool:
            meta = this_very(raw, claim)["metadata"]
            before = meta.get("finalizers") or []
            if raw.get("status", {}).get("allocation") is None or meta.get("deletionTimestamp"):
                return False
            meta["finalizers"] = [name for name in before if name not in (former, finalizer)] + [finalizer]
            return sorted(meta["finalizers"]) != sorted(before)

        return self._took(await self._rewrite(claim, edit))

    async def remove_finalizer(self, claim: ResourceClaim, finalizer: str = FINALIZER) -> ResourceClaim:
        """Let an unallocated claim be deleted; a claim allocated in the meantime keeps its finalizer."""

        def edit(raw: Object) -> bool:
            meta = this_very(raw, claim)["metadata"]
            finalizers = meta.get("finalizers") or []
            if finalizer not in finalizers or raw.get("status", {}).get("allocation") is not None:
                return False
            meta["finalizers"] = [name for name in finalizers if name != finalizer]
            return True

        return self._took(await self._rewrite(claim, edit))

    async def delete(self, claim: ResourceClaim) -> None:
        """Delete this very claim; does nothing if it is gone or replaced by another one."""
        meta = claim.metadata
        try:
            answer = await self._client.delete(RESOURCE_CLAIMS, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            answer = {}
        except Conflict:
            answer = await self._client.get(RESOURCE_CLAIMS, meta.name, meta.namespace)
            if answer["metadata"]["uid"] == meta.uid:
                raise
        if not _is_held(answer, meta.uid):
            self._gone(claim)

    async def discard(self, claim: ResourceClaim, consumer: str) -> None:
        """Undo a claim made for ``consumer`` only: deallocate it, remove the finalizer, delete it (scheduling.md 4.3).

        One step after the other, so that it is never allocated without the finalizer; a repetition continues where the
        last one stopped. Raises ClaimChanged if another consumer reserved the claim.
        """
        try:
            claim = await self.remove_finalizer(await self.clear(claim, consumer))
        except NotFound:
            self._gone(claim)
            return
        await self.delete(claim)

    def _stamp(self) -> Object:
        now = self._timestamp()
        return {} if now is None else {"allocationTimestamp": now}

    async def _patch(self, claim: ResourceClaim, patch: list[Object], subresource: str | None = None) -> ResourceClaim:
        meta = claim.metadata
        raw = await self._client.patch(
            RESOURCE_CLAIMS, meta.name, patch, meta.namespace, kind="json", subresource=subresource
        )
        return self._took(raw)

    async def _rewrite(
        self, claim: ResourceClaim, edit: Edit, subresource: str | None = None, known: Object | None = None
    ) -> Object:
        based_on = ""

        def edit_or_learn(raw: Object) -> bool:
            nonlocal based_on
            try:
                is_changed = edit(raw)
            except ClaimChanged:
                self._took(raw)  # the next attempt decides by this version, perhaps before the watch reports it
                raise
            based_on = raw["metadata"]["resourceVersion"] if is_changed else ""
            return is_changed

        meta = claim.metadata
        try:
            return await rewrite(
                self._client,
                RESOURCE_CLAIMS,
                meta.namespace,
                meta.name,
                edit_or_learn,
                subresource=subresource,
                known=known,
            )
        except BaseException as error:
            if based_on and not isinstance(error, ClaimChanged) and may_have_happened(error):
                self._note_unsettled(meta.uid, based_on)
            raise

    def _note_unsettled(self, uid: str, resource_version: str) -> None:
        self._unsettled[uid] = resource_version
        if len(self._unsettled) > UNSETTLED:
            self._unsettled.popitem(last=False)

    def _took(self, raw: Object) -> ResourceClaim:
        claim = convert(ResourceClaim, raw)
        if claim.metadata.deletion_timestamp is not None and not claim.metadata.finalizers:
            self._gone(claim)  # with its last finalizer; the answer may have an old resourceVersion
        else:
            self._seen(claim)
        return claim


def _is_held(answer: Object, uid: str) -> bool:
    """Whether finalizers hold the object after its deletion, by the answer; otherwise it is gone."""
    meta = answer.get("metadata", {})
    return meta.get("uid") == uid and bool(meta.get("deletionTimestamp"))


def _test(path: str, value: object) -> Object:
    return {"op": "test", "path": path, "value": value}
