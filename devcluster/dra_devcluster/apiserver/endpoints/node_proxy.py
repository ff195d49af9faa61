"""Passes ``pods/log``, ``exec``, ``attach``, ``portforward`` and ``nodes/proxy`` on to the server of the pod's node.

Address and key of that server come with the registration of the node, and are in no object. The address in the Node's
status is for people: who may write the status could otherwise have the key sent to a listener of his own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import quote

import aiohttp
from aiohttp import WSMsgType, web

from dra_devcluster.apiserver.errors import Json, StatusError, bad_request, internal, not_allowed
from dra_devcluster.apiserver.verbs.read import get
from dra_devcluster.background import cancelled
from dra_devcluster.node_protocol import EXEC_PROTOCOLS, LONGEST_MESSAGE_BYTES, PORT_FORWARD_PROTOCOLS

from .call import Call

_CONNECT_SECONDS = 5.0
_REASONS = {400: "BadRequest", 404: "NotFound", 501: "NotImplemented"}


async def log(call: Call) -> web.StreamResponse:
    """The log of one container as text, streamed."""
    _check_method(call, "GET")
    pod = _pod(call)
    _container(pod, call.query.get("container", ""))
    if not pod["spec"].get("nodeName"):
        return web.Response(status=204)  # nothing has been written yet
    url, headers = _container_url(call, "containerLogs")
    query = call.request.query
    async with _session() as session, await _open(session.get(url, headers=headers, params=query)) as node:
        if node.status != 200:
            raise _refused(node.status, await node.text())
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(call.request)
        try:
            async for chunk in node.content.iter_any():
                await response.write(chunk)
        except aiohttp.ClientError:
            return response  # the node is gone; the client sees the log end
        return response


async def execute(call: Call) -> web.StreamResponse:
    """A program in a container, over a websocket."""
    return await _session_in(call, "exec")


async def attach(call: Call) -> web.StreamResponse:
    """The program that a container runs, over a websocket."""
    return await _session_in(call, "attach")


async def _session_in(call: Call, what: str) -> web.StreamResponse:
    _check_method(call, "GET", "POST")
    url, headers = _container_url(call, what)
    return await _websocket(call, url, headers, EXEC_PROTOCOLS)


async def port_forward(call: Call) -> web.StreamResponse:
    """Connections to the ports of a pod, over a websocket."""
    _check_method(call, "GET", "POST")
    url, headers = _node_url(call, _pod(call), "portForward")
    return await _websocket(call, url, headers, PORT_FORWARD_PROTOCOLS)


async def _websocket(call: Call, url: str, headers: dict[str, str], offered: Sequence[str]) -> web.StreamResponse:
    """Join the client with the node; both speak the first of the ``offered`` sub-protocols that the client names."""
    what = call.target.subresource
    if call.request.headers.get("Upgrade", "").lower() != "websocket":
        raise _not_implemented(f"{what} is supported over websockets only: use kubectl 1.31 or newer")
    asked = call.request.headers.get("Sec-WebSocket-Protocol", "")
    protocols = [name for name in (part.strip() for part in asked.split(",")) if name in offered]
    if not protocols:
        raise bad_request(f"{what} needs one of the sub-protocols {', '.join(offered)}, not {asked or 'none'}")
    async with _session() as session:
        try:
            async with session.ws_connect(
                url,
                headers=headers,
                params=call.request.query,
                protocols=protocols[:1],
                max_msg_size=LONGEST_MESSAGE_BYTES,
            ) as node:
                client = web.WebSocketResponse(protocols=protocols[:1], max_msg_size=LONGEST_MESSAGE_BYTES)
                await client.prepare(call.request)
                await _join(client, node)
                return client
        except (aiohttp.ClientError, OSError) as error:
            raise internal(f"the node does not answer: {error}") from error


async def proxy(call: Call) -> web.StreamResponse:
    """``nodes/<name>/proxy/metrics`` and ``/healthz``: what the node's own server answers."""
    call.need("get")
    tail = call.target.tail
    if call.resource.plural != "nodes" or tail not in ("metrics", "healthz"):
        raise _not_implemented("the development cluster passes on nodes/proxy/metrics and nodes/proxy/healthz only")
    url, headers = _server(call, call.target.name)
    async with _session() as session, await _open(session.get(f"{url}/{tail}", headers=headers)) as node:
        kind = node.headers.get("Content-Type", "text/plain")
        return web.Response(status=node.status, body=await node.read(), headers={"Content-Type": kind})


