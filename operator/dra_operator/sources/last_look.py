"""Lists the claims before pods are bound to devices that another scheduler allocates as well.

The watch of claims does not say whether it is broken or late. So pods whose drivers are shared wait until the cache
has a list that was asked for after their grace (``conflict_check`` says why that is enough). One list serves all pods
that wait. A failed one is repeated. A cluster without another scheduler is never listed.

Lists take a fifth of the time at most: the next one waits ``REST_FACTOR`` times as long as the last one took.
"""

from __future__ import annotations

import asyncio
import logging

from dra_api.resource import ResourceClaim
from dra_kube import RESOURCE_CLAIMS, Api, KubeError

from dra_operator.cache import Source, without_bulk
from dra_operator.controllers import Control

from .malformed import MalformedObjects

logger = logging.getLogger(__name__)

LIST_PAUSE_SECONDS = 0.1  # seconds between two lists, at least; or after a failed one, ten times as many
REST_FACTOR = 4.0


class LastLook:
    """``run`` until cancelled."""

    def __init__(self, api: Api, control: Control, malformed_objects: MalformedObjects) -> None:
        self._api, self._control, self._malformed_objects = api, control, malformed_objects

    async def run(self) -> None:
        """List when a pod waits for it."""
        time, wanted = asyncio.get_running_loop().time, self._control.wants_list
        while True:
            await wanted.wait()
            wanted.clear()
            began = time()
            try:
                await self._take_in_all()
            except KubeError as error:
                logger.debug("list of claims postponed: %s", error)
                await asyncio.sleep(10 * LIST_PAUSE_SECONDS)
                wanted.set()
            else:
                self._control.listed(began)
                await asyncio.sleep(max(LIST_PAUSE_SECONDS, REST_FACTOR * (time() - began)))

    async def _take_in_all(self) -> None:
        listed = await self._api.list_as(RESOURCE_CLAIMS, ResourceClaim, keep=without_bulk)
        for raw, error in listed.malformed:
            self._malformed_objects.take(RESOURCE_CLAIMS, raw, error)
        # The devices of a partially decoded claim count already; the watch says when it is corrected.
        for claim in listed.items:
            if claim.key not in self._malformed_objects.partially_decoded:
                self._control.apply(Source.CONFLICT_CHECK, claim)
