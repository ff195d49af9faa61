"""Keeps the ResourceSlices of a driver in the API server as the driver wants them.

This part does the I/O: it watches, decides with ``plan_pool`` and writes, one pool at a time.
A plugin has one for its node; a control plane for network-attached devices uses it by itself::

    async with SlicePublisher(api, "net.example.com", on_error=report) as publisher:
        publisher.publish({"rack-1": Pool.of(devices, all_nodes=True)})

Published slices stay when the publisher ends. Spec: plugin-helper.md section 4.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from dra_kube import NODES, RESOURCE_SLICES, Api, KubeError, NotFound

from dra_kubeletplugin.errors import DroppedFields, PoolInvalid, Recoverable, SyncFailed, WatchFailed

from .check import checked
from .dropped import disabled_features
from .due import DueTimes, Reason
from .model import Owner, Pool, Resources, Slice, tidy
from .plan import Publication, Stored, Write, body, content, plan_pool, same_slice
from .view import SliceView, text_at
from .watching import follow_slices

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Statistics:
    """How many slices were written since the publisher started."""

    creates: int = 0
    updates: int = 0
    deletes: int = 0


class SlicePublisher:
    """Publishes pools; an async context manager.

    Without ``owner`` nothing but an administrator removes the slices. With a Node as owner they are local to that
    node, unless ``reconcile_pool`` names the one pool that this publisher is responsible for (RS-05).
    ``sync_delay`` is how many seconds a pool must have been quiet before foreign changes are undone,
    ``overlay_seconds`` how long our own writes override the watch.
    """

    def __init__(
        self,
        api: Api,
        driver: str,
        *,
        owner: Owner | None = None,
        reconcile_pool: str = "",
        on_error: Callable[[Recoverable, str], None] = lambda error, message: log.warning("%s: %s", message, error),
        sync_delay: float = 30.0,
        overlay_seconds: float = 60.0,
    ) -> None:
        self.statistics = Statistics()
        self._api = api
        self._driver = driver
        self._owner = owner
        self._node_name = owner.name if owner and owner.is_node and not reconcile_pool else ""
        self._reconcile_pool = reconcile_pool
        self._on_error = on_error
        self._sync_delay = sync_delay
        self._overlay_seconds = overlay_seconds
        self._wanted: dict[str, Pool] = {}
        self._wishes = 0  # counts the calls of publish, so that a sync notices that its pools are outdated
        self._view = SliceView(overlay_seconds)
        self._due = DueTimes()
        self._listed = asyncio.Event()
        self._wished = asyncio.Event()
        self._wake = asyncio.Event()
        self._unsettled: set[str] = set()
        self._progress = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        follow = follow_slices(
            self._api,
            f"spec.driver={self._driver},spec.nodeName={self._node_name}",
            on_list=self._relisted,
            on_event=self._changed,
            on_error=self._watch_failed,
        )
        self._tasks = [asyncio.create_task(follow), asyncio.create_task(self._work())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def publish(self, resources: Resources) -> None:
        """Publish these pools and remove all others. Errors go only to ``on_error``."""
        if self._reconcile_pool and (others := resources.keys() - {self._reconcile_pool}):
            names = ", ".join(sorted(others))
            error = PoolInvalid(f"only the pool {self._reconcile_pool} may be published, not {names}")
            self._report(error, "the resources were rejected")
            return
        affected = self._wanted.keys() | resources.keys()
        self._wanted = dict(resources)
        self._wishes += 1
        self._unsettled |= affected
        self._schedule(affected, Reason.WISH, 0.0)
        self._wished.set()

    async def settled(self) -> None:
        """Wait until the pools published last are in the API server, or were reported as invalid."""
        async with self._progress:
            await self._progress.wait_for(lambda: self._listed.is_set() and not self._unsettled)

    # --- what the watch reports ---

    def _relisted(self, objects: list[dict[str, Any]]) -> None:
        self._view.replace(filter(self._is_ours, objects))
        pools = self._view.pools(self._now()) | self._wanted.keys()
        self._schedule(pools, Reason.EVENT, self._sync_delay if self._listed.is_set() else 0.0)
        self._listed.set()

    def _changed(self, event: str, obj: dict[str, Any]) -> None:
        if self._is_ours(obj):
            self._schedule({self._view.see(event, obj)}, Reason.EVENT, self._sync_delay)

    def _watch_failed(self, error: WatchFailed) -> None:
        self._report(error, "watching ResourceSlices")

    def _report(self, error: Recoverable, message: str) -> None:
        try:
            self._on_error(error, message)
        except Exception:
            log.exception("the error handler failed on: %s: %s", message, error)

    def _is_ours(self, obj: dict[str, Any]) -> bool:
        return not self._reconcile_pool or text_at(obj, "spec", "pool", "name") == self._reconcile_pool

    # --- the worker ---

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _schedule(self, pools: Iterable[str], reason: Reason, delay: float) -> None:
        moment = self._now() + delay
        for pool in pools:
            self._due.add(pool, reason, moment)
        self._wake.set()

    async def _work(self) -> None:
        await self._wished.wait()  # before the first publish nothing may be deleted
        await self._listed.wait()
        while True:
            for pool in self._due.take(self._now()):
                await self._sync(pool)
            async with self._progress:
                self._progress.notify_all()
            try:
                async with asyncio.timeout_at(self._due.next_moment()):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    async def _sync(self, name: str) -> None:
        wishes = self._wishes
        try:
            await self._bring_about(name, self._wanted.get(name))
        except PoolInvalid as error:
            self._report(error, "pool validation failed")
        except Exception as error:
            if not isinstance(error, KubeError):
                log.exception("synchronising pool %s", name)  # a bug of ours must not end the publishing of others
            failure = SyncFailed(f'pool "{name}": {error}')
            failure.__cause__ = error
            self._due.failed(name, self._now())
            self._report(failure, "publishing ResourceSlices failed and will be retried")
            return
        self._due.settled(name)
        if self._wishes == wishes:
            self._unsettled.discard(name)

    async def _bring_about(self, name: str, wanted: Pool | None) -> None:
        pool = checked(name, wanted) if wanted else None
        publication = Publication(self._driver, name, self._owner, self._node_name)
        plan = plan_pool(publication, pool, self._view.pool(name, self._now()))
        for item in plan.delete:
            await self._delete(item)
        if pool is None:
            return
        if plan.create:
            publication = replace(publication, owner=await self._owner_with_uid())
            self._schedule({name}, Reason.OVERLAY_ENDS, self._overlay_seconds)
        for write in (*plan.update, *plan.create):
            await self._write(publication, pool, write)

    async def _owner_with_uid(self) -> Owner | None:
        """The owner. A Node is read each time, because a Node that was created again has another uid."""
        if self._owner is None or self._owner.uid or not self._owner.is_node:
            return self._owner
        node = await self._api.get(NODES, self._owner.name)
        return replace(self._owner, uid=node["metadata"]["uid"])

    async def _delete(self, item: Stored) -> None:
        meta = item.slice.metadata
        try:
            await self._api.delete(
                RESOURCE_SLICES, meta.name, uid=meta.uid, resource_version=meta.resource_version or None
            )
            self.statistics.deletes += 1
        except NotFound:
            pass
        self._view.forget(item)

    async def _write(self, publication: Publication, pool: Pool, write: Write) -> None:
        wishes = self._wishes
        sent = body(publication, pool, write)
        if write.stored:
            answer = await self._api.update(RESOURCE_SLICES, sent)
            self.statistics.updates += 1
        else:
            answer = await self._api.create(RESOURCE_SLICES, sent)
            self.statistics.creates += 1
        wanted = pool.slices[write.index]
        kept = content(tidy(self._view.wrote(answer, self._now()).slice.spec))
        if not same_slice(wanted, kept):
            error = DroppedFields(publication.pool, write.index, disabled_features(wanted, kept))
            self._report(error, "publishing ResourceSlices")
            if self._wishes == wishes:
                self._adopt(publication.pool, write.index, kept)

    def _adopt(self, name: str, index: int, kept: Slice) -> None:
        """From now on want only the fields that the server kept, since it would drop the others at each update
        (RS-06)."""
        slices = list(self._wanted[name].slices)
        slices[index] = kept
        self._wanted[name] = replace(self._wanted[name], slices=tuple(slices))
