"""A cluster per test process, the real operator under Kopf beside it, and a scene per test.

The invariant that holds during every end-to-end test: an allocated claim has a finalizer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from command import OperatorProcess
from dra_kube import NAMESPACES, RESOURCE_CLAIMS, Api
from dra_operator.app.settings import OperatorSettings
from kopf.testing import KopfRunner
from scene import Scene, World, second_operator, world
from supervised import kopf_run


@asynccontextmanager
async def allocated_claims_have_finalizers(api: Api, namespace: str) -> AsyncIterator[None]:
    """Watch the claims of a namespace during the block. Raises AssertionError at its end if one broke the rule."""
    watch = asyncio.create_task(_follow(api, namespace))
    try:
        yield
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch


async def _follow(api: Api, namespace: str) -> None:
    _, revision = await api.list(RESOURCE_CLAIMS, namespace)
    async for event in api.watch(RESOURCE_CLAIMS, namespace, resource_version=revision):
        claim: dict[str, Any] = event.object
        if event.type in ("ADDED", "MODIFIED") and claim.get("status", {}).get("allocation"):
            name = claim["metadata"]["name"]
            assert claim["metadata"].get("finalizers"), f"claim {name} is allocated and has no finalizer"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """API server and nodes."""
    with world(tmp_path_factory.mktemp("e")) as running:
        yield running


@pytest.fixture(scope="session")
def operator(cluster: World) -> Iterator[KopfRunner]:
    """The operator as ``kopf run`` starts it; that it ends cleanly is checked when the session ends.

    It leaves DeviceTaintRules to ``second``.
    """
    with kopf_run(cluster.kubeconfig, settings=OperatorSettings(feature_gates="DRADeviceTaintRules=false")) as runner:
        yield runner
    assert runner.exit_code == 0, runner.output


@pytest.fixture(scope="session")
def _second(cluster: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with second_operator(cluster.kubeconfig, tmp_path_factory.mktemp("second")) as running:
        yield running


@pytest.fixture
def second(_second: OperatorProcess) -> Iterator[OperatorProcess]:
    """An operator with other settings, for pods of the scheduler name ``world.SECOND``; nothing goes wrong in
    it."""
    yield _second
    assert _second.complaints() == []


@pytest.fixture(params=["kubelet"])
async def scene(request: pytest.FixtureRequest, cluster: World, operator: KopfRunner) -> AsyncIterator[Scene]:
    """A namespace of its own; ``variants.both`` runs a scenario without kubelet as well."""
    name = f"e2e-{secrets.token_hex(4)}"
    async with Api(cluster.connection()) as api:
        await api.create(NAMESPACES, {"metadata": {"name": name}})
        staged = Scene(cluster, api, name, kubelet=request.param == "kubelet")
        async with allocated_claims_have_finalizers(api, name):
            try:
                yield staged
            finally:
                await staged.end()


@pytest.fixture
async def neighbour(scene: Scene, cluster: World) -> AsyncIterator[Scene]:
    """Another driver with a namespace of its own, on the same nodes."""
    name = f"e2e-{secrets.token_hex(4)}"
    async with Api(cluster.connection()) as api:
        await api.create(NAMESPACES, {"metadata": {"name": name}})
        staged = Scene(cluster, api, name)
        try:
            yield staged
        finally:
            await staged.end()


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
