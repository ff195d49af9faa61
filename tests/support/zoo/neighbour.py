"""The neighbour of a hostile tenant: a pod a second, each of which goes when it has its node.

    PYTHONPATH=tests/support python -m zoo.neighbour kubeconfig tenant control

A line of its input begins a round, and the next line ends it; in the first namespace is a template ``one``. After a
round it prints a line of JSON: two lists of the seconds that pods waited, from the first that was heard of each until
the news of its node. Those of the first list the operator placed. Those of the second were placed at once by this
process, with the writes that it takes and the news of them: so long the API server alone lets a pod wait. What has no
node a minute after the end of a round never got one.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from dra_kube import (
    DEVICE_CLASSES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Api,
    Gone,
    NotFound,
    Object,
    Unreachable,
    connection,
)
from waiting import NotObserved, becomes
from zoo.asking import request, spec

READY: Final = b"ready\n"
"""The line that says that a round has begun."""
CONTROL: Final = "control"
"""The namespace of the pods that the operator does not place, and the name of their scheduler."""


class Neighbour:
    """``waits`` has one entry for each pod that got a node; ``since``: when the others were heard of first."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._names = (f"visitor-{time.time_ns()}-{number}" for number in itertools.count())
        self.since: dict[str, float] = {}
        self.waits: list[float] = []

    async def come(self) -> None:
        """A pod a second."""
        while True:
            with suppress(Unreachable):  # if it came to be, the watch says so
                await self._api.create(PODS, self._pod(next(self._names)))
            await asyncio.sleep(1.0)

    async def go(self) -> None:
        """Each pod is deleted when it has its node."""
        while True:
            with suppress(Unreachable, Gone):
                pods, revision = await self._api.list(PODS, self._namespace)
                for pod in pods:
                    await self._note(pod)
                async for event in self._api.watch(PODS, self._namespace, resource_version=revision):
                    if event.type in ("ADDED", "MODIFIED"):
                        await self._note(event.object)

    async def _note(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        if name not in self.since:
            self.since[name] = time.monotonic()
            self._heard(name)
        if pod["spec"].get("nodeName") and self.since[name] < math.inf:
            self.waits.append(time.monotonic() - self.since[name])
            self.since[name] = math.inf  # heard of again, it has not come again
            with suppress(NotFound, Unreachable):
                await self._api.delete(PODS, name, self._namespace, grace_seconds=0)

    def _heard(self, name: str) -> None:
        """The pod is there; the operator places it."""

    def _pod(self, name: str) -> Object:
        entry = {"name": "device", "resourceClaimTemplateName": "one"}
        container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "device"}]}}
        body = {"schedulerName": "dra-scheduler", "containers": [container], "resourceClaims": [entry]}
        return {"metadata": {"name": name, "namespace": self._namespace}, "spec": body}

    @property
    def waiting(self) -> int:
        return sum(since < math.inf for since in self.since.values())


