"""Lists the claims before pods are bound to devices that another scheduler allocates, too.

The watch of claims does not say whether it is broken or late. So pods whose devices are contested wait until the view
has a list that was asked for after their grace (``reconcile.confirmation`` says why that is enough). One list serves
all pods that wait. A failed one is repeated. A cluster without another scheduler is never listed.

Lists take a fifth of the time at most: the next one waits ``REST`` times as long as the last one took.
"""

from __future__ import annotations

import asyncio
import logging

from dra_api.resource import ResourceClaim
from dra_kube import RESOURCE_CLAIMS, Api, KubeError

from dra_operator.intake.malformed import Quarantine
from dra_operator.reconcile import Control

logger = logging.getLogger(__name__)

PAUSE = 0.1  # seconds between two lists, at least; or after a failed one, ten times as many
REST = 4.0


class LastLook:
    """``run`` until cancelled."""

    def __init__(self, api: Api, control: Control, quarantine: Quarantine) -> None:
        self._api, self._control, self._quarantine = api, control, quarantine

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
                logger.debug("list of claims put off: %s", error)
                await asyncio.sleep(10 * PAUSE)
                wanted.set()
            else:
                self._control.listed(began)
                await asyncio.sleep(max(PAUSE, REST * (time() - began)))

    async def _take_in_all(self) -> None:
        listed = await self._api.list_as(RESOURCE_CLAIMS, ResourceClaim)
        for raw, error in listed.malformed:
            self._quarantine.take(RESOURCE_CLAIMS, raw, error)
        # The devices of a salvaged claim count already; the watch says when it is mended.
        self._control.load(claim for claim in listed.items if claim.key not in self._quarantine.salvaged)
