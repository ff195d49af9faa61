"""Whatever a proxy answers in place of the API server, every verb finds the server unusable and says so in one line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from dra_api.core import Pod
from dra_kube import PODS, Api, Connection, Unreachable
from faults.effects import NO_OBJECT, wrong_answers

ANSWERS = wrong_answers("Pod")
BODY = {"metadata": {"name": "p", "namespace": "ns"}}


async def _watched(api: Api) -> None:
    async for _ in api.watch(PODS, resource_version="1"):
        pass


async def _paged(api: Api) -> None:
    async for _ in api.pages_as(PODS, Pod):
        pass


VERBS: dict[str, Callable[[Api], Awaitable[object]]] = {
    "get": lambda api: api.get(PODS, "p", "ns"),
    "create": lambda api: api.create(PODS, BODY),
    "create by prefix": lambda api: api.create(PODS, {"metadata": {"generateName": "p-", "namespace": "ns"}}),
    "update": lambda api: api.update(PODS, BODY),
    "update status": lambda api: api.update(PODS, BODY, "status"),
    "patch": lambda api: api.patch(PODS, "p", {"spec": {}}, "ns"),
    "patch status": lambda api: api.patch(PODS, "p", {"status": {}}, "ns", subresource="status"),
    "list": lambda api: api.list(PODS),
    "list_as": lambda api: api.list_as(PODS, Pod),
    "pages_as": _paged,
    "list_versions": lambda api: api.list_versions(PODS),
    "rows": lambda api: api.rows(PODS, "ns", ["Name"]),
    "watch": _watched,
    "delete": lambda api: api.delete(PODS, "p", "ns"),
    "bind": lambda api: api.create_subresource(PODS, "p", "binding", {}, "ns"),
    "evict": lambda api: api.create_subresource(PODS, "p", "eviction", {}, "ns"),
}


@pytest.fixture
async def answering() -> AsyncIterator[Callable[[bytes], Awaitable[Api]]]:
    said = [b""]

    async def handler(_: web.Request) -> web.Response:
        return web.Response(body=said[0], content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    server = TestServer(app)
    await server.start_server()
    async with Api(Connection(str(server.make_url("")).rstrip("/"), None, lambda: None)) as api:

        async def begin(body: bytes) -> Api:
            said[0] = body
            return api

        yield begin
    await server.close()


@pytest.mark.parametrize("verb", VERBS)
async def test_a_wrong_answer_counts_as_no_api_server(answering: Callable[[bytes], Awaitable[Api]], verb: str) -> None:
    """A watch without events, or whose last one was cut off, is none."""
    for answer, body in ANSWERS.items():
        if verb == "watch" and (not body.strip() or answer == "half an object"):
            continue
        print(answer)  # of a failure the last one
        with pytest.raises(Unreachable) as caught:
            await VERBS[verb](await answering(body))
        assert len(str(caught.value).splitlines()) == 1
        assert len(str(caught.value)) < 600


async def test_a_version_that_is_no_object_counts_as_no_api_server(
    answering: Callable[[bytes], Awaitable[Api]],
) -> None:
    """It is asked for while the operator works, and its callers read fields of it."""
    for body in (*NO_OBJECT.values(), b"null", b"[]", b'"ok"'):
        with pytest.raises(Unreachable):
            await (await answering(body)).raw_get("/version")


@pytest.mark.parametrize(
    "body", [b'{"type":"ADDED"', b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"2"}}}\n{']
)
async def test_an_event_that_is_cut_off_is_the_end_of_a_watch_and_no_failure(
    answering: Callable[[bytes], Awaitable[Api]], body: bytes
) -> None:
    await _watched(await answering(body))
