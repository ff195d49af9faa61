"""What a Workload of Kueue waits for, and what is written into it.

Kueue evicts a Workload after *Retry*, and resets the check to Pending. ``requeueAfterSeconds`` of a check in *Retry*
sets ``status.requeueState.requeueAt``, and before that time Kueue does nothing with the Workload: it neither evicts it
nor gives it quota. So a *Retry* with a back-off would keep its quota until that is over (0.15 to 0.19). Therefore
*Retry* is written twice: without a back-off, so that Kueue evicts at once, and with one as soon as it has evicted. Then
the check is set to Pending, with the reason as its message.

The operator ends each back-off itself. Kueue up to 0.19.2 puts a Workload whose wait it ends into its queue without
the devices of its claims, and admits it without quota, flavors and checks if its scheduler is quick (issue 13930 of
kubernetes-sigs/kueue). So the back-off that is written is longer than the one that is meant. When that one is over and
its pods fit nowhere, *Retry* is written once more, with a longer back-off, which Kueue takes over at once.

Kueue does not look at the check again before the Workload has quota. So the state of a check alone does not say what
happens to a Workload: the conditions do, and the back-off.
Source: pkg/workload and pkg/controller/core of kubernetes-sigs/kueue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import MAXYEAR, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

from dra_api.codec import to_dict
from dra_api.kueue import REPLACED_SLICE, AdmissionCheck, AdmissionCheckState, Workload
from dra_api.meta import Condition
from dra_api.values import format_time, parse_time
from dra_ledger.errors import shortened

from dra_operator.scheduling.state import LONGEST_WORDS

CONTROLLER_NAME: Final = "dra.kopf.dev/fit"
"""``spec.controllerName`` of the checks that are answered here."""
MULTIKUEUE: Final = "kueue.x-k8s.io/multikueue"
"""``spec.controllerName`` of the checks that send a Workload to another cluster."""
ADMISSION_CHECK: Final = "AdmissionCheck"
"""The reason of Kueue's condition Evicted after *Retry*."""
CHECK_MESSAGE_CHARACTERS: Final = 4000
"""Of a check. Kueue takes 32,768 bytes, four for a character."""
FIRST_BACKOFF_SECONDS: Final = 60.0
"""Freed devices end a back-off. One that ends before that puts its Workload in the way of those that fit."""
DOUBLED_ATTEMPTS: Final = 20
KUEUE_LATER_SECONDS: Final = 60.0
"""Seconds after the end of a back-off at which Kueue would end it, if the operator did not."""
LONGEST_RETURNING_SECONDS: Final = 20.0
"""Seconds after a back-off until a Workload gets its turn all the same: the planner has not reached it, or Kueue has
not taken over the longer wait."""
KUEUE_SOONER_SECONDS: Final = 5.0
"""Seconds before Kueue would end a wait that is not by a check of ours, as for pods that were not ready in time."""


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """``promise``: the seconds after which a promise is over. ``backoff``: the longest seconds between two tries.

    ``never``: the seconds for which a Workload has to be too large for the cluster before it is rejected. ``watched``:
    the seconds for which this process has to have seen the cluster before that. An operator most likely starts while
    the nodes of a cluster are replaced one by one: its own is one of them. Each may be away for half an hour.
    """

    promise: float = 300.0
    backoff: float = 600.0
    never: float = 60.0
    watched: float = 3600.0


class CheckState(StrEnum):
    """Kueue's words."""

    PENDING = "Pending"
    READY = "Ready"
    RETRY = "Retry"
    REJECTED = "Rejected"


