"""What a claim loses: five verbs, and no other write takes anything from a claim.

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

from collections.abc import Collection

from dra_api.codec import to_dict
from dra_api.resource import FINALIZER, ResourceClaim, ResourceClaimConsumerReference, ResourceClaimStatus
from dra_kube import RESOURCE_CLAIMS, Conflict, Invalid, NotFound, Object

from .claim_access import ClaimAccess, this_very
from .client import ClaimChanged

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

        With ``gone`` a claim that is being deleted ends with its devices: these consumers do not exist any more. Raises
        ClaimChanged if it has another one.
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
    """Return a patch that tests what it decides on, and names no resourceVersion.

    So others may change the rest meanwhile, as the garbage collector does when it marks the claim as deleted. Late or
    repeated, it either finds the same consumers, which are still gone, or is refused.
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
        _test("/status", {}),  # it got no allocation in the meantime
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
