"""The API client against a server that answers exactly what each test says."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import dra_kube
import pytest
from aiohttp import ClientError, StreamReader, web
from aiohttp.test_utils import TestServer
from dra_api.codec import TOO_DEEP
from dra_api.core import Node
from dra_api.resource import ResourceClaim
from dra_kube import NODES, PODS, RESOURCE_CLAIMS, Api, Connection
from dra_kube.access.credentials import client_tls
from dra_kube.http import transport
from dra_operator.sources.handlers import session_for

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[dict[str, Handler]], Awaitable[Api]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts a server with the given ``METHOD /path`` handlers and hands out a client of it."""
    opened: list[Any] = []

    async def start(routes: dict[str, Handler]) -> Api:
        app = web.Application()
        for route, handler in routes.items():
            method, path = route.split(" ")
            app.router.add_route(method, path, handler)
        server = TestServer(app)
        await server.start_server()
        api = Api(Connection(str(server.make_url("")).rstrip("/"), None, lambda: "Bearer secret"), timeout=30)
        await api.__aenter__()
        opened.extend([server, api])
        return api

    yield start
    for server, api in zip(opened[::2], opened[1::2], strict=True):
        await api.__aexit__(None, None, None)
        await server.close()


def answer(content: object, status: int = 200) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response(content, status=status)

    return handler


def claim(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        **fields,
    }


SERVED_V1 = answer({"resources": [{"name": "resourceclaims"}]})
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (400, "BadRequest", dra_kube.BadRequest),
        (401, "Unauthorized", dra_kube.Unauthorized),
        (403, "Forbidden", dra_kube.Forbidden),
        (404, "NotFound", dra_kube.NotFound),
        (409, "Conflict", dra_kube.Conflict),
        (409, "AlreadyExists", dra_kube.AlreadyExists),
        (410, "Expired", dra_kube.Gone),
        (422, "Invalid", dra_kube.Invalid),
        (429, "TooManyRequests", dra_kube.TooManyRequests),
        (503, "ServiceUnavailable", dra_kube.ServerError),
    ],
)
async def test_a_status_becomes_the_exception_of_its_code_and_keeps_message_and_causes(
    serve: Serve, code: int, reason: str, error: type[dra_kube.ApiError]
) -> None:
    status = {
        "kind": "Status",
        "code": code,
        "reason": reason,
        "message": "what went wrong",
        "details": {"causes": [{"field": "spec.x", "message": "bad"}], "retryAfterSeconds": 3},
    }
    api = await serve({"GET /api/v1/namespaces/default/pods/p": answer(status, code)})
    with pytest.raises(error, match="what went wrong") as caught:
        await api.get(PODS, "p", "default")
    assert type(caught.value) is error
    assert caught.value.causes[0]["field"] == "spec.x"
    assert caught.value.retry_after == 3


@pytest.mark.parametrize(
    ("details", "header", "seconds"),
    [
        ({}, "7", 7),
        ({"retryAfterSeconds": 3}, "7", 3),
        ({"retryAfterSeconds": 0}, "7", 7),
        ({}, "86400", 60),
        ({}, "Fri, 01 Jan 2100 00:00:00 GMT", 60),
        ({"retryAfterSeconds": 2**31 - 1}, "7", 60),
        ({"retryAfterSeconds": 2**70}, "7", 60),
        ({}, "soon", None),
    ],
)
async def test_no_answer_stops_requests_for_longer_than_a_minute(
    serve: Serve, details: dict[str, int], header: str, seconds: float | None
) -> None:
    """A proxy or a webhook may ask for any time, and the cause is over long before."""
    status = {"kind": "Status", "code": 429, "message": "busy", "details": details}

    async def busy(request: web.Request) -> web.Response:
        return web.json_response(status, status=429, headers={"Retry-After": header})

    api = await serve({"GET /api/v1/nodes/n": busy})
    with pytest.raises(dra_kube.TooManyRequests) as caught:
        await api.get(NODES, "n")
    assert caught.value.retry_after == seconds


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (["metadata.uid"], dra_kube.Conflict),
        (["metadata.uid", "metadata.uid"], dra_kube.Conflict),
        (["metadata.uid", "spec.x"], dra_kube.Invalid),
        ([], dra_kube.Invalid),
    ],
)
async def test_a_patch_with_the_uid_of_another_object_is_a_conflict(
    serve: Serve, fields: list[str], error: type[dra_kube.ApiError]
) -> None:
    """Servers name the field once or twice, and call the patch invalid: they compare the uid like any other field."""
    causes = [{"field": field} for field in fields]
    status = {"kind": "Status", "reason": "Invalid", "message": "m", "details": {"causes": causes}}
    api = await serve({"PATCH /api/v1/namespaces/default/pods/p": answer(status, 422)})
    with pytest.raises(error, match="m") as caught:
        await api.patch(PODS, "p", {"metadata": {"uid": "predecessor"}}, "default")
    assert (type(caught.value), caught.value.code) == (error, 422)


