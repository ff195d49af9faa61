"""One end-to-end test: a namespace, a driver with a name of its own, and the objects that scenarios are made of.

The marks at the end say with which nodes a test runs, and beside which controllers it does not.

The cluster in which the end-to-end tests live: an API server, nodes that run pods, and the operator.

The API server is the development cluster's; or the one of ``KUBECONFIG``; or a real one started from
``KUBEBUILDER_ASSETS``, with ``KOPF_DRA_STOCK=1`` beside everything that a cluster has. The nodes are always node
agents of ours, which join whatever cluster it is: so every scenario that needs a node runs against a real API server
too. They live in a thread with a loop of its own, since a session outlives the loop of each test.

``second_operator`` is one more operator, which has what is off by default, and little patience. It places pods of its
own scheduler name. It evicts beside the first operator, or beside kube-controller-manager, and they do the same;
DeviceTaintRules and ResourcePoolStatusRequests are served by it alone.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import envtest
import pytest
from command import OperatorProcess, operator_process
from dra_devcluster.agent import AgentSettings, Backoff, NodeAgent
from dra_devcluster.apiserver import serve_in_thread
from dra_devcluster.node_protocol import SERVER_KEY_ANNOTATION
from dra_kube import (
    DEVICE_CLASSES,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Api,
    Connection,
    NotFound,
    Object,
    Resource,
    connection,
)
from dra_kubeletplugin import Driver, KubeletPlugin, PluginSettings, Pool, Resources, device
from dra_kubeletplugin.drivers.simulated import SimulatedDriver
from dra_kubeletplugin.testing import CallRecorder, Faults
from msgspec.structs import replace
from proving_ground import bare_node
from waiting import NotObserved, gone, stays, until

T = TypeVar("T")
NODE_LABEL = "e2e.kopf-dra/nodes"  # value: "running" where pods run, "objects" where only the control plane acts
SETTINGS = AgentSettings(
    pod_retry=0.5,
    lease_period=2.0,
    registration_backoff=Backoff(0.1, 1.0),
    plugin_period=0.1,
    wipe_delay=0.5,
    wipe_backoff=Backoff(0.2, 1.0),
    claim_period=2.0,
    restart_backoff=Backoff(0.2, 1.0),
)


@dataclass
class World:
    """``nodes`` run pods; ``object_nodes`` are names of Nodes where nothing runs, for control plane scenarios."""

    kubeconfig: Path
    kind: str
    nodes: list[NodeAgent] = field(default_factory=list)
    object_nodes: list[str] = field(default_factory=list)

    def connection(self) -> Connection:
        return connection(self.kubeconfig)


class LoopThread:
    """An event loop in a thread, for what outlives a test."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="e2e-world", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something there and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@contextmanager
def api_server(folder: Path) -> Iterator[tuple[Path, str]]:
    """A kubeconfig, and which kind of API server is behind it."""
    given = os.environ.get("KUBECONFIG")
    binaries = envtest.assets()
    if given:
        yield Path(given), "KUBECONFIG"
    elif binaries:
        with envtest.real_api_server(binaries, folder, stock="KOPF_DRA_STOCK" in os.environ) as kubeconfig:
            yield kubeconfig, "KUBEBUILDER_ASSETS"
    else:
        with serve_in_thread() as server:
            yield server.write_kubeconfig(folder / "kubeconfig"), "development cluster"


@contextmanager
def world(folder: Path, nodes: int = 4) -> Iterator[World]:
    """Everything but the operator."""
    suffix = secrets.token_hex(3)
    with ExitStack() as stack:
        kubeconfig, kind = stack.enter_context(api_server(folder))
        thread = LoopThread()
        stack.callback(thread.close)
        running = World(kubeconfig, kind)
        agents = AsyncExitStack()
        stack.callback(lambda: thread.run(agents.aclose()))
        thread.run(_join(running, agents, folder, [f"e2e-{suffix}-{number}" for number in range(nodes)]))
        yield running


