"""What arrives over a connection: requests of clients and of the kubelet, answers of an API server.

An HTTP message of the corpus has a first line (method and path, or the status), headers, an empty line and a body. What
frames it (length, host, token) is added, so that changes reach what is behind aiohttp's parser.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import tempfile
from collections.abc import Callable
from contextlib import aclosing
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from dra_api.gates import FeatureGates
from dra_devcluster.agent import port_forward as spdy
from dra_devcluster.apiserver.identity import Tokens
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.server import App
from dra_devcluster.apiserver.structure import Schema, Structure
from dra_devcluster.apiserver.verbs.patch import json_patch, merge_patch, strategic_merge_patch
from dra_devcluster.apiserver.wire import decode_protobuf
from dra_kube import PODS, RESOURCE_CLAIMS, Api, Connection, KubeError
from dra_kube.door import REQUESTS
from dra_kubeletplugin.claims.calls import V1, V1BETA1, DRAService, NodeCalls, Turns
from dra_kubeletplugin.claims.prepared import PreparedClaims
from dra_kubeletplugin.drivers.simulated import SimulatedDriver
from dra_kubeletplugin.files.checkpoint import ClaimRecords
from dra_kubeletplugin.files.claim_files import CdiFolder, ClaimFiles, MetadataFiles
from dra_kubeletplugin.files.folders import HostParts
from dra_kubeletplugin.testing.api import PluginApi
from dra_operator.app.probes import Check, serve
from rude_clients import Fixed

DRIVER = "gpu.example.com"
_ENOUGH = 60.0  # seconds; only what waits for something that never comes takes so long
_MOST = 1 << 24


def api_request(data: bytes) -> None:
    """A request to the development cluster's API server, which must not fail."""
    asyncio.run(_api_request(data))


async def _api_request(data: bytes) -> None:
    registry, tokens, is_new = _world(next(_requests) // _REQUESTS)
    app = App(registry, tokens)
    if is_new:
        is_new.clear()
        for method, path, body in _WORLD:
            await _exchange(app, tokens.admin, f"{method} {path}\n\n{json.dumps(body)}".encode())
    await _exchange(app, tokens.admin, data)


_requests = itertools.count()
_REQUESTS = 200  # to one registry, which takes a fifth of a second to make


@lru_cache(maxsize=1)
def _world(_: int) -> tuple[Registry, Tokens, list[bool]]:
    """A server's content, and a list that is empty from its first request on."""
    registry = Registry(FeatureGates.of({}), {}, "always-allow")
    return registry, Tokens(registry.store), [True]


_WORLD: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/api/v1/namespaces", {"metadata": {"name": "default"}}),
    (
        "POST",
        "/api/v1/namespaces/default/pods",
        {"metadata": {"name": "there"}, "spec": {"containers": [{"name": "a", "image": "b"}]}},
    ),
    (
        "POST",
        "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
        {
            "metadata": {"name": "there"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}},
        },
    ),
)


async def _exchange(app: App, token: str, data: bytes) -> None:
    """Send one request and read the answer, of a stream only its head."""
    server = web.Server(app, logger=REQUESTS)
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().connect_accepted_socket(server, theirs)
    reader, writer = await asyncio.open_connection(sock=ours)
    try:
        async with asyncio.timeout(_ENOUGH):
            writer.write(_framed(data, token))
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split()[1])
            if status >= 500 and b'"InternalError"' in (body := await reader.read(_MOST)):
                raise AssertionError(body)
    except asyncio.IncompleteReadError:
        pass  # closed without an answer: aiohttp could not read the request
    finally:
        writer.close()
        await server.shutdown(0.01)  # a watch goes on for ever


def _framed(data: bytes, token: str) -> bytes:
    """The request with its length and credentials. A request line that HTTP cannot carry is cut to what it can."""
    head, _, body = data.partition(b"\n\n")
    line, *headers = head.split(b"\n")
    method, _, path = line.partition(b" ")
    added = [b"Host: localhost", b"Connection: close", b"Content-Length: %d" % len(body)]
    if not any(header.lower().startswith(b"authorization:") for header in headers):
        added.append(b"Authorization: Bearer " + token.encode())
    return b"\r\n".join([method + b" " + path + b" HTTP/1.1", *headers, *added, b"", body])


def probe_request(data: bytes) -> None:
    """A request to the port for probes and metrics, which goes on answering."""
    asyncio.run(_probe_request(data))


async def _probe_request(data: bytes) -> None:
    found = [Check("ping", []), Check("lease", ["another leads"])]
    async with serve("127.0.0.1", 0, Fixed(found, found)) as port:
        for content in (_framed(data, ""), data):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(content)
            writer.write_eof()
            status = (await reader.read(_MOST)).split()[1:2]
            writer.close()
            assert status in ([], [b"503"]) or int(status[0]) < 500, status
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/livez?exclude=lease") as it,
        ):
            assert it.status == 200, await it.text()


