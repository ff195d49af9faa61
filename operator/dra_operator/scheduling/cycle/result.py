"""The results of an attempt to place a pod."""

from __future__ import annotations

from dataclasses import dataclass

from dra_api.core import Pod
from dra_api.resource import AllocationResult, ResourceClaim

from dra_operator.allocator import DeviceId
from dra_operator.scheduling.claims.extended_resources import ExtendedClaim, Served
from dra_operator.scheduling.claims.node_allocatable import NO_NODE_USE, NodeUse
from dra_operator.scheduling.claims.usable import PodClaim
from dra_operator.scheduling.rules.queueing_hints import Hint
from dra_operator.scheduling.rules.volume_binding import NO_BINDINGS, Bindings
from dra_operator.scheduling.state.requests import node_requests


@dataclass(frozen=True, slots=True)
class Plan:
    """The pod goes to ``node``; ``allocations`` by claim UID are those that have to be written."""

    node: str
    allocations: dict[str, AllocationResult]
    served: Served = ()
    """Extended resources that devices serve there: the pod takes nothing of what the node counts of them."""
    extended: ExtendedClaim | None = None
    """The claim for them that has to be made; it has its allocation among the others."""
    volumes: Bindings = NO_BINDINGS
    """How the unbound claims of volumes get theirs."""
    node_use: NodeUse = NO_NODE_USE
    """What its devices take of the node's own resources."""
    scores: tuple[tuple[str, int], ...] = ()
    """Why this node among those that fit: what it got for each of the pod's preferences, and for its room."""
    strategy: str = ""
    """The placement strategy that preferred the node; empty if there was none."""

    def requests_of(self, pod: Pod) -> dict[str, int]:
        """What the pod takes of the node by this plan."""
        return node_requests(pod, self.served, self.node_use.amounts)


@dataclass(frozen=True, slots=True)
class PostFilterResult:
    """A nomination: once the victims have ended, the pod gets the node, and the devices there, of this plan."""

    plan: Plan
    victims: tuple[Pod, ...]
    awaited: tuple[Pod, ...] = ()
    """Pods that end anyway, and on whose end the plan relies as well."""

    @property
    def nominated_node(self) -> str:
        """Where the pod goes then."""
        return self.plan.node

    @property
    def nominated_devices(self) -> frozenset[DeviceId]:
        """What the pod's claims get there, apart from what they have."""
        results = (result for allocation in self.plan.allocations.values() for result in allocation.results)
        return frozenset(map(DeviceId.of, results))


@dataclass(frozen=True, slots=True)
class NoPlace:
    """No node takes the pod. ``message`` is for people; the rest decides when to try again."""

    message: str
    reason: str = "error"
    """What most nodes lack, or what is wrong with the pod: a word that fits a metric's label."""
    is_error: bool = False
    """Try again after a while, without waiting for a change: the attempt itself failed."""
    short_of_room: bool = False
    """The end of another pod may help, even if that frees no devices."""
    hints: frozenset[Hint] = frozenset()
    """Which pods may help by their coming, going or change, and what else matters to rules between pods."""
    drivers: frozenset[str] | None = None
    """Of which drivers a device that comes free may help; None: of all that the classes of the claims may mean."""
    stuck: tuple[PodClaim, ...] = ()
    """Claims that are allocated where the pod cannot run, and whose devices it may give back."""
    leftovers: tuple[ResourceClaim, ...] = ()
    """Claims for extended resources that earlier attempts left half made: they have to go first (scheduling.md 4.3)."""
    nominated: PostFilterResult | None = None
    """How a post filter would make room."""
