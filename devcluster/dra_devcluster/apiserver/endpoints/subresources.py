"""Sub-resources whose body is not the object itself, such as ``scale``: how many replicas, for kinds that have some."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from dra_devcluster.apiserver.endpoints.binding import bind, evict
from dra_devcluster.apiserver.endpoints.call import Call
from dra_devcluster.apiserver.endpoints.node_proxy import NODE_SUBRESOURCES
from dra_devcluster.apiserver.endpoints.reviews import token
from dra_devcluster.apiserver.errors import Json, bad_request, invalid, not_allowed, unsupported_media_type
from dra_devcluster.apiserver.faults import invalid as invalid_field
from dra_devcluster.apiserver.storage.metadata import dig, to_served
from dra_devcluster.apiserver.structure import Resource
from dra_devcluster.apiserver.verbs.checks import check_preconditions
from dra_devcluster.apiserver.verbs.patch import PatchRefused, json_patch, merge_patch
from dra_devcluster.apiserver.verbs.read import get
from dra_devcluster.apiserver.verbs.write import update
from dra_devcluster.apiserver.wire.bodies import PATCHES, media_type, parse_document, read_body, respond

_API_VERSION = "autoscaling/v1"


@dataclass(frozen=True, slots=True)
class Paths:
    """Where an object keeps its numbers."""

    spec: str = "spec.replicas"
    status: str = "status.replicas"
    selector: str = "spec.selector"


def _paths(resource: Resource) -> Paths:
    defined = ((resource.definition or {}).get("subresources") or {}).get("scale")
    if not defined:
        return Paths()
    return Paths(
        defined["specReplicasPath"].removeprefix("."),
        defined["statusReplicasPath"].removeprefix("."),
        (defined.get("labelSelectorPath") or "").removeprefix("."),
    )


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
        if replicas < 0:
            fault = invalid_field("spec.replicas", replicas, "must be greater than or equal to 0")
            raise invalid("autoscaling", "Scale", stored.name, [fault])
        _put(obj, paths.spec, replicas)
        call.write.subresource = ""
        shown = _scale_of(to_served(call.resource, update(call.write, stored, obj).decode()), paths)
    return respond(orjson.dumps(shown), call.want, headers=call.warnings())


async def _wanted(call: Call, shown: Json) -> Json:
    if call.request.method == "PUT":
        return await call.read_object()
    if call.request.method != "PATCH":
        raise not_allowed()
    kind_of_body = media_type(call.request)
    format_ = PATCHES.get(kind_of_body)
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
        status["selector"] = selector if isinstance(selector, str) else _selector_text(selector)
    return {
        "kind": "Scale",
        "apiVersion": _API_VERSION,
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": dig(obj, paths.spec) or 0},
        "status": status,
    }


def _selector_text(selector: Json) -> str:
    labels = selector.get("matchLabels", selector if "matchExpressions" not in selector else {})
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _put(obj: Json, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for part in parents:
        obj = obj.setdefault(part, {})
    obj[last] = value


SUBRESOURCES: dict[str, Callable[[Call], Awaitable[web.StreamResponse]]] = {
    "binding": bind,
    "eviction": evict,
    "scale": scale,
    "token": token,
    **NODE_SUBRESOURCES,
}
