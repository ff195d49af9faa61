"""The slices of a driver as the watch reports them, and our own writes: limited, counted, and on top for a while.

The watch reports a write late. Without the overlay the next sync would create again the slice that the last one has
created. A write of ours counts until the watch reports the same or a newer version of the slice, or its deletion; until
a newer list lacks the slice, which was then deleted while no watch saw it; or until a minute has passed.
An answer may be late as well: the slice that it shows was deleted, and the watch has said so. A slice that is unknown,
and of a version that the watch has passed, is one of those.

A bucket holds ``burst`` tokens and gets ``rate`` new ones per second; a request takes one. Intervals have a random
part, because a thousand nodes share one API server and would otherwise come in step.

Another client may have been faster. Perhaps no watch ever reports that, so after a refused update or delete the view is
given what the server has. The next attempt then plans with that. A create without an answer may have happened, or
happen later. Its generation is remembered, so that the next attempt takes a newer one: readers then ignore the slice
that it made.

Spec: RS-01, RS-03.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from dra_api.codec import DecodeError, convert
from dra_api.meta import ObjectMeta
from dra_api.resource import ResourcePool, ResourceSlice, ResourceSliceSpec
from dra_kube import NODES, RESOURCE_SLICES, Api, ApiError, Change, Conflict, Gone, NotFound, Pauses, Reflector
from dra_kube.reflector import spread

from dra_kubeletplugin.errors import PoolRefused, WatchFailed, with_remedy
from dra_kubeletplugin.slices.model import Owner, Pool, Slice, tidy
from dra_kubeletplugin.slices.plan import Publication, Stored, Write, body, content, same_slice
from dra_kubeletplugin.slices.pool_sync import PublishError, described

log = logging.getLogger(__name__)


Object = dict[str, Any]

_PAUSE_SECONDS = 1.0  # before the first new attempt; many nodes come back together when the API server does
_LONGEST_PAUSE_SECONDS = 30.0
_LIST_SECONDS = 1800.0


async def follow_slices(
    api: Api,
    field_selector: str,
    *,
    on_list: Callable[[list[Object], str], Awaitable[None]],
    on_event: Callable[[str, Object], None],
    on_error: Callable[[WatchFailed], None],
    of_a_controller: bool = False,
) -> None:
    """Report the slices that the selector matches, first as a list with its version, then change by change.

    That a watch is too far behind is no failure; every other one is reported.
    """
    found: list[Object] = []

    async def receive(change: Change) -> None:
        if change.event == "LISTED":
            found.append(change.object())
        else:
            on_event(change.event, change.object())

    async def listed(version: str) -> None:
        objects = found.copy()
        found.clear()
        await on_list(objects, version)

    def failed(error: Exception) -> None:
        found.clear()  # of a list that was not completed
        if not isinstance(error, Gone):
            text = with_remedy(error, of_a_controller=of_a_controller)
            failure = WatchFailed(f"cannot watch the ResourceSlices with {field_selector}: {text}")
            failure.__cause__ = error
            on_error(failure)

    await Reflector(
        api,
        RESOURCE_SLICES,
        receive,
        listed=listed,
        failed=failed,
        pauses=Pauses(_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS),
        list_seconds=_LIST_SECONDS,
        fieldSelector=field_selector,
    ).run()


class SliceView:
    """Slices by name. Times are seconds of any one clock; ``overlay_seconds`` is how long our own writes count."""

    def __init__(self, overlay_seconds: float) -> None:
        self._overlay_seconds = overlay_seconds
        self._reported: dict[str, Stored] = {}
        self._written: dict[str, tuple[float, Stored]] = {}
        self._passed = 0  # the version of the newest list or event

    def replace(self, items: Iterable[Stored], resource_version: str) -> None:
        """Take in a new list, of that version."""
        self._reported = {item.name: item for item in items if item.name}
        newest = self._passed = _number(resource_version)
        self._written = {
            name: entry
            for name, entry in self._written.items()
            if name in self._reported or _version(entry[1]) > newest
        }

    def see(self, event: str, obj: dict[str, Any]) -> str:
        """Take in a watch event; returns the name of its pool."""
        item = stored(obj)
        if event == "DELETED":
            self.forget(item)
        elif item.name and not self._is_older(item):
            self._reported[item.name] = item
        self._passed = max(self._passed, _version(item))
        return item.slice.spec.pool.name

    def read(self, obj: dict[str, Any]) -> None:
        """Take in the answer to a read, which may be newer than what the watch has brought, or older."""
        item = stored(obj)
        if item.name and not (self._is_older(item) or self._is_gone(item)):
            self._reported[item.name] = item

    def _is_older(self, item: Stored) -> bool:
        """Whether we know a newer version of the slice: we have read it, and the watch is behind."""
        known = self._reported.get(item.name)
        if known is None or known.slice.metadata.uid != item.slice.metadata.uid:
            return False
        return _version(item) < _version(known)

    def _is_gone(self, item: Stored) -> bool:
        """Whether the slice was deleted after this version: the watch has passed it, and does not know it."""
        return item.name not in self._reported and _version(item) <= self._passed

    def wrote(self, obj: dict[str, Any], now: float) -> Stored:
        """Put the answer to our own create or update on top of what the watch reports."""
        item = stored(obj)
        if not self._is_gone(item):
            self._written[item.name] = (now + self._overlay_seconds, item)
        return item

    def forget(self, item: Stored) -> None:
        """The slice is gone: we deleted it, or the watch reported its deletion."""
        written = self._written.get(item.name)
        if written and written[1].slice.metadata.uid == item.slice.metadata.uid:
            del self._written[item.name]
        reported = self._reported.get(item.name)
        if reported and reported.slice.metadata.uid == item.slice.metadata.uid:
            del self._reported[item.name]

    def pool(self, name: str, now: float) -> list[Stored]:
        """The slices of a pool."""
        return [item for item in self._all(now).values() if item.slice.spec.pool.name == name]

    def pools(self, now: float) -> set[str]:
        """Names of the pools that have slices."""
        return {item.slice.spec.pool.name for item in self._all(now).values()}

    def _all(self, now: float) -> dict[str, Stored]:
        self._written = {name: entry for name, entry in self._written.items() if entry[0] > now}
        merged = dict(self._reported)
        for name, (_, item) in self._written.items():
            if name not in merged or _version(item) > _version(merged[name]):
                merged[name] = item
        return merged


def stored(obj: dict[str, Any]) -> Stored:
    """Decode a slice. A malformed one keeps name, uid and pool only, so that a sync corrects or deletes it."""
    try:
        return Stored(obj, convert(ResourceSlice, obj))
    except DecodeError as error:
        name = text_at(obj, "metadata", "name")
        log.warning("ResourceSlice %s is malformed and will be replaced: %s", name, error)
        bare = ObjectMeta(name=name, uid=text_at(obj, "metadata", "uid"))
        pool = ResourcePool(name=text_at(obj, "spec", "pool", "name"))
        return Stored(obj, ResourceSlice(metadata=bare, spec=ResourceSliceSpec(pool=pool)))


def text_at(obj: Any, *path: str) -> str:
    """The text at a place of an object that may have any shape; empty if there is none."""
    for key in path:
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj if isinstance(obj, str) else ""


def _version(item: Stored) -> int:
    return _number(text_at(item.raw, "metadata", "resourceVersion"))


def _number(resource_version: str) -> int:
    return int(resource_version) if resource_version.isdecimal() else 0


class RateLimit:
    """Hands out turns, in seconds of any one clock."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._at = float(burst), 0.0
        self._rest_until = 0.0

    def take(self, now: float) -> float:
        """Take a turn; returns the seconds to wait for it."""
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - 1
        self._at = now
        return max(0.0, -self._tokens / self._rate, self._rest_until - now)

    def rest(self, now: float, seconds: float) -> None:
        """The server asked to send nothing for so long."""
        self._rest_until = max(self._rest_until, now + spread(seconds))

    async def turn(self) -> None:
        """Wait for a turn."""
        await asyncio.sleep(self.take(asyncio.get_running_loop().time()))


