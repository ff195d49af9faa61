"""Placement strategies side by side: what a cluster takes before it is full, and the processor time of each decision.

Nodes with eight GPUs that can be shared are filled by pods that ask for a part of a GPU, one, two, four or eight: the
same pods in the same order for each strategy, until they have asked for all GPUs of the cluster. Pods that do not fit
are gone. Nothing leaves. The time is that of the scheduling cycle alone, without Kubernetes.

    .venv/bin/python benchmarks/strategies.py
    .venv/bin/python benchmarks/strategies.py --nodes 5000 --strategies first-fit,frag
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Final, NamedTuple

from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_operator.allocator import Allocator, Features, Inventory
from dra_operator.cache import Cluster
from dra_operator.cel_language import CelSelectors
from dra_operator.scheduling import PLACEMENT_STRATEGIES, CycleState, Placement, Plan, decided, plan
from dra_operator.scheduling.claims import ExtendedResources, PodClaim

GPUS: Final = 8
SHARES: Final = {
    (200, 1): 12,
    (300, 1): 10,
    (400, 1): 8,
    (500, 1): 12,
    (650, 1): 6,
    (1000, 1): 36,
    (1000, 2): 6,
    (1000, 4): 5,
    (1000, 8): 5,
}
"""(Thousandths of a GPU, GPUs) -> how many pods of a hundred."""


class Result(NamedTuple):
    """One strategy's run."""

    allocated: float
    """Part of all GPUs, in percent."""
    refused: int
    microseconds: float
    """Processor time for each pod, in the mean."""
    last: float
    """The same for the last tenth of the pods that were placed."""


def cluster_of(nodes: int) -> Cluster:
    """Empty nodes."""
    features = Features()
    cluster = Cluster(Inventory(features, language=CelSelectors(features)))
    cluster.apply(convert(DeviceClass, {"metadata": {"name": "gpu"}, "spec": {}}))
    devices = [
        {"name": f"gpu-{number}", "allowMultipleAllocations": True, "capacity": {"milli": {"value": "1000"}}}
        for number in range(GPUS)
    ]
    for number in range(nodes):
        name = f"node-{number:04d}"
        allocatable = {"cpu": "128", "memory": "1Ti", "pods": "200"}
        cluster.apply(convert(Node, {"metadata": {"name": name}, "status": {"allocatable": allocatable}}))
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu.example.com", "nodeName": name, "pool": pool, "devices": devices}
        cluster.apply(convert(ResourceSlice, {"metadata": {"name": name}, "spec": spec}))
    return cluster


@cache
def claim_for(milli: int, count: int) -> ResourceClaim:
    """A claim; one object for all pods of a kind."""
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
    exactly |= {"capacity": {"requests": {"milli": str(milli)}}}
    name = f"share-{milli}-{count}"
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    return convert(ResourceClaim, {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec})


def pods(nodes: int, seed: int) -> Iterator[tuple[Pod, ResourceClaim, int]]:
    """Pods that ask for all GPUs of the cluster, each with its claim and thousandths."""
    random, asked, number = Random(seed), 0, 0
    kinds, weights = list(SHARES), list(SHARES.values())
    while asked < nodes * GPUS * 1000:
        milli, count = random.choices(kinds, weights)[0]
        asked, number = asked + milli * count, number + 1
        resources = {"requests": {"cpu": "1", "memory": "1Gi"}}
        metadata = {"name": f"pod-{number}", "namespace": "default", "uid": f"pod-{number}"}
        spec = {
            "containers": [{"name": "main", "resources": resources}],
            "schedulerName": "dra-scheduler",
        }
        yield convert(Pod, {"metadata": metadata, "spec": spec}), claim_for(milli, count), milli * count


def run(strategy: str, nodes: int, seed: int) -> Result:
    """Fills a cluster."""
    cluster = cluster_of(nodes)
    numbers = iter(range(10**9))
    allocator = Allocator(cluster.inventory, new_share_id=lambda: str(next(numbers)))
    placement, placed, refused, times = Placement(strategy), 0, 0, []
    usage = cluster.allocated_devices.usage
    gc.collect()
    gc.freeze()
    for pod, claim, milli in pods(nodes, seed):
        began = time.process_time()
        allocator.learned.learn(allocator.compile([claim]))
        found = decided(plan(_case(cluster, allocator, pod, claim), placement=placement))
        if isinstance(found, Plan):
            (allocation,) = found.allocations.values()
            usage.add(allocation)
            cluster.assume_placed(pod, found.node)
            placed += milli
            times.append(time.process_time() - began)
        else:
            refused += 1
    tenth = times[-len(times) // 10 :]
    return Result(placed / (nodes * GPUS * 10), refused, 1e6 * sum(times) / len(times), 1e6 * sum(tenth) / len(tenth))


def _case(cluster: Cluster, allocator: Allocator, pod: Pod, claim: ResourceClaim) -> CycleState:
    claims = (PodClaim(claim.metadata.name, claim),)
    usage = cluster.allocated_devices.usage.snapshot()
    return CycleState(
        pod, claims, ExtendedResources(pod, {}), cluster.loaded_nodes(), allocator, usage, cluster.claims.get
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strategies", default=",".join(PLACEMENT_STRATEGIES))
    options = parser.parse_args()
    print(f"{'strategy':<10} {'allocated':>10} {'refused':>8} {'µs a pod':>9} {'last tenth':>11} {'times first':>12}")
    first = 0.0
    for strategy in options.strategies.split(","):
        found = run(strategy, options.nodes, options.seed)
        first = first or found.microseconds
        print(
            f"{strategy:<10} {found.allocated:>8.2f} % {found.refused:>8} {found.microseconds:>9.0f} "
            f"{found.last:>11.0f} {found.microseconds / first:>12.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
