"""However requests are delayed or fail, a pod that is not bound says why within five seconds, and what it says is so.

``python tests/support/silent_world.py 0:1000`` plays more clusters.
"""

from __future__ import annotations

from collections import Counter

import pytest
from rounds import fewer
from silent_world import HOLDS, Slow, played

ALWAYS = 1000.0


@pytest.mark.parametrize("seed", range(fewer(18)))
def test_a_pod_says_what_holds_it_and_nothing_that_is_over(seed: int) -> None:
    wrong, _ = played(seed)
    assert wrong == {}


@pytest.mark.parametrize(
    ("verb", "plural", "sub", "holds"),
    [
        ("create", "pods", "binding", {"in line", "written"}),
        ("update", "resourceclaims", "status", {"in line", "written"}),
        ("create", "resourceclaims", None, {"claims in line", "claims written"}),
        ("update", "pods", "status", {"claims written"}),
    ],
)
def test_a_slow_request_is_said_by_all_that_it_holds(verb: str, plural: str, sub: str | None, holds: set[str]) -> None:
    held = Counter[str]()
    for seed in (8, 10, 12, 15):
        wrong, found = played(seed, [Slow(verb, plural, sub, "", 0.0, ALWAYS, 20.0, "")])
        assert wrong == {}
        held += found
    assert holds <= set(held) <= HOLDS
