"""A node as placement sees it: the object with its taints, the requests of its pods, and the nominations on it.

A nomination is the node, the room there and the devices that a waiting pod gets once others have ended. Until then no
pod of the same or a lower priority may take them: to such a pod they count as used. A pod of a higher priority ignores
the nomination, and the nominated pod itself is asked about its node first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dra_api.core import Node, Pod, Taint, Toleration
from dra_api.kueue import Workload
from dra_api.quota import may_be_devices
from dra_api.resource import AllocationResult

from dra_operator.allocator import Usage, tolerates
from dra_operator.scheduling.state.ahead import is_at_gate, of_nodes
from dra_operator.scheduling.state.requests import POD_SLOTS, Amounts, add

_REPELLING = ("NoSchedule", "NoExecute")
NODE_CONDITION = "node.kubernetes.io/"
"""The keys of taints that say how a node is; others say what it is for."""
UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def tolerations_of(pod: Pod) -> tuple[Toleration, ...]:
    """Return the pod's tolerations, and that of the nodes which belong to its scheduler.

    A pod at our scheduling gate has not the latter: another scheduler binds it, which knows nothing of that.
    """
    said, name = pod.spec.tolerations or (), pod.spec.scheduler_name
    # Its scheduler is not this one, and decides by the pod's own tolerations.
    if not name or is_at_gate(pod):
        return said
    return (*said, of_nodes(name))


def repelling(taints: Iterable[Taint]) -> Iterator[Taint]:
    """The taints that keep pods away."""
    return (taint for taint in taints if taint.effect in _REPELLING)


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """The first of some repelling taints that keeps a pod with these tolerations away, if any does."""
    accepted = tuple(tolerations)
    for taint in taints:
        if not any(_tolerates(toleration, taint) for toleration in accepted):
            return taint
    return None


def soft(taints: Iterable[Taint]) -> Iterator[Taint]:
    """Those that only ask politely."""
    return (taint for taint in taints if taint.effect == "PreferNoSchedule")


def intolerable(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> int:
    """How many of the taints are not tolerated."""
    accepted = tuple(tolerations)
    return sum(not any(_tolerates(toleration, taint) for toleration in accepted) for taint in taints)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    # For nodes, an empty key means every taint only together with Exists.
    return bool(toleration.key or toleration.operator == "Exists") and tolerates(toleration, taint)


_WEIGHED = ("cpu", "memory", POD_SLOTS)
_NOTHING: Amounts = {}


class LoadedNode:
    """``used`` sums the requests of all pods on the node, those whose binding is under way included.

    What every decision needs of a node is computed once per version of the node and change of its load.
    """

    __slots__ = ("counted", "emptiness", "name", "node", "offered", "soft_taints", "taints", "used")

    def __init__(self, node: Node, used: Amounts = _NOTHING) -> None:
        self.node = node
        self.name = node.metadata.name
        self.offered: Mapping[str, int] = {
            name: quantity.nanos for name, quantity in (node.status.allocatable or {}).items()
        }
        """What the node has in total, in billionths."""
        self.counted = frozenset(name for name, total in self.offered.items() if total > 0 and may_be_devices(name))
        """The extended resources that the node serves itself, by a device plugin."""
        self.taints: tuple[Taint, ...] = tuple(repelling(node.spec.taints or ()))
        """Those that keep pods away, the one of a cordoned node included."""
        self.soft_taints: tuple[Taint, ...] = tuple(soft(node.spec.taints or ()))
        """Those that only ask pods to stay away."""
        # The node controller adds the taint a moment after the node was cordoned.
        if node.spec.unschedulable:
            self.taints = (UNSCHEDULABLE, *self.taints)
        self._load(used)

    def with_load(self, used: Amounts) -> LoadedNode:
        """The same node with other pods on it."""
        # Copied and not computed: the load changes with each pod, the offer of the node seldom.
        state = LoadedNode.__new__(LoadedNode)
        state.node, state.name, state.offered, state.taints = self.node, self.name, self.offered, self.taints
        state.counted, state.soft_taints = self.counted, self.soft_taints
        state._load(used)
        return state

    def _load(self, used: Amounts) -> None:
        self.used = used
        # What the node does not offer is left out of the mean (NR-26): it says nothing about how full the node is.
        free = [1 - used.get(name, 0) / offer for name in _WEIGHED if (offer := self.offered.get(name, 0)) > 0]
        self.emptiness = sum(free) / len(free) if free else 0.0
        """The share of the node that is free, from 0 to 1: the mean of cpu, memory and pod slots."""


@dataclass(frozen=True, slots=True)
class Nomination:
    """What one pod is to get. ``requests`` is what it takes of the node beside its devices."""

    pod: Pod
    node: str
    allocations: tuple[AllocationResult, ...]
    requests: Amounts
    gang: str | None = None
    """The gang for which the pod is nominated: its pods share what all of them are to get."""
    workload: Workload | None = field(default=None, compare=False)
    """The Workload of Kueue to which this is promised: its pods do not have to respect it."""


@dataclass(frozen=True, slots=True)
class Nominations:
    """What nominations mean to one pod: ``node`` is its own one, ``of_others`` are those that it has to respect."""

    node: str = ""
    of_others: tuple[Nomination, ...] = ()
    _requests: dict[str, Amounts] = field(default_factory=dict)

    @classmethod
    def of(cls, node: str, of_others: Iterable[Nomination]) -> Nominations:
        """With the sums by node."""
        # Summed once for the pod, since each node is asked about its sum.
        others, requests = tuple(of_others), dict[str, Amounts]()
        for it in others:
            requests[it.node] = add(requests.get(it.node, {}), it.requests)
        return cls(node, others, requests) if node or others else NO_NOMINATIONS

    def usage(self, usage: Usage) -> Usage:
        """The devices in use with those that others are to get; the same object if there are none."""
        # The usual case without a copy.
        if not any(it.allocations for it in self.of_others):
            return usage
        # A copy, since the usage is everybody's.
        more = usage.snapshot()
        for it in self.of_others:
            for allocation in it.allocations:
                more.add(allocation)
        return more

    def loaded(self, state: LoadedNode) -> LoadedNode:
        """The node with the pods that are to come there."""
        # Nearly all nodes have no nomination, and stay the same object.
        requests = self._requests.get(state.name)
        return state if requests is None else state.with_load(add(state.used, requests))


NO_NOMINATIONS: Final = Nominations()
