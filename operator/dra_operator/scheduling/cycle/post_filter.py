"""PostFilter: no node fits, and something may make room for the pod by the end of others (kube-scheduler's phase).

A post filter gets what the cycle knows (``Unschedulable``) and answers with a nomination, or with None. It only
decides: ``controllers.scheduling.preemption.make_room`` says who carries a nomination out. It works in pieces, as the
rest of a plan does, and its pieces are charged to the pod like those of a search.

To find out whether a pod fits after others have ended, ask a node again with what is left then::

    question = failed.question.given(usage_without_the_victims)
    status = yield from question.filter(state.with_load(load_without_the_victims))

A pod's own claims come first: as long as the pod may give one of them back, no post filter is asked. kube-scheduler has
the same order, with the plugin DynamicResources before DefaultPreemption (scheduling.md 4.3).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass

from dra_operator.scheduling.state.node import LoadedNode

from .filter import PodFilter
from .node_status import Faulty, Lacking, NodeStatus, Obstructed
from .pause import Elapsed, Pause
from .pre_filter import CycleState
from .result import NoPlace, PostFilterResult


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """What the cycle knows of a pod that no node takes.

    ``cycle_state`` has the pod, its claims, the nodes with the pods on them, and the devices in use. ``question`` has
    what was worked out once for all nodes: rules, demands, the nodes of allocated claims. ``refusal`` is what the pod
    is told if nothing makes room. A node that is absent from ``statuses`` was not asked: too few devices are free there
    for the claims, or an allocated claim cannot be used there.
    """

    cycle_state: CycleState
    question: PodFilter
    refusal: NoPlace
    statuses: Mapping[str, NodeStatus]

    def resolvable(self) -> Iterator[LoadedNode]:
        """The nodes, by name, that the end of pods may open to this one. Raises ClaimError.

        All others need another change: a label, a taint, a volume, or devices that do not exist.
        """
        return (state for state in self.cycle_state.nodes if self.is_resolvable(state))

    def is_resolvable(self, state: LoadedNode) -> bool:
        """Whether the node is one of them."""
        status = self.statuses.get(state.name)
        rules = self.question.rules
        if isinstance(status, Obstructed):
            return not status.elsewhere and rules.may_end_with_pods(status.obstacle)
        if status is not None:
            return isinstance(status, Lacking) or (isinstance(status, Faulty) and status.is_of_node)
        if self.question.allocations.nodes is not None:
            return False
        obstacle = rules.obstacle(state, self.question.demands.on(state).served)
        return obstacle is None or rules.may_end_with_pods(obstacle)


PostFilter = Callable[[Unschedulable], Generator[Pause, Elapsed, PostFilterResult | None]]
"""Answers with a nomination, or with None if the end of others does not help or is not allowed."""
