"""The whole operator inside the test's process, and the cluster that it works on.

It runs as ``dra-operator run`` runs it, behind a proxy that makes faults; or under Kopf, with ``kopf run`` in a thread.
``LiveCluster`` makes objects on the development API server, and waits for their fate.
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import kopf
from dra_kube import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Api,
    Resource,
    connection,
)
from dra_operator.app.operator import Operator
from dra_operator.app.probes import obstacles
from dra_operator.app.run import Supervisor
from dra_operator.app.settings import OperatorSettings
from dra_operator.sources.handlers import register
from dra_operator.sources.watches import Limits
from faults import FaultProxy
from kopf.testing import KopfRunner
from objects import Make, Obj
from waiting import gone, until

QUICK = Limits(silence=90.0, gap=0.5)
"""For tests that wait until something counts as lost."""


@dataclass
class Site:
    """A running operator, which goes to the API server as client ``own`` of the proxy."""

    proxy: FaultProxy
    supervisor: Supervisor

    @property
    def operator(self) -> Operator:
        return self.supervisor.operator

    def obstacles(self) -> str:
        """What /readyz says; empty if it is ready."""
        return "\n".join(obstacles(self.supervisor.health.readiness()))

    def deadly(self) -> list[str]:
        """What /livez says; empty if it is live."""
        return obstacles(self.supervisor.health.liveness())

    def is_live(self) -> bool:
        return not self.deadly()

    async def ready(self, seconds: float = 90.0) -> None:
        async def is_ready() -> bool:
            assert not self.obstacles()
            return True

        await until("ready", is_ready, seconds)

    async def unready(self, *words: str) -> None:
        """Wait until it is not ready and says all these words."""

        async def says() -> bool:
            found = self.obstacles()
            assert found, "ready"
            assert all(word in found for word in words), found
            return True

        await until(f"unready, {' '.join(words)}", says)

    def metric(self, name: str, **labels: str) -> float:
        """The value of a sample; 0 if there is none."""
        return self.operator.registry.get_sample_value(name, labels) or 0.0


Supervising = Callable[..., AbstractAsyncContextManager[Site]]
"""Runs the operator for a block; takes its settings, or none for the usual ones."""


@asynccontextmanager
async def supervised(proxy: FaultProxy, folder: Path, settings: OperatorSettings | None = None) -> AsyncIterator[Site]:
    """The operator starts with the block, and is stopped with it as by a signal; it must not end before."""
    own = connection(proxy.write_kubeconfig(folder / "own", client="own"))
    operator = Operator(settings or OperatorSettings(check_invariants=True), limits=QUICK)
    supervisor = Supervisor(operator, own)
    task = asyncio.create_task(supervisor.run())
    try:
        yield Site(proxy, supervisor)
        assert not task.done(), "the operator ended by itself"
    finally:
        supervisor.stop()
        await task


def gates_text(gates: Mapping[str, bool]) -> str:
    """Return feature gates as a setting has them."""
    return ",".join(f"{name}={str(is_on).lower()}" for name, is_on in gates.items())


MAIN = Path(__file__).resolve().parents[2] / "operator" / "main.py"
Operating = Callable[[], AbstractAsyncContextManager[KopfRunner]]
"""Runs the operator under Kopf for a block; the runner has output and exit code after it."""


@contextmanager
def kopf_run(kubeconfig: Path, timeout: float = 60, settings: OperatorSettings | None = None) -> Iterator[KopfRunner]:
    """``kopf run --all-namespaces operator/main.py``; after the block the runner has output and exit code.

    With ``settings``, Kopf gets an operator of these in place of the file.
    """
    registry = kopf.OperatorRegistry()
    if settings is not None:
        register(Operator(settings), registry)
    runner = KopfRunner(
        ["run", "--all-namespaces", *([] if settings else [str(MAIN)])],
        registry=registry,
        env={"KUBECONFIG": str(kubeconfig)},
        timeout=timeout,
    )
    try:
        with runner:
            yield runner
    finally:
        collect_leftovers_of_kopf()


def collect_leftovers_of_kopf() -> None:
    """A Kopf that is stopped leaves connections of its own open now and then.

    They are collected here, where they belong, and not in whatever test runs when Python's collector does.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class LiveCluster:
    """Objects for the server, as short as tests want them, and waiting for what becomes of them."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def furnish(
        self,
        *,
        nodes: int = 1,
        devices: int = 2,
        selector: str = 'device.driver == "gpu.example.com"',
        template: bool = False,
    ) -> None:
        """Nodes with devices of the class ``gpu``; on demand also a template of claims for one of them."""
        await self.api.create(NAMESPACES, {"metadata": {"name": "ns"}})
        await self.api.create(DEVICE_CLASSES, Make.device_class("gpu", selector))
        for number in range(nodes):
            await self.add_node(f"node-{number}", devices)
        if template:
            await self.add_template()

    async def add_node(self, name: str, devices: int) -> None:
        status = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "20"}}
        await self.api.create(NODES, {"metadata": {"name": name}, "status": status})
        await self.api.create(RESOURCE_SLICES, Make.slice(name, devices, name=f"{name}-gpu"))

    async def add_template(self, count: int = 1) -> None:
        await self.api.create(RESOURCE_CLAIM_TEMPLATES, Make.template(count=count))

    async def add_pod(self, name: str) -> None:
        spec = {
            "schedulerName": "dra-scheduler",
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "tmpl"}],
        }
        await self.api.create(PODS, {"metadata": {"name": name, "namespace": "ns"}, "spec": spec})

    async def place(self, name: str) -> Obj:
        """A pod with a claim from the template, once it has a node."""
        await self.add_pod(name)
        return await self.bound(name)

    async def heard(self) -> None:
        """Wait until the operator places a pod that it can only know from a watch.

        A Kopf that is stopped before its watches stand breaks off its discovery requests.
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

        return await until(f"pod {name} bound", has_node)

    async def gone(self, resource: Resource, name: str) -> None:
        await gone(f"{resource.plural} {name}", lambda: self.api.get(resource, name, "ns"))
