"""Each request names the user whom a kubeconfig has under ``as``: reads, writes, and the requests of Kopf."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from authority import write_kubeconfig
from dra_kube import PODS, Api, Connection, ConnectionSettingsError, connection
from dra_operator.sources.handlers import session_for

Call = Callable[[Connection], Awaitable[None]]
USER = {
    "token": "abc",
    "as": "jäne",
    "as-uid": "u-1",
    "as-groups": ["devs", "night shift"],
    "as-user-extra": {"example.com/Scopes": ["a", "b"], "plain": ["c"]},
}
ASKED = [
    ("Impersonate-User", "jäne"),
    ("Impersonate-Uid", "u-1"),
    ("Impersonate-Group", "devs"),
    ("Impersonate-Group", "night shift"),
    ("Impersonate-Extra-example.com%2FScopes", "a"),
    ("Impersonate-Extra-example.com%2FScopes", "b"),
    ("Impersonate-Extra-plain", "c"),
]


async def read(where: Connection) -> None:
    async with Api(where) as api:
        await api.get(PODS, "p", "default")


async def write(where: Connection) -> None:
    async with Api(where) as api:
        await api.create(PODS, {"metadata": {"name": "p"}}, "default")


async def ask_as_kopf(where: Connection) -> None:
    session = session_for(where)
    async with session.aiohttp_session as opened, opened.get(f"{where.host}/api/v1/pods"):
        pass


@pytest.fixture
async def server() -> AsyncIterator[tuple[str, list[list[tuple[str, str]]]]]:
    """Its address, and the headers of impersonation of each request."""
    asked: list[list[tuple[str, str]]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append([(k.decode(), v.decode()) for k, v in request.raw_headers if k.startswith(b"Impersonate")])
        return web.json_response({"metadata": {"name": "p"}})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as running:
        yield str(running.make_url("")).rstrip("/"), asked


@pytest.mark.parametrize("call", [read, write, ask_as_kopf])
async def test_requests_are_made_in_the_name_of_another(
    server: tuple[str, list[list[tuple[str, str]]]], tmp_path: Path, call: Call
) -> None:
    address, asked = server
    await call(connection(write_kubeconfig(tmp_path, {"server": address}, USER)))
    assert asked == [ASKED]
    asked.clear()
    await call(connection(write_kubeconfig(tmp_path, {"server": address}, {"token": "abc"})))
    assert asked == [[]]


@pytest.mark.parametrize(
    ("user", "says"),
    [
        ({"as-groups": ["devs"]}, "without as"),
        ({"as-uid": "u"}, "without as"),
        ({"as-user-extra": {"a": ["b"]}}, "without as"),
        ({"as": ["jane"]}, "as and as-uid are texts"),
        ({"as": "jane", "as-groups": "devs"}, "as-groups is a list of texts"),
        ({"as": "jane", "as-user-extra": {"a": "b"}}, "a list of texts for each key"),
        ({"as": "jane\r\nAuthorization: x"}, "control character"),
    ],
)
def test_what_cannot_be_asked_for_is_an_error_at_the_start(tmp_path: Path, user: dict[str, Any], says: str) -> None:
    with pytest.raises(ConnectionSettingsError, match=says):
        connection(write_kubeconfig(tmp_path, {"server": "https://127.0.0.1:1"}, user))