class CheckStage(StrEnum):
    """What a Workload needs from the controller."""

    CANDIDATE = "candidate"
    """It has quota, and a check is pending."""
    REPLACING = "replacing"
    """The same, and Kueue has not finished the slice of its job that it replaces."""
    PROMISED = "promised"
    """All its checks are ready, and it has quota."""
    LATE = "late"
    """It is admitted, and a check is pending that its queue did not name then."""
    BACKING_OFF = "backing off"
    """It was evicted after *Retry*, and Kueue waits before it tries again."""
    WAITING = "waiting"
    """Kueue waits before it tries again, and not because of us."""
    RETURNING = "returning"
    """Its back-off is over. It gets its turn if its pods fit, with whatever flavors; else it goes on waiting."""
    DUE = "due"
    """Its wait is over, and Kueue does not know it yet."""
    ELSEWHERE = "elsewhere"
    """A check is pending, and the pods run in another cluster."""
    STALE = "stale"
    """A check is still ready, and the quota that it was about is gone."""
    NONE = "none"
    """Nothing."""


class CheckNames(NamedTuple):
    """``active``: the checks that are answered here. ``known``: also checks of ours that are not answered, or deleted.

    A promise stays when its check gets parameters, or is deleted: Kueue leaves the Workload admitted. ``dispatching``:
    the checks by which MultiKueue sends Workloads to other clusters, also deleted ones.
    """

    active: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    dispatching: frozenset[str] = frozenset()

    def after(self, checks: Iterable[AdmissionCheck]) -> CheckNames:
        """Return the names by these checks, after the names of ``self``."""
        active, ours, theirs = set[str](), set[str](), set[str]()
        dispatching = set[str]()
        for check in checks:
            name = check.metadata.name
            if check.spec.controller_name == MULTIKUEUE:
                dispatching.add(name)
            (ours if check.spec.controller_name == CONTROLLER_NAME else theirs).add(name)
            if name in ours and is_active(check):
                active.add(name)
        others = (ours | theirs) - dispatching
        return CheckNames(
            frozenset(active),
            frozenset(ours | (self.known - theirs)),
            frozenset(dispatching | (self.dispatching - others)),
        )


def own_checks(checks: Iterable[AdmissionCheck]) -> CheckNames:
    return CheckNames().after(checks)


def is_active(check: AdmissionCheck) -> bool:
    """Return whether the check can be answered: it has no parameters, of which there are none."""
    return check.spec.parameters is None


def states(workload: Workload, names: Collection[str]) -> Iterator[tuple[int, AdmissionCheckState]]:
    """Yield the states of these checks, each with its place in the list."""
    for number, state in enumerate(workload.status.admission_checks or ()):
        if state.name in names:
            yield number, state


def stage_of(workload: Workload, names: CheckNames, now: datetime, promise_seconds: float) -> CheckStage:
    """Return what the Workload needs. A promise that is over before Kueue admitted the Workload is decided anew."""
    its = [state for _, state in states(workload, names.known)]
    is_over = workload.has("Finished") or workload.spec.active is False
    if not its or is_over or workload.metadata.deletion_timestamp is not None:
        return CheckStage.NONE
    is_pending = any(state.state == CheckState.PENDING and state.name in names.active for state in its)
    if runs_elsewhere(workload, names):
        return CheckStage.ELSEWHERE if is_pending and workload.has_quota else CheckStage.NONE
    if not workload.has_quota:
        if _is_stale(workload, names.active):
            return CheckStage.STALE
        return _stage_of_wait(workload, names.active, now)
    if any(state.state in (CheckState.RETRY, CheckState.REJECTED) for state in its):
        return CheckStage.NONE
    is_admitted = workload.has("Admitted")
    if is_pending:
        # Its pods may run. Kueue would evict them if they did not fit a second time.
        return CheckStage.LATE if is_admitted else CheckStage.CANDIDATE
    if not any(state.state == CheckState.READY for state in its):
        return CheckStage.NONE
    if (now - promised_at(workload, names.known, now)).total_seconds() < promise_seconds:
        return CheckStage.PROMISED
    is_answered = any(state.name in names.active for state in its)
    return CheckStage.CANDIDATE if is_answered and not is_admitted else CheckStage.NONE


