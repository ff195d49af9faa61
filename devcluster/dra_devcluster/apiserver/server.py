"""The API server as an object (start it, use it, stop it), and the handler of all its requests.

::

    async with DevApiServer() as server:
        subprocess.run(["kubectl", "--kubeconfig", server.write_kubeconfig(path), "get", "namespaces"])

For tests without an event loop of their own, ``serve_in_thread`` runs one in a thread. With ``snapshot`` all objects
are kept in one file: written when the server stops, read when it starts.

``App`` finds the user and the target of each request, calls the handler, renders refusals, and counts the answers in
one counter, with the real server's name and the labels that apply here. A watch is counted when it ends.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import math
import os
import resource
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import orjson
from aiohttp import web
from aiohttp.web_runner import ServerRunner
from dra_api.gates import FeatureGates
from dra_api.releases import NEWEST, Release
from dra_kube.door import MOST_CONNECTIONS, open_door, request_log
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest

from dra_devcluster.apiserver import documents
from dra_devcluster.apiserver.admission import Policies
from dra_devcluster.apiserver.authorization import Mode, node_user
from dra_devcluster.apiserver.controllers import CONTROLLERS
from dra_devcluster.apiserver.controllers.deletion import ensure_namespaces
from dra_devcluster.apiserver.controllers.worker import ensure_default_roles
from dra_devcluster.apiserver.endpoints.call import Call
from dra_devcluster.apiserver.endpoints.objects import VIRTUAL, handle_collection, handle_object
from dra_devcluster.apiserver.endpoints.subresources import SUBRESOURCES
from dra_devcluster.apiserver.errors import (
    Json,
    PathNotFound,
    ServerError,
    SnapshotError,
    StatusError,
    bad_request,
    conflict,
    internal,
    no_such_resource,
    too_many_requests,
    unauthorized,
)
from dra_devcluster.apiserver.identity import NAME, Tokens, kubeconfig, make_identity, write_kubeconfig
from dra_devcluster.apiserver.kinds import kind_of
from dra_devcluster.apiserver.rbac import ANONYMOUS, asked_for, impersonated
from dra_devcluster.apiserver.registry import API_SERVER, Registry
from dra_devcluster.apiserver.store import Collection, Stored
from dra_devcluster.apiserver.wire import PATCHES, flag, parse_target, respond
from dra_devcluster.background import in_thread


class RequestMetrics:
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
        header, is_rbac = request.headers.get("Authorization", ""), self.registry.authorization.is_rbac
        user = ANONYMOUS if is_rbac and not header else self.tokens.user(header)
        if user is None:
            if path == "/version" and not is_rbac:
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
        body, content_type = documents.answer(self.registry.structure, path, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})


def _refusal(error: StatusError) -> web.Response:
    headers = [*error.headers.items(), *error.warnings]
    return respond(orjson.dumps(error.status), code=error.code, headers=headers)


_FORMAT_VERSION = 1


def save(registry: Registry, path: Path) -> None:
    """Replace the file in one step. Raises SnapshotError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(orjson.dumps({"format": _FORMAT_VERSION, "revision": registry.store.revision}) + b"\n")
            for collection in registry.store.collections():
                head = orjson.dumps({"group": collection.group, "resource": collection.resource})
                for stored in collection.all():
                    file.write(b'%s,"object":{%s}\n' % (head[:-1], stored.data))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise SnapshotError(f"cannot write the snapshot {path}: {error.strerror or error}") from error


def load(registry: Registry, path: Path) -> None:
    """Put the objects of the file into an empty store; a file that does not exist is made. Raises SnapshotError."""
    try:
        head, *lines = path.read_bytes().splitlines()
        first = orjson.loads(head)
        if first["format"] != _FORMAT_VERSION:
            raise ValueError(f"its format is {first['format']}, not {_FORMAT_VERSION}")
        registry.store.revision = int(first["revision"])
        entries = [orjson.loads(line) for line in lines]
        # Definitions first: they say how custom resources are to be read.
        for entry in sorted(entries, key=lambda entry: entry["resource"] != "customresourcedefinitions"):
            _restore(registry, entry)
    except FileNotFoundError:
        save(registry, path)  # better to hear now than at the end that it cannot be written
    except OSError as error:
        raise SnapshotError(f"cannot read the snapshot {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise SnapshotError(
            f"{path} is not a snapshot of this server ({error}): remove it or pass another file"
        ) from error


def _restore(registry: Registry, entry: Json) -> None:
    obj: Json = entry["object"]
    collection = registry.store.collection(entry["group"], entry["resource"])
    if entry["resource"] == "customresourcedefinitions":
        registry.add_definition(obj)
    resource = registry.of_collection(collection)
    if resource is None:
        raise ValueError(f"{entry['resource']}.{entry['group']} is not served")
    fields = kind_of(resource).fields(obj)
    collection.restore(Stored(obj, int(obj["metadata"]["resourceVersion"]), fields))


_GOODBYE_SECONDS = 1.0  # seconds that requests have to end when the server stops
_ALL_CONNECTIONS = 10_000
_OTHER_COUNT = 128  # descriptors for files, and for connections through to nodes
_HEAD_SECONDS = 32.0  # seconds that the TLS handshake and the head of a request may take, as kube-apiserver gives them
_KEEP_ALIVE_SECONDS = 180.0  # seconds between two requests of a connection


