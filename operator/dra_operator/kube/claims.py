"""Reads and writes of ResourceClaims.

Every answer of the server goes to ``seen`` or ``gone`` at once (the assume cache), so that nothing waits for the watch.
The functions state the expectations and the changes of a write, on the raw object, so that unknown fields are
preserved. They raise ClaimChanged when the claim is not what the plan was made for.

A claim gains a finalizer, an allocation and consumers (``ClaimWriter``), and loses them by five verbs
(``ClaimReleases``); no other write takes anything from a claim.

==========  ============================================================================================
unreserve   takes consumers off; with the last one it may deallocate, in the same write
park        takes consumers off, and puts a contest in the place of the last one; the devices stay
deallocate  gives the devices back of a claim that no other pod uses; its finalizer stays
release     takes the finalizer off, so that the claim can end; an allocated claim keeps it while it is used
delete      deletes the claim; it ends when it is released
==========  ============================================================================================

In this order a claim is never allocated without a finalizer, so that it cannot vanish with devices that are in use.
Which event calls for which verbs is a table in ``docs/releasing.md``.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

import msgspec
from dra_api.codec import convert, to_dict
from dra_api.meta import Object as Struct
from dra_api.resource import (
    FINALIZER,
    MOST_CONSUMERS,
    AllocationResult,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
)
from dra_kube import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Conflict, Invalid, NotFound, Object, Unreachable

from dra_operator.cache import ClaimTemplate
from dra_operator.kube.client import (
    ClaimChanged,
    ClaimFull,
    ClaimStripped,
    Client,
    Edit,
    Fresh,
    may_have_happened,
    rewrite,
)
from dra_operator.scheduling.state import HOLD, claim_without_bulk, is_large


def this_very(raw: Object, claim: ResourceClaim) -> Object:
    """Return the claim, and not another one of its name."""
    if raw["metadata"].get("uid", "") != claim.metadata.uid:
        raise ClaimChanged(f"claim {claim.key} was replaced by another one of the same name in the meantime")
    return raw


def expect(raw: Object, claim: ResourceClaim, wanted: Object | None = None) -> Object:
    """Return the claim, if it is allocated, or, with ``wanted``, if it is not allocated yet or exactly so."""
    if this_very(raw, claim)["metadata"].get("deletionTimestamp"):
        raise ClaimChanged(f"claim {claim.key} got deleted in the meantime")
    allocation = raw.get("status", {}).get("allocation")
    if wanted is None and allocation is None:
        raise ClaimChanged(f"claim {claim.key} got deallocated elsewhere in the meantime")
    if wanted is not None and allocation is not None and not _is_same_allocation(allocation, wanted):
        raise ClaimChanged(f"claim {claim.key} got allocated elsewhere in the meantime")
    return raw


def _is_same_allocation(one: Object, other: Object) -> bool:
    """Return whether both give the same devices on the same nodes, whenever each was written."""
    first, second = (
        msgspec.structs.replace(convert(AllocationResult, each), allocation_timestamp=None) for each in (one, other)
    )
    return first == second


def add_finalizer(raw: Object, finalizer: str) -> bool:
    """Add the finalizer; whether it was missing."""
    finalizers = raw["metadata"].get("finalizers") or []
    if finalizer in finalizers:
        return False
    raw["metadata"]["finalizers"] = [*finalizers, finalizer]
    return True


def add_consumers(status: Object, consumers: Sequence[Object]) -> bool:
    """Add the missing consumers, as many as fit; whether any was added."""
    before = status.get("reservedFor") or []
    known = {entry.get("uid") for entry in before}
    missing = {consumer["uid"]: consumer for consumer in consumers if consumer["uid"] not in known}
    status["reservedFor"] = [*before, *missing.values()][: max(MOST_CONSUMERS, len(before))]
    return len(status["reservedFor"]) > len(before)


def with_consumer(claim: ResourceClaim, consumer: ResourceClaimConsumerReference) -> ResourceClaim:
    """Return the claim, if it took the consumer."""
    if any(entry.uid == consumer.uid for entry in claim.status.reserved_for or ()):
        return claim
    raise ClaimFull(
        f"claim {claim.key} already has {MOST_CONSUMERS} consumers, the most possible: wait until one ends, "
        "or use another claim"
    )


Seen = Callable[[Struct], None]
Gone = Callable[[ResourceClaim], None]
UNSETTLED_CLAIMS = 10_000  # claims remembered whose last write got no answer
LARGE_CLAIMS_AT_ONCE = 4
"""Large claims that are read or written at the same time. One of 1.4 MB takes up to 15 MiB in a write."""
_AT_ONCE: Final = nullcontext()


class ClaimAccess:
    """The server's claims, and which of our writes to them got no answer."""

    def __init__(self, client: Client, seen: Seen, gone: Gone) -> None:
        self._client, self._seen, self._gone = client, seen, gone
        self._unsettled: OrderedDict[str, str] = OrderedDict()
        self._large = asyncio.Semaphore(LARGE_CLAIMS_AT_ONCE)
        self._fresh = Fresh()  # claims just created or deleted, until they are allocated or end

    def is_unsettled(self, claim: ResourceClaim) -> bool:
        """Return whether a write of ours that got no answer may still change this version of the claim.

        The write names the version on which it is based. Once another version was seen, it has happened or will fail.
        """
        return self._unsettled.get(claim.metadata.uid) == claim.metadata.resource_version

    def _turn_of(self, claim: ResourceClaim) -> AbstractAsyncContextManager[None]:
        """Return what a request about the claim has to enter: of large claims few are in memory as a whole.

        Fifty workers write claims, and a tenant may make each of its claims as large as the server takes.
        """
        return self._large if is_large(claim) else _AT_ONCE

    async def read(self, claim: ResourceClaim) -> ResourceClaim:
        """Return the claim as the server has it now, or its successor of the same name. Raises NotFound."""
        async with self._turn_of(claim):
            return await self._get(claim.metadata.namespace, claim.metadata.name)

    async def read_whole(self, claim: ResourceClaim, lend: Callable[[ResourceClaim], None]) -> None:
        """Read a claim that is set aside, and have it held whole. Raises NotFound."""
        meta = claim.metadata
        async with self._large:
            raw = await self._client.get(RESOURCE_CLAIMS, meta.name, meta.namespace)
            lend(claim_without_bulk(convert(ResourceClaim, raw)))
            self._took(raw)  # a newer version than the one that was set aside

    async def template(self, namespace: str, name: str) -> ClaimTemplate:
        """Return a template as the server has it now. Raises NotFound."""
        async with self._large:
            raw = await self._client.get(RESOURCE_CLAIM_TEMPLATES, name, namespace)
            return convert(ClaimTemplate, raw).without_bulk()

    async def find(self, namespace: str, name: str) -> ResourceClaim:
        """Return the claim of a name as the server has it now. Raises NotFound."""
        # How large it is shows in the answer: a tenant may put large claims where names are to be generated.
        async with self._large:
            return await self._get(namespace, name)

    async def _get(self, namespace: str, name: str) -> ResourceClaim:
        return self._took(await self._client.get(RESOURCE_CLAIMS, name, namespace))

    def came(self, claim: ResourceClaim, raw: Object) -> None:
        """Keep the watched version of a claim in deletion until the claim is gone."""
        if claim.metadata.deletion_timestamp is not None:
            self._fresh.keep(raw)

    async def _patch(self, claim: ResourceClaim, patch: list[Object], subresource: str | None = None) -> ResourceClaim:
        meta = claim.metadata
        async with self._turn_of(claim):
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
            async with self._turn_of(claim):
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
        self._unsettled.move_to_end(uid)
        if len(self._unsettled) > UNSETTLED_CLAIMS:
            self._unsettled.popitem(last=False)

    def _took(self, raw: Object) -> ResourceClaim:
        # Stripped like the objects of the cache: a binding may wait for minutes with its claims.
        claim = claim_without_bulk(convert(ResourceClaim, raw))
        if claim.metadata.deletion_timestamp is not None and not claim.metadata.finalizers:
            self._gone(claim)  # with its last finalizer; the answer may have an old resourceVersion
        else:
            self._seen(claim)
        return claim


