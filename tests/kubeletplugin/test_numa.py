"""NUMA nodes of CPUs and devices, from a sysfs that the test makes, and from that of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dra_kubeletplugin import AttributeUnknown, attribute, near_numa_nodes, numa_node_of_cpu

Node = tuple[int, str | None, str]
"""Number, processor socket if it has a CPU, and the row of distances."""


def machine(root: Path, *nodes: Node) -> Path:
    """A sysfs with these nodes; each with a socket has the CPU of its own number."""
    for number, socket, distances in nodes:
        node = root / f"devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "distance").write_text(f"{distances}\n")
        (node / "cpulist").write_text(f"{number}-{number}\n" if socket is not None else "\n")
        if socket is not None:
            cpu = root / f"devices/system/cpu/cpu{number}"
            (cpu / "topology").mkdir(parents=True)
            (cpu / "topology/physical_package_id").write_text(f"{socket}\n")
            (cpu / f"node{number}").symlink_to(node)
    return root


FOUR = "10 12 20 20", "12 10 20 20", "20 20 10 12", "20 20 12 10"
NEAR: dict[str, tuple[list[Node], int, list[int]]] = {
    "two sockets of two nodes (NU3)": (
        [(number, "0" if number < 2 else "1", row) for number, row in enumerate(FOUR)], 0, [0, 1],
    ),
    "the own node comes first": (
        [(number, "0" if number < 2 else "1", row) for number, row in enumerate(FOUR)], 3, [3, 2],
    ),
    "only the nearest of one socket (NU4)": (
        [(0, "0", "10 11 12 12"), *((number, "0", "11 10 12 12") for number in (1, 2, 3))], 0, [0, 1],
    ),
    "no distances (NU5)": ([(0, "0", ""), (1, "0", "")], 0, [0]),
    "a row that is no numbers": ([(0, "0", "10 near"), (1, "0", "")], 0, [0]),
    "a row that is too short": ([(0, "0", "10"), (1, "0", "10")], 0, [0]),
    "memory without CPUs (NU5b)": ([(0, "0", "10 12"), (1, None, "12 10")], 0, [0, 1]),
    "the nearest are on another socket": ([(0, "0", "10 20 20"), (1, "1", ""), (2, "1", "")], 0, [0]),
    "the own socket is not known": ([(0, None, "10 20 20"), (1, "0", ""), (2, "1", "")], 0, [0, 1, 2]),
    "a socket that is not numbered": ([(0, "-1", "10 20"), (1, "1", "")], 0, [0, 1]),
    "numbers with gaps": ([(0, "0", "10 12 20"), (4, "0", ""), (9, "1", "")], 0, [0, 4]),
    "a node that is not there": ([(0, "0", "10")], 7, [7]),
    "one node": ([(0, "0", "10")], 0, [0]),
}  # fmt: skip


@pytest.mark.rule("K37-NUMA-04")
@pytest.mark.parametrize("case", NEAR)
def test_near_nodes_are_the_nearest_that_are_not_known_to_be_on_another_socket(case: str, tmp_path: Path) -> None:
    """The kernel lists the distances of nodes that are online."""
    nodes, node, near = NEAR[case]
    assert near_numa_nodes(node, machine(tmp_path, *nodes)) == near


@pytest.mark.rule("K37-NUMA-02", "K37-NUMA-03")
@pytest.mark.parametrize("node", [-1, 1024])
def test_a_number_that_no_node_has_is_refused(node: int, tmp_path: Path) -> None:
    with pytest.raises(AttributeUnknown, match=f"{node} is not a NUMA node: give a number from 0 to 1023"):
        near_numa_nodes(node, tmp_path)


@pytest.mark.rule("K37-NUMA-02")
def test_a_cpu_has_the_node_to_which_it_links(tmp_path: Path) -> None:
    """A device without PCI address is where its CPU is."""
    sysfs = machine(tmp_path, (0, "0", "10 20"), (3, "1", "20 10"))
    assert numa_node_of_cpu(3, sysfs) == 3
    with pytest.raises(AttributeUnknown, match="cpu7 has 0 links to NUMA nodes"):
        numa_node_of_cpu(7, sysfs)


@pytest.mark.skipif(not Path("/sys/devices/system/cpu/cpu0/node0").exists(), reason="this machine has no NUMA nodes")
def test_a_cpu_of_this_machine_is_on_a_node_that_is_near_to_itself() -> None:
    node = numa_node_of_cpu(min(os.sched_getaffinity(0)))
    assert near_numa_nodes(node)[0] == node
    assert attribute(near_numa_nodes(node)).ints
