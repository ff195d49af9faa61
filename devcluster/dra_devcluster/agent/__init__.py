"""The node agent of the development cluster: what a kubelet does for Dynamic Resource Allocation.

async with NodeAgent(api, "node-1", root=Path("/tmp/node-1")) as agent:
    ...  # plugins register in agent.registration_directory, pods bound to node-1 run
"""

from .agent import NodeAgent
from .containers.runtime import LocalRuntime
from .defects import KubeletDefect
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
