"""The real kubectl against a server in this process; each test has a namespace of its own."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import textwrap
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from dra_devcluster.apiserver import DevApiServer, serve_in_thread

_numbers = count(1)
_TIMEOUT = 60.0


@dataclass(frozen=True)
class Kubectl:
    """Call it with kubectl's arguments: it returns what kubectl printed (both streams) and checks the exit code."""

    path: str
    environment: dict[str, str]
    namespace: str

    def __call__(self, *arguments: str, stdin: str = "", code: int = 0) -> str:
        done = subprocess.run(
            self.command(*arguments),
            input=textwrap.dedent(stdin),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
        assert done.returncode == code, f"kubectl {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def read(self, *arguments: str) -> Any:
        """An object, or a list of them, as plain data."""
        return json.loads(self("get", *arguments, "-o", "json"))

    def rows(self, *arguments: str) -> list[list[str]]:
        """What `get` prints, as words, without the heading."""
        return [line.split() for line in self("get", *arguments, "--no-headers", "--ignore-not-found").splitlines()]

    def command(self, *arguments: str) -> list[str]:
        return [self.path, "--namespace", self.namespace, *arguments]

    @contextmanager
    def start(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A command that goes on until the end of the block."""
        command = self.command(*arguments)
        process = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True)
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=_TIMEOUT)


@pytest.fixture(scope="session")
def server() -> Iterator[DevApiServer]:
    with serve_in_thread() as server:
        yield server


@pytest.fixture(scope="session")
def post(server: DevApiServer) -> Callable[[str, dict[str, Any]], None]:
    """Create an object without the cost of a kubectl."""
    tls = ssl.create_default_context(cadata=server.ca.decode())
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}

    def call(path: str, body: dict[str, Any]) -> None:
        request = urllib.request.Request(server.url + path, json.dumps(body).encode(), headers, method="POST")
        urllib.request.urlopen(request, context=tls, timeout=_TIMEOUT).close()

    return call


@pytest.fixture(scope="session")
def _environment(server: DevApiServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("home")
    config = server.write_kubeconfig(home / "config")
    # A home of its own: kubectl keeps its discovery cache there.
    return {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(config)}


@pytest.fixture
def kubectl(_environment: dict[str, str], post: Callable[[str, dict[str, Any]], None]) -> Kubectl:
    path = shutil.which("kubectl")
    if path is None:
        pytest.skip("kubectl is not installed: the server's behaviour towards it is NOT tested")
    namespace = f"test-{next(_numbers)}"
    post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    return Kubectl(path, _environment, namespace)


@pytest.fixture
def pod(kubectl: Kubectl, post: Callable[[str, dict[str, Any]], None]) -> Callable[..., str]:
    """Create a pod with this name, labels and spec; the name comes back."""

    def create(name: str, labels: dict[str, str] | None = None, **spec: Any) -> str:
        containers = [{"name": "c", "image": "busybox", "command": ["sleep", "1"]}]
        # Under the name of a scheduler that does not run, nobody else touches the pod.
        spec = {"schedulerName": "nobody", "containers": containers, **spec}
        body = {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}
        post(f"/api/v1/namespaces/{kubectl.namespace}/pods", body)
        return name

    return create


@pytest.fixture
def node(post: Callable[[str, dict[str, Any]], None]) -> str:
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
