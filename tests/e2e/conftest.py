"""A cluster per test process, the real operator under Kopf beside it, and a scene per test."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from dra_kube import NAMESPACES, RESOURCE_CLAIMS, Api
from kopf.testing import KopfRunner
from scene import Scene
from under_kopf import kopf_run
from world import World, world


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """API server and nodes."""
    with world(tmp_path_factory.mktemp("e")) as running:
        yield running


@pytest.fixture(scope="session")
def operator(cluster: World) -> Iterator[KopfRunner]:
    """The operator as ``kopf run`` starts it; that it ends cleanly is checked when the session ends."""
    with kopf_run(cluster.kubeconfig) as runner:
        yield runner
    assert runner.exit_code == 0, runner.output


@pytest.fixture(params=["kubelet"])
async def scene(request: pytest.FixtureRequest, cluster: World, operator: KopfRunner) -> AsyncIterator[Scene]:
    """A namespace of its own; ``variants.both`` runs a scenario without kubelet, too."""
    name = f"e2e-{secrets.token_hex(4)}"
    async with Api(cluster.connection()) as api:
        await api.create(NAMESPACES, {"metadata": {"name": name}})
        staged = Scene(cluster, api, name, kubelet=request.param == "kubelet")
        watch = asyncio.create_task(never_allocated_without_finalizer(api, name))
        try:
            yield staged
        finally:
            await staged.end()
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch


async def never_allocated_without_finalizer(api: Api, namespace: str) -> None:
    """The invariant that holds during every test: an allocated claim has a finalizer."""
    _, revision = await api.list(RESOURCE_CLAIMS, namespace)
    async for event in api.watch(RESOURCE_CLAIMS, namespace, resource_version=revision):
        claim: dict[str, Any] = event.object
        if event.type != "BOOKMARK" and claim.get("status", {}).get("allocation"):
            name = claim["metadata"]["name"]
            assert claim["metadata"].get("finalizers"), f"claim {name} is allocated and has no finalizer"


def pytest_report_header(config: pytest.Config) -> str:
    """Say which cluster the end-to-end tests are going to use."""
    import os

    import envtest

    if os.environ.get("KUBECONFIG"):
        return f"end-to-end tests run against the cluster of KUBECONFIG={os.environ['KUBECONFIG']}"
    if envtest.assets():
        beside = "everything stock" if "KOPF_DRA_STOCK" in os.environ else "no other claim controller"
        return f"end-to-end tests run against a real API server from {envtest.assets()}, {beside} beside it"
    return "end-to-end tests run against the development cluster (KUBECONFIG or KUBEBUILDER_ASSETS choose another)"
