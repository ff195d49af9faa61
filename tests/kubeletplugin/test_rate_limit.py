"""When pools are due and when requests may be sent, with the time in hand (RS-02)."""

from __future__ import annotations

import pytest
from dra_kubeletplugin.slices.pool_sync import NextPublish, Reason
from dra_kubeletplugin.slices.writer import RateLimit


@pytest.mark.rule("RS-02")
def test_a_pool_that_never_becomes_quiet_is_due_after_twice_the_quiet_time() -> None:
    due = NextPublish()
    looked = []
    for now in range(0, 600, 5):
        due.changed("busy", float(now), 30.0)
        looked += [now for _ in due.take(float(now))]
    assert looked == list(range(60, 600, 65)), "the next change after a sync starts over"


@pytest.mark.rule("RS-02")
def test_a_pool_that_becomes_quiet_is_due_after_the_quiet_time() -> None:
    due = NextPublish()
    due.changed("p", 0.0, 30.0)
    due.changed("p", 10.0, 30.0)
    assert due.take(39.9) == []
    assert due.take(10.0 + 1.25 * 30.0) == ["p"]
    assert due.next_moment() is None


@pytest.mark.rule("RS-02")
def test_intervals_between_failures_double_up_to_a_minute_and_have_a_random_part() -> None:
    due = NextPublish()
    intervals = []
    for _ in range(20):
        due.failed("p", 0.0)
        intervals.append(due.next_moment() or 0.0)
        due.take(100.0)
    for number, interval in enumerate(intervals):
        exact = min(0.005 * 2**number, 60.0)
        assert exact <= interval <= 1.25 * exact
    assert len({interval / min(0.005 * 2**number, 60.0) for number, interval in enumerate(intervals)}) > 10
    for _ in range(2000):  # 2.0**1024 is no float
        due.failed("p", 0.0)
    due.settled("p")
    assert due.next_moment() is None
    due.failed("p", 0.0)
    assert (due.next_moment() or 0.0) <= 1.25 * 0.005


@pytest.mark.rule("RS-02")
def test_a_retry_is_not_earlier_than_the_server_asks() -> None:
    due = NextPublish()
    due.failed("p", 0.0, at_least=5.0)
    assert 5.0 <= (due.next_moment() or 0.0) <= 6.25


@pytest.mark.rule("RS-02")
def test_a_refused_pool_is_due_again_after_five_minutes_and_at_once_when_it_is_published() -> None:
    due = NextPublish()
    for _ in range(20):
        due.failed("p", 0.0)
    due.refused("p", 0.0)
    assert 300.0 <= (due.next_moment() or 0.0) <= 375.0
    due.add("p", Reason.DESIRED, 1.0)
    assert due.take(1.0) == ["p"]
    due.failed("p", 0.0)
    assert (due.next_moment() or 0.0) <= 1.25 * 0.005, "the failures before the refusal count no more"


@pytest.mark.rule("RS-02")
def test_a_hundred_requests_at_once_and_fifty_per_second_afterwards() -> None:
    limit = RateLimit(rate=50.0, burst=100)
    waits = [limit.take(1000.0) for _ in range(300)]
    assert waits[:100] == [0.0] * 100
    assert waits[100:] == pytest.approx([number / 50 for number in range(1, 201)])
    assert limit.take(2000.0) == 0.0


def test_no_request_is_sent_while_the_server_asks_for_a_rest() -> None:
    limit = RateLimit(rate=50.0, burst=100)
    limit.rest(0.0, 5.0)
    assert 5.0 <= limit.take(0.0) <= 6.25
    limit.rest(0.0, 1.0)
    assert limit.take(1.0) >= 4.0, "a shorter request does not end a longer one"
    assert limit.take(7.0) == 0.0
