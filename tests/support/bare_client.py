"""A bare client of the API server: it shows status, headers and body as they came; and small objects to send."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from urllib.parse import quote

import aiohttp
from dra_devcluster.apiserver import DevApiServer

Json = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
NAMESPACES = "/api/v1/namespaces"
NODES = "/api/v1/nodes"
EVENTS = "/api/v1/namespaces/default/events"
DRA = "/apis/resource.k8s.io/v1"
CLAIMS = f"{DRA}/namespaces/default/resourceclaims"

PATCH = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


@dataclass
class Answer:
    """What the server answered."""

    code: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Json:
        decoded: Json = json.loads(self.body)
        return decoded

    @property
    def message(self) -> str:
        return str(self.json["message"])

    @property
    def reason(self) -> str:
        return str(self.json["reason"])


class Watch:
    """The events of a watch, one by one."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def next(self) -> tuple[str, Json]:
        line = await asyncio.wait_for(self._content.readline(), 30)
        assert line, "the watch has ended"
        event = json.loads(line)
        return event["type"], event["object"]

    async def names(self, count: int) -> list[tuple[str, str]]:
        events = [await self.next() for _ in range(count)]
        return [(kind, obj["metadata"]["name"]) for kind, obj in events]

    async def is_over(self) -> bool:
        return await asyncio.wait_for(self._content.readline(), 30) == b""


class Client:
    """Requests as they are; ``ok`` and the verbs assert success and give the object."""

    def __init__(self, session: aiohttp.ClientSession, url: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        self._session, self._url, self._headers = session, url, list(headers)

    def impersonating(self, user: str, *groups: str, **extra: str) -> Client:
        headers = [("Impersonate-User", user), *(("Impersonate-Group", group) for group in groups)]
        for key, value in extra.items():
            headers.append((f"Impersonate-Extra-{quote(key, safe='')}", value))
        return self._with([*self._headers, *headers])

    def with_token(self, token: str) -> Client:
        """The same client with another token, or with none."""
        return self._with([("Authorization", f"Bearer {token}" if token else "")])

    def _with(self, headers: Sequence[tuple[str, str]]) -> Client:
        return Client(self._session, self._url, headers)

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        kind: str = "application/json",
        accept: str = "",
        **query: str,
    ) -> Answer:
        data = body if isinstance(body, bytes | BytesIO) or body is None else json.dumps(body)
        headers = [("Content-Type", kind), ("Accept", accept or "application/json"), *self._headers]
        async with self._session.request(method, self._url + path, data=data, headers=headers, params=query) as answer:
            return Answer(answer.status, answer.headers, await answer.read())

    async def ok(self, method: str, path: str, body: object = None, **options: Any) -> Json:
        answer = await self.call(method, path, body, **options)
        assert answer.code < 300, answer.body.decode()
        return answer.json

    async def get(self, path: str, **options: Any) -> Json:
        return await self.ok("GET", path, **options)

    async def post(self, path: str, body: Json, **options: Any) -> Json:
        return await self.ok("POST", path, body, **options)

    async def put(self, path: str, body: Json, **options: Any) -> Json:
        return await self.ok("PUT", path, body, **options)

    async def patch(self, path: str, body: object, how: str = "merge", **options: Any) -> Json:
        return await self.ok("PATCH", path, body, kind=PATCH[how], **options)

    async def delete(self, path: str, body: Json | None = None, **options: Any) -> Json:
        return await self.ok("DELETE", path, body, **options)

    async def code(self, path: str) -> int:
        return (await self.call("GET", path)).code

    async def gone(self, path: str) -> None:
        """Wait until the object is not there any more."""
        await self.until(path, lambda answer: answer.code == 404)

    async def until(self, path: str, condition: Callable[[Answer], bool]) -> Answer:
        """Wait until the answer to a GET is as wanted."""
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(30):
            while True:
                answer = await self.call("GET", path)
                if condition(answer):
                    return answer
                # A look takes a millisecond of a processor: who waits for seconds looks 20 times a second.
                await asyncio.sleep(min(0.05, (asyncio.get_running_loop().time() - began) / 10))

    @asynccontextmanager
    async def watch(self, path: str, *, accept: str = "application/json", **query: str) -> AsyncIterator[Watch]:
        async with self._session.get(
            self._url + path, params={"watch": "true", **query}, headers={"Accept": accept}
        ) as answer:
            assert answer.status == 200, await answer.text()
            yield Watch(answer.content)


@asynccontextmanager
async def client_of(server: DevApiServer, token: str | None = None) -> AsyncIterator[Client]:
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=server.ca.decode()))
    headers = {"Authorization": f"Bearer {token or server.token}", "User-Agent": "tests/1.0"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        yield Client(session, server.url)


def path_of(obj: Json) -> str:
    """Where to create an object."""
    version, namespace, kind = obj["apiVersion"], obj["metadata"].get("namespace"), obj["kind"].lower()
    place = f"/namespaces/{namespace}" if namespace else ""
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    return f"{'/apis/' if '/' in version else '/api/'}{version}{place}/{plural}"


def config_map(name: str, **meta: Any) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **meta}, "data": {"a": "b"}}


def pod(name: str, *, meta: Json | None = None, **spec: Any) -> Json:
    containers = [{"name": "main", "image": "example.com/app:1"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(meta or {})},
        "spec": {"containers": containers, **spec},
    }


def claim(name: str, **request: Any) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", **request}}]}},
    }


def names(listed: Json) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


def causes(status: Json) -> list[tuple[str, str]]:
    return [(cause["field"], cause["reason"]) for cause in status["details"]["causes"]]
