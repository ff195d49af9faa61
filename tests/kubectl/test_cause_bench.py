"""Of 180 clusters, every third with two causes, each cause is named, and the pod runs once the advice was followed.

``WHY_BENCH=FIRST:END`` tries other cases, such as ``WHY_BENCH=180:2000``.
"""

from __future__ import annotations

import os
from typing import Final

import pytest
from cause_bench import CASES, case, faults

FIRST, _, END = os.environ.get("WHY_BENCH", f"0:{CASES}").partition(":")
NUMBERS: Final = range(int(FIRST), int(END))
TOGETHER_CASES: Final = 10
"""Cases of one test: one alone takes less time than the start of a test."""


@pytest.mark.parametrize("first", NUMBERS[::TOGETHER_CASES])
def test_the_pod_runs_once_the_advice_was_followed_to_the_letter(first: int) -> None:
    for number in range(first, min(first + TOGETHER_CASES, NUMBERS.stop)):
        it = case(number)
        assert faults(it) == [], it.title


def test_two_causes_at_once_are_a_third_of_the_bench() -> None:
    two = [it for it in map(case, range(CASES)) if len(it.titles) == 2]
    assert len(two) >= CASES // 3
    assert len({it.titles for it in map(case, range(CASES))}) > CASES * 2 // 3
