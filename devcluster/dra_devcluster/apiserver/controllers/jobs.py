"""Workloads that finish: Jobs, and CronJobs that make them.

Each pod of a Job has the finalizer ``batch.kubernetes.io/job-tracking`` until it is counted, so deleted pods count as
well. A sync counts finished pods, decides whether the Job is finished, and makes or deletes pods otherwise.
Pods that the Job itself deletes, because it is suspended or has too many, lose the finalizer first and do not count.

A finished Job gets ``SuccessCriteriaMet`` or ``FailureTarget`` at once, and ``Complete`` or ``Failed`` when no pod
terminates any more. After a failure new pods wait for 10 s, twice as long after each further one, at most 10 minutes.

A CronJob makes one Job for the last time of its schedule that is due: times that were missed before it are left out.

Spec: the Job and CronJob controllers of Kubernetes 1.36; `kinds.workloads.NO_EFFECT` is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Final

from dra_api.values import format_time, now, parse_time

from dra_devcluster.apiserver.controllers import worker
from dra_devcluster.apiserver.controllers.workloads import (
    BATCH_PODS,
    Owned,
    WorkloadController,
    controller_of,
    owner_reference,
)
from dra_devcluster.apiserver.errors import Json, StatusError
from dra_devcluster.apiserver.kinds.workloads import JOB_NAME, Schedule
from dra_devcluster.apiserver.metadata import dig
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.selectors import is_ready
from dra_devcluster.apiserver.store import Change, Collection, Key, Stored
from dra_devcluster.apiserver.verbs.write import DeleteOptions, create, delete, update

TRACKING: Final = "batch.kubernetes.io/job-tracking"
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
BACKOFF_SECONDS: Final = 10.0
_MOST_BACKOFF_SECONDS: Final = 600.0
_MOST_DOUBLING_COUNT: Final = 10  # more would only make large numbers
_SCHEDULED: Final = "batch.kubernetes.io/cronjob-scheduled-timestamp"
_OUTCOMES: Final = {"SuccessCriteriaMet": "Complete", "FailureTarget": "Failed"}
_OWN_CONTROLLER: Final = "kubernetes.io/job-controller"


@dataclass(frozen=True, slots=True, eq=False)
class JobPod:
    """A pod of a Job, as one look at it finds it; sets of them are cheap."""

    stored: Stored
    content: Json

    @property
    def is_tracked(self) -> bool:
        return TRACKING in (self.content["metadata"].get("finalizers") or ())

    @property
    def phase(self) -> str:
        return str(dig(self.content, "status.phase") or "")

    @property
    def is_active(self) -> bool:
        return not self.stored.finalizing and self.phase not in ("Succeeded", "Failed")

    @property
    def is_terminating(self) -> bool:
        return self.stored.finalizing and self.phase not in ("Succeeded", "Failed")

    @property
    def index(self) -> int:
        text = dig(self.content, "metadata.annotations") or {}
        try:
            return int(text.get(COMPLETION_INDEX, -1))
        except ValueError:
            return -1

    def has_failed(self, *, waits: bool) -> bool:
        """Whether it counts as failed; ``waits``: a pod on a node only when its containers have stopped."""
        if self.phase == "Failed":
            return True
        on_node = bool(dig(self.content, "spec.nodeName"))
        return self.is_terminating and not (waits and on_node)


@dataclass(slots=True)
class PodBackoff:
    """The pause before new pods, after failures since the last success."""

    failures: int = 0
    last: float = 0.0

    def left(self, moment: float) -> float:
        """Return the seconds until pods may be made; 0 or less if they may."""
        if not self.failures:
            return 0.0
        pause = min(_MOST_BACKOFF_SECONDS, BACKOFF_SECONDS * float(2 ** min(self.failures - 1, _MOST_DOUBLING_COUNT)))
        return self.last + pause - moment


class JobController(WorkloadController):
    group = "batch"
    kind = "Job"
    plural = "jobs"

    def __init__(self, registry: Registry) -> None:
        self._backoffs: dict[str, PodBackoff] = {}
        super().__init__(registry)

    def see(self, collection: Collection, change: Change) -> None:
        super().see(collection, change)
        if collection is self.dependents and (name := change.stored.labels.get(JOB_NAME)):
            self.add((change.stored.namespace, name))  # one whose Job is gone has no owner any more
        if collection is self.objects and change.type == "DELETED":
            self._backoffs.pop(change.stored.uid, None)

    def handle(self, key: Key) -> None:
        stored = self.objects.get(*key)
        self._forget_orphans(key, stored.uid if stored else "")
        if stored is None:
            return
        job = stored.decode()
        if job["spec"].get("managedBy", _OWN_CONTROLLER) == _OWN_CONTROLLER:
            self.reconcile(stored, job)

    def reconcile(self, stored: Stored, obj: Json) -> None:
        pods = self._pods_of(stored)
        if finished := condition(obj, *_OUTCOMES.values()):
            self._untrack(pods)
            self._backoffs.pop(stored.uid, None)
            self._expire(stored, obj, finished)
            return
        sync = _Sync(obj, pods)
        if sync.spec["suspend"]:
            sync.status.pop("startTime", None)
        else:
            sync.status.setdefault("startTime", now())
        backoff = self._backoffs.setdefault(stored.uid, PodBackoff())
        sync.count(backoff, asyncio.get_running_loop().time())
        outcome = sync.outcome()
        if outcome is None:
            self._manage(stored, obj, sync, backoff)
            outcome = sync.completion()
        else:
            for pod in sync.active[:BATCH_PODS]:
                self.delete(pod.stored)
            if outcome[0] == "FailureTarget":
                sync.fail_all()
        sync.conclude(outcome, self._pods_of(stored))
        # The Job first: a pod that is not tracked any more has to be counted.
        if sync.status != (obj.get("status") or {}):
            self.set_status(stored, obj, sync.status)
        self._untrack(sync.counted)
        if finished := condition({"status": sync.status}, *_OUTCOMES.values()):
            is_failure = finished["type"] == "Failed"
            reason = finished["reason"] if is_failure else "Completed"
            self.report(obj, reason, finished["message"], "Warning" if is_failure else "Normal")
        elif (left := sync.seconds_left()) is not None:
            self.add_later(stored.key, left)

    def _manage(self, stored: Stored, job: Json, sync: _Sync, backoff: PodBackoff) -> None:
        missing = sync.missing()
        if sync.surplus:
            for pod in sync.surplus[:BATCH_PODS]:
                self._untrack([pod])
                if current := self.dependents.get(*pod.stored.key):
                    self.delete(current)
            return
        if not missing or stored.finalizing:
            return
        if (left := backoff.left(asyncio.get_running_loop().time())) > 0:
            self.add_later(stored.key, left)
            return
        for index in missing:
            if not self._create(job, index):
                return

    def _create(self, job: Json, index: int) -> bool:
        spec, meta = job["spec"]["template"]["spec"], {"finalizers": [TRACKING]}
        if index < 0:
            return self.create_pod(job, spec, {}, meta)
        name, mark = job["metadata"]["name"], {COMPLETION_INDEX: str(index)}
        spec = {**deepcopy(spec), "hostname": f"{name}-{index}"}
        source = {"fieldRef": {"fieldPath": f"metadata.labels['{COMPLETION_INDEX}']"}}
        for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
            variables = container.setdefault("env", [])
            if all(variable.get("name") != "JOB_COMPLETION_INDEX" for variable in variables):
                variables.append({"name": "JOB_COMPLETION_INDEX", "valueFrom": source})
        noted = {**(dig(job, "spec.template.metadata.annotations") or {}), **mark}
        return self.create_pod(job, spec, mark, {**meta, "generateName": f"{name}-{index}-", "annotations": noted})

    def _pods_of(self, job: Stored) -> list[JobPod]:
        return [JobPod(*owned) for owned in self.owned_by(job, also_in_deletion=True)]

    def _untrack(self, pods: Iterable[JobPod]) -> None:
        """Remove the finalizer; the pod may have changed or gone since it was read."""
        for pod in pods:
            stored = self.dependents.get(*pod.stored.key)
            if stored is None or stored.uid != pod.stored.uid:
                continue
            content = stored.decode()
            kept = [name for name in content["metadata"].get("finalizers") or () if name != TRACKING]
            if len(kept) < len(content["metadata"].get("finalizers") or ()):
                content["metadata"]["finalizers"] = kept
                update(self.write("", "pods", stored.namespace, "update"), stored, content)

    def _forget_orphans(self, key: Key, uid: str) -> None:
        """Let go of pods whose Job is gone."""
        namespace, name = key
        self._untrack(
            JobPod(stored, content)
            for stored in list(self.dependents.all(namespace))
            if stored.labels.get(JOB_NAME) == name and controller_of(content := stored.decode()).get("uid") != uid
        )

    def _expire(self, stored: Stored, job: Json, finished: Json) -> None:
        seconds = job["spec"].get("ttlSecondsAfterFinished")
        since = parse_time(finished["lastTransitionTime"])
        if seconds is None or since is None or stored.finalizing:
            return
        if (left := seconds - age(since)) > 0:
            self.add_later(stored.key, left)
            return
        options = DeleteOptions(propagation="Foreground", uid=stored.uid)
        delete(self.write(self.group, self.plural, stored.namespace, "delete"), stored, options)


class _Sync:
    """One look at a Job: what its pods make of its status."""

    def __init__(self, job: Json, pods: list[JobPod]) -> None:
        self.spec: Json = job["spec"]
        self.status: Json = deepcopy(job.get("status") or {})
        self.pods = pods
        self.active = [pod for pod in pods if pod.is_active]
        self.terminating = [pod for pod in pods if pod.is_terminating]
        self.surplus: list[JobPod] = []
        self.counted: list[JobPod] = []
        self.is_indexed = self.spec["completionMode"] == "Indexed"
        self.replaces_late = self.spec["podReplacementPolicy"] == "Failed"
        self._done = read_indexes(self.status.get("completedIndexes", ""), self.spec.get("completions") or 0)
        self._conditions: list[Json] = self.status.get("conditions") or []
        self._fatal = ""

    def count(self, backoff: PodBackoff, moment: float) -> None:
        """Count the pods that are over since the last look."""
        policy = dig(self.spec, "podFailurePolicy.rules") or ()
        for pod in self.pods:
            if not pod.is_tracked:
                continue
            if pod.phase == "Succeeded":
                self.counted.append(pod)
                backoff.failures = 0
                if not self.is_indexed:
                    self._add("succeeded")
                elif 0 <= pod.index < self.spec["completions"]:
                    self._done.append(range(pod.index, pod.index + 1))
            elif pod.has_failed(waits=self.replaces_late):
                self.counted.append(pod)
                action, text = judged(pod.content, policy)
                if action == "FailJob":
                    self._fatal = self._fatal or text
                if action != "Ignore":
                    self._add("failed")
                    backoff.failures += 1
                    backoff.last = moment
        if self.is_indexed and self._done:
            self._done = joined(self._done)
            self.status["succeeded"] = sum(map(len, self._done))
            self.status["completedIndexes"] = write_indexes(self._done)

    def _add(self, field: str) -> None:
        self.status[field] = self.status.get(field, 0) + 1

    def fail_all(self) -> None:
        """Count every pod that has not succeeded: the Job has failed, and they are being deleted."""
        counted = set(self.counted)
        for pod in self.pods:
            if pod.is_tracked and pod not in counted:
                self.counted.append(pod)
                self._add("failed")

    def outcome(self) -> tuple[str, str, str] | None:
        """Return the interim condition, with reason and message, of a Job that is to stop now, or None."""
        for interim in _OUTCOMES:
            if met := condition({"status": self.status}, interim):
                return interim, met["reason"], met["message"]
        if self._fatal:
            return "FailureTarget", "PodFailurePolicy", self._fatal
        limit = self.spec["backoffLimit"]
        restarts = sum(
            entry.get("restartCount", 0)
            for pod in self.active
            for field in ("initContainerStatuses", "containerStatuses")
            for entry in dig(pod.content, f"status.{field}") or ()
        )
        restarted = self.spec["template"]["spec"]["restartPolicy"] == "OnFailure" and restarts >= max(limit, 1)
        if self.status.get("failed", 0) > limit or restarted:
            return "FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        if (left := self.seconds_left()) is not None and left <= 0:
            return "FailureTarget", "DeadlineExceeded", "Job was active longer than specified deadline"
        return None

    def seconds_left(self) -> float | None:
        """Return the seconds until the deadline, or None if there is none."""
        started, seconds = parse_time(self.status.get("startTime")), self.spec.get("activeDeadlineSeconds")
        if started is None or seconds is None or self.spec["suspend"]:
            return None
        return float(seconds - age(started))

    def missing(self) -> list[int]:
        """Return the indexes of pods to make, -1 for pods without one; ``surplus`` are those to delete."""
        if self.spec["suspend"]:
            self.surplus = self.active
            return []
        succeeded, completions = self.status.get("succeeded", 0), self.spec.get("completions")
        wanted = min(self.spec["parallelism"], completions - succeeded) if completions is not None else None
        if wanted is None:
            wanted = len(self.active) if succeeded else self.spec["parallelism"]
        twice: set[JobPod] = set()
        seen: set[int] = set()
        for pod in self.active if self.is_indexed else ():
            is_done = any(pod.index in span for span in self._done)
            if is_done or pod.index in seen or not 0 <= pod.index < (completions or 0):
                twice.add(pod)
            seen.add(pod.index)
        others = sorted((pod for pod in self.active if pod not in twice), key=lambda pod: is_ready(pod.content))
        excess = max(0, len(others) - max(0, wanted))
        self.surplus = [*(pod for pod in self.active if pod in twice), *others[:excess]]
        busy = len(self.active) + (len(self.terminating) if self.replaces_late else 0)
        lack = min(max(0, wanted - busy), BATCH_PODS)
        if not self.is_indexed:
            return [-1] * lack
        if self.replaces_late:
            seen |= {pod.index for pod in self.terminating}
        free = (index for index in without(self._done, completions or 0) if index not in seen)
        return list(islice(free, lack))

    def completion(self) -> tuple[str, str, str] | None:
        """Return the interim condition of a Job that has succeeded, or None."""
        succeeded, completions = self.status.get("succeeded", 0), self.spec.get("completions")
        enough = succeeded > 0 if completions is None else succeeded >= completions
        if not enough or self.active:
            return None
        return "SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods"

    def conclude(self, outcome: tuple[str, str, str] | None, pods: list[JobPod]) -> None:
        """Write the numbers of pods as they are now, and the conditions."""
        active = [pod for pod in pods if pod.is_active]
        terminating = sum(pod.is_terminating for pod in pods)
        numbers = {"active": len(active), "ready": sum(is_ready(pod.content) for pod in active)}
        for field, number in numbers.items():
            self.status.pop(field, None)
            if number or field == "ready":
                self.status[field] = number
        self.status |= {"terminating": terminating, "uncountedTerminatedPods": {}}
        self._set("Suspended", self.spec["suspend"] and outcome is None, "JobSuspended", "Job suspended")
        if outcome is not None:
            interim, reason, message = outcome
            self._set(interim, True, reason, message)
            if not active and not terminating:
                self._set(_OUTCOMES[interim], True, reason, message)
        if self._conditions:
            self.status["conditions"] = self._conditions
        if met := condition({"status": self.status}, "Complete"):
            self.status.setdefault("completionTime", met["lastTransitionTime"])

    def _set(self, kind: str, holds: bool, reason: str, message: str) -> None:
        text = "True" if holds else "False"
        old = next((entry for entry in self._conditions if entry["type"] == kind), None)
        if (old is None and not holds) or (old is not None and old["status"] == text):
            return
        if not holds:
            reason, message = "JobResumed", "Job resumed"
        new = {"type": kind, "status": text, **dict.fromkeys(("lastProbeTime", "lastTransitionTime"), now())}
        new |= {"reason": reason, "message": message}
        self._conditions = [*(entry for entry in self._conditions if entry is not old), new]


def condition(obj: Json, *kinds: str) -> Json | None:
    """Return the first condition of these types that is true, or None."""
    conditions: list[Json] = dig(obj, "status.conditions") or []
    return next((entry for entry in conditions if entry["type"] in kinds and entry["status"] == "True"), None)


def judged(pod: Json, rules: Iterable[Json]) -> tuple[str, str]:
    """Return the action of the first rule that a failed pod matches, with the message of ``FailJob``."""
    meta = pod["metadata"]
    where = f"{meta['namespace']}/{meta['name']}"
    for number, rule in enumerate(rules):
        if codes := rule.get("onExitCodes"):
            for container, code in _exits(pod):
                named = codes.get("containerName") in (None, container)
                if named and (code in (codes.get("values") or ())) == (codes["operator"] == "In"):
                    how = f"failed with exit code {code} matching {rule['action']} rule at index {number}"
                    return rule["action"], f"Container {container} for pod {where} {how}"
        for wanted in rule.get("onPodConditions") or ():
            for found in dig(pod, "status.conditions") or ():
                if (found.get("type"), found.get("status")) == (wanted.get("type"), wanted.get("status")):
                    how = f"has condition {wanted['type']} matching {rule['action']} rule at index {number}"
                    return rule["action"], f"Pod {where} {how}"
    return "Count", ""


def _exits(pod: Json) -> list[tuple[str, int]]:
    return [
        (entry["name"], code)
        for field in ("containerStatuses", "initContainerStatuses")
        for entry in dig(pod, f"status.{field}") or ()
        if (code := dig(entry, "state.terminated.exitCode"))
    ]


def read_indexes(text: str, completions: int) -> list[range]:
    """Return the spans of ``0-2,5`` below ``completions``; what another client wrote there may be anything."""
    found: list[range] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        with suppress(ValueError):
            found.append(range(int(first), min(int(last or first) + 1, completions)))
    return joined(found)


def joined(spans: Iterable[range]) -> list[range]:
    """Return the same numbers as spans in their order, none of which touches another."""
    found: list[range] = []
    for span in sorted(filter(None, spans), key=lambda span: span.start):
        if found and span.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, span.stop))
        else:
            found.append(span)
    return found


def without(spans: Iterable[range], stop: int) -> Iterator[int]:
    """Yield the numbers below ``stop`` outside the spans. The spans are sorted and do not touch."""
    for before, after in pairwise([range(0), *spans, range(stop, stop)]):
        yield from range(before.stop, after.start)


def write_indexes(spans: Iterable[range]) -> str:
    """Return ``0-2,5`` for spans."""
    return ",".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans)


def age(since: datetime) -> float:
    """Return the seconds since then."""
    return (datetime.now(UTC) - since).total_seconds()


class CronJobController(WorkloadController):
    """Makes Jobs when they are due, and deletes finished ones beyond the limits of history."""

    group = "batch"
    kind = "CronJob"
    plural = "cronjobs"
    owned = ("batch", "jobs")

    def reconcile(self, stored: Stored, obj: Json) -> None:
        spec, status = obj["spec"], deepcopy(obj.get("status") or {})
        jobs = self.owned_by(stored)
        self._forget(jobs, "Complete", spec["successfulJobsHistoryLimit"])
        self._forget(jobs, "Failed", spec["failedJobsHistoryLimit"])
        active = [entry for entry in jobs if condition(entry[1], *_OUTCOMES.values()) is None]
        times = [content["status"]["completionTime"] for _, content in jobs if condition(content, "Complete")]
        if times:
            status["lastSuccessfulTime"] = max([*times, status.get("lastSuccessfulTime", "")])
        if not spec["suspend"]:
            active = self._make(stored, obj, status, active)
        status.pop("active", None)
        if active:
            status["active"] = [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": job.name,
                    "namespace": job.namespace,
                    "resourceVersion": str(job.revision),
                    "uid": job.uid,
                }
                for job, _ in active
            ]
        self.set_status(stored, obj, status)

    def _make(self, stored: Stored, obj: Json, status: Json, active: list[Owned]) -> list[Owned]:
        """Make the Job that is due, if any; returns the active ones after that."""
        spec, moment = obj["spec"], datetime.now(UTC)
        schedule = Schedule(spec["schedule"], spec.get("timeZone"))
        since = parse_time(status.get("lastScheduleTime") or obj["metadata"]["creationTimestamp"]) or moment
        limit = spec.get("startingDeadlineSeconds")
        if limit is not None and limit < (moment - since).total_seconds():
            since = moment - timedelta(seconds=limit)
        due = schedule.latest(since, moment)
        if (upcoming := schedule.upcoming(since, moment)) is not None:
            self.add_later(stored.key, (upcoming - moment).total_seconds())
        if due is None:
            return active
        if active and spec["concurrencyPolicy"] == "Forbid":
            text = "Not starting job because prior execution is running and concurrency policy is Forbid"
            self.report(obj, "JobAlreadyActive", text, "Normal")
            return active
        if active and spec["concurrencyPolicy"] == "Replace":
            for job, _ in active:
                self.delete(job)
            active = []
        made = self._create(obj, due)
        if made is None:
            self.add_later(stored.key, worker.RETRY_SECONDS)
            return active
        status["lastScheduleTime"] = format_time(due.astimezone(UTC))
        return [*active, (made, made.decode())]

    def _create(self, obj: Json, due: datetime) -> Stored | None:
        meta, template = obj["metadata"], obj["spec"]["jobTemplate"]
        labels, marks = (dict((template.get("metadata") or {}).get(key) or {}) for key in ("labels", "annotations"))
        name = f"{meta['name']}-{int(due.timestamp()) // 60}"
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "labels": labels,
                "annotations": {**marks, _SCHEDULED: due.isoformat(timespec="seconds").replace("+00:00", "Z")},
                "ownerReferences": [owner_reference(self.resource, obj)],
            },
            "spec": deepcopy(template["spec"]),
        }
        try:
            made = create(self.write(*self.owned, meta["namespace"], "create"), body)
        except StatusError as error:
            if (there := self.dependents.get(meta["namespace"], name)) is not None:
                return there
            self.report(obj, "FailedCreate", f"Error creating job: {error}")
            return None
        self.report(obj, "SuccessfulCreate", f"Created job {name}", "Normal")
        return made

    def _forget(self, jobs: list[Owned], kind: str, limit: int) -> None:
        finished = [entry for entry in jobs if condition(entry[1], kind)]
        for entry in finished[: max(0, len(finished) - limit)]:
            self.delete(entry[0])
            jobs.remove(entry)