class DevApiServer:
    """A Kubernetes API server in this process; an async context manager.

    ``port`` 0 takes any free one. ``feature_gates`` change the defaults of ``release``, which also decides which API
    versions exist.
    ``api_versions`` switches versions off, as in ``{"resource.k8s.io/v1": False}``; all are on. With ``snapshot`` the
    objects are loaded from that file, and saved to it at the end. ``authorization`` is ``always-allow`` or ``rbac``
    (`authorization`). ``name`` is that of cluster, user and context in its kubeconfig. Raises ServerError and
    GateError.
    """

    def __init__(  # noqa: PLR0913  # each is named by the caller, and has a default
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        release: Release = NEWEST,
        feature_gates: Mapping[str, bool] | None = None,
        api_versions: Mapping[str, bool] | None = None,
        snapshot: Path | None = None,
        authorization: Mode = "always-allow",
        name: str = NAME,
        token: str | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.name = name
        gates = FeatureGates.of(feature_gates or {}, release, API_SERVER)
        self.registry = Registry(gates, api_versions or {}, authorization, release)
        self.tokens = Tokens(self.registry.store, token)
        self._app = App(self.registry, self.tokens)
        self._snapshot = snapshot
        self._identity = make_identity(host)
        self._resources = AsyncExitStack()
        self._folder: Path | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        return f"https://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def ca(self) -> bytes:
        return self._identity.ca

    @property
    def ca_file(self) -> Path:
        """A file with the CA certificate; it lives as long as the server."""
        if self._folder is None:
            raise RuntimeError("the server is not running")
        path = self._folder / "ca.crt"
        if not path.exists():
            path.write_bytes(self.ca)
        return path

    @property
    def token(self) -> str:
        """The bearer token of the administrator."""
        return self.tokens.admin

    def node_token(self, name: str) -> str:
        """A new bearer token for a node."""
        return self.tokens.credential(node_user(name))

    @property
    def kubeconfig(self) -> dict[str, Any]:
        """The content of a kubeconfig for the administrator."""
        return kubeconfig(self.url, self.ca, self.token, name=self.name)

    def write_kubeconfig(self, path: Path, token: str | None = None) -> Path:
        """Write the kubeconfig (in one step, mode 600), with another token if one is given, and return its path."""
        write_kubeconfig(path, kubeconfig(self.url, self.ca, token or self.token, name=self.name))
        return path

    def end_watches(self) -> None:
        """End all watches in order, as an API server does after some minutes. From any thread."""
        self._soon(Collection.end_watches)

    def expire_watches(self) -> None:
        """End all watches with 410, and forget the changes so far, as after a compaction. From any thread."""
        self._soon(Collection.expire)

    def fail_requests(self, token: str, *, but: str) -> None:
        """Refuse the requests with a bearer token, unless their user agent begins so, as in an outage."""
        self._app.outage.begin(token, but)

    def answer_again(self, token: str) -> None:
        self._app.outage.end(token)

    def _soon(self, work: Callable[[Collection], None]) -> None:
        if self._loop is None:
            raise RuntimeError("the server is not running")
        self._loop.call_soon_threadsafe(self._in_each, work)

    def _in_each(self, work: Callable[[Collection], None]) -> None:
        for collection in self.registry.store.collections():
            work(collection)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(TemporaryDirectory(prefix="dra-devcluster-"))
            self._folder = Path(folder)
            if self._snapshot is not None:
                load(self.registry, self._snapshot)
                stack.callback(save, self.registry, self._snapshot)
            ensure_namespaces(self.registry)
            if self.registry.authorization.is_rbac:
                ensure_default_roles(self.registry)
            for controller in CONTROLLERS:
                await stack.enter_async_context(controller(self.registry))
            await self._listen(stack)
            self._resources = stack.pop_all()
        return self

    async def _listen(self, stack: AsyncExitStack) -> None:
        server = _Server(
            self._app,
            access_log=None,
            logger=request_log(),
            handler_cancellation=True,
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
        )
        runner = ServerRunner(server, shutdown_timeout=_GOODBYE_SECONDS)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        stack.callback(self._in_each, Collection.end_watches)
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        door = open_door(
            runner,
            self.host,
            self.port,
            math.inf,
            head_seconds=_HEAD_SECONDS,
            tls=self._identity.tls,
            most=max(MOST_CONNECTIONS, min(_ALL_CONNECTIONS, descriptors - _OTHER_COUNT)),
            keeps_alive=True,
        )
        try:
            _, self.port = await stack.enter_async_context(door)
        except OSError as error:
            raise ServerError(_why_not(self.host, self.port, error)) from error

    async def __aexit__(self, *_: object) -> None:
        await self._resources.aclose()
        self._folder = None


class _Server(web.Server):
    """Leaves no connection open when it is over.

    aiohttp closes the connections that it knows of. It neither knows of those whose TLS handshake is over only then,
    nor waits until a client has answered the end of its TLS session, which a client that is busy does late.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._open: dict[web.RequestHandler, asyncio.Transport] = {}
        self._is_over = False
        self._is_empty = asyncio.Event()

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._open[handler] = transport
        if self._is_over:
            transport.abort()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._open.pop(handler, None)
        if self._is_over and not self._open:
            self._is_empty.set()

    async def shutdown(self, timeout: float | None = None) -> None:
        self._is_over = True
        await super().shutdown(timeout)
        for transport in self._open.values():
            transport.abort()
        if self._open:
            await self._is_empty.wait()


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: choose another with --port, or 0 for any free one"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} is not permitted: choose one above 1023 with --port"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"


@contextmanager
def serve_in_thread(**settings: Any) -> Iterator[DevApiServer]:
    """A server in a thread with a loop of its own; ``settings`` are those of DevApiServer."""
    with in_thread(lambda: DevApiServer(**settings), "dev-api-server") as server:
        yield server
