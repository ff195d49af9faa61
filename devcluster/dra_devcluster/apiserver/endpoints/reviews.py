"""Kinds that are asked and never stored: reviews of tokens, of users and of what a user may do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import orjson
from aiohttp import web
from dra_api.validation import formats as faults
from dra_api.validation.formats import FieldError

from dra_devcluster.apiserver.authorization import Attributes, User
from dra_devcluster.apiserver.endpoints.call import Call
from dra_devcluster.apiserver.endpoints.subresources import bind
from dra_devcluster.apiserver.errors import Json, bad_request, invalid, not_allowed
from dra_devcluster.apiserver.identity import ISSUER, InvalidToken
from dra_devcluster.apiserver.metadata import dig
from dra_devcluster.apiserver.verbs.write import check_version
from dra_devcluster.apiserver.wire import respond

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
    return Attributes(
        user,
        asked.get("verb", ""),
        asked.get("group", ""),
        asked.get("version", ""),
        asked.get("resource", ""),
        asked.get("subresource", ""),
        asked.get("namespace", ""),
        asked.get("name", ""),
        field_selector=",".join(_requirements(asked.get("fieldSelector") or {})),
    )


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


def _subject_faults(spec: Json) -> Iterator[FieldError]:
    yield from _spec_faults(spec)
    if not spec.get("user") and not spec.get("groups"):
        yield faults.invalid("spec.user", "", "at least one of user or group must be specified")


def _spec_faults(spec: Json) -> Iterator[FieldError]:
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
