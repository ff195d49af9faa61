"""Prepares and unprepares without gRPC: fetch the claims, wait for a turn, call the driver, check its answer.

Spec: PH-08, PH-09. A claim that cannot be fetched fails the whole call, which the kubelet repeats; a claim that the
driver cannot handle fails alone. The kubelet needs an answer for each claim it named and for no other, so missing
answers are added and others removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TypeVar

from dra_api.codec import DecodeError, convert
from dra_api.resource import ResourceClaim
from dra_kube import RESOURCE_CLAIMS, Api, NotFound

from .driver import ClaimRef, Driver, PrepareResults, UnprepareResults
from .errors import ClaimError, ClaimNotAllocated, ClaimReplaced
from .lock import SerializeLock

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class NodeCalls:
    """What both versions of the gRPC service do."""

    def __init__(self, driver: Driver, api: Api, lock: SerializeLock) -> None:
        self._driver = driver
        self._api = api
        self._lock = lock

    async def prepare(self, refs: Sequence[ClaimRef]) -> PrepareResults:
        """The driver's result for each claim. Raises ClaimError or KubeError when the whole call fails."""
        claims = await asyncio.gather(*(self._fetch(ref) for ref in refs))
        async with self._lock.held():
            answers = await self._driver.prepare(claims)
        return _complete(refs, answers, "prepare")

    async def unprepare(self, refs: Sequence[ClaimRef]) -> UnprepareResults:
        """None or the error for each claim."""
        async with self._lock.held():
            answers = await self._driver.unprepare(refs)
        return _complete(refs, answers, "unprepare")

    async def _fetch(self, ref: ClaimRef) -> ResourceClaim:
        try:
            claim = convert(ResourceClaim, await self._api.get(RESOURCE_CLAIMS, ref.name, ref.namespace))
        except NotFound as error:
            raise ClaimError(f"claim {ref} does not exist any more") from error
        except DecodeError as error:
            raise ClaimError(f"claim {ref} is malformed: {error}") from error
        if claim.status.allocation is None:
            raise ClaimNotAllocated(f"claim {ref} not allocated")
        if claim.metadata.uid != ref.uid:
            raise ClaimReplaced(f"claim {ref} got replaced")
        return claim


def _complete(
    refs: Sequence[ClaimRef], answers: Mapping[str, Answer | Exception], call: str
) -> dict[str, Answer | Exception]:
    asked = {ref.uid for ref in refs}
    for uid in answers.keys() - asked:
        log.error(
            "the driver's %s returned a result for claim uid %s, which was not in the request; ignored", call, uid
        )
    return {
        ref.uid: answers[ref.uid] if ref.uid in answers else ClaimError(f"the driver's {call} gave no result for {ref}")
        for ref in refs
    }
