"""The Node object and its Lease, which show that the node exists, is ready, and is alive."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dra_api.releases.release import Release
from dra_api.values import format_micro_time
from dra_kube import LEASES, NODES, AlreadyExists, Api, KubeError, NotFound

from dra_devcluster.clock import now
from dra_devcluster.node_protocol import SERVER_ADDRESS_ANNOTATION, SERVER_KEY_ANNOTATION

from .settings import AgentSettings, declared_features

logger = logging.getLogger(__name__)
Json = dict[str, Any]
_LEASE_NAMESPACE = "kube-node-lease"
_LEASE_SECONDS = 40


class NodePresence:
    """Registers the node and keeps its status and Lease fresh."""

    def __init__(
        self, api: Api, name: str, root: Path, settings: AgentSettings, *, address: str, port: int, server_key: str
    ) -> None:
        self._api = api
        self._name = name
        self._root = root
        self._settings = settings
        self._address = address
        self._port = port
        self._server_key = server_key

    async def register(self) -> None:
        """Create or update the Node, until the API server takes it."""
        while True:
            try:
                await self._write_node()
                return
            except KubeError as error:
                logger.warning("node %s: registration failed: %s", self._name, error)
                await asyncio.sleep(self._settings.plugin_period)

    async def run(self) -> None:
        """Renew the lease and refresh the status until cancelled."""
        await asyncio.gather(
            self._repeat(self._renew_lease, self._settings.lease_period),
            self._repeat(self._write_status, self._settings.node_status_period),
        )

    async def _repeat(self, step: Any, period: float) -> None:
        while True:
            try:
                await step()
            except KubeError as error:
                logger.warning("node %s: %s", self._name, error)
            await asyncio.sleep(period)

    async def _write_node(self) -> None:
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        labels = {"hostname": self._name, "os": platform.system().lower(), "arch": machine}
        metadata: Json = {
            "labels": {f"kubernetes.io/{key}": value for key, value in labels.items()},
            "annotations": {
                SERVER_KEY_ANNOTATION: self._server_key,
                SERVER_ADDRESS_ANNOTATION: f"{self._address}:{self._port}",
            },
        }
        try:
            metadata_of_new = metadata | {"name": self._name}
            await self._api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata_of_new})
        except AlreadyExists:
            await self._api.patch(NODES, self._name, {"metadata": metadata})
        await self._write_status()

    async def _write_status(self) -> None:
        moment = now()
        known = (await self._api.get(NODES, self._name)).get("status") or {}
        times = {
            condition["type"]: condition.get("lastTransitionTime")
            for condition in known.get("conditions") or ()
            if condition.get("status") == ("True" if condition["type"] == "Ready" else "False")
        }
        capacity = _capacity(self._root)
        status: Json = {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [
                {"type": "InternalIP", "address": self._address},
                {"type": "Hostname", "address": self._name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            "nodeInfo": _node_info(self._settings.release),
            "declaredFeatures": declared_features(self._settings) or None,
            "conditions": [
                condition | {"lastHeartbeatTime": moment, "lastTransitionTime": times.get(condition["type"]) or moment}
                for condition in _CONDITIONS
            ],
        }
        await self._api.patch(NODES, self._name, {"status": status}, kind="strategic", subresource="status")

    async def _renew_lease(self) -> None:
        renewed = format_micro_time(datetime.now(UTC))
        spec = {"holderIdentity": self._name, "leaseDurationSeconds": _LEASE_SECONDS, "renewTime": renewed}
        try:
            await self._api.patch(LEASES, self._name, {"spec": spec}, _LEASE_NAMESPACE)
        except NotFound:
            lease = {"metadata": {"name": self._name, "namespace": _LEASE_NAMESPACE}, "spec": spec}
            await self._api.create(LEASES, {"apiVersion": LEASES.api_version(), "kind": "Lease"} | lease)


def _condition(kind: str, status: str, reason: str, message: str) -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message}


_CONDITIONS = (
    _condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    _condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    _condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    _condition("Ready", "True", "KubeletReady", "the node agent is running"),
)


def _capacity(root: Path) -> Json:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": str(os.cpu_count() or 1),
        "memory": f"{memory // 1024}Ki",
        "pods": "110",
        "ephemeral-storage": f"{shutil.disk_usage(root).total // 1024}Ki",
    }


def _node_info(release: Release) -> Json:
    return {
        "machineID": "",
        "systemUUID": "",
        "bootID": "",
        "kernelVersion": platform.release(),
        "osImage": platform.platform(terse=True),
        "containerRuntimeVersion": "local://0.1.0",
        "kubeletVersion": f"v{release}.0+devcluster",
        "kubeProxyVersion": "",
        "operatingSystem": platform.system().lower(),
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
    }
