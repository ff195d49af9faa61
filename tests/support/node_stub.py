"""What kubelets do to pods, without nodes: bound pods run, and deleted ones are gone at once.

A pod with the annotation ``test/seconds`` is done after so many.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from dra_kube import PODS, Api, Conflict, NotFound, Object, Unreachable

RUNS_SECONDS: Final = "test/seconds"
_ENDING: Final[set[asyncio.Task[None]]] = set()


@asynccontextmanager
async def node_stub(api: Api) -> AsyncIterator[None]:
    """Acts for all nodes of the cluster meanwhile."""
    task = asyncio.create_task(_keep_following(api))
    try:
        yield
    finally:
        task.cancel()
        for ending in _ENDING:
            ending.cancel()
        await asyncio.wait((task, *_ENDING))
        if not task.cancelled():
            task.result()


async def _keep_following(api: Api) -> None:
    while True:
        with suppress(Unreachable):  # it begins anew, as a kubelet does
            await _follow(api)
        await asyncio.sleep(0.1)


async def _follow(api: Api) -> None:
    pods, revision = await api.list(PODS)
    for pod in pods:
        await _act(api, pod)
    while True:
        async for event in api.watch(PODS, resource_version=revision):
            revision = event.object["metadata"]["resourceVersion"]
            if event.type in ("ADDED", "MODIFIED"):
                await _act(api, event.object)


async def _act(api: Api, pod: Object) -> None:
    meta = pod["metadata"]
    if not pod["spec"].get("nodeName"):
        return
    with suppress(NotFound, Conflict):  # the pod is gone, or another one has its name
        if "deletionTimestamp" in meta:
            await api.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"], grace_seconds=0)
        elif pod.get("status", {}).get("phase", "Pending") == "Pending":
            patch = {"metadata": {"uid": meta["uid"]}, "status": {"phase": "Running"}}
            await api.patch(PODS, meta["name"], patch, meta["namespace"], subresource="status")
            if seconds := (meta.get("annotations") or {}).get(RUNS_SECONDS):
                ending = asyncio.create_task(_end(api, meta, float(seconds)))
                _ENDING.add(ending)
                ending.add_done_callback(_ENDING.discard)


async def _end(api: Api, meta: Object, seconds: float) -> None:
    await asyncio.sleep(seconds)
    with suppress(NotFound, Conflict):
        patch = {"metadata": {"uid": meta["uid"]}, "status": {"phase": "Succeeded"}}
        await api.patch(PODS, meta["name"], patch, meta["namespace"], subresource="status")
