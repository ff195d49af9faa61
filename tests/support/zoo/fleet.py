"""The devices of the cage: some for a neighbour, and some of each kind that makes a search hard."""

from __future__ import annotations

from collections.abc import Iterator

from dra_kube import DEVICE_CLASSES, RESOURCE_SLICES, Api, Object

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
