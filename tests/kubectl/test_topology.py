"""The devices of a node as a tree: levels that different drivers publish are joined by their values."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from allocator_lab import device as made_device
from allocator_lab import pool
from dra_api.codec import convert
from dra_api.resource import ResourceSlice
from dra_operator.kubectl.facts import devices_of
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.pipeline import pipeline
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.topology import Branch, Topology
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import fewer

Json = dict[str, Any]
ROOT, NUMA = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"


def device(name: str, **attributes: Any) -> Json:
    return made_device(name, **attributes)


def tree(drivers: dict[str, list[Json]]) -> Branch:
    slices = [slice_ for driver, devices in drivers.items() for slice_ in pool(*devices, driver=driver)]
    made = pipeline(Observed([convert(ResourceSlice, it) for it in slices], datetime.now(UTC)), Settings())
    ledger = made.ledger()
    return Topology(ledger, devices_of(made.seen, ledger)).of("n1")


def paths(branch: Branch, *above: str) -> Iterator[tuple[str, ...]]:
    """``numa 0``, ``pcie pci0000:10``, ``gpu-0`` for each device."""
    for child in branch.children:
        here = (*above, child.name if child.kind == "device" else f"{child.kind} {child.name}")
        if child.kind == "device":
            yield here
        yield from paths(child, *here)


def only(drivers: dict[str, list[Json]]) -> list[str]:
    return sorted(" / ".join(path) for path in paths(tree(drivers)))


def test_a_root_is_drawn_once_if_only_one_driver_publishes_the_numa_node() -> None:
    cpu = device("cpu-0", **{NUMA: 0, ROOT: ["pci0000:00", "pci0000:10"]})
    gpu, nic = device("gpu-0", **{ROOT: "pci0000:10"}), device("nic-0", **{ROOT: "pci0000:10", "numaNode": 0})
    found = tree({"gpu": [gpu], "nic": [nic], "cpu": [cpu]})
    assert sorted(paths(found)) == [
        ("numa 0", "cpu-0"),
        ("numa 0", "pcie pci0000:10", "gpu-0"),
        ("numa 0", "pcie pci0000:10", "nic-0"),
    ]
    (details,) = [child.detail for child in found.children[0].children if child.name == "cpu-0"]
    assert details == "near PCIe roots pci0000:00, pci0000:10"


def test_a_processor_says_in_which_numa_node_its_roots_are() -> None:
    cpu = device("cpu-0", **{NUMA: 1, ROOT: ["pci0000:80", "pci0000:90"]})
    gpu = device("gpu-0", **{ROOT: "pci0000:90"})
    assert only({"gpu": [gpu], "cpu": [cpu]}) == ["numa 1 / cpu-0", "numa 1 / pcie pci0000:90 / gpu-0"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("numaNodeID", 1),
        ("numa_node", 1),
        ("numaInfo", "1"),
        ("numa", "node1"),
        ("numaNode", "NUMA 1"),
        ("numaNode", [1]),
    ],
)
def test_the_names_and_spellings_of_drivers_mean_the_same(name: str, value: object) -> None:
    one, other = device("a", **{name: value}), device("b", **{NUMA: 1})
    assert only({"one": [one], "other": [other]}) == ["numa 1 / a", "numa 1 / b"]


def test_the_standard_name_counts_before_the_driver_s_own() -> None:
    assert only({"drv": [device("a", **{"numaNode": 5, NUMA: 1})]}) == ["numa 1 / a"]


def test_a_negative_numa_node_is_none_and_one_near_several_is_in_none() -> None:
    assert only({"drv": [device("a", numaNode=-1), device("b", **{NUMA: [0, 1]})]}) == ["a", "b"]


def test_numa_nodes_and_roots_are_sorted_by_number() -> None:
    found = tree({"drv": [device(f"d{number}", **{NUMA: number}) for number in (10, 2, 1)]})
    assert [child.name for child in found.children] == ["1", "2", "10"]


def test_a_root_on_whose_numa_node_drivers_disagree_is_drawn_once() -> None:
    one, other = device("a", **{ROOT: "r", NUMA: 0}), device("b", **{ROOT: "r", NUMA: 1})
    assert only({"one": [one], "other": [other]}) == ["numa 0,1 / pcie r / a", "numa 0,1 / pcie r / b"]


def test_a_device_that_publishes_no_place_is_where_its_parent_is() -> None:
    nic, function = device("nic-0", **{ROOT: "r", NUMA: 0}), device("vf-0", parent="nic-0")
    assert only({"nic": [nic, function]}) == ["numa 0 / pcie r / nic-0", "numa 0 / pcie r / nic-0 / vf-0"]
    first, second = device("a", parent="b"), device("b", parent="a")  # nonsense, but no reason to hang
    assert only({"nic": [first, second]}) == ["a", "b"]


NAMES = (NUMA, "numaNode", "numa", "numaNodeID", "numa_node", "numaInfo")


@settings(max_examples=fewer(200), deadline=None)
@given(st.randoms(use_true_random=False))
def test_each_level_is_drawn_once_whatever_each_driver_publishes_of_one_machine(source: Random) -> None:
    roots = {f"pci0000:{number}0": source.randrange(3) for number in range(source.randint(1, 5))}
    where: dict[str, str] = {}
    drivers: dict[str, list[Json]] = {}
    told: set[str] = set()
    for driver in ("one", "two", "three")[: source.randint(1, 3)]:
        name, tells_root, tells_numa = source.choice(NAMES), source.random() < 0.8, source.random() < 0.5
        drivers[driver] = []
        for number in range(source.randint(1, 5)):
            root = source.choice(list(roots))
            attributes: Json = {ROOT: root} if tells_root else {}
            attributes |= {name: roots[root]} if tells_numa else {}
            drivers[driver].append(device(f"{driver}-{number}", **attributes))
            where[f"{driver}-{number}"] = root if tells_root else ""
            if tells_root and tells_numa:
                told.add(root)
    found = {path[-1]: path for path in paths(tree(drivers))}
    assert found.keys() == where.keys()
    for name, root in where.items():
        if root:
            numa = (f"numa {roots[root]}",) if root in told else ()
            assert found[name] == (*numa, f"pcie {root}", name)
