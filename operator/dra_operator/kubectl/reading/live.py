"""Reads a live cluster: each kind by one LIST, of all namespaces or, if the viewer may not, of one.

What the viewer may not read is no error here: the answer says what is missing for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec
from dra_api.api_resources import (
    EVENTS,
    LEASES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    Resource,
)
from dra_api.core import Event
from dra_api.leases import Lease
from dra_api.meta import Object, ObjectMeta
from dra_api.relations.quota import ResourceQuota
from dra_api.releases.gates import defaults_of
from dra_api.releases.release import release_of
from dra_api.resource import AllocationResult, ResourceClaim, ResourceClaimStatus
from dra_kube import Api, Connection, Forbidden, NotServed

from dra_operator.cache import without_bulk
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.sources.kind_table import TABLE, Kinds
from dra_operator.sources.malformed import MalformedObjects

from .progress import Progress, progress

KINDS: Final[Kinds] = {
    **TABLE,
    RESOURCE_QUOTAS: ResourceQuota,
    EVENTS: Event,
    LEASES: Lease,
}
TOLD_BY_EVENTS: Final = ("FailedPrepareDynamicResources", "FailedResourceClaimCreation", "FailedBinding")
"""Reasons of the events that are read: what no condition says."""
LEASE_NAMESPACE: Final = "kube-system"


async def observe(where: Connection, timeout: float, namespace: str) -> Observed:
    """All that the viewer may read. Raises KubeError if the server cannot be used."""
    async with Api(where, timeout=timeout) as api:
        version = await api.raw_get("/version")
        with progress(len(KINDS)) as told:
            reader = _Reader(api, namespace, told)
            lists = await asyncio.gather(*(reader.read(resource, kind) for resource, kind in KINDS.items()))
    objects = [obj for found in lists for obj in found]
    release, gates = release_of(version)[0], defaults_of(version)
    return Observed(objects, datetime.now(UTC), release, namespace, reader.unseen, reader.malformed, gates, True)


@dataclass
class _Reader:
    api: Api
    namespace: str
    progress: Progress | None = None
    unseen: dict[str, str] = field(default_factory=dict)
    malformed: dict[str, str] = field(default_factory=dict)

    async def read(self, resource: Resource, kind: type[Object]) -> list[Object]:
        """The objects of one kind that the viewer may see."""
        found = await self._seen(resource, kind)
        if self.progress is not None:
            self.progress.add(len(found))
        return found

    async def _seen(self, resource: Resource, kind: type[Object]) -> list[Object]:
        scope = LEASE_NAMESPACE if resource is LEASES else None
        try:
            return await self._listed(resource, kind, scope)
        except NotServed as error:
            self.unseen[str(resource)] = str(error)
            return []
        except Forbidden as error:
            if not resource.namespaced or scope is not None:
                self.unseen[str(resource)] = str(error)
                return []
        try:
            found = await self._listed(resource, kind, self.namespace)
        except Forbidden as error:
            self.unseen[str(resource)] = str(error)
            return []
        self.unseen[str(resource)] = f"read only in namespace {self.namespace}"
        return found

    async def _listed(self, resource: Resource, kind: type[Object], namespace: str | None) -> list[Object]:
        if resource is not EVENTS:
            return await self._page(resource, kind, namespace)
        pages = [
            await self._page(resource, kind, namespace, fieldSelector=f"reason={reason}") for reason in TOLD_BY_EVENTS
        ]
        return [event for page in pages for event in page]

    async def _page(
        self, resource: Resource, kind: type[Object], namespace: str | None, **selectors: str
    ) -> list[Object]:
        listed = await self.api.list_as(resource, kind, namespace, keep=without_bulk, **selectors)
        partially_decoded: list[Object] = []
        for raw, fault in listed.malformed:
            meta = _metadata(raw)
            self.malformed[f"{resource.kind} {meta.namespace}/{meta.name}".replace(" /", " ")] = str(fault)
            if resource is RESOURCE_CLAIMS:
                MalformedObjects(partial(_keep, partially_decoded, meta)).take(resource, raw, fault)
        return [*listed.items, *partially_decoded]


def _metadata(raw: bytes) -> ObjectMeta:
    try:
        found: Mapping[str, Any] = msgspec.json.decode(raw)
        meta = found["metadata"]
        return ObjectMeta(
            name=str(meta.get("name", "")), namespace=str(meta.get("namespace", "")), uid=str(meta.get("uid", ""))
        )
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return ObjectMeta(name="(without a name)")


def _keep(into: list[Object], meta: ObjectMeta, _: str, allocation: AllocationResult | None) -> None:
    """What is known of a malformed claim: its devices stay in use."""
    if allocation is not None:
        into.append(ResourceClaim(metadata=meta, status=ResourceClaimStatus(allocation=allocation)))
