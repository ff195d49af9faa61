"""One node of the development cluster: its agent, and short ways to make and watch objects.

``exec`` and ``attach`` are those of the pod ``pod-a`` of the node, over the API server's websocket. ``Claims``
stands for an API server of which a test of the node needs the claims alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from dra_api.codec import convert
from dra_api.core import Pod
from dra_devcluster.agent import AgentSettings, LocalRuntime, NodeAgent
from dra_kube import EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Api, NotFound
from objects import owner, user
from waiting import gone, until

Json = dict[str, Any]


class OneNode:
    """An API server, one node's agent that can be stopped and started, and short ways to make and watch objects."""

    name = "node-1"

    def __init__(self, api: Api, root: Path, settings: AgentSettings) -> None:
        self.api = api
        self.root = root
        self.settings = settings
        self.runtime: LocalRuntime | None = None
        self._agent: NodeAgent | None = None

    @property
    def cdi_root(self) -> Path:
        return self.root / "cdi"

    async def start(self) -> NodeAgent:
        self._agent = NodeAgent(self.api, self.name, root=self.root, settings=self.settings, runtime=self.runtime)
        return await self._agent.__aenter__()

    async def stop(self) -> None:
        """Stop the agent as a kubelet is stopped."""
        agent, self._agent = self._agent, None
        if agent is not None:
            await agent.__aexit__(None, None, None)

    async def claim(self, name: str, *pods: str, drivers: tuple[str, ...] = ("gpu.example.com",)) -> Json:
        """A claim that is allocated on the node and reserved for the pods (by name; they must exist)."""
        requests = [{"name": f"req-{index}", "exactly": {"deviceClassName": "c"}} for index in range(len(drivers))]
        claim = await self.api.create(
            RESOURCE_CLAIMS,
            {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": {"requests": requests}}},
        )
        results = [
            {"request": f"req-{index}", "driver": driver, "pool": "pool", "device": f"device-{index}"}
            for index, driver in enumerate(drivers)
        ]
        claim["status"] = await self._status(results, pods)
        return await self.api.update(RESOURCE_CLAIMS, claim, "status")

    async def _status(self, results: list[Json], pods: tuple[str, ...]) -> Json:
        uids = {pod: (await self.get(pod))["metadata"]["uid"] for pod in pods}
        return {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": uid} for pod, uid in uids.items()],
        }

    async def reallocate(self, name: str, device: str, *pods: str) -> Json:
        """Give the claim another device, and reserve it for these pods alone."""
        claim = await self.api.get(RESOURCE_CLAIMS, name, "default")
        results = [claim["status"].pop("allocation")["devices"]["results"][0] | {"device": device}]
        claim["status"]["reservedFor"] = []
        claim = await self.api.update(RESOURCE_CLAIMS, claim, "status")
        claim["status"] = await self._status(results, pods)
        return await self.api.update(RESOURCE_CLAIMS, claim, "status")

    async def pod(
        self, name: str, script: str = "", *, claims: tuple[str, ...] = (), policy: str = "Never", **spec: Any
    ) -> Json:
        """A pod on the node whose container runs the script (or idles) and uses the claims."""
        container: Json = {"name": "c", "image": "busybox", "resources": {"claims": [{"name": c} for c in claims]}}
        if script:
            container["command"] = ["sh", "-c", script]
        default: Json = {
            "nodeName": self.name,
            "restartPolicy": policy,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
        }
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": default | spec}
        return await self.api.create(PODS, body)

    async def debug(self, pod: str, container: Json) -> None:
        """Add an ephemeral container, as ``kubectl debug`` does."""
        body = {"spec": {"ephemeralContainers": [container]}}
        await self.api.patch(PODS, pod, body, "default", kind="strategic", subresource="ephemeralcontainers")

    async def get(self, pod: str) -> Json:
        return await self.api.get(PODS, pod, "default")

    async def phase(self, pod: str, phase: str) -> Json:
        async def reached() -> Json | None:
            status = (await self.get(pod)).get("status") or {}
            return status if status.get("phase") == phase else None

        return await until(f"pod {pod} {phase}", reached)

    async def gone(self, pod: str) -> None:
        await gone(f"pod {pod}", lambda: self.get(pod))

    async def delete(self, pod: str, grace_seconds: int | None = None) -> None:
        await self.api.delete(PODS, pod, "default", grace_seconds=grace_seconds)

    async def delete_claim(self, claim: str) -> None:
        await self.api.delete(RESOURCE_CLAIMS, claim, "default")

    async def event(self, pod: str, reason: str, text: str = "") -> Json:
        """The first event on the pod with that reason and text, once there is one."""

        async def find() -> Json | None:
            events, _ = await self.api.list(EVENTS, "default")
            for event in events:
                if event["involvedObject"]["name"] == pod and event["reason"] == reason and text in event["message"]:
                    return event
            return None

        return await until(f"event {reason} on pod {pod}", find)

    async def publish(self, name: str, driver: str = "gpu.example.com", node_name: str = "node-1") -> None:
        """A slice of one device; without a node it is for all of them."""
        spec: Json = {
            "driver": driver,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "device-0"}],
        }
        spec |= {"nodeName": node_name} if node_name else {"allNodes": True}
        await self.api.create(RESOURCE_SLICES, {"metadata": {"name": name}, "spec": spec})

    async def shows_slices(self, *names: str) -> None:
        async def reached() -> bool:
            found, _ = await self.api.list(RESOURCE_SLICES)
            return {one["metadata"]["name"] for one in found} == set(names)

        await until(f"slices {names}", reached)

    async def metrics(self) -> str:
        return await self.api.raw_text(f"/api/v1/nodes/{self.name}/proxy/metrics")

    async def log(self, pod: str, **query: str) -> str:
        return await self.api.raw_text(f"/api/v1/namespaces/default/pods/{pod}/log", **query)