async def test_an_error_page_that_is_no_status_still_says_what_came_back(serve: Serve) -> None:
    async def proxy_page(request: web.Request) -> web.Response:
        return web.Response(status=502, text="<html>bad gateway</html>")

    api = await serve({"GET /api/v1/nodes/n": proxy_page})
    with pytest.raises(dra_kube.ServerError, match="bad gateway"):
        await api.get(NODES, "n")


@pytest.mark.parametrize("name", ["victim/log", "../../../secrets/x", "..", ".", "a/../b"])
async def test_a_name_that_is_a_path_asks_for_no_other_object(serve: Serve, name: str) -> None:
    """An API server admits any text as the name of a consumer of a claim, which is then looked up as a pod."""
    asked: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"metadata": {"name": "another"}})

    api = await serve({"* /{path:.*}": handler})
    for call in (api.get(PODS, name, "ns"), api.delete(PODS, name, "ns"), api.patch(PODS, name, {}, "ns")):
        with pytest.raises(dra_kube.NotFound, match="no object can be called so"):
            await call
    assert asked == []


async def test_a_redirect_is_not_followed_and_its_target_sees_no_credentials(serve: Serve) -> None:
    seen: list[str | None] = []

    async def thief(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({"kind": "Node", "metadata": {"name": "n"}})

    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPFound("/elsewhere")

    api = await serve({"GET /api/v1/nodes/n": redirect, "GET /elsewhere": thief})
    with pytest.raises(dra_kube.ApiError, match="HTTP 302, a redirect, which is not followed"):
        await api.get(NODES, "n")
    assert seen == []


async def test_the_password_of_a_proxy_that_refuses_is_in_no_error() -> None:
    asked: list[str | None] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        asked.append(next((line for line in head if line.startswith("Proxy-Authorization")), None))
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    proxy = f"http://user:s3cret%2F@127.0.0.1:{server.sockets[0].getsockname()[1]}"
    where = Connection("https://api.example.com", client_tls(), lambda: None, proxy)
    assert "s3cret" not in repr(where)
    async with server, Api(where, timeout=5) as api:
        for request in (api.get(NODES, "n"), api.update(NODES, {"metadata": {"name": "n"}})):
            with pytest.raises(dra_kube.Unreachable) as caught:
                await request
            assert "s3cret" not in f"{caught.value}{caught.value!r}{caught.value.__cause__!r}{caught.value.__cause__}"
        async with session_for(where).aiohttp_session as kopfs:
            with pytest.raises(ClientError) as of_kopf:
                await kopfs.get(where.host)
            assert "s3cret" not in f"{of_kopf.value}{of_kopf.value!r}"
    assert len(asked) == 3
    assert set(asked) == {f"Proxy-Authorization: Basic {b64encode(b'user:s3cret/').decode()}"}


async def test_a_kind_that_is_served_no_more_says_nothing_about_its_objects(serve: Serve) -> None:
    """An API server has no Status for a path that it does not know. The version is looked up again later."""
    asked: list[str] = []

    async def unknown_path(request: web.Request) -> web.Response:
        return web.Response(status=404, text="404 page not found")

    async def discovery(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"resources": [{"name": "resourceclaims"}]})

    api = await serve(
        {"GET /apis/resource.k8s.io/v1": discovery, f"GET {CLAIMS}/c": unknown_path, f"DELETE {CLAIMS}/c": unknown_path}
    )
    for request in (api.get, api.delete):
        with pytest.raises(dra_kube.NotServed, match="does not serve resourceclaims"):
            await request(dra_kube.RESOURCE_CLAIMS, "c", "default")
    assert len(asked) == 2


