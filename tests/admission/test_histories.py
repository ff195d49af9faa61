"""Whatever becomes of writes, watches, processes and all that decides about jobs, no device is promised twice, no job
that runs is evicted, every job runs in the end, and nothing is left of a promise.
"""

from __future__ import annotations

import pytest
from admission_histories import History

FLAVOR_GONE = 71002060
"""A process starts while the flavor is deleted of jobs that are Ready and wait for other checks."""


@pytest.mark.parametrize("seed", [*range(6), FLAVOR_GONE])
def test_no_device_is_promised_twice(seed: int) -> None:
    History(seed).play()
