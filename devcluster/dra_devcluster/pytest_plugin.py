"""Fixtures of pytest for tests on the development cluster; pytest finds them by itself (entry point ``pytest11``).

::

    @pytest.mark.dev_cluster(nodes=2, devices=4)
    def test_on_two_nodes(dev_cluster, eventually): ...

They are plain fixtures, and their servers run in a thread of their own. So they serve tests with and without an event
loop, in each mode of pytest-asyncio, and beside ``kopf.testing.KopfRunner``. While a test has a cluster, ``KUBECONFIG``
names it, so no client that reads it reaches the cluster of the person who runs the test.

Every pytest of an environment imports this module, so each fixture imports what it needs when it is used.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .apiserver import DevApiServer
    from .cluster import DevCluster

MARKERS = {
    "dev_cluster": "arguments of DevCluster for the fixture dev_cluster, as in dev_cluster(nodes=2, devices=4)",
    "dev_api_server": "arguments of DevApiServer for the fixture dev_api_server",
}


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known, for those who run pytest with ``--strict-markers``."""
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}(**arguments): {meaning}")


@pytest.fixture
def dev_api_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[DevApiServer]:
    """An API server that is empty; KUBECONFIG names it."""
    with _extra():
        from .apiserver import serve_in_thread

    with serve_in_thread(**_arguments(request, "dev_api_server")) as server:
        with tempfile.TemporaryDirectory(prefix="dra-") as folder:
            _become(server.write_kubeconfig(Path(folder) / "kubeconfig"), monkeypatch)
            yield server


@pytest.fixture
def dev_cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[DevCluster]:
    """A cluster of one node, without devices; the marker ``dev_cluster`` says otherwise. KUBECONFIG names it."""
    with _extra():
        from .background import in_thread
        from .cluster import DevCluster

    arguments = _arguments(request, "dev_cluster")
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:  # a short path: unix sockets allow 107 bytes
        with in_thread(lambda: DevCluster(Path(folder), **arguments), "dev-cluster") as cluster:
            _become(cluster.kubeconfig, monkeypatch)
            yield cluster


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """``eventually(look, seconds=30)``: the first answer of ``look`` that is true; see ``background.eventually``."""
    from dra_devcluster.background import eventually

    return eventually


@contextmanager
def _extra() -> Iterator[None]:
    """Imports of what only the extra ``devcluster`` installs."""
    try:
        yield
    except ModuleNotFoundError as error:
        from dra_api.console import not_installed  # every pytest of an environment imports this module

        pytest.fail(not_installed(str(error.name), "devcluster"), pytrace=False)


def _arguments(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    """Those of the marker that is closest to the test."""
    marker = request.node.get_closest_marker(name)
    return dict(marker.kwargs) if marker else {}


def _become(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients of this process, and commands that it starts, reach the cluster of the file."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    if official := sys.modules.get("kubernetes.config.kube_config"):  # it reads the variable when it is imported
        monkeypatch.setattr(official, "KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
