"""The operator's cache and allocator over the observed cluster: commands ask the code that decides in the operator.

Objects that the operator could not decode are left out, as in the operator.

Of large objects of which there are many, the view has the brief form (``kubectl.room``). A pod that is decided about is
*at hand* with its claims: they are read again, and the view has them whole until enough others were.
"""

from __future__ import annotations

import math
import sys
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from dra_api.codec import encode
from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.resource import DeviceTaintRule, ResourceClaim, ResourceClaimTemplate
from dra_ledger import Ledger
from dra_ledger.cel_language import CelSelectors
from msgspec import Raw, structs

from dra_operator.allocator import DEVICE_ORDERS, Allocator, Inventory
from dra_operator.cache import ClaimTemplate, Cluster
from dra_operator.cache.bulk import Loans, Place
from dra_operator.controllers.scheduling.mix import MixLearner, MixMemory
from dra_operator.controllers.settings import OwnControllers
from dra_operator.kubectl.facts import ledger_over
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.room import in_brief, is_brief, without_bulk
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
from dra_operator.scheduling.state import is_set_aside, spec_mark
from dra_operator.sources.kind_table import OF_STORAGE, TABLE

Kind = TypeVar("Kind", bound=Object)
K = TypeVar("K", Pod, ResourceClaim)
AT_HAND_PODS: Final = 16
"""Pods that are read again at the same time."""
_AT_HAND_BYTES: Final = 1 << 20
"""As JSON, of the objects that the view has whole for a while: the pods that are read at the same time. With their
indexes they take up to ten times as much."""
_DECISION_BYTES: Final = 16 << 20
"""As JSON, of the objects of one decision. Beyond less than that no operator decides."""
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
        """Inside the block raise TookTooLong after this time (0: never), and Abandoned if the asker is gone.

        The limit that was there before holds as well.
        """
        due, before = clock() + (seconds or math.inf), self.limit

        def check() -> None:
            before()
            if is_gone():
                raise Abandoned
            if clock() > due:
                raise TookTooLong

        self.limit = check
        try:
            yield
        finally:
            self.limit = before


class _Lent(NamedTuple):
    """An object that the view has whole for a while."""

    whole: Object
    brief: Object


def _as_here(brief: K, whole: K, *, is_as_read: bool) -> K:
    """Return the whole object with the state that it has in the view.

    ``is_as_read``: nothing in the view has changed it. The spec of a claim is immutable.
    """
    match brief, whole:
        case ResourceClaim(), ResourceClaim():
            return structs.replace(brief, spec=whole.spec)
        case Pod(), Pod() if not is_as_read:
            spec = structs.replace(whole.spec, node_name=brief.spec.node_name)
            return structs.replace(whole, spec=spec, status=brief.status)
    return whole


