"""Where Kopf meets the operator: the only module with handlers.

All handlers of Kubernetes kinds are raw event handlers that return None, so Kopf writes nothing: no annotation, no
finalizer, no status. A handler hands the event on and decides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import aiohttp
import kopf
from dra_kube import Connection, ConnectionSettingsError, KubeError, Resource, connection

from .operator import Operator
from .settings import configure
from .watched import WATCHED

logger = logging.getLogger(__name__)


def register(operator: Operator, registry: kopf.OperatorRegistry | None = None) -> None:
    """Attach the operator to a registry of Kopf, the default one unless told otherwise.

    If it does not run yet when Kopf starts, Kopf starts and stops it; otherwise it outlives Kopf.
    """
    started_here: list[bool] = []

    @kopf.on.startup(id="start", registry=registry)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        if not operator.is_running:
            try:
                await operator.start(connection())
            except KubeError as error:
                raise kopf.PermanentError(f"cannot start: {error}") from None  # Kopf prints the whole chain
            started_here.append(True)

    @kopf.on.cleanup(id="stop", registry=registry)
    async def stop(**_: Any) -> None:
        if started_here:
            await operator.stop()

    @kopf.on.login(id="login", registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        try:
            return session_for(connection())
        except ConnectionSettingsError as error:
            raise kopf.PermanentError(str(error)) from error

    @kopf.on.probe(id="running", registry=registry)
    async def running(**_: Any) -> bool:
        return operator.is_running

    for resource in WATCHED:
        _watch(operator, resource, registry)


def session_for(settings: Connection) -> kopf.AiohttpSession:
    """Kopf's own connection, with the same address and credentials as ours; made anew when the server says 401."""
    authorization = settings.authorization()
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=settings.tls or False, limit=0),
        headers={"Authorization": authorization} if authorization else {},
        proxy=settings.proxy,
    )
    return kopf.AiohttpSession(server=settings.host, aiohttp_session=session)


def _watch(operator: Operator, watched: Resource, registry: kopf.OperatorRegistry | None) -> None:
    @kopf.on.event(_selects(operator, watched), id=watched.plural, registry=registry)
    async def event(event: Any, resource: kopf.Resource, **_: Any) -> None:
        operator.received(watched, resource.version, event["type"], event["object"])


def _selects(operator: Operator, watched: Resource) -> Callable[[kopf.Resource], bool]:
    """By group, plural and the version we speak: Kopf finds a kind by name only in its group's preferred version."""

    def selects(resource: kopf.Resource) -> bool:
        served = operator.served_version(watched)
        return (resource.group, resource.plural, resource.version) == (watched.group, watched.plural, served)

    return selects