async def _join(running: World, stack: AsyncExitStack, folder: Path, names: list[str]) -> None:
    api = await stack.enter_async_context(Api(running.connection(), user_agent="node-agent"))
    for number, name in enumerate(names):
        agent = NodeAgent(api, name, root=folder / f"n{number}", settings=SETTINGS)
        running.nodes.append(await stack.enter_async_context(agent))
        stack.push_async_callback(_forget, api, name)
        await api.patch(NODES, name, {"metadata": {"labels": {NODE_LABEL: "running"}}})
        bare = f"{name}-object"
        objects = bare_node(api, bare, labels={NODE_LABEL: "objects"}, renewal_seconds=SETTINGS.lease_period)
        await stack.enter_async_context(objects)
        running.object_nodes.append(bare)


async def _forget(api: Api, node: str) -> None:
    with suppress(NotFound):
        await api.delete(NODES, node)


# --- One more operator ---

SECOND = "e2e-second"
"""Its scheduler name."""
FILTER_TIMEOUT = 0.1
OPTIONS = (
    *("--scheduler-name", SECOND, "--controllers", "placement,release,eviction"),
    *("--feature-gates", "DRAResourcePoolStatus=true,DRADeviceTaintRules=true"),
    *("--binding-timeout", "2", "--filter-timeout", str(FILTER_TIMEOUT)),
)


@contextmanager
def second_operator(kubeconfig: Path, folder: Path) -> Iterator[OperatorProcess]:
    """It is ready, and runs in a process of its own."""
    thread, stack = LoopThread(), AsyncExitStack()
    try:
        running = operator_process(kubeconfig, folder / "log", "second", *OPTIONS)
        operator = thread.run(stack.enter_async_context(running))
        thread.run(operator.becomes_ready())
        yield operator
    finally:
        thread.run(stack.aclose())
        thread.close()


async def node_log(api: Api, namespace: str, pod: str, container: str) -> str:
    """The log of a container whose node is an agent of ours. Raises NotFound."""
    node = await api.get(NODES, (await api.get(PODS, pod, namespace))["spec"]["nodeName"])
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    key = f"Bearer {node['metadata']['annotations'][SERVER_KEY_ANNOTATION]}"
    async with Api(Connection(f"http://127.0.0.1:{port}", None, lambda: key)) as kubelet:
        return await kubelet.raw_text(f"/containerLogs/{namespace}/{pod}/{container}")


# --- scene ---

PRINT_ENVIRONMENT = "env | grep -E '^(user|admin|claim)_' | sort; echo ready; trap 'exit 0' TERM; sleep 3600 & wait"
CLASS_PARAMETERS = {"x": "y"}
CLAIM_PARAMETERS = {"a": "b"}


@dataclass
class RunningPlugin:
    """One instance of the test's driver on one node."""

    node: NodeAgent
    plugin: KubeletPlugin
    recorder: CallRecorder
    faults: Faults
    stack: AsyncExitStack

    def count(self, method: str) -> int:
        """How often the kubelet has called a method (``NodePrepareResources``)."""
        return self.recorder.count(method)

    async def stop(self) -> None:
        await self.stack.aclose()


