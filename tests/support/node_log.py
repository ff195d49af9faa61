"""What a container printed, asked of its node: real API servers insist on TLS, which our node agents do not speak."""

from __future__ import annotations

from dra_devcluster.node_protocol import SERVER_KEY_ANNOTATION
from dra_kube import NODES, PODS, Api, Connection


async def node_log(api: Api, namespace: str, pod: str, container: str) -> str:
    """The log of a container whose node is an agent of ours. Raises NotFound."""
    node = await api.get(NODES, (await api.get(PODS, pod, namespace))["spec"]["nodeName"])
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    key = f"Bearer {node['metadata']['annotations'][SERVER_KEY_ANNOTATION]}"
    async with Api(Connection(f"http://127.0.0.1:{port}", None, lambda: key)) as kubelet:
        return await kubelet.raw_text(f"/containerLogs/{namespace}/{pod}/{container}")
