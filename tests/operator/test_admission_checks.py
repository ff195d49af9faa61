"""The controller on the development API server with Kueue's kinds, which come late and go: and the page's commands."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from command import ROOT
from dra_kube import (
    ADMISSION_CHECKS,
    NAMESPACES,
    RESOURCE_CLAIM_TEMPLATES,
    WORKLOADS,
    Api,
    Conflict,
    Resource,
)
from dra_operator.app.settings import OperatorSettings
from kueue_model import CRDS, admission_check, install_kueue, workload
from pages import BY_NAME
from supervised import LiveCluster, Site, Supervising
from waiting import until

Obj = dict[str, Any]
CLUSTER_QUEUES = Resource("kueue.x-k8s.io", ("v1beta2",), "clusterqueues", "ClusterQueue", namespaced=False)
SETTINGS = OperatorSettings(check_invariants=True, controllers="auto,admission")
NOW = "2026-01-01T00:00:00Z"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_operator.sources.watches.OTHER_LOOK_SECONDS", 0.2)


@pytest.fixture
async def site(supervising: Supervising) -> AsyncIterator[Site]:
    async with supervising(SETTINGS) as running:
        yield running


def without_job(name: str, pods: int) -> Obj:
    """A Workload that the garbage collector leaves alone."""
    body = workload(name, pods)
    del body["metadata"]["ownerReferences"]
    return body


async def with_quota(api: Api, name: str, pods: int) -> None:
    """A Workload as it is when Kueue has reserved quota for it."""
    await api.create(WORKLOADS, without_job(name, pods))
    assigned = [{"name": "main", "count": pods}]
    state = {"name": "devices", "state": "Pending", "message": "", "lastTransitionTime": NOW}
    reserved = {"type": "QuotaReserved", "status": "True", "reason": "x", "message": "", "lastTransitionTime": NOW}
    status = {
        "admission": {"clusterQueue": "team", "podSetAssignments": assigned},
        "admissionChecks": [state],
        "conditions": [reserved],
    }
    await api.patch(WORKLOADS, name, {"status": status}, "ns", subresource="status")


async def state(api: Api, name: str) -> Obj:
    found: Obj = (await api.get(WORKLOADS, name, "ns"))["status"]["admissionChecks"][0]
    return found


async def decided(api: Api, name: str) -> Obj:
    async def found() -> Obj | None:
        now = await state(api, name)
        return now if now["state"] != "Pending" else None

    return await until(f"{name} is decided on", found)


async def test_kueue_may_come_later_and_go_and_the_operator_stays_ready(api: Api, site: Site) -> None:
    cluster = LiveCluster(api)
    await cluster.furnish(nodes=1, devices=2, template=True)
    await site.ready()
    await install_kueue(api)
    await api.create(ADMISSION_CHECKS, admission_check())
    await with_quota(api, "good", 2)
    assert (await decided(api, "good"))["state"] == "Ready"
    await with_quota(api, "large", 1)
    large = await decided(api, "large")
    assert large["state"] == "Retry"
    assert "requeueAfterSeconds" not in large  # it would keep its quota as long
    assert "all in use" in large["message"]
    for definition in (await api.list(CRDS))[0]:
        await api.delete(CRDS, definition["metadata"]["name"])
    await cluster.heard()
    await asyncio.sleep(2 * site.supervisor.operator.watches.limits.gap)
    assert site.obstacles() == ""


async def test_a_malformed_workload_is_left_out_alone(api: Api, site: Site) -> None:
    cluster = LiveCluster(api)
    await install_kueue(api)
    await cluster.furnish(nodes=1, devices=2, template=True)
    await api.create(ADMISSION_CHECKS, admission_check())
    await site.ready()
    await api.create(WORKLOADS, {"metadata": {"name": "bad", "namespace": "ns"}, "spec": {"podSets": "none"}})
    await with_quota(api, "good", 2)
    assert (await decided(api, "good"))["state"] == "Ready"
    assert site.metric("dra_operator_malformed_objects_total", resource="workloads.kueue.x-k8s.io") == 1
    assert site.obstacles() == ""


async def run(command: str, kubeconfig: Path) -> str:
    """What a line of the page prints."""
    folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": f"{folder}:{os.environ['PATH']}"}
    process = await asyncio.create_subprocess_shell(
        command, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    printed, _ = await process.communicate()
    text = printed.decode()
    assert process.returncode in ((0, 3) if " dra why " in command else (0,)), f"{command}\n{text}"
    return text


async def test_the_commands_of_the_page(api: Api, site: Site, kubeconfig: Path) -> None:
    await install_kueue(api)
    await LiveCluster(api).furnish(nodes=1, devices=2)
    await api.create(NAMESPACES, {"metadata": {"name": "ml"}})
    await api.create(CLUSTER_QUEUES, {"metadata": {"name": "devices"}, "spec": {}})
    await site.ready()
    turn_on, ask = BY_NAME["docs/kueue.md"].console()
    for line in turn_on:
        await run(line.command, kubeconfig)
    queue = await api.get(CLUSTER_QUEUES, "devices")
    assert queue["spec"]["admissionChecksStrategy"]["admissionChecks"] == [{"name": "devices"}]
    template = {"metadata": {"name": "tmpl", "namespace": "ml"}, "spec": {"spec": {"devices": {"requests": [
        {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}}}  # fmt: skip
    await api.create(RESOURCE_CLAIM_TEMPLATES, template)
    body = without_job("job-train", 3)
    body["metadata"]["namespace"] = "ml"
    await api.create(WORKLOADS, body)
    evicted = {"type": "Evicted", "status": "True", "reason": "AdmissionCheck", "message": "only 2 of 3 pods fit"}
    checks = [{"name": "devices", "state": "Pending", "message": "", "lastTransitionTime": NOW, "retryCount": 2}]
    status = {"admissionChecks": checks, "conditions": [{**evicted, "lastTransitionTime": NOW}]}
    await api.patch(WORKLOADS, "job-train", {"status": status}, "ml", subresource="status")
    columns, why = [await run(line.command, kubeconfig) for line in ask]
    assert "job-train   Pending   only 2 of 3 pods fit" in columns
    assert "its pods do not fit now, not even in an empty cluster: only 2 of 3 pods fit together" in why
    assert "it was retried 2 times" in why


async def test_a_decision_on_an_old_version_is_refused_by_the_server(api: Api, site: Site) -> None:
    await install_kueue(api)
    await LiveCluster(api).furnish(nodes=1, devices=2, template=True)
    await with_quota(api, "old", 1)
    stale = (await api.get(WORKLOADS, "old", "ns"))["metadata"]["resourceVersion"]
    await api.patch(WORKLOADS, "old", {"metadata": {"labels": {"a": "b"}}}, "ns")
    patch = [{"op": "replace", "path": "/metadata/resourceVersion", "value": stale}]
    patch.append({"op": "replace", "path": "/status/admissionChecks/0/state", "value": "Ready"})
    with pytest.raises(Conflict):
        await api.patch(WORKLOADS, "old", patch, "ns", kind="json", subresource="status")
