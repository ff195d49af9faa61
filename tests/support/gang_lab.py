"""Plans for gangs, decided in one go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

from dra_operator.scheduling import CycleState, InPieces, NoPlace, Pause
from dra_operator.scheduling.gang import JointPlan, SameValues, joint_plan
from dra_operator.scheduling.gang.joint_search import JointSearch
from dra_operator.scheduling.gang.members import MemberFrame


def decided_together(made: Sequence[CycleState], same: SameValues) -> JointPlan | NoPlace:
    """The plan for all of them, or why there is none."""
    planning = InPieces(joint_plan(made, same))
    assert all(isinstance(pause, Pause) for pause in planning)
    return planning.answer


def decided_with_pauses(made: Sequence[CycleState], same: SameValues) -> JointPlan | NoPlace:
    """The same, with a pause before each member is asked about nodes: all members leave the nodes meanwhile."""
    original = JointSearch._advance

    def pausing(search: JointSearch, frame: MemberFrame) -> Any:
        yield Pause.SEARCHING
        return (yield from original(search, frame))

    with mock.patch.object(JointSearch, "_advance", pausing):
        return decided_together(made, same)
