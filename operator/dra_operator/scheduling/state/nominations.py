"""Nominations: the node, the room there and the devices that waiting pods get once others have ended.

Until then no pod of the same or a lower priority may take them: to such a pod they count as used. A pod of a higher
priority ignores the nomination, and the nominated pod itself is asked about its node first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from dra_api.core import Pod
from dra_api.resource import AllocationResult

from dra_operator.allocator import Usage

from .node import LoadedNode
from .requests import Amounts, add


@dataclass(frozen=True, slots=True)
class Nomination:
    """What one pod is to get. ``requests`` is what it takes of the node beside its devices."""

    pod: Pod
    node: str
    allocations: tuple[AllocationResult, ...]
    requests: Amounts
    gang: str | None = None
    """The gang for which the pod is nominated: its pods share what all of them are to get."""


@dataclass(frozen=True, slots=True)
class Nominations:
    """What nominations mean to one pod: ``node`` is its own one, ``of_others`` are those that it has to respect."""

    node: str = ""
    of_others: tuple[Nomination, ...] = ()
    _requests: dict[str, Amounts] = field(default_factory=dict)

    @classmethod
    def of(cls, node: str, of_others: Iterable[Nomination]) -> Nominations:
        """With the sums by node."""
        others, requests = tuple(of_others), dict[str, Amounts]()
        for it in others:
            requests[it.node] = add(requests.get(it.node, {}), it.requests)
        return cls(node, others, requests) if node or others else NO_NOMINATIONS

    def usage(self, usage: Usage) -> Usage:
        """The devices in use with those that others are to get; the same object if there are none."""
        if not any(it.allocations for it in self.of_others):
            return usage
        more = usage.snapshot()
        for it in self.of_others:
            for allocation in it.allocations:
                more.add(allocation)
        return more

    def loaded(self, state: LoadedNode) -> LoadedNode:
        """The node with the pods that are to come there."""
        requests = self._requests.get(state.name)
        return state if requests is None else state.with_load(add(state.used, requests))


NO_NOMINATIONS: Final = Nominations()