def http_client(node: OneNode) -> aiohttp.ClientSession:
    """A client with the node's own credentials, for what the API does not offer."""
    link = node.api.connection
    connector = aiohttp.TCPConnector(ssl=link.tls or True)
    return aiohttp.ClientSession(link.host, headers={"Authorization": link.authorization() or ""}, connector=connector)


async def execute(
    node: OneNode, *command: str, stdin: bytes = b"", protocol: str = "v5.channel.k8s.io", container: str = "c"
) -> tuple[bytes, Json]:
    """Standard output, and the Status at the end."""
    query = [("command", word) for word in command] + [("stdout", "true"), ("stdin", "true" if stdin else "false")]
    query.append(("container", container))
    url = "/api/v1/namespaces/default/pods/pod-a/exec"
    async with http_client(node) as session:
        async with session.ws_connect(url, params=query, protocols=[protocol]) as socket:
            assert socket.protocol == protocol
            if stdin:
                await socket.send_bytes(b"\0" + stdin)
                await socket.send_bytes(b"\xff\0")
            output: dict[int, bytes] = {}
            async for message in socket:
                output[message.data[0]] = output.get(message.data[0], b"") + message.data[1:]
            return output.get(1, b""), json.loads(output[3])


class Session:
    """A client of ``exec`` or ``attach``: types, and reads what comes."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.output = b""
        self.status: Json | None = None

    async def type(self, data: bytes) -> None:
        await self.send(0, data)

    async def send(self, channel: int, data: bytes) -> None:
        await self._socket.send_bytes(bytes([channel]) + data)

    async def resize(self, width: int, height: int) -> None:
        """The client's terminal has another size."""
        await self.send(4, json.dumps({"Width": width, "Height": height}).encode())

    async def close_input(self) -> None:
        """The client types no more."""
        await self.send(255, b"\0")

    async def until(self, text: bytes) -> bytes:
        """Read until the output has the text, which then counts as read; what came before it."""
        async with asyncio.timeout(60):
            while text not in self.output:
                assert await self._read(), f"it ended with {self.status} and {self.output!r}"
        before, _, self.output = self.output.partition(text)
        return before

    async def end(self) -> Json:
        """The status at the end; ``output`` has what was not read before."""
        async with asyncio.timeout(60):
            while await self._read():
                pass
        assert self.status
        return self.status

    async def _read(self) -> bool:
        message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            return False
        if message.data[0] == 3:
            self.status = json.loads(message.data[1:])
        else:
            self.output += message.data[1:]
        return True


@asynccontextmanager
async def session(node: OneNode, what: str, *command: str, **flags: bool) -> AsyncIterator[Session]:
    """``exec`` or ``attach`` in the container ``c`` of ``pod-a`` with these flags."""
    query = [("command", word) for word in command] + [("container", "c"), ("stdout", "true")]
    query += [(name, str(value).lower()) for name, value in flags.items()]
    url = f"/api/v1/namespaces/default/pods/pod-a/{what}"
    async with (
        http_client(node) as client,
        client.ws_connect(url, params=query, protocols=["v5.channel.k8s.io"]) as socket,
    ):
        yield Session(socket)


# --- The claims of an API server, and pods that use them ---

DRIVER = "gpu.example.com"
OTHER = "nic.example.com"


class Claims:
    """The claims of the API server, and nothing else of it."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}

    async def get(self, resource: Any, name: str, namespace: str | None = None) -> dict[str, Any]:
        if name not in self.objects:
            raise NotFound(404, "NotFound", f'resourceclaims.resource.k8s.io "{name}" not found')
        return self.objects[name]

    def add(
        self,
        name: str,
        *pods: str,
        drivers: tuple[str, ...] = (DRIVER,),
        device: str = "device",
        skips: tuple[str, ...] = (),
        **changes: Any,
    ) -> None:
        results = [
            {"request": "req", "driver": driver, "pool": "pool", "device": f"{device}-{index}"}
            | ({"skipNodeOperations": skips} if skips else {})
            for index, driver in enumerate(drivers)
        ]
        status = {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [user(pod) for pod in pods],
        }
        metadata = {"name": name, "namespace": "default", "uid": changes.pop("uid", f"uid-of-{name}")}
        owned_by = changes.pop("owner", None)
        if owned_by:
            metadata["ownerReferences"] = [owner(owned_by)]
        self.objects[name] = {"metadata": metadata, "status": status | changes}


def pod_with(name: str, *claims: str, **status: Any) -> Pod:
    entries = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    return convert(
        Pod,
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {
                "resourceClaims": entries,
                "containers": [{"name": "c", "resources": {"claims": [{"name": claim} for claim in claims]}}],
            },
            "status": status,
        },
    )
