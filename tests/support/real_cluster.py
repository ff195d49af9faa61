"""A stock control plane from ``KUBEBUILDER_ASSETS`` with node agents of ours, for tests that know a DevCluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import envtest
import yaml
from dra_devcluster.agent import AgentSettings, NodeAgent
from dra_devcluster.cluster import ClusterNode
from dra_kube import Api, Connection, connection


@dataclass
class RealCluster:
    """What a test asks of a cluster; the node agents come as administrator."""

    folder: Path
    kubeconfig: Path
    nodes: list[ClusterNode] = field(default_factory=list)

    def connection(self) -> Connection:
        """How to reach the API server as administrator."""
        return connection(self.kubeconfig)


@asynccontextmanager
async def real_cluster(folder: Path, nodes: int, settings: AgentSettings) -> AsyncIterator[RealCluster]:
    """API server, kube-controller-manager and kube-scheduler as a cluster has them, and nodes node-1, node-2, ..."""
    binaries = envtest.assets()
    assert binaries is not None
    (folder / "servers").mkdir()
    with envtest.real_api_server(binaries, folder / "servers", stock=True) as kubeconfig:
        cluster = RealCluster(folder, _trusting(kubeconfig, folder))
        async with AsyncExitStack() as stack:
            for name in (f"node-{number}" for number in range(1, nodes + 1)):
                api = await stack.enter_async_context(Api(cluster.connection(), user_agent="node-agent"))
                agent = NodeAgent(api, name, root=folder / "nodes" / name, settings=settings)
                cluster.nodes.append(ClusterNode(await stack.enter_async_context(agent)))
            yield cluster


def _trusting(kubeconfig: Path, folder: Path) -> Path:
    """The same with the server's authority, which pods find beside their token."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    del cluster["insecure-skip-tls-verify"]
    cluster["certificate-authority"] = str(kubeconfig.parent / "certs" / "apiserver.crt")
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path
