"""A cluster to try operators on: an API server, the fault proxy before it, a witness behind it, and stubs for nodes.

::

    async with proving_ground(folder, seed=7) as ground:
        await ground.furnish(nodes=2, devices=10)
        async with ground.operator() as operator:
            await ground.add_pods(30)
            await ground.bound(20)

The API server is the development cluster's; or, with ``KUBEBUILDER_ASSETS``, a real one with the stock
kube-controller-manager and kube-scheduler beside it, made anew for each ground.

Nodes without kubelets.

Behind a bare node nothing runs: it is a Node that is ready, and its Lease. A node lifecycle controller taints a node
whose Lease it has not seen renewed for 50 s, and writes that its conditions are Unknown. As a kubelet does, each beat
writes the condition Ready again when it was changed; the controller takes its taints off then.

The stub does to pods what kubelets do: bound pods run, and deleted ones are gone at once. A pod with the annotation
``test/seconds`` is done after so many.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import envtest
from command import OperatorProcess, operator_process
from dra_devcluster.apiserver import serve_in_thread
from dra_kube import (
    DEVICE_CLASSES,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Api,
    Conflict,
    Gone,
    NotFound,
    Object,
    Unreachable,
    connection,
)
from envtest import missing
from faults import FaultProxy
from objects import Make
from waiting import meanwhile, until
from witness import Witness

_NAMESPACE = "kube-node-lease"
_READY = {"type": "Ready", "status": "True"}


@asynccontextmanager
async def bare_node(
    api: Api,
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    pods: int = 500,
    renewal_seconds: float = 10.0,
) -> AsyncIterator[Object]:
    """It exists meanwhile, with room for so many pods."""
    room = {"cpu": "64", "memory": "256Gi", "pods": str(pods)}
    status = {"conditions": [_READY], "capacity": room, "allocatable": room}
    node = await api.create(NODES, {"metadata": {"name": name, "labels": dict(labels or {})}, "status": status})
    try:
        async with meanwhile(_renew(api, node, renewal_seconds)):
            yield node
    finally:
        with suppress(NotFound):
            await api.delete(NODES, name)


async def _renew(api: Api, node: Object, seconds: float) -> None:
    name = node["metadata"]["name"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
    metadata = {"name": name, "namespace": _NAMESPACE, "ownerReferences": [owner]}
    await api.create(
        LEASES, {"metadata": metadata, "spec": {"holderIdentity": name, "leaseDurationSeconds": int(4 * seconds)}}
    )
    while True:
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        with suppress(Unreachable):  # the next beat tries again, as a kubelet does
            await api.patch(LEASES, name, {"spec": {"renewTime": now}}, _NAMESPACE)
            await _stay_ready(api, name)
        await asyncio.sleep(seconds)


async def _stay_ready(api: Api, name: str) -> None:
    """Write Ready again if it is not True; the other conditions, which nothing here reads, go."""
    with suppress(NotFound):  # a test deletes its node at times
        status = (await api.get(NODES, name)).get("status") or {}
        conditions = status.get("conditions") or []
        if not any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions):
            await api.patch(NODES, name, {"status": {"conditions": [_READY]}}, subresource="status")


RUNS_SECONDS: Final = "test/seconds"
_ENDING: Final[set[asyncio.Task[None]]] = set()


@asynccontextmanager
async def node_stub(api: Api) -> AsyncIterator[None]:
    """Acts for all nodes of the cluster meanwhile."""
    try:
        async with meanwhile(_keep_following(api)):
            yield
    finally:
        await asyncio.gather(*(ending for ending in _ENDING if ending.cancel()), return_exceptions=True)


async def _keep_following(api: Api) -> None:
    while True:
        with suppress(Unreachable, Gone):  # it begins anew, as a kubelet does
            await _follow(api)
        await asyncio.sleep(0.1)


async def _follow(api: Api) -> None:
    pods, revision = await api.list(PODS)
    for pod in pods:
        await _act(api, pod)
    while True:
        async for event in api.watch(PODS, resource_version=revision):
            revision = event.object["metadata"]["resourceVersion"]
            if event.type in ("ADDED", "MODIFIED"):
                await _act(api, event.object)


async def _act(api: Api, pod: Object) -> None:
    meta = pod["metadata"]
    if not pod["spec"].get("nodeName"):
        return
    with suppress(NotFound, Conflict):  # the pod is gone, or another one has its name
        if "deletionTimestamp" in meta:
            await api.delete(PODS, meta["name"], meta["namespace"], uid=meta["uid"], grace_seconds=0)
        elif pod.get("status", {}).get("phase", "Pending") == "Pending":
            patch = {"metadata": {"uid": meta["uid"]}, "status": {"phase": "Running"}}
            await api.patch(PODS, meta["name"], patch, meta["namespace"], subresource="status")
            if seconds := (meta.get("annotations") or {}).get(RUNS_SECONDS):
                ending = asyncio.create_task(_end(api, meta, float(seconds)))
                _ENDING.add(ending)
                ending.add_done_callback(_ENDING.discard)


async def _end(api: Api, meta: Object, seconds: float) -> None:
    await asyncio.sleep(seconds)
    with suppress(NotFound, Conflict):
        patch = {"metadata": {"uid": meta["uid"]}, "status": {"phase": "Succeeded"}}
        await api.patch(PODS, meta["name"], patch, meta["namespace"], subresource="status")


T = TypeVar("T")
DRIVER = "gpu.example.com"
NAMESPACE = "ns"
PATIENCE = 150.0
"""Seconds until a scenario counts as stuck: a busy machine is no fault."""


@dataclass
class ProvingGround:
    """``api`` goes to the server directly, operators go through ``proxy``."""

    api: Api
    proxy: FaultProxy
    witness: Witness
    folder: Path
    operators: list[OperatorProcess] = field(default_factory=list)
    _numbers: Any = field(default_factory=itertools.count)
    _nodes: list[str] = field(default_factory=list)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def aclose(self) -> None:
        await self._stack.aclose()

    # --- operators ---

    @asynccontextmanager
    async def operator(self, *options: str, client: str = "operator") -> AsyncIterator[OperatorProcess]:
        """An operator that runs meanwhile; the proxy knows it by this name."""
        number = next(self._numbers)
        kubeconfig = self.proxy.write_kubeconfig(self.folder / f"kubeconfig-{number}", client)
        log = self.folder / f"operator-{number}.log"
        async with operator_process(kubeconfig, log, client, *options) as operator:
            self.operators.append(operator)
            yield operator

    @asynccontextmanager
    async def kept_running(self, *options: str, client: str = "operator") -> AsyncIterator[None]:
        """An operator that is started again, as a kubelet does it, when it is killed or ends with exit code 1."""
        async with meanwhile(self._keep_running(options, client)):
            yield

    async def _keep_running(self, options: tuple[str, ...], client: str) -> None:
        for number in itertools.count():
            async with self.operator(*options, client=client) as operator:
                code = await operator.ended()
            assert code in (1, -signal.SIGKILL), f"the operator ended with exit code {code}: {operator.text}"
            await asyncio.sleep(min(0.25 * 2**number, 5.0))

    async def leader(self) -> OperatorProcess:
        """The operator that is ready, as soon as one is."""

        async def ready() -> OperatorProcess | None:
            for operator in self.operators:
                if await operator.probe("/readyz") == 200:
                    return operator
            return None

        return await self.until("an operator is ready", ready)

    # --- objects ---

    async def furnish(self, *, nodes: int, devices: int, pods: int = 110) -> None:
        """Namespace, class, template, nodes with so many devices each and room for so many pods."""
        await self.api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        for number in range(nodes):
            self._nodes.append(f"node-{number}")
            await self._stack.enter_async_context(bare_node(self.api, self._nodes[-1], pods=pods))
        await self.add_driver(DRIVER, devices=devices)

    async def add_driver(self, driver: str, *, devices: int, kind: str = "gpu", template: str = "template") -> None:
        """A driver with so many devices on each node, a class for them, and a template for one of them."""
        expression = f'device.driver == "{driver}"'
        await self.api.create(DEVICE_CLASSES, Make.device_class(kind, expression))
        await self.api.create(RESOURCE_CLAIM_TEMPLATES, Make.template(template, class_name=kind))
        for node in self._nodes:
            await self.api.create(RESOURCE_SLICES, Make.slice(node, devices, driver, name=f"{node}-{kind}"))

    async def add_claim(self, name: str) -> None:
        await self.api.create(RESOURCE_CLAIMS, Make.claim(name))

    async def add_pod(
        self,
        name: str,
        claim: str | None = None,
        *,
        template: str = "template",
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> Object:
        """A pod with a claim from the template, or with this one."""
        source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
        body: Object = {
            "schedulerName": "dra-scheduler",
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", **source}],
        }
        metadata = {"name": name, "namespace": NAMESPACE, "annotations": dict(annotations or {})}
        return await self.api.create(PODS, {"metadata": metadata, "spec": body | spec})

    async def add_pods(self, count: int, prefix: str = "pod", claim: str | None = None) -> list[str]:
        """Many at once; their names."""
        names = [f"{prefix}-{number}" for number in range(count)]
        await asyncio.gather(*(self.add_pod(name, claim) for name in names))
        return names

    async def delete_pods(self, names: Iterable[str]) -> None:
        """Ask for it; the stubs do it."""

        async def delete(name: str) -> None:
            with suppress(NotFound):
                await self.api.delete(PODS, name, NAMESPACE)

        await asyncio.gather(*(delete(name) for name in names))

    # --- what can be seen ---

    async def pods(self) -> list[Object]:
        return (await self.api.list(PODS, NAMESPACE))[0]

    async def claims(self) -> list[Object]:
        return (await self.api.list(RESOURCE_CLAIMS, NAMESPACE))[0]

    async def bound_names(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in await self.pods() if pod["spec"].get("nodeName")]

    async def bound(self, count: int, seconds: float = PATIENCE) -> list[str]:
        """Wait until at least so many pods have a node."""

        async def enough() -> list[str] | None:
            names = await self.bound_names()
            return names if len(names) >= count else None

        return await self.until(f"{count} pods are bound", enough, seconds)

    async def until(self, what: str, look: Callable[[], Awaitable[T | None]], seconds: float = PATIENCE) -> T:
        """The same as ``waiting.until``, with the story of what happened if it is not observed."""
        try:
            return await until(what, look, seconds)
        except AssertionError as error:
            error.add_note(await self.story())
            raise

    async def reason(self, name: str) -> str:
        """Why the pod waits, by its condition."""
        pod = await self.api.get(PODS, name, NAMESPACE)
        conditions = (pod.get("status") or {}).get("conditions") or []
        waiting = [entry for entry in conditions if entry["type"] == "PodScheduled" and entry["status"] == "False"]
        return str(waiting[0].get("message", "")) if waiting else ""

    async def events(self, name: str, reason: str = "FailedScheduling") -> list[str]:
        events, _ = await self.api.list(EVENTS, NAMESPACE, fieldSelector=f"involvedObject.name={name}")
        return [event["message"] for event in events if event["reason"] == reason]

    async def emptied(self, seconds: float = PATIENCE) -> None:
        """Delete all pods, and wait until nothing is left over."""
        await self.delete_pods([pod["metadata"]["name"] for pod in await self.pods()])

        async def nothing_left() -> bool:
            if await self.pods():
                return False
            leaks = await self.witness.leaks()
            if leaks:
                raise AssertionError("; ".join(leaks))
            return True

        await self.until("no pods, and nothing left over", nothing_left, seconds)

    async def sound(self) -> None:
        """Nothing was wrong in any state so far, neither at the server nor in the memory of the operators."""
        await self.witness.caught_up()
        wrong = [f"{finding.what} (revision {finding.since} to {finding.until})" for finding in self.witness.findings()]
        wrong += [line for operator in self.operators for line in operator.complaints()]
        if wrong:
            concerned = set(re.findall(rf"{NAMESPACE}/([\w-]+)", " ".join(wrong[:3])))
            done = self.proxy.journal.about(concerned)
            lines = [f"{len(wrong)} things were wrong:", *wrong[:20], "What was done to the first:", *done]
            raise AssertionError("\n".join([*lines, await self.story()]))

    async def story(self) -> str:
        """For a test that failed: who waits and why, what was done to requests, what the operators said."""
        waiting = [pod["metadata"]["name"] for pod in await self.pods() if not pod["spec"].get("nodeName")]
        lines = [f"{name}: {await self.reason(name) or 'no reason'}" for name in waiting[:10]]
        lines += [f"writes: {dict(self.proxy.journal.writes())}", f"faults: {dict(self.proxy.journal.faults())}"]
        lines += [f"{operator.log}:\n{operator.text[-3000:]}" for operator in self.operators[-2:]]
        return "\n".join(lines)


@asynccontextmanager
async def proving_ground(
    folder: Path, seed: int = 0, gates: Mapping[str, bool] | None = None
) -> AsyncIterator[ProvingGround]:
    """An empty one, whose servers have these feature gates as well."""
    with _api_server(folder, gates or {}) as kubeconfig:
        to_server = connection(kubeconfig)
        async with Api(to_server, timeout=PATIENCE) as api, FaultProxy(to_server, seed=seed) as proxy:
            async with Witness(api) as witness, node_stub(api):
                ground = ProvingGround(api, proxy, witness, folder)
                async with aclosing(ground):
                    yield ground


@contextmanager
def _api_server(folder: Path, gates: Mapping[str, bool]) -> Iterator[Path]:
    binaries = envtest.assets()
    if binaries and not missing():
        servers = folder / "servers"
        servers.mkdir()
        with envtest.real_api_server(binaries, servers, stock=True, gates=gates) as kubeconfig:
            yield kubeconfig
    else:
        with serve_in_thread(feature_gates=gates) as server:
            yield server.write_kubeconfig(folder / "kubeconfig")


__all__ = ["NAMESPACE", "PATIENCE", "ProvingGround", "proving_ground"]
