"""What one decision looks at: the cluster at one moment, as placement needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from dra_api.core import Pod
from dra_api.resource import ResourceClaim

from dra_operator.allocator import Allocator, DeviceId, Usage

from .nodes import Nodes
from .readiness import BINDING_TIMEOUT
from .volumes import Storage


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Objects by look-up, because a decision needs few of many."""

    claim: Callable[[str], ResourceClaim | None]
    """By ``namespace/name``."""
    claims_owned_by: Callable[[Pod], Iterable[ResourceClaim]]
    has_class: Callable[[str], bool]
    classes_serving: Callable[[Pod], Mapping[str, str]]
    """The class of each extended resource that the pod asks for and that one serves."""
    in_flight: Callable[[ResourceClaim], bool]
    """Whether an allocation of the claim is on its way to the server."""
    clashes: Callable[[ResourceClaim], Sequence[DeviceId]]
    """The claim's devices that another claim holds, too."""
    is_dispensable: Callable[[Pod, ResourceClaim], bool]
    """Whether no other pod than those that wait, as this one does, relies on the claim."""
    storage: Storage
    nodes: Nodes
    allocator: Allocator
    usage: Callable[[], Usage]
    """The devices in use; the result must not change."""
    now: datetime
    prioritized_list: bool = True
    binding_timeout: float = BINDING_TIMEOUT
    """Seconds from the allocation until a device that is not ready counts as failed."""
