"""A replica of the operator: its process is started again whenever it ends.

Without leader election a process works as soon as it is started. As a candidate it stands by, lists everything when it
leads, ends when the lease is lost, and gives the lease up when it ends cleanly. Paused, it does nothing, and what
reaches it waits; its requests are on their way all the same. An ``Incarnation`` is one life of the process: from its
first list to its end, which it may not see coming.

``Watches`` bring it changes: late, more than once, not in every version, and sometimes not at all. Events about one
object keep their order; those of different objects overtake each other. Within a kind they do so by ``OVERTAKING``
seconds at most: its watch brings them in order, and under ``kopf run`` workers hold them back briefly. What is not the
last version of an object may be skipped, because Kopf brings only the newest of several. After a gap everything is
listed again, which does not say what was deleted: the operator's own lists do, but Kopf's do not.

A rival whose claim people made comes without delay, and so does its claim, or when a watch is open that was not: the
operator cannot know that devices are contested by a pod, or wanted by a claim, which is late without a sign.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextvars import Context, copy_context
from datetime import datetime
from typing import Any, Final, cast

from controllers_world import FEW, TinyLanguage
from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.meta import Object
from dra_api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_api.scheduling import PodGroup
from dra_api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from dra_kube import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    Api,
    KubeError,
    Resource,
    Stream,
)
from dra_operator.allocator import Allocator, Features, Inventory
from dra_operator.cache import BulkLimits, ClaimTemplate, Cluster, Source
from dra_operator.controllers import Control, ControlOptions, TimeSettings
from dra_operator.controllers.settings import PreemptionSettings
from dra_operator.sources.audit import Audit, LastLook
from dra_operator.sources.malformed import MalformedObjects
from dra_operator.sources.watches import Loader
from fake_api import key_of
from history_kit.clock import OWNER, VirtualLoop
from history_kit.game import LATE
from objects import Obj

from .script import BULKY, GROUPED, NAMED_RIVAL, TAINTED
from .server import Sender, Server, Weather

KINDS: Final[Mapping[Resource, type[Object]]] = {
    NODES: Node,
    STORAGE_CLASSES: StorageClass,
    PERSISTENT_VOLUMES: PersistentVolume,
    PERSISTENT_VOLUME_CLAIMS: PersistentVolumeClaim,
    DEVICE_CLASSES: DeviceClass,
    DEVICE_TAINT_RULES: DeviceTaintRule,
    RESOURCE_SLICES: ResourceSlice,
    RESOURCE_CLAIM_TEMPLATES: ClaimTemplate,
    POD_GROUPS: PodGroup,
    RESOURCE_CLAIMS: ResourceClaim,
    PODS: Pod,
}
"""In the order in which the operator lists them."""
WITH: Final[Mapping[Resource, str]] = {DEVICE_TAINT_RULES: TAINTED, POD_GROUPS: GROUPED}
"""Which histories have objects of a kind at all; the others do not list it."""
PAUSE = 1.0  # seconds between two attempts to start
AUDITS = 300.0  # seconds between two sweeps


def kinds_of(traits: frozenset[str]) -> Mapping[Resource, type[Object]]:
    """What the operator lists and watches in a history."""
    return {resource: kind for resource, kind in KINDS.items() if resource not in WITH or WITH[resource] in traits}


class _WatchedAudit(Audit):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._failed: set[Resource] = set()

    @property
    def is_due(self) -> bool:
        """Whether an audit was asked for that has not begun, or that is to be repeated."""
        return bool(self._failed) or any(called.is_set() for called in self._calls.values())

    async def _compare(self, resource: Resource) -> bool:
        self._failed.add(resource)
        is_done = await super()._compare(resource)
        if is_done:
            self._failed.discard(resource)
        return is_done


class Incarnation:
    """``start`` makes one that works until ``kill``. ``went_back`` is called when it has to be replaced."""

    def __init__(
        self,
        server: Server,
        now: Callable[[], datetime],
        went_back: Callable[[], None],
        *,
        checks: Callable[[], bool],
        sees_others: Callable[[], bool],
        preempts: bool,
        kinds: Mapping[Resource, type[Object]],
        limits: BulkLimits,
    ) -> None:
        groups = POD_GROUPS in kinds
        features = Features(generic_workload=groups, workload_resource_claims=groups)
        inventory = Inventory(features, language=TinyLanguage())
        self.cluster = Cluster(inventory, limits=limits)
        allocator = Allocator(inventory, new_share_id=lambda: f"share-{next(server.share_numbers)}")
        options = ControlOptions(
            times=TimeSettings(workers=FEW),
            check_invariants=checks,
            now=now,
            sees_others=sees_others,
            preemption=PreemptionSettings() if preempts else None,
        )
        self.control = Control(self.cluster, server, allocator, options)
        api = cast(Api, server)
        malformed_objects = MalformedObjects(self.control.hold)
        self.audit = _WatchedAudit(api, self.control, malformed_objects, kinds, lambda _: went_back(), AUDITS)
        self._last_look = LastLook(api, self.control, malformed_objects)
        self._loader = Loader(api, kinds, self.control.load, malformed_objects, self.audit.loaded)
        self._tasks: list[asyncio.Task[None]] = []
        self.is_working = False

    async def start(self) -> None:
        """List everything, then work."""
        self._tasks.append(asyncio.create_task(self._load()))
        await asyncio.wait(self._tasks)
        if not self._tasks[0].cancelled():
            work = (self.control.run(), self.audit.run(), self._last_look.run())
            self._tasks = [asyncio.create_task(each) for each in work]
            self.is_working = True

    async def _load(self) -> None:
        while True:
            try:
                await self._loader.load_all()
            except KubeError:
                await asyncio.sleep(PAUSE)
            else:
                if not self._loader.missing():
                    return
                await asyncio.sleep(PAUSE)

    def kill(self) -> None:
        """It does nothing any more, and what it knew is gone."""
        self.is_working = False
        for task in self._tasks:
            task.cancel()

    def received(self, resource: Resource, event: str, obj: Object, raw: Obj) -> None:
        """What a watch or a list brings, read and as the server sent it; as such echoes of answers do not get here."""
        if event == "DELETED":
            self.control.delete(Source.WATCH, KINDS[resource], obj.key, obj.metadata.uid)
        else:
            self.audit.saw(resource, obj.metadata.resource_version)
            store, meta = self.control.cluster.store_of(KINDS[resource]), obj.metadata
            self.control.apply(
                Source.WATCH, obj, None if store.knows(obj.key, meta.uid, meta.resource_version) else raw
            )

    @property
    def is_at_rest(self) -> bool:
        """Nothing is being done, and nothing is to be done later."""
        return self.is_working and self.control.queues.is_quiet and not self.audit.is_due

    def failed(self) -> str:
        """How it ended by itself, if it did."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                return f"the operator ended by itself: {error!r}"
        return ""


