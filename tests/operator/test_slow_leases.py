"""Leaders whose API server takes seconds for each request about the Lease, on a loop whose time is a number."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, cycle
from typing import Any, Self, cast
from unittest import mock

import pytest
from dra_kube import AlreadyExists, Conflict, Connection, Election, NotFound, NotSent, Unreachable
from dra_operator.app import leader
from history_kit.clock import VirtualLoop
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import fewer

LONGEST_SECONDS = 4.8
"""That a request may take with the default duration of a lease; client-go gives it 5 s."""
Delays = tuple[float, float]
"""Seconds before the effect of a request, and from there to its answer."""


class SlowLeases:
    """One Lease, and the seconds that each request takes; no answer after ``limit`` of them."""

    def __init__(self, delays: Sequence[Delays], limit: float) -> None:
        self._delays, self._limit = cycle(delays), limit
        self.lease: dict[str, Any] | None = None
        self._revisions = count()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """There is nothing to close."""

    async def get(self, *_: object) -> dict[str, Any]:
        return await self._slowly(self._read)

    async def create(self, _: object, body: dict[str, Any], *__: object) -> dict[str, Any]:
        return await self._slowly(partial(self._store, copy.deepcopy(body), None))

    async def update(self, _: object, body: dict[str, Any]) -> dict[str, Any]:
        return await self._slowly(partial(self._store, copy.deepcopy(body), body["metadata"]["resourceVersion"]))

    async def _slowly(self, effect: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        before, after = next(self._delays)

        async def carried_out() -> dict[str, Any]:
            await asyncio.sleep(before)
            try:
                answer: dict[str, Any] | Exception = effect()
            except (AlreadyExists, Conflict, NotFound) as error:
                answer = error
            await asyncio.sleep(after)
            if isinstance(answer, Exception):
                raise answer
            return answer

        on_server = asyncio.create_task(carried_out())  # takes effect whether anybody waits for the answer or not
        try:
            return await asyncio.wait_for(asyncio.shield(on_server), self._limit)
        except TimeoutError as error:
            on_server.add_done_callback(lambda task: task.cancelled() or task.exception())
            raise Unreachable("no answer") from error

    def _read(self) -> dict[str, Any]:
        if self.lease is None:
            raise NotFound(404, "NotFound", "no lease")
        return copy.deepcopy(self.lease)

    def _store(self, body: dict[str, Any], version: str | None) -> dict[str, Any]:
        if version is None and self.lease is not None:
            raise AlreadyExists(409, "AlreadyExists", "it is there")
        if version is not None and (self.lease is None or self.lease["metadata"]["resourceVersion"] != version):
            raise Conflict(409, "Conflict", "changed")
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(next(self._revisions))}}
        return copy.deepcopy(self.lease)


def candidate(delays: Sequence[Delays], leases: SlowLeases | None = None) -> tuple[leader.Leader, SlowLeases]:
    """A leader-to-be with the default times, whose requests take these seconds in turn."""
    made: list[SlowLeases] = []

    def api(*_: object, timeout: float, **__: object) -> SlowLeases:
        made.append(SlowLeases(delays, timeout))
        if leases is not None:  # the same Lease by connections of its own
            made[0].__dict__ |= {"_delays": cycle(delays), "_store": leases._store, "_read": leases._read}
        return made[0]

    here: dict[str, Any] = {"Api": api, "Election": partial(Election, clock=asyncio.get_running_loop().time)}
    with mock.patch.multiple(leader, **here):
        return leader.Leader(cast(Connection, None), "lease"), made[0]


async def silent_tenths(seconds: float) -> int:
    """In how many tenths of a second of a minute the leader may write nothing."""
    leads, _ = candidate([(seconds / 2, seconds / 2)])
    await asyncio.wait_for(leads.acquire(), 60)
    silent = 0
    for _ in range(600):
        await asyncio.sleep(0.1)
        try:
            leads.allowance()
        except NotSent:
            silent += 1
    assert not leads.loss
    await leads.close()
    return silent


@pytest.mark.parametrize("seconds", [0.01, 2.2, 3.5, LONGEST_SECONDS])
def test_a_leader_may_write_all_the_time_while_renewals_take(seconds: float) -> None:
    """Up to half of the time in which a leader writes, which a request for the lease is given."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(silent_tenths(seconds)) == 0


