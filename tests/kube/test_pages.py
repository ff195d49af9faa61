"""A list holds a few megabytes at a time, however many objects there are and however large each one is."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import dra_kube
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from dra_api.core import Pod
from dra_api.meta import ObjectMeta
from dra_kube import NODES, PODS, Api, Connection
from dra_kube.http import pages, transport
from dra_kube.http.pages import (
    ALL_OBJECTS,
    FIRST_OBJECTS,
    LARGEST_PAGE_BYTES,
    LATE_SECONDS,
    MOST_OBJECTS,
    MOST_PAGES,
    MOST_REFUSED_PAGES,
    PageSizes,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import until

MIB = 1 << 20


@dataclass
class Shelf:
    """Objects of these sizes in bytes, served in pages as an API server does.

    ``pages``: how many objects each page had; ``seconds``: how long one takes for each object; ``expires``: after how
    many pages the version of a list is forgotten; ``behind``: number of pages refused after the first one, since the
    watch cache lags; ``busy``: how many are refused then because the server has too much to do.
    """

    sizes: list[int]
    seconds: float = 0.0
    expires: int | None = None
    behind: int = 0
    busy: int = 0
    pages: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    can_go_on: bool = True

    async def answer(self, request: web.Request) -> web.StreamResponse:
        first = int(request.query.get("continue", "0").removeprefix("now-"))
        limit = int(request.query.get("limit", len(self.sizes)))
        is_table = "as=Table" in request.headers["Accept"]
        self.asked.append(int(request.query.get("limit", ALL_OBJECTS)))
        if self.expires is not None and first and len(self.pages) >= self.expires:
            self.expires = None
            meta = {"continue": f"now-{first}"} if self.can_go_on else {}
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old", "metadata": meta}
            return web.json_response(status, status=410)
        if first and self.busy:
            self.busy -= 1
            return _busy()
        if first and self.behind:
            self.behind -= 1
            details = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}
            return web.json_response(
                {"kind": "Status", "code": 504, "reason": "Timeout", "details": details}, status=504
            )
        last = min(first + limit, len(self.sizes))
        await asyncio.sleep(self.seconds * (last - first))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            response = web.StreamResponse()
            await response.prepare(request)
            more = f'"continue":"{last}",' if last < len(self.sizes) else ""
            version = b"9" if request.query.get("continue", "").startswith("now-") else b"7"
            kind, items = (b"Table", _ROWS) if is_table else (b"List", b'"items":[')
            head = b'{"kind":"%s","metadata":{%s"resourceVersion":"%s"},%s' % (kind, more.encode(), version, items)
            await response.write(head)
            for number in range(first, last):
                item = _row(number, self.sizes[number]) if is_table else _object(number, self.sizes[number])
                await response.write(b"," * (number > first) + item)
            await response.write(b"]}")
        finally:
            self.at_once -= 1
        self.pages.append(last - first)
        return response


def _busy() -> web.Response:
    status = {"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "busy"}
    return web.json_response(status, status=429, headers={"Retry-After": "0"})


def _object(number: int, size: int) -> bytes:
    head = b'{"metadata":{"name":"o%d","uid":"u%d","resourceVersion":"%d"},"spec":{"x":"' % (number, number, number)
    return head + b"x" * max(0, size - len(head)) + b'"}}'


_ROWS = b'"columnDefinitions":[{"name":"Age"},{"name":"Name"},{"name":"Note"}],"rows":['


def _row(number: int, size: int) -> bytes:
    return b'{"cells":["1s","o%d","%s"]}' % (number, b"x" * size)


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(shelf: Shelf, seconds: float = 30.0) -> AsyncIterator[Api]:
    async with answering(shelf.answer, seconds) as api:
        yield api


@asynccontextmanager
async def answering(answer: Answer, seconds: float = 30.0, *, is_patient: bool = False) -> AsyncIterator[Api]:
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    server = TestServer(app)
    await server.start_server()
    where = Connection(str(server.make_url("")).rstrip("/"), None, lambda: None)
    try:
        async with Api(where, timeout=seconds, is_patient=is_patient) as api:
            yield api
    finally:
        await server.close()


def _names(count: int) -> list[str]:
    return [f"o{number}" for number in range(count)]


def _named(pod: Pod) -> Pod:
    return Pod(metadata=ObjectMeta(name=pod.metadata.name))


async def _dicts(api: Api) -> list[str]:
    found, version = await api.list(PODS, keep=lambda it: {"metadata": it["metadata"]})
    assert version == "7"
    return [it["metadata"]["name"] for it in found]


async def _structs(api: Api) -> list[str]:
    listed = await api.list_as(PODS, Pod, keep=_named)
    assert listed.resource_version == "7"
    assert not listed.malformed
    return [it.metadata.name for it in listed.items]


async def _versions(api: Api) -> list[str]:
    found, version = await api.list_versions(PODS)
    assert version == "7"
    return [it.name for it in found]


async def _rows(api: Api) -> list[str]:
    return [name for (name,) in await api.rows(PODS, "ns", ["Name"])]


READS: dict[str, Callable[[Api], Awaitable[list[str]]]] = {
    "list": _dicts,
    "list_as": _structs,
    "list_versions": _versions,
}


@pytest.mark.parametrize("read", READS)
async def test_pages_shrink_until_they_fit_and_the_next_list_begins_with_what_fits(read: str) -> None:
    shelf = Shelf([int(1.4 * MIB)] * 60)
    async with serving(shelf) as api:
        assert await READS[read](api) == _names(60)
        felt = len(shelf.asked) - len(shelf.pages)
        assert 1 <= felt <= 3
        assert max(shelf.pages) * 1.4 * MIB <= LARGEST_PAGE_BYTES
        before = len(shelf.asked)
        assert len(await READS[read](api)) == 60
        assert len(shelf.asked) - before < before
        assert shelf.asked[before] * 1.4 * MIB <= LARGEST_PAGE_BYTES


async def test_small_objects_come_a_thousand_at_a_time() -> None:
    shelf = Shelf([300] * 10_000)
    async with serving(shelf) as api:
        assert await _structs(api) == _names(10_000)
    assert shelf.asked[0] == FIRST_OBJECTS
    assert max(shelf.pages) == MOST_OBJECTS
    assert len(shelf.pages) < 16


async def test_pages_grow_again_behind_large_objects() -> None:
    shelf = Shelf([17 * MIB, *[300] * 5_000])
    async with serving(shelf) as api:
        assert await _structs(api) == _names(5_001)
    assert 1 in shelf.pages
    assert max(shelf.pages) == MOST_OBJECTS


async def test_an_object_larger_than_a_page_of_several_fits() -> None:
    shelf = Shelf([300, LARGEST_PAGE_BYTES + MIB, 300])
    async with serving(shelf) as api:
        assert await _structs(api) == _names(3)


async def test_an_object_larger_than_any_is_refused_in_words() -> None:
    async with serving(Shelf([33 * MIB])) as api:
        with pytest.raises(dra_kube.AnswerTooLarge, match="the answer is larger than 32 MiB"):
            await api.list(PODS)


async def test_a_late_page_is_asked_for_with_one_object_and_pages_grow_again() -> None:
    shelf = Shelf([300] * 150, seconds=0.01)
    async with serving(shelf, seconds=1.5) as api:  # a page of several has 0.5 s, of one 1.5 s
        assert await _structs(api) == _names(150)
    assert 1 in shelf.pages
    assert max(shelf.pages) > 4


async def test_a_server_that_never_answers_is_given_up_after_two_pages() -> None:
    shelf = Shelf([300], seconds=60)
    async with serving(shelf, seconds=0.6) as api:
        with pytest.raises(dra_kube.NoAnswerInTime, match=r"no answer within 0.6 s"):
            await api.list(PODS)
    assert shelf.asked == [FIRST_OBJECTS, 1]


async def test_a_list_whose_version_expires_goes_on_and_is_watched_from_its_first_page() -> None:
    shelf = Shelf([int(1.4 * MIB)] * 30, expires=3)
    async with serving(shelf) as api:
        assert await _structs(api) == _names(30)
    shelf = Shelf([int(1.4 * MIB)] * 30, expires=3, can_go_on=False)
    async with serving(shelf) as api:
        with pytest.raises(dra_kube.Gone):
            await api.list_as(PODS, Pod)


@pytest.mark.parametrize("read", [*READS.values(), lambda api: _rows(api)])
async def test_a_list_that_is_ahead_of_the_watch_cache_waits_for_it_and_does_not_begin_anew(
    read: Callable[[Api], Awaitable[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that begins anew is ahead again, for as long as others write more than the server takes in."""
    monkeypatch.setattr(pages, "REFUSAL_PAUSE_SECONDS", 0.001)
    shelf = Shelf([12_000] * 1_500, behind=3)
    async with serving(shelf) as api:
        assert await read(api) == _names(1_500)
        assert sum(shelf.pages) in (1_500, 3_000), "rows are asked for without a limit first"
        shelf.behind = 100
        with pytest.raises(dra_kube.ServerError):
            await read(api)
        assert shelf.behind == 100 - MOST_REFUSED_PAGES