def _stage_of_wait(workload: Workload, names: Collection[str], now: datetime) -> CheckStage:
    left = wait_left(workload, names, now)
    if left is None:
        return CheckStage.NONE
    if not _is_ours(workload, names):
        return CheckStage.WAITING if left > 0 else CheckStage.DUE
    if left > 0:
        return CheckStage.BACKING_OFF
    if left <= -LONGEST_RETURNING_SECONDS:
        return CheckStage.DUE
    return CheckStage.RETURNING if is_taken_over(workload, names) else CheckStage.WAITING


def runs_elsewhere(workload: Workload, names: CheckNames) -> bool:
    """Return whether its pods run in another cluster: MultiKueue has sent it there, or is about to."""
    return bool(workload.status.cluster_name) or any(states(workload, names.dispatching))


def _is_stale(workload: Workload, names: Collection[str]) -> bool:
    """Return whether a check is ready without quota. With its next quota Kueue would admit the Workload unasked.

    Kueue takes the quota of a Workload that waits for other checks when its queue is stopped, is deleted or cannot
    account for it, and resets no check then, as it does in an eviction.
    """
    has_none = workload.status.admission is None and not workload.has("QuotaReserved")
    return has_none and any(state.state == CheckState.READY for _, state in states(workload, names))


def replaced_slice(workload: Workload) -> str:
    """Return the key of the Workload that this one replaces, with more pods of the same job, or an empty text.

    Kueue finishes that one as soon as this one has quota, and the pods of both are the same.
    """
    return (workload.metadata.annotations or {}).get(REPLACED_SLICE, "")


def is_replacing(workload: Workload, replaced: Workload | None) -> bool:
    """Return whether Kueue is about to finish the other Workload, since this one has quota.

    The annotation may name any other: Kueue finishes only one of the same namespace and queue.
    """
    if replaced is None or replaced is workload or not replaced.has_quota or replaced.has("Finished"):
        return False
    queues = {it.status.admission.cluster_queue for it in (workload, replaced) if it.status.admission is not None}
    return replaced.metadata.namespace == workload.metadata.namespace and len(queues) == 1


def promised_at(workload: Workload, names: Collection[str], now: datetime) -> datetime:
    """Return when the promise began: with the last check that got ready, or with the admission if that was later."""
    times = [state.last_transition_time for _, state in states(workload, names)]
    times += [it.last_transition_time for it in workload.status.conditions or () if it.type == "Admitted"]
    # No time can be added to the last year that there is.
    known = [it for text in times if text and (it := parse_time(text)) is not None and it.year < MAXYEAR]
    return max(known, default=now)


def after_eviction(workload: Workload, names: Collection[str], back_off: CheckDecision | None) -> CheckDecision | None:
    """Return what is to be written into a Workload that Kueue has evicted after *Retry*, or None if it is all there.

    That is first the back-off. When Kueue has taken it over, the check is pending again: in *Retry* it would have Kueue
    evict the Workload once more when the back-off is over.
    """
    evicted, its = _eviction(workload), [state for _, state in states(workload, names)]
    if not its or evicted is None or evicted.status != "True" or evicted.reason != ADMISSION_CHECK:
        return None
    if _requeue_at(workload) is not None and any(state.state == CheckState.RETRY for state in its):
        return CheckDecision(CheckState.PENDING, its[0].message) if is_taken_over(workload, names) else None
    return back_off if all(state.state == CheckState.PENDING for state in its) else None


def is_taken_over(workload: Workload, names: Collection[str]) -> bool:
    """Return whether Kueue waits for as long as the checks in *Retry* say. It takes over a longer wait at once."""
    due = _requeue_at(workload)
    said = (it for _, it in states(workload, names) if it.state == CheckState.RETRY and it.requeue_after_seconds)
    return due is None or all(
        began is None or (due - began).total_seconds() >= (it.requeue_after_seconds or 0)
        for it in said
        for began in [parse_time(it.last_transition_time or "")]
    )


