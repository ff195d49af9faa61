"""How full a cluster gets with each placement strategy of the operator when the pods of a trace arrive.

The pods and the nodes are those of ``dra-operator simulate --trace``, in the same order for a seed, and so are the
figures: what pods have when all have asked for the GPUs of the cluster once. But here the operator's own scheduling
cycle decides, on ResourceSlices and claims, with a mix that it learns as pods come. Pods that do not fit are gone.

    .venv/bin/python benchmarks/strategies_on_trace.py examples/trace/pods.csv examples/trace/nodes.csv
    .venv/bin/python benchmarks/strategies_on_trace.py PODS.csv NODES.csv --strategies frag,fgd --seeds 42-45
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_operator.allocator import Allocator, Features, Inventory
from dra_operator.cache import Cluster
from dra_operator.cel_language import CelSelectors
from dra_operator.quality.seeds import read_seeds
from dra_operator.quality.trace import WHOLE_MILLI, Shape, TraceNode, TracePod, read_nodes, read_pods
from dra_operator.quality.workload import workload
from dra_operator.scheduling import PLACEMENT_STRATEGIES, CycleState, Placement
from dra_operator.scheduling.claims import ExtendedResources, PodClaim
from dra_operator.scheduling.cycle.attempt import Attempt
from dra_operator.scheduling.cycle.result import Plan

DRIVER: Final = "gpu.example.com"


class Result(NamedTuple):
    """One run."""

    allocated: float
    """Part of all GPUs, in percent."""
    refused: int
    milliseconds: float
    """Processor time for each pod, in the mean."""


def cluster_of(nodes: Sequence[TraceNode]) -> Cluster:
    """Empty nodes; their names keep their order."""
    features = Features()
    cluster = Cluster(Inventory(features, language=CelSelectors(features)))
    cluster.apply(convert(DeviceClass, {"metadata": {"name": "gpu"}, "spec": {}}))
    for place, node in enumerate(nodes):
        name = f"node-{place:05d}"
        allocatable = {"cpu": f"{node.cpu}m", "memory": f"{node.memory}Mi", "pods": "1000"}
        cluster.apply(convert(Node, {"metadata": {"name": name}, "status": {"allocatable": allocatable}}))
        devices = [
            {
                "name": f"gpu-{number}",
                "attributes": {"model": {"string": node.model}},
                "allowMultipleAllocations": True,
                "capacity": {"milli": {"value": str(WHOLE_MILLI)}},
            }
            for number in range(node.gpus)
        ]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
        cluster.apply(convert(ResourceSlice, {"metadata": {"name": name}, "spec": spec}))
    return cluster


@cache
def claim_for(shape: Shape) -> ResourceClaim:
    """A claim; one object for all pods of a kind."""
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": shape.gpus}
    exactly["capacity"] = {"requests": {"milli": str(shape.milli)}}
    if shape.spec:
        expression = f'device.attributes["{DRIVER}"].model in {json.dumps(shape.spec.split("|"))}'
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    name = f"claim-{abs(hash(shape))}"
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    return convert(ResourceClaim, {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec})


def pod_of(number: int, pod: TracePod) -> Pod:
    """The pod of an arrival, without its claim."""
    requests = {"cpu": f"{pod.shape.cpu}m", "memory": f"{pod.memory}Mi"}
    containers = [{"name": "main", "resources": {"requests": requests}}]
    metadata = {"name": f"pod-{number}", "namespace": "default", "uid": f"pod-{number}"}
    return convert(Pod, {"metadata": metadata, "spec": {"containers": containers, "schedulerName": "dra-scheduler"}})


def run(strategy: str, pods: Sequence[TracePod], nodes: Sequence[TraceNode], seed: int) -> Result:
    """Fills a cluster."""
    played = workload(pods, nodes, seed, 1.0)
    cluster = cluster_of(played.nodes)
    numbers = iter(range(10**9))
    allocator = Allocator(cluster.inventory, new_share_id=lambda: str(next(numbers)))
    placement, placed, refused, began = Placement(strategy), 0, 0, time.process_time()
    for number, it in enumerate(played.arrivals):
        claims = [claim_for(it.shape._replace(cpu=0))] if it.shape.gpus else []
        if claims:
            allocator.learned.learn(allocator.compile(claims), it.shape.cpu)
        pod = pod_of(number, it)
        found = _placed(_case(cluster, allocator, pod, claims), placement)
        if found is None:
            refused += 1
            continue
        placed += it.shape.total
        cluster.assume_placed(pod, found.node)
        for allocation in found.allocations.values():
            cluster.allocated_devices.usage.add(allocation)
    spent = time.process_time() - began
    total = sum(node.gpus for node in nodes) * WHOLE_MILLI
    return Result(100 * placed / total, refused, 1000 * spent / len(played.arrivals))


def _case(cluster: Cluster, allocator: Allocator, pod: Pod, claims: Sequence[ResourceClaim]) -> CycleState:
    held = tuple(PodClaim(claim.metadata.name, claim) for claim in claims)
    usage = cluster.allocated_devices.usage.snapshot()
    return CycleState(
        pod, held, ExtendedResources(pod, {}), cluster.loaded_nodes(), allocator, usage, lambda _key: None
    )


def _placed(state: CycleState, placement: Placement) -> Plan | None:
    attempt = Attempt(state, math.inf, lambda _name, _answer: None, placement)
    for _ in attempt.search():
        pass
    return attempt.best() if attempt.fits else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pods", type=Path, help="CSV with pods, as for dra-operator simulate --trace")
    parser.add_argument("nodes", type=Path, help="CSV with nodes")
    parser.add_argument("--strategies", default=",".join(PLACEMENT_STRATEGIES))
    parser.add_argument("--seeds", type=read_seeds, default=range(42, 43), help="such as 42-51")
    options = parser.parse_args()
    with options.pods.open() as pods, options.nodes.open() as nodes:
        trace, machines = read_pods(pods), read_nodes(nodes)
    print(f"{'strategy':<10} {'seed':>4} {'allocated':>10} {'refused':>8} {'ms a pod':>9}")
    for strategy in options.strategies.split(","):
        for seed in options.seeds:
            found = run(strategy, trace, machines, seed)
            figures = f"{found.allocated:>8.2f} % {found.refused:>8} {found.milliseconds:>9.2f}"
            print(f"{strategy:<10} {seed:>4} {figures}", flush=True)


if __name__ == "__main__":
    main()
