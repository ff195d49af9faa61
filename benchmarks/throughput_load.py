"""The load: nodes, slices and classes to furnish a cluster with, pods that ask for devices, and their phases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from dra_kube import (
    DEVICE_CLASSES,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    AlreadyExists,
    Api,
    Gone,
    KubeError,
    NotFound,
    Resource,
)
from waiting import until

Json = dict[str, Any]
DRIVER = "gpu.example.com"
NAMESPACE = "bench"
CREATORS = 16
DEADLINE = 900.0  # seconds that a phase may take
SLOW_PODS = 20.0  # per second; many pods may take longer
_MODEL = f'device.attributes["{DRIVER}"].model'
_REQUESTS: dict[str, tuple[int, Json, Json]] = {
    "plain": (1, {}, {}),
    "selector": (1, {"selectors": [{"cel": {"expression": f'{_MODEL} == "A"'}}]}, {}),
    "match": (2, {"count": 2}, {"constraints": [{"matchAttribute": f"{DRIVER}/root"}]}),
}
REQUESTS = tuple(_REQUESTS)


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a scheduler. ``sharing`` pods use one claim; 1: each has its own, from a template."""

    nodes: int
    devices: int
    request: str
    sharing: int
    clients: int
    pods: int
    """Pods of one steady state."""
    waiting: int
    """Pods that are there before the scheduler starts; with them nothing else is measured."""
    cpu: str = "64"
    """What a node has; each pod asks for 100m."""

    @property
    def capacity(self) -> int:
        """The claims that fit into the cluster."""
        return self.nodes * (self.devices // _REQUESTS[self.request][0])


def furniture(load: Load) -> Iterator[tuple[Resource, Json]]:
    """A class, a template, nodes, and a slice for each."""
    yield NAMESPACES, {"metadata": {"name": NAMESPACE}}
    expression = f'device.driver == "{DRIVER}"'
    yield DEVICE_CLASSES, {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    yield RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "gpu", "namespace": NAMESPACE}, "spec": {"spec": _spec(load)}}
    for number in range(load.nodes):
        name = f"node-{number:05}"
        yield NODES, {"metadata": {"name": name}, "status": {"allocatable": {"cpu": load.cpu, "pods": "110"}}}
        yield RESOURCE_SLICES, {"metadata": {"name": f"{name}-gpu"}, "spec": _published(name, load.devices)}


def _published(node: str, devices: int) -> Json:
    attributes = {"model": {"string": "A"}, "root": {"string": f"{node}-root"}}
    return {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{number}", "attributes": attributes} for number in range(devices)],
    }