class Control(Neighbour):
    """Places its pods itself, with a claim for each that asks for no device there is.

    It waits for the watch of claims, as schedulers do: an API server that is busy with large claims answers a write
    at once, and tells of it late.
    """

    def __init__(self, api: Api, namespace: str) -> None:
        super().__init__(api, namespace)
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: dict[str, asyncio.Event] = {}
        """By resourceVersion of a claim: whether the watch has brought it."""

    async def hear(self) -> None:
        """Take in the news of claims."""
        while True:
            with suppress(Unreachable, Gone):
                claims, revision = await self._api.list(RESOURCE_CLAIMS, self._namespace)
                for claim in claims:
                    self._event(claim).set()
                async for event in self._api.watch(RESOURCE_CLAIMS, self._namespace, resource_version=revision):
                    self._event(event.object).set()

    def _event(self, claim: Object) -> asyncio.Event:
        return self._told.setdefault(claim["metadata"]["resourceVersion"], asyncio.Event())

    def _pod(self, name: str) -> Object:
        body = {"schedulerName": CONTROL, "containers": [{"name": "main", "image": "none"}]}
        return {"metadata": {"name": name, "namespace": self._namespace}, "spec": body}

    def _heard(self, name: str) -> None:
        task = asyncio.create_task(self._place(name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _place(self, name: str) -> None:
        """Make a claim, record it, allocate and reserve, bind: four writes in turn, and the news of two."""
        api, namespace = self._api, self._namespace
        meta: Object = {"name": name, "namespace": namespace}
        claim = await api.create(RESOURCE_CLAIMS, {"metadata": meta, "spec": spec(request("req", kind="nothing"))})
        await self._event(claim).wait()
        said = {"conditions": [{"type": "Recorded", "status": "True"}]}
        await api.patch(PODS, name, {"status": said}, namespace, subresource="status")
        claim = await api.patch(RESOURCE_CLAIMS, name, {"metadata": {"labels": {"allocated": "yes"}}}, namespace)
        await self._event(claim).wait()
        node = {"apiVersion": "v1", "kind": "Node", "name": "node-0"}
        binding: Object = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": node}
        await api.create_subresource(PODS, name, "binding", binding, namespace)
        await api.delete(RESOURCE_CLAIMS, name, namespace)


async def main(kubeconfig: Path, namespace: str, control: str) -> None:
    """Come and go in rounds until the input ends."""
    async with Api(connection(kubeconfig), timeout=150.0) as api:
        while await asyncio.to_thread(sys.stdin.readline):
            await _round(api, namespace, control)


async def _round(api: Api, namespace: str, control: str) -> None:
    both = (Neighbour(api, namespace), Control(api, control))
    going = [asyncio.create_task(it) for it in (*(one.go() for one in both), both[1].hear())]
    coming = [asyncio.create_task(it.come()) for it in both]
    print(READY.decode(), end="", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for task in coming:
        task.cancel()
    with suppress(NotObserved):
        await becomes(lambda: not any(it.waiting for it in both))
    for task in going:
        task.cancel()
    await asyncio.wait((*going, *coming))
    for it in (namespace, control):
        await api.delete_collection(PODS, it)
    print(json.dumps([[*it.waits, *[math.inf] * it.waiting] for it in both]), flush=True)


# --- The devices of the cage: some for a neighbour, and some of each kind that makes a search hard ---

CLASSES = ("gpu", "hard", "part", "share", "visitor")
"""A class for the devices of each driver; the class ``nothing`` means none of them."""


async def publish(api: Api, nodes: list[str]) -> None:
    """Classes, and the slices of five drivers on each node."""
    for name in CLASSES:
        await _class(api, name, f"device.driver == '{name}.example.com'")
    await _class(api, "nothing", "device.driver.startsWith('nothing')")
    for node in nodes:
        for body in (*_plain(node), *_hard(node), *_partitions(node), *_shares(node)):
            await api.create(RESOURCE_SLICES, body)


async def _class(api: Api, name: str, expression: str) -> None:
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    await api.create(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": spec})


def _slice(node: str, kind: str, part: int, parts: int, **content: object) -> Object:
    pool = {"name": f"{node}-{kind}", "generation": 1, "resourceSliceCount": parts}
    spec = {"driver": f"{kind}.example.com", "nodeName": node, "pool": pool, **content}
    return {"metadata": {"name": f"{node}-{kind}-{part}"}, "spec": spec}


def _plain(node: str) -> Iterator[Object]:
    """128 devices that the tenants ask for, and 64 for the neighbour."""
    devices = [
        {"name": f"gpu-{number}", "attributes": {"index": {"int": number}, "model": {"string": f"m{number % 4}"}}}
        for number in range(128)
    ]
    yield _slice(node, "gpu", 0, 1, devices=devices)
    yield _slice(node, "visitor", 0, 1, devices=[{"name": f"visitor-{number}"} for number in range(64)])


def _hard(node: str) -> Iterator[Object]:
    """48 devices whose values differ, are shared by three or by four, or are one of eight."""

    def attributes(number: int) -> Object:
        return {
            "unique": {"string": f"{node}-{number}"},
            "four": {"int": number // 4},
            "three": {"int": number // 3},
            "eight": {"int": number % 8},
            "list": {"strings": [f"a{number % 5}", f"b{number % 7}", f"c{number}"]},
        }

    yield _slice(node, "hard", 0, 1, devices=[{"name": f"hard-{n}", "attributes": attributes(n)} for n in range(48)])


def _partitions(node: str) -> Iterator[Object]:
    """40 partitions of a device, of which eight fit at a time; which eight, a search must find out."""
    counters = {"memory": {"value": "1000"}, "cores": {"value": "1000"}}
    yield _slice(node, "part", 0, 2, sharedCounters=[{"name": "device", "counters": counters}])

    def consumed(number: int) -> Object:
        return {"memory": {"value": str(112 + number % 13)}, "cores": {"value": str(112 + number * 5 % 13)}}

    devices = [
        {"name": f"part-{n}", "consumesCounters": [{"counterSet": "device", "counters": consumed(n)}]}
        for n in range(40)
    ]
    yield _slice(node, "part", 1, 2, devices=devices)


def _shares(node: str) -> Iterator[Object]:
    """16 devices that many claims share, by steps of a prime number of bytes."""
    step = 1_000_003
    policy = {"default": str(step), "validRange": {"min": str(step), "step": str(step)}}
    memory = {"memory": {"value": str(step * 1_000), "requestPolicy": policy}}
    devices = [{"name": f"share-{n}", "allowMultipleAllocations": True, "capacity": memory} for n in range(16)]
    yield _slice(node, "share", 0, 1, devices=devices)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("namespace", help="of the pods that the operator places")
    parser.add_argument("control", help="the namespace of the others")
    given = parser.parse_args()
    asyncio.run(main(given.kubeconfig, given.namespace, given.control))
