"""Places promises and Workloads, one after the other, in a view of the cluster that is its own.

A round takes in what has changed, keeps every promise in its order, and then plans the Workloads that wait, each beside
all before it. What fits stays in the view until the end of the round; then all of it is taken back. Nothing is written,
and the view is in the hands of one thread, which gives the other threads half of the time.

The Workloads that wait come by priority, then by age. Where a round does not reach all of them, namespaces that have
taken more than ``NAMESPACE_SECONDS`` let the others of that priority go first. Otherwise a few dozen Workloads of one
tenant, each too hard to plan in 5 s, would take all rounds.

A promise is kept on the nodes that it had before, as long as these take it. So promises do not move around, and the
pods of one find their room when they come.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple

from dra_api import kueue
from dra_api.codec import DecodeError
from dra_api.core import Pod
from dra_api.kueue import ResourceFlavor, Workload
from dra_api.meta import Object
from dra_api.references import pod_is_done
from dra_api.resource import AllocationResult, ResourceClaim, ResourceClaimTemplate
from dra_ledger.cel_language import CelSelectors
from dra_ledger.errors import shortened
from msgspec.structs import replace

from dra_operator.allocator import Allocator, Inventory
from dra_operator.cache import ClaimTemplate, Cluster, UidMemory
from dra_operator.commands.placing import NotPlaced, Placed, Placing
from dra_operator.commands.simulated import ClaimQuotas, extended_resource
from dra_operator.scheduling.state import is_set_aside
from dra_operator.sources.kinds import WATCHED

from .api import claims_named
from .ideal import IdealCluster, Lasting
from .pod_sets import (
    TOO_MANY_CLAIMS,
    TOO_MANY_TEMPLATES,
    SetAside,
    TooMuch,
    as_first_asked,
    copies_of,
    is_wrong,
    opened,
    planned_sets,
    set_of,
    shape_of,
    unmade,
    with_places,
)
from .promises import Outcome, PromisedWorkload, seat_of
from .workloads import replaced_slice

logger = logging.getLogger(__name__)

SEARCH_SECONDS: Final = 5.0
"""Seconds for one Workload."""
TURN_SECONDS: Final = 0.5
"""Seconds of decisions after which the Workloads that a round has not reached are left to the next one.

