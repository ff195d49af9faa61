"""Devices below one PCIe root, then on one NUMA node: the smallest group that suffices, so that large ones stay whole.

A request for two devices takes them from a root with two free ones rather than from one with four. Where no group has
enough, the largest is used up first. What the same claims have taken already draws further devices to its groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dra_ledger.basics import each
from dra_ledger.columns import Column

from dra_operator.allocator.problem.domain import Domain
from dra_operator.allocator.problem.problem import Problem
from dra_operator.allocator.search.order import Grant, Tried

ATTRIBUTES: Final = ("resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode")
"""What devices are aligned by, the closest first. The standard attributes of Kubernetes."""

Rank = tuple[bool, bool, int]
"""Not begun, does not suffice, and how much too large or too small it is: less is better."""
NO_GROUP: Final[Rank] = (True, True, 0)


class Aligned:
    """The order ``aligned``."""

    def tried(self, problem: Problem, grants: Sequence[Grant], domain: Domain, devices: int, missing: int) -> Tried:
        """Group by group."""
        taken = sum({1 << device for _, device, _, _ in grants})
        lists = problem.node.features.list_attributes
        columns = [problem.view.column(attribute, lists=lists) for attribute in ATTRIBUTES]
        roots, numa_nodes = (_ranks(column, devices, taken, missing) for column in columns)
        one_root = any(not lacks for _, lacks, _ in roots.values())
        first, second = (roots, numa_nodes) if one_root else (numa_nodes, roots)
        tried = sorted(each(devices), key=lambda it: (first.get(it, NO_GROUP), second.get(it, NO_GROUP), it))
        return Tried(tried, len(tried) // 16)


def _ranks(column: Column, devices: int, taken: int, missing: int) -> dict[int, Rank]:
    """Each device's best group: one that was begun first, then one that suffices, the smallest first."""
    found: dict[int, Rank] = {}
    for group in _groups(column, devices):
        free = (group & devices).bit_count()
        suffices = free >= missing
        rank = (not group & taken, not suffices, free if suffices else -free)
        for device in each(group & devices):
            found[device] = min(rank, found.get(device, rank))
    return found


def _groups(column: Column, devices: int) -> Iterable[int]:
    return [group for group in column.having.values() if group & devices]
