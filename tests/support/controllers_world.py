"""A fake API server and the controllers on it: a test puts objects there, lets the operator settle, and looks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import cast

from dra_api.codec import convert
from dra_api.resource import Device
from dra_kube import DEVICE_CLASSES, EVENTS, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Api, Unreachable
from dra_ledger.predicates import Language
from dra_operator.allocator import DEFAULT_BUDGET_STEPS, Allocator, Features, Inventory, LeftAlone
from dra_operator.cache import BulkLimits, Cluster, Controller, Crowd, Hint, Key, Source, check
from dra_operator.controllers import (
    Control,
    ControlOptions,
    OwnControllers,
    PreemptionSettings,
    TimeSettings,
    TimeSlices,
)
from dra_operator.controllers.queue import WorkQueue
from dra_operator.controllers.workers import Postponed
from dra_operator.sources.audit import LastLook
from dra_operator.sources.kinds import WATCHED
from dra_operator.sources.malformed import MalformedObjects
from fake_api import FakeApi
from objects import Make, devices_of
from prometheus_client import CollectorRegistry
from waiting import meanwhile

HOST = "kubernetes.io/hostname"
FEW: dict[Controller, int] = {
    "templates": 4,
    "release": 4,
    "placement": 20,
    "eviction": 4,
    "pod-groups": 4,
    "group-conditions": 4,
    "taint-rules": 1,
    "pool-status": 1,
}


class TinyLanguage:
    """Selectors for tests: ``all``, ``none``, ``broken``, or the name of an attribute that has to be there."""

    def compile(self, expression: str) -> Callable[[str, Device], bool]:
        def predicate(driver: str, device: Device) -> bool:
            if expression in ("all", "none"):
                return expression == "all"
            if expression not in (device.attributes or {}):
                raise KeyError(f"no such key: {expression}")
            return True

        return predicate


WITHOUT_REST = TimeSlices(rest=0.0)
"""What a decision takes is real time, of which a busy machine gives and takes: no pause follows from it."""
SOON = 3.0
"""Seconds: longer than first pauses after failures, and than an allocation takes to count as seen."""


class World:
    """A fake server and an operator on it. ``crash`` forgets the operator and starts a fresh one."""

    def __init__(self, features: Features) -> None:
        self.api = FakeApi()
        self.features = features
        self.language: Language = TinyLanguage()
        self.controllers = OwnControllers()
        self.legacy_claim_names = False
        self.preemption: PreemptionSettings | None = None
        self.leaves = LeftAlone()
        self.limits = BulkLimits()
        self.sees_others = True
        """Whether the operator believes that its watches of pods and claims are open."""
        self.search_budget = DEFAULT_BUDGET_STEPS
        self.times = TimeSettings(
            workers=FEW,
            grace=0.02,
            unmade_gang_claims=0.02,
            unmade_claims=0.0,
            faulty_templates=0.0,
            late_writes=0.1,
            time_slices=WITHOUT_REST,
        )
        self.others: list[Callable[[FakeApi], object]] = []
        """Others who change what is on the server; each is called before the watches bring something."""

    @property
    def now(self) -> str:
        """The time of operator and server, in the words of the API."""
        return self.api.now

    @now.setter
    def now(self, moment: str) -> None:
        self.api.now = moment

    def furnish(self, nodes: int | Iterable[str] = 1, devices: int = 1) -> None:
        """A class of devices, and nodes (so many, or those of these names) with so many devices each."""
        self.api.add(DEVICE_CLASSES, Make.device_class())
        for name in (f"node-{number}" for number in range(nodes)) if isinstance(nodes, int) else nodes:
            self.api.add(NODES, Make.node(name, **{HOST: name}))
            self.api.add(RESOURCE_SLICES, Make.slice(name, devices))

    def start(self) -> Control:
        """A fresh operator that knows what a LIST would tell it."""
        inventory = Inventory(self.features, language=self.language)
        self.cluster = Cluster(inventory, leaves=self.leaves, limits=self.limits)
        numbers = iter(range(1, 1000))
        self.allocator = Allocator(inventory, new_share_id=lambda: f"share-{next(numbers)}", budget=self.search_budget)
        self.registry = CollectorRegistry()
        options = ControlOptions(
            times=self.times,
            now=lambda: datetime.fromisoformat(self.now),
            controllers=self.controllers or OwnControllers(),
            legacy_claim_names=self.legacy_claim_names,
            sees_others=lambda: self.sees_others,
            preemption=self.preemption,
        )
        self.control = Control(self.cluster, self.api, self.allocator, options, self.registry)
        self.api.events.clear()
        self.control.load(
            convert(WATCHED[kind], obj) for (kind, _, _), obj in self.api.objects.items() if kind in WATCHED
        )
        return self.control

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Control]:
        last_look = LastLook(cast(Api, self.api), self.control, MalformedObjects(self.control.hold))
        async with meanwhile(self.control.run(), last_look.run()):
            yield self.control

    async def settle(self) -> None:
        """Start an operator, let it work until there is nothing left to do, and stop it."""
        self.start()
        async with self.running():
            await self.quiet()

    async def stop_before_bindings(self) -> None:
        """Start an operator whose bindings are not answered, let it work for a while, and stop it."""
        self.start()
        self.api.before = lambda call: Unreachable("cut") if call.sub == "binding" else None
        async with self.running():
            for _ in range(60):
                self.bring_events()
                await self.tick()
        self.api.before = lambda _: None

    async def idle(self) -> None:
        """Wait until nothing is ready and no worker is busy; keys that wait for their time do not count."""
        await idle(*self.control.queues.all().values())

    async def attempt(self, key: str) -> None:
        """One attempt to place a pod, from the decision to the last write; the operator need not run."""
        while isinstance(decided := await self.control.placer.decide(key), Postponed):
            pass
        if decided.follow_up is not None:
            await decided.follow_up()

    async def quiet(self) -> None:
        """Bring watch events, each before anything is retried, until nothing happens any more, and all is told."""
        async with asyncio.timeout(60):
            while self.api.events or not self.control.queues.is_quiet:
                self.bring_events()
                await self.tick()
            await self.control.events.flush(60)
        check(self.cluster)

    async def busy(self) -> None:
        """As ``quiet``, but keys may come back later: a pod that waits for its devices or volumes keeps a timer."""
        async with asyncio.timeout(60):
            rounds = 0
            while rounds < 3:  # others may do something in each
                self.bring_events()
                await self.tick()
                rounds = 0 if self.api.events or self._has_soon_to_do() else rounds + 1
            await self.control.events.flush(60)

    def _has_soon_to_do(self) -> bool:
        queues, soon = self.control.queues, asyncio.get_running_loop().time() + SOON
        timers = [it for queue in queues._queues.values() for it in (*queue._timers.values(), *queue._held.values())]
        is_idle = all(queue.is_idle for queue in queues._queues.values())
        return not is_idle or any(timer.when() < soon for timer in timers)

    async def tick(self) -> None:
        """Let the operator do a little."""
        await asyncio.sleep(0.001)

    def bring_events(self) -> None:
        """What the watch would do, after the other controllers had their turn."""
        for controller in self.others:
            controller(self.api)
        while self.api.events:
            event, resource, obj = self.api.events.pop(0)
            struct = convert(WATCHED[resource], obj)
            if event == "DELETED":
                self.control.delete(Source.WATCH, WATCHED[resource], struct.key, struct.metadata.uid)
            else:
                self.control.apply(Source.WATCH, struct, obj)

    def node_of(self, pod: str = "pod") -> str | None:
        """The node to which the server has bound the pod."""
        node: str | None = self.api[PODS, f"ns/{pod}"]["spec"].get("nodeName")
        return node

    def bound(self) -> list[str]:
        """The pods that the server has bound, by name."""
        return sorted(pod["metadata"]["name"] for pod in self.api.of(PODS) if pod["spec"].get("nodeName"))

    def holders(self) -> Counter[str]:
        """How many claims the server shows for each device."""
        found: Counter[str] = Counter()
        for claim in self.api.of(RESOURCE_CLAIMS):
            found.update(devices_of(claim))
        return found

    def messages(self, reason: str) -> list[str]:
        return [event["message"] for event in self.api.of(EVENTS) if event["reason"] == reason]


def keys_of(hints: Iterable[Hint]) -> list[Key]:
    return [hint if isinstance(hint, Key) else hint.key for hint in hints if not isinstance(hint, Crowd)]


async def idle(*queues: WorkQueue) -> None:
    """Wait until nothing is ready in the queues and no worker of theirs is busy."""
    while not all(queue.is_idle for queue in queues):  # noqa: ASYNC110 - nothing tells of that moment
        await asyncio.sleep(0.001)
