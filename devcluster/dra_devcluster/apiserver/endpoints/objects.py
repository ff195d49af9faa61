"""Requests to kinds: the verbs on objects and collections, and kinds that are asked and never stored.

The verbs are get, list, watch, create, update, patch and delete. The kinds that are only asked are reviews of tokens,
of users and of the rights of users.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import orjson
from aiohttp import web
from dra_api.validation import formats as faults
from dra_api.validation.formats import Errors, FieldError, forbidden, required

from dra_devcluster.apiserver.endpoints.call import Call, event_encoder, render_list
from dra_devcluster.apiserver.endpoints.subresources import bind
from dra_devcluster.apiserver.errors import (
    Json,
    bad_request,
    invalid,
    name_mismatch,
    name_missing,
    not_allowed,
    success,
    unsupported_media_type,
)
from dra_devcluster.apiserver.identity import ISSUER, InvalidToken
from dra_devcluster.apiserver.kinds import kind_of
from dra_devcluster.apiserver.metadata import dig
from dra_devcluster.apiserver.rbac import Attributes, User
from dra_devcluster.apiserver.store import Stored
from dra_devcluster.apiserver.structure import find_duplicates, refusal
from dra_devcluster.apiserver.verbs.patch import patch
from dra_devcluster.apiserver.verbs.read import WatchQuery, get, list_page, stream
from dra_devcluster.apiserver.verbs.write import (
    DeleteOptions,
    check_fields,
    check_version,
    create,
    create_by_update,
    delete,
    delete_options_of,
    update,
)
from dra_devcluster.apiserver.wire import PATCHES, flag, media_type, parse_document, parse_object, read_body, respond

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
        case _ if call.resource.namespaced and not call.target.namespace:
            raise not_allowed()  # nothing is written to all namespaces at once
        case "POST":
            call.need("create")
            call.write.verb = "create"
            return call.answer(create(call.write, await _body(call)), 201)
        case "DELETE":
            call.need("deletecollection")
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
    if target.name:
        if not meta.get("name"):
            raise name_missing(target.name)
        if meta["name"] != target.name:
            raise name_mismatch(meta["name"], target.name)
        if target.namespace and meta.setdefault("namespace", target.namespace) != target.namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    return obj


async def _patch(call: Call) -> web.StreamResponse:
    custom = call.resource.definition is not None
    known = {kind: name for kind, name in PATCHES.items() if not custom or name != "strategic"}
    format_ = known.get(media_type(call.request))
    if format_ is None:
        raise unsupported_media_type(list(known))
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
        asked = {**delete_options_of(call.query), "dryRun": call.request.query.getall("dryRun", [])}
    else:
        asked = parse_object(raw, media_type(call.request))
        if (kind := asked.get("kind", "DeleteOptions")) != "DeleteOptions":
            version = asked.get("apiVersion", "meta.k8s.io/v1")
            raise bad_request(f'no kind "{kind}" is registered for version "{version}"')
        schema = call.registry.structure.schema("", "v1", "DeleteOptions")
        if schema is not None:
            check_fields(schema, asked, "Ignore", "DeleteOptions", call.write)
    options = DeleteOptions.parse(asked)
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
    chunks = render_list(call.resource, page, call.want, call.query)
    return respond(b"".join(chunks), call.want, headers=call.warnings())


async def _list(call: Call) -> web.StreamResponse:
    page = list_page(call.registry, call.resource, call.target.namespace, call.query)
    call.want.check_metadata(call.resource.group, f"{call.resource.kind}List", is_list=True)
    size = sum(len(stored.data) for stored in page.items)
    chunks = render_list(call.resource, page, call.want, call.query)
    if size < _STREAM_FROM_BYTES or call.want.yaml:
        return respond(b"".join(chunks), call.want, headers=call.warnings())
    response = web.StreamResponse(headers=[("Content-Type", "application/json"), *call.warnings()])
    await response.prepare(call.request)
    for chunk in chunks:
        await response.write(chunk)
        await asyncio.sleep(0)  # others are answered meanwhile: what is written may be a row of a large object
    await response.write_eof()
    return response


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


_REVIEWS = "authorization.k8s.io"


async def read_question(call: Call) -> Json:
    """The body of a request to a resource that is only asked. Raises 400, 405, 413, 415."""
    body = await call.read_posted(call.resource.group, call.resource.kind)
    check_version(call.write, body)
    body.setdefault("spec", {})
    return body


def answer(call: Call, body: Json, status: Json) -> web.Response:
    """The question with its answer in the status."""
    body.setdefault("metadata", {})["creationTimestamp"] = None
    body["status"] = status
    return respond(orjson.dumps(body), call.want, 201, call.warnings())


async def own_access(call: Call) -> web.StreamResponse:
    """What the user of the request may do."""
    body = await read_question(call)
    return _judged(call, body, list(_spec_faults(body["spec"])), call.user)


async def access_of_subject(call: Call) -> web.StreamResponse:
    """What another user may do, who need not exist."""
    body = await read_question(call)
    return _judged(call, body, list(_subject_faults(body["spec"])), _subject(body["spec"]))


async def access_in_namespace(call: Call) -> web.StreamResponse:
    """What another user may do in the namespace of the request."""
    body = await read_question(call)
    spec = body["spec"]
    wrong = list(_subject_faults(spec))
    namespace = dig(spec, "resourceAttributes.namespace") or ""
    if spec.get("resourceAttributes") is not None and namespace != call.target.namespace:
        path = "spec.resourceAttributes.namespace"
        wrong.append(faults.invalid(path, namespace, "must match metadata.namespace"))
    if spec.get("nonResourceAttributes") is not None:
        given = spec["nonResourceAttributes"]
        wrong.append(faults.invalid("spec.nonResourceAttributes", given, "disallowed on this kind of request"))
    return _judged(call, body, wrong, _subject(spec))


async def own_rules(call: Call) -> web.StreamResponse:
    """The rules that apply to the user of the request in a namespace."""
    body = await read_question(call)
    namespace = dig(body, "spec.namespace")
    if not namespace:
        raise bad_request("no namespace on request")
    resources: list[Json] = []
    urls: list[Json] = []
    for rule in call.registry.authorization.rules_of(call.user, namespace):
        verbs = list(rule.verbs)
        if rule.resources:
            line = {"verbs": verbs, "apiGroups": list(rule.groups), "resources": list(rule.resources)}
            resources.append({**line, "resourceNames": list(rule.names)} if rule.names else line)
        if rule.urls:
            urls.append({"verbs": verbs, "nonResourceURLs": list(rule.urls)})
    return answer(call, body, {"resourceRules": resources, "nonResourceRules": urls, "incomplete": False})


def _judged(call: Call, body: Json, wrong: list[FieldError], user: User) -> web.Response:
    if wrong:
        raise invalid(_REVIEWS, "", "", wrong)  # the real server names no kind here
    decision = call.registry.authorization.judge(_question(body["spec"], user))
    status: Json = {"allowed": decision.allowed}
    return answer(call, body, {**status, "reason": decision.reason} if decision.reason else status)


def _question(spec: Json, user: User) -> Attributes:
    if (asked := spec.get("nonResourceAttributes")) is not None:
        return Attributes(user, asked.get("verb", ""), path=asked.get("path", "") or "/")
    asked = spec["resourceAttributes"]
    names = ("verb", "group", "version", "resource", "subresource", "namespace", "name")
    selector = ",".join(_requirements(asked.get("fieldSelector") or {}))
    return Attributes(user, field_selector=selector, **{name: asked.get(name, "") for name in names})


def _requirements(selector: Json) -> Iterator[str]:
    """The part of a field selector that narrows: equality with one value."""
    if raw := selector.get("rawSelector"):
        yield raw
    for requirement in selector.get("requirements") or ():
        values: list[str] = requirement.get("values") or []
        if requirement.get("operator") == "In" and len(values) == 1:
            yield f"{requirement.get('key')}={values[0]}"


def _subject(spec: Json) -> User:
    extra = {key.lower(): tuple(values or ()) for key, values in (spec.get("extra") or {}).items()}
    return User(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""), extra)


def _subject_faults(spec: Json) -> Errors:
    yield from _spec_faults(spec)
    if not spec.get("user") and not spec.get("groups"):
        yield faults.invalid("spec.user", "", "at least one of user or group must be specified")


def _spec_faults(spec: Json) -> Errors:
    resource, url = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and url is not None:
        why = "cannot be specified in combination with resourceAttributes"
        yield faults.invalid("spec.nonResourceAttributes", url, why)
    if resource is None and url is None:
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        yield faults.invalid("spec.resourceAttributes", None, why)


async def self_review(call: Call) -> web.StreamResponse:
    return answer(call, await read_question(call), {"userInfo": call.user.info})


async def token_review(call: Call) -> web.StreamResponse:
    body = await read_question(call)
    audiences = body["spec"].get("audiences") or [ISSUER]
    try:
        user = call.tokens.user_of_token(body["spec"].get("token", ""), audiences)
    except InvalidToken as error:
        said = "invalid bearer token"
        text = said if str(error) == said else f"[{said}, {error}]"
        return answer(call, body, {"user": {}, "error": text})
    return answer(call, body, {"authenticated": True, "user": user.info, "audiences": audiences})


async def component_statuses(call: Call) -> web.StreamResponse:
    """Deprecated and always empty: this control plane has no separate components."""
    if call.request.method != "GET" or call.target.name:
        raise not_allowed()
    listed = {"kind": "ComponentStatusList", "apiVersion": "v1", "metadata": {}, "items": []}
    return respond(orjson.dumps(listed), call.want)


_AUTHENTICATION = "authentication.k8s.io"
VIRTUAL: dict[tuple[str, str], Callable[[Call], Awaitable[web.StreamResponse]]] = {
    (_REVIEWS, "localsubjectaccessreviews"): access_in_namespace,
    (_REVIEWS, "selfsubjectaccessreviews"): own_access,
    (_REVIEWS, "subjectaccessreviews"): access_of_subject,
    (_REVIEWS, "selfsubjectrulesreviews"): own_rules,
    (_AUTHENTICATION, "selfsubjectreviews"): self_review,
    (_AUTHENTICATION, "tokenreviews"): token_review,
    ("", "bindings"): bind,
    ("", "componentstatuses"): component_statuses,
}
