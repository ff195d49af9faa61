"""Reads of large objects from the API server, and writes into Workloads and AdmissionChecks.

Workloads, templates and claims that are set aside (``cache.bulk``) are read when it is their Workload's turn. What was
read is kept until the next round. Most likely it needs them as well: each round looks at a promise until its pods run.
A promise keeps its room of the last round beside newer promises: otherwise its place would be given away.

A write names the version of the Workload that was decided on. The API server refuses it if the Workload has changed
since, and the next round decides anew.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from functools import partial
from typing import Any, Final, TypeVar

from dra_api.codec import DecodeError, convert, encode
from dra_api.kueue import AdmissionCheck, Workload
from dra_api.meta import ADMISSION_CHECKS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, WORKLOADS, Object, Resource
from dra_api.resource import ResourceClaim
from dra_api.values import format_time
from dra_kube import ApiError, Conflict, Invalid, KubeError, NotFound, ServerError, Unreachable
from msgspec.structs import replace
from prometheus_client import Counter

from dra_operator.cache import ClaimTemplate, Cluster, without_bulk
from dra_operator.controllers import Control
from dra_operator.controllers.workers import tell
from dra_operator.kube import Client
from dra_operator.scheduling.state import is_set_aside, is_workload_set_aside

from .rounds import PROMISE_LOOK_SECONDS, Memory, NextRound
from .workloads import (
    CONTROLLER_NAME,
    CheckDecision,
    CheckNames,
    CheckStage,
    CheckState,
    active_patch,
    after_eviction,
    decision_patch,
    evicted_at,
    follow_up_patch,
    is_in_queue,
    rank,
    requeue_patch,
    returned_at,
    states,
)

T = TypeVar("T", bound=Object)

logger = logging.getLogger(__name__)

READ_BYTES: Final = 4 << 20
"""Of all that has been read for a round, as JSON."""
WRITES: Final = 8
"""Writes at the same time."""
CHANGED_SECONDS: Final = 0.5
"""Seconds until a Workload is looked at again that was refused, most likely since it has changed."""
LEFT_BEHIND_SECONDS: Final = 5.0
"""Seconds after which a Workload without quota, whose back-off was ended, counts as one that Kueue has not tried. The
pause doubles each time."""
LONGEST_LEFT_BEHIND_SECONDS: Final = 600.0
CHECK_PAUSE_SECONDS: Final = 1.0
"""Seconds for which a check is not active then."""
_ORDER: Final = (
    CheckStage.PROMISED,
    CheckStage.LATE,
    CheckStage.CANDIDATE,
    CheckStage.BACKING_OFF,
    CheckStage.RETURNING,
)
"""What has been promised comes first."""


class AsideReader:
    """Call ``whole`` before each round. ``templates`` and ``claims`` have what was read for it, or why it was not."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self._cluster, self._client = cluster, client
        self._known: dict[tuple[type[Object], str], Object | str] = {}
        self._before: dict[tuple[type[Object], str], Object | str] = {}
        self._sums: defaultdict[str, int] = defaultdict(int)
        self._failure = ""
        self.templates: dict[str, ClaimTemplate | str] = {}
        self.claims: dict[str, ResourceClaim | str] = {}

    async def whole(self, stages: Mapping[CheckStage, list[Workload]]) -> Mapping[CheckStage, list[Workload]]:
        """Return the Workloads whole, as many as there is room for, and read the templates and claims that they name.

        Raises KubeError if something cannot be read that was promised a place: without it, others would get that place.
        """
        self._before, self._known, self.templates, self.claims = self._known, {}, {}, {}
        self._sums.clear()
        self._failure = ""
        # Nearly all clusters end here.
        if self._cluster.bulk is None or not self._cluster.bulk.has_aside:
            return stages
        found: dict[CheckStage, list[Workload]] = {stage: [] for stage in CheckStage}
        for stage in _ORDER:
            read = partial(self._read, is_needed=stage is CheckStage.PROMISED)
            for workload in sorted(stages[stage], key=self._is_new if stage is CheckStage.PROMISED else rank):
                it = await read(WORKLOADS, Workload, workload) if is_workload_set_aside(workload) else workload
                # The server may have a newer version than the cache, by which the Workload has this stage. What is
                # decided by the older one is not written then, and a promise must not lose its place meanwhile.
                whole = workload if not isinstance(it, Workload) else replace(workload, spec=it.spec)
                found[stage].append(whole)
                for key in templates_named(whole):
                    template = self._cluster.templates.get(key)
                    if template is not None and template.is_set_aside and key not in self.templates:
                        content = await read(RESOURCE_CLAIM_TEMPLATES, ClaimTemplate, template)
                        if content is not None:
                            self.templates[key] = content
                for key in claims_named(whole):
                    claim = self._cluster.claims.get(key)
                    # An allocated claim has its devices: its requests do not matter any more.
                    is_open = claim is not None and claim.status.allocation is None
                    if claim is not None and is_open and is_set_aside(claim) and key not in self.claims:
                        asked = await read(RESOURCE_CLAIMS, ResourceClaim, claim)
                        if asked is not None:
                            self.claims[key] = asked
        self._before = {}
        return found

    def _is_new(self, workload: Workload) -> tuple[bool, tuple[int, str, str]]:
        """Return the order of promises: what was read before counts first."""
        return (Workload, workload.key) not in self._before, rank(workload)

    async def _read(self, resource: Resource, kind: type[T], aside: T, *, is_needed: bool) -> T | str | None:
        """Return the object as the server has it, or why it cannot be read; None if there is no room for it."""
        meta = aside.metadata
        found = self._before.get((kind, aside.key))
        is_kept = is_needed and found is not None
        # A namespace gets half of the rest, as of everything that is shared.
        if not is_kept and 2 * self._sums[meta.namespace] >= READ_BYTES - sum(self._sums.values()):
            return None
        if not isinstance(found, kind) or found.metadata.resource_version != meta.resource_version:
            # A server that does not answer is not asked a thousand times.
            if self._failure:
                return self._failure
            try:
                found = without_bulk(convert(kind, await self._client.get(resource, meta.name, meta.namespace)))
            except (NotFound, DecodeError) as error:
                return str(error)
            except KubeError as error:
                if is_needed:
                    self._known = {**self._before, **self._known}
                    raise
                self._failure = str(error)
                return self._failure
        self._known[kind, aside.key] = found
        self._sums[meta.namespace] += len(encode(found))
        return found


