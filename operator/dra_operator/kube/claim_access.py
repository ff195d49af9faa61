"""Reading claims and changing them: what all writes to claims have in common.

Every answer of the server goes to ``seen`` or ``gone`` at once (the assume cache), so that nothing waits for the watch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from dra_api.codec import convert
from dra_api.meta import Object as Struct
from dra_api.resource import ResourceClaim
from dra_kube import RESOURCE_CLAIMS, Object

from .answers import may_have_happened
from .changed import ClaimChanged
from .client import Client
from .fresh import Fresh
from .rewrite import Edit, rewrite

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
