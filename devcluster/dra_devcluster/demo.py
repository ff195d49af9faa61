"""``dra-devcluster demo``: the life of a pod from request to device and back, printed as it happens.

Everything is real: the API server speaks HTTPS, each node has a plugin process behind gRPC on unix sockets, the
operator is a process of its own under Kopf, containers are processes. Each line states an *observation* through the
API, in a container's log or on disk. A step that observes nothing in time fails the demo and names itself.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from dra_kube import (
    DEVICE_CLASSES,
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Api,
    NotFound,
    Object,
)

from dra_devcluster.processes import ForkedProcess

from .cluster import DRIVER, DevCluster
from .processes import ChildProcess, ProcessFailed, command

T = TypeVar("T")
NAMESPACE = "default"
CLASS = "gpu"
STEP_SECONDS = 60.0  # generous: a program that ended is noticed at once
SCRIPT = "env | grep -E '^(user|admin|claim)_' | sort; echo ready; trap 'exit 0' TERM; while true; do sleep 1; done"


class StepFailed(Exception):
    """A step of the story did not come true in time."""


class Story:
    """Prints the steps and waits until each comes true."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.step = ""
        self.needs: list[ChildProcess | ForkedProcess] = []

    def tell(self, step: str) -> None:
        self.step = step
        print(f"\n{time.monotonic() - self.started:5.1f}s  {step}", flush=True)

    def observe(self, what: str) -> None:
        for number, line in enumerate(what.splitlines()):
            print(f"        {'-' if number == 0 else ' '} {line}", flush=True)

    async def until(self, what: str, look: Callable[[], Awaitable[T | None]], seconds: float = STEP_SECONDS) -> T:
        """The first answer of ``look`` that is not None.

        Raises StepFailed, which names the step and what was missing, or the process that has ended.
        """
        deadline = time.monotonic() + seconds
        while True:
            found = await look()
            if found is not None:
                return found
            try:
                for process in self.needs:
                    process.check()
            except ProcessFailed as error:
                raise StepFailed(f"{self.step}: {error}") from error
            if time.monotonic() > deadline:
                raise StepFailed(f"{self.step}: {what} was not observed within {seconds:.0f} s")
            await asyncio.sleep(0.05)


class Scene:
    """The cluster of the story, and questions about it."""

    def __init__(self, cluster: DevCluster, api: Api, story: Story) -> None:
        self.cluster, self.api, self.story = cluster, api, story

    async def pod(self, name: str) -> Object:
        """The pod once it runs and its container has printed ``ready``."""

        async def running() -> Object | None:
            pod = await self.api.get(PODS, name, NAMESPACE)
            if pod.get("status", {}).get("phase") != "Running":
                return None
            return pod if "ready" in (await self.log(name)).split() else None

        return await self.story.until(f"pod {name} running", running)

    async def claim_of(self, pod: Object) -> Object:
        entry = pod["spec"]["resourceClaims"][0]
        names = (
            {status["name"]: status.get("resourceClaimName") for status in pod["status"]["resourceClaimStatuses"]}
            if ("resourceClaimTemplateName" in entry)
            else {entry["name"]: entry["resourceClaimName"]}
        )
        return await self.api.get(RESOURCE_CLAIMS, names[entry["name"]], NAMESPACE)

    async def log(self, pod: str) -> str:
        try:
            return await self.api.raw_text(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/log")
        except NotFound:
            return ""

    async def why(self, pod: str) -> str:
        """The scheduler's reason for a pending pod: the PodScheduled condition, and the event that says the same."""

        async def refused() -> str | None:
            found = await self.api.get(PODS, pod, NAMESPACE)
            for condition in found.get("status", {}).get("conditions") or ():
                if condition["type"] == "PodScheduled" and condition["status"] == "False" and condition.get("message"):
                    return str(condition["message"])
            return None

        return await self.story.until(f"a reason why pod {pod} is pending", refused)

    async def event_of(self, pod: str, reason: str) -> Object:
        """The newest event of that reason about a pod."""

        async def seen() -> Object | None:
            events, _ = await self.api.list(
                EVENTS, NAMESPACE, fieldSelector=f"involvedObject.name={pod},reason={reason}"
            )
            return events[-1] if events else None

        return await self.story.until(f"an event {reason} about pod {pod}", seen)

    def cdi_files(self) -> list[Path]:
        """The CDI files of the driver on all nodes."""
        return sorted(file for node in self.cluster.nodes for file in node.cdi_dir.glob("*") if file.is_file())


def device_class() -> Object:
    return {
        "metadata": {"name": CLASS},
        "spec": {
            "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}],
            "config": [{"opaque": {"driver": DRIVER, "parameters": {"color": "green"}}}],
        },
    }


def claim_spec(*, selector: str | None = None) -> Object:
    exactly: Object = {"deviceClassName": CLASS}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    config = [{"opaque": {"driver": DRIVER, "parameters": {"purpose": "demo"}}}]
    return {"devices": {"requests": [{"name": "device", "exactly": exactly}], "config": config}}


def pod(name: str, **claim: str) -> Object:
    return {
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "schedulerName": "dra-scheduler",
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": "device", **claim}],
            "containers": [
                {
                    "name": "main",
                    "image": "busybox",
                    "command": ["sh", "-c", SCRIPT],
                    "resources": {"claims": [{"name": "device"}]},
                }
            ],
        },
    }


