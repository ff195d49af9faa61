"""What is printed as a fix is one: the change is made from outside, and a fresh pipeline then places the pod."""

from __future__ import annotations

import pytest
from told import cluster_of, failures, fits, fixes_of


@pytest.mark.parametrize("seed", [12, 13, 19, 21, 24, 36, 41, 55, 59, 63])
def test_in_a_random_cluster_each_fix_makes_the_pod_fit_and_the_view_is_as_before(seed: int) -> None:
    seen = cluster_of(seed)
    assert fits(seen) is False
    fixes, is_restored = fixes_of(seen)
    assert fixes
    assert is_restored
    assert [fix.text for fix in failures(seen, fixes)] == []
