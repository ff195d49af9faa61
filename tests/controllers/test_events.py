"""Which events are written, and how many."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest
from dra_api.codec import convert
from dra_api.core import Pod
from dra_kube import EVENTS
from dra_operator.kube import EventReason, EventRecorder
from fake_api import FakeApi
from objects import Make


class Recording:
    """A recorder, its clock, and what it has written."""

    def __init__(self) -> None:
        self.api, self.seconds = FakeApi(), 0.0
        self._recorder = EventRecorder(self.api, "test", clock=lambda: self.seconds, now=lambda: "2026-01-01T00:00:00Z")

    def post(self, name: str, reason: EventReason, message: str = "because") -> None:
        pod = Make.pod(name)
        pod["metadata"]["uid"] = f"uid-{name}"
        self._recorder.post(convert(Pod, pod), reason, message)

    async def written(self) -> Counter[str]:
        task = asyncio.create_task(self._recorder.run())
        await self._recorder.flush(10)
        task.cancel()
        return Counter(event["reason"] for event in self.api.of(EVENTS))


@pytest.fixture
async def recording() -> Recording:
    return Recording()


async def test_a_burst_of_placed_pods_is_reported_in_part_and_why_others_wait_in_full(recording: Recording) -> None:
    for number in range(300):
        recording.post(f"placed-{number}", EventReason.SCHEDULED)
        recording.post(f"waiting-{number}", EventReason.FAILED_SCHEDULING)
    assert await recording.written() == {"Scheduled": 25, "FailedScheduling": 300}


async def test_ten_placed_pods_a_second_are_reported(recording: Recording) -> None:
    for number in range(300):
        recording.seconds += 0.1
        recording.post(f"placed-{number}", EventReason.SCHEDULED)
    assert await recording.written() == {"Scheduled": 300}


async def test_after_a_burst_there_are_ten_a_second(recording: Recording) -> None:
    for number in range(500):
        recording.seconds += 0.02
        recording.post(f"placed-{number}", EventReason.SCHEDULED)
    assert (await recording.written())["Scheduled"] == pytest.approx(125, abs=1)


async def test_one_object_that_fails_again_and_again_is_reported_a_few_times(recording: Recording) -> None:
    for _ in range(100):
        recording.post("pod", EventReason.FAILED_SCHEDULING)
    await recording.written()
    (event,) = recording.api.of(EVENTS)
    assert event["count"] == 25


async def test_names_of_events_sort_by_time_and_are_valid(recording: Recording) -> None:
    """As client-go makes them: nanoseconds in hexadecimal, of which no two are the same."""
    began = time.time_ns()
    long = "a" * 199 + "-b"
    for number in range(20):
        recording.seconds += 400
        recording.post(long, EventReason.FAILED_SCHEDULING, f"because of {number}")
    await recording.written()
    names = [event["metadata"]["name"] for event in recording.api.of(EVENTS)]
    assert names == sorted(names)
    assert len(set(names)) == 20
    prefix, _, stamp = names[0].rpartition(".")
    assert prefix == "a" * 199
    assert began <= int(stamp, 16) <= time.time_ns()


async def test_an_event_that_expired_on_the_server_is_written_anew(recording: Recording) -> None:
    for dropped in (False, False, True, False):
        if dropped:
            (event,) = recording.api.of(EVENTS)
            recording.api.drop(EVENTS, f"ns/{event['metadata']['name']}")
        recording.post("pod", EventReason.FAILED_SCHEDULING)
        await recording.written()
    (event,) = recording.api.of(EVENTS)
    assert event["count"] == 2
