"""Lists a kind in pages that fit, however large its objects are and however many there are.

Whoever may create an object decides how large it is: the API server admits claims and pods of 1.4 MB, which are up to
six times as long in JSON if every character has to be escaped. So no page may hold a fixed number of objects. The first
one asks for ``FIRST_OBJECTS``. A page of more than ``LARGEST_PAGE_BYTES`` is given up unread and asked for again with a
quarter of the objects, one that comes late with a single object, which always fits. A page that came well decides how
many objects the next one asks for: as many as make ``PAGE_BYTES``, at most four times as many as before. Each client
remembers the number for each kind, so that only its first list feels its way.

At most ``MOST_PAGES`` pages of a client are in memory, whichever kinds it lists at the same time. An item is bytes
until its reader decodes it, so nothing of a page exists twice but the item that is being decoded.

A list that takes longer than the API server keeps its version (five minutes) goes on with what the server offers
instead: the rest as of now (https://kubernetes.io/docs/reference/using-api/api-concepts/#retrieving-large-results-sets-in-chunks).
The resourceVersion remains that of the first page, so that a watch from there brings all that the pages have missed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Final, NamedTuple

import msgspec
from dra_api.codec import DecodeError, RawList, raw_list

from dra_kube.errors import AnswerTooLarge, Gone, NoAnswerInTime, Unreachable

from .exchange import LARGEST_OBJECT_BYTES
from .transport import Transport

FIRST_OBJECTS: Final = 64
MOST_OBJECTS: Final = 1000
PAGE_BYTES: Final = 4 << 20
LARGEST_PAGE_BYTES: Final = 16 << 20
"""Of a page of several objects; one of a single object may have ``LARGEST_OBJECT_BYTES``."""
MOST_PAGES: Final = 3
LATE_SECONDS: Final = 10.0
"""A page of several objects may take this long, or a third of the client's limit for a request if that is less."""
_GROWTH_FACTOR: Final = 4


class Page(NamedTuple):
    """Some objects of a list, and the version of the list; ``is_cut`` as of ``RawList``."""

    items: list[msgspec.Raw]
    resource_version: str
    is_cut: bool


class PageSizes:
    """How many objects the next page asks for, by what is listed: any text."""

    def __init__(self) -> None:
        self._objects: dict[str, int] = {}

    def asked(self, listed: str) -> int:
        """Return how many objects the next page asks for."""
        return self._objects.get(listed, FIRST_OBJECTS)

    def too_large(self, listed: str) -> bool:
        """A page was too large; return whether a smaller one can be asked for."""
        return self._shrunk(listed, self.asked(listed) // _GROWTH_FACTOR)

    def late(self, listed: str) -> bool:
        """A page did not come in time; return whether a smaller one can be asked for."""
        return self._shrunk(listed, 1)

    def came(self, listed: str, objects: int, size: int, seconds: float) -> None:
        """A page of so many objects and bytes came after so many seconds."""
        asked = self.asked(listed)
        fits = PAGE_BYTES * max(1, objects) // max(1, size)
        if seconds > LATE_SECONDS / 2:
            fits = min(fits, asked // 2)
        self._objects[listed] = max(1, min(fits, asked * _GROWTH_FACTOR, MOST_OBJECTS))

    def _shrunk(self, listed: str, objects: int) -> bool:
        before = self.asked(listed)
        self._objects[listed] = max(1, objects)
        return before > 1


def largest_page(objects: int) -> int:
    """Return the bytes that a page may have which was asked to have at most so many objects."""
    return LARGEST_OBJECT_BYTES if objects == 1 else LARGEST_PAGE_BYTES


class Pages:
    """The lists of one client."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._sizes = PageSizes()
        self._slots = asyncio.Semaphore(MOST_PAGES)

    async def of(self, path: str, selectors: Mapping[str, str], accept: str = "") -> AsyncGenerator[Page]:
        """Yield the pages of a list, of which the reader should keep nothing but what it makes of the items.

        ``accept``: the form in which the objects are asked for; empty: whole objects. Raises what the transport raises,
        and Unreachable for what is no list.
        """
        listed = f"{path} {accept}"
        headers = {"Accept": accept} if accept else {}
        token, version = "", ""
        while True:
            async with self._slots:
                try:
                    found = await self._page(listed, path, {**selectors, **continuing(token)}, headers)
                except AnswerTooLarge:
                    if self._sizes.too_large(listed):
                        continue
                    raise
                except NoAnswerInTime:
                    if self._sizes.late(listed):
                        continue
                    raise
                except Gone as error:
                    if not token or not error.continue_token:
                        raise
                    token = error.continue_token
                    continue
                version = version or str(found.metadata.get("resourceVersion") or "")
                follows = found.metadata.get("continue") or ""
                yield Page(found.items or [], version, found.is_cut)
            if not follows:
                return
            if follows == token:
                raise Unreachable(f"{path}: the list never ends: the API server answers with the same page again")
            token = follows

    async def _page(self, listed: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> RawList:
        asked = self._sizes.asked(listed)
        began = time.monotonic()
        content = await self._transport.request(
            "GET",
            path,
            query={**query, "limit": str(asked)},
            headers=headers,
            largest=largest_page(asked),
            seconds=None if asked == 1 else LATE_SECONDS,
        )
        found = self._list(path, content)
        self._sizes.came(listed, len(found.items or ()), len(content), time.monotonic() - began)
        return found

    def _list(self, path: str, content: bytes) -> RawList:
        try:
            return list_in(content)
        except DecodeError as error:
            raise self._transport.is_no_server(f"{path}, a list,", str(error), content) from error


def list_in(content: bytes) -> RawList:
    """Read a page. Raises DecodeError for anything else, such as what a proxy answers."""
    found = raw_list(content)
    follows = found.metadata.get("continue") or ""
    if not found.metadata or not isinstance(follows, str) or not (found.kind or "List").endswith("List"):
        raise DecodeError("the answer is no list")
    return found


def continuing(token: str) -> dict[str, str]:
    """Return what asks for the page that follows; empty for the first one."""
    return {"continue": token} if token else {}
