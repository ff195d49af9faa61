"""Sub-resources whose body is not the object itself.

``scale``: how many replicas, for kinds that have some. POST to ``pods/<name>/binding``, or to ``bindings``, the older
way, binds a pod to a node. ``pods/<name>/eviction`` is a deletion that respects disruption budgets.

``serviceaccounts/<name>/token`` makes a token for a service account. The token may be bound to a pod, a node or a
secret. One that is bound to a pod names the pod's node as well: so admission knows on which node a plugin runs.

``pods/log``, ``exec``, ``attach``, ``portforward`` and ``nodes/proxy`` are passed on to the server of the pod's node.
Address and key of that server come with the registration of the node, and are in no object. The address in the Node's
status is for people: who may write the status could otherwise have the key sent to a listener of his own.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
import orjson
from aiohttp import WSMsgType, web
from dra_api.codec import convert
from dra_api.meta import LabelSelector
from dra_api.releases import Release
from dra_api.selectors import Selector
from dra_api.validation.formats import FieldError, not_supported
from dra_api.validation.formats import invalid as invalid_field
from dra_api.values import format_time, now

from dra_devcluster.apiserver.endpoints.call import Call
from dra_devcluster.apiserver.errors import (
    Json,
    StatusError,
    bad_request,
    conflict,
    internal,
    invalid,
    not_allowed,
    success,
    too_many_requests,
    unsupported_media_type,
)
from dra_devcluster.apiserver.identity import ISSUER, reference
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.metadata import dig, needs, not_negative, to_served
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.selectors import has_ended, is_ready
from dra_devcluster.apiserver.store import Stored
from dra_devcluster.apiserver.structure import Resource
from dra_devcluster.apiserver.verbs.patch import PatchRefused, json_patch, merge_patch
from dra_devcluster.apiserver.verbs.read import get
from dra_devcluster.apiserver.verbs.write import DeleteOptions, check_preconditions, delete, store_changed, update
from dra_devcluster.apiserver.wire import PATCHES, media_type, parse_document, read_body, respond
from dra_devcluster.background import cancelled
from dra_devcluster.node_protocol import EXEC_PROTOCOLS, LONGEST_MESSAGE_BYTES, PORT_FORWARD_PROTOCOLS

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
            raise StatusError(node.status, _REASONS.get(node.status, "InternalError"), await node.text())
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(call.request)
        try:
            async for chunk in node.content.iter_any():
                await response.write(chunk)
        except aiohttp.ClientError:
            return response  # the node is gone; the client sees the log end
        return response


async def session_in(call: Call) -> web.StreamResponse:
    """``exec`` a program in a container, or ``attach`` to the one that it runs, over a websocket."""
    _check_method(call, "GET", "POST")
    url, headers = _container_url(call, call.target.subresource)
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
    if not (host := pod["spec"].get("nodeName")):
        raise bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
    url, headers = _server(call, host)
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


def _container(pod: Json, wanted: str) -> str:
    """The container that is meant: the named one, or the only one."""
    name = pod["metadata"]["name"]
    kinds = ("containers", "initContainers", "ephemeralContainers")
    regular, init, ephemeral = ([str(one["name"]) for one in pod["spec"].get(kind) or ()] for kind in kinds)
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


def _not_implemented(message: str) -> StatusError:
    return StatusError(501, "NotImplemented", message)


_NOMINATION_ENDS_SINCE = Release.V1_35
"""From this release on (ClearingNominatedNodeNameAfterBinding) a binding takes the nominated node out of the status."""


async def bind(call: Call) -> web.StreamResponse:
    """Set ``spec.nodeName`` once. Raises 409 when the pod has a node already."""
    body = await call.read_posted("", "Binding")
    target, meta = body.get("target") or {}, body.get("metadata") or {}
    name = call.target.name or meta.get("name", "")
    if meta.get("name") != name:
        raise bad_request("name in URL does not match name in Binding object")
    faults = list(needs(target, "target", "name"))
    if target.get("kind", "") not in ("", "Node"):
        faults.insert(0, not_supported("target.kind", target["kind"], ["Node", "<empty>"]))
    if faults:
        raise invalid("", "Binding", name, faults)
    call.write.resource = pods = call.registry.resource("", "v1", "pods")
    stored = get(call.registry, pods, call.target.namespace, name)
    pod = stored.decode()
    check_preconditions(call.write, pod, meta.get("uid"), meta.get("resourceVersion"))
    assign(call.write, stored, pod, target["name"], meta.get("annotations"))
    return respond(orjson.dumps(success(code=201)), code=201)


def assign(write: Write, stored: Stored, pod: Json, node: str, annotations: dict[str, str] | None = None) -> None:
    """Bind the pod, as decoded from ``stored``, to the node. Raises 409 if it can no longer be bound."""
    name, spec = stored.name, pod["spec"]
    write.manager = ""  # no manager becomes the owner of the node's name
    if "deletionTimestamp" in pod["metadata"]:
        raise conflict("", "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
        raise conflict("", "pods/binding", name, why)
    if spec.get("schedulingGates"):
        raise conflict("", "pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")
    spec["nodeName"] = node
    if annotations:
        pod["metadata"].setdefault("annotations", {}).update(annotations)
    status = pod.setdefault("status", {})
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now()}
    others = [entry for entry in status.get("conditions") or () if entry.get("type") != "PodScheduled"]
    status["conditions"] = [*others, scheduled]
    if write.registry.release >= _NOMINATION_ENDS_SINCE:
        status.pop("nominatedNodeName", None)
    store_changed(write, stored, pod)


async def evict(call: Call) -> web.StreamResponse:
    """Delete the pod, or answer 429 when a PodDisruptionBudget forbids it now."""
    body = await call.read_posted("policy", "Eviction")
    if dig(body, "metadata.name") != call.target.name:
        raise bad_request("name in URL does not match name in Eviction object")
    options = DeleteOptions.parse(body.get("deleteOptions") or {})
    call.write.dry_run |= options.dry_run
    stored = get(call.registry, call.resource, call.target.namespace, call.target.name)
    pod = stored.decode()
    if dig(pod, "status.phase") != "Pending" and not has_ended(pod) and not stored.finalizing:
        _check_budgets(call.registry, pod)
    call.write.subresource = ""
    delete(call.write, stored, options)
    return respond(orjson.dumps(success(code=201)), code=201)


def _check_budgets(registry: Registry, pod: Json) -> None:
    """Raises a 429 when the eviction would leave fewer healthy pods than a budget wants."""
    namespace = pod["metadata"]["namespace"]
    for stored in registry.store.collection("policy", "poddisruptionbudgets").all(namespace):
        budget = stored.decode()
        wanted = dig(budget, "spec.selector")
        selector = Selector.of(None if wanted is None else convert(LabelSelector, wanted))
        if not selector.matches(pod["metadata"].get("labels") or {}):
            continue
        pods = [
            other
            for other in registry.store.collection("", "pods").all(namespace)
            if selector.matches(other.labels) and not other.finalizing
        ]
        healthy, spec = sum(is_ready(other.decode()) for other in pods), budget["spec"]
        if "minAvailable" in spec:
            enough = _amount(spec["minAvailable"], len(pods))
        else:
            enough = len(pods) - _amount(spec.get("maxUnavailable", 1), len(pods))
        if healthy - 1 < enough:
            message = f"The disruption budget {stored.name} needs {enough} healthy pods and has {healthy} currently"
            cause = {"reason": "DisruptionBudget", "message": message}
            raise too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.", causes=[cause])


def _amount(value: Any, total: int) -> int:
    """A number, or a percentage of the pods, rounded up."""
    if isinstance(value, int):
        return value
    try:
        return math.ceil(int(str(value).removesuffix("%")) * total / 100)
    except ValueError:
        return total  # a budget that cannot be read protects all


class Paths(NamedTuple):
    """Where an object keeps its numbers."""

    spec: str
    status: str
    selector: str


def _paths(resource: Resource) -> Paths:
    defined = ((resource.definition or {}).get("subresources") or {}).get("scale")
    if not defined:
        return Paths("spec.replicas", "status.replicas", "spec.selector")
    names = ("specReplicasPath", "statusReplicasPath", "labelSelectorPath")
    return Paths(*((defined.get(name) or "").removeprefix(".") for name in names))


async def scale(call: Call) -> web.StreamResponse:
    """GET, PUT and PATCH of the Scale object of a workload."""
    stored = get(call.registry, call.resource, call.target.namespace, call.target.name)
    obj = to_served(call.resource, stored.decode())
    paths = _paths(call.resource)
    shown = _scale_of(obj, paths)
    if call.request.method != "GET":
        wanted = await _wanted(call, shown)
        check_preconditions(call.write, obj, None, dig(wanted, "metadata.resourceVersion"))
        replicas = dig(wanted, "spec.replicas") or 0
        if not isinstance(replicas, int) or isinstance(replicas, bool):
            raise bad_request("Scale cannot be handled: spec.replicas must be a whole number")
        if wrong := list(not_negative({"replicas": replicas}, "spec", "replicas")):
            raise invalid("autoscaling", "Scale", stored.name, wrong)
        *parents, last = paths.spec.split(".")
        holder = obj
        for part in parents:
            holder = holder.setdefault(part, {})
        holder[last] = replicas
        call.write.subresource = ""
        shown = _scale_of(to_served(call.resource, update(call.write, stored, obj).decode()), paths)
    return respond(orjson.dumps(shown), call.want, headers=call.warnings())


async def _wanted(call: Call, shown: Json) -> Json:
    if call.request.method == "PUT":
        return await call.read_object()
    if call.request.method != "PATCH":
        raise not_allowed()
    format_ = PATCHES.get(media_type(call.request))
    if format_ is None:
        raise unsupported_media_type(list(PATCHES))
    document = parse_document(await read_body(call.request), is_yaml=format_ == "apply")
    try:
        # A Scale has no lists, so all formats but JSON patches come down to a merge.
        patched: Any = json_patch(shown, document) if format_ == "json" else merge_patch(shown, document)
    except PatchRefused as error:
        raise bad_request(str(error)) from error
    if not isinstance(patched, dict):
        raise bad_request("the patch must give a Scale object")
    return patched


def _scale_of(obj: Json, paths: Paths) -> Json:
    meta = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: Json = {"replicas": dig(obj, paths.status) or 0}
    selector = dig(obj, paths.selector) if paths.selector else None
    if selector:
        if not isinstance(selector, str):
            labels = selector.get("matchLabels", selector if "matchExpressions" not in selector else {})
            selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": dig(obj, paths.spec) or 0},
        "status": status,
    }


_AUTHENTICATION = "authentication.k8s.io"
_SHORTEST_LIFE_SECONDS, _LONGEST_LIFE_SECONDS, _USUAL_LIFE_SECONDS = 600, 2**32, 3600
_BOUND_TO = {"Pod": "pods", "Node": "nodes", "Secret": "secrets"}


async def token(call: Call) -> web.StreamResponse:
    """Answer a TokenRequest. Raises 400, 404, 405, 409, 422."""
    body = await call.read_posted(_AUTHENTICATION, "TokenRequest")
    account = get(call.registry, call.resource, call.target.namespace, call.target.name).decode()
    body["spec"] = spec = body.get("spec") or {}
    spec["audiences"] = spec.get("audiences") or [ISSUER]
    spec.setdefault("expirationSeconds", _USUAL_LIFE_SECONDS)
    _check_account(call, body, account)
    bound = _bound_to(call, spec["boundObjectRef"], account) if spec.get("boundObjectRef") else {}
    issued, expires = call.tokens.issue(account, spec["expirationSeconds"], spec["audiences"], bound)
    meta = account["metadata"]
    named = {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]}
    body |= {
        "kind": "TokenRequest",
        "apiVersion": f"{_AUTHENTICATION}/v1",
        "metadata": {**named, "creationTimestamp": now()},
        "status": {"token": issued, "expirationTimestamp": format_time(datetime.fromtimestamp(expires, UTC))},
    }
    return respond(orjson.dumps(body), call.want, 201, call.warnings())


def _check_account(call: Call, body: Json, account: Json) -> None:
    """Raises a 409 or 422 when the request is for another account, or for an impossible time."""
    meta = body.get("metadata") or {}
    for key, what in (("name", call.target.name), ("namespace", call.target.namespace)):
        if meta.get(key) and meta[key] != what:
            text = f"must match the service account {key} if specified"
            raise _token_refusal(invalid_field(f"metadata.{key}", meta[key], text), call.target.name)
    uid = account["metadata"]["uid"]
    if meta.get("uid") and meta["uid"] != uid:
        why = f"the UID in the token request ({meta['uid']}) does not match the UID of the service account ({uid})"
        raise conflict(_AUTHENTICATION, "TokenRequest", call.target.name, why)
    seconds = body["spec"]["expirationSeconds"]
    if not _SHORTEST_LIFE_SECONDS <= seconds <= _LONGEST_LIFE_SECONDS:
        what = "less than 10 minutes" if seconds < _SHORTEST_LIFE_SECONDS else "larger than 2^32 seconds"
        text = f"may not specify a duration {what}"
        raise _token_refusal(invalid_field("spec.expirationSeconds", seconds, text))


def _token_refusal(fault: FieldError, name: str = "") -> StatusError:
    return invalid(_AUTHENTICATION, "TokenRequest", name, [fault])


def _bound_to(call: Call, wanted: Json, account: Json) -> Json:
    """What the token is bound to, as it says it. Raises 400, 404, 409."""
    kind, name = wanted.get("kind", ""), wanted.get("name", "")
    version = wanted.get("apiVersion", "")
    plural = _BOUND_TO.get(kind) if version in ("", "v1") else None
    if plural is None:
        group, _, short = version.rpartition("/")
        raise bad_request(f"cannot bind token to object of type {group}/{short}, Kind={kind}")
    namespace = "" if kind == "Node" else call.target.namespace
    obj = get(call.registry, call.registry.resource("", "v1", plural), namespace, name).decode()
    bound = {kind.lower(): reference(obj["metadata"])}
    if kind == "Pod":
        own = account["metadata"]["name"]
        if (dig(obj, "spec.serviceAccountName") or "default") != own:
            why = "to pod running with different serviceaccount name."
            raise bad_request(f'cannot bind token for serviceaccount "{own}" {why}')
        if node_name := dig(obj, "spec.nodeName"):
            node = call.registry.store.collection("", "nodes").get("", node_name)
            bound["node"] = {"name": node_name} if node is None else {"name": node_name, "uid": node.uid}
    if wanted.get("uid") and wanted["uid"] != obj["metadata"]["uid"]:
        why = (
            f"the UID in the bound object reference ({wanted['uid']}) does not match the UID in record. The object "
            "might have been deleted and then recreated"
        )
        raise conflict("", kind, name, why)
    return bound


SUBRESOURCES: dict[str, Callable[[Call], Awaitable[web.StreamResponse]]] = {
    "binding": bind,
    "eviction": evict,
    "scale": scale,
    "token": token,
    "log": log,
    "exec": session_in,
    "attach": session_in,
    "proxy": proxy,
    "portforward": port_forward,
}
