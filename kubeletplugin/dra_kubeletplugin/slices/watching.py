"""Follows the ResourceSlices of a publisher until cancelled (``dra_kube.reflector``). Spec: RS-01."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from dra_kube import RESOURCE_SLICES, Api, Change, Gone, Pauses, Reflector

from dra_kubeletplugin.errors import WatchFailed, with_remedy

Object = dict[str, Any]

_PAUSE_SECONDS = 1.0  # before the first new attempt; many nodes come back together when the API server does
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
    """Report the slices that the selector matches, first as a list with its version, then change by change.

    That a watch is too far behind is no failure; every other one is reported.
    """
    found: list[Object] = []

    async def receive(change: Change) -> None:
        if change.event == "LISTED":
            found.append(change.object())
        else:
            on_event(change.event, change.object())

    async def listed(version: str) -> None:
        objects = found.copy()
        found.clear()
        await on_list(objects, version)

    def failed(error: Exception) -> None:
        found.clear()  # of a list that was not completed
        if not isinstance(error, Gone):
            failure = WatchFailed(f"cannot watch the ResourceSlices with {field_selector}: {with_remedy(error)}")
            failure.__cause__ = error
            on_error(failure)

    await Reflector(
        api,
        RESOURCE_SLICES,
        receive,
        listed=listed,
        failed=failed,
        pauses=Pauses(_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS),
        list_seconds=_LIST_SECONDS,
        fieldSelector=field_selector,
    ).run()