def device_of(claim: Object) -> str:
    """``pool/device`` of the claim's first result."""
    result = claim["status"]["allocation"]["devices"]["results"][0]
    return f"{result['pool']}/{result['device']}"


async def tell_own_claims(scene: Scene) -> None:
    story, api = scene.story, scene.api
    story.tell("A class, a template, and two pods that each want a device of their own")
    await api.create(DEVICE_CLASSES, device_class())
    for name, selector in (
        ("any-gpu", None),
        ("no-such-gpu", f'device.attributes["{DRIVER}"].?model.orValue("unknown") == "gold-plated"'),
    ):
        body = {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"spec": claim_spec(selector=selector)}}
        await api.create(RESOURCE_CLAIM_TEMPLATES, body)
    for name in ("own-1", "own-2"):
        await api.create(PODS, pod(name, resourceClaimTemplateName="any-gpu"))
    for name in ("own-1", "own-2"):
        running = await scene.pod(name)
        claim = await scene.claim_of(running)
        consumers = [consumer["name"] for consumer in claim["status"]["reservedFor"]]
        story.observe(
            f"claim {claim['metadata']['name']} generated, allocated {device_of(claim)}, "
            f"reserved for {', '.join(consumers)}"
        )
        files = [file.name for file in scene.cdi_files() if claim["metadata"]["uid"] in file.name]
        if not files:
            raise StepFailed(f"{story.step}: no CDI file for claim {claim['metadata']['name']}")
        story.observe(f"prepared on {running['spec']['nodeName']}: {files[0]}")
        seen = [line for line in (await scene.log(name)).splitlines() if line != "ready"]
        if "admin_color=green" not in seen or "user_purpose=demo" not in seen:
            raise StepFailed(f"{story.step}: container of {name} saw {seen}")
        story.observe(f"inside pod {name}: {', '.join(seen)}")


async def tell_shared_claim(scene: Scene) -> None:
    story, api = scene.story, scene.api
    story.tell("One claim, shared by two pods")
    await api.create(RESOURCE_CLAIMS, {"metadata": {"name": "shared", "namespace": NAMESPACE}, "spec": claim_spec()})
    for name in ("shared-1", "shared-2"):
        await api.create(PODS, pod(name, resourceClaimName="shared"))
    nodes = {(await scene.pod(name))["spec"]["nodeName"] for name in ("shared-1", "shared-2")}
    claim = await api.get(RESOURCE_CLAIMS, "shared", NAMESPACE)
    consumers = sorted(consumer["name"] for consumer in claim["status"]["reservedFor"])
    if consumers != ["shared-1", "shared-2"] or len(nodes) != 1:
        raise StepFailed(f"{story.step}: reserved for {consumers}, running on {sorted(nodes)}")
    story.observe(
        f"claim shared allocated {device_of(claim)}, reserved for {' and '.join(consumers)}, both on {nodes.pop()}"
    )


async def tell_refusal(scene: Scene) -> None:
    story, api = scene.story, scene.api
    story.tell("A pod that cannot be allocated, and why")
    await api.create(PODS, pod("impossible", resourceClaimTemplateName="no-such-gpu"))
    story.observe(f"pod impossible is pending: {await scene.why('impossible')}")
    event = await scene.event_of("impossible", "FailedScheduling")
    story.observe(f"event {event['reason']}: {event['message']}")


async def tell_waiting(scene: Scene) -> None:
    story, api = scene.story, scene.api
    story.tell("The last device is taken; the next pod waits until one comes back")
    await api.create(PODS, pod("last", resourceClaimTemplateName="any-gpu"))
    await scene.pod("last")
    await api.create(PODS, pod("waiting", resourceClaimTemplateName="any-gpu"))
    story.observe(f"pod waiting is pending: {await scene.why('waiting')}")
    freed = device_of(await scene.claim_of(await api.get(PODS, "own-1", NAMESPACE)))
    await api.delete(PODS, "own-1", NAMESPACE)
    story.observe(f"deleted pod own-1, which held {freed}")
    claim = await scene.claim_of(await scene.pod("waiting"))
    story.observe(f"pod waiting runs with {device_of(claim)}")