def _spec(load: Load) -> Json:
    _, extra, constraints = _REQUESTS[load.request]
    return {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", **extra}}], **constraints}}


async def furnish(api: Api, load: Load) -> None:
    """Create what is not there yet."""

    async def make(item: tuple[Resource, Json]) -> None:
        resource, body = item
        with suppress(AlreadyExists):
            await api.create(resource, body)

    await for_each(furniture(load), make)


async def for_each(items: Iterable[Any], work: Callable[[Any], Awaitable[object]], clients: int = CREATORS) -> None:
    """The same work on all items, a few at a time."""
    left = iter(items)

    async def one() -> None:
        for item in left:
            await work(item)

    await asyncio.gather(*(one() for _ in range(clients)))


class Pods:
    """Creates pods of one scheduler and takes the time from before the creation until the watch shows a node."""

    def __init__(self, api: Api, load: Load, scheduler: str, prefix: str) -> None:
        self._api, self._load, self._scheduler, self._prefix = api, load, scheduler, prefix
        self._created: dict[str, float] = {}
        self._bound: dict[str, asyncio.Event] = {}
        self._count = 0
        self.latencies: list[float] = []

    @classmethod
    @asynccontextmanager
    async def watched(cls, api: Api, load: Load, scheduler: str, prefix: str) -> AsyncIterator[Pods]:
        """Ready to create pods."""
        pods = cls(api, load, scheduler, prefix)
        _, version = await api.list(PODS, NAMESPACE)
        watch = asyncio.create_task(pods._watch(version))
        try:
            yield pods
        finally:
            watch.cancel()
            await asyncio.wait((watch,))

    def names(self, count: int) -> list[str]:
        """Names of pods that do not exist yet."""
        self._count += count
        return [f"{self._prefix}-{number:05}" for number in range(self._count - count, self._count)]

    async def create(self, name: str) -> None:
        """Create a pod; remembers the moment before."""
        claim: Json = {"resourceClaimTemplateName": "gpu"}
        if self._load.sharing > 1:
            claim = {"resourceClaimName": self._claim_of(name)}
        self._bound[name] = asyncio.Event()
        self._created[name] = time.perf_counter()
        await self._api.create(PODS, _pod(name, self._scheduler, claim))

    def _claim_of(self, name: str) -> str:
        return f"{self._prefix}-{int(name.rpartition('-')[2]) // self._load.sharing:05}"

    def start_clocks(self) -> None:
        """Times count from now, not from the creation."""
        self._created = dict.fromkeys(self._created, time.perf_counter())

    async def create_claims(self, names: Iterable[str]) -> None:
        """The claims that several pods share."""
        bodies = [
            {"metadata": {"name": claim, "namespace": NAMESPACE}, "spec": _spec(self._load)}
            for claim in sorted({self._claim_of(name) for name in names})
        ]
        await for_each(bodies, lambda body: self._api.create(RESOURCE_CLAIMS, body))

    async def bound(self, name: str) -> None:
        """Wait until the pod has a node."""
        await self._bound[name].wait()

    def __len__(self) -> int:
        return len(self._bound)

    async def all_bound(self) -> None:
        """Wait until all pods have a node."""
        for bound in self._bound.values():
            await bound.wait()

    async def delete(self, name: str) -> None:
        """Delete a pod at once: no kubelet has to end it."""
        await self._api.delete(PODS, name, NAMESPACE, grace_seconds=0)

    async def _watch(self, version: str) -> None:
        while True:
            with suppress(KubeError):  # a server ends the watch of a client that is too slow
                async for event in self._api.watch(PODS, NAMESPACE, resource_version=version):
                    self._saw(event.object)
            pods, version = await self._api.list(PODS, NAMESPACE)
            for pod in pods:
                self._saw(pod)

    def _saw(self, pod: Json) -> None:
        name = pod["metadata"].get("name", "")  # a bookmark has none
        known = self._bound.get(name)
        if known is not None and not known.is_set() and pod["spec"].get("nodeName"):
            self.latencies.append(time.perf_counter() - self._created[name])
            known.set()


def _pod(name: str, scheduler: str, claim: Json) -> Json:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "100m"}, "claims": [{"name": "g"}]}}
    spec = {
        "schedulerName": scheduler,
        "containers": [container],
        "resourceClaims": [{"name": "g", **claim}],
        "tolerations": [{"operator": "Exists"}],  # a node controller taints nodes that have no kubelet
        "terminationGracePeriodSeconds": 0,
    }
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


async def fill(pods: Pods, load: Load, count: int) -> None:
    """So many pods at once; ends when all have a node."""
    names = pods.names(count)
    if load.sharing > 1:
        await pods.create_claims(names)
    async with asyncio.timeout(DEADLINE):
        await for_each(names, pods.create)
        for name in names:
            await pods.bound(name)


async def wait_for_all(pods: Pods) -> None:
    """Wait until all pods have a node."""
    async with asyncio.timeout(max(DEADLINE, len(pods) / SLOW_PODS)):
        await pods.all_bound()


async def steady(pods: Pods, load: Load) -> None:
    """A few clients, each with one pod at a time: create it, wait for its node, delete it."""

    async def one(name: str) -> None:
        await pods.create(name)
        await pods.bound(name)
        await pods.delete(name)

    async with asyncio.timeout(DEADLINE):
        await for_each(pods.names(load.pods), one, load.clients)


async def clean(api: Api, load: Load) -> None:
    """Delete all pods, and wait until their claims are gone too: by then all devices were given back."""

    async def delete(resource: Resource, obj: Json) -> None:
        with suppress(NotFound):
            await api.delete(resource, obj["metadata"]["name"], NAMESPACE, grace_seconds=0)

    async def listed(resource: Resource) -> list[Json]:
        while True:
            with suppress(Gone):  # so much changes that the server has no next page
                return (await api.list(resource, NAMESPACE))[0]

    async def gone(resource: Resource) -> bool:
        return not await listed(resource)

    async with asyncio.timeout(DEADLINE):
        for resource in (PODS, RESOURCE_CLAIMS):
            objects = await listed(resource)
            if resource is PODS or load.sharing > 1:
                await for_each(objects, partial(delete, resource))
            await until(f"no {resource.plural} left", partial(gone, resource), DEADLINE)
        await api.delete_collection(EVENTS, NAMESPACE)
