"""``kubectl dra why workload/NAME``: the verdict of an admission check about a Workload, its reason, and remedies.

The operator's own planner answers whether the pods fit now, beside earlier promises. Remedies are for the first pod
without a place, with the others placed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from dra_api import kueue
from dra_api.kueue import AdmissionCheck, ResourceFlavor, Workload
from dra_api.quota import ResourceQuota
from dra_api.resource import ResourceClaim

from dra_operator.admission.api import claims_named, templates_named
from dra_operator.admission.planner import CheckAnswers, CheckRound, Planner, ViewSettings
from dra_operator.admission.pod_sets import copies_of, planned_sets
from dra_operator.admission.promises import Outcome, PromisedWorkload
from dra_operator.admission.workloads import (
    CONTROLLER_NAME,
    CheckStage,
    CheckState,
    own_checks,
    rank_of_promise,
    runs_elsewhere,
    stage_of,
)
from dra_operator.allocator import DEFAULT_BUDGET_STEPS, DEVICE_ORDERS
from dra_operator.cache import ClaimTemplate
from dra_operator.commands.placing import NotPlaced, Placing
from dra_operator.commands.simulated import ClaimQuotas
from dra_operator.kubectl.answer import Problem
from dra_operator.kubectl.facts import age
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.pipeline import Pipeline, pipeline
from dra_operator.kubectl.settings import Settings
from dra_operator.scheduling import STRATEGIES
from dra_operator.sources.kind_table import OF_KUEUE
from dra_operator.sources.kinds import WATCHED
from dra_operator.wording import counted, listed

from .changes import Report
from .waiting import why_waiting

T = TypeVar("T", bound=ResourceClaim | ClaimTemplate)
ROLE: Final = (
    "the ClusterRole dra-viewer-admission in manifests/components/admission/rbac.yaml allows it: have it bound to you"
)
KUEUE_FINALIZER: Final = "kueue.x-k8s.io/resource-in-use"
CHECKS: Final = "admissionchecks.kueue.x-k8s.io"
PROMISE_SECONDS: Final = 300.0
"""Seconds for which a promise counts: the default of the setting ``admission-promise``."""
SHOWN_WORKLOAD_NODES: Final = 8


def why_workload(seen: Observed, settings: Settings, name: str, missing: Sequence[str], seconds: float) -> Report:
    """Return the report on one Workload. ``missing`` are kinds without which no node can be asked. Raises Problem."""
    key = f"{seen.namespace}/{name}"
    workload = seen.one(Workload, key)
    if workload is None:
        why = seen.unseen.get("workloads.kueue.x-k8s.io", "")
        if why and not why.startswith("read only in"):
            raise Problem(f"{why}; {ROLE}" if "forbidden" in why else why)
        raise Problem(f"there is no workload {name} in namespace {seen.namespace}")
    [workload] = seen.whole([workload])
    report = Report([f"workload {key} {_state(workload)}"])
    report.add(_checks(seen, workload))
    if workload.metadata.deletion_timestamp is not None:
        report.object_to(_ending(seen, workload))
        return report
    if workload.settled:
        report.is_clear = workload.spec.active is not False
        return report
    if runs_elsewhere(workload, own_checks(seen.every(AdmissionCheck))):
        where = workload.status.cluster_name
        report.say(f"MultiKueue runs its pods in another cluster{f', {where}' if where else ''}: ask there", indent=2)
        report.is_clear = True
        return report
    if missing:
        report.object_to(f"whether its pods fit now is not known without {listed(missing)}")
        return report
    _say_fit(report, seen, settings, workload, seconds)
    return report


def _state(workload: Workload) -> str:
    if workload.settled:
        return workload.settled
    if workload.has("Admitted"):
        return "is admitted"
    if workload.has_quota:
        return "has quota, and waits for its admission checks"
    requeue = workload.status.requeue_state
    if requeue is not None and requeue.requeue_at:
        return f"has no quota: it is tried again when freed devices suffice, and looked at before {requeue.requeue_at}"
    said = next((it for it in workload.status.conditions or () if it.type == "QuotaReserved"), None)
    return f"waits for quota{f': {said.message}' if said is not None and said.message else ''}"


def _ending(seen: Observed, workload: Workload) -> str:
    """Say that the Workload is being deleted, and what keeps it."""
    meta = workload.metadata
    since = age(meta.deletion_timestamp or "", seen.taken) or "a while"
    when = f"it was deleted {since} ago, and gets no place any more"
    if not meta.finalizers:
        return when
    own = "; Kueue removes its own one, unless it is down" if KUEUE_FINALIZER in meta.finalizers else ""
    return f"{when}; it is kept by its finalizers: {listed(meta.finalizers)}{own}"


def _checks(seen: Observed, workload: Workload) -> Iterator[str]:
    known = {it.metadata.name: it for it in seen.every(AdmissionCheck)}
    ours = own_checks(known.values()).known
    states = workload.status.admission_checks or ()
    for state in states:
        whose = "" if state.name in ours or state.name not in known else ", of another controller,"
        since = f" since {state.last_transition_time}" if state.last_transition_time else ""
        text = f": {state.message}" if state.message else ""
        yield f"admission check {state.name}{whose} is {state.state or 'Pending'}{since}{text}"
        if state.name in ours and state.retry_count:
            yield f"  it was retried {counted(state.retry_count, 'time')}"
        if state.state in ("", CheckState.PENDING) and CHECKS not in seen.unseen:
            yield from _unanswered(state.name, known.get(state.name))
    evicted = next((it for it in workload.status.conditions or () if it.type == "Evicted"), None)
    if evicted is not None and evicted.status == "True" and evicted.message:
        yield f"it was evicted, {evicted.reason}: {evicted.message}"
    if not any(state.name in ours for state in states):
        named = "names none of the operator" if ours else "is asked of no check of the operator"
        alone = "" if states else ": its quota is all that Kueue looks at"
        yield f"its queue {named}{alone} (docs/kueue.md)"


def _unanswered(name: str, check: AdmissionCheck | None) -> Iterator[str]:
    """Say why nobody answers a check, if that is so."""
    if check is None:
        yield f"  there is no AdmissionCheck {name}: create it, or correct admissionChecksStrategy of the ClusterQueue"
        return
    active = next((it for it in check.status.conditions or () if it.type == "Active"), None)
    if active is not None and active.status == "True":
        return
    if active is not None and active.message:
        yield f"  nobody answers it: {active.message}"
    elif check.spec.controller_name == CONTROLLER_NAME:
        yield "  nobody answers it: no operator runs with --controllers auto,admission (docs/kueue.md)"
    else:
        yield (
            f"  nobody answers it: no controller {check.spec.controller_name or '<none>'} has taken it; that of the "
            f"operator is {CONTROLLER_NAME}"
        )


def _say_fit(report: Report, seen: Observed, settings: Settings, workload: Workload, seconds: float) -> None:
    made = pipeline(seen, settings)
    answers, uid = _answers(made, settings.completed(seen), workload), workload.metadata.uid
    outcome = answers.promised.get(uid) or answers.candidates.get(uid)
    promised = [it for it in answers.promised.values() if it.workload.key != workload.key]
    if outcome is None:
        report.say("all of its pods have nodes", indent=2)
        return
    if promised:
        others = counted(len(promised), "other workload")
        have, come = ("has", "comes") if len(promised) == 1 else ("have", "come")
        names = listed(it.workload.key for it in promised)
        report.say(f"{others} that Kueue has admitted and that {have} not started {come} first: {names}", indent=2)
    if outcome.fits:
        nodes = listed(dict.fromkeys(seat.node for seat in outcome.seats), SHOWN_WORKLOAD_NODES)
        report.say(f"all of its pods fit now{f', on {nodes}' if nodes else ''}", indent=2)
        report.is_clear = workload.has("Admitted") or workload.has_quota
        return
    never = ", not even in an empty cluster" if outcome.fits_never or outcome.is_final else ""
    report.object_to(f"its pods do not fit now{never}: {outcome.reason}")
    with made.pausing.within(seconds):
        _say_help(report, made, promised, workload)


def _answers(made: Pipeline, settings: Settings, workload: Workload) -> CheckAnswers:
    """Ask the operator's planner about the Workload, after all earlier promises."""
    seen = made.seen
    names = own_checks(seen.every(AdmissionCheck))
    view = ViewSettings(
        settings.scoring_strategy or STRATEGIES[0], DEFAULT_BUDGET_STEPS, settings.device_order or DEVICE_ORDERS[0]
    )
    stages = {it.key: stage_of(it, names, seen.taken, PROMISE_SECONDS) for it in seen.every(Workload)}
    keeping = (CheckStage.PROMISED, CheckStage.LATE)
    # An admitted Workload whose promise is over may have pods that run, and does not need room for them once more.
    promised = [
        it
        for it in seen.every(Workload)
        if stages[it.key] in keeping or (it.key == workload.key and it.has("Admitted") and it.has_quota)
    ]
    promised = sorted(seen.whole(promised), key=lambda it: rank_of_promise(it, names.known, seen.taken))
    is_promised = any(it.key == workload.key for it in promised)
    kinds = [kind for kind in WATCHED.values() if kind not in OF_KUEUE.values()]
    planner = Planner(made.cluster, view, [obj for kind in kinds for obj in made.cluster.store_of(kind)])
    return planner.answer(
        CheckRound(
            changes=(),
            held={},
            flying=(),
            assumed=(),
            flavors={it.metadata.name: it for it in seen.every(ResourceFlavor)},
            promised=[PromisedWorkload(it) for it in promised],
            candidates=[] if is_promised else [workload],
            backing_off=(),
            now=seen.taken,
            templates=_aside(made.cluster.templates.get, made.template, templates_named, [*promised, workload]),
            claims=_aside(made.cluster.claims.get, made.claim, claims_named, [*promised, workload]),
        )
    )