@pytest.mark.parametrize("read", READS)
async def test_a_list_of_a_busy_server_does_not_begin_anew(read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SHORTEST_PAUSE_SECONDS", 0.001)
    shelf = Shelf([300] * 150, busy=3)
    async with serving(shelf) as api:
        assert await READS[read](api) == _names(150)
    assert sum(shelf.pages) == 150
    assert shelf.busy == 0


async def test_a_page_that_a_busy_server_puts_off_leaves_its_place_to_other_lists() -> None:
    """It held it for ten seconds, and with three of them all other lists of the client waited."""
    shelf = Shelf([300] * 150, busy=1_000)
    async with serving(shelf) as api:
        lists = [asyncio.ensure_future(api.list_as(PODS, Pod)) for _ in range(MOST_PAGES)]
        await until("the next pages are put off", _asked(shelf, 2 * MOST_PAGES), 5.0)
        shelf.sizes = [300]
        async with asyncio.timeout(transport.SHORTEST_PAUSE_SECONDS / 2):
            assert (await api.list_as(NODES, Pod)).items
        for task in lists:
            task.cancel()
        await asyncio.wait(lists)


@pytest.mark.parametrize("seconds", [0.3, 1e8], ids=["a limit", "no limit"])
async def test_a_server_that_is_busy_for_ever_is_given_up(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SHORTEST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(transport, "LONGEST_PATIENCE_SECONDS", 0.2)

    async def busy(_: web.Request) -> web.Response:
        return _busy()

    async with answering(busy, seconds, is_patient=True) as api, asyncio.timeout(5):
        for read in (api.get(PODS, "pod", "ns"), api.raw_get("/version"), api.list(PODS), _rows(api)):
            with pytest.raises(dra_kube.TooManyRequests):
                await read


@pytest.mark.parametrize(
    ("limit", "most", "said"),
    [("MOST_LISTED_OBJECTS", 200, "more than 200 objects"), ("LONGEST_LIST_SECONDS", 0.05, "ever new pages for 0 s")],
)
@pytest.mark.parametrize("read", [*READS.values(), lambda api: _rows(api)])
async def test_ever_new_pages_are_no_list(
    read: Callable[[Api], Awaitable[list[str]]], limit: str, most: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, limit, most)

    async def answer(request: web.Request) -> web.StreamResponse:
        place, is_table = int(request.query.get("continue", "0")), "Table" in request.headers["Accept"]
        items = b",".join((_row if is_table else _object)(place + it, 9) for it in range(9))
        kind, head = (b"Table", _ROWS) if is_table else (b"List", b'"items":[')
        body = b'{"kind":"%s","metadata":{"continue":"%d","resourceVersion":"7"},%s%s]}' % (
            kind,
            place + 9,
            head,
            items,
        )
        return web.Response(body=body, content_type="application/json")

    async with answering(answer) as api, asyncio.timeout(5):
        with pytest.raises(dra_kube.Unreachable, match=f"the list never ends: the API server answers with {said}"):
            await read(api)


async def test_rows_come_in_pages_only_if_all_are_too_many_for_one_answer() -> None:
    """A tenant may store a hundred thousand claims with names of 253 letters."""
    shelf = Shelf([300] * 1_500)
    async with serving(shelf) as api:
        assert await _rows(api) == _names(1_500)
        assert shelf.asked == [ALL_OBJECTS]
        shelf.sizes = [12_000] * 1_500
        assert await _rows(api) == _names(1_500)
        assert shelf.asked[:3] == [ALL_OBJECTS, ALL_OBJECTS, MOST_OBJECTS]
        assert max(shelf.asked[2:]) * 12_000 <= LARGEST_PAGE_BYTES
        before = len(shelf.asked)
        assert await _rows(api) == _names(1_500)
        assert ALL_OBJECTS not in shelf.asked[before:], "what was too large a moment ago is not asked for again at once"
        shelf.sizes = [300] * 1_500
        assert await _rows(api) == _names(1_500)
        assert shelf.asked[-1] == ALL_OBJECTS, "after a list in which no page was given up, all may fit again"


async def test_rows_that_come_late_are_asked_for_one_at_a_time_and_pages_grow_again() -> None:
    """Before 1.34 the server reads the objects of a page from etcd: of a thousand large ones that takes long."""
    shelf = Shelf([300] * 150, seconds=0.006)
    async with serving(shelf, seconds=1.5) as api:  # a page of several has 0.5 s, of one and of all rows 1.5 s
        assert await _rows(api) == _names(150)
        assert shelf.asked == [ALL_OBJECTS]
        shelf.seconds = 0.02
        assert await _rows(api) == _names(150)
    assert shelf.asked[1:3] == [ALL_OBJECTS, 1]
    assert max(shelf.pages[1:]) > 4


async def test_rows_whose_version_expires_go_on() -> None:
    shelf = Shelf([12_000] * 1_500, expires=2)
    async with serving(shelf) as api:
        assert await _rows(api) == _names(1_500)
    shelf = Shelf([12_000] * 1_500, expires=2, can_go_on=False)
    async with serving(shelf) as api:
        with pytest.raises(dra_kube.Gone):
            await _rows(api)


async def test_rows_do_not_wait_for_lists_of_large_objects() -> None:
    """A pod is bound once they came."""
    shelf = Shelf([300], seconds=5.0)
    async with serving(shelf) as api:
        lists = [asyncio.ensure_future(api.list_as(PODS, Pod)) for _ in range(2 * MOST_PAGES)]
        await until("lists are under way", _asked(shelf, MOST_PAGES))
        rows = asyncio.ensure_future(_rows(api))
        await until("the rows are asked for", _asked(shelf, MOST_PAGES + 1), 2.0)
        for task in (*lists, rows):
            task.cancel()
        await asyncio.wait((*lists, rows))


def _asked(shelf: Shelf, count: int) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return len(shelf.asked) == count

    return asked


async def test_lists_of_many_kinds_together_hold_few_pages() -> None:
    shelf = Shelf([int(1.4 * MIB)] * 30)
    async with serving(shelf) as api:
        await asyncio.gather(*[api.list_as(resource, Pod, keep=_named) for resource in (PODS, NODES) * 4])
    assert shelf.most_at_once <= MOST_PAGES + 1  # one that was given up, and is still being written


@given(sizes=st.lists(st.sampled_from([200, 5_000, 200_000, 3_000_000, 17_000_000]), max_size=12))
@settings(max_examples=8, deadline=None)
def test_every_object_comes_once_and_in_order_whatever_its_size(sizes: list[int]) -> None:
    async def listed() -> list[str]:
        async with serving(Shelf(sizes)) as api:
            return await _structs(api)

    assert asyncio.run(listed()) == _names(len(sizes))


@pytest.mark.parametrize(("size", "objects"), [(3_000, 42), (50_000, 42), (MIB, 12)])
async def test_malformed_objects_are_kept_by_their_names_and_devices_only(size: int, objects: int) -> None:
    """What nests too deep is malformed to us, and the API server admits it at any length, and by the ten thousand."""
    item = (
        b'{"metadata":{"name":"o%d","uid":"u","resourceVersion":"1","labels":{%s}},"spec":3,"status":{"allocation":'
        b'{"devices":{"results":[{"driver":"d","pool":"p","device":"x"}],"config":["%s"]}}}}'
    )

    labels = b",".join(b'"l%d":"x"' % number for number in range(size // 50))

    async def answer(request: web.Request) -> web.Response:
        first = int(request.query.get("continue", 0))
        items = b",".join(item % (first + number, labels, b"c" * size) for number in range(2))
        more = b'"continue":"%d",' % (first + 2) if first + 2 < objects else b""
        return web.Response(body=b'{"metadata":{%s"resourceVersion":"7"},"items":[%s]}' % (more, items))

    app = web.Application()
    app.router.add_get("/api/v1/pods", answer)
    server = TestServer(app)
    await server.start_server()
    async with Api(Connection(str(server.make_url("")).rstrip("/"), None, lambda: None)) as api:
        tracemalloc.start()
        try:
            listed = await api.list_as(PODS, Pod)
            kept = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    await server.close()
    assert len(listed.malformed) == objects
    assert all(b'"device":"x"' in raw and len(raw) < 300 for raw, _ in listed.malformed)
    assert kept < 8 * MIB


@pytest.mark.parametrize("first", [FIRST_OBJECTS, ALL_OBJECTS])
@pytest.mark.parametrize("latency", [0.0, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("per_object", [0.0, 0.001, 0.005, 0.02, 0.3, 2.0])
def test_pages_grow_without_one_that_is_late_however_slow_the_server_is(
    first: int, latency: float, per_object: float
) -> None:
    """A page that is late is read for nothing, and costs ten seconds."""
    sizes, left, lates, seconds = PageSizes(first), 2_000, 0, 0.0
    while left:
        asked = sizes.asked("claims")
        objects = min(asked or left, left)
        takes = latency + per_object * objects
        if takes > LATE_SECONDS and sizes.late("claims"):
            lates, seconds = lates + 1, seconds + LATE_SECONDS
            continue
        sizes.came("claims", objects, objects * 100, takes)
        left, seconds = left - objects, seconds + takes
    assert lates <= 1, "the first one may be"
    assert seconds <= LATE_SECONDS + 2_000 * per_object + latency * max(20, 2_000 * per_object)
