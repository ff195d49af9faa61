"""The API server as an object: start it, use it, stop it.

::

    async with DevApiServer() as server:
        subprocess.run(["kubectl", "--kubeconfig", server.write_kubeconfig(path), "get", "namespaces"])

For tests without an event loop of their own, ``serve_in_thread`` runs one in a thread.

With ``snapshot`` all objects are kept in one file: written when the server stops, read when it starts.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import orjson
from aiohttp import web
from aiohttp.web_runner import ServerRunner
from dra_api.releases import NEWEST, FeatureGates, Release
from dra_kube.door import MOST_CONNECTIONS, open_door, request_log

from dra_devcluster.apiserver.app import App
from dra_devcluster.apiserver.authorization import ADMIN, Mode, node_user
from dra_devcluster.apiserver.controllers import (
    AggregationController,
    CronJobController,
    DaemonSetController,
    DefaultScheduler,
    DefinitionController,
    DeploymentController,
    GarbageCollector,
    JobController,
    NamespaceController,
    PodGroupProtection,
    QuotaController,
    ReplicaSetController,
    ensure_default_roles,
    ensure_namespaces,
)
from dra_devcluster.apiserver.errors import Json, ServerError, SnapshotError
from dra_devcluster.apiserver.identity import NAME, Tokens, kubeconfig, make_identity, write_kubeconfig
from dra_devcluster.apiserver.kinds import kind_of
from dra_devcluster.apiserver.registry import API_SERVER, Registry
from dra_devcluster.apiserver.store import Stored
from dra_devcluster.background import in_thread

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


_CONTROLLERS = (
    GarbageCollector,
    NamespaceController,
    PodGroupProtection,
    DefinitionController,
    AggregationController,
    QuotaController,
    DaemonSetController,
    DeploymentController,
    ReplicaSetController,
    JobController,
    CronJobController,
    DefaultScheduler,
)
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
        """The address for clients."""
        return f"https://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def ca(self) -> bytes:
        """The CA certificate as PEM."""
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
        self._soon(self._end_watches)

    def expire_watches(self) -> None:
        """End all watches with 410, and forget the changes so far, as after a compaction. From any thread."""
        self._soon(self._expire_watches)

    def fail_requests(self, token: str, *, but: str) -> None:
        """Refuse the requests with a bearer token, unless their user agent begins so, as in an outage."""
        self._app.outage.begin(token, but)

    def answer_again(self, token: str) -> None:
        """End that outage."""
        self._app.outage.end(token)

    def administrator_token(self) -> str:
        """A new bearer token of the administrator, for a client that is to be told from others."""
        return self.tokens.credential(ADMIN)

    def _soon(self, work: Callable[[], None]) -> None:
        if self._loop is None:
            raise RuntimeError("the server is not running")
        self._loop.call_soon_threadsafe(work)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(TemporaryDirectory(prefix="dra-devcluster-"))
            self._folder = Path(folder)
            self._load(stack)
            ensure_namespaces(self.registry)
            if self.registry.authorization.is_rbac:
                ensure_default_roles(self.registry)
            for controller in _CONTROLLERS:
                await stack.enter_async_context(controller(self.registry))
            await self._listen(stack)
            self._resources = stack.pop_all()
        return self

    def _load(self, stack: AsyncExitStack) -> None:
        if self._snapshot is None:
            return
        load(self.registry, self._snapshot)
        stack.callback(save, self.registry, self._snapshot)

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
        stack.callback(self._end_watches)
        door = open_door(
            runner,
            self.host,
            self.port,
            math.inf,
            head_seconds=_HEAD_SECONDS,
            tls=self._identity.tls,
            most=_most_connections(),
            keeps_alive=True,
        )
        try:
            _, self.port = await stack.enter_async_context(door)
        except OSError as error:
            raise ServerError(_why_not(self.host, self.port, error)) from error

    def _end_watches(self) -> None:
        for collection in self.registry.store.collections():
            collection.end_watches()

    def _expire_watches(self) -> None:
        for collection in self.registry.store.collections():
            collection.expire()

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


def _most_connections() -> int:
    """As many as there are descriptors, but for those of other purposes."""
    return max(MOST_CONNECTIONS, min(_ALL_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_COUNT))


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
