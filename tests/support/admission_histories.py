"""Random histories of jobs behind the admission check: writes that fail, or are carried out without an answer, at once
or late; watches that lag; restarts. At no moment have the jobs that were told Ready more devices than there are.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Final

from admission_world import AdmissionWorld
from dra_kube import RESOURCE_CLAIM_TEMPLATES, WORKLOADS
from fake_api import ERRORS, Call, Event
from kueue_model import finish, is_true, workload
from objects import Make, Obj

NODES: Final = 2
DEVICES: Final = 2
STEP_SECONDS: Final = 0.01


class LaggingWorld(AdmissionWorld):
    """While ``is_stalled``, the watch of Workloads brings nothing; then it brings all in order."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stalled = False
        self._late: list[Event] = []

    def bring_events(self) -> None:
        for controller in self.others:
            controller(self.api)
        events, self.api.events[:] = [*self._late, *self.api.events], []
        self._late = [it for it in events if self.is_stalled and it[1] == WORKLOADS]
        self.api.events[:] = [it for it in events if not (self.is_stalled and it[1] == WORKLOADS)]
        others, self.others = self.others, []
        try:
            super().bring_events()
        finally:
            self.others = others

    def start_anew(self) -> None:
        """Start another process, which lists all objects."""
        self._late.clear()
        self.start()


class History:
    """``play`` it once. Raises AssertionError."""

    def __init__(self, seed: int, jobs: int = 6, seconds: float = 3.0) -> None:
        self._random, self._seconds = random.Random(seed), seconds
        self.world = LaggingWorld()
        self.world.furnish(nodes=NODES, devices=DEVICES)
        self.world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
        self.jobs = [f"job-{number}" for number in range(jobs)]
        for number, name in enumerate(self.jobs):
            created = f"2026-01-01T00:00:{number:02}Z"
            pods, priority = self._random.randint(1, NODES * DEVICES), self._random.choice((0, 0, 1))
            self.world.api.add(WORKLOADS, workload(name, pods, priority=priority, created=created))
        self._has_faults = True
        self.faults = 0

    async def play(self) -> None:
        """Let faults happen for a while, then let all jobs come to their end."""
        world = self.world
        world.api.before, world.api.after, world.api.landing = (
            self._fault(0.15),
            self._fault(0.2),
            lambda call: self._fault(0.1)(call) is not None,
        )
        loop = asyncio.get_running_loop()
        end = loop.time() + self._seconds
        while loop.time() < end:
            world.start_anew()
            async with world.running():
                restart = min(end, loop.time() + self._random.uniform(0.2, 2.0))
                await self._steps(partial(self._is_before, restart))
        self._has_faults, world.is_stalled = False, False
        world.api.land()
        world.start_anew()
        async with world.running():
            async with asyncio.timeout(60):
                await self._steps(lambda: not all(is_true(world.workload(it), "Finished") for it in self.jobs))

    def _is_before(self, moment: float) -> bool:
        return asyncio.get_running_loop().time() < moment

    async def _steps(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            self._step()
            self.check()
            await asyncio.sleep(STEP_SECONDS)

    def _step(self) -> None:
        world, dice = self.world, self._random.random()
        world.bring_events()
        if dice < 0.05:
            self._finish_one()
        elif self._has_faults and dice < 0.10:
            world.is_stalled = not world.is_stalled
        elif self._has_faults and dice < 0.15:
            world.api.land()

    def _finish_one(self) -> None:
        for name in self._random.sample(self.jobs, len(self.jobs)):
            job = self.world.workload(name)
            if not is_true(job, "Finished") and len(self.world.pods(name)) == pods_in(job):
                finish(self.world.api, f"ns/{name}")
                return

    def check(self) -> None:
        """Compare what was promised with what there is."""
        held = {name: pods_in(job) for name in self.jobs if is_promised(job := self.world.workload(name))}
        assert sum(held.values()) <= NODES * DEVICES, f"promised at the same time: {held}"

    def _fault(self, likelihood: float) -> Callable[[Call], Exception | None]:
        def fault(call: Call) -> Exception | None:
            if not self._has_faults or (call.verb, call.plural) != ("patch", WORKLOADS.plural):
                return None
            if self._random.random() >= likelihood:
                return None
            self.faults += 1
            return ERRORS[self._random.choice(("server error", "no answer", "no answer"))]()

        return fault


def pods_in(job: Obj) -> int:
    count: int = job["spec"]["podSets"][0]["count"]
    return count


def is_promised(job: Obj) -> bool:
    """Whether the server says that the job may start, or that it runs."""
    states = [it["state"] for it in job.get("status", {}).get("admissionChecks", [])]
    is_over = is_true(job, "Finished") or is_true(job, "Evicted")
    return states == ["Ready"] and is_true(job, "QuotaReserved") and not is_over
