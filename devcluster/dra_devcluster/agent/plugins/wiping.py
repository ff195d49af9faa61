"""Removes ResourceSlices whose plugin is gone (KM-10).

At start all slices of the node go, since no plugin is registered yet. Later a driver's slices go when no
instance of it has been connected for a while. Slices of other nodes and those without a node are never touched.
"""

from __future__ import annotations

import asyncio
import logging
import random

from dra_kube import NODES, RESOURCE_SLICES, Api, KubeError, NotFound

from dra_devcluster.agent.settings import AgentSettings

logger = logging.getLogger(__name__)


class SliceWiper:
    """The pending and running wipes of one node."""

    def __init__(self, api: Api, node_name: str, settings: AgentSettings) -> None:
        self._api = api
        self._node = node_name
        self._settings = settings
        self._at_start: asyncio.Task[None] | None = None
        self._pending: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Wipe everything of this node, in the background."""
        self._at_start = asyncio.create_task(self._wipe(f"spec.nodeName={self._node}"))

    def update(self, driver: str, usable: bool) -> None:
        """A driver's instances changed: cancel its wipe, or schedule one unless one is pending."""
        pending = self._pending.get(driver)
        if usable:
            if pending is not None:
                pending.cancel()
                del self._pending[driver]
        elif pending is None or pending.done():
            self._pending[driver] = asyncio.create_task(self._wipe_later(driver))

    async def close(self) -> None:
        """Drop what is pending."""
        tasks = [task for task in (self._at_start, *self._pending.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wipe_later(self, driver: str) -> None:
        await asyncio.sleep(self._settings.wipe_delay)
        await self._wipe(f"spec.driver={driver},spec.nodeName={self._node}")

    async def _wipe(self, selector: str) -> None:
        for failures in range(1, self._settings.wipe_attempts + 1):
            try:
                await self._api.get(NODES, self._node)
                await self._delete(selector)
                logger.info("node %s: removed stale ResourceSlices (%s)", self._node, selector)
                return
            except KubeError as error:
                logger.warning("node %s: removing ResourceSlices (%s) failed: %s", self._node, selector, error)
            jitter = 1 + random.random() * self._settings.wipe_jitter
            await asyncio.sleep(self._settings.wipe_backoff.pause(failures) * jitter)
        logger.error("node %s: gave up removing ResourceSlices (%s)", self._node, selector)

    async def _delete(self, selector: str) -> None:
        try:
            await self._api.delete_collection(RESOURCE_SLICES, fieldSelector=selector)
        except NotFound:
            return
