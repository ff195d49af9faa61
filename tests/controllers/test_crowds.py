"""However many objects of a tenant hang on one object, a change of that holds up the event loop for a few of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import pytest
from controllers_world import keys_of
from dra_operator.cache import Crowd, Hint, Key, hints, key
from dra_operator.controllers import crowds, fairness
from dra_operator.controllers.crowds import Crowds
from dra_operator.controllers.fairness import Fairness
from dra_operator.controllers.queue import WorkQueue, WorkQueues
from dra_operator.sources.kind_table import TABLE
from fan_out import CROWDS, Scene

MANY, PART = 30, 10


class Steps:
    """How many keys were queued in each step of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts = [0]
        queued: tuple[tuple[type, str], ...] = (WorkQueue, "_make_ready"), (Fairness, "want")
        for kind, name in queued:
            monkeypatch.setattr(kind, name, self._counting(getattr(kind, name)))
        steps: tuple[tuple[type, str], ...] = (
            (Scene, "change"),
            (Crowds, "_go_on"),
            (Fairness, "_start_round"),
            (Fairness, "_go_on"),
        )
        for kind, name in steps:
            monkeypatch.setattr(kind, name, self._beginning(getattr(kind, name)))

    def _counting(self, real: Callable[..., None]) -> Callable[..., None]:
        def counting(*arguments: object, **more: object) -> None:
            self.counts[-1] += 1
            real(*arguments, **more)

        return counting

    def _beginning(self, real: Callable[..., None]) -> Callable[..., None]:
        def beginning(*arguments: object) -> None:
            self.counts.append(0)
            real(*arguments)
            self.counts.append(0)

        return beginning


async def queued_by_a_change(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[set[Key], list[int]]:
    """Return the keys to which a change of the object leads in the end, and how many were queued in each step."""
    scene = Scene(CROWDS[name], MANY)
    await scene.forget_keys()
    with monkeypatch.context() as patch:
        steps = Steps(patch)
        scene.change(1)
        await scene.gathered()
    return {it for queue in scene.control.queues.all().values() for it, _ in queue.ready()}, steps.counts


@pytest.mark.parametrize("name", CROWDS)
async def test_a_change_queues_few_keys_at_once_and_in_the_end_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, _ = await queued_by_a_change(name, monkeypatch)
    for module in (key, hints, crowds, fairness):
        monkeypatch.setattr(module, "HINTS_AT_ONCE", PART)
    in_parts, steps = await queued_by_a_change(name, monkeypatch)
    assert in_parts == at_once
    assert max(steps) <= 2 * PART


def test_every_kind_that_is_watched_has_a_crowd() -> None:
    assert {it.kind for it in CROWDS.values()} == TABLE.keys()


class Line:
    """Keys in the order in which a line of crowds queued them."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.asked: list[str] = []
        self.crowds = Crowds(asyncio.get_running_loop(), self._queue, lambda key: (key.object.rpartition("-")[2],))

    def _queue(self, hints: Iterable[Hint]) -> None:
        self.keys += [key.object for key in keys_of(hints)]

    def add(self, about: str, namespace: str, *objects: str) -> None:
        self.crowds.add(Crowd((about,), namespace, lambda: objects, self._hints))

    def _hints(self, name: str) -> tuple[Key, ...]:
        self.asked.append(name)
        return (Key("placement", name),)

    async def worked_off(self) -> list[str]:
        while self.crowds:  # noqa: ASYNC110 - nothing tells of that moment
            await asyncio.sleep(0.001)
        assert not self.crowds._begun
        return self.keys


async def test_equal_changes_are_looked_at_once_and_the_newest_counts() -> None:
    line = Line()
    line.add("claim", "a", "a/old-1")
    line.add("claim", "a", "a/new-1")
    assert await line.worked_off() == ["a/new-1"]


async def test_a_change_while_its_crowd_is_asked_has_it_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "HINTS_AT_ONCE", 1)
    line = Line()
    line.add("claim", "a", "a/x-1", "a/y-1")
    while not line.asked:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    line.add("claim", "a", "a/x-1", "a/y-1")
    assert await line.worked_off() == ["a/x-1", "a/y-1"] * 2


async def test_the_crowds_of_one_namespace_delay_those_of_another_by_a_part_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crowds, "HINTS_AT_ONCE", 1)
    line = Line()
    for number in range(10):
        line.add(f"claim {number}", "a", *(f"a/{number}{it}-1" for it in range(10)))
    line.add("claim", "b", "b/one-1")
    keys = await line.worked_off()
    assert len(keys) == 101
    assert keys.index("b/one-1") < 3


async def test_the_most_urgent_keys_of_a_crowd_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "HINTS_AT_ONCE", 2)
    line = Line()
    line.add("room", "", "a/x-3", "a/y-2", "b/z-3", "b/w-1")
    assert await line.worked_off() == ["b/w-1", "a/y-2", "a/x-3", "b/z-3"]


async def test_nothing_is_queued_after_the_end() -> None:
    line = Line()
    line.add("claim", "a", "a/x-1")
    line.crowds.close()
    line.add("claim", "a", "a/x-1")
    await asyncio.sleep(1)
    assert not line.keys


async def test_a_pod_that_is_being_tried_is_asked_at_once_for_what_it_waits() -> None:
    """When its attempt ends it waits for less, and the attempt may have looked before the change."""
    queues = WorkQueues({"placement": WorkQueue()})
    queues.add((Key("placement", "a/tried"), Key("placement", "a/other")))
    key = await queues.of("placement").get()
    waits = {"a/tried", "a/other"}
    many = Crowd(
        ("devices",),
        "",
        lambda: sorted(waits),
        lambda it: (Key("placement", it),) if it in waits else (),
        are_waiting=True,
    )
    queues.add((many,))
    waits.clear()
    queues.of("placement").done(key)
    assert key in dict(queues.of("placement").ready())
    queues.close()
