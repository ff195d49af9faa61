"""Write ResourceClaims: generate, allocate, reserve, protect (``releases`` has the opposite).

Reservations of many pods on one claim are written together. A claim that hundreds of pods share gets hundreds of new
consumers at once. Written one by one they would conflict all the time: each write changes the list that the next one
has read. So while one write is under way, other callers for the claim gather, and the next write takes them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from dra_api.codec import to_dict
from dra_api.resource import FINALIZER, AllocationResult, ResourceClaim, ResourceClaimConsumerReference
from dra_kube import RESOURCE_CLAIMS, Object, Unreachable

from dra_operator.kube.claim_access import Gone, Seen, add_consumers, add_finalizer, expect, this_very, with_consumer
from dra_operator.kube.client import ClaimChanged, ClaimStripped, Client
from dra_operator.kube.releases import ClaimReleases
from dra_operator.scheduling.state import HOLD

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
    """``write`` adds several consumers to a claim in one update; what it raises reaches all of them."""

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
        """Write the allocation of an immediate claim, for no consumer yet. As ``allocate`` otherwise."""
        return await self._allocate(claim, allocation, HOLD, ())

    async def _allocate(
        self, claim: ResourceClaim, allocation: AllocationResult, finalizer: str, consumers: Sequence[Object]
    ) -> ResourceClaim:
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

    def _stamp(self) -> Object:
        now = self._timestamp()
        return {} if now is None else {"allocationTimestamp": now}