def _in_brief(obj: Object, brief: Object, read: Object | None = None) -> Object:
    """Return the brief form with the state of the object in the view; ``read``: the object as the server has it."""
    match obj, brief, read:
        case ResourceClaim(), ResourceClaim(), _:
            return structs.replace(obj, spec=brief.spec)
        case Pod(), Pod(), Pod() if obj.spec is read.spec and obj.status is read.status:
            return brief
        case Pod(), Pod(), _ if not is_set_aside(obj):
            meta = structs.replace(brief.metadata, resource_version=obj.metadata.resource_version)
            return structs.replace(in_brief(obj), metadata=meta)
    return obj


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
    _lent: OrderedDict[Place, _Lent] = field(default_factory=OrderedDict)
    _loans: Loans = field(default_factory=lambda: Loans(sys.maxsize))
    """Without a limit of its own: the pods of one decision are lent together."""

    @property
    def now(self) -> datetime:
        """The time of the read: a snapshot is answered as of then."""
        return self.seen.taken

    def ledger(self) -> Ledger:
        """Return the devices of the view with their holders, as they are now."""
        return ledger_over(self.seen, self.cluster.inventory, self.cluster.allocated_devices)

    @property
    def controllers(self) -> OwnControllers:
        """Those of the operator; all, unless it was said which."""
        return self.settings.controllers or OwnControllers()

    @property
    def preemption_patience(self) -> float:
        """Seconds for which a pod waits before it preempts."""
        said = self.settings.preemption_patience
        return PREEMPTION_PATIENCE_SECONDS if said is None else said

    def at_hand(self, pods: Iterable[Pod]) -> list[Pod]:
        """Return the pods whole, and have their pending claims whole in the view. Raises Problem.

        All of them are whole together, so callers ask for the pods that one decision is about.
        """
        found = list(pods)
        if self.seen.reread is None:
            return found
        before = self._lent.keys() - {(Pod, pod.key) for pod in found}
        found = self._brought(Pod, found, before)
        claims = {
            claim.key: claim
            for pod in found
            for claim in (*(it for _, it in self.cluster.claims_of(pod)), *self.cluster.claims_owned_by(pod))
            if claim is not None and claim.status.allocation is None
        }
        self._brought(ResourceClaim, list(claims.values()), before)
        return found

    def each_at_hand(self, pods: Iterable[Pod]) -> Iterator[Pod]:
        """Yield pods that are decided about one after the other, each at hand. Raises Problem."""
        if self.seen.reread is None:
            yield from pods
            return
        left = iter(pods)
        while some := list(islice(left, AT_HAND_PODS)):
            yield from self.at_hand(some)

    def claim(self, key: str) -> ResourceClaim | None:
        """Return a claim whole, or None if there is none. Raises Problem."""
        found = self.cluster.claims.get(key)
        if found is None or self.seen.reread is None:
            return found
        return self._brought(ResourceClaim, [found], self._lent.keys())[0]

    def observed(self, kind: type[Kind], key: str) -> Kind | None:
        """Return an object whole as it was observed, without the changes of the view. Raises Problem."""
        found = self.seen.one(kind, key)
        if found is None or self.seen.reread is None:
            return found
        lent = self._lent.get((kind, key))
        if lent is not None and isinstance(lent.whole, kind):
            return lent.whole
        [whole] = self.seen.whole([found])
        return whole

    def template(self, key: str) -> ClaimTemplate | None:
        """Return a template whole, or None if there is none. Raises Problem."""
        found = self.cluster.templates.get(key)
        if found is None or not found.is_set_aside:
            return found
        whole = self.seen.templates.get(key)
        return as_kept(whole) if whole is not None else found

    def _brought(self, kind: type[K], objects: Sequence[K], before: Set[Place]) -> list[K]:
        """Have the objects whole in the view, at the expense of objects that were lent ``before``.

        The objects of one decision may have more than _AT_HAND_BYTES. Beyond _DECISION_BYTES they stay brief, and the
        decision says so.
        """
        before = before - {(kind, it.key) for it in objects}
        store = self.cluster.store_of(kind)
        known = [(store.get(it.key, it.metadata.uid) or it) if is_set_aside(it) else it for it in objects]
        places = (place for place, it in enumerate(known) if is_set_aside(it))
        # Few at a time, since equal parts of them are held once: the pods of a gang differ in little.
        while self._has_room(before) and (some := list(islice(places, AT_HAND_PODS))):
            for place, whole in zip(some, self.seen.whole([known[it] for it in some]), strict=True):
                if not is_set_aside(whole):  # otherwise it is gone, or only its list is for the viewer
                    known[place] = self._lend(known[place], whole)
        return known

    def _has_room(self, before: Set[Place]) -> bool:
        """Take objects back that were lent before if there are too many. Return whether more may be lent."""
        if self._loans.total > _AT_HAND_BYTES:
            for place in [it for it in self._lent if it in before]:
                self._take_back(place)
                if self._loans.total <= _AT_HAND_BYTES:
                    break
        return self._loans.total <= _DECISION_BYTES

    def _lend(self, brief: K, whole: K) -> K:
        """Have the object whole in the view, if it is there. Return it with the state that it has there."""
        kind, key = type(brief), brief.key
        whole = _as_here(brief, whole, is_as_read=self.seen.one(kind, key) is brief)
        if self.cluster.store_of(kind).get(key, brief.metadata.uid) is not None:
            self._loans.open((kind, key))
            whole = self._loans.hold(whole)
            self._lent[kind, key] = _Lent(whole, brief)
            self.cluster.swap(whole)
        return whole

    def _take_back(self, place: Place) -> None:
        """Have the brief form in the view again, in the state that the object has there."""
        lent = self._lent.pop(place)
        self._loans.close(place)
        known = self.cluster.store_of(type(lent.brief)).get(lent.brief.key, lent.brief.metadata.uid)
        if known is not None:
            self.cluster.swap(_in_brief(known, lent.brief, lent.whole))

    def kept(self, obj: Object) -> Object:
        """Return the form in which the view keeps a version: a trial puts objects back that may be lent no longer."""
        brief = self.seen.one(type(obj), obj.key) if isinstance(obj, Pod | ResourceClaim) else None
        if brief is None or not is_brief(brief) or (type(obj), obj.key) in self._lent:
            return without_bulk(obj)
        return _in_brief(obj, brief) if brief.metadata.uid == obj.metadata.uid else obj

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
    made = Pipeline(seen, settings, cluster, allocator, placement, MixLearner(cluster, allocator, memory))
    if seen.reread is not None:
        cluster.kept = made.kept
    return made


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


def as_kept(template: ResourceClaimTemplate) -> ClaimTemplate:
    """A template as the cache keeps it."""
    mark = spec_mark(template.spec.spec)
    return ClaimTemplate(metadata=template.metadata, spec=Raw(encode(template.spec)), mark=mark)
