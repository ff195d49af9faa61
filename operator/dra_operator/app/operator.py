"""The running operator with its connection, cache, controllers and watches. It starts once and stops once.

A list of every kind is the sync barrier: decisions start when it is complete (CC-01). Watches begin where it ended.
Under ``kopf run`` Kopf lists and watches instead, and the cache drops versions that it has. When the server went back
in time (``audit``), everything is stopped and started with a new cache.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dra_api.meta import ObjectVersion
from dra_api.releases import chosen
from dra_kube import (
    DEVICE_TAINT_RULES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Api,
    Change,
    Connection,
    Guard,
    NotSent,
    Resource,
    unguarded,
)
from dra_ledger.cel_language import CelSelectors
from prometheus_client import CollectorRegistry

from dra_operator.admission.controller import AdmissionController
from dra_operator.admission.planner import ViewSettings
from dra_operator.admission.workloads import AdmissionSettings
from dra_operator.allocator import Allocator, Inventory, LeftAlone
from dra_operator.cache import BulkLimits, Cluster
from dra_operator.controllers import (
    WORKERS,
    BackoffSettings,
    Control,
    ControlOptions,
    OwnControllers,
    PreemptionSettings,
    TimeSettings,
    TimeSlices,
    controllers_of,
    names_admission,
    own_controllers,
)
from dra_operator.controllers.control import utc_now
from dra_operator.controllers.scheduling.mix import MixMemory
from dra_operator.controllers.scheduling.other_schedulers import DriverMemory
from dra_operator.gates import parse_gates
from dra_operator.scheduling import Placement
from dra_operator.sources.audit import Audit, LastLook
from dra_operator.sources.handlers import HANDLERS
from dra_operator.sources.kind_table import Kinds
from dra_operator.sources.kinds import REQUIRED
from dra_operator.sources.malformed import MalformedObjects
from dra_operator.sources.watches import Intake, Limits, Loader, Watches

from .control_plane import ControllerManager, ReleaseInForce, RightsWatch, Work
from .settings import OperatorSettings
from .telemetry import AppMetrics, Requests

logger = logging.getLogger(__name__)

SETTLE_SECONDS = 2.0  # seconds that writes in flight have to be answered when the operator stops


class Operator:
    """One operator on one API server. ``start`` and ``stop`` must run in the same event loop.

    ``is_settled``: return whether no write of an earlier leader may still take effect. Until then its allocations are
    treated as those of another scheduler: they may come at any moment.

    ``outdated`` is set when the operator has to be stopped and started; ``went_back`` says why.
    """

    def __init__(  # noqa: PLR0913  # each is named by the caller, and has a default
        self,
        settings: OperatorSettings | None = None,
        registry: CollectorRegistry | None = None,
        guard: Guard = unguarded,
        requests: Requests | None = None,
        mix: MixMemory | None = None,
        is_settled: Callable[[], bool] = lambda: True,
        drivers: DriverMemory | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.settings = settings = settings or OperatorSettings()
        self._guard, self._is_settled = guard, is_settled
        self.registry = registry or CollectorRegistry()
        self.requests = requests or Requests(self.registry)
        """Called for each request to the API server."""
        self.watches = Watches(limits)
        self.metrics = AppMetrics(self.registry, self.watches)
        self.in_force = ReleaseInForce(
            parse_gates(settings.feature_gates),
            chosen(settings.kubernetes_version),
            preemption=settings.preemption,
            admission=names_admission(settings.controllers),
        )
        self.drivers = drivers or DriverMemory()
        """Which drivers other schedulers allocate, as far as that outlives this process."""
        self.mix = mix or MixMemory()
        """What pods usually ask for, as far as it outlives this process."""
        self.outdated = asyncio.Event()
        self.went_back = ""
        self._parts: _Parts | None = None
        self._task: asyncio.Task[None] | None = None
        self._has_watches = False

    async def start(self, to: Connection, *, watches: bool) -> None:
        """Connect, list everything, start to work; ``watches``: follow all kinds from there, without Kopf.

        Raises KubeError when the server cannot be used, and GateError when its release does not take the gates.
        """
        self._has_watches = watches
        self.went_back = ""
        self.outdated.clear()
        api = await Api(
            to, timeout=self.settings.request_timeout, guard=self._guard, observe=self.requests
        ).__aenter__()
        try:
            self.in_force.decide(await api.raw_get("/version"))
            parts = self._make(api)
            await parts.loader.load_all()
            if parts.controller_manager is not None:
                await parts.controller_manager.look()
        except BaseException:
            await api.__aexit__(None, None, None)
            raise
        settle_memory()
        self._parts = parts
        self.watches.failed = self._missed
        self.registry.register(parts.registry)
        self._task = asyncio.create_task(self._work(parts), name="operator")
        started = asyncio.create_task(parts.control.started())
        try:
            await asyncio.wait((started, self._task), return_when=asyncio.FIRST_COMPLETED)
        finally:
            started.cancel()
        if self.has_failed:
            return  # ``ended`` says so
        cluster = parts.control.cluster
        counts = (len(cluster.nodes), len(cluster.slices), len(cluster.claims), len(cluster.pods))
        logger.info("in sync: %d nodes, %d slices, %d claims, %d pods", *counts)

    def _make(self, api: Api) -> _Parts:
        settings, registry = self.settings, CollectorRegistry()
        named, controllers = controllers_of(settings.controllers), own_controllers(settings.controllers)
        control = self._make_control(api, registry, controllers)
        admission = _admission_of(control, api, settings, registry) if controllers.admission else None
        cluster = control.cluster
        controller_manager = None
        if named is None:  # all but what kube-controller-manager does, where one is at work
            common = self.in_force.heard
            controller_manager = ControllerManager(
                api, controllers, control.look_at_everything, common, control.records_claim
            )

        def is_known(resource: Resource, version: ObjectVersion) -> bool:
            store = cluster.store_of(self.kinds[resource])
            return store.knows(version.key, version.uid, version.resource_version)

        malformed_objects = MalformedObjects(control.hold, self.metrics.malformed, is_known)
        audit = Audit(api, control, malformed_objects, self.kinds, self._restored, settings.audit_interval)

        intake = Intake(control, malformed_objects, audit, self.kinds)

        def loaded(resource: Resource, revision: str) -> None:
            audit.loaded(resource, revision)
            cluster.storage.unseen = loader.unseen_storage()
            if self._has_watches:
                self._follow(api, cluster, resource, revision)

        loader = Loader(api, self.kinds, control.load, malformed_objects, loaded, keep=cluster.kept)
        if controller_manager is not None:
            intake.pod_seen = control.generator.pod_seen = controller_manager.saw
        rights = RightsWatch(api.connection, lambda: Work(controllers, self.in_force.features, settings.preemption))
        return _Parts(
            api, control, registry, malformed_objects, audit, loader, intake, controller_manager, rights, admission
        )

    def _make_control(self, api: Api, registry: CollectorRegistry, controllers: OwnControllers) -> Control:
        settings = self.settings
        inventory = Inventory(self.in_force.features, language=CelSelectors(self.in_force.features))
        inventory.compiled.patient = False
        cluster = Cluster(
            inventory,
            scheduler_name=settings.scheduler_name,
            scoring_strategy=settings.scoring_strategy,
            limits=BulkLimits(),
            leaves=LeftAlone.of(settings.leave_drivers, settings.leave_nodes, unmarked=settings.own_devices_only),
        )
        allocator = Allocator(
            inventory,
            new_share_id=lambda: str(uuid.uuid4()),
            budget=settings.search_budget,
            order=settings.device_order,
        )
        wiring = ControlOptions(
            times=times_of(settings),
            check_invariants=self._can_judge,
            controllers=controllers,
            legacy_claim_names=settings.legacy_claim_names,
            preemption=_preemption_of(settings),
            placement=Placement(settings.placement_strategy, settings.device_order),
            mix=self.mix,
            drivers=self.drivers,
            sees_others=lambda: self._is_settled() and all(map(self.watches.sees, _about_others(cluster))),
        )
        return Control(cluster, api, allocator, wiring, registry)

    def _follow(self, api: Api, cluster: Cluster, resource: Resource, since: str) -> None:
        store, handler = cluster.store_of(self.kinds[resource]), HANDLERS[resource]

        async def receive(change: Change) -> None:
            await handler(event=change, param=self)

        self.watches.follow(api, resource, since, receive, lambda: [ObjectVersion.of(obj.metadata) for obj in store])

    def _missed(self, resource: Resource) -> None:
        """A list or watch failed: compare with the server as soon as it can be asked."""
        self.metrics.watch_failed(resource)
        if self._parts is not None:
            self._parts.audit.call(resource)

    @property
    def kinds(self) -> Kinds:
        return self.in_force.kinds

    def _can_judge(self) -> bool:
        """Whether the invariants are to be verified now.

        A leader whose lease is overdue may have a successor. Its own last plans stand beside what that one did then,
        although nothing is wrong on the server.
        """
        if not self.settings.check_invariants:
            return False
        try:
            self._guard()
        except NotSent:
            return False
        return True

    def _restored(self, how: str) -> None:
        if not self.went_back:
            logger.error("the API server went back in time (%s), as after a restored backup: starting over", how)
            self.went_back = how
            self.outdated.set()

    async def stop(self) -> bool:
        """Stop to work and disconnect; what is half done is finished by the next start.

        Whether every write was answered, so that none is left that may still take effect.
        """
        self.watches.clear()
        settled = True
        if self._parts is not None:
            await self._parts.control.events.flush(1.0)
            settled = await self._parts.api.settle(SETTLE_SECONDS)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None
        if self._parts is not None:
            self.registry.unregister(self._parts.registry)
            await self._parts.api.__aexit__(None, None, None)
            self._parts = None
        return settled

    async def ended(self) -> None:
        """Wait until the controllers end, which they do only by ``stop`` or by a failure, which is logged."""
        if self._task is None:
            return
        await asyncio.wait((self._task,))
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            logger.critical("the controllers failed", exc_info=error)

    @property
    def is_running(self) -> bool:
        """Whether the controllers are at work."""
        return self._task is not None and not self._task.done()

    @property
    def has_failed(self) -> bool:
        """Whether the controllers ended by themselves."""
        return self._task is not None and self._task.done()

    @property
    def control(self) -> Control:
        """The controllers; only between ``start`` and ``stop``."""
        return self._running.control

    @property
    def _running(self) -> _Parts:
        if self._parts is None:
            raise RuntimeError("the operator was not started")
        return self._parts

    @property
    def deciding(self) -> str:
        """What is being decided about, in words, for a watch from another thread; empty if nothing is."""
        return self._parts.control.placer.deciding if self._parts is not None else ""

    @property
    def late_look(self) -> str:
        """Why the look at the claims is late that pods wait for before they are bound; empty if it is not."""
        return self._running.control.conflict_check.obstacle

    def lacks_rights(self) -> list[str]:
        """Return a line that names the rights which the operator needs and does not have, or nothing."""
        return self._running.rights.troubles()

    def missing(self) -> list[Resource]:
        """Kinds that the server does not have, and without which claims cannot be handled."""
        return [resource for resource in self._running.loader.missing() if resource in REQUIRED]

    @property
    def served(self) -> Mapping[Resource, str]:
        """The kinds to watch, each with the version in which the server had it; between ``start`` and ``stop``."""
        return self._running.loader.served

    def take(self, change: Change) -> None:
        """Put a change into the cache, and queue its keys. A late one is lost while the operator starts over.

        Kopf lists a kind when it begins, or when it fell too far behind, and does not say what was deleted until then.
        """
        if self._parts is None:
            return
        if change.event == "LISTED" and not self._has_watches:
            self._parts.audit.call(change.resource)
        self._parts.intake.take(change)

    async def _work(self, parts: _Parts) -> None:
        if parts.admission is not None:
            await parts.admission.recall()
        async with asyncio.TaskGroup() as group:
            group.create_task(parts.control.run(), name="controllers")
            group.create_task(parts.audit.run(), name="audit")
            if self._has_watches:
                group.create_task(self.watches.run(), name="watches")
            group.create_task(LastLook(parts.api, parts.control, parts.malformed_objects).run(), name="last look")
            if parts.controller_manager is not None:
                group.create_task(parts.controller_manager.run(), name="controller manager")
            if parts.admission is not None:
                group.create_task(parts.admission.run(), name="admission")
            group.create_task(parts.rights.run(), name="rights")
            group.create_task(parts.loader.look_for_missing(parts.control.look_again), name="missing kinds")


@dataclass(frozen=True, slots=True)
class _Parts:
    """What exists between ``start`` and ``stop``."""

    api: Api
    control: Control
    registry: CollectorRegistry
    malformed_objects: MalformedObjects
    audit: Audit
    loader: Loader
    intake: Intake
    controller_manager: ControllerManager | None
    rights: RightsWatch
    admission: AdmissionController | None


def times_of(settings: OperatorSettings) -> TimeSettings:
    """Return the settings of the controllers: workers, retries, time limits."""
    retry, placement_retry = settings.retry, settings.placement_retry
    return TimeSettings(
        workers={
            **WORKERS,
            "templates": settings.template_workers,
            "release": settings.release_workers,
            "placement": settings.placement_workers,
            "eviction": settings.eviction_workers,
        },
        retries=BackoffSettings(retry.first, retry.longest, retry.rate, retry.burst),
        placement_retries=BackoffSettings(
            placement_retry.first, placement_retry.longest, placement_retry.rate, placement_retry.burst
        ),
        time_slices=TimeSlices(settings.planning_turn, settings.planning_rest),
        grace=settings.conflict_check_grace,
        filter_timeout=settings.filter_timeout,
        binding_timeout=settings.binding_timeout,
        volume_binding_timeout=settings.volume_binding_timeout,
    )


def _admission_of(
    control: Control, api: Api, settings: OperatorSettings, registry: CollectorRegistry
) -> AdmissionController:
    view = ViewSettings(settings.scoring_strategy, settings.search_budget, settings.device_order)
    times = AdmissionSettings(settings.admission_promise, settings.admission_backoff)
    return AdmissionController(control, api, view, utc_now, times, registry)


def _preemption_of(settings: OperatorSettings) -> PreemptionSettings | None:
    if not settings.preemption:
        return None
    return PreemptionSettings(settings.preempt_other_schedulers, settings.preemption_patience)


def settle_memory() -> None:
    """What was listed lives as long as the process: the garbage collector need not look at it again and again.

    When the operator starts over, it has to look once more: the former cache lives no longer.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _about_others(cluster: Cluster) -> Iterator[Resource]:
    """The kinds that say what other schedulers may take; where we have a territory, also those that say what it is."""
    yield from (PODS, RESOURCE_CLAIMS)
    if cluster.inventory.territory.owned:
        yield from (RESOURCE_SLICES, DEVICE_TAINT_RULES)
