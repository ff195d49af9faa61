"""Lists and watches the ResourceSlices of a publisher, over and over, until cancelled.

A watch that ends resumes where it stopped. One that is too far behind, that failed, or whose list is half an hour old
starts over with a new list, because an event may have been lost. That a watch is too far behind is no failure, but a
server whose memory is too short for its changes says so each time: the next list waits a second as well. Each failure
is reported; the interval before the next attempt doubles, and is at least what the API server asks for. Spec: RS-01.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

from dra_kube import RESOURCE_SLICES, Api, ApiError, Gone, KubeError

from dra_kubeletplugin.errors import WatchFailed, with_remedy

from .writer import spread

log = logging.getLogger(__name__)
Object = dict[str, Any]

_PAUSE_SECONDS = 1.0  # between watches, and the first one after a failure
_LONGEST_PAUSE_SECONDS = 30.0
_LIST_SECONDS = 1800.0


async def follow_slices(
    api: Api,
    field_selector: str,
    *,
    on_list: Callable[[list[Object], str], Awaitable[None]],
    on_event: Callable[[str, Object], None],
    on_error: Callable[[WatchFailed], None],
) -> None:
    """Report the slices that the selector matches, first as a list with its version, then change by change."""
    pause = _PAUSE_SECONDS
    while True:
        try:
            objects, version = await api.list(RESOURCE_SLICES, fieldSelector=field_selector)
            await on_list(objects, version)
            pause = _PAUSE_SECONDS
            old = time.monotonic() + _LIST_SECONDS
            while True:
                version = await _watch(api, field_selector, version, on_event)
                await asyncio.sleep(spread(_PAUSE_SECONDS))
                if time.monotonic() > old:
                    break
        except Gone:
            await asyncio.sleep(spread(_PAUSE_SECONDS))
        except Exception as error:
            if not isinstance(error, KubeError):
                log.exception("watching ResourceSlices")  # a bug of ours, or an answer that is no list of slices
            failure = WatchFailed(f"cannot watch the ResourceSlices with {field_selector}: {with_remedy(error)}")
            failure.__cause__ = error
            on_error(failure)
            asked = (error.retry_after if isinstance(error, ApiError) else None) or 0.0
            await asyncio.sleep(spread(max(pause, asked)))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


async def _watch(api: Api, field_selector: str, version: str, on_event: Callable[[str, Object], None]) -> str:
    """One watch; returns the resourceVersion from which the next one resumes."""
    events = api.watch(RESOURCE_SLICES, resource_version=version, fieldSelector=field_selector)
    async with aclosing(events):  # type: ignore[type-var]  # declared as an iterator, is a generator
        async for event, obj in events:
            version = obj["metadata"]["resourceVersion"]
            if event != "BOOKMARK":
                on_event(event, obj)
            await asyncio.sleep(0)  # the next event may be there already, and a large slice takes milliseconds
    return version