OVERTAKING = 0.5
LONGEST_GAP = 4.0
PROMPT = 0.001  # seconds, no more than an answer takes
RELIST = 0.2  # seconds from the break of a stream until the list, at least


def _streams(now: float) -> dict[Resource, Stream]:
    """What the operator knows of the streams by which it learns of other schedulers."""
    return {resource: Stream(now) for resource in (PODS, RESOURCE_CLAIMS)}


class Watches:
    """``begin`` for each incarnation, in its process; ``changed`` is told of every change at the server."""

    def __init__(self, weather: Weather, server: Server, kinds: Iterable[Resource]) -> None:
        self._weather, self._server, self._kinds = weather, server, tuple(kinds)
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._operator: Incarnation | None = None
        self._open: set[Resource] = set()
        self._last_at: dict[str, float] = {}
        self._last_of: dict[Resource, float] = {}
        self._streams = _streams(0.0)
        self.busy = 0
        """Events on their way, and streams that are not open."""

    def begin(self, operator: Incarnation) -> None:
        """Streams for this operator, and for no other any more."""
        self.end()
        self._operator, self._context = operator, copy_context()
        self._streams = _streams(self._loop.time())
        for resource in self._kinds:
            self._reopen(resource, RELIST * self._weather.chance("begin", resource.plural))

    def end(self) -> None:
        """The streams are closed; what is on its way does not arrive."""
        self._operator, self.busy = None, 0
        self._open.clear()
        self._last_at.clear()
        self._last_of.clear()

    def gap(self, resource: Resource, seconds: float) -> None:
        """The stream breaks, and after so many seconds the kind is listed again."""
        if self._operator is not None and resource in self._open:
            self._open.discard(resource)
            if (stream := self._streams.get(resource)) is not None:
                stream.ended(self._loop.time())
            self._reopen(resource, seconds + RELIST)

    def sees_others(self) -> bool:
        """Whether the streams of pods and claims are open, as the operator knows them."""
        return all(stream.sees(self._loop.time()) for stream in self._streams.values())

    def changed(self, event: str, resource: Resource, obj: Obj) -> None:
        if resource in self._open:
            self._send(event, resource, obj)

    def _reopen(self, resource: Resource, seconds: float) -> None:
        self.busy += 1
        self._loop.call_later(seconds, self._list, self._operator, resource, context=self._context)

    def _list(self, operator: Incarnation | None, resource: Resource) -> None:
        if operator is None or operator is not self._operator:
            return
        server = self._server
        if server.is_away or resource.plural in server.unserved:
            self._loop.call_later(RELIST, self._list, operator, resource, context=self._context)
            return
        self.busy -= 1
        self._open.add(resource)
        if resource in self._streams:
            self._streams[resource].opened(self._loop.time())
        for obj in server.of(resource):
            self._send("", resource, obj)
        operator.audit.call(resource)

    def _send(self, event: str, resource: Resource, obj: Obj) -> None:
        name = f"{event or 'LISTED'} {resource.plural} {key_of(obj)}"
        fate = self._weather.of_event(name)
        uid, now = obj["metadata"]["uid"], self._loop.time()
        last_of_kind = self._last_of.get(resource, 0.0)
        at = max(now + fate.before, last_of_kind - OVERTAKING)
        if resource in self._streams and obj["metadata"]["name"].startswith(NAMED_RIVAL):
            at = now + PROMPT
        self._last_at[uid] = at = max(at, self._last_at.get(uid, 0.0))
        self._last_of[resource] = max(at, last_of_kind)
        self._deliver_at(at, event, resource, obj, fate.strike == "skipped")
        if fate.strike == "doubled":
            self._deliver_at(at + fate.after, event, resource, obj, False)
        elif fate.strike == "last" and event:
            self.gap(resource, LONGEST_GAP * self._weather.chance("gap", name))

    def _deliver_at(self, at: float, event: str, resource: Resource, obj: Obj, may_skip: bool) -> None:
        self.busy += 1
        args = (self._operator, event, resource, obj, may_skip)
        self._loop.call_at(at, self._deliver, *args, context=self._context)

    def _deliver(self, operator: Incarnation | None, event: str, resource: Resource, obj: Obj, may_skip: bool) -> None:
        if operator is None or operator is not self._operator:
            return
        self.busy -= 1
        is_newest = self._server.objects.get((resource, *_where(obj))) is obj
        if event == "DELETED" or is_newest or not may_skip:
            operator.received(resource, event, convert(KINDS[resource], obj), obj)


