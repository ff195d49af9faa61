"""An empty proving ground for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from proving_ground import ProvingGround, proving_ground


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[ProvingGround]:
    async with proving_ground(tmp_path) as empty:
        yield empty
