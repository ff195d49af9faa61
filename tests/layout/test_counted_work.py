"""The guard over hot paths: what it counts, and when it fails."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUARD = runpy.run_path(str(ROOT / "benchmarks/counted_work.py"))
RECORDED = {"a": 1000, "b": 1000}

FOUND: list[tuple[dict[str, int], list[str]]] = [
    ({"a": 1030, "b": 10}, []),
    ({"a": 1031}, ["a: 1,031 instructions instead of 1,000, 3.1 % more"]),
    ({"a": 1000, "c": 1}, ["c: not recorded"]),
]


@pytest.mark.parametrize(("found", "faults"), FOUND)
def test_three_percent_more_is_a_fault(found: dict[str, int], faults: list[str]) -> None:
    assert GUARD["faults"](found, RECORDED) == faults


def test_each_piece_of_work_is_recorded() -> None:
    assert set(GUARD["pieces"]()) == set(GUARD["recorded"]())


def test_only_instructions_of_this_project_count() -> None:
    from dra_api.values import Quantity

    def work(times: int) -> int:
        count = GUARD["Count"]()
        with count:
            for _ in range(times):
                Quantity("1500m")
                sorted(range(1000), key=lambda number: -number)
        assert all(name.startswith("proto/dra_api/") for name in count.functions), count.functions
        return int(count.instructions)

    once = work(1)
    assert once > 0
    assert work(3) == 3 * once