def api_answer(data: bytes) -> None:
    """What a client makes of the answers of an API server, to reads, lists, writes and watches."""
    asyncio.run(_api_answer(data))


async def _api_answer(data: bytes) -> None:
    head, _, body = data.partition(b"\n\n")
    status, *headers = head.split(b"\n")
    added = [b"Connection: close", b"Content-Length: %d" % len(body)]
    answer = b"\r\n".join([b"HTTP/1.1 " + status, *headers, *added, b"", body])

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, Api(Connection(f"http://{host}:{port}", None, lambda: None), timeout=_ENOUGH) as api:
        errors: list[Exception] = []
        for call in (_discover, _read, _list, _write, _watch):
            try:
                await call(api)
            except Exception as error:  # the other calls are tried as well
                errors.append(error)
    for fault in sorted(errors, key=lambda it: isinstance(it, KubeError)):  # what is none is raised first
        raise fault


async def _discover(api: Api) -> None:
    await api.version_of(RESOURCE_CLAIMS)


async def _read(api: Api) -> None:
    await api.get(PODS, "a", "b")


async def _list(api: Api) -> None:
    await api.list(PODS)


async def _write(api: Api) -> None:
    await api.update(PODS, {"metadata": {"name": "a", "namespace": "b"}})


async def _watch(api: Api) -> None:
    events = api.watch(PODS, resource_version="1")
    async with aclosing(events):  # type: ignore[type-var]  # declared as an iterator, is a generator
        async for _, obj in events:
            assert isinstance(obj, dict)


def protobuf(data: bytes) -> None:
    """A body in the protobuf format of Kubernetes."""
    decode_protobuf(data)


def patches(data: bytes) -> None:
    """Each kind of patch of a pod."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(given, dict) or not isinstance(given.get("document"), dict):
        return
    document: dict[str, Any] = given["document"]
    patch: Any = given.get("patch")
    errors: list[Exception] = []
    kinds: list[Callable[[], object]] = [
        lambda: json_patch(document, patch),
        lambda: merge_patch(document, patch),
        lambda: strategic_merge_patch(document, patch, _pod_schema()),
    ]
    for apply in kinds:
        try:
            apply()
        except ValueError as error:
            errors.append(error)
    if errors:
        raise errors[0]


@cache
def _pod_schema() -> Schema:
    schema = Structure.load().schema("", "v1", "Pod")
    assert schema is not None
    return schema


def port_forward(data: bytes) -> None:
    reader = spdy.Reader()
    for start in range(0, len(data), 7):
        for frame in reader.feed(data[start : start + 7]):
            if frame.kind == spdy.SYN_STREAM_CODE:
                reader.headers(frame)


def kubelet_call(data: bytes) -> None:
    """A call of the kubelet, in both versions; grpc itself answers what is no message."""
    asyncio.run(_call(data, None))


def prepare(data: bytes) -> None:
    """A claim as the plugin finds it in the API server. It is prepared, or refused with an error of its own."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(given, dict) and isinstance(given.get("metadata"), dict):
        given["metadata"] |= {"name": "claim", "namespace": "default", "uid": "uid-1"}
        asyncio.run(_call(b"", given))


async def _call(data: bytes, claim: dict[str, Any] | None) -> None:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        records, cdi, api = ClaimRecords(Path(folder) / "claims"), _cdi(folder), PluginApi()
        records.create()
        files = ClaimFiles(
            cdi, MetadataFiles(Path(folder) / "metadata", DRIVER, versions=()), HostParts(Path(folder), DRIVER)
        )
        prepared = PreparedClaims(SimulatedDriver(DRIVER), DRIVER, records, files)
        calls = NodeCalls(prepared, api.client, Turns(serialize=False, folder=None))
        if claim is not None:
            api.objects[_KEY] = claim
        for version in (V1, V1BETA1):
            request = version.messages.NodePrepareResourcesRequest.FromString(data)
            if claim is not None:
                request.claims.add(uid="uid-1", name="claim", namespace="default")
            service = DRAService(version, calls)
            await service.NodePrepareResources(request, _Context)
            await service.NodeUnprepareResources(request, _Context)


class _Context:
    """A call without a deadline."""

    @staticmethod
    def time_remaining() -> None:
        return None


def _cdi(folder: str) -> CdiFolder:
    path = Path(folder) / "cdi"
    path.mkdir()
    return CdiFolder(path, DRIVER)


_KEY = (RESOURCE_CLAIMS.plural, "default", "claim")
