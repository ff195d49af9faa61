"""One API server for all benches of these tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from dra_devcluster.apiserver import DevApiServer, serve_in_thread
from planted_faults import OpenBench, benches_on


@pytest.fixture(scope="session")
def server() -> Iterator[DevApiServer]:
    """The API server."""
    with serve_in_thread() as server:
        yield server


@pytest.fixture(scope="session")
def kubeconfig(server: DevApiServer) -> Iterator[Path]:
    """Of the API server."""
    with tempfile.TemporaryDirectory(prefix="dt-") as folder:
        yield server.write_kubeconfig(Path(folder) / "kubeconfig")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose sockets stay below the limit of 107 bytes, which ``tmp_path`` does not promise."""
    with tempfile.TemporaryDirectory(prefix="dt-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def bad_bench(server: DevApiServer) -> OpenBench:
    """Opens benches with the bad driver."""
    return benches_on(server)
