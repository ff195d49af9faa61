"""Where Kopf meets the operator: the only module with handlers.

All handlers of Kubernetes kinds are raw event handlers that return None, so Kopf writes nothing: no annotation, no
finalizer, no status. A handler hands the event on and decides nothing.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import kopf
from dra_kube import Connection, ConnectionSettingsError, KubeError, Resource, connection
from dra_kube.access.connection import proxy_and_credentials

from .fed import Fed
from .kopf_settings import configure
from .request_trace import observed
from .tracing import Lists, trace_of

logger = logging.getLogger(__name__)


def register(
    operator: Fed,
    registry: kopf.OperatorRegistry | None = None,
    opened: Callable[[aiohttp.ClientSession], None] = lambda _: None,
) -> None:
    """Attach the operator to a registry of Kopf, the default one if none is given.

    If it does not run yet when Kopf starts, Kopf starts and stops it; otherwise it outlives Kopf. ``opened`` is given
    each session that Kopf gets: it closes them itself, unless it fails.
    """
    registry = registry or kopf.get_default_registry()
    started_here: list[bool] = []

    @kopf.on.startup(id="start", registry=registry)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        operator.kopf_begins()
        if not operator.is_running:
            try:
                await operator.start(connection())
            except KubeError as error:
                raise kopf.PermanentError(f"cannot start: {error}") from None  # Kopf prints the whole chain
            started_here.append(True)
        for resource, version in operator.served.items():
            _watch(operator, resource, version, registry)

    @kopf.on.cleanup(id="stop", registry=registry)
    async def stop(**_: Any) -> None:
        if started_here:
            await operator.stop()

    _log_in(operator, registry, opened)

    @kopf.on.probe(id="running", registry=registry)
    async def running(**_: Any) -> bool:
        return operator.is_running


def _log_in(operator: Fed, registry: kopf.OperatorRegistry, opened: Callable[[aiohttp.ClientSession], None]) -> None:
    @kopf.on.login(id="login", registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        try:
            traces = trace_of(operator.streams, operator.deals_with), observed(operator.requests)
            lists = Lists(operator.streams, operator.deals_with)
            session = session_for(connection(), *traces, middlewares=(lists,))
        except ConnectionSettingsError as error:
            raise kopf.PermanentError(str(error)) from error
        opened(session.aiohttp_session)
        return session


def session_for(
    settings: Connection, *traces: aiohttp.TraceConfig, middlewares: Sequence[aiohttp.ClientMiddlewareType] = ()
) -> kopf.AiohttpSession:
    """Kopf's own connection, with the same address and credentials as ours; made anew when the server says 401.

    ``traces`` get to know what Kopf asks and gets; ``middlewares`` may change it.
    """
    authorization = settings.authorization()
    proxy, credentials = proxy_and_credentials(settings.proxy)
    with warnings.catch_warnings():
        # aiohttp shows the address of a proxy in its errors. Its new way to keep a password out of the address is an
        # option of each request, and these requests are Kopf's.
        warnings.filterwarnings("ignore", "The 'proxy_auth' parameter", DeprecationWarning)
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=settings.tls or False, limit=0),
            headers=[*([("Authorization", authorization)] if authorization else []), *settings.impersonation],
            proxy=proxy,
            proxy_auth=aiohttp.BasicAuth.decode(credentials, "utf-8") if credentials else None,
            trace_configs=list(traces),
            middlewares=middlewares,
        )
    return kopf.AiohttpSession(server=settings.host, aiohttp_session=session)


def _watch(operator: Fed, watched: Resource, version: str, registry: kopf.OperatorRegistry) -> None:
    """In the version that the server has and we speak, which need not be the one that its group prefers.

    It must be named here. Kopf asks a selector that is a function about all that the server has, and so it would wait
    for every API of the cluster, also for those whose own server is down.
    """

    @kopf.on.event(group=watched.group, version=version, plural=watched.plural, id=watched.plural, registry=registry)
    async def event(event: Any, **_: Any) -> None:
        operator.received(watched, version, event["type"], event["object"])
