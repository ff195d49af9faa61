"""Sub-resources whose body is not the object itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from .binding import bind
from .call import Call
from .eviction import evict
from .node_proxy import NODE_SUBRESOURCES
from .scale import scale
from .token_request import token

SUBRESOURCES: dict[str, Callable[[Call], Awaitable[web.StreamResponse]]] = {
    "binding": bind,
    "eviction": evict,
    "scale": scale,
    "token": token,
    **NODE_SUBRESOURCES,
}
