"""Every node asked in turn, as ``simulate`` does: what a node costs in a small cluster and in a large one.

Nodes have eight devices in one slice. A claim asks for one device, for two that agree in an attribute, or for all of
a node. *New*: another kind of claim, which tolerates another taint; its selector was evaluated before. *Again*: nothing
has changed. *Changed*: the node has given away a device since. A node costs the same however many there are, unless
what is known of it was forgotten.

    .venv/bin/python benchmarks/each_node.py [--nodes 1000,5000]
"""

from __future__ import annotations

import argparse
import gc
import itertools
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any, Final

from allocator_lab import claim, device, device_class, pool, request
from dra_api.codec import convert
from dra_api.core import Node
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Allocator, DeviceId, Failed, Features, Inventory, Usage

DEVICES: Final = 8
SELECTOR: Final = 'device.attributes["drv"].model == "A"'
AGREE: Final[dict[str, Any]] = {"constraints": [{"requests": ["r"], "matchAttribute": "drv/root"}]}
WANTED: Final[dict[str, dict[str, Any]]] = {
    "one device": {},
    "two that agree": {"count": 2},
    "all devices": {"allocationMode": "All"},
}


def claim_for(what: str, number: int) -> ResourceClaim:
    """The claims of different numbers are not alike."""
    tolerations = [{"key": f"taint-{number}", "operator": "Exists"}]
    wanted = request("r", SELECTOR, tolerations=tolerations, **WANTED[what])
    return convert(ResourceClaim, claim(wanted, **AGREE if what == "two that agree" else {}))


def cluster(size: int) -> tuple[Allocator, list[Node]]:
    """So many nodes."""
    features = Features()
    inventory = Inventory(features, language=CelSelectors(features))
    inventory.put_class(convert(DeviceClass, device_class("any")))
    names = [f"node-{number:05}" for number in range(size)]
    for name in names:
        devices = [device(f"gpu-{number}", model="A", root=f"root-{number // 4}") for number in range(DEVICES)]
        (slice_,) = pool(*devices, name=name, nodeName=name)
        inventory.put_slice(convert(ResourceSlice, slice_))
    allocator = Allocator(inventory, new_share_id=map("share-{}".format, itertools.count()).__next__)
    return allocator, [convert(Node, {"metadata": {"name": name}}) for name in names]


def asked(allocator: Allocator, nodes: Sequence[Node], wanted: Sequence[ResourceClaim], usage: Usage) -> float:
    """Microseconds of processor time for each node, without the garbage collector."""
    program = allocator.compile(wanted)
    gc.disable()
    start = time.process_time()
    for node in nodes:
        outcome = allocator.allocate(node, program, usage)
        assert not isinstance(outcome, Failed), outcome
    spent = time.process_time() - start
    gc.enable()
    return spent * 1e6 / len(nodes)


def measured(size: int, what: str, rounds: int) -> tuple[float, float, float]:
    """New, again and changed: the lowest of the rounds."""
    allocator, nodes = cluster(size)
    usage = Usage()
    asked(allocator, nodes, [claim_for(what, 0)], usage)
    found = []
    for number in range(rounds):
        new = [claim_for(what, number + 1)]
        times = [asked(allocator, nodes, new, usage) for _ in "ab"]
        for node in nodes:
            usage.take_device(DeviceId("drv", node.metadata.name, f"gpu-{number}"))
        times.append(asked(allocator, nodes, new, usage))
        found.append(times)
    new_kind, again, changed = (min(its) for its in zip(*found, strict=True))
    return new_kind, again, changed


def kept(size: int) -> float:
    """Megabytes that are kept of all nodes after they were asked."""
    allocator, nodes = cluster(size)
    for node in nodes:
        allocator.inventory.view(node)
    gc.collect()
    tracemalloc.start()
    for what in WANTED:
        asked(allocator, nodes, [claim_for(what, 0)], Usage())
    gc.collect()
    found, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return found / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="1000,5000", help="sizes of clusters (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("processor time for each node, in microseconds")
    for what in WANTED:
        for size in map(int, options.nodes.split(",")):
            new, again, changed = measured(size, what, options.rounds)
            print(
                f"{what:<15} {size:>6} nodes: new {new:>6.1f}, again {again:>6.1f}, changed {changed:>6.1f}",
                flush=True,
            )
    for size in map(int, options.nodes.split(",")):
        print(f"kept of {size} nodes that were asked for all three: {kept(size):.1f} MB", flush=True)


if __name__ == "__main__":
    main()
