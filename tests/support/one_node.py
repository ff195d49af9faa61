"""One node of the development cluster: its agent, and short ways to make and watch objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dra_devcluster.agent import AgentSettings, LocalRuntime, NodeAgent
from dra_kube import EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Api, NotFound
from waiting import until

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
        """Start the agent (again)."""
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
        """The pod's status, once it has that phase."""

        async def reached() -> Json | None:
            status = (await self.get(pod)).get("status") or {}
            return status if status.get("phase") == phase else None

        return await until(f"pod {pod} {phase}", reached)

    async def gone(self, pod: str) -> None:
        """Wait until the pod object no longer exists."""

        async def is_gone() -> bool:
            try:
                await self.get(pod)
            except NotFound:
                return True
            return False

        await until(f"pod {pod} gone", is_gone)

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
        """Wait until there are exactly these slices."""

        async def reached() -> bool:
            found, _ = await self.api.list(RESOURCE_SLICES)
            return {one["metadata"]["name"] for one in found} == set(names)

        await until(f"slices {names}", reached)

    async def metrics(self) -> str:
        """The metrics of the node through the API server."""
        return await self.api.raw_text(f"/api/v1/nodes/{self.name}/proxy/metrics")

    async def log(self, pod: str, **query: str) -> str:
        """The pod's log through the API server."""
        return await self.api.raw_text(f"/api/v1/namespaces/default/pods/{pod}/log", **query)
