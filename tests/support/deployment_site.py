"""``kubectl apply -k manifests`` on a development cluster that enforces RBAC, with stand-ins for image and mounts."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from access import namespace_of, recorded
from dra_devcluster.agent import AgentSettings, Backoff
from dra_devcluster.apiserver.authorization import Attributes
from dra_devcluster.cluster import DevCluster
from image import Program, build
from kubectl import Kubectl, kubectl_for
from waiting import until

NODES = 2


@dataclass
class Site:
    """A cluster with nodes that find the image's programs in ``image``, and a kubectl for it."""

    cluster: DevCluster
    kubectl: Kubectl
    image: Path
    requests: set[Attributes] = field(default_factory=set)

    async def deploy(self, flags: Sequence[str] = ()) -> None:
        """Apply everything; then give the pods their programs, and the operator these flags."""
        await self.kubectl("apply", "--validate=strict", "-k", "manifests")
        operator = ["--metrics-host", "127.0.0.1", "--metrics-port", "0", *flags]  # no two runs must share a port
        build(self.image, Program("dra-operator", await self.account("dra-operator"), appended=operator))
        node = self.cluster.folder / "nodes" / "{NODE_NAME}"
        plugin = [
            f"--plugin-registration-path={node / 'plugins_registry'}",
            f"--datadir={node / 'plugins'}",
            f"--cdi-dir={node / 'cdi'}",
            "--rolling-update-uid={POD_UID:.8}",  # a socket's path has 107 bytes, and this folder's is longer
            "--http-endpoint=127.0.0.1:0",
        ]
        mounts = {"/etc/dra": await self.config_map("dra-plugin")}
        for pod in await until("a pod of the plugin on each node", self._plugin_pods):
            await self.account("dra-plugin", pod["metadata"]["name"], f"dra-plugin-{pod['spec']['nodeName']}")
        account = self.cluster.folder / "dra-plugin-{NODE_NAME}.kubeconfig"
        build(self.image, Program("dra-kubelet-plugin", account, mounts, plugin))

    async def runs(self) -> None:
        """Wait until operator and plugins are ready."""
        for kind, name in (("deployment", "dra-operator"), ("daemonset", "dra-plugin")):
            where = ("--namespace", namespace_of(name))
            await self.kubectl("rollout", "status", kind, name, *where, "--timeout=120s")

    async def rendered(self) -> list[dict[str, Any]]:
        """The objects of the manifests."""
        return list(yaml.safe_load_all(await self.kubectl("kustomize", "manifests")))

    async def _plugin_pods(self) -> list[dict[str, Any]] | None:
        where = ("--namespace", namespace_of("dra-plugin"), "--selector", "app.kubernetes.io/name=dra-plugin")
        pods = (await self.kubectl.read("pods", *where))["items"]
        return pods if len([pod for pod in pods if pod["spec"].get("nodeName")]) == NODES else None

    async def account(self, name: str, pod: str = "", file: str = "") -> Path:
        """A kubeconfig for a service account, as its pod would have the token: bound to the pod."""
        bound = ["--bound-object-kind", "Pod", "--bound-object-name", pod] if pod else []
        token = await self.kubectl("create", "token", name, "--namespace", namespace_of(name), *bound)
        config = self.cluster.server.kubeconfig
        config["users"][0]["user"] = {"token": token.strip()}
        path = self.cluster.folder / f"{file or name}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    async def config_map(self, name: str) -> Path:
        """The files of a ConfigMap volume."""
        folder = self.cluster.folder / f"config-{name}"
        folder.mkdir()
        content = await self.kubectl.read("configmap", name, "--namespace", namespace_of(name))
        for key, text in content["data"].items():
            (folder / key).write_text(text)
        return folder


@asynccontextmanager
async def deployment_site() -> AsyncIterator[Site]:
    """An empty cluster to deploy to. Its folder has a short path: unix sockets allow 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="m-") as made:
        folder = Path(made)
        image = folder / "image"
        image.mkdir()
        settings = AgentSettings(
            search_path=f"{image}:/usr/local/bin:/usr/bin:/bin",
            plugin_period=0.1,
            pod_retry=0.3,
            restart_backoff=Backoff(0.3, 1.0),
        )
        with recorded() as requests:
            async with DevCluster(folder, nodes=NODES, agent_settings=settings, authorization="rbac") as cluster:
                yield Site(cluster, kubectl_for(cluster.kubeconfig, folder), image, requests)
