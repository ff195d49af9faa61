"""Finds deletions that no event reported, and a server that went back in time.

Kopf lists a kind again when its watch fell too far behind (410), and never reports what was deleted in between. So
when a watch begins or its resourceVersion is refused, and at long intervals, the audit lists what exists (versions
only) and removes all else from the cache, except objects newer than that list. It repeats a failed audit until it
succeeds, at once when a watch begins.

A list is never older than what was seen before the request, unless the server was restored from a backup. Then
resourceVersions start again from a lower one, and every change would be dropped as old: the audit calls ``restored``,
and the cache is built again. Where other writers have raised the resourceVersion above the one before the restore,
single objects tell: one has an older version than the cache, or is there again after its deletion, or a pod has the
same version as before a binding that was answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any

from dra_api.meta import ObjectVersion
from dra_kube import RESOURCE_CLAIMS, Api, KubeError, Resource

from dra_operator.cache import Source, Store, revision
from dra_operator.controllers import Control

from .kind_table import Kinds
from .malformed import MalformedObjects

logger = logging.getLogger(__name__)

AUDIT_GAP_SECONDS = 2.0  # seconds between two audits of one kind
AUDIT_RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds until a failed audit is repeated, the last one for ever


class Audit:
    """``call`` asks for an audit of one kind; ``saw`` takes every resourceVersion; ``run`` audits until cancelled.

    Every kind is audited after ``interval`` seconds.
    """

    def __init__(
        self,
        api: Api,
        control: Control,
        malformed_objects: MalformedObjects,
        kinds: Kinds,
        restored: Callable[[str], None],
        interval: float,
    ) -> None:
        self._api, self._control, self._malformed_objects, self._kinds = api, control, malformed_objects, kinds
        self._restored, self._interval = restored, interval
        self._calls = {resource: asyncio.Event() for resource in kinds}
        self._newest: dict[Resource, int] = {}
        self._served: set[Resource] = set()

    def call(self, resource: Resource) -> None:
        """Ask for an audit: an event of the kind may have been missed."""
        self._calls[resource].set()

    def loaded(self, resource: Resource, version: str) -> None:
        """The cache has the kind as of a list of this resourceVersion."""
        self._served.add(resource)
        self.saw(resource, version)

    def saw(self, resource: Resource, version: str) -> None:
        """The server has come at least that far."""
        self._newest[resource] = max(revision(version) or 0, self._newest.get(resource, 0))

    async def run(self) -> None:
        """Audit until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sweep(), name="audit")
            for resource in self._kinds:
                group.create_task(self._keep(resource), name=f"audit of {resource}")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            for resource in self._served:
                self.call(resource)
            self._control.look_again()

    async def _keep(self, resource: Resource) -> None:
        while True:
            await self._calls[resource].wait()
            self._calls[resource].clear()
            for pause in _pauses():
                if await self._compare(resource):
                    break
                await asyncio.sleep(min(pause, AUDIT_GAP_SECONDS))
                await self._called_within(resource, pause - AUDIT_GAP_SECONDS)
            await asyncio.sleep(AUDIT_GAP_SECONDS)

    async def _called_within(self, resource: Resource, seconds: float) -> None:
        """Wait so long at most: a watch that begins says that the server is back."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._calls[resource].wait()
        self._calls[resource].clear()

    async def _compare(self, resource: Resource) -> bool:
        """Compare the cache with the server; whether that succeeded."""
        store = self._control.cluster.store_of(self._kinds[resource])
        newest, deleted = max(self._newest.get(resource, 0), _newest_in(store)), frozenset(store.deleted)
        bound = set(self._control.cluster.bound)
        try:
            listed, at = await self._api.list_versions(resource)
        except KubeError as error:
            logger.debug("audit of %s postponed: %s", resource, error)
            return False
        bound &= self._control.cluster.bound  # without those that an event has shown with their node meanwhile
        if (revision(at) or newest) < newest:
            self._restored(f"its {resource} are at resourceVersion {at}, after {newest}")
            return True
        if back := next((it for it in listed if it.uid in deleted or _is_undone(it, store, at, bound)), None):
            self._restored(f"{resource.kind} {back.key} is at resourceVersion {back.resource_version} again")
            return True
        self.saw(resource, at)
        present = {it.key: it.uid for it in listed}
        self._remove_others(resource, present, at)
        return True

    def _remove_others(self, resource: Resource, present: dict[str, str], at: str) -> None:
        kind = self._kinds[resource]
        for obj in list(self._control.cluster.store_of(kind)):
            uid = obj.metadata.uid
            if present.get(obj.key) != uid and _is_older(obj.metadata.resource_version, at):
                logger.info("%s %s was deleted without an event", resource.kind, obj.key)
                self._control.delete(Source.AUDIT, kind, obj.key, uid)
        if resource == RESOURCE_CLAIMS:
            for key, claim in list(self._malformed_objects.partially_decoded.items()):
                if present.get(key) != claim.uid and _is_older(claim.resource_version, at):
                    self._malformed_objects.deleted(key, claim.uid)


def _pauses() -> Iterator[float]:
    yield from AUDIT_RETRY_SECONDS
    while True:
        yield AUDIT_RETRY_SECONDS[-1]


def _newest_in(store: Store[Any]) -> int:
    """The newest version in the cache: it may be an answer to a write of ours, which no watch has brought."""
    return max((revision(obj.metadata.resource_version) or 0 for obj in store), default=0)


def _is_undone(version: ObjectVersion, store: Store[Any], at: str, bound: Collection[str]) -> bool:
    """Whether a list made at this version has an older version of the object than it should have.

    ``bound`` are pods whose binding was answered before, and that no event has shown with their node.
    """
    known = store.get(version.key)
    listed = revision(version.resource_version)
    seen = revision(known.metadata.resource_version) if known is not None else None
    if seen is None or listed is None:
        return False
    return listed < seen <= (revision(at) or 0) or (listed == seen and version.uid in bound)


def _is_older(version: str, at: str) -> bool:
    seen, listed = revision(version), revision(at)
    return seen is not None and listed is not None and seen <= listed
