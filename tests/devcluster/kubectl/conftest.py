"""The real kubectl against a server in this process; each test has a namespace of its own."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import textwrap
import urllib.request
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from command import TIMEOUT, BlockingKubectl, Post
from dra_devcluster.apiserver import DevApiServer, serve_in_thread

_numbers = count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[DevApiServer]:
    with serve_in_thread() as server:
        yield server


@pytest.fixture(scope="session")
def post(server: DevApiServer) -> Post:
    """Create an object without the cost of a kubectl."""
    tls = ssl.create_default_context(cadata=server.ca.decode())
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}

    def call(path: str, body: dict[str, Any]) -> None:
        request = urllib.request.Request(server.url + path, json.dumps(body).encode(), headers, method="POST")
        urllib.request.urlopen(request, context=tls, timeout=TIMEOUT).close()

    return call


@pytest.fixture(scope="session")
def _environment(server: DevApiServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("home")
    config = server.write_kubeconfig(home / "config")
    # A home of its own: kubectl keeps its discovery cache there.
    return {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(config)}


@pytest.fixture
def kubectl(_environment: dict[str, str], post: Post) -> BlockingKubectl:
    path = shutil.which("kubectl")
    if path is None:
        pytest.skip("kubectl is not installed: the server's behaviour towards it is NOT tested")
    namespace = f"test-{next(_numbers)}"
    post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    return BlockingKubectl(path, _environment, namespace)


@pytest.fixture
def pod(kubectl: BlockingKubectl, post: Post) -> Callable[..., str]:
    """Create a pod with this name, labels and spec; the name comes back."""

    def create(name: str, labels: dict[str, str] | None = None, **spec: Any) -> str:
        containers = [{"name": "c", "image": "busybox", "command": ["sleep", "1"]}]
        # Under the name of a scheduler that does not run, no other client touches the pod.
        spec = {"schedulerName": "absent", "containers": containers, **spec}
        body = {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}
        post(f"/api/v1/namespaces/{kubectl.namespace}/pods", body)
        return name

    return create


@pytest.fixture
def node(post: Post) -> str:
    """The name of a fresh node."""
    name = f"node-{next(_numbers)}"
    post("/api/v1/nodes", {"metadata": {"name": name}})
    return name


@pytest.fixture
def manifest(tmp_path: Path) -> Callable[[str], str]:
    """Write a manifest and give back its path."""

    def write(text: str) -> str:
        path = tmp_path / "manifest.yaml"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write
