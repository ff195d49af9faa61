"""Counts requests by their answers, for ``/metrics`` as on the real server.

One counter, with the real server's name and those of its labels that apply here. A watch is counted when it ends.
"""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest

from dra_devcluster.apiserver.wire.bodies import flag, parse_target

from .bodies import PATCHES


class RequestMetrics:
    """The counter of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._total = Counter(
            "apiserver_request",
            "Requests by verb, resource and code of the answer",
            ["verb", "group", "version", "resource", "subresource", "code"],
            registry=self._registry,
        )

    def answered(self, request: web.BaseRequest, code: int) -> None:
        """A request about a resource was answered; others are not counted."""
        target = parse_target(request.raw_path.partition("?")[0])
        if target is not None:
            verb = _verb(request, is_one=bool(target.name))
            labels = (verb, target.group, target.version, target.plural, target.subresource, str(code))
            self._total.labels(*labels).inc()

    def page(self) -> web.Response:
        """The content of ``/metrics``."""
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _verb(request: web.BaseRequest, *, is_one: bool) -> str:
    if request.method == "PATCH" and PATCHES.get(request.content_type) == "apply":
        return "APPLY"
    if request.method != "GET":
        return request.method if is_one or request.method != "DELETE" else "DELETECOLLECTION"
    if flag(request.query, "watch"):
        return "WATCH"
    return "GET" if is_one else "LIST"
