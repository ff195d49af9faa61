"""Moves one pod: evicts it, and waits for the pod that its controller makes in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from dra_kube import NODES, PODS, Api, Conflict, Forbidden, NotFound, Object, TooManyRequests

from dra_operator.kubectl.whatif.moves import Move

SUCCESSOR_LOOK_SECONDS: Final = 1.0
"""Between two looks at the pods of the controller."""
JSON = Mapping[str, Any]


class Surprise(Exception):
    """Something is not as planned: no further move is made."""


async def moved(api: Api, move: Move, wait_seconds: float, pause_seconds: float = SUCCESSOR_LOOK_SECONDS) -> str:
    """The name of the successor, which runs on the target. Raises Surprise.

    The source is cordoned meanwhile, so that the scheduler does not send the successor back.
    """
    namespace, _, name = move.pod.partition("/")
    try:
        pod = await api.get(PODS, name, namespace)
    except NotFound as error:
        raise Surprise(f"{move.pod} is gone") from error
    if pod["metadata"]["uid"] != move.uid or pod["spec"].get("nodeName") != move.source:
        raise Surprise(f"{move.pod} is another pod than that of the plan")
    owner = _owner(pod)
    known = {
        each["metadata"]["uid"] for each in (await api.list(PODS, namespace, keep=_read))[0] if _owner(each) == owner
    }
    node = await api.get(NODES, move.source)
    is_ours = not node["spec"].get("unschedulable")
    if is_ours:
        await api.patch(NODES, move.source, {"spec": {"unschedulable": True}})
    try:
        await _evicted(api, move, namespace, name)
        return await _successor(api, move, (owner, known), wait_seconds, pause_seconds)
    finally:
        if is_ours:
            await api.patch(NODES, move.source, {"spec": {"unschedulable": None}})


async def _successor(api: Api, move: Move, of: tuple[str, set[str]], wait_seconds: float, pause_seconds: float) -> str:
    """``of``: the UID of the controller, and those of its pods before the eviction."""
    owner, known = of
    namespace = move.pod.partition("/")[0]
    seen = "no successor"
    try:
        async with asyncio.timeout(wait_seconds):
            while True:
                for each in (await api.list(PODS, namespace, keep=_read))[0]:
                    if _owner(each) == owner and each["metadata"]["uid"] not in known:
                        seen = f"its successor {each['metadata']['name']}, which does not run"
                        if _runs_on(each, move):
                            return str(each["metadata"]["name"])
                await asyncio.sleep(pause_seconds)
    except TimeoutError as error:
        raise Surprise(f"{move.pod} was evicted, and after {wait_seconds:g} s there is {seen}") from error


def _runs_on(pod: JSON, move: Move) -> bool:
    """Whether it is ready on the target. Raises Surprise if it is somewhere else, or has failed."""
    node, status = pod["spec"].get("nodeName"), pod.get("status") or {}
    name = pod["metadata"]["name"]
    if node and node != move.target:
        raise Surprise(f"{name}, the successor of {move.pod}, is on {node}, not on {move.target}")
    if status.get("phase") == "Failed":
        raise Surprise(f"{name}, the successor of {move.pod}, has failed")
    is_ready = any((one["type"], one["status"]) == ("Ready", "True") for one in status.get("conditions") or ())
    return bool(node) and (status.get("phase") == "Succeeded" or is_ready)


async def _evicted(api: Api, move: Move, namespace: str, name: str) -> None:
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": move.uid}},
    }
    try:
        await api.create_subresource(PODS, name, "eviction", body, namespace)
    except (TooManyRequests, Conflict, NotFound, Forbidden) as error:
        raise Surprise(f"{move.pod} was not evicted: {error}") from error


def _read(pod: Object) -> Object:
    """Keep what is read of a pod here: a namespace may have hundreds of pods of a megabyte."""
    meta, status = pod["metadata"], pod.get("status") or {}
    owners = [one for one in meta.get("ownerReferences") or () if one.get("controller")]
    conditions = [one for one in status.get("conditions") or () if one["type"] == "Ready"]
    return {
        "metadata": {"name": meta["name"], "uid": meta["uid"], "ownerReferences": owners},
        "spec": {"nodeName": pod["spec"].get("nodeName")},
        "status": {"phase": status.get("phase"), "conditions": conditions},
    }


def _owner(pod: JSON) -> str:
    """The UID of the controller."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((str(one["uid"]) for one in owners if one.get("controller")), "")
