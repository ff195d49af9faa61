"""The node agent of the development cluster: the part of a kubelet that serves Dynamic Resource Allocation.

async with NodeAgent(api, "node-1", root=Path("/tmp/node-1")) as agent:
    ...  # plugins register in agent.registration_directory, pods bound to node-1 run
"""

from dra_devcluster.agent.settings import KubeletDefect

from .agent import NodeAgent
from .containers.runtime import LocalRuntime
from .errors import AgentError, CheckpointCorrupted
from .settings import AgentSettings, Backoff

__all__ = [
    "AgentError",
    "AgentSettings",
    "Backoff",
    "CheckpointCorrupted",
    "KubeletDefect",
    "LocalRuntime",
    "NodeAgent",
]
