"""Lists one kind and watches it, over and over: the one list-and-watch of operator, node agent and plugin library.

A watch begins at the version of a list and goes on from the last event or bookmark, however often it is interrupted. A
stream that brings no byte for ``silence`` seconds is given up: kube-apiserver sends a bookmark each minute, so its
connection is dead. The kind is listed again in three cases. The server no longer knows the version (410), or does not
know it yet, as after a restored backup (504). It serves the kind in another version or not at all. The list is older
than the caller allows. No event reports deletions in between, so a new list does: objects that the caller
``knows`` and the list lacks are reported as MISSED.

Pages and events are handed on undecoded, one object at a time, so that memory has at most one page and one object. The
event loop turns after some 64 KiB. After a failure the reflector waits, longer each time, at least as long as the
server asks for, and with a random part, so that a thousand clients do not come back at once. What brings something ends
the row of failures.

``stream`` is for probes: whether changes are seen now (``sees``), and why not (``problem``).
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

import msgspec
from dra_api.meta import ObjectVersion, Resource

from .api import Api
from .errors import ApiError, Gone, KubeError, NotFound, NotServed
from .http.watch import Change

logger = logging.getLogger(__name__)

TURN_BYTES: Final = 64 << 10
"""Bytes of objects after which others have their turn: some thirty pods, or one object that takes milliseconds."""
CATCH_UP_SECONDS: Final = 0.5
"""Seconds from the beginning of a watch until the events that were missed have come."""
_SPREAD_SHARE: Final = 0.25
_UNKNOWN_VERSION_CODE: Final = 504


class Pauses(NamedTuple):
    """Seconds before the first attempt after a failure, doubled with each one in a row, up to the longest."""

    first: float = 0.1
    longest: float = 10.0


async def _nothing(_: str) -> None:
    """Nobody wants to know that a list is complete."""


class Stream:
    """What is known of the list and watch of one kind, for probes. Times are seconds of any one clock."""

    def __init__(self, now: float) -> None:
        self.life = now
        """The last sign of life: an answer, or bytes of a watch."""
        self.refusal = ""
        """Why the last request failed; empty if it did not."""
        self._open_since = math.inf
        self._was_open = False

    def heard(self, now: float) -> None:
        """The server has answered."""
        self.life, self.refusal = now, ""

    def opened(self, now: float) -> None:
        """A watch is open; said again with each batch that it brings."""
        self.heard(now)
        self._open_since, self._was_open = min(self._open_since, now), True

    def ended(self, now: float) -> None:
        """The watch is over, if one was open."""
        if self._open_since < math.inf:
            self._open_since, self.life = math.inf, now

    def sees(self, now: float) -> bool:
        """Return whether no change goes unseen for a reason that is known.

        Changes may go unseen before the first watch, between two of them, and until a watch has caught up. In that
        second the pods of another scheduler may come, and a new leader places all pods that waited for it.
        """
        return now - self._open_since >= CATCH_UP_SECONDS

    def problem(self, now: float, *, gap: float, silence: float) -> str:
        """Return why changes go unseen; empty if they are seen.

        No watch may be open for ``gap`` seconds, and an open one may be silent for ``silence`` seconds.
        """
        because = f": {self.refusal}" if self.refusal else ""
        silent, is_open = now - self.life, self._open_since < math.inf
        if not self._was_open:
            return f"not watched yet{because}"
        if silent <= (silence if is_open else gap):
            return ""
        return f"{'silent' if is_open else 'not watched'} for {silent:.0f} s{because}"


class Reflector:
    """One kind, or the part of it that ``namespace`` and ``selectors`` name. ``run`` until cancelled.

    ``receive`` gets each change in the order of the server; an error that it raises is logged. ``since`` is the version
    of a list that the caller has made itself. ``knows`` gives the versions that the caller has. ``listed`` is told the
    version of each list, after its last item. ``failed`` is told each failure, and each gap in which something may have
    been missed. ``lag``: seconds for which a batch of changes waits before it is handed on.
    """

    def __init__(  # noqa: PLR0913  # each is named by the caller, and has a default
        self,
        api: Api,
        resource: Resource,
        receive: Callable[[Change], Awaitable[None]],
        *,
        since: str = "",
        namespace: str | None = None,
        knows: Callable[[], Iterable[ObjectVersion]] = tuple,
        listed: Callable[[str], Awaitable[None]] = _nothing,
        failed: Callable[[Exception], None] = lambda _: None,
        lag: Callable[[Sequence[Change]], float] = lambda _: 0.0,
        pauses: Pauses | None = None,
        silence: float | None = None,
        list_seconds: float = math.inf,
        **selectors: str,
    ) -> None:
        self.resource = resource
        self.version = since
        """The resourceVersion from which the next watch begins, or empty if the kind has to be listed first."""
        self.stream = Stream(_now())
        self._api, self._receive, self._namespace, self._selectors = api, receive, namespace, selectors
        self._knows, self._listed, self._failed, self._lag = knows, listed, failed, lag
        self._pauses, self._silence, self._list_seconds = pauses or Pauses(), silence, list_seconds
        self._verb = ""
        self._attempts = 0
        self._last_list = 0.0
        self._old_at = math.inf

    async def run(self) -> None:
        """List and watch until cancelled."""
        self._old_at = _now() + self._list_seconds
        while True:
            pause = await self._attempt()
            if _now() > self._old_at:
                self.version = ""
            await asyncio.sleep(spread(pause))

    async def _attempt(self) -> float:
        """List if that is due, and watch until that ends; return the seconds until the next attempt."""
        pause, began = 0.0, _now()
        self._attempts += 1  # what brings something begins to count anew
        try:
            if not self.version:
                await self._list()
            await self._watch()
        except (Gone, NotFound, NotServed) as error:
            if not isinstance(error, Gone):  # the kind is not served, or not in this version: no object was asked for
                self._api.forget(self.resource)
            self.version, pause = "", self._last_list
            self._fails(error)
        except ApiError as error:
            if error.code == _UNKNOWN_VERSION_CODE:
                self.version = ""
            pause = error.retry_after or 0.0
            self._fails(error)
        except Exception as error:
            if not isinstance(error, KubeError):
                logger.exception("following %s failed", self.resource)
                self.version = ""
            self._fails(error)
        if _now() - began > self._pauses.longest:
            self._attempts = 1
        return max(pause, self._pause())

    async def _list(self) -> None:
        self._verb, began = "LIST", _now()
        present: dict[str, str] = {}
        is_whole, version = True, ""
        async with aclosing(self._api.listed(self.resource, self._namespace, **self._selectors)) as pages:  # type: ignore[type-var]
            async for page, version in pages:  # noqa: B007 - that of all pages, read below
                self.stream.heard(_now())
                is_whole = is_whole and all(change.version.name for change in page)
                present |= {change.version.key: change.version.uid for change in page}
                await self._hand_on(page)
        if is_whole:  # an object without a name may be any of the missing ones
            await self._hand_on([self._gone(it) for it in self._knows() if _is_gone(it, present, version)])
        await self._listed(version)
        self.version, self._attempts = version, 1
        self._last_list, self._old_at = _now() - began, _now() + self._list_seconds

    async def _watch(self) -> None:
        self._verb = "WATCH"
        changes = self._api.changes(
            self.resource, self._namespace, resource_version=self.version, silence=self._silence, **self._selectors
        )
        try:
            async with aclosing(changes):  # type: ignore[type-var]  # declared as an iterator, is a generator
                async for batch in changes:
                    self.stream.opened(_now())
                    if batch:
                        if lag := self._lag(batch):
                            await asyncio.sleep(lag)
                        await self._hand_on(batch)
                        self.version, self._attempts = batch[-1].version.resource_version or self.version, 1
                    del batch  # not held while the next one is awaited
        finally:
            self.stream.ended(_now())

    async def _hand_on(self, changes: Iterable[Change]) -> None:
        size = 0
        for change in changes:
            if change.event != "BOOKMARK":
                try:
                    await self._receive(change)
                except Exception:
                    version = change.version
                    logger.exception(
                        "%s %s of resourceVersion %s was not taken in whole",
                        self.resource.kind,
                        version.key,
                        version.resource_version,
                    )
            size += len(change.content)
            if size > TURN_BYTES:
                size = 0
                await asyncio.sleep(0)

    def _gone(self, version: ObjectVersion) -> Change:
        content = msgspec.Raw(msgspec.json.encode({"kind": self.resource.kind, "metadata": version}))
        return Change("MISSED", version, content, self.resource, self.resource.versions[0])

    def _fails(self, error: Exception) -> None:
        answered = f"answered {error.code}" if isinstance(error, ApiError) else "failed"
        self.stream.refusal = f"{self._verb} {answered}: {str(error) or type(error).__name__}"
        self._failed(error)

    def _pause(self) -> float:
        return min(self._pauses.first * 2.0 ** min(self._attempts - 1, 30), self._pauses.longest)


def spread(seconds: float) -> float:
    """Return the pause, up to a quarter longer at random."""
    return seconds * (1 + _SPREAD_SHARE * random.random())


def _now() -> float:
    return asyncio.get_running_loop().time()


def _is_gone(known: ObjectVersion, present: dict[str, str], version: str) -> bool:
    """Return whether a list of this version lacks the object, and is not older than its known version."""
    if present.get(known.key) == known.uid or not (known.resource_version.isdecimal() and version.isdecimal()):
        return False
    return int(known.resource_version) <= int(version)