def evicted_at(workload: Workload) -> str:
    """Return when Kueue evicted it, by Kueue's clock, or an empty text.

    A back-off begins then. Kueue takes over none that is over by its clock, and would give quota again at once, and
    again and again, if the clock of this process were late.
    """
    evicted = _eviction(workload)
    return (evicted.last_transition_time or "") if evicted is not None else ""


def _eviction(workload: Workload) -> Condition | None:
    return next((it for it in workload.status.conditions or () if it.type == "Evicted"), None)


def returned_at(workload: Workload) -> datetime | None:
    """Return when its back-off was over, by Kueue's clock."""
    due = _requeue_at(workload)
    return due - timedelta(seconds=KUEUE_LATER_SECONDS) if due is not None else None


def _requeue_at(workload: Workload) -> datetime | None:
    requeue = workload.status.requeue_state
    return parse_time(requeue.requeue_at) if requeue is not None and requeue.requeue_at else None


def is_in_queue(workload: Workload) -> bool:
    """Return whether Kueue should try the Workload: it has no quota, no wait, and has not ended."""
    requeue = workload.status.requeue_state
    has_ended = workload.spec.active is False or workload.has("Finished")
    return not (has_ended or workload.has_quota or (requeue is not None and requeue.requeue_at))


def wait_left(workload: Workload, names: Collection[str], now: datetime) -> float | None:
    """Return the seconds until the operator ends the wait of the Workload, or None if there is none that it may end."""
    due = _requeue_at(workload)
    if due is None or due <= now or not any(states(workload, names)):
        return None
    others = (it for it in workload.status.admission_checks or () if it.name not in names)
    if any(it.state == CheckState.RETRY for it in others):
        return None  # Kueue would begin the wait anew
    return (due - now).total_seconds() - (KUEUE_LATER_SECONDS if _is_ours(workload, names) else KUEUE_SOONER_SECONDS)


def _is_ours(workload: Workload, names: Collection[str]) -> bool:
    """Return whether Kueue waits because of a check of ours, and of no other controller's."""
    evicted = _eviction(workload)
    if evicted is None or evicted.reason != ADMISSION_CHECK:
        return False
    others = (it for it in workload.status.admission_checks or () if it.name not in names)
    return not any(it.requeue_after_seconds for it in others)


def rank(workload: Workload) -> tuple[int, str, str]:
    """Return the order of decisions: the highest priority first, then the oldest."""
    return -(workload.spec.priority or 0), workload.metadata.creation_timestamp or "", workload.key


def rank_of_promise(workload: Workload, names: Collection[str], now: datetime) -> tuple[int, str, str]:
    """Return the order in which promises are kept: a later one yields to those of its priority, and to higher ones."""
    since = promised_at(workload, names, now)
    return -(workload.spec.priority or 0), format_time(since), workload.key


def backoff_seconds(retries: int, longest: float) -> float:
    """Return the wait after so many retries in a row: it doubles each time."""
    return float(min(FIRST_BACKOFF_SECONDS * 2 ** min(retries, DOUBLED_ATTEMPTS), longest))


@dataclass(frozen=True, slots=True)
class CheckDecision:
    """The part of the check that is written. ``wait``: seconds for which Kueue does nothing with the Workload."""

    state: CheckState
    message: str
    wait: float | None = None


def waits_for_replaced(workload: Workload) -> CheckDecision:
    """Return the check's message until Kueue has finished the Workload that this one replaces."""
    return CheckDecision(
        CheckState.PENDING,
        f"Kueue has not finished workload {replaced_slice(workload)} yet, which this one says that it replaces",
    )


