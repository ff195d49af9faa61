"""The last write of a binding cycle, once the pod has its claims: it binds the pod, or removes its gate.

::

    BindStep
    ├── Bind                 a pod of our scheduler gets its node
    ├── RemoveGate           a pod of another scheduler goes there, among the nodes that reach its devices
    └── AllocateImmediate    a claim that no pod uses yet has its devices
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.resource import ResourceClaim

from dra_operator.kube import EventReason


class News(NamedTuple):
    """The event about it."""

    about: Object
    reason: EventReason
    message: str


class BindStep(Protocol):
    """The last write for a pod."""

    def action(self, node: str) -> str:
        """The attempted action, as it follows ``cannot``."""
        ...

    async def write(self, pod: Pod, node: str, claims: Sequence[ResourceClaim]) -> None:
        """Write, unless it is already done. Raises BindingFailed if it is no longer possible, and KubeError."""
        ...

    def news(self, pod: Pod, node: str) -> News | None:
        """The event when it is done."""
        ...
