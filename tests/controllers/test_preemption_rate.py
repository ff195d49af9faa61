"""How often the operator looks for victims, whatever wakes the pods: it works in virtual time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Generator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from controllers_world import World
from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES
from dra_operator.allocator import Features
from dra_operator.controllers import PreemptionSettings
from dra_operator.controllers.scheduling import preemption as making_room
from dra_operator.scheduling import preemption
from history_kit.clock import VirtualLoop
from objects import Make, Obj

GANG = {"dra.kopf.dev/gang": "g", "dra.kopf.dev/gang-size": "2"}


class Attempts:
    """When there was one for whom. Each takes ``cost`` seconds of processor time, which passes in no other way."""

    def __init__(self, cost: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: defaultdict[str, list[float]] = defaultdict(list)
        self._cost, self._spent = cost, 0.0
        monkeypatch.setattr(making_room, "time", SimpleNamespace(perf_counter=lambda: self._spent))
        one, gang = preemption.preempt, preemption.preempt_for_gang

        def for_one(failed: Any, terms: Any) -> Generator[Any, Any, Any]:
            self._begin(failed.cycle_state.pod.key)
            return (yield from one(failed, terms))

        def for_gang(states: Any, *others: Any) -> Generator[Any, Any, Any]:
            self._begin("gang")
            return (yield from gang(states, *others))

        monkeypatch.setattr(making_room, "preempt", for_one)
        monkeypatch.setattr(making_room, "preempt_for_gang", for_gang)

    def _begin(self, who: str) -> None:
        self.at[who].append(asyncio.get_running_loop().time())
        self._spent += self._cost


def waits(seconds: float, *pods: Obj) -> None:
    """All pods that run are as important as these; each second all that wait are looked at again."""

    async def run() -> None:
        world = World(Features())
        world.preemption = PreemptionSettings()
        world.furnish()
        world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
        world.api.add(PODS, Make.pod("runs", claims=[Make.FROM_TEMPLATE], priority=10))
        await world.settle()
        for pod in pods:
            world.api.add(PODS, pod)
        control = world.start()
        async with world.running():
            for number in range(int(seconds * 10)):
                world.bring_events()
                if number % 10 == 0:
                    control.look_again()
                await asyncio.sleep(0.1)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def urgent(name: str, **annotations: str) -> Obj:
    pod = Make.pod(name, claims=[Make.FROM_TEMPLATE], priority=10)
    pod["metadata"]["annotations"] = annotations
    return pod


def test_a_pod_and_a_gang_have_one_attempt_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = Attempts(0.001, monkeypatch)
    waits(100, urgent("alone"), urgent("g-0", **GANG), urgent("g-1", **GANG))
    assert set(attempts.at) == {"ns/alone", "gang"}
    for at in attempts.at.values():
        assert 6 <= len(at) <= 9  # none in the first ten seconds
        assert min(later - earlier for earlier, later in pairwise(at)) >= 10


def test_all_attempts_take_a_twentieth_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = Attempts(0.5, monkeypatch)
    waits(105, *(urgent(f"pod-{number}") for number in range(20)))
    begun = sorted(at for its in attempts.at.values() for at in its)
    assert len(begun) >= 9
    assert min(later - earlier for earlier, later in pairwise(begun)) >= 19 * 0.5