_REFUSAL_CODES = (400, 413, 422)
"""The same write would be refused again: the server cannot read it, it is too large, or it is invalid."""
_UNCERTAIN_CODES = range(500, 600)
"""The server does not say for certain that it has done nothing."""


@dataclass(slots=True)
class Statistics:
    """How many slices were written since the publisher started."""

    creates: int = 0
    updates: int = 0
    deletes: int = 0


class SliceWriter:
    """All methods raise KubeError."""

    def __init__(self, api: Api, view: SliceView, rate_limit: RateLimit) -> None:
        self.statistics = Statistics()
        self.unanswered: dict[str, int] = {}
        """By pool, the newest generation of a create that had no answer."""
        self._api = api
        self._view = view
        self._rate_limit = rate_limit

    async def with_uid(self, owner: Owner | None) -> Owner | None:
        """The owner. A Node is read each time, because a Node that was created again has another uid."""
        if owner is None or owner.uid or not owner.is_node:
            return owner
        await self._rate_limit.turn()
        node = await self._api.get(NODES, owner.name)
        return replace(owner, uid=node["metadata"]["uid"])

    async def delete(self, item: Stored) -> None:
        """Delete a slice, unless it has changed; one that is gone is fine."""
        meta = item.slice.metadata
        await self._rate_limit.turn()
        try:
            async with self._stale_if_refused(item):
                await self._api.delete(
                    RESOURCE_SLICES, meta.name, uid=meta.uid, resource_version=meta.resource_version or None
                )
            self.statistics.deletes += 1
        except NotFound:
            pass
        self._view.forget(item)

    async def write(self, publication: Publication, pool: Pool, write: Write) -> Slice | None:
        """Create or update; returns what the server stored if that is less than was sent (RS-06).

        Raises PoolRefused if the server will never take it.
        """
        await self._rate_limit.turn()
        sent = body(publication, pool, write)
        try:
            answer = await self._send(write, sent)
        except ApiError as error:
            if error.code not in _REFUSAL_CODES:
                raise
            raise _refusal(publication.pool, pool, write, error) from error
        spec = self._view.wrote(answer, asyncio.get_running_loop().time()).slice.spec
        if answer.get("spec") == sent["spec"]:
            return None
        stored = content(tidy(spec))
        return None if same_slice(pool.slices[write.index], stored) else stored

    def _answered(self, pool: str, before: int) -> None:
        """Put back what was unanswered before; a pool of which all is known is forgotten."""
        if before:
            self.unanswered[pool] = before
        else:
            self.unanswered.pop(pool, None)

    async def _send(self, write: Write, sent: dict[str, Any]) -> dict[str, Any]:
        if write.stored is None:
            pool, before = write.spec.pool, self.unanswered.get(write.spec.pool.name, 0)
            self.unanswered[pool.name] = max(before, pool.generation)
            try:
                answer = await self._api.create(RESOURCE_SLICES, sent)
            except ApiError as error:
                if error.code not in _UNCERTAIN_CODES:
                    self._answered(pool.name, before)
                raise
            self._answered(pool.name, before)
            self.statistics.creates += 1
            return answer
        async with self._stale_if_refused(write.stored):
            answer = await self._api.update(RESOURCE_SLICES, sent)
        self.statistics.updates += 1
        return answer

    @asynccontextmanager
    async def _stale_if_refused(self, item: Stored) -> AsyncIterator[None]:
        try:
            yield
        except NotFound:
            self._view.forget(item)
            raise
        except Conflict:
            self._view.read(await self._api.get(RESOURCE_SLICES, item.name))
            raise


def _refusal(name: str, pool: Pool, write: Write, error: ApiError) -> PoolRefused:
    faults = [PublishError(cause.get("field", ""), cause.get("message", "")) for cause in error.causes]
    devices = pool.slices[write.index].devices
    return PoolRefused(described(name, write.index, devices, faults or [PublishError("", error.message)]))
