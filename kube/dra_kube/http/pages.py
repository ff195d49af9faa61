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


class Pages:
    """The lists of one client."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._objects: dict[tuple[str, str], int] = {}
        """How many objects the next page asks for, by the path and the form of the answer."""
        self._slots = asyncio.Semaphore(MOST_PAGES)

    async def of(self, path: str, selectors: Mapping[str, str], accept: str = "") -> AsyncGenerator[Page]:
        """Yield the pages of a list, of which the reader should keep nothing but what it makes of the items.

        ``accept``: the form in which the objects are asked for; empty: whole objects. Raises what the transport raises,
        and Unreachable for what is no list.
        """
        kind = path, accept
        headers = {"Accept": accept} if accept else {}
        token, version = "", ""
        while True:
            async with self._slots:
                try:
                    found, follows = await self._page(kind, {**selectors, **_continuing(token)}, headers)
                except AnswerTooLarge:
                    if self._shrunk(kind, self._asked(kind) // _GROWTH_FACTOR):
                        continue
                    raise
                except NoAnswerInTime:
                    if self._shrunk(kind, 1):
                        continue
                    raise
                except Gone as error:
                    if not token or not error.continue_token:
                        raise
                    token = error.continue_token
                    continue
                version = version or str(found.metadata.get("resourceVersion") or "")
                yield Page(found.items or [], version, found.is_cut)
            if not follows:
                return
            if follows == token:
                raise Unreachable(f"{path}: the list never ends: the API server answers with the same page again")
            token = follows

    def _asked(self, kind: tuple[str, str]) -> int:
        return self._objects.get(kind, FIRST_OBJECTS)

    def _shrunk(self, kind: tuple[str, str], objects: int) -> bool:
        """Have the next page ask for so many objects; return whether that is less than before."""
        before = self._asked(kind)
        self._objects[kind] = max(1, objects)
        return before > 1

    async def _page(
        self, kind: tuple[str, str], query: Mapping[str, str], headers: Mapping[str, str]
    ) -> tuple[RawList, str]:
        """One page, and the token of the next one, if there is one."""
        path, asked = kind[0], self._asked(kind)
        is_single = asked == 1
        began = time.monotonic()
        content = await self._transport.request(
            "GET",
            path,
            query={**query, "limit": str(asked)},
            headers=headers,
            largest=LARGEST_OBJECT_BYTES if is_single else LARGEST_PAGE_BYTES,
            seconds=None if is_single else LATE_SECONDS,
        )
        took = time.monotonic() - began
        found = self._list(path, content)
        fits = PAGE_BYTES * max(1, len(found.items or ())) // max(1, len(content))
        if took > LATE_SECONDS / 2:
            fits = min(fits, asked // 2)
        self._objects[kind] = max(1, min(fits, asked * _GROWTH_FACTOR, MOST_OBJECTS))
        token = found.metadata.get("continue")
        return found, token if isinstance(token, str) else ""

    def _list(self, path: str, content: bytes) -> RawList:
        """The envelope of a page. Raises Unreachable for anything else, such as the page of a proxy."""
        try:
            found = raw_list(content)
        except DecodeError as error:
            raise self._transport.is_no_server(f"{path}, a list,", str(error), content) from error
        if not found.metadata or not (found.kind or "List").endswith("List"):
            raise self._transport.is_no_server(f"{path}, a list,", "the answer is no list", content)
        return found


def _continuing(token: str) -> dict[str, str]:
    return {"continue": token} if token else {}
