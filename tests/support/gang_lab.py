"""Plans for gangs, decided in one go."""

from __future__ import annotations

from collections.abc import Sequence

from dra_operator.scheduling import CycleState, NoPlace, Pause
from dra_operator.scheduling.gang import JointPlan, SameValues, joint_plan


def decided_together(made: Sequence[CycleState], same: SameValues) -> JointPlan | NoPlace:
    """The plan for all of them, or why there is none."""
    planning = joint_plan(made, same)
    while True:
        try:
            assert isinstance(next(planning), Pause)
        except StopIteration as end:
            answer: JointPlan | NoPlace = end.value
            return answer
