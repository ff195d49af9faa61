"""The cluster with the members of a gang that have a place in the plan: their devices, room and rules count as used.

Nothing of it is visible to others. Rules between pods look at all pods on nodes, so there the members stand among the
others while the plan works, and leave at every pause (``through``).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from dra_api.core import Pod

from dra_operator.allocator import Usage
from dra_operator.scheduling.cycle.pause import Elapsed, Pause
from dra_operator.scheduling.cycle.result import Plan
from dra_operator.scheduling.nodes import Nodes
from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.requests import Amounts, add, subtract

T = TypeVar("T")


class Overlay:
    """``has_rules``: rules between pods concern members. ``is_empty``: as if no pod ran and no device was in use."""

    def __init__(self, nodes: Nodes, usage: Usage, *, has_rules: bool, is_empty: bool = False) -> None:
        self._nodes, self._has_rules, self._is_empty = nodes, has_rules, is_empty
        self.usage = Usage() if is_empty else usage.snapshot()
        self._loads: dict[str, Amounts] = {}
        self._placed: dict[str, tuple[Pod, str]] = {}
        self.returns = 0
        """How often the members came back after a pause: what rules have counted before may not count any more."""

    def state(self, name: str) -> LoadedNode | None:
        """A node with the members on it."""
        state, load = self._nodes.get(name), self._loads.get(name)
        if state is None or (load is None and not self._is_empty):
            return state
        return state.with_load(add({} if self._is_empty else state.used, load or {}))

    def place(self, pod: Pod, plan: Plan) -> None:
        """The member gets this place and these devices."""
        self._loads[plan.node] = add(self._loads.get(plan.node, {}), plan.requests_of(pod))
        self.give(plan)
        self._placed[pod.metadata.uid] = (pod, plan.node)
        self._enter(pod, plan.node)

    def remove(self, pod: Pod, plan: Plan) -> None:
        """The reverse of ``place``."""
        rest = subtract(self._loads[plan.node], plan.requests_of(pod))
        self._loads[plan.node] = rest
        if not rest:
            del self._loads[plan.node]
        self.take(plan)
        del self._placed[pod.metadata.uid]
        self._leave(pod)

    def give(self, plan: Plan) -> None:
        """The devices of a plan are in use."""
        for allocation in plan.allocations.values():
            self.usage.add(allocation)

    def take(self, plan: Plan) -> None:
        """The reverse of ``give``."""
        for allocation in plan.allocations.values():
            self.usage.remove(allocation)

    def through(self, work: Generator[Pause, Elapsed, T]) -> Generator[Pause, Elapsed, T]:
        """Do the work, with the members away at its pauses."""
        if not self._has_rules:
            return (yield from work)
        elapsed: Elapsed = None
        while True:
            try:
                pause = work.send(elapsed)
            except StopIteration as end:
                answer: T = end.value
                return answer
            self.clear()
            elapsed = yield pause
            for pod, node in self._placed.values():
                self._enter(pod, node)
            self.returns += 1

    def clear(self) -> None:
        """Take all members from the nodes."""
        for pod, _ in self._placed.values():
            self._leave(pod)

    def _enter(self, pod: Pod, node: str) -> None:
        if self._has_rules:
            self._nodes.pods_by_node.put(pod, node)

    def _leave(self, pod: Pod) -> None:
        if self._has_rules:
            self._nodes.pods_by_node.remove(pod.metadata.uid)
