"""How fast devices are found: hard problems beside an exhaustive search, many nodes, ordinary problems, building.

    python benchmarks/allocator.py [--json FILE] [--quick]

Inventories are built beforehand, as in the operator. Times are medians of the processor time of repeated
decisions. The exhaustive search is the tests' oracle: the same answers, every rule in its most literal form.
It is stopped after a number of steps; then its time is a lower bound, and so is the ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
sys.path.append(str(Path(__file__).resolve().parent.parent / "conformance"))

from allocator_families import HARD
from allocator_measure import Json, Result, measured
from allocator_problems import make_case
from allocator_scale import building, memory, one_large_node, placements
from corpus import kit

SIZES = (8, 16, 32, 64)


def hard(sizes: tuple[int, ...], seconds: float, limit: int) -> Iterator[Result]:
    """Problems on which an exhaustive search explodes."""
    for what, family in HARD.items():
        for size in sizes:
            yield measured("hard", what, size, family(size), seconds=seconds, limit=limit, target="10 ms")


def ordinary(most: int, limit: int) -> Iterator[Result]:
    """Everyday problems of one to three nodes: those that the reference answered, and generated ones."""
    yield from _many("the reference's random problems", kit("allocator/random")[:most], limit)
    generated = [make_case(Random(f"benchmark/{number}")) for number in range(min(most, 200))]
    yield from _many("generated problems, all features mixed", generated, limit)


def _many(what: str, cases: list[Json], limit: int) -> Iterator[Result]:
    """The median over all decisions, and the slowest."""
    found = [
        measured("ordinary", what, 0, {**case, "nodes": [node]}, seconds=0.0, limit=limit)
        for case in cases
        for node in case["nodes"]
    ]
    ours = statistics.median(result.value for result in found)
    naive = statistics.median(result.naive or 0 for result in found)
    yield Result("ordinary", f"{what}, median", len(found), ours, naive=naive, target="100 us")
    slowest = max(found, key=lambda result: result.value)
    yield Result(
        "ordinary",
        f"{what}, slowest",
        len(found),
        slowest.value,
        outcome=slowest.outcome,
        steps=slowest.steps,
        naive=slowest.naive,
        naive_ended=slowest.naive_ended,
    )


def everything(*, quick: bool) -> Iterator[Result]:
    """All measurements, one after the other."""
    seconds, limit = (0.05, 300) if quick else (0.3, 3000)
    yield from hard(SIZES[:2] if quick else SIZES, seconds, limit)
    yield from ordinary(40 if quick else 550, limit // 3)
    yield from placements((100, 300) if quick else (100, 1000, 5000), seconds)
    yield one_large_node(seconds)
    yield from building(300 if quick else 5000, seconds)
    yield memory(300 if quick else 5000)


HEADER = ("group", "problem", "size", "time", "target", "outcome", "steps", "exhaustive", "ratio")


def row(result: Result) -> tuple[str, ...]:
    """A result as text."""
    at_least = "" if result.naive_ended else "> "
    return (
        result.group,
        result.what,
        f"{result.size:,}",
        shown(result.value, result.unit),
        result.target,
        result.outcome,
        str(result.steps or ""),
        at_least + shown(result.naive, "us") if result.naive is not None else "",
        f"{at_least}{result.ratio:,.0f}" if result.ratio is not None else "",
    )


def shown(value: float, unit: str) -> str:
    """With a unit that keeps the number readable."""
    if unit == "us" and value >= 1e6:
        value, unit = value / 1e6, "s"
    elif unit == "us" and value >= 1e3:
        value, unit = value / 1e3, "ms"
    return f"{value:,.1f} {unit}" if value < 100 else f"{value:,.0f} {unit}"


def main() -> int:
    """Measures, prints a Markdown table while it goes on, and writes JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the results there as well")
    parser.add_argument("--quick", action="store_true", help="small sizes, a few seconds: to see that it works")
    options = parser.parse_args()
    print(f"| {' | '.join(HEADER)} |")
    print(f"|{'---|' * len(HEADER)}")
    results = []
    for result in everything(quick=options.quick):
        results.append(result)
        print(f"| {' | '.join(row(result))} |", flush=True)
    if options.json:
        told = [asdict(result) | {"ratio": result.ratio} for result in results]
        Path(options.json).write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