def templates_named(workload: Workload) -> Iterator[str]:
    """Yield the keys of the ResourceClaimTemplates that its pods name."""
    for pod_set in workload.spec.pod_sets or ():
        for entry in pod_set.template.spec.resource_claims or ():
            if entry.resource_claim_template_name is not None:
                yield f"{workload.metadata.namespace}/{entry.resource_claim_template_name}"


def claims_named(workload: Workload) -> Iterator[str]:
    """Yield the keys of the ResourceClaims that its pods share with each other, or with others."""
    for pod_set in workload.spec.pod_sets or ():
        for entry in pod_set.template.spec.resource_claims or ():
            if entry.resource_claim_name is not None:
                yield f"{workload.metadata.namespace}/{entry.resource_claim_name}"


class Written(Enum):
    """What became of a write."""

    YES = auto()
    NO = auto()
    UNKNOWN = auto()
    """No answer came, or one that says nothing about it."""


class WorkloadWriter:
    """Writes what was decided, and has Kueue try a Workload again.

    ``names`` are the checks that are answered now. ``now`` is the time that is written.
    """

    def __init__(
        self,
        control: Control,
        client: Client,
        now: Callable[[], datetime],
        memory: defaultdict[str, Memory],
        next_round: NextRound,
        errors: Counter,
    ) -> None:
        self._control, self._cluster, self._client, self._now = control, control.cluster, client, now
        self._memory, self._next, self._errors = memory, next_round, errors
        self.names = CheckNames()
        self._limit, self._follow_up_limit = asyncio.Semaphore(WRITES), asyncio.Semaphore(WRITES)
        self._follow_ups = set[asyncio.Task[None]]()
        self._quiet_checks: dict[str, float] = {}
        """The time before which a check is not written again, by its name."""
        self._paused: dict[str, float] = {}
        """The time at which the pause of a check is over, by its name."""
        self._ended: dict[str, tuple[str, float, float]] = {}
        """Workloads whose back-off was ended, by key: UID, time of the next look, and pause until the look after it."""

    def close(self) -> None:
        """Give up the writes under way that nobody waits for."""
        for task in self._follow_ups:
            task.cancel()

    # --- Workloads ---

    async def write(self, workload: Workload, decision: CheckDecision) -> Written:
        """Return whether the decision was written. A Workload that has changed is decided on anew."""
        async with self._limit:
            patch = decision_patch(workload, self.names.active, decision, format_time(self._now()))
            return await self._patch(workload, patch)

    async def wait_on(self, workload: Workload, decision: CheckDecision) -> None:
        """Have Kueue wait longer. When it has taken that over, the check is pending again (``after_eviction``)."""
        async with self._limit:
            since = format_time(returned_at(workload) or self._now())
            if await self._patch(workload, decision_patch(workload, self.names.active, decision, since)) is Written.YES:
                tell(logger, logging.DEBUG, "Kueue waits on", workload=workload.key, seconds=decision.wait)

    async def end_wait(self, workload: Workload, why: str) -> bool:
        """Have Kueue try the Workload again. Return whether that was written."""
        async with self._limit:
            patch = requeue_patch(workload, self.names.active, why, format_time(self._now()))
            if await self._patch(workload, patch) is not Written.YES:
                return False
        tell(logger, logging.INFO, "Kueue may try it again", workload=workload.key, why=why)
        due = self._next.clock() + LEFT_BEHIND_SECONDS
        self._ended[workload.key] = workload.metadata.uid, due, 2 * LEFT_BEHIND_SECONDS
        self._next.by(due)
        return True

    def follow_eviction(self, workload: Workload) -> None:
        """Write the back-off into an evicted Workload: at once, since Kueue is about to give it quota again."""
        memory = self._memory.get(workload.metadata.uid)
        wanted = after_eviction(workload, self.names.active, memory.back_off if memory is not None else None)
        if wanted is not None:
            task = asyncio.create_task(self._write_follow_up(workload, wanted))
            self._follow_ups.add(task)
            task.add_done_callback(self._follow_ups.discard)

    async def _write_follow_up(self, workload: Workload, wanted: CheckDecision) -> None:
        # Refused when Kueue has given quota again: then it is decided on anew.
        async with self._follow_up_limit:
            since = evicted_at(workload) or format_time(self._now())
            written = await self._patch(workload, follow_up_patch(workload, self.names.active, wanted, since))
        memory = self._memory.get(workload.metadata.uid)
        if written is Written.YES and memory is not None and wanted.state is CheckState.RETRY:
            memory.back_off, memory.lost_turns, memory.holdings = None, 0, 0

    async def _patch(self, workload: Workload, patch: Sequence[Mapping[str, Any]]) -> Written:
        meta = workload.metadata
        try:
            raw = await self._client.patch(
                WORKLOADS, meta.name, patch, meta.namespace, kind="json", subresource="status"
            )
        except NotFound:
            return Written.NO
        except KubeError as error:
            self._tell(workload, error)
            may_have_effect = isinstance(error, Unreachable | ServerError)
            return Written.UNKNOWN if may_have_effect else Written.NO
        self._control.answered(convert(Workload, raw))
        return Written.YES

    def _tell(self, workload: Workload, error: KubeError) -> None:
        """Log a failed write, and try again a little later. That the object has changed is no failure."""
        if isinstance(error, Conflict):
            self._next.look_again()
            return
        if isinstance(error, Invalid):
            meta = workload.metadata
            memory = self._memory[meta.uid]
            is_again, memory.refused = memory.refused == meta.resource_version, meta.resource_version
            # The fields of a JSON patch are looked up before the versions are compared: they may be gone by now. A
            # version that is still the newest one at the next look was refused for something else.
            if not is_again:
                self._next.look_again_after(CHANGED_SECONDS)
                tell(logger, logging.DEBUG, "workload cannot be written", workload=workload.key, why=error)
                return
        self._errors.inc()
        tell(logger, logging.WARNING, "workload cannot be written", workload=workload.key, why=error)
        self._next.look_again_after(1.0 if not isinstance(error, ApiError) else 5.0)

    # --- AdmissionChecks ---

    async def activate_checks(self) -> None:
        """Say in each check of ours that it is answered."""
        now = self._next.clock
        self._quiet_checks = {name: until for name, until in self._quiet_checks.items() if until > now()}
        for check in list(self._cluster.store_of(AdmissionCheck)):
            if check.spec.controller_name != CONTROLLER_NAME:
                continue
            until = self._paused.get(check.key, -math.inf)
            if until > now():
                self._next.by(until)
            patch = active_patch(check, format_time(self._now()), is_paused=until > now())
            if patch is None:
                continue
            if (quiet := self._quiet_checks.get(check.key, -math.inf)) > now():
                self._next.by(quiet)
                continue
            # Somebody else may say the opposite each time: a second operator of another version.
            self._quiet_checks[check.key] = now() + CHECK_PAUSE_SECONDS
            try:
                raw = await self._client.patch(ADMISSION_CHECKS, check.metadata.name, patch, subresource="status")
            except Conflict:
                continue  # the watch brings the newer version
            except KubeError as error:
                self._quiet_checks[check.key] = now() + PROMISE_LOOK_SECONDS
                if not isinstance(error, NotFound):
                    logger.warning("admission check %s: cannot be written: %s", check.key, error)
                continue
            self._control.answered(convert(AdmissionCheck, raw))

    def pause_left_behind(self) -> None:
        """Pause the checks of a Workload that Kueue should have tried, and has not.

        Kueue 0.19.2 may not see that the back-off of a Workload with device claims was ended. It tries the Workload
        when another one of its queue ends, or when a check of the queue was not active for a moment.
        """
        now, store, late = self._next.clock(), self._cluster.store_of(Workload), list[Workload]()
        for key, (uid, due, pause) in list(self._ended.items()):
            workload = store.get(key, uid)
            if workload is None or not is_in_queue(workload):
                del self._ended[key]
                continue
            if due > now:
                self._next.by(due)
                continue
            self._ended[key] = uid, now + pause, min(2 * pause, LONGEST_LEFT_BEHIND_SECONDS)
            late.append(workload)
        if not late:
            return
        busy = {self._queue_of(it) for it in store if it.has_quota and not it.has("Finished")}
        for workload in late:
            if self._queue_of(workload) in busy:
                continue
            why = "Kueue has not tried it since its back-off ended"
            tell(logger, logging.INFO, "checks pause", workload=workload.key, why=why)
            for _, state in states(workload, self.names.active):
                self._paused[state.name] = now + CHECK_PAUSE_SECONDS

    def _queue_of(self, workload: Workload) -> str:
        """Return the ClusterQueue in which the Workload has quota, or had it last."""
        memory = self._memory.get(workload.metadata.uid)
        admission = workload.status.admission or (memory.admission if memory is not None else None)
        return admission.cluster_queue if admission is not None else ""
