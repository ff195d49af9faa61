"""The protocol of ``docs/contests.md`` as a state machine, and a search through all that may happen in small cases.

Two schedulers give the same devices to claims: *ours*, by our rules, and *theirs*, by those of kube-scheduler. The
server orders all writes. Each scheduler has read some of them, in their order, and decides on what it has read.

::

    server    a list of writes: who, which claim, takes or gives back which device
    ours      how many writes it has read; claims: free -> written -> seen -> bound, or parked
    theirs    how many writes it has read; its record, a *set* of devices in use; decisions that are not written yet

There is no time. Two assumptions about it stand in its place. One is the operator's grace: what theirs has decided is
written, and what was written is read by theirs, before ours ends a wait that began after it (``State.is_settled``). The
other one is about the moment in which a contest ends: from the last look of ours at their pods until theirs has read
that ours gave the device back, at most ``at_once`` things happen: a pod of theirs comes, or a new leader of ours. These
are milliseconds after a second without any.

``Rules`` can switch each rule off, so that a test can show what it is good for:

``looks_again``   a pod of ours is bound when the wait is over and all claims were listed, and no other has the device
``remembers``     and no other had it at any moment since, nor may have had it before this leader came
``parks``         a claim of ours that lost keeps its device until theirs has none of it
``waits_for_quiet``   and until no pod of theirs wants a device
``takes_again``   and takes the device once more, if theirs took it while ours gave it back
``sees_first``    a new leader binds nothing before it sees what others do
``notes_in_flight``   another one that had it while the write of ours was on its way counts, too

With ``late`` the watches of ours may hide a pod of theirs and its claim for as long as they like. ``looks_everywhere``:
a look finds the claim; ours looks only in namespaces in which it has seen pods of theirs. ``awaits_watches`` would do:
ours binds nothing before its watches have brought all that was written before the look.

A restart of ours loses what it has not written; a restart of theirs reads all claims anew, and loses its decisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import pytest

FREE: Final = "free"
WRITTEN: Final = "written"
BOUND: Final = "bound"
PARKED: Final = "parked"
DONE: Final = "done"
ENDING: Final = "ending"
GIVEN_BACK: Final = "given back"
WAITING: Final = "waiting"
DECIDED: Final = "decided"


class Claim(NamedTuple):
    """``state`` of the claim of one pod, and its ``device``, -1 for none.

    ``is_contested``: a claim of theirs had the device while ours did, or may have. ``is_hidden``: the watches of ours
    have not brought the claim of theirs yet.
    """

    state: str
    device: int = -1
    is_contested: bool = False
    is_hidden: bool = False


class Event(NamedTuple):
    """A write to a claim: it takes the device, or gives it back. ``number`` tells the claims of a side apart."""

    ours: bool
    number: int
    takes: bool
    device: int


@dataclass(frozen=True)
class Rules:
    """Of our side; those of theirs are fixed. See above."""

    looks_again: bool = True
    remembers: bool = True
    parks: bool = True
    waits_for_quiet: bool = True
    takes_again: bool = True
    sees_first: bool = True
    notes_in_flight: bool = True
    looks_everywhere: bool = False
    awaits_watches: bool = False


OLD: Final = Rules(remembers=False, parks=False, waits_for_quiet=False, takes_again=False, sees_first=False)


class State(NamedTuple):
    """Everything that decides what may happen next. ``unread``: writes that theirs has not read, oldest first."""

    ours: tuple[Claim, ...]
    theirs: tuple[Claim, ...]
    unread: tuple[Event, ...] = ()
    record: frozenset[int] = frozenset()
    sees: bool = True
    """Whether our leader sees what the others do; a new one does not yet."""
    restarts: int = 0
    came: int = 0
    """Pods of theirs and leaders of ours that came since a contest began to end."""

    def holders(self, device: int) -> list[tuple[bool, int]]:
        """Return the claims with the device on the server: side and index."""
        held = (WRITTEN, BOUND, PARKED, ENDING)
        found = [(True, i) for i, it in enumerate(self.ours) if it.device == device and it.state in held]
        written = (BOUND,)
        return found + [(False, i) for i, it in enumerate(self.theirs) if it.device == device and it.state in written]

    def theirs_hold(self, device: int) -> bool:
        """Return whether a claim of theirs has the device on the server."""
        return any(not is_ours for is_ours, _ in self.holders(device))

    def is_rival_seen(self, device: int) -> bool:
        """Return whether ours sees a claim of theirs that has the device."""
        return any(not is_ours and not self.theirs[number].is_hidden for is_ours, number in self.holders(device))

    @property
    def is_settled(self) -> bool:
        """Return whether theirs has read all writes and written all decisions: a wait of ours that is over says so."""
        return not self.unread and all(claim.state != DECIDED for claim in self.theirs)

    @property
    def is_quiet(self) -> bool:
        """Return whether no pod of theirs wants a device."""
        return all(claim.state not in (WAITING, DECIDED) for claim in self.theirs)


class Step(NamedTuple):
    """What happened, in words, and the state after that."""

    what: str
    state: State


def wrong(state: State) -> str:
    """Return what must never be, or an empty text: two bound pods with a device, or a device lost to their record."""
    bound: dict[int, str] = {}
    for side, claims in (("ours", state.ours), ("theirs", state.theirs)):
        for number, claim in enumerate(claims):
            if claim.state == BOUND:
                if claim.device in bound:
                    return f"device {claim.device} is twice: {bound[claim.device]} and {side} {number}"
                bound[claim.device] = f"{side} {number}"
    return ""


def is_lost(state: State) -> str:
    """Return which device their record lacks for good, though a claim of theirs has it: they may give it again.

    A device of which a write is unread may come back.
    """
    for number, claim in enumerate(state.theirs):
        comes = any(event.device == claim.device and event.takes for event in state.unread)
        if claim.state == BOUND and claim.device not in state.record and not comes:
            return f"device {claim.device} of theirs {number} is lost to their record"
    return ""


def steps(
    state: State, rules: Rules, devices: int, restarts: int, at_once: int, *, late: bool = False
) -> Iterator[Step]:
    """Yield everything that may happen next."""
    yield from _theirs(state, devices, at_once, late)
    yield from _watches(state)
    yield from _ours(state, rules, devices)
    if state.restarts < restarts:
        yield from _restarts(state, at_once)


def _watches(state: State) -> Iterator[Step]:
    for number, claim in enumerate(state.theirs):
        if claim.is_hidden:
            after = _with(state, False, number, claim._replace(is_hidden=False))
            if claim.state in (BOUND, DONE):
                after = _noted(after, claim.device)
            yield Step(f"the watches bring {number} of theirs", after)


def _noted(state: State, device: int) -> State:
    """Ours sees that a claim of theirs has the device."""
    ours = tuple(_contested(it) if (it.state, it.device) == (WRITTEN, device) else it for it in state.ours)
    return state._replace(ours=ours)


def _theirs(state: State, devices: int, at_once: int, late: bool) -> Iterator[Step]:
    parked_again = any(event.ours and state.ours[event.number].state == PARKED for event in state.unread)
    ends = parked_again or _is_given(state) or any(claim.state in (ENDING, GIVEN_BACK) for claim in state.ours)
    in_flight = {claim.device for claim in state.theirs if claim.state == DECIDED}
    for number, claim in enumerate(state.theirs):
        if claim.state == FREE and (not ends or state.came < at_once):
            waiting = Claim(WAITING, is_hidden=late)
            came = _with(state, False, number, waiting)._replace(came=state.came + ends)
            yield Step(f"pod {number} of theirs comes", came)
        if claim.state == WAITING:
            for device in sorted(set(range(devices)) - state.record - in_flight):
                what = f"theirs decides: device {device} for {number}"
                yield Step(what, _with(state, False, number, claim._replace(state=DECIDED, device=device)))
        if claim.state == DECIDED:  # the answer to its own write puts the device into the record at once
            after = _with(state, False, number, claim._replace(state=BOUND))
            after = after._replace(record=state.record | {claim.device})
            after = after if claim.is_hidden else _noted(after, claim.device)
            yield Step(f"theirs writes device {claim.device} for {number}, and binds", after)
        if claim.state == BOUND:
            gives = Event(False, number, False, claim.device)
            # the watches will bring that it had the device, too; by then ours may have taken that without a contest
            is_shared = any((it.state, it.device) == (WRITTEN, claim.device) for it in state.ours)
            was = claim.device if claim.is_hidden and is_shared else -1
            done = Claim(DONE, was, is_hidden=claim.is_hidden)
            after = _with(state, False, number, done)._replace(unread=(*state.unread, gives))
            yield Step(f"pod {number} of theirs ends: device {claim.device}", after)
    if state.unread:
        event, *rest = state.unread
        record = state.record | {event.device} if event.takes else state.record - {event.device}
        who = "ours" if event.ours else "theirs"
        what = f"theirs reads that {event.number} of {who} {'takes' if event.takes else 'gives back'} {event.device}"
        yield Step(what, state._replace(unread=tuple(rest), record=record))


def _is_given(state: State) -> bool:
    """Return whether theirs has yet to read that ours gave a device back."""
    return any(event.ours and not event.takes for event in state.unread)


def _ours(state: State, rules: Rules, devices: int) -> Iterator[Step]:
    for number, claim in enumerate(state.ours):
        if claim.state == FREE:
            # the cache of ours may lag: then it takes a device that theirs has on the server
            known = {it.device for it in state.ours if it.state not in (FREE, GIVEN_BACK)}
            for device in sorted(set(range(devices)) - known):
                taken = Claim(WRITTEN, device, rules.notes_in_flight and state.is_rival_seen(device))
                yield Step(f"ours takes device {device} for {number}", _takes(state, number, taken))
        elif claim.state == WRITTEN:
            yield from _after_the_wait(state, rules, number, claim)
        elif claim.state == PARKED:
            may = state.is_settled and not state.theirs_hold(claim.device)
            if may and (state.is_quiet or not rules.waits_for_quiet):
                what = f"ours sees that the contest of {number} may end"
                yield Step(what, _with(state._replace(came=0), True, number, Claim(ENDING, claim.device)))
        elif claim.state == ENDING:
            given = Claim(GIVEN_BACK, claim.device)
            yield Step(f"ours gives device {claim.device} of {number} back", _gives(state, number, claim, given))
        elif claim.state == GIVEN_BACK:
            is_ours = any(is_ours for is_ours, _ in state.holders(claim.device))  # that is a later write
            if state.theirs_hold(claim.device) and rules.takes_again and not is_ours:
                yield Step(
                    f"ours takes device {claim.device} once more", _takes(state, number, Claim(PARKED, claim.device))
                )
            elif state.is_settled:
                yield Step(f"the contest of {number} is over", _with(state, True, number, Claim(FREE)))
        elif claim.state == BOUND:
            yield Step(f"pod {number} of ours ends", _gives(state, number, claim, Claim(DONE)))


def _after_the_wait(state: State, rules: Rules, number: int, claim: Claim) -> Iterator[Step]:
    """The claim has its device; it is bound, or loses a contest."""
    has_looked = rules.looks_again and (state.sees or rules.sees_first)
    if has_looked and not state.is_settled:
        return
    if rules.awaits_watches and any(it.is_hidden and it.state != WAITING for it in state.theirs):
        return
    rival = state.theirs_hold if rules.looks_everywhere else state.is_rival_seen
    is_lost_contest = rival(claim.device) or (rules.remembers and claim.is_contested)
    if not is_lost_contest or not has_looked:
        yield Step(
            f"ours binds {number} with device {claim.device}", _with(state, True, number, Claim(BOUND, claim.device))
        )
    elif rules.parks:
        yield Step(f"ours parks {number}", _with(state, True, number, Claim(PARKED, claim.device)))
    else:
        yield Step(f"ours {number} gives way", _gives(state, number, claim, Claim(FREE)))


def _restarts(state: State, at_once: int) -> Iterator[Step]:
    once, ends = state.restarts + 1, any(claim.state == GIVEN_BACK for claim in state.ours)
    # parked claims say on the server that they are; a look after giving back is forgotten
    ours = tuple(Claim(FREE) if claim.state == GIVEN_BACK else claim for claim in state.ours)
    ours = tuple(Claim(PARKED, claim.device) if claim.state == ENDING else claim for claim in ours)
    ours = tuple(_contested(claim) if claim.state == WRITTEN else claim for claim in ours)
    if not ends or state.came < at_once:
        came = state._replace(ours=ours, sees=False, restarts=once, came=state.came + ends)
        yield Step("a new leader of ours", came)
    held = [claim.device for claim in state.ours if claim.state in (WRITTEN, BOUND, PARKED, ENDING)]
    held += [claim.device for claim in state.theirs if claim.state == BOUND]
    again = [it._replace(state=WAITING, device=-1) if it.state == DECIDED else it for it in state.theirs]
    theirs = tuple(again)
    anew = state._replace(theirs=theirs, unread=(), record=frozenset(held), restarts=once)
    yield Step("theirs starts again", anew)


def _contested(claim: Claim) -> Claim:
    return claim._replace(is_contested=True)


def _with(state: State, is_ours: bool, number: int, claim: Claim) -> State:
    before = state.ours if is_ours else state.theirs
    after = (*before[:number], claim, *before[number + 1 :])
    return state._replace(ours=after) if is_ours else state._replace(theirs=after)


def _takes(state: State, number: int, claim: Claim) -> State:
    event = Event(True, number, True, claim.device)
    return _with(state, True, number, claim)._replace(unread=(*state.unread, event))


def _gives(state: State, number: int, before: Claim, after: Claim) -> State:
    event = Event(True, number, False, before.device)
    return _with(state, True, number, after)._replace(unread=(*state.unread, event))


class Found(NamedTuple):
    """The first fault with its shortest story, or None and how many states were looked at."""

    fault: str
    story: tuple[str, ...]
    states: int


def explore(
    rules: Rules,
    *,
    ours: int = 1,
    theirs: int = 2,
    devices: int = 2,
    restarts: int = 0,
    at_once: int = 1,
    late: bool = False,
    most: int = 2_000_000,
) -> Found:
    """Look at every state that may be reached; the shortest way to a fault, if there is one.

    Raises RuntimeError if there are more than ``most`` states.
    """
    start = State((Claim(FREE),) * ours, (Claim(FREE),) * theirs)
    came: dict[State, tuple[State, str] | None] = {start: None}
    line = deque([start])
    while line:
        state = line.popleft()
        if fault := wrong(state):
            return Found(fault, _story(came, state), len(came))
        for what, after in steps(state, rules, devices, restarts, at_once, late=late):
            if after not in came:
                came[after] = state, what
                line.append(after)
        if len(came) > most:
            raise RuntimeError(f"more than {most} states")
    return Found("", (), len(came))


def _story(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    told: list[str] = []
    while (before := came[state]) is not None:
        state, what = before
        told.append(what)
    return tuple(reversed(told))


# --- tests ---

RULES = Rules()


@pytest.mark.parametrize(
    ("ours", "theirs", "devices"),
    [(1, 2, 1), (1, 3, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1), (2, 3, 1), (2, 2, 2), (1, 3, 2)],
)
def test_no_order_of_events_gives_a_device_twice(ours: int, theirs: int, devices: int) -> None:
    """With a restart, and so without one: a state is looked at before anything starts again as well."""
    found = explore(RULES, ours=ours, theirs=theirs, devices=devices, restarts=1)
    assert found.fault == "", found.story
    assert found.states > 50


@pytest.mark.parametrize(
    ("rules", "what"),
    [
        pytest.param(OLD, "is twice", id="the former rules"),
        pytest.param(replace(RULES, looks_again=False), "ours 0 and theirs 0", id="no look again"),
        pytest.param(replace(RULES, remembers=False), "ours 0 and theirs 1", id="the former holder is forgotten"),
        pytest.param(replace(RULES, parks=False), "theirs 0 and theirs 1", id="ours gives way"),
        pytest.param(replace(RULES, waits_for_quiet=False), "theirs 1 and theirs 2", id="gives back while others wait"),
        pytest.param(replace(RULES, takes_again=False), "theirs 1 and theirs 2", id="does not take again"),
        pytest.param(replace(RULES, sees_first=False), "ours 0 and theirs 0", id="a new leader that sees nothing"),
        pytest.param(replace(RULES, notes_in_flight=False), "ours 0 and theirs 1", id="forgets while it writes"),
    ],
)
def test_each_rule_is_needed(rules: Rules, what: str) -> None:
    found = explore(rules, ours=1, theirs=3, devices=1, restarts=1)
    assert "is twice" in found.fault
    assert what in found.fault


def test_two_pods_in_the_moment_in_which_a_contest_ends_are_too_many() -> None:
    """What no rule prevents, as the page says: each assumption is needed, too."""
    found = explore(RULES, ours=1, theirs=3, devices=1, at_once=2)
    assert "theirs 1 and theirs 2" in found.fault


def test_watches_that_hide_a_pod_of_theirs_for_longer_than_the_wait_are_too_late() -> None:
    """What no rule prevents either: a look in all namespaces would find a claim that has the device, not one that had
    it. To wait until the watches have brought all that was written before the look would be enough."""
    hides_holder = explore(RULES, ours=1, theirs=1, devices=1, late=True)
    assert "ours 0 and theirs 0" in hides_holder.fault
    hides_former = explore(replace(RULES, looks_everywhere=True), ours=1, theirs=2, devices=1, late=True)
    assert "ours 0 and theirs 1" in hides_former.fault
    awaits = replace(RULES, looks_everywhere=True, awaits_watches=True)
    found = explore(awaits, ours=1, theirs=2, devices=1, restarts=1, late=True)
    assert found.fault == "", found.story
