"""A problem on which every search gives up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]


def partition_problem(node: str, driver: str = "hard.example.com") -> Iterator[Json]:
    """Devices whose two counters add up to the same; twenty of them must meet an odd sum with even parts.

    No bound sees that: only trying does, and the search gives up.
    """
    sizes = [2 * (50 + 7 * number % 61) for number in range(40)]
    total = sum(sorted(sizes)[10:30]) + 1
    devices = [
        {"name": f"dev-{number}", "consumesCounters": [{"counterSet": "set", "counters": amounts(size, 400)}]}
        for number, size in enumerate(sizes)
    ]
    counters = [{"name": "set", "counters": amounts(total, 20 * 400)}]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 2}
    for name, content in (("counters", {"sharedCounters": counters}), ("devices", {"devices": devices})):
        spec = {"driver": driver, "nodeName": node, "pool": pool, **content}
        yield {"metadata": {"name": f"{node}-{name}"}, "spec": spec}


def amounts(size: int, of: int) -> Json:
    return {"a": {"value": str(size)}, "b": {"value": str(of - size)}}
