"""The kinds of ``apps`` and ``batch``: a template of pods, and how many; pods that finish, once or by a schedule.

A new Job gets the selector and the labels by which its pods are told from those of others: its UID. From then on its
template is fixed, but for a Job that is suspended and has not started.

A schedule has five fields as in crontab(5), one of the macros (``@hourly``), or an interval (``@every 90s``). The
fields are cronsim's business; what that library takes beyond Kubernetes (seconds, ``L``, ``W``, ``#``) is refused.

``NO_EFFECT`` are fields that are stored and warned of, because no controller here knows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import deepcopy
from datetime import UTC, datetime, timedelta, tzinfo
from types import MappingProxyType
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from dra_api.validation import formats as faults
from dra_api.validation.formats import Errors, FieldError

from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.kinds.base import Kind, Write, fill, selectable_by
from dra_devcluster.apiserver.kinds.pod import default_spec
from dra_devcluster.apiserver.kinds.pod_rules import validate_spec
from dra_devcluster.apiserver.metadata import dig, entries, needs, not_negative, one_of, unchanged


class Workload(Kind):
    """Pods without an end."""

    has_generation = True

    def default(self, obj: Json, write: Write) -> None:
        super().default(obj, write)
        default_template(obj.setdefault("spec", {}))

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        if write.subresource:
            return
        spec = obj["spec"]
        selector = spec.get("selector") or {}
        yield from needs(spec, "spec", "selector")
        labels = dig(spec, "template.metadata.labels") or {}
        wanted = selector.get("matchLabels") or {}
        if any(labels.get(key) != value for key, value in wanted.items()):
            yield faults.invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
        if old is not None and selector != (old["spec"].get("selector") or {}):
            yield faults.immutable("spec.selector", selector)
        yield from not_negative(spec, "spec", "replicas")
        policy = spec["template"]["spec"]["restartPolicy"]
        if policy in ("OnFailure", "Never"):
            yield faults.not_supported("spec.template.spec.restartPolicy", policy, ["Always"])
        yield from template_faults(spec, "spec")


def default_template(spec: Json) -> None:
    default_spec(spec.setdefault("template", {}).setdefault("spec", {}))


def template_faults(spec: Json, path: str) -> Errors:
    """Faults of the template of pods in a spec at ``path``."""
    for fault in validate_spec(spec["template"]["spec"]):
        yield fault._replace(field=f"{path}.template.{fault.field}")


class Deployments(Workload):
    defaults = MappingProxyType(
        {
            "spec.replicas": 1,
            "spec.strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}},
            "spec.revisionHistoryLimit": 10,
            "spec.progressDeadlineSeconds": 600,
        }
    )


class ReplicaSets(Workload):
    defaults = MappingProxyType({"spec.replicas": 1})
    selectable = selectable_by("status.replicas")


class DaemonSets(Workload):
    defaults = MappingProxyType(
        {
            "spec.updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
            "spec.revisionHistoryLimit": 10,
        }
    )


class StatefulSets(Workload):
    defaults = MappingProxyType(
        {
            "spec.replicas": 1,
            "spec.podManagementPolicy": "OrderedReady",
            "spec.updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "spec.revisionHistoryLimit": 10,
        }
    )


CONTROLLER_UID: Final = "batch.kubernetes.io/controller-uid"
JOB_NAME: Final = "batch.kubernetes.io/job-name"
NO_EFFECT: Final = ("backoffLimitPerIndex", "maxFailedIndexes", "successPolicy")
_OLD_LABELS: Final = {CONTROLLER_UID: "controller-uid", JOB_NAME: "job-name"}
_MOST_NAME_CHARACTERS: Final = 52  # a Job's name is that of the CronJob and 11 characters
_NUMBERS: Final = ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
_ACTIONS: Final = ("Count", "FailIndex", "FailJob", "Ignore")


class Jobs(Kind):
    """Finite work: pods until enough of them have succeeded."""

    has_generation = True
    selectable = MappingProxyType({"status.successful": "status.succeeded"})

    def default(self, obj: Json, write: Write) -> None:
        spec = obj.setdefault("spec", {})
        default_job_spec(spec)
        default_template(spec)

    def prepare_create(self, obj: Json, write: Write) -> None:
        super().prepare_create(obj, write)
        for field in NO_EFFECT:
            if field in obj["spec"]:
                write.warnings.append(f"spec.{field}: has no effect in the development cluster")
        if not obj["spec"].get("manualSelector"):
            _identify(obj)

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        if write.subresource:
            return
        spec = obj["spec"]
        yield from job_faults(spec, "spec")
        if old is None:
            return
        before = old["spec"]
        yield from unchanged(spec, before, "spec", "selector", "completionMode", "podFailurePolicy")
        if spec["completionMode"] != "Indexed" or spec.get("completions") != spec.get("parallelism"):
            yield from unchanged(spec, before, "spec", "completions")
        if not before.get("suspend") or dig(old, "status.startTime"):
            yield from unchanged(spec, before, "spec", "template")


class CronJobs(Kind):
    has_generation = True
    defaults = MappingProxyType(
        {
            "spec.concurrencyPolicy": "Allow",
            "spec.suspend": False,
            "spec.successfulJobsHistoryLimit": 3,
            "spec.failedJobsHistoryLimit": 1,
        }
    )

    def default(self, obj: Json, write: Write) -> None:
        super().default(obj, write)
        default_template(obj["spec"].setdefault("jobTemplate", {}).setdefault("spec", {}))

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[FieldError]:
        if write.subresource:
            return
        spec, name = obj["spec"], obj["metadata"].get("name", "")
        if len(name) > _MOST_NAME_CHARACTERS:
            yield faults.invalid("metadata.name", name, f"must be no more than {_MOST_NAME_CHARACTERS} characters")
        yield from needs(spec, "spec", "schedule")
        if text := spec.get("schedule"):
            try:
                Schedule(text, None)
            except ValueError as error:
                yield faults.invalid("spec.schedule", text, str(error))
        zone = spec.get("timeZone")
        if zone is not None and not _is_zone(zone):
            yield faults.invalid("spec.timeZone", zone, "unknown time zone")
        yield from one_of(spec["concurrencyPolicy"], "spec.concurrencyPolicy", ("Allow", "Forbid", "Replace"))
        limits = ("startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit")
        yield from not_negative(spec, "spec", *limits)
        job = deepcopy(spec["jobTemplate"]["spec"])
        default_job_spec(job)
        yield from job_faults(job, "spec.jobTemplate.spec")


_JOB_DEFAULTS: Final = {"parallelism": 1, "backoffLimit": 6, "completionMode": "NonIndexed", "suspend": False}


def default_job_spec(spec: Json) -> None:
    """Fill in what a Job leaves out, its template aside."""
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    fill(spec, _JOB_DEFAULTS)
    spec.setdefault("podReplacementPolicy", "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed")
    for rule in dig(spec, "podFailurePolicy.rules") or ():
        for pattern in rule.get("onPodConditions") or ():
            if not pattern.get("status"):
                pattern["status"] = "True"


def _identify(job: Json) -> None:
    """Write selector and labels, in the old spelling as well."""
    meta, spec = job["metadata"], job["spec"]
    template = spec["template"].get("metadata") or {}  # stored templates have it as null
    labels = dict(template.get("labels") or {})
    for label, value in ((CONTROLLER_UID, meta["uid"]), (JOB_NAME, meta["name"])):
        labels[label] = labels[_OLD_LABELS[label]] = value
    spec["template"]["metadata"] = {**template, "labels": labels}
    selector = dict(spec.get("selector") or {})
    spec["selector"] = {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), CONTROLLER_UID: meta["uid"]}}


def job_faults(spec: Json, path: str) -> Errors:
    yield from not_negative(spec, path, *_NUMBERS)
    yield from one_of(spec["completionMode"], f"{path}.completionMode", ("Indexed", "NonIndexed"))
    if spec["completionMode"] == "Indexed" and spec.get("completions") is None:
        yield faults.required(f"{path}.completions", "when completion mode is Indexed")
    replacement = spec["podReplacementPolicy"]
    yield from one_of(replacement, f"{path}.podReplacementPolicy", ("Failed", "TerminatingOrFailed"))
    if spec["template"]["spec"]["restartPolicy"] == "Always":
        yield faults.required(f"{path}.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"')
    yield from _policy_faults(spec, f"{path}.podFailurePolicy")
    yield from template_faults(spec, path)


def _policy_faults(spec: Json, path: str) -> Errors:
    policy = spec.get("podFailurePolicy")
    if policy is None:
        return
    if spec["template"]["spec"]["restartPolicy"] != "Never":
        yield faults.invalid(path, policy, "only template.spec.restartPolicy=Never is supported with it")
    yield from one_of(spec["podReplacementPolicy"], "spec.podReplacementPolicy", ("Failed",))
    for here, rule in entries(policy, "rules", path):
        yield from one_of(rule.get("action", ""), f"{here}.action", _ACTIONS)
        codes = rule.get("onExitCodes")
        if bool(codes) == bool(rule.get("onPodConditions")):
            yield faults.invalid(here, rule, "specifying one of OnExitCodes and OnPodConditions is required")
        if codes:
            yield from one_of(codes.get("operator", ""), f"{here}.onExitCodes.operator", ("In", "NotIn"))


_MACROS: Final = {
    **dict.fromkeys(("@yearly", "@annually"), "0 0 1 1 *"),
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    **dict.fromkeys(("@daily", "@midnight"), "0 0 * * *"),
    "@hourly": "0 * * * *",
}
_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_FOREIGN: Final = re.compile(r"[#]|\bL|L\b|W\b")
_FIELD_COUNT: Final = 5
_LONGEST_CHARACTERS: Final = 10_000  # cronsim reads a million in seconds, in which nobody else is served
_LONGEST_INTERVAL: Final = timedelta(microseconds=2**63 // 1000)  # that of Go


class Schedule:
    """The moments at which a CronJob makes Jobs. Raises ValueError, with the reason, for a text that is none."""

    def __init__(self, text: str, zone: str | None) -> None:
        if len(text) > _LONGEST_CHARACTERS:
            raise ValueError(f"must be no more than {_LONGEST_CHARACTERS} characters")
        self._zone: tzinfo = ZoneInfo(zone) if zone else UTC
        self._every: timedelta | None = None
        self._fields = _MACROS.get(text, text).replace("?", "*")
        if text.startswith("@every "):
            match = _DURATION.fullmatch(text.removeprefix("@every ").strip())
            hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
            whole = 3600 * hours + 60 * minutes + seconds
            if not 0 < whole <= _LONGEST_INTERVAL.total_seconds():
                raise ValueError("expected a duration after @every of at most 292 years, such as 1h30m or 90s")
            self._every = timedelta(seconds=whole)
            return
        if "TZ" in text:
            raise ValueError("cannot use TZ or CRON_TZ in schedule, use timeZone field instead")
        if len(self._fields.split()) != _FIELD_COUNT:
            raise ValueError(f"expected exactly {_FIELD_COUNT} fields, found {len(self._fields.split())}: {text}")
        if _FOREIGN.search(re.sub("JUL", "", self._fields.upper())):
            raise ValueError("L, W and # are not known to Kubernetes")
        try:
            CronSim(self._fields, datetime.now(UTC))
        except CronSimError as error:
            raise ValueError(str(error)) from None

    def upcoming(self, since: datetime, moment: datetime) -> datetime | None:
        """Return the first time after the moment, or None if there is none within 50 years."""
        if self._every is not None:
            return since + ((moment - since) // self._every + 1) * self._every
        return next(CronSim(self._fields, moment.astimezone(self._zone)), None)

    def latest(self, since: datetime, until: datetime) -> datetime | None:
        """Return the last time after ``since`` up to ``until``, or None."""
        if self._every is not None:
            count = (until - since) // self._every
            return since + count * self._every if count > 0 else None
        just_after = until.replace(microsecond=0) + timedelta(seconds=1)
        found = next(CronSim(self._fields, just_after.astimezone(self._zone), reverse=True), None)
        return found if found is not None and found > since else None


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        return False
    return bool(name) and name.lower() != "local"