@pytest.mark.parametrize("call", ["get", "list", "list_as"])
async def test_a_page_in_place_of_an_api_server_is_reported_as_such(serve: Serve, call: str) -> None:
    async def login_page(request: web.Request) -> web.Response:
        return web.Response(text="<html>please log in</html>")

    api = await serve({"GET /api/v1/nodes": login_page, "GET /api/v1/nodes/n": login_page})
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "get": lambda: api.get(NODES, "n"),
        "list": lambda: api.list(NODES),
        "list_as": lambda: api.list_as(NODES, Node),
    }
    with pytest.raises(dra_kube.Unreachable, match=r"is not an API server.*please log in"):
        await calls[call]()


async def test_an_error_that_breaks_off_is_an_error_of_ours(serve: Serve) -> None:
    async def broken(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500, headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.close()
        return response

    api = await serve({"GET /api/v1/nodes/n": broken})
    with pytest.raises(dra_kube.Unreachable, match="cut off"):
        await api.get(NODES, "n")


async def test_a_watch_is_bounded_so_that_a_server_that_vanished_is_noticed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_WATCH_SECONDS", 0)
    monkeypatch.setattr(transport, "_WATCH_GRACE_SECONDS", 0.05)
    hanging = asyncio.Event()
    asked: list[str] = []

    async def silent(request: web.Request) -> web.StreamResponse:
        asked.append(request.query["timeoutSeconds"])
        response = web.StreamResponse()
        await response.prepare(request)
        await hanging.wait()
        return response

    api = await serve({"GET /api/v1/pods": silent})
    with pytest.raises(dra_kube.Unreachable, match=r"the watch of .* was interrupted"):
        async for _event in api.watch(PODS, resource_version="5"):
            pass
    hanging.set()
    assert asked == ["0"]


async def test_a_connection_that_closed_before_it_was_read_is_an_interruption(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiohttp raises a RuntimeError then; it happens with a thousand clients on one machine."""
    hanging = asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await hanging.wait()
        return response

    async def closed(*_: object) -> None:
        raise RuntimeError("Connection closed.")

    api = await serve({"GET /api/v1/pods": silent})
    monkeypatch.setattr(StreamReader, "_wait", closed)
    with pytest.raises(dra_kube.Unreachable, match=r"the watch of .* was interrupted: RuntimeError"):
        async for _event in api.watch(PODS, resource_version="5"):
            pass
    hanging.set()


async def test_an_address_at_which_no_server_listens_is_reported(unused_tcp_port: int) -> None:
    async with Api(Connection(f"http://127.0.0.1:{unused_tcp_port}", None, lambda: None)) as api:
        with pytest.raises(dra_kube.Unreachable, match=f"{unused_tcp_port}/.*: the connection was refused$"):
            await api.get(PODS, "p", "default")


async def test_a_proxy_that_cannot_be_reached_is_reported_and_not_the_server(unused_tcp_port: int) -> None:
    proxy = f"http://user:s3cret@127.0.0.1:{unused_tcp_port}"
    async with Api(Connection("http://api.example.com:6443", None, lambda: None, proxy)) as api:
        said = rf"the proxy 127\.0\.0\.1:{unused_tcp_port} cannot be reached: Connect"
        with pytest.raises(dra_kube.Unreachable, match=said) as caught:
            await api.get(PODS, "p", "default")
    assert "s3cret" not in str(caught.value)


async def test_a_server_whose_name_is_not_known_is_reported() -> None:
    async with Api(Connection("http://no-such-host.invalid", None, lambda: None)) as api:
        with pytest.raises(dra_kube.Unreachable, match=r": the name no-such-host\.invalid is not known"):
            await api.get(PODS, "p", "default")


async def test_credentials_are_asked_for_each_request(serve: Serve) -> None:
    seen: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.json_response({"kind": "Pod", "metadata": {"name": "p"}})

    api = await serve({"GET /api/v1/namespaces/default/pods/p": handler})
    tokens = iter(["Bearer one", "Bearer two"])
    async with Api(Connection(api.connection.host, None, lambda: next(tokens))) as changing:
        await changing.get(PODS, "p", "default")
        await changing.get(PODS, "p", "default")
    assert seen == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize("call", ["get", "update", "watch"])
async def test_it_is_told_which_credentials_the_server_refused(serve: Serve, call: str) -> None:
    unauthorized = answer({"kind": "Status", "code": 401, "reason": "Unauthorized"}, 401)
    pod = "/api/v1/namespaces/default/pods/p"
    api = await serve({f"GET {pod}": unauthorized, f"PUT {pod}": unauthorized, "GET /api/v1/pods": unauthorized})
    refused: list[str | None] = []
    settings = Connection(api.connection.host, None, lambda: "Bearer old", refused=refused.append)
    async with Api(settings) as client:
        with pytest.raises(dra_kube.Unauthorized):
            if call == "get":
                await client.get(PODS, "p", "default")
            elif call == "update":
                await client.update(PODS, {"metadata": {"name": "p", "namespace": "default"}})
            else:
                async for _event in client.watch(PODS, resource_version="5"):
                    pass
    assert refused == ["Bearer old"]


async def test_a_list_follows_continue_and_one_malformed_item_costs_only_itself(serve: Serve) -> None:
    bad = claim("bad", spec={"devices": {"requests": "not a list"}})
    pages = {
        None: {"metadata": {"continue": "next", "resourceVersion": "7"}, "items": [claim("a"), bad]},
        "next": {"metadata": {"resourceVersion": "7"}, "items": [claim("b")]},
    }

    async def handler(request: web.Request) -> web.Response:
        return web.json_response(pages[request.query.get("continue")])

    api = await serve({"GET /apis/resource.k8s.io/v1": SERVED_V1, f"GET {CLAIMS}": handler})
    found = await api.list_as(RESOURCE_CLAIMS, ResourceClaim, "default")
    assert [item.metadata.name for item in found.items] == ["a", "b"]
    assert "requests" in str(found.malformed[0][1])
    assert found.resource_version == "7"


async def test_a_watch_yields_events_across_chunk_borders_and_ends_with_gone_on_an_expired_version(
    serve: Serve,
) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.query["resourceVersion"] == "5"
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in (
            b'{"type":"ADDED","obj',
            b'ect":{"kind":"Pod","metadata":{"name":"p"}}}\n',
            b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"6"}}}\n\n',
            b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}\n',
        ):
            await response.write(chunk)
        return response

    api = await serve({"GET /api/v1/pods": handler})
    events = []
    with pytest.raises(dra_kube.Gone, match="too old"):
        async for event in api.watch(PODS, resource_version="5"):
            events.append(event.type)
    assert events == ["ADDED", "BOOKMARK"]


async def test_an_older_server_is_spoken_to_in_its_version_and_objects_come_as_v1(serve: Serve) -> None:
    sent: list[Any] = []
    old = {
        "apiVersion": "resource.k8s.io/v1beta1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "r", "deviceClassName": "gpu"}]}},
    }

    async def create(request: web.Request) -> web.Response:
        sent.append(await request.json())
        return web.json_response(old)

    path = "/apis/resource.k8s.io/v1beta1"
    api = await serve(
        {
            f"GET {path}": SERVED_V1,
            f"GET {path}/namespaces/default/resourceclaims/c": answer(old),
            f"POST {path}/namespaces/default/resourceclaims": create,
        }
    )
    got = await api.get(RESOURCE_CLAIMS, "c", "default")
    assert got["apiVersion"] == "resource.k8s.io/v1"
    assert got["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "gpu"
    await api.create(RESOURCE_CLAIMS, got)
    assert sent[0]["apiVersion"] == "resource.k8s.io/v1beta1"
    assert sent[0]["spec"]["devices"]["requests"][0]["deviceClassName"] == "gpu"


async def test_a_kind_that_the_server_does_not_serve_is_an_error_of_its_own(serve: Serve) -> None:
    api = await serve({})
    with pytest.raises(dra_kube.NotServed, match=r"resourceclaims\.resource\.k8s\.io"):
        await api.get(RESOURCE_CLAIMS, "c", "default")


async def test_deleting_with_preconditions_sends_them(serve: Serve) -> None:
    bodies: list[Any] = []

    async def handler(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.json_response({"kind": "Status", "status": "Success"})

    api = await serve({"DELETE /api/v1/namespaces/default/pods/p": handler})
    await api.delete(PODS, "p", "default", uid="u1", resource_version="9", grace_seconds=0)
    assert bodies[0]["preconditions"] == {"uid": "u1", "resourceVersion": "9"}
    assert bodies[0]["gracePeriodSeconds"] == 0


async def test_an_empty_name_is_refused_before_it_deletes_the_whole_collection(serve: Serve) -> None:
    api = await serve({})
    with pytest.raises(ValueError, match="pods must have a name"):
        await api.delete(PODS, "", "default")


ODD_ANSWERS: dict[str, tuple[int, bytes, type[dra_kube.KubeError], str]] = {
    "no JSON": (200, b"<html>", dra_kube.Unreachable, "is not an API server"),
    "no UTF-8": (200, b'{"items":["\xb2"]}', dra_kube.Unreachable, "is not an API server"),
    "no object": (200, b"[]", dra_kube.Unreachable, "is not an API server"),
    "nested without end": (200, b'{"items":' + b"[" * 30_000, dra_kube.Unreachable, "levels deep"),
    "a Status of other types": (
        409,
        b'{"kind":"Status","reason":[],"message":{},"details":[1]}',
        dra_kube.Conflict,
        "HTTP 409|409",
    ),
    "causes of other types": (
        422,
        b'{"kind":"Status","message":"m","details":{"causes":{"a":1},"retryAfterSeconds":"soon"}}',
        dra_kube.Invalid,
        "m",
    ),
}


@pytest.mark.parametrize(("code", "body", "error", "said"), ODD_ANSWERS.values(), ids=ODD_ANSWERS)
async def test_whatever_is_answered_the_error_is_one_of_ours(
    serve: Serve, code: int, body: bytes, error: type[dra_kube.KubeError], said: str
) -> None:
    async def odd(request: web.Request) -> web.Response:
        return web.Response(status=code, body=body)

    api = await serve({"GET /api/v1/nodes/n": odd, "GET /api/v1/nodes": odd})
    with pytest.raises(error, match=said) as caught:
        await api.get(NODES, "n")
    if isinstance(caught.value, dra_kube.ApiError):
        assert (caught.value.causes, caught.value.retry_after) == ([], None)
    with pytest.raises(error):
        await api.list(NODES)


async def _deep_pages(request: web.Request) -> web.Response:
    version = b'"uid":"u","resourceVersion":"1"'
    nested = b"[" * 20_000 + b"]" * 20_000  # the API server accepts 10,000 levels
    deep = b'{"metadata":{"name":"deep",%s},"spec":{"a":%s}}' % (version, nested)
    good = b'{"metadata":{"name":"%s",%s}}' % (request.query.get("continue", "first").encode(), version)
    more = b"" if "continue" in request.query else b'"continue":"second",'
    return web.Response(body=b'{"items":[%s,%s],"metadata":{%s"resourceVersion":"7"}}' % (deep, good, more))


@pytest.mark.parametrize("version", RESOURCE_CLAIMS.versions)
async def test_an_object_that_nests_too_deep_is_malformed_and_the_others_of_its_list_are_not(
    serve: Serve, version: str
) -> None:
    group = f"/apis/{RESOURCE_CLAIMS.group}/{version}"
    served = {f"GET {group}": answer({"resources": [{"name": "resourceclaims"}]})}
    api = await serve({**served, f"GET {group}/resourceclaims": _deep_pages})
    listed = await api.list_as(RESOURCE_CLAIMS, ResourceClaim)
    assert [claim.metadata.name for claim in listed.items] == ["first", "second"]
    assert ["levels deep" in str(error) for _, error in listed.malformed] == [True, True]
    assert listed.resource_version == "7"


async def test_a_list_of_dicts_and_of_metadata_has_each_object_without_what_nests_too_deep(serve: Serve) -> None:
    api = await serve({"GET /api/v1/nodes": _deep_pages})
    objects, version = await api.list(NODES)
    assert ([each["metadata"]["name"] for each in objects], version) == (["deep", "first", "deep", "second"], "7")
    assert TOO_DEEP in str(objects[0]["spec"])
    names = [version.name for version in (await api.list_versions(NODES))[0]]
    assert names == ["deep", "first", "deep", "second"]


async def test_a_list_that_begins_again_and_again_is_given_up(serve: Serve) -> None:
    api = await serve({"GET /api/v1/nodes": answer({"items": [], "metadata": {"continue": "more"}})})
    with pytest.raises(dra_kube.Unreachable, match="the list never ends"):
        await api.list(NODES)


async def test_answers_and_events_without_end_are_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 1000)

    monkeypatch.setattr("dra_kube.http.transport.LARGEST_OBJECT_BYTES", 100_000)
    monkeypatch.setattr("dra_kube.http.connections.LARGEST_OBJECT_BYTES", 100_000)
    monkeypatch.setattr("dra_kube.http.watch.LARGEST_OBJECT_BYTES", 100_000)
    routes = ("GET /api/v1/nodes/n", "DELETE /api/v1/nodes/n", "GET /api/v1/nodes")
    api = await serve(dict.fromkeys(routes, endless))
    for request in (api.get, api.delete):
        with pytest.raises(dra_kube.Unreachable, match="the answer is larger than"):
            await request(NODES, "n")
    with pytest.raises(dra_kube.Unreachable, match="a watch event is longer than"):
        async for _ in api.watch(NODES, resource_version="1"):
            pass


async def test_rows_are_what_kubectl_shows_without_the_objects(serve: Serve) -> None:
    asked: list[tuple[str, str]] = []
    columns = [{"name": name, "type": "string"} for name in ("Name", "State", "Age")]
    cells = [["a", "pending", "1s"], ["b", "allocated,reserved", "2s"]]

    async def table(request: web.Request) -> web.Response:
        asked.append((request.headers["Accept"], request.query["includeObject"]))
        rows = [{"cells": row, "object": None} for row in cells]
        return web.json_response({"kind": "Table", "metadata": {}, "columnDefinitions": columns, "rows": rows})

    api = await serve({"GET /apis/resource.k8s.io/v1": SERVED_V1, f"GET {CLAIMS}": table})
    rows = await api.rows(RESOURCE_CLAIMS, "default", ["State", "Name"])
    assert rows == [("pending", "a"), ("allocated,reserved", "b")]
    assert asked == [("application/json;as=Table;g=meta.k8s.io;v=v1", "None")]
    with pytest.raises(dra_kube.Unreachable, match="no table with Colour"):
        await api.rows(RESOURCE_CLAIMS, "default", ["Colour"])
    cells.append(["c"])
    with pytest.raises(dra_kube.Unreachable, match="too short"):
        await api.rows(RESOURCE_CLAIMS, "default", ["State"])
