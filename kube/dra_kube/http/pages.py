"""Lists a kind in pages that fit, however large its objects are and however many there are.

Whoever may create an object decides how large it is: the API server admits claims and pods of 1.4 MB, which are up to
six times as long in JSON if every character has to be escaped. So no page may hold a fixed number of objects. The first
one asks for ``FIRST_OBJECTS``. A page of more than ``LARGEST_PAGE_BYTES`` is given up unread and asked for again with a
quarter of the objects, one that comes late with a single object, which always fits. A page that came well decides how
many objects the next one asks for: as many as make ``PAGE_BYTES``, at most four times as many as before, and no more
than should come in half of the time after which a page is late. Each client remembers the number for each kind, so that
only its first list feels its way.

At most ``MOST_PAGES`` pages of a client are in memory, whichever kinds it lists at the same time. An item is bytes
until its reader decodes it, so nothing of a page exists twice but the item that is being decoded.

Rows of a table are short, however large the objects are. So they are asked for without a limit: before Kubernetes 1.34
the server reads the objects of a page from etcd, and takes a whole list from memory. All rows have the time of a whole
request: a server whose cache lags waits three seconds for it, once for a list or once for each page. Only if that is
too large or late they come in pages, and these adapt in the same way. One more page of them may be in memory, so that
who waits for rows does not wait for the pages of a long list of objects.

A list that takes longer than the API server keeps its version (five minutes) goes on with what the server offers
instead: the rest as of now (https://kubernetes.io/docs/reference/using-api/api-concepts/#retrieving-large-results-sets-in-chunks).
The resourceVersion remains that of the first page, so that a watch from there brings all that the pages have missed.

While the watch cache of an API server lags, it reads the first page from etcd and refuses the next pages until the
cache has caught up (504, ``ResourceVersionTooLarge``). A new list would be ahead of the cache again, as long as others
write much. So the client asks for the same page again. The same holds if a busy server asks it to come back later
(429): a list of a hundred pages would begin anew, and load the server the more. No page of the client's other lists
waits meanwhile.

A server, or what stands before it, may answer with ever new pages. A list that has more objects, or takes longer, than
that of any cluster is given up (``MOST_LISTED_OBJECTS``, ``LONGEST_LIST_SECONDS``).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from dra_api.codec import DecodeError, RawList, decode, raw_list

from dra_kube.errors import AnswerTooLarge, ApiError, Gone, KubeError, NoAnswerInTime, ServerError, Unreachable

from .connections import LARGEST_OBJECT_BYTES
from .transport import Transport, pause_after

FIRST_OBJECTS: Final = 64
ALL_OBJECTS: Final = 0
"""Objects of a page that has no limit."""
MOST_OBJECTS: Final = 1000
PAGE_BYTES: Final = 4 << 20
LARGEST_PAGE_BYTES: Final = 16 << 20
"""Of a page of several objects; one of a single object may have ``LARGEST_OBJECT_BYTES``."""
MOST_PAGES: Final = 3
LATE_SECONDS: Final = 10.0
"""A page of several objects may take this long, or a third of the client's limit for a request if that is less."""
_GROWTH_FACTOR: Final = 4
MOST_REFUSED_PAGES: Final = 45
"""A page is asked for so often, each time after the server has waited three seconds for its watch cache."""
REFUSAL_PAUSE_SECONDS: Final = 1.0
MOST_EMPTY_PAGES: Final = 100
"""In a row, before a list counts as endless: an API server sends no page without objects but the only one of a list."""
MOST_LISTED_OBJECTS: Final = 3_000_000
"""An etcd of 8 GiB, the most that its documentation advises, has no room for so many pods, nor for so many claims with
the record of who manages their fields."""
LONGEST_LIST_SECONDS: Final = 3600.0
"""The API server keeps the version of a list for at most ten minutes, so that nothing could be watched from there."""

_TABLE: Final = "application/json;as=Table;g=meta.k8s.io;v=v1"


class Page(NamedTuple):
    """Some objects of a list, and the version of the list; ``is_cut`` as of ``RawList``."""

    items: list[msgspec.Raw]
    resource_version: str
    is_cut: bool


class Column(msgspec.Struct):
    """One column of a table."""

    name: str


class _Row(msgspec.Struct):
    cells: list[Any]


class Table(msgspec.Struct, rename="camel"):
    """What ``kubectl get`` shows of a page of objects."""

    kind: str
    metadata: dict[str, Any] = {}
    column_definitions: list[Column] | None = None
    rows: list[_Row] | None = None

    @property
    def items(self) -> list[_Row] | None:
        """The rows, under the name that lists have for their objects."""
        return self.rows


