"""Resources that are never stored, only asked: reviews of users, access and tokens."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import orjson
from aiohttp import web

from .binding import bind
from .bodies import respond
from .call import Call
from .checks import check_version
from .errors import Json, not_allowed

_ALL = ["*"]


async def _body(call: Call) -> Json:
    body = await call.read_posted(call.resource.group, call.resource.kind)
    check_version(call.write, body)
    return body


def _answer(call: Call, body: Json, status: Json) -> web.Response:
    body.setdefault("metadata", {})["creationTimestamp"] = None
    body["status"] = status
    return respond(orjson.dumps(body), call.want, 201, call.warnings())


async def access_review(call: Call) -> web.StreamResponse:
    """Every known user may do everything."""
    return _answer(call, await _body(call), {"allowed": True, "reason": "every known user may do everything here"})


async def rules_review(call: Call) -> web.StreamResponse:
    status = {
        "resourceRules": [{"verbs": _ALL, "apiGroups": _ALL, "resources": _ALL}],
        "nonResourceRules": [{"verbs": _ALL, "nonResourceURLs": _ALL}],
        "incomplete": False,
    }
    return _answer(call, await _body(call), status)


async def self_review(call: Call) -> web.StreamResponse:
    return _answer(call, await _body(call), {"userInfo": call.user})


async def token_review(call: Call) -> web.StreamResponse:
    body = await _body(call)
    user = call.tokens.user_of_token((body.get("spec") or {}).get("token", ""))
    status = {"authenticated": True, "user": user} if user else {"user": {}, "error": "unknown token"}
    return _answer(call, body, status)


async def component_statuses(call: Call) -> web.StreamResponse:
    """Deprecated and always empty: this control plane has no separate components."""
    if call.request.method != "GET" or call.target.name:
        raise not_allowed()
    listed = {"kind": "ComponentStatusList", "apiVersion": "v1", "metadata": {}, "items": []}
    return respond(orjson.dumps(listed), call.want)


def expiry(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


_AUTHORIZATION, _AUTHENTICATION = "authorization.k8s.io", "authentication.k8s.io"
VIRTUAL: dict[tuple[str, str], Callable[[Call], Awaitable[web.StreamResponse]]] = {
    (_AUTHORIZATION, "localsubjectaccessreviews"): access_review,
    (_AUTHORIZATION, "selfsubjectaccessreviews"): access_review,
    (_AUTHORIZATION, "subjectaccessreviews"): access_review,
    (_AUTHORIZATION, "selfsubjectrulesreviews"): rules_review,
    (_AUTHENTICATION, "selfsubjectreviews"): self_review,
    (_AUTHENTICATION, "tokenreviews"): token_review,
    ("", "bindings"): bind,
    ("", "componentstatuses"): component_statuses,
}
