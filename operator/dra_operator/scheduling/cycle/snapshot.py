"""What one decision looks at: the cluster at one moment, as placement needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from dra_api.core import Pod
from dra_api.resource import ResourceClaim
from dra_api.scheduling import PodGroup

from dra_operator.allocator import Allocator, DeviceId, Features, Usage
from dra_operator.scheduling.claims.binding_conditions import BINDING_TIMEOUT_SECONDS
from dra_operator.scheduling.nodes import Nodes
from dra_operator.scheduling.rules.volumes import Storage
from dra_operator.scheduling.state.gang import Gang
from dra_operator.scheduling.state.nominations import NO_NOMINATIONS, Nominations

ANY_DRIVER: Final = "*"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Objects by look-up, because a decision needs few of many."""

    claim: Callable[[str], ResourceClaim | None]
    """By ``namespace/name``."""
    claims_owned_by: Callable[[Pod], Iterable[ResourceClaim]]
    has_class: Callable[[str], bool]
    classes_serving: Callable[[Pod], Mapping[str, str]]
    """The class of each extended resource that the pod asks for and that one serves."""
    assumed: Callable[[ResourceClaim], bool]
    """Whether an allocation of the claim is on its way to the server, or the end of its reservation for a group."""
    clashes: Callable[[ResourceClaim], Sequence[DeviceId]]
    """The claim's devices that another claim holds as well."""
    is_dispensable: Callable[[Pod, ResourceClaim], bool]
    """Whether no other pod than those that wait, as this one does, relies on the claim."""
    is_parked: Callable[[ResourceClaim], bool]
    """Whether the claim lost a contest, or gave the devices of one back just now: no pod may use it."""
    is_unsettled: Callable[[ResourceClaim], bool]
    """Whether a write to this version of the claim was not answered, and may still take effect."""
    drivers_of: Callable[[Iterable[str]], frozenset[str]]
    """The drivers whose devices the classes may hold; ``ANY_DRIVER`` for a class that does not say."""
    defers: Callable[[Pod, frozenset[str]], float]
    """Seconds for which the pod lets other schedulers decide first on devices of the drivers."""
    storage: Storage
    nodes: Nodes
    allocator: Allocator
    usage: Callable[[], Usage]
    """The devices in use; the result must not change."""
    now: datetime
    prioritized_list: bool = True
    gang_pods: Callable[[Gang], int] = lambda gang: gang.size
    """How many pods of the gang run, have run or wait; ``MOST_PODS`` are counted, and one more if there are more."""
    features: Features = field(default_factory=Features)
    group_of: Callable[[Pod], PodGroup | None] = lambda _: None
    """The PodGroup of the pod; None if the pod is in none, or if it does not exist."""
    has_placed_members: Callable[[Pod], bool] = lambda _: False
    """Whether another pod of the pod's PodGroup has a node, or is on its way to one."""
    nominations: Callable[[Pod], Nominations] = lambda _: NO_NOMINATIONS
    """What pods are to get once others have ended, as the pod has to see it."""
    binding_timeout: float = BINDING_TIMEOUT_SECONDS
    """Seconds from the allocation until a device that is not ready counts as failed."""
