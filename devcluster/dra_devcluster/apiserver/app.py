"""Routes each request: finds the user and the target, calls the handler, renders refusals, and counts the answers.

There is one counter, with the real server's name and those of its labels that apply here. A watch is counted when it
ends.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable

import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest

from dra_devcluster.apiserver import documents
from dra_devcluster.apiserver.admission import Policies
from dra_devcluster.apiserver.authorization import ANONYMOUS, User, asked_for
from dra_devcluster.apiserver.authorization.attributes import impersonated
from dra_devcluster.apiserver.endpoints.call import Call
from dra_devcluster.apiserver.endpoints.objects import handle_collection, handle_object
from dra_devcluster.apiserver.endpoints.reviews import VIRTUAL
from dra_devcluster.apiserver.endpoints.subresources import SUBRESOURCES
from dra_devcluster.apiserver.errors import (
    Json,
    PathNotFound,
    StatusError,
    bad_request,
    conflict,
    internal,
    no_such_resource,
    too_many_requests,
    unauthorized,
)
from dra_devcluster.apiserver.identity import Tokens
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.structure import Structure
from dra_devcluster.apiserver.wire import PATCHES, flag, parse_target, respond


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


log = logging.getLogger(__name__)

Handler = Callable[[Call], Awaitable[web.StreamResponse]]
_PROBES = ("/healthz", "/livez", "/readyz")


class Outage:
    """Refuses the requests of some clients for a while, in turn with each answer of a server in trouble.

    A client has to expect all of them, and to come again: 500, 503, 429 and, for a write, 409.
    """

    def __init__(self) -> None:
        self._spared: dict[str, str] = {}
        self._numbers = itertools.count()

    def begin(self, token: str, but: str) -> None:
        """Refuse requests with this bearer token, unless their user agent begins with ``but``."""
        self._spared[f"Bearer {token}"] = but

    def end(self, token: str) -> None:
        """Refuse it no longer."""
        self._spared.pop(f"Bearer {token}", None)

    def require_none(self, request: web.BaseRequest) -> None:
        """Raises StatusError for a request that is to be refused."""
        spared = self._spared.get(request.headers.get("Authorization", ""))
        if spared is None or request.headers.get("User-Agent", "").startswith(spared):
            return
        answers = [
            internal("the database does not answer"),
            StatusError(503, "ServiceUnavailable", "the server is currently unable to handle the request"),
            too_many_requests("the server has received too many requests", 1),
        ]
        if request.method in ("PUT", "PATCH"):
            answers.append(conflict("", "objects", request.path.rpartition("/")[2]))
        raise answers[next(self._numbers) % len(answers)]


class App:
    """The handler of all requests of one server."""

    def __init__(self, registry: Registry, tokens: Tokens) -> None:
        self.registry = registry
        self.tokens = tokens
        self.outage = Outage()
        self._policies = Policies(registry)
        self._metrics = RequestMetrics()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        answer = await self._answer_or_refuse(request)
        self._metrics.answered(request, answer.status)
        return answer

    async def _answer_or_refuse(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except StatusError as error:
            return _refusal(error)
        except PathNotFound:
            return web.Response(status=404, text="404 page not found\n")
        except web.HTTPException:
            raise
        except RecursionError:
            return _refusal(bad_request("the body of the request is nested too deeply"))
        except Exception as error:
            if isinstance(error, ConnectionError) and (request.transport is None or request.transport.is_closing()):
                return web.Response()  # goes nowhere: the client has left, amid a watch for example
            # A bug of ours: the client still gets an answer, and the log the trace.
            log.exception("%s %s failed", request.method, request.path_qs)
            return _refusal(internal(repr(error)))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.outage.require_none(request)
        path = request.path.rstrip("/") or "/"  # some clients ask for /version/
        if path.startswith(_PROBES) and not self.registry.authorization.is_rbac:
            return web.Response(text="ok")
        user = self._user(request)
        if user is None:
            if path == "/version" and not self.registry.authorization.is_rbac:
                return self._version()
            raise unauthorized()
        target = parse_target(request.raw_path.partition("?")[0])
        user = impersonated(user, request.headers.items(), self.registry.authorization.require)
        self.registry.authorization.require(asked_for(user, request.method, request.path, target, request.query))
        if path.startswith(_PROBES):
            return web.Response(text="ok")
        if path == "/metrics":
            return self._metrics.page()
        if target is None:
            return self._document(request, path)
        resource = self.registry.find(target)
        query: Json = {key: request.query[key] for key in request.query}  # the first of several counts
        call = Call(request, target, resource, self.registry, self.tokens, user, query, self._policies)
        try:
            return await self._handler(call)(call)
        except StatusError as error:
            error.warnings += call.warnings()
            raise

    def _user(self, request: web.BaseRequest) -> User | None:
        """Who sends the request; None when the token is not valid."""
        header = request.headers.get("Authorization", "")
        if not header and self.registry.authorization.is_rbac:
            return ANONYMOUS
        return self.tokens.user(header)

    def _handler(self, call: Call) -> Handler:
        target, resource = call.target, call.resource
        virtual = VIRTUAL.get((resource.group, resource.plural))
        if virtual is not None:
            return virtual
        if target.subresource:
            if target.subresource not in resource.subresources:
                raise no_such_resource()
            return SUBRESOURCES.get(target.subresource, handle_object)
        return handle_object if target.name else handle_collection

    def _version(self) -> web.Response:
        version = documents.version_of(self.registry.release)
        return web.Response(body=orjson.dumps(version), content_type="application/json")

    def _document(self, request: web.BaseRequest, path: str) -> web.Response:
        if path == "/version":
            return self._version()
        structure = self.registry.structure
        accept = request.headers.get("Accept", "")
        if path == "/openapi/v2" and "protobuf" in accept and "json" not in accept:
            return web.Response(body=documents.v2_frame(), headers={"Content-Type": documents.V2_PROTOBUF})
        found = documents.answer(structure, path, accept)
        body, content_type = found if found else (orjson.dumps(_openapi(structure, path)), "application/json")
        return web.Response(body=body, headers={"Content-Type": content_type})


def _openapi(structure: Structure, path: str) -> Json:
    """The OpenAPI document of a path. Raises PathNotFound."""
    document: Json | None = None
    if path == "/openapi/v2":
        document = documents.v2_document(structure)
    elif path == "/openapi/v3":
        document = documents.v3_index(structure)
    elif path.startswith("/openapi/v3/api/"):
        document = documents.v3_document(structure, "", path.removeprefix("/openapi/v3/api/"))
    elif path.startswith("/openapi/v3/apis/"):
        group, _, version = path.removeprefix("/openapi/v3/apis/").partition("/")
        document = documents.v3_document(structure, group, version)
    if document is None:
        raise PathNotFound
    return document


def _refusal(error: StatusError) -> web.Response:
    headers = [*error.headers.items(), *error.warnings]
    return respond(orjson.dumps(error.status), code=error.code, headers=headers)
