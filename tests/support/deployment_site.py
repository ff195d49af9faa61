"""``kubectl apply -k manifests`` on a development cluster that enforces RBAC, with a placeholder pod for the image."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from access import namespace_of, recorded
from dra_devcluster.agent import AgentSettings, Backoff
from dra_devcluster.agent.processes.sandbox import why_impossible
from dra_devcluster.apiserver.authorization import Attributes
from dra_devcluster.cluster import DevCluster
from image import build
from kubectl import ROOT, Kubectl, kubectl_for
from real_cluster import RealCluster, real_cluster

NODES = 2
WORKLOADS = ("GenericWorkload", "DRAWorkloadResourceClaims", "TopologyAwareWorkloadScheduling")
"""Gates of PodGroups."""


@dataclass
class Site:
    """A cluster with nodes that find the image's programs in ``image``, and a kubectl for it."""

    cluster: DevCluster | RealCluster
    kubectl: Kubectl
    image: Path
    requests: set[Attributes] = field(default_factory=set)

    @property
    def has_pod_groups(self) -> bool:
        """Whether the API server has the gates of workload claims on."""
        return isinstance(self.cluster, DevCluster)

    async def deploy(self, flags: Sequence[str] = (), *, components: Sequence[str] = ()) -> None:
        """Apply everything, with these of manifests/components; the operator gets these flags as well."""
        build(self.image, "dra-operator", flags)
        build(self.image, "dra-kubelet-plugin")
        await self.kubectl("apply", "--validate=strict", "-k", self._manifests(components))

    def _manifests(self, components: Sequence[str]) -> str:
        """A folder to apply: operator and simulated driver."""
        up = os.path.relpath(ROOT / "manifests", self.cluster.folder)
        content = {
            "resources": [up, f"{up}/examples/simulated-driver"],
            "components": [f"{up}/components/{name}" for name in components],
        }
        (self.cluster.folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
        return str(self.cluster.folder)

    async def runs(self) -> None:
        """Wait until operator and plugins are ready."""
        for kind, name in (("deployment", "dra-operator"), ("daemonset", "dra-plugin")):
            where = ("--namespace", namespace_of(name))
            await self.kubectl("rollout", "status", kind, name, *where, "--timeout=120s")

    async def rendered(self) -> list[dict[str, Any]]:
        """The objects of the manifests."""
        return list(yaml.safe_load_all(await self.kubectl("kustomize", self._manifests(()))))

    async def account(self, name: str, pod: str = "") -> Path:
        """A kubeconfig for a service account; with a token that is bound to the pod, if one is named."""
        bound = ["--bound-object-kind", "Pod", "--bound-object-name", pod] if pod else []
        token = await self.kubectl("create", "token", name, "--namespace", namespace_of(name), *bound)
        config = yaml.safe_load(self.cluster.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token.strip()}
        path = self.cluster.folder / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path


@asynccontextmanager
async def deployment_site(*, real: bool = False) -> AsyncIterator[Site]:
    """An empty cluster to deploy to. Skips the test on a machine that forbids mounts."""
    if obstacle := why_impossible():
        pytest.skip(f"no mounts on this machine: {obstacle}")
    with tempfile.TemporaryDirectory(prefix="m-") as made:
        folder = Path(made)
        image = folder / "image"
        image.mkdir()
        settings = AgentSettings(
            search_path=f"{image}:/usr/local/bin:/usr/bin:/bin",
            plugin_period=0.1,
            pod_retry=0.3,
            probe_timeout=60.0,
            restart_backoff=Backoff(0.3, 1.0),
        )
        if real:
            async with real_cluster(folder, NODES, settings) as cluster:
                yield Site(cluster, kubectl_for(cluster.kubeconfig, folder), image)
            return
        with recorded() as requests:
            gates = dict.fromkeys(WORKLOADS, True)
            async with DevCluster(
                folder, nodes=NODES, agent_settings=settings, authorization="rbac", feature_gates=gates
            ) as cluster:
                yield Site(cluster, kubectl_for(cluster.kubeconfig, folder), image, requests)
