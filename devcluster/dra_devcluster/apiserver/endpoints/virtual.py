"""Resources that are never stored, only asked: reviews of users and tokens, and those of `access_reviews`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import orjson
from aiohttp import web

from dra_devcluster.apiserver.errors import not_allowed
from dra_devcluster.apiserver.identity.tokens import ISSUER, InvalidToken
from dra_devcluster.apiserver.wire.bodies import respond

from .access_reviews import ACCESS_REVIEWS, answer, read_question
from .binding import bind
from .call import Call


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
    **ACCESS_REVIEWS,
    (_AUTHENTICATION, "selfsubjectreviews"): self_review,
    (_AUTHENTICATION, "tokenreviews"): token_review,
    ("", "bindings"): bind,
    ("", "componentstatuses"): component_statuses,
}
