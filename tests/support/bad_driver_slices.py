"""How the bad driver publishes: two slices, one with counters and one with devices, looked after all the time."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from bad_driver_devices import PLAIN, pools_of
from bad_driver_node import NETWORK, BadNode, Json
from dra_kube import NODES, RESOURCE_SLICES, Api, Gone, KubeError

PERIOD = 0.1
WATCHES = (
    "it never watches again after 410",
    "it never watches again after an end",
    "variant: it watches instead of looking now and then",
)


class SliceWork:
    """Keeps the slices of the node as they should be."""

    def __init__(self, node: BadNode, api: Api) -> None:
        self._node, self._api, self._has = node, api, node.has
        self._uid = ""
        self._start = node.starts
        self._synced = False
        self._writes = itertools.count()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to publish."""
        found = (await self._api.get(NODES, self._node.place.node))["metadata"]["uid"]
        if self._has("it keeps the uid of its Node"):
            found = self._node.uid = self._node.uid or found
        self._uid = found
        if self._has("it publishes anew at each start"):
            await self.withdraw()
        self._task = asyncio.create_task(self._run())

    async def end(self) -> None:
        """Stop publishing; the slices stay."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def withdraw(self) -> None:
        """Delete the slices."""
        for one in await self._mine():
            await self._delete(one)

    async def _run(self) -> None:
        while True:
            try:
                await self._sync()
                self._synced = True
                if self._has(*WATCHES):
                    await self._watch()
            except KubeError:
                if self._has("it stops publishing when a request fails"):
                    return
            await asyncio.sleep(PERIOD)

    async def _watch(self) -> None:
        """Sync when something changes, until the watch ends; then the caller lists and watches again."""
        has = self._has
        _, version = await self._api.list(RESOURCE_SLICES)
        await self._sync()
        try:
            async for event in self._api.watch(RESOURCE_SLICES, resource_version=version):
                if event.type == "DELETED":
                    await self._sync()
        except Gone:
            if has("it never watches again after 410"):
                await asyncio.Event().wait()
            return
        if has("it never watches again after an end"):
            await asyncio.Event().wait()

    async def _mine(self) -> list[Json]:
        selector = f"spec.driver={self._driver},spec.nodeName={self._node_name}"
        if self._has("it deletes slices of other nodes"):
            selector = f"spec.driver={self._driver}"
        if self._has("it deletes slices of other drivers"):
            selector = f"spec.nodeName={self._node_name}"
        if self._has(NETWORK):
            found, _ = await self._api.list(RESOURCE_SLICES, fieldSelector=f"spec.driver={self._driver}")
            return [one for one in found if one["spec"].get("nodeName") is None]
        return (await self._api.list(RESOURCE_SLICES, fieldSelector=selector))[0]

    async def _delete(self, one: Json) -> None:
        await self._api.delete(RESOURCE_SLICES, one["metadata"]["name"])

    async def _sync(self) -> None:
        has, found = self._has, await self._mine()
        if has("it publishes nothing") or (self._synced and has("it publishes once")):
            return
        if self._start > 1 and has("it publishes at its first start"):
            return
        if self._synced and found and has("it publishes anew when all slices are gone"):
            return
        wanted = self._wanted()
        current: dict[str, Json] = {}
        for one in found:
            key = one["metadata"].get("annotations", {}).get("slice", "")
            if key in wanted and key not in current:
                current[key] = one
            elif not has("it keeps left-over slices"):
                await self._delete(one)
        for key, body in wanted.items():
            if key not in current:
                await self._api.create(RESOURCE_SLICES, body)
            elif self._differs(current[key], body):
                metadata = current[key]["metadata"]
                if has("it writes slices all the time"):
                    metadata["labels"] = {"write": str(next(self._writes))}
                await self._api.update(RESOURCE_SLICES, {"metadata": metadata, "spec": body["spec"]})

    def _differs(self, current: Json, wanted: Json) -> bool:
        if self._has("it writes slices all the time"):
            return True
        if self._synced and self._has("it never corrects a slice"):
            return False
        if not self._synced and self._has("taints are new at each start"):
            return True
        return bool(_without_times(current["spec"]) != _without_times(wanted["spec"]))

    @property
    def _driver(self) -> str:
        return "other-name.example.com" if self._has("it publishes under another name") else self._node.driver_name

    @property
    def _node_name(self) -> str:
        return "localhost" if self._has("it publishes for another node") else self._node.place.node

    def _wanted(self) -> dict[str, Json]:
        has, wanted = self._has, dict[str, Json]()
        for name, offer in pools_of(self._node).items():
            parts: dict[str, Json] = {"devices": {"devices": offer.devices}}
            if offer.counters:
                parts = {"counters": {"sharedCounters": offer.counters}, **parts}
            if has("a device is published twice"):
                parts["more"] = {"devices": [{"name": PLAIN[0]}]}
            pool = {"name": name, "generation": 2, "resourceSliceCount": len(parts)}
            if has("a slice of a pool is missing"):
                pool["resourceSliceCount"] = len(parts) + 1
            if has("it keeps old generations"):
                wanted["old"] = self._slice("old", {**pool, "generation": 1}, {"devices": [{"name": "gone-0"}]})
            wanted |= {f"{name}/{key}": self._slice(f"{name}/{key}", pool, part) for key, part in parts.items()}
        return wanted

    def _slice(self, key: str, pool: Json, part: Json) -> Json:
        has = self._has
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self._node.place.node,
            "uid": self._uid,
            "controller": True,
        }
        metadata: Json = {"generateName": f"{self._driver}-{self._node.place.node}-", "annotations": {"slice": key}}
        if has("its slices have odd names"):
            metadata["generateName"] = "slice-"
        where: Json = {"allNodes": True} if has(NETWORK) else {"nodeName": self._node_name}
        if not has("its slices have no owner", NETWORK):
            metadata["ownerReferences"] = [owner]
        return {"metadata": metadata, "spec": {"driver": self._driver, **where, "pool": pool, **part}}


def _without_times(spec: Json) -> Any:
    devices = [
        {**device, "taints": [{**taint, "timeAdded": ""} for taint in device.get("taints", [])]}
        for device in spec.get("devices", [])
    ]
    return {**spec, "devices": devices}
