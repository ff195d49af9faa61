"""What tests of the running operator do on the development API server: make objects, and wait for their fate."""

from __future__ import annotations

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
)
from objects import Obj
from waiting import until


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
        await self.api.create(
            DEVICE_CLASSES,
            {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": selector}}]}},
        )
        for number in range(nodes):
            await self.add_node(f"node-{number}", devices)
        if template:
            await self.add_template()

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
        async def is_gone() -> bool:
            try:
                await self.api.get(resource, name, "ns")
            except NotFound:
                return True
            return False

        await until(f"{resource.plural} {name} gone", is_gone)