def _aside(
    known: Callable[[str], T | None],
    whole: Callable[[str], T | None],
    named: Callable[[Workload], Iterator[str]],
    workloads: Iterable[Workload],
) -> dict[str, T]:
    """Return the objects that the Workloads name and of which the view has the brief form, as the server has them."""
    keys = {key for workload in workloads for key in named(workload)}
    found = ((key, brief, whole(key)) for key in sorted(keys) if (brief := known(key)) is not None)
    return {key: it for key, brief, it in found if it is not None and it is not brief}


def _say_help(report: Report, made: Pipeline, promised: Sequence[Outcome], workload: Workload) -> None:
    """Say what would help the first pod that has no place, with the promises kept and the pods before it placed."""
    seen = made.seen
    flavors = {it.metadata.name: it for it in seen.every(ResourceFlavor)}
    try:
        sets = planned_sets(workload, flavors)
    except kueue.WorkloadError:
        return
    quotas = ClaimQuotas(seen.every(ResourceQuota), seen.every(ResourceClaim), lambda _: "")
    placing = Placing(made.cluster, made.allocator, seen.templates, quotas, lambda: made.now, made.pausing)
    for outcome in promised:
        for seat in outcome.seats:
            made.cluster.nominated_pods.is_on = True
            made.cluster.nominate(seat)
    for pod in copies_of(made.cluster, workload, sets):
        mark = placing.mark
        if isinstance(placing.place_alone(pod), NotPlaced):
            placing.undo(mark)
            given, hindrance = placing.with_claims(pod)
            if hindrance is None:
                report.take_in(why_waiting(made, given, places=False), indent=2)
            break
    placing.undo(0)
