"""Undoes a claim that was made for one pod only: deallocate, release, delete (scheduling.md 4.3)."""

from __future__ import annotations

from contextlib import suppress

from dra_api.resource import ResourceClaim
from dra_kube import NotFound

from dra_operator.kube import ClaimWriter


async def discard(claims: ClaimWriter, claim: ResourceClaim, consumer: str) -> None:
    """One step after the other; a repetition continues where the last one stopped.

    Raises ClaimChanged if another consumer reserved the claim.
    """
    with suppress(NotFound):
        claim = await claims.release(await claims.deallocate(claim, consumer))
    await claims.delete(claim)
