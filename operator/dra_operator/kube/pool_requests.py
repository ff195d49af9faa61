"""Writing ResourcePoolStatusRequests: the answer, once, and their deletion when they are old."""

from __future__ import annotations

from collections.abc import Callable

from dra_api.codec import convert, to_dict
from dra_api.meta import Object as Struct
from dra_api.resource import ResourcePoolStatusRequest, ResourcePoolStatusRequestStatus
from dra_kube import RESOURCE_POOL_STATUS_REQUESTS, NotFound, Object

from .client import Client
from .rewrite import rewrite


class PoolRequestWriter:
    """Every answer of the server goes to ``seen`` at once."""

    def __init__(self, client: Client, seen: Callable[[Struct], None]) -> None:
        self._client, self._seen = client, seen

    async def answer(self, request: ResourcePoolStatusRequest, status: ResourcePoolStatusRequestStatus) -> bool:
        """Give this very request its status, unless it has one by now; whether it was given.

        Raises NotFound.
        """
        given = False

        def edit(raw: Object) -> bool:
            nonlocal given
            given = raw["metadata"]["uid"] == request.metadata.uid and not raw.get("status")
            if given:
                raw["status"] = to_dict(status)
            return given

        name = request.metadata.name
        raw = await rewrite(self._client, RESOURCE_POOL_STATUS_REQUESTS, "", name, edit, subresource="status")
        self._seen(convert(ResourcePoolStatusRequest, raw))
        return given

    async def delete(self, request: ResourcePoolStatusRequest) -> None:
        """Delete this very request; that it is gone is fine. Raises Conflict for another one of the name."""
        meta = request.metadata
        try:
            await self._client.delete(RESOURCE_POOL_STATUS_REQUESTS, meta.name, uid=meta.uid)
        except NotFound:
            return
