"""Writes ResourceClaims: generate, allocate, reserve, protect; what claims lose is in ``releases``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dra_api.codec import to_dict
from dra_api.resource import (
    FINALIZER,
    AllocationResult,
    ResourceClaim,
    ResourceClaimConsumerReference,
)
from dra_kube import RESOURCE_CLAIMS, Object

from dra_operator.scheduling.state import HOLD

from .changed import ClaimChanged, ClaimStripped
from .claim_access import Gone, Seen
from .claim_edits import add_consumers, add_finalizer, expect, this_very, with_consumer
from .client import Client
from .releases import ClaimReleases
from .reservations import Reservations


class ClaimWriter(ClaimReleases):
    """All writes to claims.

    ``timestamp`` gives the time that goes into new allocations (``allocationTimestamp``), or None to write none.
    """

    def __init__(self, client: Client, seen: Seen, gone: Gone, timestamp: Callable[[], str | None]) -> None:
        super().__init__(client, seen, gone)
        self._timestamp = timestamp
        self._reservations = Reservations(self._reserve_all)

    async def create(self, body: Object) -> ResourceClaim:
        """A new claim. Raises Forbidden (quota, admin access), Invalid, ..."""
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
