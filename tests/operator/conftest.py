"""The real operator on the real development API server, inside the test process or as a process of its own."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from dra_devcluster.apiserver import DevApiServer, serve_in_thread
from dra_kube import Api, connection
from dra_operator.app.settings import OperatorSettings
from faults import FaultProxy
from kopf.testing import KopfRunner
from supervised import LiveCluster, Operating, Site, Supervising, kopf_run, supervised


@pytest.fixture
def server_settings() -> dict[str, Any]:
    """Of the API server; a test module may have others."""
    return {}


@pytest.fixture
def server(server_settings: dict[str, Any]) -> Iterator[DevApiServer]:
    """A fresh, empty API server."""
    with serve_in_thread(**server_settings) as running:
        yield running


@pytest.fixture
def kubeconfig(server: DevApiServer, tmp_path: Path) -> Path:
    return server.write_kubeconfig(tmp_path / "kubeconfig")


@pytest.fixture
async def api(kubeconfig: Path) -> AsyncIterator[Api]:
    async with Api(connection(kubeconfig)) as client:
        yield client


@pytest.fixture
def cluster(api: Api) -> LiveCluster:
    return LiveCluster(api)


@pytest.fixture
def operating(kubeconfig: Path, cluster: LiveCluster) -> Operating:
    """``kopf run operator/main.py`` in a thread; after the block the runner has output and exit code."""

    @asynccontextmanager
    async def run() -> AsyncIterator[KopfRunner]:
        with kopf_run(kubeconfig, timeout=90) as runner:
            yield runner
            await cluster.heard()

    return run


@pytest.fixture
def operator_command(kubeconfig: Path) -> list[str]:
    """``dra-operator run`` as a process of its own."""
    return [sys.executable, "-m", "dra_operator.cli", "run", "--kubeconfig", str(kubeconfig)]


@pytest.fixture
async def proxy(kubeconfig: Path) -> AsyncIterator[FaultProxy]:
    """Between the operator and the API server, for tests that make faults."""
    async with FaultProxy(connection(kubeconfig)) as between:
        yield between


@pytest.fixture
def supervising(proxy: FaultProxy, tmp_path: Path) -> Supervising:
    """The operator as ``dra-operator run`` runs it, behind the proxy."""

    def run(settings: OperatorSettings | None = None) -> AbstractAsyncContextManager[Site]:
        return supervised(proxy, tmp_path, settings)

    return run
