"""Nodes without kubelets.

Behind a bare node nothing runs: it is a Node that is ready, and its Lease. A node lifecycle controller taints a node
whose Lease it has not seen renewed for 50 s, and writes that its conditions are Unknown. As a kubelet does, each beat
writes the condition Ready again when it was changed; the controller takes its taints off then.

The stub does to pods what kubelets do: bound pods run, and deleted ones are gone at once. A pod with the annotation
``test/seconds`` is done after so many.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Final

from dra_kube import LEASES, NODES, PODS, Api, Conflict, NotFound, Object, Unreachable

_NAMESPACE = "kube-node-lease"
_READY = {"type": "Ready", "status": "True"}


@asynccontextmanager
async def bare_node(
    api: Api,
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    pods: int = 500,
    renewal_seconds: float = 10.0,
) -> AsyncIterator[Object]:
    """It exists meanwhile, with room for so many pods."""
    room = {"cpu": "64", "memory": "256Gi", "pods": str(pods)}
    status = {"conditions": [_READY], "capacity": room, "allocatable": room}
    node = await api.create(NODES, {"metadata": {"name": name, "labels": dict(labels or {})}, "status": status})
    beat = asyncio.create_task(_renew(api, node, renewal_seconds), name=f"heartbeat of {name}")
    try:
        yield node
    finally:
        beat.cancel()
        await asyncio.wait((beat,))
        with suppress(NotFound):
            await api.delete(NODES, name)
        if not beat.cancelled():
            beat.result()


async def _renew(api: Api, node: Object, seconds: float) -> None:
    name = node["metadata"]["name"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
    metadata = {"name": name, "namespace": _NAMESPACE, "ownerReferences": [owner]}
    await api.create(
        LEASES, {"metadata": metadata, "spec": {"holderIdentity": name, "leaseDurationSeconds": int(4 * seconds)}}
    )
    while True:
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        with suppress(Unreachable):  # the next beat tries again, as a kubelet does
            await api.patch(LEASES, name, {"spec": {"renewTime": now}}, _NAMESPACE)
            await _stay_ready(api, name)
        await asyncio.sleep(seconds)


async def _stay_ready(api: Api, name: str) -> None:
    """Write Ready again if it is not True; the other conditions, which nothing here reads, go."""
    with suppress(NotFound):  # a test deletes its node at times
        status = (await api.get(NODES, name)).get("status") or {}
        conditions = status.get("conditions") or []
        if not any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions):
            await api.patch(NODES, name, {"status": {"conditions": [_READY]}}, subresource="status")


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
