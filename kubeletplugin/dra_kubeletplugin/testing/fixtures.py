"""The pytest fixture ``driver_node``; a conftest.py imports it from here.

It is no plugin that pytest finds itself, because then every test run of an environment would import gRPC.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .node import DriverNode


@pytest.fixture
def driver_node() -> Iterator[DriverNode]:
    """A node for drivers; its folder has a short path, because that of a socket is limited to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder, DriverNode(Path(folder)) as node:
        yield node
