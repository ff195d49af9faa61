"""Problems for the allocator's benchmark, in the shape of the corpora's cases: all on one node, ``n1``.

The hard families are those on which an exhaustive search explodes: every device looks suitable for every
request, and only all choices together show that they are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from allocator_lab import claim, device, device_class, pool, request

Json = dict[str, Any]
Family = Callable[[int], Json]
GATES = (
    "DRAAdminAccess",
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions",
    "DRADeviceTaints",
    "DRAPartitionableDevices",
    "DRAPrioritizedList",
    "DRAResourceClaimDeviceStatus",
)
MODEL_A = 'device.attributes["drv"].model == "A"'


def case(slices: Sequence[Json], *claims: Json, classes: Sequence[Json] = ()) -> Json:
    """A problem with the gates that Kubernetes enables."""
    return {
        "features": list(GATES),
        "classes": list(classes) or [device_class("any", 'device.driver == "drv"')],
        "slices": list(slices),
        "claims": list(claims),
        "nodes": [{"metadata": {"name": "n1"}}],
    }


def matched(attribute: str, *requests: str) -> Json:
    """All devices of these requests have the same value."""
    return {"matchAttribute": f"drv/{attribute}", "requests": list(requests)}


def claims_for(requests: Sequence[Json]) -> list[Json]:
    """Claims of at most 32 requests, which is the limit of results."""
    return [claim(*requests[start : start + 32], name=f"c{start}") for start in range(0, len(requests), 32)]


def pigeonhole(size: int) -> Json:
    """So many requests on one device fewer; every selector matches every device."""
    devices = [device(f"d{i:02}", model="A", serial=i) for i in range(size - 1)]
    return case(pool(*devices), *claims_for([request(f"r{i}", MODEL_A) for i in range(size)]))


def chain(size: int, *, solvable: bool) -> Json:
    """Layers of four devices, two of each colour; neighbouring layers must agree in colour, the last has only red.

    Blue comes first, so a plain search walks all ways through the blue devices before it meets the last layer.
    """
    layers = size // 4
    last = "red" if solvable else "green"
    devices = [
        device(f"d{layer:02}-{n}", layer=layer, serial=4 * layer + n, **colours(layer, last if end else colour))
        for layer in range(layers)
        for n, colour in enumerate(("blue", "blue", "red", "red"))
        for end in [layer == layers - 1]
    ]
    wanted = [request(f"r{layer}", f'device.attributes["drv"].layer == {layer}') for layer in range(layers)]
    links = [matched(f"link{layer}", f"r{layer}", f"r{layer + 1}") for layer in range(layers - 1)]
    return case(pool(*devices), claim(*wanted, constraints=links))


def colours(layer: int, colour: str) -> Json:
    """The attributes that link a device to the layers before and behind."""
    return {f"link{layer - 1}": colour, f"link{layer}": colour}


def distinct(size: int) -> Json:
    """One device more than there are values, all of which must differ."""
    values = size // 2
    devices = [device(f"d{i:02}", slot=i % values, serial=i) for i in range(size)]
    constraint = {"distinctAttribute": "drv/slot", "requests": []}
    wanted = [request(f"r{i}") for i in range(min(values + 1, 32))]
    if values + 1 > 32:
        devices = [device(f"d{i:02}", slot=i % 31, serial=i) for i in range(size)]
    return case(pool(*devices), claim(*wanted, constraints=[constraint]))


def partitions(size: int) -> Json:
    """GPUs of 7 slices cut into partitions of 1, 2, 3 or 7; two of 3 fit each, one more is wanted."""
    gpus = max(1, size // 8)
    counters = {f"gpu{gpu}": {"slices": 7, "memory": 8} for gpu in range(gpus)}
    devices = [
        device(f"g{gpu}-{width}-{start}", width=width, consumes={f"gpu{gpu}": {"slices": width, "memory": width}})
        for gpu in range(gpus)
        for width, starts in ((1, 4), (2, 2), (3, 1), (7, 1))
        for start in range(starts)
    ]
    devices += [
        device(f"g{gpu}-3-1", width=3, consumes={f"gpu{gpu}": {"slices": 3, "memory": 3}}) for gpu in range(gpus)
    ]
    wide = 'device.attributes["drv"].width == 3'
    return case(pool(*devices, counters=counters), *claims_for([request(f"r{i}", wide) for i in range(2 * gpus + 1)]))


def subsets(size: int) -> Json:
    """A single request for one device more than matches, of up to 32 (32 of 31)."""
    wanted = min(size, 32)
    devices = [device(f"d{i:02}", model="A" if i < wanted - 1 else "B", serial=i) for i in range(size)]
    return case(pool(*devices), claim(request("r", MODEL_A, count=wanted)))


def groups(size: int) -> Json:
    """Four requests that must agree, where each value has three devices."""
    devices = [device(f"d{i:02}", root=i // 3, serial=i) for i in range(size)]
    names = [f"r{i}" for i in range(4)]
    return case(pool(*devices), claim(*map(request, names), constraints=[matched("root", *names)]))


def pairs(size: int) -> Json:
    """Pairs of requests that must agree, one pair more than there are values; no value has devices for two pairs."""
    values = min(size // 4, 15)
    devices = [device(f"d{value:02}-{n}", root=value, serial=n) for value in range(values) for n in range(3)]
    names = [(f"r{pair}a", f"r{pair}b") for pair in range(values + 1)]
    wanted = [request(name) for pair in names for name in pair]
    return case(pool(*devices), claim(*wanted, constraints=[matched("root", *pair) for pair in names]))


def nested(size: int) -> Json:
    """Request i accepts devices 0 to i, and those that accept most come first: one solution."""
    devices = [device(f"d{i:02}", serial=i) for i in range(size)]
    wanted = [request(f"r{i}", f'device.attributes["drv"].serial <= {i}') for i in reversed(range(size))]
    return case(pool(*devices), *claims_for(wanted))


def eighths(size: int) -> Json:
    """GPUs cut as real ones are, memory in eighths; what is wanted fits exactly, with the small partitions first."""
    gpus = max(1, size // 8)
    counters = {f"gpu{gpu}": {"units": 7} | {f"memory-{eighth}": 1 for eighth in range(8)} for gpu in range(gpus)}
    devices = [
        device(f"g{gpu}-{width}-{start}", width=width, consumes={f"gpu{gpu}": {"units": units, **memory}})
        for gpu in range(gpus)
        for width, units, starts in ((1, 1, range(7)), (2, 2, (0, 2, 4)), (4, 3, (0, 4)))
        for start in starts
        for memory in [{f"memory-{eighth}": 1 for eighth in range(start, start + width)}]
    ]
    widths = [1] * 2 * gpus + [2] * gpus + [4] * gpus
    wanted = [request(f"r{i}", f'device.attributes["drv"].width == {width}') for i, width in enumerate(widths)]
    return case(pool(*devices, counters=counters), *claims_for(wanted))


def shares(size: int) -> Json:
    """Devices of 10, shares of 6 and 3: their sum fits, but each device keeps a rest that no request can use."""
    count = size // 4
    multiple = {"allowMultipleAllocations": True}
    devices = [device(f"d{i:02}", capacity={"memory": "10"}, extra=multiple) for i in range(count)]
    amounts = ([6, 3, 3] * count)[: 10 * count // 4]
    wanted = [request(f"r{i}", capacity={"requests": {"memory": str(amount)}}) for i, amount in enumerate(amounts)]
    return case(pool(*devices), *claims_for(wanted))


HARD: dict[str, Family] = {
    "pigeonhole: n requests, n-1 devices": pigeonhole,
    "chain of matchAttribute, late solution": lambda size: chain(size, solvable=True),
    "chain of matchAttribute, no solution": lambda size: chain(size, solvable=False),
    "matchAttribute, groups too small": groups,
    "distinctAttribute, one value too few": distinct,
    "partitions with counters, one too many": partitions,
    "one request for one device too many (32 of 31)": subsets,
    "pairs that must agree, one pair too many": pairs,
    "nested candidates, one solution": nested,
    "GPUs in eighths, an exact fit": eighths,
    "shares that leave a rest": shares,
}
UNSOLVABLE = frozenset(
    what for what, family in HARD.items() if family in (pigeonhole, distinct, groups, partitions, subsets, pairs)
)
"""Families of which counting shows that no problem has a solution, whatever its size."""