NODE_SUBRESOURCES: dict[str, Callable[[Call], Awaitable[web.StreamResponse]]] = {
    "log": log,
    "exec": execute,
    "attach": attach,
    "proxy": proxy,
    "portforward": port_forward,
}


def _check_method(call: Call, *methods: str) -> None:
    """Raises a 405."""
    if call.request.method not in methods:
        raise not_allowed()


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS))


async def _open(request: Awaitable[aiohttp.ClientResponse]) -> aiohttp.ClientResponse:
    try:
        return await request
    except (aiohttp.ClientError, OSError) as error:
        raise internal(f"the node does not answer: {error}") from error


async def _join(client: web.WebSocketResponse, node: aiohttp.ClientWebSocketResponse) -> None:
    """Pass messages on in both directions until one side closes, then close the other."""
    directions = {asyncio.create_task(_pump(client, node)), asyncio.create_task(_pump(node, client))}
    try:
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancelled(*directions)
        await node.close()
        await client.close()


_Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


async def _pump(source: _Socket, sink: _Socket) -> None:
    async for message in source:
        if message.type is WSMsgType.BINARY:
            await sink.send_bytes(message.data)
        elif message.type is WSMsgType.TEXT:
            await sink.send_str(message.data)


def _container_url(call: Call, what: str) -> tuple[str, dict[str, str]]:
    """Where the node serves ``what`` for the container, and the headers it wants. Raises 400, 404."""
    pod = _pod(call)
    return _node_url(call, pod, what, _container(pod, call.query.get("container", "")))


def _node_url(call: Call, pod: Json, what: str, *tail: str) -> tuple[str, dict[str, str]]:
    """Where the node serves ``what`` for the pod. Raises 400, 404."""
    url, headers = _server(call, _host_of(pod))
    target = call.target
    path = "/".join(quote(part, safe="") for part in (what, target.namespace, target.name, *tail))
    return f"{url}/{path}", headers


def _server(call: Call, node_name: str) -> tuple[str, dict[str, str]]:
    """The node's own server, and the headers that it wants. Raises 400, 404."""
    get(call.registry, call.registry.resource("", "v1", "nodes"), "", node_name)
    server = call.registry.node_servers.get(node_name)
    if server is None:
        raise bad_request(f"node {node_name} does not serve logs and exec: no node agent has registered it")
    return f"http://{server.address}", {"Authorization": f"Bearer {server.key}"}


def _pod(call: Call) -> Json:
    return get(call.registry, call.resource, call.target.namespace, call.target.name).decode()


def _host_of(pod: Json) -> str:
    """Raises a 400 while the pod has no node."""
    name: str = pod["spec"].get("nodeName", "")
    if not name:
        raise bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
    return name


def _container(pod: Json, wanted: str) -> str:
    """The container that is meant: the named one, or the only one."""
    spec, name = pod["spec"], pod["metadata"]["name"]
    regular: list[str] = [container["name"] for container in spec.get("containers") or ()]
    init: list[str] = [container["name"] for container in spec.get("initContainers") or ()]
    ephemeral: list[str] = [container["name"] for container in spec.get("ephemeralContainers") or ()]
    if wanted:
        if wanted not in regular + init + ephemeral:
            raise bad_request(f"container {wanted} is not valid for pod {name}")
        return wanted
    if len(regular) == 1:
        return regular[0]
    message = f"a container name must be specified for pod {name}, choose one of: [{' '.join(regular)}]"
    if init:
        message += f" or one of the init containers: [{' '.join(init)}]"
    raise bad_request(message)


def _refused(code: int, message: str) -> StatusError:
    return StatusError(code, _REASONS.get(code, "InternalError"), message)


def _not_implemented(message: str) -> StatusError:
    return StatusError(501, "NotImplemented", message)