_EMPTY = ResourceClaimStatus()


class ClaimReleases(ClaimAccess):
    """The five verbs. Each raises ClaimChanged if another claim has the name by now, and NotFound if none has."""

    async def unreserve(
        self, claim: ResourceClaim, consumers: Collection[str], *, deallocate: bool = True, are_gone: bool = False
    ) -> ResourceClaim:
        """Take the consumers with these UIDs off; with ``deallocate`` the devices too, after the last one.

        Claims without the finalizer keep their allocation (claim-controller.md 6.2, CC-06). ``are_gone``: the consumers
        do not exist any more, and so can be taken off by one request without a conflict.
        """
        if are_gone and deallocate:
            try:
                return await self._patch(claim, _without(claim, consumers), "status")
            except Invalid:
                pass  # the claim is not as it was known: it is read, and decided on again

        def edit(raw: Object) -> bool:
            status = this_very(raw, claim).setdefault("status", {})
            before = status.get("reservedFor") or []
            status["reservedFor"] = [entry for entry in before if entry.get("uid") not in consumers]
            frees = deallocate and not status["reservedFor"] and FINALIZER in raw["metadata"].get("finalizers", ())
            freed = frees and status.pop("allocation", None) is not None
            return freed or len(before) != len(status["reservedFor"])

        return self._took(await self._rewrite(claim, edit, "status"))

    async def park(
        self, claim: ResourceClaim, consumers: Collection[str], contest: ResourceClaimConsumerReference
    ) -> ResourceClaim:
        """Take the consumers with these UIDs off an allocated claim; the contest stands there once no other is left.

        Raises ClaimChanged if the claim has no devices any more.
        """

        def edit(raw: Object) -> bool:
            status = this_very(raw, claim).setdefault("status", {})
            if status.get("allocation") is None:
                raise ClaimChanged(f"claim {claim.key} got deallocated elsewhere in the meantime")
            before = status.get("reservedFor") or []
            left = [entry for entry in before if entry.get("uid") not in consumers]
            status["reservedFor"] = left or [to_dict(contest)]
            return bool(status["reservedFor"] != before)

        return self._took(await self._rewrite(claim, edit, "status"))

    async def deallocate(self, claim: ResourceClaim, *consumers: str) -> ResourceClaim:
        """Give the devices back of a claim that no others use than these consumers, by UID.

        Raises ClaimChanged if another consumer reserved the claim.
        """

        def edit(raw: Object) -> bool:
            status = this_very(raw, claim).setdefault("status", {})
            _check_unused(claim, raw, consumers)
            cleared = [status.pop(field, None) for field in ("reservedFor", "allocation", "devices")]
            return any(value is not None for value in cleared)

        return self._took(await self._rewrite(claim, edit, "status"))

    async def release(
        self, claim: ResourceClaim, finalizer: str = FINALIZER, *, gone: Collection[str] | None = None
    ) -> ResourceClaim:
        """Take the finalizer off, unless the claim is allocated by now.

        With ``gone`` a claim in deletion is removed with its devices. ``gone`` are UIDs of consumers that do not exist
        any more. Raises ClaimChanged if the claim has another consumer.
        """
        if gone is None and claim.status == _EMPTY and finalizer in (claim.metadata.finalizers or ()):
            try:
                return await self._patch(claim, _released(claim, finalizer))
            except Invalid:
                pass  # as above

        def edit(raw: Object) -> bool:
            meta = this_very(raw, claim)["metadata"]
            finalizers = meta.get("finalizers") or []
            if gone is not None and meta.get("deletionTimestamp"):
                _check_unused(claim, raw, gone)
            elif raw.get("status", {}).get("allocation") is not None:
                return False
            meta["finalizers"] = [name for name in finalizers if name != finalizer]
            return finalizer in finalizers

        # of a claim that ends with its devices only this version is sure to name all consumers
        known = self._fresh.take(claim) if gone is not None else None
        return self._took(await self._rewrite(claim, edit, known=known))

    async def delete(self, claim: ResourceClaim, *, unchanged: bool = False) -> ResourceClaim | None:
        """Delete this very claim, with ``unchanged`` in this version only, else Conflict is raised.

        The claim as its finalizers hold it; None if it is gone, or another one has its name. After Conflict the cache
        has the claim as it is now.
        """
        meta = claim.metadata
        version = meta.resource_version if unchanged else None
        async with self._turn_of(claim):
            try:
                answer = await self._client.delete(
                    RESOURCE_CLAIMS, meta.name, meta.namespace, uid=meta.uid, resource_version=version
                )
            except NotFound:
                answer = {}
            except Conflict:
                answer = await self._client.get(RESOURCE_CLAIMS, meta.name, meta.namespace)
                if answer["metadata"]["uid"] == meta.uid:
                    self._fresh.keep(answer)
                    self._took(answer)
                    raise
            if not _is_held(answer, meta.uid):
                self._gone(claim)
                return None
            self._fresh.keep(answer)
            return self._took(answer)


