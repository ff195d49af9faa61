"""Writes the changes of one pod's status, in the order in which they happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dra_kube import PODS, Api, Conflict, NotFound

from dra_devcluster.clock import now

from .pod_status import PodView, changes, status_of

Json = dict[str, Any]


class PodReporter:
    """``view`` returns the pod as it should be reported, ``known`` the object as last seen; ``take`` gets the object
    that the API server returns.
    """

    def __init__(
        self,
        api: Api,
        address: str,
        start_time: str,
        *,
        view: Callable[[], PodView],
        known: Callable[[], Json],
        take: Callable[[Json], None],
    ) -> None:
        self.dirty = asyncio.Event()
        self._api = api
        self._address = address
        self._start_time = start_time
        self._view = view
        self._known = known
        self._take = take
        self._writing = asyncio.Lock()

    async def report(self) -> None:
        """Write the differences between the desired and the known status, if there are any.

        Raises KubeError, but not for a pod that is gone or was replaced by another one of its name.
        """
        async with self._writing:
            obj = self._known()
            meta = obj["metadata"]
            desired = status_of(self._view(), self._address, self._start_time)
            patch = changes(desired, obj.get("status") or {}, now())
            if not patch:
                return
            body = {"metadata": {"uid": meta["uid"]}, "status": patch}
            with suppress(NotFound, Conflict):
                self._take(
                    await self._api.patch(
                        PODS, meta["name"], body, meta["namespace"], kind="strategic", subresource="status"
                    )
                )

    async def finish(self, reporting: asyncio.Task[None]) -> None:
        """End the task that reports, but not during a write: a write that is cut off may arrive after the next one."""
        async with self._writing:
            reporting.cancel()
