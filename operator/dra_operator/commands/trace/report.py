"""What runs say, for people and for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from dra_operator.quality.moves import Moves
from dra_operator.quality.study import Mean, RunResult

FULL_DEMAND_PERCENT: Final = 100
"""Percent of demand at which pods ask for as many GPUs as there are."""
HEADER: Final = ("POLICY", "RUNS", "DEMAND", "ALLOCATED", "LOST OF IDLE")


def ends(results: Sequence[RunResult]) -> list[int]:
    """The percents of demand of which the summary tells: 100, and the last that all runs reach."""
    last = min(len(it.curve.allocated) for it in results) - 1
    return sorted({min(FULL_DEMAND_PERCENT, last), last})


def table(results: Sequence[RunResult]) -> Iterator[str]:
    """A row for each policy and end, the fullest cluster first."""
    rows = [HEADER]
    policies = by_policy(results)
    for end in ends(results):
        found = [(name, *_means(its, end), len(its)) for name, its in policies]
        for name, allocated, lost, runs in sorted(found, key=lambda it: -it[1].value):
            rows.append((name, str(runs), f"{end} %", _text(allocated), _text(lost)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield ""
    yield "DEMAND and ALLOCATED are in % of the cluster's GPUs, LOST OF IDLE in % of the idle GPUs: what the pods that"
    yield "usually come could not use. After ± is half the confidence interval of 95 %."
    for name, its in policies:
        moves = [it.moves for it in its if it.moves is not None]
        if moves:
            yield ""
            yield _moved(name, moves)


def _moved(name: str, found: Sequence[Moves]) -> str:
    runs = len(found)
    share = Mean.of([100 * it.moved / it.pods if it.pods else 0.0 for it in found]).value
    gained = [100 * (it.after - it.before) / it.capacity for it in found]
    moved, placed = sum(it.moved for it in found) / runs, sum(it.placed for it in found) / runs
    return (
        f"{name}: when pods have asked for all GPUs, {moved:.0f} moved pods ({share:.2f} %) give room to {placed:.0f} "
        f"refused ones: {Mean.of(gained).value:+.2f} points of allocation, mean of the runs"
    )


def by_policy(results: Sequence[RunResult]) -> list[tuple[str, list[RunResult]]]:
    """The runs of each policy."""
    return [(name, list(its)) for name, its in groupby(results, key=lambda it: it.policy)]


def _means(results: Sequence[RunResult], end: int) -> tuple[Mean, Mean]:
    allocated, lost = zip(*(it.curve.at(end) for it in results), strict=True)
    return Mean.of(allocated), Mean.of(lost)


def _text(mean: Mean) -> str:
    return f"{mean.value:.2f} %" + ("" if math.isnan(mean.half_width) else f" ± {mean.half_width:.2f}")


def csv_lines(results: Sequence[RunResult]) -> Iterator[str]:
    """A line for each run and percent of demand."""
    yield "policy,seed,demand_percent,allocated_percent,lost_percent"
    for it in results:
        for percent, allocated, lost in _points(it):
            yield f"{it.policy},{it.seed},{percent},{allocated},{lost}"


def json_document(results: Sequence[RunResult]) -> Iterator[str]:
    """One document."""
    runs = [
        {
            "policy": it.policy,
            "seed": it.seed,
            "moves": None if it.moves is None else it.moves._asdict(),
            "points": [{"demand": p, "allocated": allocated, "lost": lost} for p, allocated, lost in _points(it)],
        }
        for it in results
    ]
    yield json.dumps({"version": 1, "runs": runs}, indent=1)


def _points(result: RunResult) -> Iterator[tuple[int, float, float]]:
    for percent, allocated in enumerate(result.curve.allocated):
        if not math.isnan(allocated):
            yield percent, round(float(allocated), 4), round(float(result.curve.lost[percent]), 4)
