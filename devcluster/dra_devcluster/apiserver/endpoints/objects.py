"""The verbs on objects and collections: get, list, watch, create, update, patch, delete."""

from __future__ import annotations

import asyncio

import orjson
from aiohttp import web
from dra_api.validation.formats import forbidden, required

from dra_devcluster.apiserver.endpoints.call import event_encoder, render_list
from dra_devcluster.apiserver.errors import (
    Json,
    bad_request,
    name_mismatch,
    name_missing,
    not_allowed,
    success,
    unsupported_media_type,
)
from dra_devcluster.apiserver.kinds import kind_of
from dra_devcluster.apiserver.store import Stored
from dra_devcluster.apiserver.structure import find_duplicates, refusal
from dra_devcluster.apiserver.verbs.delete import DeleteOptions, delete, delete_options_of
from dra_devcluster.apiserver.verbs.patch import patch
from dra_devcluster.apiserver.verbs.read import WatchQuery, get, list_page, stream
from dra_devcluster.apiserver.verbs.write import check_fields, check_version, create, create_by_update, update
from dra_devcluster.apiserver.wire import (
    PATCHES,
    flag,
    media_type,
    parse_document,
    parse_object,
    read_body,
    respond,
)

from .call import Call

_STREAM_FROM_BYTES = 2 * 2**20  # longer lists are sent in pieces


async def handle_object(call: Call) -> web.StreamResponse:
    """A request to one object, or to its status or another sub-resource that shows the whole object."""
    match call.request.method:
        case "GET":
            call.need("get")
            return call.answer(_current(call))
        case "PUT":
            call.need("update")
            return _update(call, await _body(call))
        case "PATCH":
            call.need("patch")
            return await _patch(call)
        case "DELETE" if not call.target.subresource:
            call.need("delete")
            return await _delete(call)
    raise not_allowed()


async def handle_collection(call: Call) -> web.StreamResponse:
    """A request to all objects of a resource, or to those of a namespace."""
    match call.request.method:
        case "GET" if flag(call.query, "watch"):
            call.need("watch")
            return await _watch(call)
        case "GET":
            call.need("list")
            return await _list(call)
        case "POST":
            call.need("create")
            if call.resource.namespaced and not call.target.namespace:
                raise not_allowed()
            call.write.verb = "create"
            return call.answer(create(call.write, await _body(call)), 201)
        case "DELETE":
            call.need("deletecollection")
            if call.resource.namespaced and not call.target.namespace:
                raise not_allowed()
            return await _delete_collection(call)
    raise not_allowed()


def _current(call: Call) -> Stored:
    return get(call.registry, call.resource, call.target.namespace, call.target.name)


def _update(call: Call, obj: Json) -> web.StreamResponse:
    write, target = call.write, call.target
    if kind_of(call.resource).created_by_update and not target.subresource:
        stored = call.registry.collection(call.resource).get(target.namespace, target.name)
        if stored is None:
            return call.answer(create_by_update(write, obj), 201)
    return call.answer(update(write, _current(call), obj))


async def _body(call: Call) -> Json:
    """The object in the body, checked against the URL and the schema. Raises 400, 413, 415."""
    raw, kind_of_body = await read_body(call.request), media_type(call.request)
    obj = parse_object(raw, kind_of_body)
    check_version(call.write, obj)
    mode = call.query.get("fieldValidation", "")
    if mode == "Strict" and kind_of_body == "application/json" and (doubled := find_duplicates(raw)):
        raise bad_request(refusal(call.resource.version, call.resource.kind, doubled))
    check_fields(call.resource.schema, obj, mode, call.resource.kind, call.write)
    meta = obj.get("metadata") or {}
    target = call.target
    if target.name and not meta.get("name"):
        raise name_missing(target.name)
    if target.name and meta["name"] != target.name:
        raise name_mismatch(meta["name"], target.name)
    if target.name and target.namespace and meta.setdefault("namespace", target.namespace) != target.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    return obj