@dataclass
class Scene:
    """``kubelet`` False: pods are placed on nodes that exist only as objects, and nothing runs."""

    world: World
    api: Api
    namespace: str
    kubelet: bool = True
    plugins: list[RunningPlugin] = field(default_factory=list)
    _published: list[str] = field(default_factory=list)
    _classes: list[str] = field(default_factory=list)

    # --- the driver ---

    @property
    def driver_name(self) -> str:
        return f"{self.namespace}.k8s.io"

    @property
    def class_name(self) -> str:
        return f"{self.namespace}-class"

    @property
    def node_names(self) -> list[str]:
        return [agent.node_name for agent in self.world.nodes] if self.kubelet else self.world.object_nodes

    async def start_driver(self, *, nodes: int = 1, devices: int = 1, with_class: bool = True) -> None:
        """The driver on the first nodes with that many devices each, and its class unless it is to come later."""
        if with_class:
            await self.create_class()
        for number in range(nodes):
            pool = [device(f"device-{index:02}") for index in range(devices)]
            await self.start_plugin(number, {self.node_names[number]: Pool.of(pool)})

    async def start_plugin(
        self, number: int, resources: Resources, *, driver: Driver | None = None, **settings_of_plugin: Any
    ) -> RunningPlugin | None:
        """The driver, the simulated one unless given, on one node; without kubelet only its slices."""
        if not self.kubelet:
            await self.publish_objects(number, resources)
            return None
        agent = self.world.nodes[number]
        settings = PluginSettings(
            driver_name=self.driver_name,
            node_name=agent.node_name,
            registry_dir=agent.registration_directory,
            data_dir=agent.root / "plugins" / self.driver_name,
            cdi_dir=agent.cdi_root,
            **settings_of_plugin,
        )
        recorder, faults, stack = CallRecorder(), Faults(), AsyncExitStack()
        driver = driver or SimulatedDriver(self.driver_name)
        plugin = KubeletPlugin(driver, settings, self.api, interceptors=[recorder, faults])
        await stack.enter_async_context(plugin)
        await plugin.publish(resources)
        running = RunningPlugin(agent, plugin, recorder, faults, stack)
        self.plugins.append(running)
        async with asyncio.timeout(60):
            await plugin.registered()
            await plugin.published()
        return running

    async def publish_objects(self, number: int, resources: Resources) -> None:
        """ResourceSlices of a node without a plugin behind them."""
        from dra_api.codec import to_dict

        for pool_name, pool in resources.items():
            for piece in pool.slices:
                await self.create_slice(
                    nodeName=self.node_names[number],
                    pool={"name": pool_name, "generation": 1, "resourceSliceCount": len(pool.slices)},
                    devices=[to_dict(entry) for entry in piece.devices],
                )

    async def create_slice(self, **spec: Any) -> Object:
        """A ResourceSlice of this test's driver, without a plugin behind it."""
        name = f"{self.namespace}-{len(self._published)}"
        self._published.append(name)
        body = {"metadata": {"name": name}, "spec": {"driver": self.driver_name, **spec}}
        return await self.api.create(RESOURCE_SLICES, body)

    async def create_class(self, selector: str | None = None, name: str | None = None, resource: str = "") -> Object:
        """The class of this test's driver, or another one; ``resource``: the extended resource that it serves."""
        expression = selector or f'device.driver == "{self.driver_name}"'
        spec = {
            "selectors": [{"cel": {"expression": expression}}],
            "config": [{"opaque": {"driver": self.driver_name, "parameters": CLASS_PARAMETERS}}],
            **({"extendedResourceName": resource} if resource else {}),
        }
        self._classes.append(name or self.class_name)
        return await self.api.create(DEVICE_CLASSES, {"metadata": {"name": self._classes[-1]}, "spec": spec})

    # --- claims and pods ---

    def claim_spec(self, *requests: Object, parameters: dict[str, str] | None = None) -> Object:
        """One exact request named ``req`` unless others are given."""
        wanted = list(requests) or [{"name": "req", "exactly": {"deviceClassName": self.class_name}}]
        opaque = {"driver": self.driver_name, "parameters": parameters or CLAIM_PARAMETERS}
        return {"devices": {"requests": wanted, "config": [{"opaque": opaque}]}}

    async def create_claim(self, name: str = "external-claim", spec: Object | None = None) -> Object:
        body = {"metadata": {"name": name, "namespace": self.namespace}, "spec": spec or self.claim_spec()}
        return await self.api.create(RESOURCE_CLAIMS, body)

    async def post(self, resource: Resource, version: str, body: Object) -> None:
        """Create an object in an older version of its kind."""
        old = replace(resource, versions=(version,))
        await self.api.create(old, body)

    async def create_template(self, name: str = "template", spec: Object | None = None) -> Object:
        body = {"metadata": {"name": name, "namespace": self.namespace}, "spec": {"spec": spec or self.claim_spec()}}
        return await self.api.create(RESOURCE_CLAIM_TEMPLATES, body)

    def pod(
        self,
        name: str = "tester",
        claims: Sequence[Object] = ({"name": "my-claim", "resourceClaimName": "external-claim"},),
        **spec: Any,
    ) -> Object:
        """A pod whose only container uses all its claims, prints what it got, and waits."""
        body: Object = {
            "schedulerName": "dra-scheduler",
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Never",
            "nodeSelector": {NODE_LABEL: "running" if self.kubelet else "objects"},
            "resourceClaims": list(claims),
            "containers": [self.container("with-resource", *(claim["name"] for claim in claims))],
        }
        return {"metadata": {"name": name, "namespace": self.namespace}, "spec": body | spec}

    @staticmethod
    def container(
        name: str,
        *claims: str | Object,
        script: str = PRINT_ENVIRONMENT,
        amounts: Mapping[str, int] | None = None,
    ) -> Object:
        """A container that uses claims, given by entry name or as ``{name, request}``, and asks for resources."""
        used = [{"name": claim} if isinstance(claim, str) else claim for claim in claims]
        wanted = {resource: str(amount) for resource, amount in (amounts or {}).items()}
        asked = {"claims": used, "requests": wanted, "limits": wanted}
        body: Object = {"name": name, "image": "busybox:1.37", "command": ["sh", "-c", script]}
        return body | {"resources": {field: value for field, value in asked.items() if value}}

    def inline_pod(self, name: str = "tester", template: str = "template", **spec: Any) -> Object:
        """A pod with one claim generated from a template."""
        return self.pod(name, [{"name": "my-claim", "resourceClaimTemplateName": template}], **spec)

    async def create_pod(self, body: Object) -> Object:
        return await self.api.create(PODS, body)

    async def delete_pod(self, name: str, grace_seconds: int | None = None) -> None:
        """Delete a pod and wait until it is gone; without a kubelet, no other component ends it."""
        try:
            await self.api.delete(PODS, name, self.namespace, grace_seconds=grace_seconds if self.kubelet else 0)
        except NotFound:
            return
        await gone(f"pod {name}", lambda: self.get_pod(name))

    async def delete_claim(self, name: str = "external-claim") -> None:
        """Delete a claim and wait until it is gone."""
        await self._delete(RESOURCE_CLAIMS, name, self.namespace)
        await gone(f"claim {name}", lambda: self.get_claim(name))

    # --- what can be seen ---

    async def get_pod(self, name: str = "tester") -> Object:
        return await self.api.get(PODS, name, self.namespace)

    async def get_claim(self, name: str = "external-claim") -> Object:
        return await self.api.get(RESOURCE_CLAIMS, name, self.namespace)

    async def claims(self) -> list[Object]:
        return (await self.api.list(RESOURCE_CLAIMS, self.namespace))[0]

    async def runs(self, name: str = "tester", seconds: float = 30.0) -> Object:
        """Wait until the pod runs; without kubelet, until it is bound and every claim of it is reserved for it."""

        async def look() -> Object | None:
            pod = await self.get_pod(name)
            if self.kubelet:
                return pod if pod.get("status", {}).get("phase") == "Running" else None
            return pod if pod["spec"].get("nodeName") and await self.reserved(pod) else None

        try:
            return await until(f"pod {name} runs", look, seconds)
        except NotObserved as error:
            error.add_note(await self.story_of(name))
            raise

    async def story_of(self, name: str) -> str:
        """What the cluster says of a pod: its status, its claims, its events."""
        pod = await self.get_pod(name)
        events, _ = await self.api.list(EVENTS, self.namespace, fieldSelector=f"involvedObject.name={name}")
        lines = [f"node {pod['spec'].get('nodeName')}, status {pod.get('status')}"]
        lines += [f"claim {claim['metadata']['name']}: {claim.get('status')}" for claim in await self.claims()]
        return "\n".join(lines + [f"event {event['reason']}: {event['message']}" for event in events])

    async def reserved(self, pod: Object) -> bool:
        """All claims that the pod has are allocated and reserved for it."""
        generated = {entry["name"]: entry for entry in pod.get("status", {}).get("resourceClaimStatuses") or ()}
        for entry in pod["spec"].get("resourceClaims") or ():
            found = generated.get(entry["name"], {}) if "resourceClaimTemplateName" in entry else entry
            if found.get("resourceClaimName"):
                status = (await self.get_claim(found["resourceClaimName"])).get("status", {})
                uids = [consumer["uid"] for consumer in status.get("reservedFor") or ()]
                if not status.get("allocation") or pod["metadata"]["uid"] not in uids:
                    return False
            elif entry["name"] not in generated:
                return False
        return True

    async def pending(self, name: str = "tester", says: str = "", seconds: float = 30.0) -> str:
        """Wait for the scheduler's reason why the pod is not placed; ``says`` is a pattern that it matches."""

        async def look() -> str | None:
            for condition in (await self.get_pod(name)).get("status", {}).get("conditions") or ():
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    message = str(condition.get("message", ""))
                    return message if re.search(says, message) else None
            return None

        return await until(f"a reason like {says!r} why pod {name} is pending", look, seconds)

    async def stays_pending(self, name: str = "tester", seconds: float = 3.0) -> None:
        """The pod does not run in this time."""

        async def look() -> bool:
            return str((await self.get_pod(name)).get("status", {}).get("phase", "Pending")) == "Pending"

        await stays(f"pod {name} pending", look, seconds)

    async def ends(self, name: str = "tester", phase: str = "Succeeded", seconds: float = 30.0) -> Object:
        """Wait for a terminal phase."""

        async def look() -> Object | None:
            pod = await self.get_pod(name)
            return pod if pod.get("status", {}).get("phase") == phase else None

        return await until(f"pod {name} {phase}", look, seconds)

    async def environment(self, name: str = "tester", container: str = "with-resource") -> set[str]:
        """What the container saw, once it has printed it; nothing to see without kubelet."""

        async def look() -> set[str] | None:
            try:
                lines = (await self.log(name, container)).splitlines()
            except NotFound:
                return None
            return set(lines) - {"ready"} if "ready" in lines else None

        return await until(f"environment of {name}/{container}", look)

    async def log(self, name: str, container: str) -> str:
        """What a container printed: through the API server, or from the node itself."""
        if self.world.kind == "development cluster":
            path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/log"
            return await self.api.raw_text(path, container=container)
        return await node_log(self.api, self.namespace, name, container)

    async def deallocated(self, name: str = "external-claim") -> Object:
        """Wait until no pod holds the claim and it has no devices."""

        async def look() -> Object | None:
            claim = await self.get_claim(name)
            status = claim.get("status", {})
            return claim if not status.get("allocation") and not status.get("reservedFor") else None

        return await until(f"claim {name} deallocated", look)

    async def event(self, name: str, reason: str, says: str = "", seconds: float = 30.0) -> Object:
        """Wait for an event about a pod."""

        async def look() -> Object | None:
            selector = f"involvedObject.name={name},reason={reason}"
            events, _ = await self.api.list(EVENTS, self.namespace, fieldSelector=selector)
            return next((event for event in events if re.search(says, event["message"])), None)

        return await until(f"event {reason} like {says!r} on {name}", look, seconds)

    # --- the end ---

    async def end(self) -> None:
        """Take everything down and check that nothing was left behind."""
        for pod in (await self.api.list(PODS, self.namespace))[0]:
            await self.delete_pod(pod["metadata"]["name"])
        for claim in await self.claims():
            if not claim["metadata"].get("ownerReferences"):
                await self.delete_claim(claim["metadata"]["name"])

        async def no_claims() -> bool:
            return not await self.claims()

        await until("all claims gone", no_claims)
        try:
            for running in self.plugins:
                assert running.plugin.prepared_claims == [], "a claim was prepared and never unprepared"
                assert not list(running.node.cdi_root.glob(f"{self.driver_name}*")), "a CDI file was left behind"
        finally:
            for running in self.plugins:
                await running.stop()
        for name in self._published:
            await self._delete(RESOURCE_SLICES, name)

        async def no_slices() -> bool:
            selector = f"spec.driver={self.driver_name}"
            return not (await self.api.list(RESOURCE_SLICES, fieldSelector=selector))[0]

        await until("slices wiped after the driver has gone", no_slices)
        for name in self._classes:
            await self._delete(DEVICE_CLASSES, name)
        await self._delete(NAMESPACES, self.namespace)

    async def _delete(self, resource: Resource, name: str, namespace: str | None = None) -> None:
        with suppress(NotFound):
            await self.api.delete(resource, name, namespace)


both = pytest.mark.parametrize("scene", ["kubelet", "control-plane"], indirect=True)
"""Run with nodes that run pods, and with the control plane alone."""

control_plane = pytest.mark.parametrize("scene", ["control-plane"], indirect=True)
"""Run with the control plane alone: nodes are objects, and slices have no plugin behind them."""

done_by_us = pytest.mark.skipif("KOPF_DRA_STOCK" in os.environ, reason="kube-controller-manager does this here")
"""Not beside a kube-controller-manager with all its controllers (``KOPF_DRA_STOCK=1``)."""
