"""What the tests of the programs share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def home() -> Iterator[Path]:
    """Where everything of a cluster lies; a short path, since unix sockets allow 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="d-") as folder:
        yield Path(folder)
