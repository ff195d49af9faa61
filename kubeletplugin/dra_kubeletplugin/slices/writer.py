"""How fast a publisher may send requests: so many per second, some more at once, none while the server asks for a rest.

A bucket holds ``burst`` tokens and gets ``rate`` new ones per second; a request takes one. Intervals have a random
part, because a thousand nodes share one API server and would otherwise come in step.

Carries out planned writes: at a limited rate, counted, and with the view told of each answer.

Another client may have been faster. Perhaps no watch ever reports that, so after a refused update or delete the view is
given what the server has. The next attempt then plans with that.

A create without an answer may have happened, or happen later. Its generation is remembered, so that the next attempt
takes a newer one: readers then ignore the slice that it made.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from dra_kube import NODES, RESOURCE_SLICES, Api, ApiError, Conflict, NotFound

from dra_kubeletplugin.errors import PoolRefused
from dra_kubeletplugin.slices.model import Owner, Pool, Slice, tidy
from dra_kubeletplugin.slices.plan import Publication, Stored, Write, body, content, same_slice
from dra_kubeletplugin.slices.publish_errors import PublishError, described
from dra_kubeletplugin.slices.view import SliceView

_SPREAD_SHARE = 0.25


def spread(seconds: float) -> float:
    """The interval, up to a quarter longer at random."""
    return seconds * (1 + _SPREAD_SHARE * random.random())


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