def _without(claim: ResourceClaim, gone: Collection[str]) -> list[Object]:
    """Return a patch that tests the fields it depends on, instead of the resourceVersion.

    So others may change the rest meanwhile, as the garbage collector does when it marks the claim as deleted. Late or
    repeated, it finds the same consumers, which are still gone, or is refused.
    """
    left = [to_dict(entry) for entry in claim.status.reserved_for or () if entry.uid not in gone]
    patch = [
        _test("/metadata/uid", claim.metadata.uid),
        _test("/status/reservedFor", [to_dict(entry) for entry in claim.status.reserved_for or ()]),
    ]
    if left:
        return [*patch, {"op": "replace", "path": "/status/reservedFor", "value": left}]
    patch.append({"op": "remove", "path": "/status/reservedFor"})
    if claim.status.allocation is not None and FINALIZER in (claim.metadata.finalizers or ()):
        patch.append(_test("/metadata/finalizers", list(claim.metadata.finalizers or ())))
        patch.append({"op": "remove", "path": "/status/allocation"})
    return patch


def _released(claim: ResourceClaim, finalizer: str) -> list[Object]:
    """Return a patch as above, of a claim that is not allocated."""
    finalizers = list(claim.metadata.finalizers or ())
    return [
        _test("/metadata/uid", claim.metadata.uid),
        _test("/metadata/finalizers", finalizers),
        _test("/status", {}),  # still without an allocation
        {"op": "remove", "path": f"/metadata/finalizers/{finalizers.index(finalizer)}"},
    ]


