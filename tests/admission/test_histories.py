"""Whatever becomes of writes, watches and processes, no device is promised twice, and every job runs in the end."""

from __future__ import annotations

import pytest
from admission_world import History


@pytest.mark.parametrize("seed", range(6))
async def test_no_device_is_promised_twice(seed: int) -> None:
    history = History(seed)
    await history.play()
    assert history.faults > 3