Or as many as the promises took before, so that candidates get half of the work. The next round decides on a Workload
that comes meanwhile, within 2 s.
"""
ROUND_SECONDS: Final = 5.0
"""At most the same, and seconds that a namespace gets to plan its lost promises anew."""
NAMESPACE_SECONDS: Final = 0.25
"""Seconds after which the Workloads of a namespace let other namespaces go first."""
WRITE_SECONDS: Final = 0.01
"""Seconds that a decision counts besides, for its write: thousands are made in no time, and written eight at a time."""
STRETCH_SECONDS: Final = 0.005
"""Seconds after which other threads have their turn."""
THREAD_REST_SECONDS: Final = 0.02
FAILED_SECONDS: Final = 5.0
"""Seconds for which an answer holds for equal Workloads while nothing changes; one that gave up is repeated then."""
QUOTED_CHARACTERS: Final = 1000
"""Length of an error before advice: it quotes text of a tenant."""


class Stopped(Exception):
    """The controller ends."""


class SearchTookTooLong(Exception):
    """The time of one Workload is over."""


class SeenChange(NamedTuple):
    """A change of the live cache; ``obj`` is None if the object is gone."""

    kind: type[Object]
    key: str
    uid: str
    obj: Object | None


@dataclass(frozen=True, slots=True)
class CheckRound:
    """What a round is about. All lists are in the order of decisions.

    ``flying``: allocations that are being written; ``assumed``: pods that are about to be bound, with their nodes and
    requests. ``held``: devices of claims that cannot be read.
    """

    changes: Sequence[SeenChange]
    held: Mapping[str, AllocationResult | None]
    flying: Sequence[tuple[str, AllocationResult]]
    assumed: Sequence[tuple[Pod, str, Mapping[str, int]]]
    flavors: Mapping[str, ResourceFlavor]
    promised: Sequence[PromisedWorkload]
    candidates: Sequence[Workload]
    backing_off: Sequence[Workload]
    now: datetime
    returning: Sequence[Workload] = ()
    """As they ask for least."""
    templates: Mapping[str, ClaimTemplate | str] = field(default_factory=dict)
    """Templates that are set aside, as the server has them, or why they could not be read."""
    claims: Mapping[str, ResourceClaim | str] = field(default_factory=dict)
    """The same of claims."""
    lost: Sequence[Lasting] = ()
    """What nodes and slices had within the last day."""


class _Failure(NamedTuple):
    """An Outcome without a place, for Workloads that are equal to the ``first`` one, whose pods the reason names.

    The reason is empty if the first one backs off: then nobody reads it, and it takes longer than the search.
    """

    first: str
    reason: str
    fits_never: bool
    is_final: bool

    def of(self, workload: Workload) -> Outcome:
        """Return the same for this Workload."""
        name = workload.metadata.name
        text = self.reason if name == self.first else f"as for workload {self.first}, which is equal: {self.reason}"
        return Outcome.without_place(workload, text, fits_never=self.fits_never, is_final=self.is_final)


@dataclass(slots=True)
class CheckAnswers:
    """Outcomes by UID. ``started`` have no pod left to place. ``looked``: pending Workloads that the round reached.

    ``left``: how many were not.
    """

    promised: dict[str, Outcome] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    candidates: dict[str, Outcome] = field(default_factory=dict)
    backing_off: dict[str, Outcome] = field(default_factory=dict)
    returning: dict[str, Outcome] = field(default_factory=dict)
    looked: list[str] = field(default_factory=list)
    left: int = 0


@dataclass(frozen=True, slots=True)
class ViewSettings:
    """How the operator decides."""

    scoring_strategy: str
    search_budget: int
    device_order: str


class Planner:
    """``answer`` questions, one at a time, in any thread; ``stop`` ends the one under way."""

    def __init__(self, live: Cluster, settings: ViewSettings, objects: Iterable[Object]) -> None:
        inventory = Inventory(live.features, language=CelSelectors(live.features))
        self._cluster = Cluster(
            inventory,
            scheduler_name=live.scheduler_name,
            scoring_strategy=settings.scoring_strategy,
            leaves=live.inventory.territory.leaves,
        )
        for kind in WATCHED.values():  # the live cache hands changes on in their order: none comes late
            self._cluster.store_of(kind).deleted = UidMemory(0)
        self._allocator = Allocator(
            inventory,
            new_share_id=lambda: str(uuid.uuid4()),
            budget=settings.search_budget,
            order=settings.device_order,
        )
        self._objects: Iterable[Object] | None = objects
        quotas = ClaimQuotas((), (), partial(extended_resource, self._cluster))
        self._templates = _Templates(self._cluster)
        self._placing = Placing(self._cluster, self._allocator, self._templates, quotas, lambda: self._now, self._pause)
        self._ideal = IdealCluster(self._cluster, self._placing, self._pause)
        self._pods_by_owner: Mapping[tuple[str, str], Sequence[Pod]] = {}
        self._now = datetime.min
        self._lost: Sequence[Lasting] = ()
        self._unread: Mapping[str, str] = {}
        """Why claims of this round could not be read, by key."""
        self._is_stopped = False
        self._due, self._resumed = 0.0, 0.0
        self._flying: list[str] = []
        self._assumed: list[Pod] = []
        self._spent: defaultdict[str, float] = defaultdict(float)
        """Seconds by namespace since a round reached all Workloads."""
        self._searched: defaultdict[str, float] = defaultdict(float)
        """Seconds by namespace of this round for promises that have lost their place."""
        self._failed: dict[bytes, _Failure] = {}
        """Shapes of Workloads without a place since the view last changed."""
        self._failed_since = -math.inf
        self._failed_beside: object = None

    def stop(self) -> None:
        """End the answer under way, which raises Stopped."""
        self._is_stopped = True

    def answer(self, question: CheckRound) -> CheckAnswers:
        """Place what the question names. Raises Stopped."""
        began = self._resumed = time.monotonic()
        self._due, self._now = began + 3600, question.now
        self._forget_failed(question)
        self._catch_up(question)
        self._templates.read, self._lost = question.templates, question.lost
        self._put_whole(question.claims)
        answers = CheckAnswers()
        self._searched.clear()
        try:
            waiting = (*question.candidates, *question.backing_off, *question.returning)
            slices = [it for it in waiting if replaced_slice(it)]
            named = (*(wanted.workload for wanted in question.promised), *slices)
            self._pods_by_owner = self._by_owner({workload.metadata.namespace for workload in named})
            for wanted in question.promised:
                self._keep(wanted, question.flavors, answers)
            self._decide(question, answers, time.monotonic() - began)
        finally:
            self._take_back()
            self._templates.read = {}
        return answers

    def _decide(self, question: CheckRound, answers: CheckAnswers, spent: float) -> None:
        """Answer the Workloads that wait, until the time of the round is over, of which so much is ``spent``."""
        began, written = time.monotonic(), 0.0
        seconds = max(TURN_SECONDS, min(spent, ROUND_SECONDS))
        answers.left = len(question.candidates) + len(question.backing_off) + len(question.returning)
        for waiting, answered, is_told in (
            (question.candidates, answers.candidates, True),
            (question.backing_off, answers.backing_off, False),
            (question.returning, answers.returning, True),
        ):
            for workload in self._in_turn(waiting):
                uid, now = workload.metadata.uid, time.monotonic()
                if now - began + written > seconds:
                    return
                answers.looked.append(uid)
                answers.left -= 1
                # The first one of these equal Workloads has failed, and nothing has come free since.
                known = self._failed.get(shape := shape_of(workload))
                if known is not None and is_told and not known.reason:
                    known = None
                found = known.of(workload) if known else self._judged(workload, question.flavors, says_why=is_told)
                if found.fits:
                    self._failed_beside = None  # those behind it may fit in the next round, if it loses its place
                elif known is None:
                    reason = found.reason if is_told else ""
                    self._failed[shape] = _Failure(workload.metadata.name, reason, found.fits_never, found.is_final)
                if is_told:
                    written += WRITE_SECONDS
                    self._spent[workload.metadata.namespace] += WRITE_SECONDS
                if is_told or known is None:
                    answered[uid] = found
                self._spent[workload.metadata.namespace] += time.monotonic() - now
        self._spent.clear()  # nobody is kept waiting

    def _in_turn(self, waiting: Iterable[Workload]) -> Iterator[Workload]:
        """Yield each Workload of a list that is in order, except that costly namespaces are last of their priority."""
        for _, equals in groupby(waiting, lambda it: it.spec.priority or 0):
            late: defaultdict[str, deque[Workload]] = defaultdict(deque)
            for workload in equals:
                if self._spent[workload.metadata.namespace] > NAMESPACE_SECONDS:
                    late[workload.metadata.namespace].append(workload)
                else:
                    yield workload
            while late:
                namespace = min(late, key=self._spent.__getitem__)
                yield late[namespace].popleft()
                if not late[namespace]:
                    del late[namespace]

    # --- the view ---

    def _forget_failed(self, question: CheckRound) -> None:
        """Forget which Workloads had no place, unless the view is the same as in the last round.

        Kueue gives the quota that comes free to one Workload after another. Where dozens of equal ones are first in its
        queue, and do not fit, the one behind them that fits waits for all of their answers.
        """
        promised = [(it.workload.metadata.uid, it.nodes) for it in question.promised]
        assumed = [(pod.metadata.uid, node) for pod, node, _ in question.assumed]
        beside = question.flying, assumed, promised, question.flavors
        now = time.monotonic()
        is_same = beside == self._failed_beside and not (question.changes or question.held)
        if not is_same or now - self._failed_since > FAILED_SECONDS:
            self._failed.clear()
            self._failed_since, self._failed_beside = now, beside

    def _catch_up(self, question: CheckRound) -> None:
        cluster = self._cluster
        if self._objects is not None:
            cluster.load(self._objects)
            self._objects = None
        for kind, key, uid, obj in question.changes:
            if obj is None:
                cluster.delete(kind, key, uid or None)
            else:
                cluster.apply(obj)
        cluster.changed_rules.clear()  # nobody evicts by this view
        for claim, allocation in question.held.items():
            cluster.allocated_devices.stored(claim, allocation)
        for claim, allocation in question.flying:
            if not cluster.allocated_devices.holds(claim):
                cluster.allocated_devices.stored(claim, allocation)
                self._flying.append(claim)
        for pod, node, requests in question.assumed:
            if cluster.loads.node_of(pod.metadata.uid) is None:
                cluster.loads.place(pod, node, requests)
                self._assumed.append(pod)

    def _put_whole(self, claims: Mapping[str, ResourceClaim | str]) -> None:
        """Have what claims ask for that are set aside, until the round is over."""
        self._unread = {key: it for key, it in claims.items() if isinstance(it, str)}
        for key, claim in claims.items():
            known = self._cluster.claims.get(key)
            # The server may have a newer version than the cache, or another claim of this name.
            if known is not None and isinstance(claim, ResourceClaim) and known.metadata.uid == claim.metadata.uid:
                self._placing.put(replace(known, spec=claim.spec))

    def _take_back(self) -> None:
        self._placing.undo(0)
        for claim in self._flying:
            self._cluster.allocated_devices.stored(claim, None)
        for pod in self._assumed:
            self._cluster.loads.forget(pod.metadata.uid)
        self._flying.clear()
        self._assumed.clear()

    def _pause(self) -> None:
        now = time.monotonic()
        if self._is_stopped:
            raise Stopped
        if now > self._due:
            raise SearchTookTooLong
        worked = now - self._resumed
        if worked > STRETCH_SECONDS:
            time.sleep(min(worked, THREAD_REST_SECONDS))
            self._resumed = time.monotonic()

    def _sets(self, workload: Workload, flavors: Mapping[str, ResourceFlavor]) -> list[tuple[Pod, int]]:
        """Return ``planned_sets``. Raises WorkloadError, also if a claim that its pods name could not be read."""
        sets = planned_sets(workload, flavors)
        for key in claims_named(workload):
            claim = self._cluster.claims.get(key)
            if claim is not None and claim.status.allocation is None and is_set_aside(claim):
                unread = self._unread.get(key)
                raise SetAside(TOO_MANY_CLAIMS if unread is None else f"claim {key} cannot be read: {unread}")
        return sets

    # --- promises ---

    def _by_owner(self, namespaces: set[str]) -> Mapping[tuple[str, str], Sequence[Pod]]:
        """Return the pods by namespace and by each name or UID that they have of an owner.

        A look at all pods of the namespace for each promise would be quadratic.
        """
        found: defaultdict[tuple[str, str], list[Pod]] = defaultdict(list)
        for pod in self._cluster.pods:
            meta = pod.metadata
            if meta.namespace not in namespaces:
                continue
            names = (meta.annotations or {}).get(kueue.WORKLOAD), (meta.labels or {}).get(kueue.POD_GROUP)
            uids = meta.uid, meta.controller.uid if meta.controller is not None else ""
            for owner in {it for it in (*names, *uids) if it}:
                found[meta.namespace, owner].append(pod)
        return found

    def _pods_of(self, workload: Workload) -> list[Pod]:
        meta, owner = workload.metadata, workload.metadata.controller
        named = {meta.name, owner.uid if owner is not None else ""}
        its = (pod for name in sorted(named) for pod in self._pods_by_owner.get((meta.namespace, name), ()))
        return [pod for pod in {pod.key: pod for pod in its}.values() if workload.owns(pod)]

    def _keep(self, wanted: PromisedWorkload, flavors: Mapping[str, ResourceFlavor], answers: CheckAnswers) -> None:
        """Place the pods of a promise that have no node yet: those of the cluster, and those still to be made."""
        workload = wanted.workload
        uid, lacking = workload.metadata.uid, ""
        sets: Sequence[tuple[Pod, int]] = ()
        try:
            sets = self._sets(workload, {**flavors, **wanted.flavors})
        except (kueue.FlavorMissing, SetAside) as error:
            lacking = str(error)  # those that are made know their nodes without it
        except kueue.WorkloadError as error:
            answers.promised[uid] = Outcome.without_place(workload, str(error))
            return
        there = self._pods_of(workload)
        waiting = [pod for pod in there if not self._cluster.is_bound(pod) and not pod_is_done(pod)]
        # Those on their way to a node hold what they need already. Nothing is certain before they are bound.
        placeless = [opened(pod) for pod in waiting if not self._cluster.node_of(pod)]
        is_over = self._is_terminating(workload)
        # Until the turn of a pod that is set aside, a copy has its place: the Workload says what it asks for.
        aside = {pod.key for pod in placeless if self._is_aside(pod)} if sets and not is_over else set()
        placeless = [pod for pod in placeless if pod.key not in aside]
        there = [pod for pod in there if pod.key not in aside]
        placeless = with_places(workload, sets, there, placeless) if sets else placeless
        copies = [] if is_over else copies_of(self._cluster, workload, unmade(workload, sets, there))
        missing = [*placeless, *copies]
        if lacking:
            found = self._seated(workload, placeless, wanted.nodes) if placeless else Outcome(workload)
            answers.promised[uid] = Outcome.without_place(workload, found.reason or lacking, seats=found.seats)
            return
        if missing:
            answers.promised[uid] = self._seated(workload, missing, wanted.nodes)
        elif waiting:
            answers.promised[uid] = Outcome(workload)
        else:
            answers.started.add(uid)

    def _is_aside(self, pod: Pod) -> bool:
        """Return whether the pod or a claim has to be read before a place can be looked for; it has no devices yet."""
        claims = self._cluster.known_claims(pod)
        if any(claim.status.allocation is not None for claim in claims):
            return False
        return is_set_aside(pod) or any(map(is_set_aside, claims))

    def _seated(self, workload: Workload, pods: Sequence[Pod], nodes: Mapping[str, Sequence[str]]) -> Outcome:
        """Place the pods of a promise: on the nodes that they had, else together elsewhere, else as many as fit."""
        self._due, mark = time.monotonic() + SEARCH_SECONDS, self._placing.mark
        try:
            found = self._on(pods, nodes) or self._elsewhere(workload.metadata.namespace, pods)
        except SearchTookTooLong:
            self._placing.undo(mark)
            return Outcome.without_place(workload, "its pods could not be placed in time")
        except Stopped:
            raise
        except Exception as error:
            logger.exception("workload %s cannot be planned", workload.key)
            self._placing.undo(mark)
            return Outcome.without_place(workload, f"it cannot be planned: {error}")
        seats = tuple(seat_of(workload, it) for it in found if isinstance(it, Placed))
        reason = next((it.reason for it in found if isinstance(it, NotPlaced)), "")
        return Outcome.without_place(workload, reason, seats=seats) if reason else Outcome(workload, seats)

    def _elsewhere(self, namespace: str, pods: Sequence[Pod]) -> Sequence[Placed | NotPlaced]:
        """Place the pods together, else as many as fit. Raises SearchTookTooLong.

        A node that goes may take the places of dozens of promises, each with 5 s of search in each round.
        """
        if self._searched[namespace] > ROUND_SECONDS:
            raise SearchTookTooLong
        began = time.monotonic()
        try:
            found = self._placing.place_together(pods)
            if isinstance(found[0], NotPlaced):
                found = [self._placing.place_alone(pod) for pod in pods]
        finally:
            self._searched[namespace] += time.monotonic() - began
        return found

    def _on(self, pods: Sequence[Pod], nodes: Mapping[str, Sequence[str]]) -> list[Placed] | None:
        """Place each pod on a node that one of its set had before, or none.

        Some of these pods have started since, on any of the nodes. Pods with devices go to the nodes of these.
        """
        left = {name: list(known) for name, known in nodes.items()}
        mark, found = self._placing.mark, list[Placed]()
        for pod in sorted(pods, key=lambda it: not self._has_devices(it)):
            placed = self._on_one_of(pod, left.get(set_of(pod), []))
            if placed is None:
                self._placing.undo(mark)
                return None
            found.append(placed)
        return found

    def _on_one_of(self, pod: Pod, nodes: list[str]) -> Placed | None:
        """Place the pod on the first of the nodes that takes it, and remove that from the list."""
        has_devices = self._has_devices(pod)
        for node in dict.fromkeys(nodes):
            mark, placed = self._placing.mark, self._placed_on(pod, node)
            if placed is not None:
                nodes.remove(node)
                return placed
            self._placing.undo(mark)
            if not has_devices:  # nor does it take the next one, which is equal
                nodes[:] = [it for it in nodes if it != node]
        alone = self._placing.place_alone(pod) if has_devices else None
        return alone if isinstance(alone, Placed) else None

    def _has_devices(self, pod: Pod) -> bool:
        return any(claim.status.allocation is not None for claim in self._cluster.known_claims(pod))

    def _placed_on(self, pod: Pod, node: str) -> Placed | None:
        self._pause()
        pod, hindrance = self._placing.with_claims(pod)
        return self._placing.place_on(pod, node) if hindrance is None else None

    # --- Workloads that wait ---

    def _judged(self, workload: Workload, flavors: Mapping[str, ResourceFlavor], *, says_why: bool) -> Outcome:
        if self._is_terminating(workload):
            text = f"namespace {workload.metadata.namespace} is being deleted, and takes no more pods"
            return Outcome.without_place(workload, text)
        try:
            sets = self._sets(workload, flavors)
        except (kueue.FlavorMissing, SetAside) as error:
            return Outcome.without_place(workload, str(error))
        except kueue.WorkloadError as error:
            advice = "" if isinstance(error, TooMuch) else ": correct the pod template or the queue"
            text = f"{shortened(str(error), QUOTED_CHARACTERS)}{advice}"
            return Outcome.without_place(workload, text, is_final=is_wrong(workload))
        pods = self._missing(workload, sets)
        if not pods:
            return Outcome(workload)
        self._due = time.monotonic() + SEARCH_SECONDS
        mark = self._placing.mark
        try:
            found = self._together(pods, says_why=says_why)
            if isinstance(found[0], NotPlaced):
                never = found[0].fits_never and self._fits_never(workload)
                return Outcome.without_place(workload, found[0].reason, fits_never=never)
        except SearchTookTooLong:
            self._placing.undo(mark)
            text = f"no place was found within {SEARCH_SECONDS:g} s: ask for fewer pods, or for fewer alternatives"
            return Outcome.without_place(workload, text)
        except Stopped:
            raise
        except Exception as error:  # whatever a tenant has written, the others are decided on
            logger.exception("workload %s cannot be planned", workload.key)
            self._placing.undo(mark)
            return Outcome.without_place(workload, f"it cannot be planned: {error}")
        return Outcome(workload, tuple(seat_of(workload, it) for it in found if isinstance(it, Placed)))

    def _missing(self, workload: Workload, sets: Sequence[tuple[Pod, int]]) -> list[Pod]:
        running = self._running(workload) if replaced_slice(workload) else ()
        return copies_of(self._cluster, workload, unmade(workload, sets, running))

    def _fits_never(self, workload: Workload) -> bool:
        pods = self._missing(workload, planned_sets(as_first_asked(workload), {}))
        return bool(pods) and self._ideal.fits_never(pods, self._lost)

    def _is_terminating(self, workload: Workload) -> bool:
        """Return whether the API server refuses further pods of the Workload.

        Its namespace and the Workload may stay for ever, if something there has a finalizer that nobody removes.
        """
        namespace = self._cluster.namespaces.get(workload.metadata.namespace)
        return namespace is not None and namespace.metadata.deletion_timestamp is not None

    def _running(self, workload: Workload) -> Sequence[Pod]:
        """Return the pods of an elastic job that go on running when it grows: they have their places."""
        its = (pod for pod in self._pods_of(workload) if self._cluster.is_bound(pod) and not pod_is_done(pod))
        return [pod for pod in its if pod.metadata.deletion_timestamp is None]

    def _together(self, pods: Sequence[Pod], *, says_why: bool) -> Sequence[Placed | NotPlaced]:
        """Place all or none. A single pod that does not fit says why in its own words."""
        found = self._placing.place_together(pods, says_why=says_why)
        first = found[0]
        if len(pods) > 1 or isinstance(first, Placed) or not says_why:
            return found
        with self._placing.attempt():
            alone = self._placing.place_alone(pods[0])
        reason = alone.reason if isinstance(alone, NotPlaced) else first.reason
        return [NotPlaced(first.pod, reason, first.fits_never)]


class _Templates(Mapping[str, ResourceClaimTemplate]):
    """The templates of a cluster, decoded when they are asked for; of a large one there is only its size.

    ``read`` has the templates that are set aside, for one round.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._store = cluster.templates
        self.read: Mapping[str, ClaimTemplate | str] = {}

    def __getitem__(self, key: str) -> ResourceClaimTemplate:
        """Return one template. Raises KeyError, and DecodeError if it cannot be read."""
        kept = self._store.get(key)
        if kept is None:
            raise KeyError(key)
        template = self.read.get(key, TOO_MANY_TEMPLATES) if kept.is_set_aside else kept
        if isinstance(template, str):
            raise DecodeError(template)
        return ResourceClaimTemplate(metadata=template.metadata, spec=template.typed())

    def __iter__(self) -> Iterator[str]:
        return (template.key for template in self._store)

    def __len__(self) -> int:
        return len(self._store)