_Listed = TypeVar("_Listed", RawList, Table)


class PageSizes:
    """How many objects the next page asks for, by what is listed: any text. ``first``: so many before any page came."""

    def __init__(self, first: int = FIRST_OBJECTS) -> None:
        self._first = first
        self._objects: dict[str, int] = {}

    def asked(self, listed: str) -> int:
        """Return how many objects the next page asks for; ALL_OBJECTS for a page without a limit."""
        return self._objects.get(listed, self._first)

    def too_large(self, listed: str) -> bool:
        """A page was too large; return whether a smaller one can be asked for."""
        return self._shrunk(listed, self.asked(listed) // _GROWTH_FACTOR)

    def late(self, listed: str) -> bool:
        """A page did not come in time; return whether a smaller one can be asked for."""
        return self._shrunk(listed, 1)

    def came(self, listed: str, objects: int, size: int, seconds: float) -> None:
        """A page of so many objects and bytes came after so many seconds."""
        asked = self.asked(listed)
        if asked == ALL_OBJECTS:
            return
        fits = PAGE_BYTES * max(1, objects) // max(1, size)
        # Four times as many may take four times as long: each page that is given up costs all the time it had.
        growth = min(_GROWTH_FACTOR, LATE_SECONDS / 2 / max(seconds, 0.001))
        if growth < 1:
            fits = min(fits, asked // 2)
        self._objects[listed] = max(1, min(fits, math.ceil(asked * growth), MOST_OBJECTS))

    def came_well(self, listed: str) -> None:
        """A whole list came, and no page was given up: the next one may begin with ALL_OBJECTS, if any did."""
        if self._first == ALL_OBJECTS:
            self._objects.pop(listed, None)

    def _shrunk(self, listed: str, objects: int) -> bool:
        before = self.asked(listed)
        self._objects[listed] = MOST_OBJECTS if before == ALL_OBJECTS and objects == ALL_OBJECTS else max(1, objects)
        return before != 1


def largest_page(objects: int) -> int:
    """Return the bytes that a page may have which was asked to have at most so many objects."""
    return LARGEST_OBJECT_BYTES if objects == 1 else LARGEST_PAGE_BYTES


class _Form(NamedTuple, Generic[_Listed]):
    """How objects are asked for (empty: as whole objects), and how a page of them is read."""

    accept: str
    read: Callable[[bytes], _Listed]
    sizes: PageSizes
    slots: asyncio.Semaphore


@dataclass
class _Progress:
    """How far a list has come: ``token`` of its next page, how often that was refused because the watch cache lags, and
    the seconds for which it has been asked for. ``is_patient``: its first page is asked for again as well."""

    path: str
    listed: str
    sizes: PageSizes
    is_patient: bool
    token: str = ""
    refusals: int = 0
    spent: float = 0.0
    pause: float = 0.0
    """Seconds before the page is asked for again."""
    came_well: bool = True
    _began: float = field(default_factory=time.monotonic)
    _objects: int = 0
    _empty: int = 0

    def goes_on_after(self, error: KubeError, patience: float) -> bool:
        """Return whether a page that failed is asked for again, in fewer objects, later, or by another token.

        ``patience``: for how many seconds it is asked for if the server is busy.
        """
        self.pause = 0.0
        if isinstance(error, AnswerTooLarge | NoAnswerInTime):
            self.came_well = False
            shrink = self.sizes.too_large if isinstance(error, AnswerTooLarge) else self.sizes.late
            return shrink(self.listed)
        if isinstance(error, Gone) and self.token:
            self.token = error.continue_token
            return bool(self.token)
        if not isinstance(error, ApiError) or not (self.token or self.is_patient):
            return False
        if self.token and isinstance(error, ServerError) and error.is_ahead_of_cache:
            self.refusals += 1
            self.pause = REFUSAL_PAUSE_SECONDS
            return self.refusals < MOST_REFUSED_PAGES
        self.pause = pause_after(error, patience - self.spent) or 0.0
        self.spent += self.pause
        return self.pause > 0

    def goes_on_behind(self, page: RawList | Table) -> bool:
        """Return whether another page follows the one that came. Raises Unreachable if the list does not end."""
        follows = page.metadata.get("continue") or ""
        self._objects += len(page.items or ())
        self._empty = 0 if page.items else self._empty + 1
        if follows and (what := self._without_end(follows)):
            raise Unreachable(f"{self.path}: the list never ends: the API server answers with {what}")
        self.token, self.refusals, self.spent, self.pause = follows, 0, 0.0, 0.0
        return bool(follows)

    def _without_end(self, follows: str) -> str:
        if follows == self.token:
            return "the same page again"
        if self._empty > MOST_EMPTY_PAGES:
            return "empty pages"
        if self._objects > MOST_LISTED_OBJECTS:
            return f"more than {MOST_LISTED_OBJECTS} objects"
        seconds = time.monotonic() - self._began
        return f"ever new pages for {seconds:.0f} s" if seconds > LONGEST_LIST_SECONDS else ""


class Pages:
    """The lists of one client."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._sizes, self._slots = PageSizes(), asyncio.Semaphore(MOST_PAGES)
        self._tables = _Form(_TABLE, table_in, PageSizes(ALL_OBJECTS), asyncio.Semaphore(1))

    async def of(self, path: str, selectors: Mapping[str, str], accept: str = "") -> AsyncGenerator[Page]:
        """Yield the pages of a list, of which the reader should keep nothing but what it makes of the items.

        ``accept``: the form in which the objects are asked for; empty: whole objects. Raises what the transport raises,
        and Unreachable for what is no list.
        """
        version = ""
        async with aclosing(self._each(_Form(accept, list_in, self._sizes, self._slots), path, selectors)) as pages:
            async for found in pages:
                version = version or str(found.metadata.get("resourceVersion") or "")
                yield Page(found.items or [], version, found.is_cut)

    async def of_rows(self, path: str) -> AsyncGenerator[Table]:
        """Yield the tables that the API server makes of a list, without the objects. Raises as ``of`` does."""
        async with aclosing(self._each(self._tables, path, {"includeObject": "None"})) as pages:
            async for found in pages:
                yield found

    async def _each(self, form: _Form[_Listed], path: str, selectors: Mapping[str, str]) -> AsyncGenerator[_Listed]:
        progress = _Progress(path, f"{path} {form.accept}", form.sizes, self._transport.is_patient)
        while True:
            if progress.pause:  # not while a page of another list waits for the slot
                await asyncio.sleep(progress.pause)
            async with form.slots:
                seconds = _seconds(form.sizes.asked(progress.listed))
                began = time.monotonic()
                try:
                    found = await self._page(form, progress, {**selectors, **continuing(progress.token)}, seconds)
                except KubeError as error:
                    progress.spent += time.monotonic() - began
                    if not progress.goes_on_after(error, self._transport.patience(seconds)):
                        raise
                    continue
                yield found
            if not progress.goes_on_behind(found):
                break
        if progress.came_well:
            form.sizes.came_well(progress.listed)

    async def _page(
        self, form: _Form[_Listed], progress: _Progress, query: Mapping[str, str], seconds: float | None
    ) -> _Listed:
        asked = form.sizes.asked(progress.listed)
        began = time.monotonic()
        content = await self._transport.read(
            progress.path,
            query if asked == ALL_OBJECTS else {**query, "limit": str(asked)},
            {"Accept": form.accept} if form.accept else {},
            largest=largest_page(asked),
            seconds=seconds,
        )
        try:
            found = form.read(content)
        except DecodeError as error:
            raise self._transport.is_no_server(f"{progress.path}, a list,", str(error), content) from error
        form.sizes.came(progress.listed, len(found.items or ()), len(content), time.monotonic() - began)
        return found


def _seconds(asked: int) -> float | None:
    """Return the limit of a page that was asked to have so many objects; None for that of the client."""
    return None if asked in (1, ALL_OBJECTS) else LATE_SECONDS


def list_in(content: bytes) -> RawList:
    """Read a page. Raises DecodeError for anything else, such as what a proxy answers."""
    found = raw_list(content)
    if not found.metadata or not _has_token(found.metadata) or not (found.kind or "List").endswith("List"):
        raise DecodeError("the answer is no list")
    return found


def table_in(content: bytes) -> Table:
    """Read a page of rows. Raises DecodeError for anything else."""
    found = decode(Table, content)
    if found.kind != "Table" or not _has_token(found.metadata):
        raise DecodeError("the answer is no table")
    return found


def _has_token(metadata: Mapping[str, Any]) -> bool:
    return isinstance(metadata.get("continue") or "", str)


def continuing(token: str) -> dict[str, str]:
    """Return what asks for the page that follows; empty for the first one."""
    return {"continue": token} if token else {}
