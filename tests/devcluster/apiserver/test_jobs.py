"""Jobs and CronJobs. No node runs the pods here: the tests say how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest
from bare_client import EVENTS, PODS, Client, Json
from dra_devcluster.apiserver.controllers import jobs
from dra_devcluster.apiserver.controllers.jobs import CronJobController, JobController
from dra_devcluster.apiserver.kinds.workloads import Schedule

JOBS = "/apis/batch/v1/namespaces/default/jobs"
CRON_JOBS = "/apis/batch/v1/namespaces/default/cronjobs"
INDEX = "batch.kubernetes.io/job-completion-index"
CONTAINER = {"name": "main", "image": "example.com/app:1"}


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "BACKOFF_SECONDS", 0.0)


def job(*, pod: Json | None = None, name: str = "j", **spec: Any) -> Json:
    template = {"spec": {"restartPolicy": "Never", "containers": [CONTAINER], **(pod or {})}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template, **spec}}


def cron_job(schedule: str = "*/5 * * * *", **spec: Any) -> Json:
    template = {"metadata": {"labels": {"made": "by-schedule"}}, "spec": job()["spec"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "c"},
        "spec": {"schedule": schedule, "jobTemplate": template, **spec},
    }


async def pods(client: Client, count: int) -> list[Json]:
    """The pods that are not over, once there are so many."""

    def alive(answer: Any) -> list[Json]:
        return [
            item
            for item in answer.json["items"]
            if item["status"].get("phase") not in ("Succeeded", "Failed")
            and "deletionTimestamp" not in item["metadata"]
        ]

    return alive(await client.until(PODS, lambda answer: len(alive(answer)) == count))


async def end(client: Client, pod: Json, phase: str = "Succeeded", **status: Any) -> None:
    await client.patch(f"{PODS}/{pod['metadata']['name']}/status", {"status": {"phase": phase, **status}})


async def status(client: Client, condition: Callable[[Json], bool], name: str = "j") -> Json:
    answer = await client.until(f"{JOBS}/{name}", lambda answer: condition(answer.json.get("status") or {}))
    found: Json = answer.json["status"]
    return found


def is_true(kind: str) -> Callable[[Json], bool]:
    return lambda status: any(c["type"] == kind and c["status"] == "True" for c in status.get("conditions") or ())


def reason(status: Json, kind: str) -> str:
    return next(str(entry["reason"]) for entry in status["conditions"] if entry["type"] == kind)


async def test_a_job_makes_one_pod_and_is_complete_when_it_has_succeeded(client: Client) -> None:
    created = await client.post(JOBS, job())
    uid = created["metadata"]["uid"]
    assert created["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert (created["spec"]["completions"], created["spec"]["backoffLimit"]) == (1, 6)
    (pod,) = await pods(client, 1)
    assert pod["metadata"]["labels"]["job-name"] == "j"
    assert pod["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking"]
    assert (await status(client, lambda it: it.get("active") == 1))["startTime"]
    await end(client, pod)
    done = await status(client, is_true("Complete"))
    assert (done["succeeded"], done.get("failed"), done.get("active")) == (1, None, None)
    assert done["completionTime"]
    assert is_true("SuccessCriteriaMet")(done)
    await client.until(f"{PODS}/{pod['metadata']['name']}", lambda it: not it.json["metadata"].get("finalizers"))
    table = await client.get(JOBS, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    assert table["rows"][0]["cells"][:3] == ["j", "Complete", "1/1"]


async def test_as_many_pods_run_at_once_as_parallelism_says(client: Client) -> None:
    await client.post(JOBS, job(completions=3, parallelism=2))
    first, second = await pods(client, 2)
    await end(client, first)
    await status(client, lambda it: it.get("succeeded") == 1)
    both = await pods(client, 2)
    assert second["metadata"]["name"] in {pod["metadata"]["name"] for pod in both}
    await client.patch(f"{JOBS}/j", {"spec": {"parallelism": 1}})
    (left,) = await pods(client, 1)
    await end(client, left)
    (last,) = await pods(client, 1)
    await end(client, last)
    assert (await status(client, is_true("Complete"))).get("failed") is None, "surplus pods are no failures"


async def test_without_completions_the_first_success_makes_no_new_pods(client: Client) -> None:
    await client.post(JOBS, job(parallelism=2))
    first, second = await pods(client, 2)
    await end(client, first)
    await status(client, lambda it: it.get("succeeded") == 1)
    assert not is_true("Complete")(await status(client, lambda it: it.get("active") == 1))
    await end(client, second, "Failed")
    assert (await status(client, is_true("Complete")))["failed"] == 1


async def test_each_index_succeeds_once(client: Client) -> None:
    await client.post(JOBS, job(completions=3, parallelism=3, completionMode="Indexed"))
    made = {pod["metadata"]["annotations"][INDEX]: pod for pod in await pods(client, 3)}
    assert sorted(made) == ["0", "1", "2"]
    assert made["1"]["spec"]["hostname"] == "j-1"
    assert made["1"]["metadata"]["labels"][INDEX] == "1"
    variable = made["1"]["spec"]["containers"][0]["env"][0]
    assert variable["name"] == "JOB_COMPLETION_INDEX"
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.labels['{INDEX}']"
    await end(client, made["0"])
    await end(client, made["1"], "Failed")
    await end(client, made["2"])
    (again,) = await pods(client, 1)
    assert again["metadata"]["annotations"][INDEX] == "1"
    assert (await status(client, lambda it: it.get("succeeded") == 2))["completedIndexes"] == "0,2"
    await end(client, again)
    done = await status(client, is_true("Complete"))
    assert (done["completedIndexes"], done["failed"]) == ("0-2", 1)


async def test_a_job_fails_after_more_failures_than_its_limit(client: Client) -> None:
    await client.post(JOBS, job(backoffLimit=1, parallelism=2, completions=4))
    first, second = await pods(client, 2)
    await end(client, first, "Failed")
    await status(client, lambda it: it.get("failed") == 1)
    await pods(client, 2)
    await end(client, second, "Failed")
    failed = await status(client, is_true("Failed"))
    assert reason(failed, "Failed") == reason(failed, "FailureTarget") == "BackoffLimitExceeded"
    assert failed["failed"] == 3, "the pod that was deleted counts"
    assert await pods(client, 0) == []
    events = await client.until(EVENTS, lambda it: any(e["reason"] == "BackoffLimitExceeded" for e in it.json["items"]))
    assert events.json["items"][0]["involvedObject"]["name"] == "j"


async def test_new_pods_wait_after_a_failure(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "BACKOFF_SECONDS", 0.4)
    await client.post(JOBS, job())
    (pod,) = await pods(client, 1)
    loop = asyncio.get_running_loop()
    before = loop.time()
    await end(client, pod, "Failed")
    await status(client, lambda it: it.get("failed") == 1)
    assert await pods(client, 0) == []
    await pods(client, 1)
    assert loop.time() - before >= 0.4


async def test_containers_that_restart_too_often_fail_the_job(client: Client) -> None:
    await client.post(JOBS, job(backoffLimit=2, pod={"restartPolicy": "OnFailure"}))
    (pod,) = await pods(client, 1)
    container = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 2}
    await end(client, pod, "Running", containerStatuses=[container])
    assert reason(await status(client, is_true("Failed")), "Failed") == "BackoffLimitExceeded"


async def test_a_job_fails_at_its_deadline(client: Client) -> None:
    await client.post(JOBS, job(activeDeadlineSeconds=2))  # times are whole seconds: one at least passes
    await pods(client, 1)
    failed = await status(client, is_true("Failed"))
    assert reason(failed, "Failed") == "DeadlineExceeded"
    assert await pods(client, 0) == []


async def test_a_finished_job_goes_after_its_time_to_live_with_its_pods(client: Client) -> None:
    await client.post(JOBS, job(ttlSecondsAfterFinished=0))
    (pod,) = await pods(client, 1)
    await end(client, pod)
    await client.gone(f"{JOBS}/j")
    await client.gone(f"{PODS}/{pod['metadata']['name']}")


async def test_a_finished_job_stays_for_its_time_to_live(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ages = iter([59.95])
    monkeypatch.setattr(jobs, "age", lambda since: next(ages, 60.0))
    await client.post(JOBS, job(ttlSecondsAfterFinished=60))
    (pod,) = await pods(client, 1)
    await end(client, pod)
    await client.gone(f"{JOBS}/j")


async def test_an_index_whose_pod_still_ends_gets_no_second_one_where_pods_are_replaced_late(client: Client) -> None:
    spec: Json = {"completions": 2, "parallelism": 1, "completionMode": "Indexed", "podReplacementPolicy": "Failed"}
    await client.post(JOBS, job(**spec))
    (first,) = await pods(client, 1)
    path = f"{PODS}/{first['metadata']['name']}"
    await client.patch(path, {"metadata": {"finalizers": [*first["metadata"]["finalizers"], "example.com/x"]}})
    await client.delete(path)
    await client.patch(f"{JOBS}/j", {"spec": {"parallelism": 2}})
    (second,) = await pods(client, 1)
    assert (first["metadata"]["annotations"][INDEX], second["metadata"]["annotations"][INDEX]) == ("0", "1")


async def test_a_suspended_job_has_no_pods_until_it_resumes(client: Client) -> None:
    await client.post(JOBS, job(suspend=True, completions=2, parallelism=2))
    suspended = await status(client, is_true("Suspended"))
    assert "startTime" not in suspended
    # What schedulers of queues do while a Job has not started.
    await client.patch(f"{JOBS}/j", {"spec": {"template": {"spec": {"nodeSelector": {"zone": "a"}}}}})
    await client.patch(f"{JOBS}/j", {"spec": {"suspend": False}})
    assert [pod["spec"]["nodeSelector"] for pod in await pods(client, 2)] == [{"zone": "a"}] * 2
    await client.patch(f"{JOBS}/j", {"spec": {"suspend": True}})
    assert await pods(client, 0) == []
    again = await status(client, is_true("Suspended"))
    assert (again.get("failed"), again.get("active")) == (None, None)


EXIT = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
POLICY = {
    "rules": [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
    ]
}


async def test_the_policy_for_failures_fails_the_job_or_ignores_the_pod(client: Client) -> None:
    await client.post(JOBS, job(podFailurePolicy=POLICY, backoffLimit=0))
    (pod,) = await pods(client, 1)
    await end(client, pod, "Failed", conditions=[{"type": "DisruptionTarget", "status": "True"}])
    (pod,) = await pods(client, 1)
    terminated = {"exitCode": 42, "reason": "Error"}
    await end(client, pod, "Failed", containerStatuses=[{**EXIT, "state": {"terminated": terminated}}])
    failed = await status(client, is_true("Failed"))
    assert failed["failed"] == 1
    assert reason(failed, "Failed") == "PodFailurePolicy"
    (text,) = [entry["message"] for entry in failed["conditions"] if entry["type"] == "Failed"]
    assert text.endswith("failed with exit code 42 matching FailJob rule at index 0")


async def test_a_deleted_pod_counts_as_failed_and_is_replaced(client: Client) -> None:
    await client.post(JOBS, job())
    (pod,) = await pods(client, 1)
    await client.delete(f"{PODS}/{pod['metadata']['name']}")
    await client.gone(f"{PODS}/{pod['metadata']['name']}")
    assert (await status(client, lambda it: it.get("active") == 1 and "failed" in it))["failed"] == 1


@pytest.mark.parametrize("propagation", ["Background", "Foreground", "Orphan"])
async def test_with_a_job_its_pods_go(client: Client, propagation: str) -> None:
    await client.post(JOBS, job(completions=2, parallelism=2))
    made = await pods(client, 2)
    await client.delete(f"{JOBS}/j", {"propagationPolicy": propagation})
    await client.gone(f"{JOBS}/j")
    for pod in made:
        path = f"{PODS}/{pod['metadata']['name']}"
        if propagation == "Orphan":
            await client.until(path, lambda it: not it.json["metadata"].get("finalizers"))
        else:
            await client.gone(path)


DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "jobsets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "jobsets", "singular": "jobset", "kind": "JobSet"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


async def test_a_set_of_jobs_takes_jobs_and_pods_with_it(client: Client) -> None:
    await client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITION)
    path = "/apis/example.com/v1/namespaces/default/jobsets"
    owner = await client.post(path, {"apiVersion": "example.com/v1", "kind": "JobSet", "metadata": {"name": "s"}})
    reference = {"apiVersion": "example.com/v1", "kind": "JobSet", "name": "s", "uid": owner["metadata"]["uid"]}
    for name in ("one", "two"):
        owned = job(name=name)
        owned["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
        await client.post(JOBS, owned)
    made = await pods(client, 2)
    await client.delete(f"{path}/s")
    for name in ("one", "two"):
        await client.gone(f"{JOBS}/{name}")
    for pod in made:
        await client.gone(f"{PODS}/{pod['metadata']['name']}")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (job(pod={"restartPolicy": "Always"}), "spec.template.spec.restartPolicy"),
        (job(completionMode="Indexed", parallelism=1), "spec.completions"),
        (job(completionMode="Sorted"), "spec.completionMode"),
        (job(backoffLimit=-1), "spec.backoffLimit"),
        (job(podFailurePolicy={"rules": [{"action": "FailJob"}]}), "spec.podFailurePolicy.rules[0]"),
        (job(podFailurePolicy=POLICY, pod={"restartPolicy": "OnFailure"}), "spec.podFailurePolicy"),
        (job(pod={"containers": []}), "spec.template.spec.containers"),
        (cron_job("* * * *"), "spec.schedule"),
        (cron_job("61 * * * *"), "spec.schedule"),
        (cron_job("TZ=UTC * * * * *"), "spec.schedule"),
        (cron_job("0 0 L * *"), "spec.schedule"),
        (cron_job("@every soon"), "spec.schedule"),
        (cron_job("@every 99999999999999999h"), "spec.schedule"),
        (cron_job(f"{'0,' * 5000}0 * * * *"), "spec.schedule"),
        (cron_job(timeZone="Mars/Base"), "spec.timeZone"),
        (cron_job(timeZone="Local"), "spec.timeZone"),
        (cron_job(concurrencyPolicy="Never"), "spec.concurrencyPolicy"),
    ],
)
async def test_what_cannot_work_is_refused(client: Client, wrong: Json, field: str) -> None:
    answer = await client.call("POST", JOBS if wrong["kind"] == "Job" else CRON_JOBS, wrong)
    assert answer.code == 422
    assert field in {cause["field"] for cause in answer.json["details"]["causes"]}


@pytest.mark.parametrize("mode", ["Indexed", "NonIndexed"])
async def test_a_job_of_two_thousand_million_pods_keeps_nobody_waiting(
    client: Client, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(jobs, "BATCH_PODS", 2)
    most = 2**31 - 1
    await client.post(JOBS, job(completions=most, parallelism=most, completionMode=mode))
    await client.until(PODS, lambda answer: len(answer.json["items"]) >= 6)
    await client.patch(f"{JOBS}/j", {"spec": {"suspend": True}})
    await pods(client, 0)
    assert (await status(client, is_true("Suspended"))).get("failed") is None


@pytest.mark.parametrize(
    ("text", "spans", "written"),
    [
        ("", [], ""),
        ("0-2,5", [range(3), range(5, 6)], "0-2,5"),
        ("5,0-2,2-4", [range(6)], "0-5"),
        ("0-99999999999999", [range(2**31 - 1)], f"0-{2**31 - 2}"),
        ("one,-3,4-2,1-2-3,7," + "9" * 5000, [range(7, 8)], "7"),
    ],
)
def test_completed_indexes_are_spans(text: str, spans: list[range], written: str) -> None:
    found = jobs.read_indexes(text, 2**31 - 1)
    assert found == spans
    assert jobs.write_indexes(found) == written
    assert (
        list(islice(jobs.without(found, 2**31 - 1), 3))
        == [number for number in range(10) if not any(number in span for span in spans)][:3]
    )


async def test_any_number_of_seconds_may_be_meant_as_never(client: Client, clock: type[Clock]) -> None:
    await client.post(JOBS, job(activeDeadlineSeconds=2**63 - 1))
    await pods(client, 1)
    await client.delete(f"{JOBS}/j", {"propagationPolicy": "Background"})
    await client.gone(f"{JOBS}/j")
    await client.post(CRON_JOBS, cron_job(startingDeadlineSeconds=2**63 - 1))
    clock.moment = datetime.now(UTC) + timedelta(hours=1)
    await due(client, clock, 1)


async def test_an_index_that_somebody_else_wrote_is_no_index(client: Client) -> None:
    await client.post(JOBS, job(completions=1, completionMode="Indexed"))
    (pod,) = await pods(client, 1)
    await client.patch(f"{PODS}/{pod['metadata']['name']}", {"metadata": {"annotations": {INDEX: "\u00b2"}}})
    (other,) = (await client.until(PODS, lambda it: is_replaced(it.json["items"], pod))).json["items"]
    assert other["metadata"]["annotations"][INDEX] == "0"


def is_replaced(items: list[Json], pod: Json) -> bool:
    return len(items) == 1 and items[0]["metadata"]["uid"] != pod["metadata"]["uid"]


async def test_a_started_job_keeps_its_template(client: Client) -> None:
    await client.post(JOBS, job())
    await status(client, lambda it: "startTime" in it)
    change = {"spec": {"template": {"spec": {"nodeSelector": {"zone": "a"}}}}}
    answer = await client.call("PATCH", f"{JOBS}/j", change, kind="application/merge-patch+json")
    assert answer.code == 422
    assert "spec.template" in answer.json["message"]


class Clock(datetime):
    """A time that the test sets."""

    moment = datetime(2026, 11, 29, 12, 0, 30, tzinfo=UTC)

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]  # a subclass would have to return itself
        return cls.moment


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setattr(jobs, "datetime", Clock)
    monkeypatch.setattr(Clock, "moment", datetime.now(UTC).replace(minute=2, second=0, microsecond=0))
    return Clock


async def due(client: Client, clock: type[Clock], count: int, **spec: Any) -> list[Json]:
    """Let ten minutes pass, and return the Jobs once there are so many."""
    clock.moment += timedelta(minutes=10)
    await client.patch(f"{CRON_JOBS}/c", {"metadata": {"annotations": {"now": clock.moment.isoformat()}}})
    answer = await client.until(JOBS, lambda answer: len(answer.json["items"]) == count)
    found: list[Json] = answer.json["items"]
    return found


async def test_a_cron_job_makes_one_job_for_the_last_time_that_is_due(client: Client, clock: type[Clock]) -> None:
    await client.post(CRON_JOBS, cron_job())
    clock.moment = datetime.now(UTC) + timedelta(hours=1)
    (made,) = await due(client, clock, 1)
    minute = clock.moment.replace(minute=clock.moment.minute // 5 * 5, second=0, microsecond=0)
    assert made["metadata"]["name"] == f"c-{int(minute.timestamp()) // 60}"
    assert made["metadata"]["labels"] == {"made": "by-schedule"}
    mark = made["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"]
    assert mark == minute.strftime("%Y-%m-%dT%H:%M:%SZ")
    answer = await client.until(f"{CRON_JOBS}/c", lambda it: "lastScheduleTime" in (it.json.get("status") or {}))
    assert answer.json["status"]["lastScheduleTime"] == mark
    assert [entry["name"] for entry in answer.json["status"]["active"]] == [made["metadata"]["name"]]
    (pod,) = await pods(client, 1)
    await end(client, pod)
    await client.until(f"{CRON_JOBS}/c", lambda it: "active" not in it.json["status"])
    await client.delete(f"{CRON_JOBS}/c")
    await client.gone(f"{JOBS}/{made['metadata']['name']}")


async def test_a_job_that_was_made_before_that_was_noted_is_not_made_twice(client: Client, clock: type[Clock]) -> None:
    await client.post(CRON_JOBS, cron_job())
    clock.moment = datetime.now(UTC) + timedelta(hours=1)
    await due(client, clock, 1)
    noted = await client.until(f"{CRON_JOBS}/c", lambda it: "lastScheduleTime" in (it.json.get("status") or {}))
    lost = await client.patch(f"{CRON_JOBS}/c/status", {"status": {"lastScheduleTime": None, "active": None}})
    revision = lost["metadata"]["resourceVersion"]
    again = await client.until(f"{CRON_JOBS}/c", lambda it: it.json["metadata"]["resourceVersion"] != revision)
    for key in ("lastScheduleTime", "active"):
        assert again.json["status"][key] == noted.json["status"][key]
    assert "FailedCreate" not in {event["reason"] for event in (await client.get(EVENTS))["items"]}


async def test_a_time_that_was_missed_by_more_than_the_deadline_is_not_made_up_for(
    client: Client, clock: type[Clock]
) -> None:
    clock.moment = datetime.now(UTC).replace(minute=2, second=0, microsecond=0) + timedelta(hours=1)
    for name, seconds in (("c", 60), ("d", 120), ("e", 180)):
        await client.post(CRON_JOBS, {**cron_job(startingDeadlineSeconds=seconds), "metadata": {"name": name}})
    answer = await client.until(JOBS, lambda it: any(job["metadata"]["name"][0] == "e" for job in it.json["items"]))
    assert {job["metadata"]["name"][0] for job in answer.json["items"]} == {"e"}, "two minutes ago, and not since"


@pytest.mark.parametrize(("policy", "jobs_after"), [("Allow", 2), ("Forbid", 1), ("Replace", 1)])
async def test_a_job_that_still_runs(client: Client, clock: type[Clock], policy: str, jobs_after: int) -> None:
    await client.post(CRON_JOBS, cron_job(concurrencyPolicy=policy))
    clock.moment = datetime.now(UTC) + timedelta(hours=1)
    (first,) = await due(client, clock, 1)
    await pods(client, 1)
    clock.moment += timedelta(minutes=10)
    await client.patch(f"{CRON_JOBS}/c", {"metadata": {"labels": {"look": "again"}}})
    about = {"Allow": "SuccessfulCreate", "Forbid": "JobAlreadyActive", "Replace": "SuccessfulCreate"}[policy]
    wanted = 2 if about == "SuccessfulCreate" else 1
    await client.until(EVENTS, lambda it: sum(e["reason"] == about for e in it.json["items"]) >= wanted)
    answer = await client.until(JOBS, lambda it: len(it.json["items"]) == jobs_after)
    names = {item["metadata"]["name"] for item in answer.json["items"]}
    assert (first["metadata"]["name"] in names) is (policy != "Replace")


async def test_a_suspended_cron_job_makes_none_and_old_jobs_go(client: Client, clock: type[Clock]) -> None:
    await client.post(CRON_JOBS, cron_job(successfulJobsHistoryLimit=1))
    clock.moment = datetime.now(UTC) + timedelta(hours=1)
    (first,) = await due(client, clock, 1)
    (pod,) = await pods(client, 1)
    await end(client, pod)
    await status(client, is_true("Complete"), first["metadata"]["name"])
    await due(client, clock, 2)
    (pod,) = await pods(client, 1)
    await end(client, pod)
    await client.gone(f"{JOBS}/{first['metadata']['name']}")
    await client.patch(f"{CRON_JOBS}/c", {"spec": {"suspend": True}})
    (left,) = await due(client, clock, 1)
    await client.until(f"{CRON_JOBS}/c", lambda it: "lastSuccessfulTime" in it.json["status"])
    assert left["metadata"]["name"] != first["metadata"]["name"]


NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "zone", "latest", "upcoming"),
    [
        ("0 * * * *", None, NOON, NOON + timedelta(hours=1)),
        ("@daily", None, NOON.replace(hour=0), NOON.replace(hour=0) + timedelta(days=1)),
        ("0 0 ? * *", "Asia/Tokyo", NOON.replace(day=28, month=2, hour=15), NOON.replace(hour=15)),
        ("@every 90m", None, NOON - timedelta(minutes=30), NOON + timedelta(hours=1)),
        ("0 0 1 JUL *", None, None, datetime(2026, 7, 1, tzinfo=UTC)),
    ],
)
def test_times_of_a_schedule(text: str, zone: str | None, latest: datetime | None, upcoming: datetime) -> None:
    schedule = Schedule(text, zone)
    since = NOON - timedelta(days=1, hours=11 if text == "@every 90m" else 0) + timedelta(minutes=0)
    assert schedule.latest(since, NOON) == latest
    assert schedule.upcoming(since, NOON) == upcoming


def test_controllers_take_the_kinds_of_their_group() -> None:
    assert (JobController.group, CronJobController.owned) == ("batch", ("batch", "jobs"))
