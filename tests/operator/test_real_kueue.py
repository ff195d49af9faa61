"""The controller ``admission`` with the real Kueue, on a real control plane.

Jobs of which each pod takes two devices run on nodes of three: by quota alone three pods would have devices for two.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from dra_kube import (
    ADMISSION_CHECKS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_FLAVORS,
    WORKLOADS,
    Api,
    Object,
    Resource,
)
from dra_operator.admission.workloads import AdmissionSettings
from dra_operator.app.settings import OperatorSettings
from kueue_model import QUEUES, admission_check, condition, flavor, is_true, needs_kueue, real_kueue
from proving_ground import NAMESPACE, ProvingGround, proving_ground
from supervised import Site, supervised

pytestmark = needs_kueue

JOBS: Final = Resource("batch", ("v1",), "jobs", "Job", namespaced=True)
SETTINGS: Final = OperatorSettings(check_invariants=True, controllers="auto,admission", scheduler_name="dra-scheduler")
NODES: Final = 2
DEVICES: Final = 3
"""On each node."""
SIZE: Final = 2
"""Devices of a pod."""
SOON: Final = partial(AdmissionSettings, never=2.0, watched=0.0)
LONE_JOBS: Final = 8
"""Jobs of which Kueue is likely to overlook one."""


@asynccontextmanager
async def operator(ground: ProvingGround, number: int = 0) -> AsyncIterator[Site]:
    folder = ground.folder / f"operator-{number}"
    folder.mkdir()
    async with supervised(ground.proxy, folder, SETTINGS) as site:
        await site.ready()
        yield site


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[ProvingGround]:
    async with proving_ground(tmp_path) as made:
        await made.furnish(nodes=NODES, devices=DEVICES)
        kubeconfig = tmp_path / "servers" / "kubeconfig"
        async with real_kueue(made.api, kubeconfig, tmp_path / "kueue", "gpu"):
            await queue(made.api)
            yield made


async def create(api: Api, resource: Resource, body: Object) -> None:
    """Create it with the kind, which the server does not know by the path where a definition says what it is."""
    await api.create(
        resource, {"apiVersion": f"{resource.group}/{resource.versions[0]}", "kind": resource.kind, **body}
    )


async def queue(api: Api) -> None:
    """A queue with quota for all devices, which asks our check."""
    await create(api, RESOURCE_FLAVORS, flavor())
    await create(api, ADMISSION_CHECKS, admission_check())
    flavors = [{"name": "any", "resources": [{"name": "devices", "nominalQuota": NODES * DEVICES}]}]
    spec = {
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": ["devices"], "flavors": flavors}],
        "admissionChecksStrategy": {"admissionChecks": [{"name": "devices"}]},
    }
    await create(api, QUEUES["ClusterQueue"], {"metadata": {"name": "team"}, "spec": spec})
    local = {"metadata": {"name": "team", "namespace": NAMESPACE}, "spec": {"clusterQueue": "team"}}
    await create(api, QUEUES["LocalQueue"], local)
    request = {"name": "req", "exactly": {"deviceClassName": "gpu", "count": SIZE}}
    template = {
        "metadata": {"name": "two", "namespace": NAMESPACE},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    await create(api, RESOURCE_CLAIM_TEMPLATES, template)


async def add_job(ground: ProvingGround, name: str, pods: int, scheduler: str = "dra-scheduler") -> None:
    body: Object = {
        "schedulerName": scheduler,
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "two"}],
    }
    spec = {"parallelism": pods, "completions": pods, "suspend": True, "template": {"spec": body}}
    labels = {"kueue.x-k8s.io/queue-name": "team"}
    await create(ground.api, JOBS, {"metadata": {"name": name, "namespace": NAMESPACE, "labels": labels}, "spec": spec})


async def workload_of(ground: ProvingGround, job: str) -> Object | None:
    listed, _ = await ground.api.list(WORKLOADS, NAMESPACE)
    return next((it for it in listed if it["metadata"]["ownerReferences"][0]["name"] == job), None)


async def becomes(ground: ProvingGround, job: str, kind: str, reason: str = "") -> Object:
    """The Workload of the job, once it has this condition."""

    async def has() -> Object | None:
        found = await workload_of(ground, job)
        said = condition(found, kind) if found is not None else None
        assert said is not None, found
        assert said["status"] == "True", said
        assert reason in said["reason"], said
        return found

    return await ground.until(f"{job} is {kind}", has)


async def without_quota(ground: ProvingGround, job: str) -> None:
    async def has_none() -> bool:
        found = await workload_of(ground, job)
        return found is not None and not is_true(found, "QuotaReserved") and "requeueAt" in str(found["status"])

    await ground.until(f"{job} waits without quota", has_none)


async def runs(ground: ProvingGround, job: str, pods: int) -> list[Object]:
    async def all_run() -> list[Object] | None:
        its = [it for it in await ground.pods() if it["metadata"]["labels"].get("job-name") == job]
        return its if len(its) == pods and all(it["spec"].get("nodeName") for it in its) else None

    return await ground.until(f"{pods} pods of {job} have nodes", all_run)


async def finish(ground: ProvingGround, job: str) -> float:
    """The pods of the job are done; when that was written."""
    for pod in await ground.pods():
        if pod["metadata"]["labels"].get("job-name") == job:
            status = {"status": {"phase": "Succeeded"}}
            await ground.api.patch(PODS, pod["metadata"]["name"], status, NAMESPACE, subresource="status")
    return time.monotonic()


async def test_a_job_waits_with_a_true_reason_and_is_admitted_when_devices_come_free(ground: ProvingGround) -> None:
    async with operator(ground) as site:
        await add_job(ground, "first", 2)
        await runs(ground, "first", 2)
        await add_job(ground, "second", 1)
        waits = await becomes(ground, "second", "Evicted", "AdmissionCheck")
        assert "needs 2 devices; 3 of 3 match, 2 in use" in condition(waits, "Evicted")["message"]  # type: ignore[index]
        await without_quota(ground, "second")
        await asyncio.sleep(1)
        freed = await finish(ground, "first")
        await becomes(ground, "second", "Admitted")
        took = time.monotonic() - freed
        print(f"from freed devices to the admission: {took:.2f} s")
        assert took < 30, "its back-off went by first"
        await runs(ground, "second", 1)
        assert site.metric("dra_operator_admission_broken_promises_total") == 0


async def test_a_back_off_whose_end_would_be_in_vain_goes_on(
    ground: ProvingGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_operator.admission.workloads.FIRST_BACKOFF_SECONDS", 2.0)
    async with operator(ground):
        await add_job(ground, "first", 2)
        await runs(ground, "first", 2)
        await add_job(ground, "second", 1)
        await without_quota(ground, "second")
        times = set[str | None]()

        async def goes_on() -> bool:
            found = await workload_of(ground, "second")
            assert found is not None
            [check] = found["status"]["admissionChecks"]
            if check["state"] == "Pending" and "nodes are available" in check["message"]:
                times.add(found["status"].get("requeueState", {}).get("requeueAt"))
            assert check.get("retryCount", 0) <= 1, "it was tried in vain"
            return len(times - {None}) >= 4

        await ground.until("it has waited on three times", goes_on)
        await finish(ground, "first")
        await becomes(ground, "second", "Admitted")
        await runs(ground, "second", 1)


async def test_a_job_that_no_empty_cluster_takes_is_deactivated(
    ground: ProvingGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_operator.app.operator.AdmissionSettings", SOON)
    async with operator(ground):
        await add_job(ground, "huge", 3)
        huge = await becomes(ground, "huge", "Evicted", "Deactivated")
        assert huge["spec"]["active"] is False
        assert "only 2 of 3 pods fit together" in str(huge["status"])


async def test_a_lone_job_that_kueue_overlooks_is_tried_when_its_check_has_paused(
    ground: ProvingGround, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kueue 0.19.2 overlooks the end of some back-offs: each job is tried again, and one of them after a pause."""
    monkeypatch.setattr("dra_operator.app.operator.AdmissionSettings", SOON)
    caplog.set_level(logging.INFO, "dra_operator")
    async with operator(ground):
        for number in range(LONE_JOBS):
            began = time.monotonic()
            await add_job(ground, f"huge-{number}", 3)
            await becomes(ground, f"huge-{number}", "Evicted", "Deactivated")
            paused = "its checks pause" in caplog.text
            print(f"job {number} was decided on after {time.monotonic() - began:.1f} s, with a pause: {paused}")
            if paused:
                check = await ground.api.get(ADMISSION_CHECKS, "devices")
                assert is_true(check, "Active"), "Kueue gives no quota while a check is not active"
                return
    pytest.skip(f"KUEUE OVERLOOKED NONE of {LONE_JOBS} jobs")


async def test_a_promise_outlives_the_operator_and_ends_with_an_eviction(ground: ProvingGround) -> None:
    """The pods of the first job have a scheduler that is not there, so they do not start."""
    async with operator(ground):
        await add_job(ground, "first", 2, "nobody")
        await becomes(ground, "first", "Admitted")
    async with operator(ground, 1) as site:
        await add_job(ground, "second", 1)
        await becomes(ground, "second", "Evicted", "AdmissionCheck")
        assert site.metric("dra_operator_admission_promises") == 1
        first = await workload_of(ground, "first")
        assert first is not None
        await ground.api.patch(WORKLOADS, first["metadata"]["name"], {"spec": {"active": False}}, NAMESPACE)
        await becomes(ground, "second", "Admitted")
        await runs(ground, "second", 1)
        assert site.metric("dra_operator_admission_broken_promises_total") == 0
