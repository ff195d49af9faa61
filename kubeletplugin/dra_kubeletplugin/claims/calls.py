"""The kubelet's calls without gRPC: fetch the claims, wait for a turn, prepare or unprepare each.

Spec: PH-08, PH-09. A claim that cannot be fetched fails the whole call, which the kubelet repeats; a claim that the
driver cannot handle fails alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from dra_api.codec import DecodeError, convert
from dra_api.resource import ResourceClaim
from dra_kube import RESOURCE_CLAIMS, Api, NotFound

from dra_kubeletplugin.driver import ClaimRef, PrepareResults, UnprepareResults
from dra_kubeletplugin.errors import ClaimError, ClaimNotAllocated, ClaimReplaced

from .lock import Turns
from .prepared import PreparedClaims

Result = TypeVar("Result")


class NodeCalls:
    """What all versions of the gRPC service do."""

    def __init__(self, prepared: PreparedClaims, api: Api, turns: Turns) -> None:
        self._prepared = prepared
        self._api = api
        self._turns = turns

    async def prepare(self, refs: Sequence[ClaimRef]) -> PrepareResults:
        """The devices of each claim, or its error. Raises ClaimError or KubeError when the whole call fails."""
        claims = await asyncio.gather(*(fetch_claim(self._api, ref) for ref in refs))
        return await self._each("prepare", refs, [partial(self._prepared.prepare, claim) for claim in claims])

    async def unprepare(self, refs: Sequence[ClaimRef]) -> UnprepareResults:
        """None or the error for each claim."""
        return await self._each("unprepare", refs, [partial(self._prepared.unprepare, ref) for ref in refs])

    async def _each(
        self, call: str, refs: Sequence[ClaimRef], steps: Sequence[Callable[[], Awaitable[Result]]]
    ) -> dict[str, Result]:
        async def work() -> dict[str, Result]:
            return {ref.uid: await step() for ref, step in zip(refs, steps, strict=True)}

        what = f"{call} of claim {', '.join(map(str, refs))}"
        return await self._turns.run(what, [ref.uid for ref in refs], work)


async def fetch_claim(api: Api, ref: ClaimRef) -> ResourceClaim:
    """The allocated claim as it is in the API server. Raises ClaimError or KubeError."""
    try:
        claim = convert(ResourceClaim, await api.get(RESOURCE_CLAIMS, ref.name, ref.namespace))
    except NotFound as error:
        raise ClaimError(f"claim {ref} does not exist any more") from error
    except DecodeError as error:
        raise ClaimError(f"claim {ref} is malformed: {error}") from error
    if claim.status.allocation is None:
        raise ClaimNotAllocated(f"claim {ref} not allocated")
    if claim.metadata.uid != ref.uid:
        raise ClaimReplaced(f"claim {ref} got replaced")
    return claim
