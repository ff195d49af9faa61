"""Read, change, write back: the only way this operator updates an object it does not own alone.

The object is read just before it is written, as a raw dict, so that unknown fields are preserved. ``edit`` decides by
that object, not by the cluster view, which may be outdated. After a conflict (another write came in between) the object
is read again, a few times; then the queue retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dra_kube import Conflict, Object, Resource

from .client import Client

REWRITE_ATTEMPTS = 5
REWRITE_PAUSE_SECONDS = 0.01  # seconds between two attempts (scheduling.md 4.7)

Edit = Callable[[Object], bool]


async def rewrite(
    client: Client,
    resource: Resource,
    namespace: str,
    name: str,
    edit: Edit,
    *,
    subresource: str | None = None,
    known: Object | None = None,
) -> Object:
    """The object after ``edit`` changed it in place; unchanged and unwritten when ``edit`` returns False.

    ``known`` is an object that the server has just answered with, and saves the first read. An error of ``edit`` ends
    the attempt. Raises NotFound, Conflict after the last attempt, and other ``KubeError``.
    """
    for attempt in range(1, REWRITE_ATTEMPTS + 1):
        obj = known if known is not None else await client.get(resource, name, namespace)
        known = None
        if not edit(obj):
            return obj
        try:
            return await client.update(resource, obj, subresource)
        except Conflict:
            if attempt == REWRITE_ATTEMPTS:
                raise
            await asyncio.sleep(REWRITE_PAUSE_SECONDS)
    raise AssertionError("unreachable: the last attempt returns or raises")
