"""Sub-resources whose body is not the object itself."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import orjson
from aiohttp import web

from .binding import bind
from .bodies import respond
from .call import Call
from .errors import Json, invalid, not_allowed
from .eviction import evict
from .faults import invalid as invalid_field
from .node_proxy import NODE_SUBRESOURCES
from .read import get
from .scale import scale
from .virtual import expiry

_SHORTEST_TOKEN = 600
_USUAL_TOKEN = 3600


async def token(call: Call) -> web.StreamResponse:
    """``serviceaccounts/<name>/token``: a token for the service account."""
    if call.request.method != "POST":
        raise not_allowed()
    body = await call.read_object()
    account = get(call.registry, call.resource, call.target.namespace, call.target.name).decode()
    spec: Json = body["spec"] if isinstance(body.get("spec"), dict) else {}
    seconds = spec.get("expirationSeconds", _USUAL_TOKEN)
    if not isinstance(seconds, int) or seconds < _SHORTEST_TOKEN:
        fault = invalid_field("spec.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
        raise invalid("authentication.k8s.io", "TokenRequest", "", [fault])
    issued, expires = call.tokens.issue(
        account, min(seconds, 2**32), [str(name) for name in spec.get("audiences") or ()]
    )
    body["status"] = {"token": issued, "expirationTimestamp": expiry(expires)}
    body |= {
        "metadata": {"creationTimestamp": expiry(time.time())},
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
    }
    return respond(orjson.dumps(body), call.want, 201)


SUBRESOURCES: dict[str, Callable[[Call], Awaitable[web.StreamResponse]]] = {
    "binding": bind,
    "eviction": evict,
    "scale": scale,
    "token": token,
    **NODE_SUBRESOURCES,
}
