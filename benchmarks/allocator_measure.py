"""Taking the time of decisions: ours, and those of the exhaustive search, side by side."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from allocator_lab import OUTCOMES
from allocator_oracle.pools import OutOfSteps, Problem
from allocator_oracle.search import answer
from allocator_problems import laboratory
from dra_api.codec import convert
from dra_api.core import Node

Json = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """One line of the table; times are microseconds."""

    group: str
    what: str
    size: int
    value: float
    unit: str = "us"
    outcome: str = ""
    steps: int = 0
    naive: float | None = None
    """Time of the exhaustive search; with ``naive_ended`` False at least that much."""
    naive_ended: bool = True
    target: str = ""

    @property
    def ratio(self) -> float | None:
        """So many times faster than the exhaustive search, or more."""
        return self.naive / self.value if self.naive and self.value else None


def micros(work: Callable[[], object], *, seconds: float, least: int = 5) -> float:
    """The median processor time of repeated runs, for about so many seconds, the garbage collector at rest.

    Decisions wait for nothing, so on an idle machine this is the time that passes; on a busy one it stays the same.
    """
    gc.collect()
    gc.disable()
    times: list[float] = []
    end = time.perf_counter() + seconds
    try:
        while len(times) < least or time.perf_counter() < end:
            start = time.process_time_ns()
            work()
            times.append((time.process_time_ns() - start) / 1000)
    finally:
        gc.enable()
    return statistics.median(times)


def measured(group: str, what: str, size: int, case: Json, *, seconds: float, limit: int, target: str = "") -> Result:
    """Decides a case of one node both ways. The inventory is built before; ``limit`` bounds the oracle's steps."""
    lab, node = laboratory(case), convert(Node, case["nodes"][0])
    outcome = lab.decide(node)
    ours = micros(lambda: lab.decide(node), seconds=seconds)
    problem = Problem.from_case(case, case["nodes"][0])
    start = time.process_time()
    ended = True
    try:
        expected = answer(problem, limit=limit).outcome
        assert expected == OUTCOMES[type(outcome)], (
            f"{what}: {expected} by brute force, {OUTCOMES[type(outcome)]} by us"
        )
    except OutOfSteps:
        ended = False
    naive = (time.process_time() - start) * 1e6
    return Result(
        group,
        what,
        size,
        ours,
        outcome=OUTCOMES[type(outcome)],
        steps=outcome.steps,
        naive=naive,
        naive_ended=ended,
        target=target,
    )
