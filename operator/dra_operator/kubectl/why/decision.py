"""What is decided about a waiting pod: what each node says, and the joint decision of the pipeline."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from dra_operator.allocator import NodeSelectionError
from dra_operator.kubectl.pipeline import Pipeline, TookTooLong
from dra_operator.scheduling import CycleState, Lacking, NoPlace, Obstructed, Plan, PodFilter

from .preemption import preemption
from .survey import NodeSaid, survey


class Decision(NamedTuple):
    """``answer`` is None if each node says no, and no end of other pods may help: that is a decision as well."""

    pod_filter: PodFilter | None
    """None if no node can be asked, and then ``answer`` is an error."""
    said: list[NodeSaid]
    answer: Plan | NoPlace | None
    is_cut: bool = False
    """Whether the time was over before all nodes were asked, and the decision was made."""

    @property
    def error(self) -> str:
        """What ends the attempt for all nodes; empty if nothing does."""
        return self.answer.message if isinstance(self.answer, NoPlace) and self.answer.is_error else ""


def decide(made: Pipeline, cycle_state: CycleState, *, places: bool) -> Decision:
    """``places``: the operator gives the pod a node, or devices."""
    try:
        pod_filter = PodFilter(cycle_state)
    except NodeSelectionError as error:
        return Decision(None, [], NoPlace(str(error), is_error=True))
    said: list[NodeSaid] = []
    try:
        said.extend(survey(cycle_state, pod_filter, made.pausing))
        return _decided(made, cycle_state, pod_filter, said, places=places)
    except TookTooLong:
        return Decision(pod_filter, said, None, is_cut=True)


def _decided(
    made: Pipeline, cycle_state: CycleState, pod_filter: PodFilter, said: list[NodeSaid], *, places: bool
) -> Decision:
    is_refused = said and all(isinstance(one.said.answer, Obstructed | Lacking) for one in said)
    if is_refused and not (places and _may_outrank(made, cycle_state)):
        return Decision(pod_filter, said, None)
    return Decision(pod_filter, said, made.planned(cycle_state, partial(preemption, made) if places else None))


def _may_outrank(made: Pipeline, cycle_state: CycleState) -> bool:
    """Whether some pod has a lower priority, or is about to end."""
    priority = made.cluster.priority_of
    rank = priority(cycle_state.pod)
    return any(priority(it) < rank or it.metadata.deletion_timestamp is not None for it in made.cluster.pods)