def _check_unused(claim: ResourceClaim, raw: Object, consumers: Collection[str]) -> None:
    """Raises ClaimChanged if the claim has a consumer that is not among these."""
    if any(entry.get("uid") not in consumers for entry in raw.get("status", {}).get("reservedFor") or ()):
        raise ClaimChanged(f"claim {claim.key} got reserved by another consumer in the meantime")


def _is_held(answer: Object, uid: str) -> bool:
    """Return whether finalizers hold the object after its deletion, by the answer; otherwise it is gone."""
    meta = answer.get("metadata", {})
    return meta.get("uid") == uid and bool(meta.get("deletionTimestamp"))


def _test(path: str, value: object) -> Object:
    return {"op": "test", "path": path, "value": value}


Write = Callable[[ResourceClaim, Sequence[ResourceClaimConsumerReference]], Awaitable[ResourceClaim]]


@dataclass(eq=False, slots=True)
class _Turn:
    """A caller that waits for a write that includes its consumer."""

    consumer: ResourceClaimConsumerReference
    written: asyncio.Future[ResourceClaim]


@dataclass(eq=False, slots=True)
class _Gathering:
    """The callers that wait for a claim; the one that writes holds the lock."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: list[_Turn] = field(default_factory=list)
    callers: int = 0


class Reservations:
    """Writes the reservations of many pods on one claim together.

    A claim that hundreds of pods share gets hundreds of consumers at once. Written one by one they would conflict all
    the time: each write changes the list that the next one has read. While one write is under way, other callers for
    the claim gather, and the next write takes them all. ``write`` adds several consumers to a claim in one update; what
    it raises reaches all of them.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._gatherings: dict[str, _Gathering] = {}

    async def add(self, claim: ResourceClaim, consumer: ResourceClaimConsumerReference) -> ResourceClaim:
        """Return the claim with the consumer in it."""
        uid = claim.metadata.uid
        gathering = self._gatherings.setdefault(uid, _Gathering())
        turn = _Turn(consumer, asyncio.get_running_loop().create_future())
        gathering.waiting.append(turn)
        gathering.callers += 1
        try:
            async with gathering.lock:
                if not turn.written.done():
                    await self._write_all(claim, gathering)
            return turn.written.result()
        finally:
            gathering.callers -= 1
            if turn in gathering.waiting:
                gathering.waiting.remove(turn)
            if not gathering.callers:
                self._gatherings.pop(uid, None)

    async def _write_all(self, claim: ResourceClaim, gathering: _Gathering) -> None:
        batch, gathering.waiting = gathering.waiting, []
        try:
            written = await self._write(claim, [turn.consumer for turn in batch])
        except Exception as error:
            _fail(batch, error)
        except asyncio.CancelledError:
            _fail(batch, Unreachable(f"reserving claim {claim.key} was interrupted"))
            raise
        else:
            for turn in batch:
                turn.written.set_result(written)


