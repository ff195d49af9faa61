"""The operator's cache and allocator over what was observed: commands ask the code that decides in the operator.

Objects that the operator could not decode are left out, as in the operator.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from dra_api.codec import encode
from dra_api.meta import Object
from dra_api.resource import DeviceTaintRule, ResourceClaimTemplate
from dra_ledger.cel_language import CelSelectors
from msgspec import Raw

from dra_operator.allocator import DEVICE_ORDERS, Allocator, Inventory
from dra_operator.cache import AllocatedDevices, ClaimTemplate, Cluster
from dra_operator.controllers.scheduling.mix import MixLearner, MixMemory
from dra_operator.controllers.settings import OwnControllers
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.settings import Settings
from dra_operator.scheduling import (
    PLACEMENT_STRATEGIES,
    STRATEGIES,
    CycleState,
    NoPlace,
    Placement,
    Plan,
    PostFilter,
    decided,
    plan,
)
from dra_operator.scheduling.preemption import PREEMPTION_PATIENCE_SECONDS
from dra_operator.sources.kind_table import OF_STORAGE, TABLE

PAUSE_OBJECTS: Final = 256
"""Objects that are taken into a view between two pauses."""
_PREPARED_DEVICES: Final = 50_000
"""A few hundred bytes each, for as long as the answer takes."""
_IN_VIEW: Final = frozenset(TABLE.values()) - {ResourceClaimTemplate}


class TookTooLong(Exception):
    """An answer takes longer than it may."""


class Abandoned(Exception):
    """Nobody waits for the answer any more."""


@dataclass(slots=True)
class Pausing:
    """Called every few milliseconds while an answer is worked out. What ``limit`` raises ends that."""

    limit: Callable[[], None] = lambda: None

    def __call__(self) -> None:
        self.limit()

    @contextmanager
    def within(
        self, seconds: float, is_gone: Callable[[], bool] = lambda: False, clock: Callable[[], float] = time.monotonic
    ) -> Iterator[None]:
        """Inside the block raise TookTooLong after so many seconds (0: never), and Abandoned if the asker is gone."""
        due, before = clock() + (seconds or math.inf), self.limit

        def check() -> None:
            if is_gone():
                raise Abandoned
            if clock() > due:
                raise TookTooLong

        self.limit = check
        try:
            yield
        finally:
            self.limit = before


@dataclass(frozen=True)
class Pipeline:
    """``seen`` is what it was made of."""

    seen: Observed
    settings: Settings
    cluster: Cluster
    allocator: Allocator
    placement: Placement
    learner: MixLearner
    pausing: Pausing = field(default_factory=Pausing)

    @property
    def now(self) -> datetime:
        """The time of the read: a snapshot is answered as of then."""
        return self.seen.taken

    @property
    def inventory(self) -> Inventory:
        """What slices publish, with the taints of rules."""
        return self.cluster.inventory

    @property
    def allocated(self) -> AllocatedDevices:
        """What claims hold."""
        return self.cluster.allocated_devices

    @property
    def controllers(self) -> OwnControllers:
        """Those of the operator; all, unless it was said which."""
        return self.settings.controllers or OwnControllers()

    @property
    def preemption_patience(self) -> float:
        """Seconds for which a pod waits before it preempts."""
        said = self.settings.preemption_patience
        return PREEMPTION_PATIENCE_SECONDS if said is None else said

    def planned(self, state: CycleState, post_filter: PostFilter | None = None) -> Plan | NoPlace:
        """What the operator would decide about a pod, also by its placement strategy."""
        self.learner.see(state.pod, state.resource_claims)
        return decided(plan(state, post_filter=post_filter, placement=self.placement), self.pausing)


def pipeline(seen: Observed, settings: Settings | None = None, pause: Callable[[], None] = lambda: None) -> Pipeline:
    """The pipeline over all that was observed; ``pause`` is called while that is taken in, and may raise."""
    settings = (settings or Settings()).completed(seen)
    features = settings.features(seen)
    language = CelSelectors(features, kept=_PREPARED_DEVICES)
    inventory = Inventory(features, language=language, is_lasting=False)
    cluster = Cluster(
        inventory,
        scheduler_name=settings.scheduler_name,
        scoring_strategy=settings.scoring_strategy or STRATEGIES[0],
        leaves=settings.leaves,
    )
    has_rules = features.taint_rules and features.device_taints
    cluster.load(_paused(_in_view(seen.objects, has_rules=has_rules), pause))
    cluster.storage.unseen = tuple(str(resource) for resource in OF_STORAGE if str(resource) in seen.unseen)
    order, strategy = settings.device_order or DEVICE_ORDERS[0], settings.placement_strategy or PLACEMENT_STRATEGIES[0]
    allocator = Allocator(inventory, new_share_id=lambda: str(uuid.uuid4()), order=order)
    placement = Placement(strategy, order)
    allocator.looks_at_mix |= placement.looks_at_mix(cluster.classes)
    memory = MixMemory()
    memory.recall(settings.mix)
    return Pipeline(seen, settings, cluster, allocator, placement, MixLearner(cluster, allocator, memory))


def _in_view(objects: Iterable[Object], *, has_rules: bool) -> Iterator[Object]:
    for obj in objects:
        if isinstance(obj, ResourceClaimTemplate):
            yield as_kept(obj)
        elif type(obj) in _IN_VIEW and (has_rules or not isinstance(obj, DeviceTaintRule)):
            yield obj


def _paused(objects: Iterable[Object], pause: Callable[[], None]) -> Iterator[Object]:
    for number, obj in enumerate(objects):
        if number % PAUSE_OBJECTS == 0:
            pause()
        yield obj


def as_kept(template: ResourceClaimTemplate) -> Object:
    """A template as the cache keeps it."""
    return ClaimTemplate(metadata=template.metadata, spec=Raw(encode(template.spec)))
