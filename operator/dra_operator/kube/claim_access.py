"""Reading claims and changing them: what all writes to claims have in common.

Every answer of the server goes to ``seen`` or ``gone`` at once (the assume cache), so that nothing waits for the watch.
The functions state the expectations and the changes of a write, on the raw object, so that unknown fields
are preserved. They raise ClaimChanged when the claim is not what the plan was made for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec
from dra_api.codec import convert
from dra_api.meta import Object as Struct
from dra_api.resource import MOST_CONSUMERS, AllocationResult, ResourceClaim, ResourceClaimConsumerReference
from dra_kube import RESOURCE_CLAIMS, Object

from dra_operator.kube.client import ClaimChanged, ClaimFull, Client, Edit, Fresh, may_have_happened, rewrite


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


class ClaimAccess:
    """The server's claims, and which of our writes to them got no answer."""

    def __init__(self, client: Client, seen: Seen, gone: Gone) -> None:
        self._client, self._seen, self._gone = client, seen, gone
        self._unsettled: OrderedDict[str, str] = OrderedDict()
        self._fresh = Fresh()  # claims just created or deleted, until they are allocated or end

    def is_unsettled(self, claim: ResourceClaim) -> bool:
        """Return whether a write of ours that got no answer may still change this version of the claim.

        The write names the version on which it is based. Once another version was seen, it has happened or will fail.
        """
        return self._unsettled.get(claim.metadata.uid) == claim.metadata.resource_version

    async def read(self, claim: ResourceClaim) -> ResourceClaim:
        """Return the claim as the server has it now, or its successor of the same name. Raises NotFound."""
        return await self.find(claim.metadata.namespace, claim.metadata.name)

    async def find(self, namespace: str, name: str) -> ResourceClaim:
        """Return the claim of a name as the server has it now. Raises NotFound."""
        return self._took(await self._client.get(RESOURCE_CLAIMS, name, namespace))

    def came(self, claim: ResourceClaim, raw: Object) -> None:
        """Keep what the watch sent of a claim that is being deleted, until it ends."""
        if claim.metadata.deletion_timestamp is not None:
            self._fresh.keep(raw)

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
        if len(self._unsettled) > UNSETTLED_CLAIMS:
            self._unsettled.popitem(last=False)

    def _took(self, raw: Object) -> ResourceClaim:
        claim = convert(ResourceClaim, raw)
        if claim.metadata.deletion_timestamp is not None and not claim.metadata.finalizers:
            self._gone(claim)  # with its last finalizer; the answer may have an old resourceVersion
        else:
            self._seen(claim)
        return claim