def decision_patch(
    workload: Workload, names: Collection[str], decision: CheckDecision, now: str
) -> list[Mapping[str, Any]]:
    """Return a JSON patch of the status of this version of the Workload; a later version makes it a conflict."""
    wait = None if decision.wait is None else max(1, round(decision.wait))
    patch: list[Mapping[str, Any]] = [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": workload.metadata.resource_version}
    ]
    for number, before in states(workload, names):
        state = AdmissionCheckState(
            name=before.name,
            state=decision.state,
            last_transition_time=now,
            requeue_after_seconds=wait,
            retry_count=before.retry_count,
        )
        # The message is required, even an empty one.
        value = {**to_dict(state), "message": shortened(decision.message, CHECK_MESSAGE_CHARACTERS)}
        patch.append({"op": "replace", "path": f"/status/admissionChecks/{number}", "value": value})
    return patch


def follow_up_patch(
    workload: Workload, names: Collection[str], decision: CheckDecision, now: str
) -> list[Mapping[str, Any]]:
    """Return a JSON patch of the status of a Workload that Kueue has evicted, in this or a later version.

    Kueue writes the Workload several times meanwhile, and gives it quota again within milliseconds. The server refuses
    the patch from then on, or if anything else has become of the checks or of the eviction. A patch that arrives late
    finds the message of a later one.
    """
    conditions = workload.status.conditions or ()
    at, evicted = next((at, it) for at, it in enumerate(conditions) if it.type == "Evicted")
    expected: dict[str, Any] = {"/metadata/uid": workload.metadata.uid}
    for field in ("type", "status", "reason", "lastTransitionTime"):
        expected[f"/status/conditions/{at}/{field}"] = to_dict(evicted).get(field)
    for number, state in states(workload, names):
        said = {"name": state.name, "state": state.state, "message": state.message}
        if len(state.message) >= LONGEST_WORDS:
            del said["message"]  # the cache may have cut it
        expected |= {f"/status/admissionChecks/{number}/{field}": value for field, value in said.items()}
    tests = [{"op": "test", "path": path, "value": value} for path, value in expected.items()]
    return [*tests, *decision_patch(workload, names, decision, now)[1:]]


def requeue_patch(workload: Workload, names: Collection[str], why: str, now: str) -> list[Mapping[str, Any]]:
    """Return a JSON patch that ends the wait in this version of the Workload; ``why`` becomes the check's message."""
    patch = decision_patch(workload, names, CheckDecision(CheckState.PENDING, why), now)
    return [*patch, {"op": "remove", "path": "/status/requeueState/requeueAt"}]


def active_condition(check: AdmissionCheck, now: str, *, is_paused: bool = False) -> Condition:
    """Return the condition by which Kueue knows that somebody answers the check; ``is_paused``: not in this moment."""
    if is_paused:
        status, reason = "False", "TriesAgain"
        message = "for a second, so that Kueue tries jobs whose back-off has ended"
    elif is_active(check):
        status, reason, message = "True", "Active", "The admission check is active"
    else:
        status, reason = "False", "ParametersNotSupported"
        message = f"the controller {CONTROLLER_NAME} takes no parameters: remove spec.parameters"
    before = next((it for it in check.status.conditions or () if it.type == "Active"), None)
    since = before.last_transition_time if before is not None and before.status == status else None
    return Condition(
        type="Active",
        status=status,
        reason=reason,
        message=message,
        last_transition_time=since or now,
        observed_generation=check.metadata.generation,
    )


def active_patch(check: AdmissionCheck, now: str, *, is_paused: bool = False) -> Mapping[str, Any] | None:
    """Return a merge patch of the check's conditions, or None if they are right."""
    wanted = active_condition(check, now, is_paused=is_paused)
    conditions = check.status.conditions or ()
    if wanted in conditions:
        return None
    others = [to_dict(it) for it in conditions if it.type != wanted.type]
    version = {"resourceVersion": check.metadata.resource_version}
    return {"metadata": version, "status": {"conditions": [*others, to_dict(wanted)]}}
