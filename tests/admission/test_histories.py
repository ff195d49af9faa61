"""Whatever becomes of writes, watches, processes and all that decides about jobs, no device is promised twice, no job
that runs is evicted, every job runs in the end, and nothing is left of a promise.
"""

from __future__ import annotations

import pytest
from admission_histories import History


@pytest.mark.parametrize("seed", range(6))
def test_no_device_is_promised_twice(seed: int) -> None:
    History(seed).play()
