"""What a commit ends with, once the pod has its claims: the pod is bound, or the gate that held it back is opened.

::

    Ending
    ├── Bind             a pod of our scheduler gets its node
    ├── OpenGate         a pod of another scheduler goes there, among the nodes that reach its devices
    └── AllocateAhead    a claim that no pod uses yet has its devices
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.resource import ResourceClaim

from dra_operator.kube import EventReason


class News(NamedTuple):
    """The event that tells of it."""

    about: Object
    reason: EventReason
    message: str


class Ending(Protocol):
    """The last write for a pod."""

    def step(self, node: str) -> str:
        """What is attempted, behind ``cannot``."""
        ...

    async def write(self, pod: Pod, node: str, claims: Sequence[ResourceClaim]) -> None:
        """Do it; that it is done already is fine. Raises CommitFailed if it cannot be any more, and KubeError."""
        ...

    def news(self, pod: Pod, node: str) -> News | None:
        """What to tell when it is done."""
        ...
