"""Who may ask: only a page that was opened by the address that the command printed.

The address has a random token, which every request must carry in its path. Another site in the same browser does not
know it; and even if it did, its requests name that site as their origin, and a name that was pointed at this machine
(DNS rebinding) stands in the header Host. What is answered may not be framed, cached or mixed with anything from
outside (Content-Security-Policy).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware
from dra_kube.door import is_same_secret

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
OWN: Final = ("same-origin", "none")
"""Values of Sec-Fetch-Site: a page of ours asks, or a person typed the address."""


def guard(token: str) -> Middleware:
    """Refuses whatever does not come from our own page."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if why := _refusal(request, token):
            response: web.StreamResponse = web.Response(status=403, text=f"{why}\n")
        else:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = web.Response(status=error.status, text=f"{error.reason}\n")
        response.headers.update(HEADERS)
        return response

    return guarded


def _refusal(request: web.Request, token: str) -> str:
    own = {f"{host}:{_port(request)}" for host in ("127.0.0.1", "localhost")}
    if request.host not in own:
        return "this host is not served"
    if request.headers.get("Origin", f"http://{request.host}") != f"http://{request.host}":
        return "another site may not ask"
    if request.headers.get("Sec-Fetch-Site", "none") not in OWN:
        return "another site may not ask"
    given = request.path.split("/", 2)[1]
    if not is_same_secret(given, token):
        return "open the address that kubectl dra ui printed"
    return ""


def _port(request: web.Request) -> int:
    name = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return int(name[1]) if name else 0
