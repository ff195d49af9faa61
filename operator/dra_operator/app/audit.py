"""Deletions that no event told about.

When a watch falls too far behind (410), Kopf lists the kind again and goes on from there; what was deleted in between
is never reported. So after each list that Kopf makes, and at long intervals in any case, the names of what exists are
listed (metadata only), and what the view has beyond them is removed. An object newer than that list is left alone.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from dra_kube import Api, KubeError, Resource

from dra_operator.cluster import revision
from dra_operator.reconcile import Control

from .watched import WATCHED

logger = logging.getLogger(__name__)

INTERVAL = 300.0  # seconds between two audits of everything
QUIET = 1.0  # seconds without an item of a list until the list is taken to be complete


class Audit:
    """``relisted`` says that a list is coming in; ``run`` compares when it is through."""

    def __init__(self, api: Api, control: Control) -> None:
        self._api, self._control = api, control
        self._due: dict[Resource, None] = {}
        self._called = asyncio.Event()

    def relisted(self, resource: Resource) -> None:
        """An item of a list arrived."""
        if resource not in self._due:
            self._due[resource] = None
        self._called.set()

    async def run(self) -> None:
        """Audit for ever."""
        while True:
            try:
                async with asyncio.timeout(INTERVAL):
                    await self._wait_for_quiet()
            except TimeoutError:
                self._due = dict.fromkeys(WATCHED)
                self._control.look_again()
            due, self._due = list(self._due), {}
            for resource in due:
                await self._compare(resource)

    async def _wait_for_quiet(self) -> None:
        await self._called.wait()
        while self._called.is_set():
            self._called.clear()
            await asyncio.sleep(QUIET)

    async def _compare(self, resource: Resource) -> None:
        try:
            listed, at = await self._api.list_metadata(resource)
        except KubeError as error:
            logger.debug("audit of %s put off: %s", resource, error)
            return
        present = {_key(meta): meta.get("uid") for meta in listed}
        kind = WATCHED[resource]
        for obj in list(self._control.cluster.store_of(kind)):
            uid = obj.metadata.uid
            if present.get(obj.key) == uid or not _is_older(obj.metadata.resource_version, at):
                continue
            logger.info("%s %s was deleted while nobody watched", resource.kind, obj.key)
            self._control.remove(kind, obj.key, uid)


def _key(meta: dict[str, Any]) -> str:
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def _is_older(version: str, at: str) -> bool:
    seen, listed = revision(version), revision(at)
    return seen is not None and listed is not None and seen <= listed
