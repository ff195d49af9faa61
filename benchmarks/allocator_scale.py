"""Many nodes: from the placement of one pod down to a changed slice, on the operator's own view of a cluster."""

from __future__ import annotations

import gc
import itertools
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgspec
from allocator_lab import claim, device, device_class, pool, request
from allocator_measure import Result, micros
from dra_api.codec import convert, decode
from dra_api.core import Node, Pod
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Allocator, Features, Inventory
from dra_operator.app.operator import settle_memory
from dra_operator.cache import Cluster
from dra_operator.scheduling import CycleState, NoPlace, Plan, decided, plan
from dra_operator.scheduling.claims import ExtendedResources, PodClaim

Json = dict[str, Any]
DEVICES = 8
CLASSES = {
    "gpu": 'device.driver == "drv" && device.attributes["drv"].model == "A"',
    "big": 'device.capacity["drv"].memory.compareTo(quantity("40Gi")) >= 0',
    "new": 'device.attributes["drv"].firmware.isGreaterThan(semver("1.2.0"))',
}
WANTED = {
    "at once": "true",
    "only on the last node": 'device.attributes["drv"].site == "last"',
    "not at all": 'device.attributes["drv"].site == "nowhere"',
}
POD = convert(Pod, {"metadata": {"name": "pod", "namespace": "default", "uid": "pod"}, "spec": {"containers": []}})


def slice_of(node: str, site: str, generation: int = 1) -> Json:
    """What a driver publishes for its node."""
    devices = [
        device(
            f"gpu-{number}",
            model="A" if number % 2 else "B",
            site=site,
            serial=f"{node}-{number}",
            extra={},
            capacity={"memory": "80Gi" if number % 4 else "16Gi"},
        )
        for number in range(DEVICES)
    ]
    for made in devices:
        made["attributes"]["firmware"] = {"version": "1.2.3"}
    (slice_,) = pool(*devices, name=node, nodeName=node)
    slice_["spec"]["pool"]["generation"] = generation
    return slice_


def names(nodes: int) -> Iterator[str]:
    """The names of so many nodes."""
    return (f"node-{number:05}" for number in range(nodes))


def slices_of(nodes: int) -> list[ResourceSlice]:
    """One slice for each node, decoded from JSON as when they come from the API server."""
    encoded = [
        msgspec.json.encode(slice_of(name, "last" if number == nodes - 1 else "other"))
        for number, name in enumerate(names(nodes))
    ]
    return [decode(ResourceSlice, text) for text in encoded]


def inventory_of(slices: list[ResourceSlice]) -> Inventory:
    """With three classes of selectors."""
    inventory = Inventory(language=CelSelectors(Features()))
    for name, selector in CLASSES.items():
        inventory.put_class(convert(DeviceClass, device_class(name, selector)))
    for slice_ in slices:
        inventory.put_slice(slice_)
    return inventory


def claim_for(selector: str, **fields: Any) -> ResourceClaim:
    """A claim for one device of the class ``gpu``."""
    return convert(ResourceClaim, claim(request("r", selector, deviceClassName="gpu", **fields)))


def placed(cluster: Cluster, allocator: Allocator, wanted: ResourceClaim) -> Plan | NoPlace:
    """One whole decision as the operator takes it, pauses included."""
    return decided(plan(case_of(cluster, allocator, wanted)))


def case_of(cluster: Cluster, allocator: Allocator, wanted: ResourceClaim) -> CycleState:
    """A pod that uses one claim."""
    claims = (PodClaim("entry", wanted),)
    usage, extended = cluster.allocated_devices.usage.snapshot(), ExtendedResources(POD, {})
    return CycleState(POD, claims, extended, cluster.loaded_nodes(), allocator, usage)


def placements(sizes: tuple[int, ...], seconds: float) -> Iterator[Result]:
    """One pod against so many nodes."""
    for size in sizes:
        inventory = inventory_of(slices_of(size))
        cluster = Cluster(inventory)
        allowed = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        for name in names(size):
            metadata = {"name": name, "uid": name, "resourceVersion": "1"}
            cluster.apply(convert(Node, {"metadata": metadata, "status": {"allocatable": allowed}}))
        allocator = Allocator(inventory, new_share_id=map("share-{}".format, itertools.count()).__next__)
        for what, selector in WANTED.items():
            yield from placement(cluster, allocator, what, claim_for(selector), seconds)