async def course(delays: Sequence[Sequence[Delays]], dies_after: float | None) -> list[set[int]]:
    """Who leads in each tenth of a second of two minutes. Fails if two could write, or have a write land.

    The first leader dies after so many seconds.
    """
    time = asyncio.get_running_loop().time
    first, leases = candidate(delays[0])
    others = [candidate(its, leases)[0] for its in delays[1:]]
    everyone = [first, *others]
    acquiring = [asyncio.create_task(one.acquire()) for one in everyone]
    lands_until, seen = dict.fromkeys(range(len(everyone)), 0.0), []
    dead: set[int] = set()
    for _ in range(1200):
        await asyncio.sleep(0.1)
        writers = set()
        for number, one in enumerate(everyone):
            try:
                seconds = one.allowance()
            except NotSent:
                continue
            if number not in dead:
                writers.add(number)
                lands_until[number] = time() + seconds
        assert len(writers) <= 1, "two may write"
        for writer in writers:
            late = [other for other, until in lands_until.items() if other != writer and until > time()]
            assert not late, "a write of another one may still take effect"
        seen.append(writers)
        if dies_after is not None and time() >= dies_after and not dead and writers:
            dead = set(writers)
            acquiring[min(dead)].cancel()
            await everyone[min(dead)]._end_renewals()
    for task in acquiring:
        task.cancel()
    await asyncio.gather(*acquiring, return_exceptions=True)
    for one in everyone:
        await one.close()
    return seen


DELAY = st.floats(0.0, LONGEST_SECONDS).flatmap(
    lambda whole: st.floats(0.0, 1.0).map(lambda part: (whole * part, whole * (1 - part)))
)
DELAYS = st.lists(DELAY, min_size=1, max_size=8)
LONG_DELAY = st.tuples(st.floats(0, 20), st.floats(0, 20))


@settings(max_examples=fewer(120), deadline=None)
@given(st.lists(DELAYS, min_size=1, max_size=3), st.none() | st.floats(20.0, 60.0))
def test_however_long_requests_take_up_to_the_longest_one_leads_and_never_two(
    delays: list[list[Delays]], dies_after: float | None
) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        seen = runner.run(course(delays, dies_after))
    leaders = [writers for writers in seen if writers]
    began = next(number for number, writers in enumerate(seen) if writers)
    assert began <= 10 * (4 * LONGEST_SECONDS + 2), "two candidates may meet before the first leads"
    if dies_after is None:
        assert all(writers == leaders[0] for writers in seen[began:]), "it leads without a gap"
    elif len(delays) > 1:
        assert seen[-1], "another one has taken over"


@settings(max_examples=fewer(60), deadline=None)
@given(st.lists(st.lists(LONG_DELAY, min_size=1, max_size=8), min_size=2, max_size=3))
def test_requests_that_take_longer_than_that_make_no_two_leaders(delays: list[list[Delays]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(course(delays, None))


def test_a_lease_that_was_taken_over_before_its_time_is_settled_when_that_is_over() -> None:
    """Until then a write that the process before has sent may still be on its way."""

    async def settled() -> list[bool]:
        first, leases = candidate([(0.0, 0.0)])
        await first.acquire()
        await first._end_renewals()
        with mock.patch.object(leader.Seat, "has_ended", lambda _, holder: holder == first._election.identity):
            second, _ = candidate([(0.0, 0.0)], leases)
            await second.acquire()
        seen = []
        for _ in range(4):
            seen.append(second.is_settled)
            await asyncio.sleep(5)
        await second.close()
        return seen

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(settled()) == [False, False, False, True]