async def _patch(call: Call) -> web.StreamResponse:
    kind_of_body = media_type(call.request)
    format_ = PATCHES.get(kind_of_body)
    if format_ is None or (format_ == "strategic" and call.resource.definition is not None):
        custom = call.resource.definition is not None
        raise unsupported_media_type([kind for kind, name in PATCHES.items() if not custom or name != "strategic"])
    if format_ == "apply" and not call.query.get("fieldManager"):
        raise call.invalid_options(required("fieldManager", "is required for apply patch"))
    if format_ != "apply" and "force" in call.query:
        raise call.invalid_options(forbidden("force", "may not be specified for non-apply patch"))
    document = parse_document(await read_body(call.request), is_yaml=format_ == "apply")
    stored, created = patch(
        call.write,
        call.target.name,
        format_,
        document,
        force=flag(call.query, "force"),
        mode=call.query.get("fieldValidation", ""),
    )
    return call.answer(stored, 201 if created else 200)


async def _options(call: Call) -> DeleteOptions:
    """What a deletion asks for: the query does not count where there is a body."""
    raw = await read_body(call.request)
    if not raw:
        asked = delete_options_of(call.query)
        dry_run = call.request.query.getall("dryRun", [])
        options = DeleteOptions.parse({**asked, "dryRun": dry_run})
    else:
        body = parse_object(raw, media_type(call.request))
        if (kind := body.get("kind", "DeleteOptions")) != "DeleteOptions":
            raise bad_request(
                f'no kind "{kind}" is registered for version "{body.get("apiVersion", "meta.k8s.io/v1")}"'
            )
        schema = call.registry.structure.schema("", "v1", "DeleteOptions")
        if schema is not None:
            check_fields(schema, body, "Ignore", "DeleteOptions", call.write)
        options = DeleteOptions.parse(body)
    call.write.dry_run = options.dry_run
    return options


async def _delete(call: Call) -> web.StreamResponse:
    call.write.verb = "delete"
    options = await _options(call)
    stored, gone = delete(call.write, _current(call), options)
    if not gone or kind_of(call.resource).returns_deleted:
        return call.answer(stored)
    resource = call.resource
    details = {"name": stored.name, "group": resource.group, "kind": resource.plural, "uid": stored.uid}
    status = success({key: value for key, value in details.items() if value})
    return respond(orjson.dumps(status), call.want, headers=call.warnings())


async def _delete_collection(call: Call) -> web.StreamResponse:
    call.write.verb = "deletecollection"
    options = await _options(call)
    page = list_page(call.registry, call.resource, call.target.namespace, call.query)
    for stored in page.items:
        delete(call.write, stored, options)
    call.want.check_metadata(call.resource.group, f"{call.resource.kind}List", is_list=True)
    return await _send(call, list(render_list(call.resource, page, call.want, call.query)))


async def _list(call: Call) -> web.StreamResponse:
    page = list_page(call.registry, call.resource, call.target.namespace, call.query)
    call.want.check_metadata(call.resource.group, f"{call.resource.kind}List", is_list=True)
    size = sum(len(stored.data) for stored in page.items)
    chunks = render_list(call.resource, page, call.want, call.query)
    if size < _STREAM_FROM_BYTES or call.want.yaml:
        return await _send(call, list(chunks))
    response = web.StreamResponse(headers=[("Content-Type", "application/json"), *call.warnings()])
    await response.prepare(call.request)
    for chunk in chunks:
        await response.write(chunk)
        await asyncio.sleep(0)  # others are answered meanwhile: what is written may be a row of a large object
    await response.write_eof()
    return response


async def _send(call: Call, chunks: list[bytes]) -> web.Response:
    return respond(b"".join(chunks), call.want, headers=call.warnings())


async def _watch(call: Call) -> web.StreamResponse:
    query = WatchQuery.parse(call.registry, call.resource, call.target.namespace, call.query)
    response = web.StreamResponse(headers=[("Content-Type", "application/json"), *call.warnings()])
    response.enable_chunked_encoding()
    await response.prepare(call.request)
    encode = event_encoder(call.resource, call.want, call.query)
    async for chunk in stream(call.registry, call.resource, query, encode):
        await response.write(chunk)
    await response.write_eof()
    return response