def placement(
    cluster: Cluster, allocator: Allocator, what: str, wanted: ResourceClaim, seconds: float
) -> Iterator[Result]:
    """One pod again and again, and the first time, when the claim's selectors are not evaluated yet."""
    size = len(cluster.nodes)
    start = time.process_time()
    made = placed(cluster, allocator, wanted)
    first = (time.process_time() - start) * 1e6
    assert isinstance(made, NoPlace) is (what == "not at all"), what
    again = micros(lambda: placed(cluster, allocator, wanted), seconds=seconds, least=3)
    outcome = "no place" if isinstance(made, NoPlace) else made.node
    target = "5 ms" if size == 5000 else ""
    yield Result("placement of one pod", f"fits {what}", size, again, outcome=outcome, target=target)
    yield Result("placement, first time for this claim", f"fits {what}", size, first, outcome=outcome)
    stall = longest_stall(cluster, allocator, claim_for(f"{WANTED[what]} && {size} > 0"))  # not seen yet
    yield Result("longest stall of a first decision", f"fits {what}", size, stall, target="20 ms")
    index = micros(lambda: candidates(allocator, cluster, wanted), seconds=seconds / 2)
    yield Result("index: which node to try first", f"fits {what}", size, index)


def longest_stall(cluster: Cluster, allocator: Allocator, wanted: ResourceClaim) -> float:
    """Microseconds of wall time between two pauses, at worst: how long the event loop of the operator waits.

    With the settings that the operator gives the garbage collector, which is at work here.
    """
    settle_memory()
    planning = plan(case_of(cluster, allocator, wanted))
    worst, running = 0.0, True
    while running:
        start = time.perf_counter()
        running = next(planning, None) is not None
        worst = max(worst, time.perf_counter() - start)
    return worst * 1e6


def candidates(allocator: Allocator, cluster: Cluster, wanted: ResourceClaim) -> str | None:
    """The first node that the index would try."""
    return next(iter(allocator.candidates([wanted], cluster.allocated_devices.usage)), None)


def one_large_node(seconds: float) -> Result:
    """32 of 1,024 devices of one node."""
    devices = [device(f"d{number:04}", model="A", serial=number) for number in range(1024)]
    slices = []
    for start in range(0, 1024, 128):
        (slice_,) = pool(*devices[start : start + 128])
        slice_["metadata"]["name"] = f"s{start:04}"
        slice_["spec"]["pool"]["resourceSliceCount"] = 8
        slices.append(convert(ResourceSlice, slice_))
    inventory = inventory_of(slices)
    allocator = Allocator(inventory, new_share_id=lambda: "")
    cluster = Cluster(inventory)
    node = convert(Node, {"metadata": {"name": "n1"}})
    wanted = [claim_for("true", count=32)]
    outcome = allocator.allocate(node, wanted, cluster.allocated_devices.usage)
    spent = micros(lambda: allocator.allocate(node, wanted, cluster.allocated_devices.usage), seconds=seconds)
    return Result("one node", "32 of 1,024 devices", 1024, spent, outcome=type(outcome).__name__.lower(), target="1 ms")


def building(nodes: int, seconds: float) -> Iterator[Result]:
    """Inventory, selectors of three classes and a decision from decoded objects; then one slice that changes."""
    slices = slices_of(nodes)
    gc.collect()
    gc.disable()
    start = time.process_time()
    inventory = inventory_of(slices)
    allocator = Allocator(inventory, new_share_id=lambda: "")
    cluster = Cluster(inventory)
    wanted = [convert(ResourceClaim, claim(*(request(name, deviceClassName=name) for name in CLASSES)))]
    found = sum(1 for _ in allocator.candidates(wanted, cluster.allocated_devices.usage))
    spent = time.process_time() - start
    gc.enable()
    assert found == nodes
    what = "slices, 3 classes evaluated, index over nodes"
    yield Result("building", what, nodes, spent, "s", target="3 s" if nodes == 5000 else "")
    changes = itertools.cycle([decode(ResourceSlice, msgspec.json.encode(slice_of("node-00007", "x"))) for _ in "ab"])

    def change() -> None:
        inventory.put_slice(next(changes))
        next(iter(allocator.candidates(wanted, cluster.allocated_devices.usage)))

    yield Result(
        "building", "a slice that changes, index kept up", nodes, micros(change, seconds=seconds), target="1 ms"
    )


def memory(nodes: int) -> Result:
    """What the inventory with its decoded objects, verdicts and index keeps."""
    gc.collect()
    tracemalloc.start()
    inventory = inventory_of(slices_of(nodes))
    allocator = Allocator(inventory, new_share_id=lambda: "")
    wanted = [convert(ResourceClaim, claim(*(request(name, deviceClassName=name) for name in CLASSES)))]
    cluster = Cluster(inventory)
    next(iter(allocator.candidates(wanted, cluster.allocated_devices.usage)))
    for name in names(nodes):
        inventory.view(convert(Node, {"metadata": {"name": name}}))
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    target = "150 MB" if nodes == 5000 else ""
    return Result("building", "memory, objects and views of all nodes included", nodes, kept / 1e6, "MB", target=target)
