"""Runs a plugin as a process: connect, serve and publish until a signal or a fatal error."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from os import PathLike
from typing import Any

from dra_kube import Api, connection
from dra_kube.spans import start_traces

from .driver import Driver
from .interceptor import Interceptor
from .plugin import KubeletPlugin
from .settings import PluginSettings
from .slices import Resources

log = logging.getLogger(__name__)


async def serve(
    driver: Driver,
    settings: PluginSettings,
    resources: Resources | AsyncIterable[Resources],
    *,
    kubeconfig: str | PathLike[str] | None = None,
    interceptors: Sequence[Interceptor] = (),
    beside: Callable[[KubeletPlugin], AbstractAsyncContextManager[object]] = nullcontext,
) -> None:
    """Run the plugin until SIGINT or SIGTERM, then stop it cleanly.

    ``resources`` that come and go are an asynchronous iterator, of which each value replaces the one before.
    ``beside`` is entered while the plugin runs, for other work of the driver (probes, watching hardware).
    Raises ``dra_kube.ConnectionSettingsError``, StartError, or the ``Fatal`` error that ended the plugin.
    """
    start_traces(settings.driver_name, **{"k8s.node.name": settings.node_name})
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        async with (
            Api(connection(kubeconfig), user_agent=settings.driver_name) as api,
            KubeletPlugin(driver, settings, api, interceptors=interceptors) as plugin,
            beside(plugin),
        ):
            await _first(plugin.wait(), stopped.wait(), _publish(plugin, resources))
            log.info("stopping")
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _publish(plugin: KubeletPlugin, resources: Resources | AsyncIterable[Resources]) -> None:
    """Publish all that comes, and then wait to be cancelled."""
    if isinstance(resources, AsyncIterable):
        async for current in resources:
            await plugin.publish(current)
    else:
        await plugin.publish(resources)
    await asyncio.Event().wait()


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until the first of them ends; raises its error."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
