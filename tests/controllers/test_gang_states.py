"""The states of a gang: each event leads where the table says, or is refused, and what a state has goes with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from unittest.mock import Mock

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_operator.controllers.scheduling.gang import (
    LED,
    TRANSITIONS,
    AwaitedClaims,
    GangEvent,
    GangProgress,
    GangRefusal,
    GangState,
    OutOfTurn,
)
from hypothesis import given
from hypothesis import strategies as st
from objects import Make

FREE, AWAITING, PLANNING, WRITING = GangState.FREE, GangState.AWAITING, GangState.PLANNING, GangState.WRITING
REFUSING, REFUSED, DISSOLVING = GangState.REFUSING, GangState.REFUSED, GangState.DISSOLVING
LEADER, MATE = (convert(Pod, Make.pod(name)) for name in ("leader", "mate"))
REFUSAL: Final = Mock(GangRefusal, teller=LEADER)
AWAITED: Final = AwaitedClaims(LEADER, MATE, 0.0)
DO: Final[dict[GangEvent, Callable[[GangProgress], None]]] = {
    GangEvent.LEAD: lambda it: it.lead(LEADER),
    GangEvent.AWAIT: lambda it: it.await_claims(AWAITED),
    GangEvent.TAKE: lambda it: it.take([LEADER, MATE]),
    GangEvent.REFUSE: lambda it: it.refuse(REFUSAL),
    GangEvent.DISSOLVE: lambda it: it.dissolve(LEADER),
    GangEvent.FORGET: lambda it: it.forget(),
    GangEvent.END: lambda it: it.end(),
}
WAY: Final[dict[GangState, tuple[GangEvent, ...]]] = {
    FREE: (),
    AWAITING: (GangEvent.AWAIT,),
    PLANNING: (GangEvent.LEAD,),
    WRITING: (GangEvent.LEAD, GangEvent.TAKE),
    REFUSING: (GangEvent.LEAD, GangEvent.REFUSE),
    REFUSED: (GangEvent.LEAD, GangEvent.REFUSE, GangEvent.END),
    DISSOLVING: (GangEvent.DISSOLVE,),
}
EXPECTED: Final = {
    (FREE, GangEvent.LEAD): PLANNING,
    (FREE, GangEvent.AWAIT): AWAITING,
    (FREE, GangEvent.DISSOLVE): DISSOLVING,
    (AWAITING, GangEvent.LEAD): PLANNING,
    (AWAITING, GangEvent.AWAIT): AWAITING,
    (AWAITING, GangEvent.DISSOLVE): DISSOLVING,
    (AWAITING, GangEvent.FORGET): FREE,
    (PLANNING, GangEvent.TAKE): WRITING,
    (PLANNING, GangEvent.REFUSE): REFUSING,
    (PLANNING, GangEvent.END): FREE,
    (WRITING, GangEvent.END): FREE,
    (REFUSING, GangEvent.END): REFUSED,
    (REFUSED, GangEvent.LEAD): PLANNING,
    (REFUSED, GangEvent.AWAIT): AWAITING,
    (REFUSED, GangEvent.DISSOLVE): DISSOLVING,
    (REFUSED, GangEvent.FORGET): FREE,
    (DISSOLVING, GangEvent.END): FREE,
}
"""Written out once more: a changed line of the table is a decision."""


def gang_in(state: GangState) -> GangProgress:
    made = GangProgress("ns/g/2")
    for event in WAY[state]:
        DO[event](made)
    assert made.state is state
    return made


def check(it: GangProgress) -> None:
    """What a state has, it has in no other state."""
    assert it.is_led == (it.state in LED) == bool(it.leader) == bool(it.pods)
    assert (it.refusal is not None) == (it.state in (REFUSING, REFUSED))
    assert (it.awaited is not None) == (it.state is AWAITING)
    assert it.waits_because is {REFUSED: REFUSAL, AWAITING: AWAITED}.get(it.state)
    assert (it.attempt is None and it.former is None) or it.state is PLANNING
    assert not it.leader or it.leader in it.pods


@pytest.mark.parametrize("event", GangEvent, ids=lambda it: it.name)
@pytest.mark.parametrize("state", GangState, ids=lambda it: it.name)
def test_each_event_in_each_state(state: GangState, event: GangEvent) -> None:
    gang, after = gang_in(state), EXPECTED.get((state, event))
    if after is None:
        with pytest.raises(OutOfTurn, match=f"{state.name}.*no {event.name}"):
            DO[event](gang)
    else:
        DO[event](gang)
    assert gang.state is (after or state)
    check(gang)


def test_the_table_has_these_transitions_and_no_others() -> None:
    found = {(state, event): after for state, events in TRANSITIONS.items() for event, after in events.items()}
    assert found == EXPECTED
    assert TRANSITIONS.keys() == set(GangState)


@given(st.lists(st.sampled_from(GangEvent)))
def test_whatever_happens_a_gang_has_what_its_state_says(events: list[GangEvent]) -> None:
    gang = GangProgress("ns/g/2")
    for event in events:
        try:
            DO[event](gang)
        except OutOfTurn:
            assert event not in TRANSITIONS[gang.state]
        check(gang)


def test_a_plan_that_is_put_aside_goes_with_its_end() -> None:
    gang = gang_in(PLANNING)
    gang.attempt = Mock()
    gang.end()
    check(gang)


def test_a_gang_can_always_get_back_to_where_any_pod_may_lead() -> None:
    for state in LED:
        assert GangEvent.END in TRANSITIONS[state]
    for state in set(GangState) - LED:
        assert GangEvent.LEAD in TRANSITIONS[state]
