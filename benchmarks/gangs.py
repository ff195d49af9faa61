"""How long the plan of a gang takes: pods with one device each, on nodes of eight devices.

Prints the seconds of processor time for the plan alone: for a gang that fits, for one that fits in one rack, and for
one that does not fit. Nothing is written.

    python benchmarks/gangs.py 1000
"""

from __future__ import annotations

import argparse
import time

from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Allocator, Features, Inventory, Usage
from dra_operator.scheduling import CycleState, Nodes, NoPlace
from dra_operator.scheduling.claims import ExtendedResources, PodClaim
from dra_operator.scheduling.gang import SameValues, joint_plan
from dra_operator.scheduling.state import LoadedNode

DEVICES = 8
RACK = "example.com/rack"
RACKS = 10


def cluster(count: int) -> tuple[Nodes, Allocator]:
    """So many nodes with eight devices each."""
    inventory = Inventory(language=CelSelectors(Features()))
    expression = "device.driver == 'gpu.example.com'"
    inventory.put_class(
        convert(
            DeviceClass, {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
        )
    )
    states = []
    for number in range(count):
        name = f"node-{number:04}"
        labels = {RACK: str(number % RACKS)}
        offer = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        body = {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": offer}}
        states.append(LoadedNode(convert(Node, body)))
        spec = {
            "driver": "gpu.example.com",
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"gpu-{device}"} for device in range(DEVICES)],
        }
        inventory.put_slice(convert(ResourceSlice, {"metadata": {"name": name}, "spec": spec}))
    return Nodes(states), Allocator(inventory, new_share_id=lambda: "share")


def members(size: int, devices: int, nodes: Nodes, allocator: Allocator) -> list[CycleState]:
    """Equal pods, each with a claim of its own."""
    made, usage = [], Usage()
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": devices}
    for number in range(size):
        meta = {"namespace": "ns", "name": f"pod-{number}", "uid": f"uid-{number}"}
        containers = [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]
        pod = convert(Pod, {"metadata": meta, "spec": {"containers": containers}})
        claim_meta = {**meta, "uid": f"claim-{number}"}
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        claim = convert(ResourceClaim, {"metadata": claim_meta, "spec": spec})
        claims = (PodClaim("gpu", claim),)
        extended = ExtendedResources(pod, {}, None)
        made.append(CycleState(pod, claims, extended, nodes, allocator, usage))
    return made


def measured(states: list[CycleState], topology: str = "") -> tuple[float, float, bool]:
    """Seconds of the plan, the longest piece of it in seconds, and whether it places the gang."""
    planning, began, longest = joint_plan(states, SameValues(topology)), time.process_time(), 0.0
    while True:
        at = time.process_time()
        try:
            next(planning)
        except StopIteration as end:
            now = time.process_time()
            return now - began, max(longest, now - at), not isinstance(end.value, NoPlace)
        longest = max(longest, time.process_time() - at)


def main() -> None:
    """One line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", type=int, nargs="?", default=1000, help="in the cluster (%(default)s)")
    count = parser.parse_args().nodes
    nodes, allocator = cluster(count)
    print(f"{count} nodes with {DEVICES} devices each; seconds of processor time, milliseconds of the longest piece")
    for title, size, devices, topology in (
        ("first plan, with its index", 64, 1, ""),
        ("64 pods, 1 device each", 64, 1, ""),
        ("64 pods, 8 devices each", 64, 8, ""),
        ("64 pods, 8 devices each, one rack", 64, 8, RACK),
        ("512 pods, 1 device each", 512, 1, ""),
        ("512 pods, 8 devices each", 512, 8, ""),
        ("512 pods, 9 devices each: fit nowhere", 512, 9, ""),
    ):
        seconds, longest, fits = measured(members(size, devices, nodes, allocator), topology)
        print(f"{title:40} {seconds:7.3f} s {1000 * longest:6.0f} ms  {'placed' if fits else 'refused'}")


if __name__ == "__main__":
    main()
