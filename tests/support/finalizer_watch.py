"""The invariant that holds during every end-to-end test: an allocated claim has a finalizer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from dra_kube import RESOURCE_CLAIMS, Api


@asynccontextmanager
async def allocated_claims_have_finalizers(api: Api, namespace: str) -> AsyncIterator[None]:
    """Watch the claims of a namespace during the block. Raises AssertionError at its end if one broke the rule."""
    watch = asyncio.create_task(_follow(api, namespace))
    try:
        yield
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch


async def _follow(api: Api, namespace: str) -> None:
    _, revision = await api.list(RESOURCE_CLAIMS, namespace)
    async for event in api.watch(RESOURCE_CLAIMS, namespace, resource_version=revision):
        claim: dict[str, Any] = event.object
        if event.type in ("ADDED", "MODIFIED") and claim.get("status", {}).get("allocation"):
            name = claim["metadata"]["name"]
            assert claim["metadata"].get("finalizers"), f"claim {name} is allocated and has no finalizer"
