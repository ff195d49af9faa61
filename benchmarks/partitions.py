"""Partitions of eight GPUs under random arrivals and departures: which placement leaves least in vain.

A request for a partition is *refused in vain* when no placement is free although one GPU has as many free slices as it
needs; or, counted more strictly, all GPUs together have. The first order takes the lowest free placement, as the
reference does; the second what destroys least of what the mix may still ask. Both see the same requests, and the mix
is learned from them.

    .venv/bin/python benchmarks/partitions.py
    .venv/bin/python benchmarks/partitions.py --orders reference,rearranged

``rearranged`` is no order of the allocator: running partitions are moved at each request, so that it fits if it can fit
at all. So it tells what better placements could give at most, and which profiles more use costs. Where free slices lie
has no meaning then: nothing is counted as in vain on one GPU. ``partitions_exhaustive.py`` compares with the best
placement there is, on one GPU.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, Final

from dra_api.codec import convert
from dra_api.core import Node
from dra_api.resource import AllocationResult, DeviceClass, DeviceRequestAllocationResult, ResourceClaim, ResourceSlice
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Allocated, Allocator, Features, Inventory, Usage

PLACEMENTS: Final = {
    "1g": [(start, 1) for start in range(7)],
    "2g": [(start, 2) for start in (0, 2, 4)],
    "3g": [(0, 4), (4, 4)],
    "4g": [(0, 4)],
    "7g": [(0, 8)],
}
"""Profile -> the first memory slice and the number of memory slices of each placement (A100, 40 GB)."""
SLICES: Final = {"1g": 1, "2g": 2, "3g": 3, "4g": 4, "7g": 7}
"""The slices of compute of each profile, of which a GPU has seven."""
MIXES: Final[dict[str, dict[str, float]]] = {
    "even": {"1g": 1, "2g": 1, "3g": 1, "4g": 1, "7g": 1},
    "small": {"1g": 6, "2g": 3, "3g": 1, "4g": 0.5, "7g": 0.2},
    "middle": {"1g": 1, "2g": 3, "3g": 4, "4g": 1, "7g": 0.2},
    "two kinds": {"1g": 4, "3g": 2},
    "halves": {"1g": 2, "3g": 2, "4g": 2},
    "large": {"1g": 3, "2g": 1, "4g": 2, "7g": 2},
}
LOAD: Final = 0.75
"""The slices that would be in use if every request were served, as a part of all."""


def node_with(gpus: int) -> tuple[Inventory, Node]:
    """A node that publishes every placement of its GPUs."""
    features = Features()
    inventory = Inventory(features, language=CelSelectors(features))
    inventory.put_class(convert(DeviceClass, {"metadata": {"name": "mig"}, "spec": {}}))
    for number in range(gpus):
        inventory.put_slice(convert(ResourceSlice, _counters(number)))
        inventory.put_slice(convert(ResourceSlice, _partitions(number)))
    return inventory, convert(Node, {"metadata": {"name": "n1"}})


def _about(number: int) -> dict[str, Any]:
    return {
        "driver": "gpu.example.com",
        "nodeName": "n1",
        "pool": {"name": f"gpu-{number}", "generation": 1, "resourceSliceCount": 2},
    }


def _counters(number: int) -> dict[str, Any]:
    counters = {f"memory-slice-{at}": {"value": "1"} for at in range(8)} | {"compute-slices": {"value": "7"}}
    sets = [{"name": "gpu", "counters": counters}]
    return {"metadata": {"name": f"counters-{number}"}, "spec": {**_about(number), "sharedCounters": sets}}


def _partitions(number: int) -> dict[str, Any]:
    devices = []
    for profile, placements in PLACEMENTS.items():
        for start, size in placements:
            counters = {f"memory-slice-{at}": {"value": "1"} for at in range(start, start + size)}
            counters["compute-slices"] = {"value": str(SLICES[profile])}
            devices.append(
                {
                    "name": f"mig-{profile}-{start}",
                    "attributes": {"profile": {"string": profile}},
                    "consumesCounters": [{"counterSet": "gpu", "counters": counters}],
                }
            )
    return {"metadata": {"name": f"partitions-{number}"}, "spec": {**_about(number), "devices": devices}}


@cache
def claim_for(profile: str) -> ResourceClaim:
    """A claim for one partition."""
    expression = f'device.attributes["gpu.example.com"].profile == "{profile}"'
    exactly = {
        "deviceClassName": "mig",
        "allocationMode": "ExactCount",
        "count": 1,
        "selectors": [{"cel": {"expression": expression}}],
    }
    requests = [{"name": "partition", "exactly": exactly}]
    metadata = {"name": profile, "namespace": "default", "uid": profile}
    return convert(ResourceClaim, {"metadata": metadata, "spec": {"devices": {"requests": requests}}})


@dataclass(frozen=True, slots=True)
class Request:
    """One partition from a time on, for so long."""

    arrival: float
    profile: str
    duration: float


def requests(mix: Mapping[str, float], number: int, gpus: int, seed: int) -> Iterator[Request]:
    """Random ones, at a rate that makes the load."""
    random = Random(f"{seed}/{sorted(mix.items())}")
    profiles, weights = list(mix), list(mix.values())
    mean = sum(SLICES[it] * weight for it, weight in mix.items()) / sum(weights)
    rate, now = LOAD * 7 * gpus / mean, 0.0
    for _ in range(number):
        now += random.expovariate(rate)
        yield Request(now, random.choices(profiles, weights)[0], random.expovariate(1))


@dataclass
class Outcome:
    """What became of the requests."""

    requests: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    in_vain: int = 0
    """One GPU had as many free slices."""
    in_vain_together: int = 0
    """All GPUs together had."""
    served: float = 0.0
    """Slices times their time."""
    asked: float = 0.0

    def percent(self, refusals: int) -> float:
        return 100 * refusals / self.requests.total()

    @property
    def percent_served(self) -> float:
        return 100 * self.served / self.asked


def rearranged(mix: Mapping[str, float], number: int, gpus: int, seed: int) -> Outcome:
    """All requests, where running partitions are moved so that a request fits if it can."""
    outcome = Outcome()
    counts: Counter[str] = Counter()
    running: list[tuple[float, str]] = []
    for request in requests(mix, number, gpus, seed):
        while running and running[0][0] <= request.arrival:
            counts[heapq.heappop(running)[1]] -= 1
        size = SLICES[request.profile]
        outcome.requests[request.profile] += 1
        outcome.asked += size * request.duration
        if can_lie_together(counts + Counter([request.profile]), gpus):
            counts[request.profile] += 1
            outcome.served += size * request.duration
            heapq.heappush(running, (request.arrival + request.duration, request.profile))
        else:
            outcome.refused[request.profile] += 1
            outcome.in_vain_together += 7 * gpus - sum(SLICES[it] * of for it, of in counts.items()) >= size
    return outcome


def can_lie_together(counts: Mapping[str, int], gpus: int) -> bool:
    """Whether some placement has room for so many of each profile.

    A GPU has a low half, where 4g or 3g or four 1g lie, and a high half for 3g or three 1g; a 2g takes the place of
    two 1g, and one at most lies in the high half. A 3g takes a high half first, where it wastes nothing.
    """
    high = gpus - counts["7g"]
    low = high - counts["4g"] - max(0, counts["3g"] - high)
    high = max(0, high - counts["3g"])
    return low >= 0 and 2 * low + high >= counts["2g"] and 4 * low + 3 * high - 2 * counts["2g"] >= counts["1g"]


def run(order: str, mix: Mapping[str, float], number: int, gpus: int, seed: int) -> Outcome:
    """All requests by one order of devices."""
    if order == "rearranged":
        return rearranged(mix, number, gpus, seed)
    inventory, node = node_with(gpus)
    allocator = Allocator(inventory, new_share_id=str, order=order)
    usage, outcome = Usage(), Outcome()
    running: list[tuple[float, int, int, AllocationResult]] = []
    free, numbers = dict.fromkeys([f"gpu-{number}" for number in range(gpus)], 7), itertools.count()
    for request in requests(mix, number, gpus, seed):
        while running and running[0][0] <= request.arrival:
            _, _, size, result = heapq.heappop(running)
            usage.remove(result)
            free[partition_of(result).pool] += size
        size, claims = SLICES[request.profile], [claim_for(request.profile)]
        allocator.learned.learn(allocator.compile(claims))
        outcome.requests[request.profile] += 1
        outcome.asked += size * request.duration
        found = allocator.allocate(node, claims, usage)
        if isinstance(found, Allocated):
            usage.add(found.results[0])
            free[partition_of(found.results[0]).pool] -= size
            outcome.served += size * request.duration
            heapq.heappush(running, (request.arrival + request.duration, next(numbers), size, found.results[0]))
        else:
            outcome.refused[request.profile] += 1
            outcome.in_vain += max(free.values()) >= size
            outcome.in_vain_together += sum(free.values()) >= size
    return outcome


def partition_of(result: AllocationResult) -> DeviceRequestAllocationResult:
    """The one partition that was allocated."""
    (partition,) = result.devices.results or ()
    return partition


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=4000, help="for each mix (%(default)s)")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--orders", default="reference,least-loss", help="two orders to compare (%(default)s)")
    options = parser.parse_args()
    one, other = options.orders.split(",")
    print(f"{'mix':<10} {'in vain, one GPU':>27} {'in vain, together':>27} {'served slices':>20}  refused, by profile")
    ratios = []
    for name, mix in MIXES.items():
        first, second = (run(it, mix, options.requests, options.gpus, options.seed) for it in (one, other))
        pairs = [(first.in_vain, second.in_vain), (first.in_vain_together, second.in_vain_together)]
        ratios.append([after / max(1, before) for before, after in pairs])
        cells = [
            f"{first.percent(before):>8.2f} % {second.percent(after):>6.2f} % {ratio:>6.2f}"
            for (before, after), ratio in zip(pairs, ratios[-1], strict=True)
        ]
        refused = ", ".join(f"{it} {first.refused[it]} -> {second.refused[it]}" for it in mix)
        served = f"{first.percent_served:>8.2f} % {second.percent_served:>7.2f} %"
        print(f"{name:<10} {cells[0]} {cells[1]} {served}  {refused}", flush=True)
    means = [sum(it) / len(it) for it in zip(*ratios, strict=True)]
    print(f"mean of the ratios: {means[0]:.2f} on one GPU, {means[1]:.2f} on all together")


if __name__ == "__main__":
    main()
