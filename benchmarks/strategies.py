"""Placement strategies side by side: what a cluster takes before it is full, and the processor time of each decision.

Pods arrive until they have asked for all GPUs of the cluster, the same in the same order for each strategy; what does
not fit is gone, and nothing leaves. The operator's own scheduling cycle decides, on ResourceSlices and claims, with a
mix that it learns as pods come. The time is that of the cycle alone, without Kubernetes.

Without a trace, nodes have eight GPUs that can be shared, and pods ask for a part of a GPU, one, two, four or eight.
The pods and nodes of a trace are those of ``dra-operator simulate --trace``, in the same order for a seed.

    python benchmarks/strategies.py
    python benchmarks/strategies.py --nodes 5000 --strategies first-fit,frag
    python examples/trace/full.py
    python benchmarks/strategies.py examples/trace/pods.csv examples/trace/nodes.csv --strategies frag,fgd --seeds 42-45
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Allocator, Features, Inventory
from dra_operator.cache import Cluster
from dra_operator.quality.trace import (
    WHOLE_MILLI,
    Shape,
    TraceError,
    TraceNode,
    TracePod,
    read_nodes,
    read_pods,
    read_seeds,
    workload,
)
from dra_operator.scheduling import PLACEMENT_STRATEGIES, CycleState, Placement
from dra_operator.scheduling.claims import ExtendedResources, PodClaim
from dra_operator.scheduling.cycle.attempt import Attempt
from dra_operator.scheduling.cycle.filter import Plan
from dra_operator.scheduling.cycle.select_host import best

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from trace_objects import DEVICE_CLASS, claim_of, node_of, pod_of, slice_of

NODE: Final = TraceNode("", cpu=128_000, memory=1 << 20, gpus=8, model="A")
PODS_OF_A_NODE: Final = 1000
"""Never short; ``first-fit`` weighs them like cpu and memory."""
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


class Load(NamedTuple):
    """Pods in the order of their arrival, and empty nodes in the order that decides among equals."""

    pods: Sequence[TracePod]
    nodes: Sequence[TraceNode]

    @property
    def milli(self) -> int:
        """Thousandths of GPUs of all nodes."""
        return sum(node.gpus for node in self.nodes) * WHOLE_MILLI


class Result(NamedTuple):
    """One strategy's run."""

    allocated: float
    """Part of all GPUs, in percent."""
    refused: int
    microseconds: float
    """Mean processor time per pod."""
    last: float
    """The same for the last tenth of the pods."""


def load_of_shares(nodes: int, demand: float, seed: int) -> Load:
    """Equal nodes, and pods of few kinds, for which cpu is never short, until they ask for that part of the GPUs."""
    random, kinds, weights = Random(seed), list(SHARES), list(SHARES.values())
    load = Load([], [NODE] * nodes)
    pods: list[TracePod] = []
    asked = 0
    while asked < demand * load.milli:
        milli, gpus = random.choices(kinds, weights)[0]
        pods.append(TracePod("", 1024, Shape(1000, milli, gpus, "")))
        asked += milli * gpus
    return load._replace(pods=pods)


def cluster_of(nodes: Sequence[TraceNode]) -> Cluster:
    """Empty nodes; their names keep their order."""
    features = Features()
    cluster = Cluster(Inventory(features, language=CelSelectors(features)))
    cluster.apply(convert(DeviceClass, DEVICE_CLASS))
    for place, node in enumerate(nodes):
        name = f"node-{place:05}"
        cluster.apply(convert(Node, node_of(name, node, PODS_OF_A_NODE)))
        cluster.apply(convert(ResourceSlice, slice_of(name, node)))
    return cluster


@cache
def claim_for(shape: Shape) -> ResourceClaim:
    """A claim; one object for all pods of a kind."""
    return convert(ResourceClaim, claim_of(f"{shape.milli}-{shape.gpus}-{shape.spec}", shape))


def run(strategy: str, load: Load) -> Result:
    """Fills a cluster."""
    cluster = cluster_of(load.nodes)
    numbers = iter(range(10**9))
    allocator = Allocator(cluster.inventory, new_share_id=lambda: str(next(numbers)))
    placement, placed, refused, times = Placement(strategy), 0, 0, []
    gc.collect()
    gc.freeze()
    for number, it in enumerate(load.pods):
        claims = [claim_for(it.shape._replace(cpu=0))] if it.shape.gpus else []
        pod = convert(Pod, pod_of(f"pod-{number}", it))
        began = time.process_time()
        if claims:
            allocator.learned.learn(allocator.compile(claims), it.shape.cpu)
        found = _placed(_state(cluster, allocator, pod, claims), placement)
        if found is not None:
            cluster.assume_placed(pod, found.node)
            for allocation in found.allocations.values():
                cluster.allocated_devices.usage.add(allocation)
        times.append(time.process_time() - began)
        placed += it.shape.total if found is not None else 0
        refused += found is None
    tenth = times[-len(times) // 10 :]
    return Result(100 * placed / load.milli, refused, 1e6 * sum(times) / len(times), 1e6 * sum(tenth) / len(tenth))


def _state(cluster: Cluster, allocator: Allocator, pod: Pod, claims: Sequence[ResourceClaim]) -> CycleState:
    held = tuple(PodClaim(claim.metadata.name, claim) for claim in claims)
    usage = cluster.allocated_devices.usage.snapshot()
    return CycleState(pod, held, ExtendedResources(pod, {}), cluster.loaded_nodes(), allocator, usage)


def _placed(state: CycleState, placement: Placement) -> Plan | None:
    attempt = Attempt(state, math.inf, None, placement)
    for _ in attempt.search():
        pass
    return best(attempt.fits, attempt.question.scores) if attempt.fits else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="*", type=Path, metavar="FILE", help="two CSVs: the pods of a trace, its nodes")
    parser.add_argument("--nodes", type=int, default=200, help="without a trace (200)")
    parser.add_argument("--demand", type=float, default=100, metavar="PERCENT", help="of the GPUs (100)")
    parser.add_argument("--strategies", default=",".join(PLACEMENT_STRATEGIES))
    parser.add_argument("--seeds", type=read_seeds, default=range(42, 43), help="such as 42-51 (42)")
    options = parser.parse_args()
    if unknown := set(options.strategies.split(",")).difference(PLACEMENT_STRATEGIES):
        parser.error(f"--strategies: no {', '.join(sorted(unknown))}; there are {', '.join(PLACEMENT_STRATEGIES)}")
    if len(options.trace) not in (0, 2):
        parser.error("a trace has two files: one with pods and one with nodes")
    try:
        tables = [path.open() for path in options.trace]
        trace = (read_pods(tables[0]), read_nodes(tables[1])) if tables else None
    except (OSError, TraceError) as error:
        parser.error(str(error))
    demand = options.demand / 100
    print("strategy   seed  allocated  refused  µs a pod  last tenth  ratio")
    for seed in options.seeds:
        first = 0.0
        played = workload(*trace, seed, demand) if trace else None
        load = Load(played.arrivals, played.nodes) if played else load_of_shares(options.nodes, demand, seed)
        for strategy in options.strategies.split(","):
            found = run(strategy, load)
            first = first or found.microseconds
            figures = f"{found.allocated:>8.2f} % {found.refused:>8} {found.microseconds:>9.0f} {found.last:>11.0f}"
            print(f"{strategy:<10} {seed:>4} {figures} {found.microseconds / first:>6.2f}", flush=True)


if __name__ == "__main__":
    main()