def _fail(batch: Sequence[_Turn], error: Exception) -> None:
    for turn in batch:
        turn.written.set_exception(error)
        turn.written.exception()  # a cancelled caller does not read it


class ClaimWriter(ClaimReleases):
    """All writes to claims.

    ``timestamp`` gives the time that goes into new allocations (``allocationTimestamp``), or None to write none.
    """

    def __init__(self, client: Client, seen: Seen, gone: Gone, timestamp: Callable[[], str | None]) -> None:
        super().__init__(client, seen, gone)
        self._timestamp = timestamp
        self._reservations = Reservations(self._reserve_all)

    async def create(self, body: Object) -> ResourceClaim:
        """Create a claim. Raises Forbidden (quota, admin access), Invalid, ..."""
        raw = await self._client.create(RESOURCE_CLAIMS, body, body["metadata"]["namespace"])
        self._fresh.keep(raw)
        return self._took(raw)

    async def allocate(
        self, claim: ResourceClaim, allocation: AllocationResult, consumer: ResourceClaimConsumerReference | None
    ) -> ResourceClaim:
        """Write the allocation and the reservation in a single status update (scheduling.md 4.7).

        ``consumer``: None for an immediate claim, which has none yet. The finalizer comes before the allocation:
        without it an allocated claim could vanish, and its devices would look free. An allocation equal to ours comes
        from our earlier write, whose answer was lost. Raises ClaimChanged if another writer deleted, replaced,
        allocated or deallocated the claim in the meantime, or if it cannot take another consumer.
        """
        finalizer, consumers = (HOLD, []) if consumer is None else (FINALIZER, [to_dict(consumer)])
        known = self._fresh.take(claim)
        wanted = to_dict(allocation)
        known = await self._rewrite(
            claim, lambda raw: add_finalizer(expect(raw, claim, wanted), finalizer), known=known
        )
        if finalizer not in known["metadata"].get("finalizers", ()):
            self._took(known)
            raise ClaimStripped(
                f"the finalizer {finalizer} was removed as soon as it was written; without it, the claim could be "
                "deleted while in use: exempt it in the mutating webhook or MutatingAdmissionPolicy that changes "
                "ResourceClaims"
            )
        # Others have their turn between the two writes: of a large claim nothing is kept meanwhile.
        based_on, known = (None if is_large(claim) else known), {}

        def edit(raw: Object) -> bool:
            status = expect(raw, claim, wanted).setdefault("status", {})
            if finalizer not in raw["metadata"].get("finalizers", ()):
                raise ClaimChanged(f"claim {claim.key} lost its finalizer in the meantime")
            is_new = status.get("allocation") is None
            if is_new:
                now = self._timestamp()
                status["allocation"] = wanted if now is None else {**wanted, "allocationTimestamp": now}
            return add_consumers(status, consumers) or is_new

        written = self._took(await self._rewrite(claim, edit, "status", based_on))
        return written if consumer is None else with_consumer(written, consumer)

    async def reserve(self, claim: ResourceClaim, consumer: ResourceClaimConsumerReference) -> ResourceClaim:
        """Add a consumer to an allocated claim (claim-controller.md 5.5, scheduling.md 4.7). Raises ClaimChanged."""
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
