"""The real operator on the real development API server, inside the test process or as a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from dra_devcluster.apiserver import DevApiServer, serve_in_thread
from dra_kube import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Api,
    NotFound,
    Resource,
    connection,
)
from dra_operator.app.operator import Options
from faults import FaultProxy
from kopf.testing import KopfRunner
from supervised import Site, supervised
from under_kopf import kopf_run

Obj = dict[str, Any]
T = TypeVar("T")


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


class Cluster:
    """Objects for the server, as short as tests want them, and waiting for what becomes of them."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def furnish(
        self, *, nodes: int = 1, devices: int = 2, selector: str = 'device.driver == "gpu.example.com"'
    ) -> None:
        await self.api.create(NAMESPACES, {"metadata": {"name": "ns"}})
        await self.api.create(
            DEVICE_CLASSES,
            {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": selector}}]}},
        )
        for number in range(nodes):
            await self.add_node(f"node-{number}", devices)

    async def add_node(self, name: str, devices: int) -> None:
        status = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "20"}}
        await self.api.create(NODES, {"metadata": {"name": name}, "status": status})
        spec = {
            "driver": "gpu.example.com",
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"dev-{number}"} for number in range(devices)],
        }
        await self.api.create(RESOURCE_SLICES, {"metadata": {"name": f"{name}-gpu"}, "spec": spec})

    async def add_template(self, count: int = 1) -> None:
        exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
        spec = {"spec": {"devices": {"requests": [{"name": "req", "exactly": exactly}]}}}
        await self.api.create(RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "tmpl", "namespace": "ns"}, "spec": spec})

    async def add_pod(self, name: str) -> None:
        spec = {
            "schedulerName": "dra-scheduler",
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "tmpl"}],
        }
        await self.api.create(PODS, {"metadata": {"name": name, "namespace": "ns"}, "spec": spec})

    async def heard(self) -> None:
        """Wait until the operator places a pod that it can only know from a watch.

        Whoever stops Kopf before its watches stand breaks it off in the middle of its discovery requests.
        """
        spec = {"schedulerName": "dra-scheduler", "containers": [{"name": "main", "image": "none"}]}
        pod = {"metadata": {"name": "heard", "namespace": "ns"}, "spec": spec}
        await self.api.create(PODS, pod)
        await self.bound("heard")

    async def pod(self, name: str) -> Obj:
        return await self.api.get(PODS, name, "ns")

    async def claims(self) -> list[Obj]:
        return (await self.api.list(RESOURCE_CLAIMS, "ns"))[0]

    async def bound(self, name: str) -> Obj:
        """The pod, once it has a node."""

        async def has_node() -> Obj | None:
            pod = await self.pod(name)
            return pod if pod["spec"].get("nodeName") else None

        return await eventually(has_node)

    async def gone(self, resource: Resource, name: str) -> None:
        async def is_gone() -> bool:
            try:
                await self.api.get(resource, name, "ns")
            except NotFound:
                return True
            return False

        await eventually(is_gone)


async def eventually(probe: Callable[[], Awaitable[T | None]], seconds: float = 60) -> T:
    """What the probe gives as soon as that is true. Fails after so many seconds."""
    async with asyncio.timeout(seconds):
        while not (found := await probe()):  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.02)
        return found


@pytest.fixture
def cluster(api: Api) -> Cluster:
    return Cluster(api)


@pytest.fixture
def operating(kubeconfig: Path, cluster: Cluster) -> Callable[[], AbstractAsyncContextManager[KopfRunner]]:
    """``kopf run operator/main.py`` in a thread; after the block the runner has output and exit code."""

    @asynccontextmanager
    async def run() -> AsyncIterator[KopfRunner]:
        with kopf_run(kubeconfig, timeout=90) as runner:
            yield runner
            await cluster.heard()

    return run


@pytest.fixture
def until() -> Callable[..., Awaitable[Any]]:
    return eventually


@pytest.fixture
def operator_command(kubeconfig: Path) -> list[str]:
    """``dra-operator run`` as a process of its own."""
    return [sys.executable, "-m", "dra_operator.cli", "run", "--kubeconfig", str(kubeconfig)]


@pytest.fixture
async def proxy(kubeconfig: Path) -> AsyncIterator[FaultProxy]:
    """Between the operator and the API server, for whoever has to make faults."""
    async with FaultProxy(connection(kubeconfig)) as between:
        yield between


@pytest.fixture
def supervising(
    proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., AbstractAsyncContextManager[Site]]:
    """The operator as ``dra-operator run`` runs it, behind the proxy."""

    def run(options: Options | None = None) -> AbstractAsyncContextManager[Site]:
        return supervised(proxy, tmp_path, monkeypatch, options)

    return run
