"""The API server as an object: start it, use it, stop it.

::

    async with DevApiServer() as server:
        subprocess.run(["kubectl", "--kubeconfig", server.write_kubeconfig(path), "get", "namespaces"])

For tests without an event loop of their own, ``serve_in_thread`` runs one in a thread.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from aiohttp.web_runner import ServerRunner
from dra_kube.request_log import REQUESTS

from . import snapshot as snapshots
from .app import App
from .authorization import Mode, node_user
from .certificates import make_identity
from .controllers import (
    AggregationController,
    DaemonSetController,
    DefaultScheduler,
    DefinitionController,
    DeploymentController,
    GarbageCollector,
    NamespaceController,
    QuotaController,
    ReplicaSetController,
    ensure_default_roles,
    ensure_namespaces,
)
from .errors import ServerError
from .gates import gates_of
from .kubeconfig import NAME, kubeconfig, write_kubeconfig
from .registry import Registry
from .tokens import Tokens

_CONTROLLERS = (
    GarbageCollector,
    NamespaceController,
    DefinitionController,
    AggregationController,
    QuotaController,
    DaemonSetController,
    DeploymentController,
    ReplicaSetController,
    DefaultScheduler,
)
_GOODBYE = 1.0  # seconds that requests have to end when the server stops


class DevApiServer:
    """A Kubernetes API server in this process; an async context manager.

    ``port`` 0 takes any free one. ``feature_gates`` change the defaults of Kubernetes 1.36.
    ``api_versions`` switches versions off, as in ``{"resource.k8s.io/v1": False}``; all are on. With ``snapshot`` the
    objects are loaded from that file, and saved to it at the end. ``authorization`` is ``always-allow`` or ``rbac``
    (`authorization`). ``name`` is that of cluster, user and context in its kubeconfig. Raises ServerError and
    UnknownGate.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
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
        self.registry = Registry(gates_of(feature_gates or {}), api_versions or {}, authorization)
        self.tokens = Tokens(self.registry.store, token)
        self._snapshot = snapshot
        self._identity = make_identity(host)
        self._resources = AsyncExitStack()
        self._folder: Path | None = None

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

    def write_kubeconfig(self, path: Path) -> Path:
        """Write the kubeconfig (in one step, mode 600) and return its path."""
        write_kubeconfig(path, self.kubeconfig)
        return path

    async def __aenter__(self) -> Self:
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
        snapshots.load(self.registry, self._snapshot)
        stack.callback(snapshots.save, self.registry, self._snapshot)

    async def _listen(self, stack: AsyncExitStack) -> None:
        app = App(self.registry, self.tokens)
        server = web.Server(app, access_log=None, logger=REQUESTS, handler_cancellation=True)
        runner = ServerRunner(server, shutdown_timeout=_GOODBYE)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        stack.callback(self._end_watches)
        site = web.TCPSite(runner, self.host, self.port, ssl_context=self._identity.tls)
        try:
            await site.start()
        except OSError as error:
            raise ServerError(_why_not(self.host, self.port, error)) from error
        self.port = runner.addresses[0][1]

    def _end_watches(self) -> None:
        for collection in self.registry.store.collections():
            collection.end_watches()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._resources.aclose()
        self._folder = None


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: choose another with --port, or 0 for any free one"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} is not permitted: choose one above 1023 with --port"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"


@contextmanager
def serve_in_thread(**settings: Any) -> Iterator[DevApiServer]:
    """A server in a thread with a loop of its own; ``settings`` are those of DevApiServer."""
    server = DevApiServer(**settings)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="dev-api-server", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
        try:
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(_end_tasks(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end_tasks() -> None:
    """End what is left on the loop: connections whose TLS handshake is under way belong to no server yet."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
    for _ in range(10):  # iterations of the loop, in which connections notice their end, and close
        await asyncio.sleep(0)