async def tell_end(scene: Scene) -> None:
    story, api = scene.story, scene.api
    story.tell("Everything is released")
    for found in (await api.list(PODS, NAMESPACE))[0]:
        await api.delete(PODS, found["metadata"]["name"], NAMESPACE)

    async def nothing_left() -> str | None:
        pods, _ = await api.list(PODS, NAMESPACE)
        claims, _ = await api.list(RESOURCE_CLAIMS, NAMESPACE)
        allocated = [claim for claim in claims if claim.get("status", {}).get("allocation")]
        generated = [claim for claim in claims if claim["metadata"].get("ownerReferences")]
        if pods or allocated or generated or scene.cdi_files():
            return None
        return ", ".join(claim["metadata"]["name"] for claim in claims)

    remaining = await story.until("no pod, no allocation, no generated claim, no CDI file", nothing_left)
    story.observe(f"no pod, nothing allocated, no CDI file; claims made by hand stay, unallocated: {remaining}")


async def set_the_scene(scene: Scene, started: float) -> None:
    story, api = scene.story, scene.api
    version = (await api.raw_get("/version"))["gitVersion"]
    story.observe(f"API server {version} at {api.connection.host}, ready after {time.monotonic() - started:.1f} s")

    async def ready_nodes() -> list[str] | None:
        nodes, _ = await api.list(NODES)
        ready = [
            node["metadata"]["name"]
            for node in nodes
            for condition in node.get("status", {}).get("conditions") or ()
            if condition["type"] == "Ready" and condition["status"] == "True"
        ]
        return ready if len(ready) == len(scene.cluster.nodes) else None

    async def slices() -> list[Object] | None:
        found, _ = await api.list(RESOURCE_SLICES)
        return found if len(found) == len(scene.cluster.nodes) else None

    story.needs += [node.plugin for node in scene.cluster.nodes if node.plugin is not None]
    story.observe(f"nodes ready: {', '.join(await story.until('all nodes ready', ready_nodes))}")
    for piece in await story.until("one ResourceSlice per node", slices):
        devices = ", ".join(device["name"] for device in piece["spec"]["devices"])
        story.observe(f"plugin on {piece['spec']['nodeName']} registered and published {devices}")


async def play(folder: Path, story: Story) -> None:
    """Run the full demo, with everything in ``folder``. Raises StepFailed."""
    started = time.monotonic()
    story.tell("An API server, two nodes, a plugin process on each, two devices per node")
    async with DevCluster(folder, nodes=2, devices=2) as cluster, Api(cluster.connection()) as api:
        scene = Scene(cluster, api, story)
        await set_the_scene(scene, started)
        story.tell("The operator, a process of its own")
        arguments = command("dra-operator", "run", "--kubeconfig", str(cluster.kubeconfig))
        async with ChildProcess("operator", arguments, folder / "operator.log") as operator:
            story.needs.append(operator)
            story.observe(f"operator started, process {operator.pid}, log {operator.log}")
            for tell in (tell_own_claims, tell_shared_claim, tell_refusal, tell_waiting, tell_end):
                await tell(scene)
            story.tell("The end")
            code = await operator.stop()
            if code != 0:
                raise StepFailed(f"the operator ended with exit code {code}; see {operator.log}")
            story.observe("operator ended by itself with exit code 0")
    story.observe(f"all of it took {time.monotonic() - started:.0f} s")


def run() -> int:
    """Play the story; 0 when everything was observed, 1 with the failing step otherwise."""
    story = Story()
    with tempfile.TemporaryDirectory(prefix="dra-") as temporary:
        folder = Path(temporary)
        try:
            asyncio.run(play(folder, story))
        except KeyboardInterrupt:
            print("\ninterrupted", file=sys.stderr)
            return 130
        except Exception as error:
            print(f"\nFAILED: {error or type(error).__name__}", file=sys.stderr)
            _show_logs(folder)
            return 1
    return 0


def _show_logs(folder: Path) -> None:
    for log in sorted(folder.rglob("*.log")):
        tail: list[Any] = log.read_text(errors="replace").splitlines()[-15:]
        print(f"--- the last lines of {log.name}", *tail, sep="\n", file=sys.stderr)