def _where(obj: Obj) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


LEASE_OVER = LATE + 1
"""Seconds after which a process without leader election follows one that was killed: no write of that one is left."""
RESTART = 1.5  # seconds after which a candidate's process is started again


class Replica:
    """``start``; then ``kill``, ``stop`` or ``pause``. ``name`` is that of its lives together."""

    def __init__(
        self,
        name: str,
        server: Server,
        weather: Weather,
        now: Callable[[], datetime],
        tell: Callable[[str], None],
        *,
        elects: bool,
        preempts: bool,
        traits: frozenset[str],
    ) -> None:
        self._name, self._server, self._now, self._tell = name, server, now, tell
        self._elects, self._preempts, self._lives = elects, preempts, 0
        self._is_gone = self._is_stopping = False
        self._sender: Sender | None = None
        self._context: Context = copy_context()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: list[asyncio.Task[None]] = []  # of earlier lives, which end their renewals
        self._kinds = kinds_of(traits)
        self._limits = BulkLimits(short=0, whole=0) if BULKY in traits else BulkLimits()
        self.watches = Watches(weather, server, self._kinds)
        self.started_over = False
        """Whether a process took the server for one that went back in time."""
        self.operator: Incarnation | None = None
        """Set while the process leads."""

    def start(self, seconds: float = 0.0) -> None:
        self._lives += 1
        self._is_stopping = False
        self._context = copy_context()
        self._sender = Sender(f"{self._name}-{self._lives}", self._server) if self._elects else None
        self._context.run(OWNER.set, self._sender)
        self._begin(self._live(seconds))

    async def _live(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self._sender is not None:
            try:
                await self._sender.leader.acquire()
            except KubeError as error:
                self._tell(f"{self._sender.name} ends: {error}")
                self.kill(RESTART)
                return
        await self._lead()

    async def _lead(self) -> None:
        sender = self._sender
        checks = sender.may_write if sender is not None else lambda: True
        operator = self.operator = Incarnation(
            self._server,
            self._now,
            self._start_over,
            checks=checks,
            sees_others=self.watches.sees_others,
            preempts=self._preempts,
            kinds=self._kinds,
            limits=self._limits,
        )
        await operator.start()
        if operator is not self.operator or not operator.is_working:
            return
        self._tell(f"the operator works ({self._name})")
        self.watches.begin(operator)
        if sender is not None:
            await sender.leader.lost()
            self._tell(f"{sender.name} ends: {sender.leader.loss}")
            self.kill(RESTART)

    def _start_over(self) -> None:
        """The server went back in time: the same process lists everything again, with the lease that it has."""
        if self._is_stopping:
            return
        self.started_over = True
        self._tell("the operator starts over")
        self._halt()
        self._begin(self._lead())

    def kill(self, restart_after: float) -> None:
        """The process is gone, and another one starts after so many seconds."""
        self._loop.wake(self._sender)
        self._halt()
        if self._sender is not None:
            self._closing.append(asyncio.create_task(self._sender.leader.close(), context=self._context))
        if not self._is_gone:
            self.start(restart_after)

    def stop(self, *, for_good: bool = False) -> None:
        """The process ends as after a signal; another one follows unless it is ``for_good``."""
        self._is_gone |= for_good
        self._is_stopping = True
        self._begin(self._stop())

    async def _stop(self) -> None:
        sender = self._sender
        if sender is not None and sender.leader.leads and await sender.settle():
            self._halt()
            await sender.leader.release()
        self.kill(RESTART)

    def pause(self, seconds: float) -> None:
        """The process is stopped for so long, unless it is killed first."""
        if self._sender is not None:
            self._tell(f"{self._sender.name} is paused for {seconds:g} s")
            self._loop.pause(self._sender)
            self._loop.call_later(seconds, self._loop.wake, self._sender)

    def _halt(self) -> None:
        while self._tasks:
            if (task := self._tasks.pop()) is not asyncio.current_task():
                task.cancel()
        if self.operator is not None:
            self.operator.kill()
        self.operator = None
        self.watches.end()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work, context=self._context))

    @property
    def _loop(self) -> VirtualLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return loop
