"""Run a plugin as a process: connect, serve and publish until a signal or a fatal error, and exit for certain.

A thread cannot be stopped, and Python waits for all of them when it ends; a driver may also block the event loop, or
swallow its cancellation. So a thread of its own ends the process after some seconds, with exit code 1, and shows where
each thread is. What was begun keeps its record, and the next process, or the other instance, does it again.

Another thread asks the event loop for an answer each second. A driver that blocks it keeps the kubelet waiting.
The kubelet gives a registration one second. The log names the line.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import AsyncIterable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import replace
from os import PathLike
from types import FrameType
from typing import Any

from dra_kube import Api, connection
from dra_kube.spans import start_traces

from dra_kubeletplugin.driver import ENDINGS, Driver, is_ending
from dra_kubeletplugin.errors import DevicesFailed, PluginError
from dra_kubeletplugin.kubelet import Interceptor
from dra_kubeletplugin.plugin import KubeletPlugin
from dra_kubeletplugin.settings import PluginSettings
from dra_kubeletplugin.slices import Resources

_END_SECONDS = 15.0
"""Half of the time that a kubelet gives to a pod. Stopping takes twice 5 s where work is stuck."""

_LOOK_SECONDS = 1.0
_BLOCKED_SECONDS = 1.0
_SHOWN_CALLS = 4

log = logging.getLogger(__name__)


def end_soon() -> threading.Timer:
    """End the process in a while, unless the answer is cancelled."""
    timer = threading.Timer(_END_SECONDS, _end)
    timer.daemon = True
    timer.start()
    return timer


def run_to_the_end(main: Coroutine[Any, Any, None]) -> None:
    """``asyncio.run``, which does not wait for ever for threads when ``main`` has ended."""
    timers: list[threading.Timer] = []
    ended = threading.Event()

    async def bounded() -> None:
        gc.freeze()  # what was imported stays: a collection, which holds up all calls, need not look at it
        watch = (asyncio.get_running_loop(), threading.get_ident(), ended)
        threading.Thread(target=_watch_loop, args=watch, name="is the event loop blocked", daemon=True).start()
        try:
            await main
        finally:
            timers.append(end_soon())

    try:
        asyncio.run(bounded())
    finally:
        ended.set()
        for timer in timers:
            timer.cancel()


def _watch_loop(loop: asyncio.AbstractEventLoop, thread: int, ended: threading.Event) -> None:
    """Log where the event loop is when it does not answer in time, until ``ended``."""
    while not ended.wait(_LOOK_SECONDS):
        answered = threading.Event()
        try:
            loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # it is closed
            return
        if answered.wait(_BLOCKED_SECONDS):
            continue
        if (frame := sys._current_frames().get(thread)) and not _is_waiting(frame):
            log.warning(
                "the event loop is blocked for more than %.0f s, and the kubelet gets no answer: run such work with "
                "asyncio.to_thread. It is at\n%s",
                _BLOCKED_SECONDS,
                "".join(traceback.format_stack(frame)[-_SHOWN_CALLS:]).rstrip(),
            )
        while not answered.wait(_LOOK_SECONDS) and not ended.is_set():
            pass


def _is_waiting(frame: FrameType) -> bool:
    """Whether the loop waits for events: then it is the machine that is slow."""
    return frame.f_globals.get("__name__") == "selectors"


def _end() -> None:
    log.critical(
        "the process should have ended %.0f s ago, but the driver is still at work (stacks below): ending now; the "
        "next process repeats that work",
        _END_SECONDS,
    )
    faulthandler.dump_traceback(all_threads=True)
    os._exit(1)


async def serve(
    driver: Driver,
    settings: PluginSettings,
    resources: Resources | AsyncIterable[Resources] | None,
    *,
    kubeconfig: str | PathLike[str] | None = None,
    interceptors: Sequence[Interceptor] = (),
    beside: Callable[[KubeletPlugin], AbstractAsyncContextManager[object]] = nullcontext,
) -> None:
    """Run the plugin until SIGINT or SIGTERM, then stop it cleanly.

    ``resources`` that come and go are an asynchronous iterator, of which each value replaces the one before; None
    leaves the slices to a controller of the driver.
    ``beside`` is entered while the plugin runs, for other work of the driver (probes, watching hardware).
    A process that has not ended 15 s after the signal is ended with exit code 1.
    Raises ``dra_kube.ConnectionSettingsError``, StartError, or the ``Fatal`` error that ended the plugin.
    """
    if resources is None:
        settings = replace(settings, publishes=False)
    start_traces(settings.driver_name, **{"k8s.node.name": settings.node_name})
    stopped = asyncio.Event()
    with _signals(asyncio.get_running_loop(), stopped):
        async with (
            Api(connection(kubeconfig), user_agent=settings.driver_name) as api,
            KubeletPlugin(driver, settings, api, interceptors=interceptors) as plugin,
            beside(plugin),
        ):
            await _first(plugin.wait(), stopped.wait(), _publish(plugin, driver, resources))
            log.info("stopping")


@contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> Iterator[None]:
    """Until the block ends a signal sets ``stopped``; the process then ends soon, also if the loop is blocked."""

    def stop(number: int, _frame: object) -> None:
        end_soon()
        loop.call_soon_threadsafe(stopped.set)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _publish(
    plugin: KubeletPlugin, driver: Driver, resources: Resources | AsyncIterable[Resources] | None
) -> None:
    """Publish all that comes, and then wait to be cancelled. Raises DevicesFailed for what an iterator raises."""
    if isinstance(resources, AsyncIterable):
        try:
            async for current in resources:
                await plugin.publish(current)
        except (Exception, *ENDINGS) as error:
            if isinstance(error, PluginError) or (isinstance(error, ENDINGS) and is_ending()):
                raise
            log.error("the driver's devices failed", exc_info=error)
            failed = DevicesFailed(error)
            driver.handle_error(failed, "the plugin cannot continue")
            raise failed from error
    elif resources is not None:
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
