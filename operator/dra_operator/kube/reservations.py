"""Reservations of many pods on one claim, written together.

A claim that hundreds of pods share gets hundreds of new consumers at once. Written one by one they would conflict all
the time: each write changes the list that the next one has read. So while one write is under way, other callers for the
claim gather, and the next write takes them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from dra_api.resource import ResourceClaim, ResourceClaimConsumerReference
from dra_kube import Unreachable

Write = Callable[[ResourceClaim, Sequence[ResourceClaimConsumerReference]], Awaitable[ResourceClaim]]


@dataclass(eq=False, slots=True)
class _Turn:
    """A caller that waits for a write that includes its consumer."""

    consumer: ResourceClaimConsumerReference
    written: asyncio.Future[ResourceClaim]


@dataclass(eq=False, slots=True)
class _Gathering:
    """The callers that wait for a claim; the one that writes holds the lock."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: list[_Turn] = field(default_factory=list)
    callers: int = 0


class Reservations:
    """``write`` adds several consumers to a claim in one update; what it raises reaches all of them."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._gatherings: dict[str, _Gathering] = {}

    async def add(self, claim: ResourceClaim, consumer: ResourceClaimConsumerReference) -> ResourceClaim:
        """The claim with the consumer in it."""
        uid = claim.metadata.uid
        gathering = self._gatherings.setdefault(uid, _Gathering())
        turn = _Turn(consumer, asyncio.get_running_loop().create_future())
        gathering.waiting.append(turn)
        gathering.callers += 1
        try:
            async with gathering.lock:
                if not turn.written.done():
                    await self._write_all(claim, gathering)
            return turn.written.result()
        finally:
            gathering.callers -= 1
            if turn in gathering.waiting:
                gathering.waiting.remove(turn)
            if not gathering.callers:
                self._gatherings.pop(uid, None)

    async def _write_all(self, claim: ResourceClaim, gathering: _Gathering) -> None:
        batch, gathering.waiting = gathering.waiting, []
        try:
            written = await self._write(claim, [turn.consumer for turn in batch])
        except Exception as error:
            _fail(batch, error)
        except asyncio.CancelledError:
            _fail(batch, Unreachable(f"reserving claim {claim.key} was interrupted"))
            raise
        else:
            for turn in batch:
                turn.written.set_result(written)


def _fail(batch: Sequence[_Turn], error: Exception) -> None:
    for turn in batch:
        turn.written.set_exception(error)
        turn.written.exception()  # a cancelled caller does not read it
