"""A fake API server with the model of Kueue, the controllers, and the controller ``admission`` beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from controllers_world import World
from dra_api.codec import convert
from dra_api.kueue import Workload
from dra_api.values import format_time
from dra_kube import PODS, WORKLOADS
from dra_ledger.cel_language import CelSelectors
from dra_operator.admission.controller import AdmissionController
from dra_operator.admission.planner import CheckRound, Planner, ViewSettings
from dra_operator.admission.promises import PromisedWorkload
from dra_operator.admission.workloads import AdmissionSettings
from dra_operator.allocator import DEFAULT_BUDGET_STEPS, DEVICE_ORDERS, Features
from dra_operator.controllers import Control
from dra_operator.scheduling import STRATEGIES
from dra_operator.sources.kind_table import OF_KUEUE
from dra_operator.sources.kinds import WATCHED
from fake_api import Event
from kueue_model import KueueModel, check_of, is_true, workload
from objects import Obj
from waiting import meanwhile

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
"""When the clock of a test or a run begins."""
VIEW = ViewSettings(STRATEGIES[0], DEFAULT_BUDGET_STEPS, DEVICE_ORDERS[0])


class AdmissionWorld(World):
    """``kueue`` acts before each delivery of watch events. ``start`` after a ``running`` block is a restart."""

    def __init__(self, quota: int = 1000, features: Features | None = None, *, has_admission: bool = True) -> None:
        super().__init__(features or Features())
        self.language = CelSelectors(self.features)
        self.kueue = KueueModel(quota)
        self.kueue.furnish(self.api)
        self.others.append(self.kueue)
        self.settings = AdmissionSettings()
        self.is_real_time, self.has_admission = True, has_admission
        self.moment: float | None = None
        self.skew = timedelta()
        """How far the clock of the controller is ahead of that of server and Kueue."""

    def at(self, seconds: float) -> None:
        """Set the clock of server, Kueue and controller, which stands still from now on, to so long after ``EPOCH``."""
        self.is_real_time, self.moment = False, seconds
        self.now = format_time(EPOCH + timedelta(seconds=seconds))

    def _clock(self) -> float:
        return self.moment if self.moment is not None else asyncio.get_running_loop().time()

    def start(self) -> Control:
        control = super().start()
        if not self.has_admission:
            return control
        self.admission = AdmissionController(
            control,
            self.api,
            VIEW,
            lambda: datetime.fromisoformat(self.now) + self.skew,
            self.settings,
            self.registry,
            self._clock,
        )
        return control

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Control]:
        if not self.has_admission:
            async with super().running() as control:
                yield control
            return
        await self.admission.recall()
        async with super().running() as control, meanwhile(self.admission.run()):
            yield control

    async def until(self, what: str, holds: Callable[[], object], seconds: float = 60.0) -> None:
        """Bring events until it holds."""
        try:
            async with asyncio.timeout(seconds):
                while not holds():
                    if self.is_real_time:
                        self.now = format_time(datetime.now(UTC))
                    self.bring_events()
                    await self.tick()
        except TimeoutError:
            raise AssertionError(f"not in {seconds} s: {what}") from None

    async def rests(self, seconds: float = 0.5) -> None:
        """Bring events for a while."""
        end = asyncio.get_running_loop().time() + seconds
        await self.until("rest", lambda: asyncio.get_running_loop().time() > end, seconds + 10)

    def workload(self, name: str) -> Obj:
        return self.api[WORKLOADS, f"ns/{name}"]

    def is_admitted(self, *names: str) -> bool:
        return all(is_true(self.workload(name), "Admitted") for name in names)

    def check(self, name: str) -> Obj:
        """The state of the check of a Workload."""
        return check_of(self.workload(name))

    def pods(self, name: str) -> list[Obj]:
        """The pods of a job that have a node."""
        return [
            it
            for it in self.api.of(PODS)
            if it["metadata"]["name"].startswith(f"{name}-") and it["spec"].get("nodeName")
        ]

    def seen(self, name: str) -> float:
        """The value of a metric without labels."""
        return self.registry.get_sample_value(name) or 0.0


class LoopWorld(AdmissionWorld):
    """The server has the loop's clock."""

    def __init__(self, *, has_admission: bool = True) -> None:
        super().__init__(has_admission=has_admission)
        self.is_real_time = False

    @property
    def now(self) -> str:
        self.api.now = format_time(EPOCH + timedelta(seconds=asyncio.get_running_loop().time()))
        return self.api.now

    @now.setter
    def now(self, moment: str) -> None:
        raise AttributeError("the loop says what time it is")


class LaggingWorld(AdmissionWorld):
    """While ``is_stalled``, the watch of Workloads brings nothing; then it brings all in order."""

    def __init__(self, *, has_admission: bool = True) -> None:
        super().__init__(has_admission=has_admission)
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


def planner(world: AdmissionWorld) -> Planner:
    world.start()
    kinds = [kind for kind in WATCHED.values() if kind not in OF_KUEUE.values()]
    return Planner(world.cluster, VIEW, [obj for kind in kinds for obj in world.cluster.store_of(kind)])


def question(
    world: AdmissionWorld, promised: Sequence[Workload] = (), candidates: Sequence[Workload] = ()
) -> CheckRound:
    """What it is asked, beside nothing that is under way."""
    return CheckRound(
        changes=(),
        held={},
        flying=(),
        assumed=(),
        flavors={},
        promised=[PromisedWorkload(it) for it in promised],
        candidates=candidates,
        backing_off=(),
        now=datetime.fromisoformat(world.now),
    )


def made(
    name: str, pods: int = 1, namespace: str = "ns", priority: int = 0, annotations: dict[str, str] | None = None
) -> Workload:
    """A Workload as the planner gets it; the annotations are those of its pods."""
    obj = workload(name, pods, priority=priority)
    obj["metadata"] |= {"uid": name, "namespace": namespace}
    obj["spec"]["podSets"][0]["template"]["metadata"] = {"annotations": annotations or {}}
    return convert(Workload, obj)


# --- Random histories of jobs behind the admission check ---
