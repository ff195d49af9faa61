"""Sub-resources whose body is not the object itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from dra_devcluster.apiserver.endpoints.binding import evict

from .binding import bind
from .call import Call
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
