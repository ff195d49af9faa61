"""The controller ``admission`` with the real Kueue, on a real control plane.

Jobs of which each pod takes two devices run on nodes of three: by quota alone three pods would have devices for two.

``KUEUE_ASSETS`` names a folder with the program ``kueue`` and Kueue's ``config/components`` of the same version as
``components``. Kueue makes its certificates itself and writes them into its Secret, its webhooks and its definitions.
What a cluster does in between is done here: the Secret is written into Kueue's folder, and the webhooks' Service leads
to the loopback.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import envtest
import pytest
import yaml
from dra_api import yaml_text
from dra_kube import (
    ADMISSION_CHECKS,
    NAMESPACES,
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
from kueue_model import CRDS, admission_check, condition, flavor, is_true, kueue_assets
from proving_ground import NAMESPACE, ProvingGround, proving_ground
from supervised import Site, supervised
from waiting import until

ADMISSION_HOOKS: Final = "admissionregistration.k8s.io"
HOOKS: Final = tuple(
    Resource(ADMISSION_HOOKS, ("v1",), f"{kind.lower()}s", kind, namespaced=False)
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
)
SECRETS: Final = Resource("", ("v1",), "secrets", "Secret", namespaced=True)
SERVICES: Final = Resource("", ("v1",), "services", "Service", namespaced=True)
QUEUES: Final = {
    kind: Resource("kueue.x-k8s.io", ("v1beta2",), f"{kind.lower()}s", kind, namespaced=kind == "LocalQueue")
    for kind in ("ClusterQueue", "LocalQueue")
}
KUEUE_NAMESPACE: Final = "kueue-system"
SERVICE: Final = "kueue-webhook-service"
SECRET: Final = "kueue-webhook-server-cert"
CONVERTED: Final = ("localqueues", "clusterqueues", "cohorts", "workloads", "multikueueclusters")
"""Definitions with a conversion webhook."""


def missing_of_kueue() -> str:
    """What is missing for a real Kueue, with the remedy; empty if nothing is."""
    text = "set KUEUE_ASSETS to a folder with the program kueue and with config/components of its source as components"
    return envtest.missing() or ("" if kueue_assets() else text)


pytestmark = pytest.mark.skipif(bool(missing_of_kueue()), reason=missing_of_kueue())


@asynccontextmanager
async def real_kueue(api: Api, kubeconfig: Path, folder: Path, device_class: str) -> AsyncIterator[Path]:
    """Kueue runs meanwhile, and counts the devices of a class as ``devices``. Yields the path of its log."""
    found = kueue_assets()
    assert found is not None, missing_of_kueue()
    hooks, health = envtest.free_ports(2)
    await _install(api, found / "components", hooks)
    certificates = folder / "certificates"
    certificates.mkdir(parents=True)
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(_configuration(hooks, health, certificates, device_class)))
    log = folder / "kueue.log"
    # Two of its controllers write the same new Secret. After the conflict it waits for ever, even when it is to end.
    async with _running(found / "kueue", config, kubeconfig, log):
        await until("Kueue's certificates", lambda: _bring_secret(api, certificates), 120)
    async with _running(found / "kueue", config, kubeconfig, log) as process:
        await until("Kueue is ready", lambda: asyncio.to_thread(_is_ready, health), 120)
        yield log
        assert process.returncode is None, f"Kueue ended by itself: {log.read_text()[-3000:]}"


@asynccontextmanager
async def _running(
    program: Path, config: Path, kubeconfig: Path, log: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    arguments = (f"--config={config}", "--zap-log-level=2")
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            program, *arguments, stdout=output, stderr=output, env=environment
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _configuration(hooks: int, health: int, certificates: Path, device_class: str) -> Object:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": KUEUE_NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": hooks, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": True, "webhookServiceName": SERVICE, "webhookSecretName": SECRET},
        "integrations": {"frameworks": ["batch/job"]},
        "resources": {"deviceClassMappings": [{"name": "devices", "deviceClassNames": [device_class]}]},
        "featureGates": {"VisibilityOnDemand": False},  # it would be an API server of its own
    }


async def _install(api: Api, components: Path, port: int) -> None:
    def at(path: str) -> Object:
        return {"service": {"namespace": KUEUE_NAMESPACE, "name": SERVICE, "path": path, "port": port}}

    for definition in _objects(*sorted((components / "crd" / "bases").glob("*.yaml"))):
        if definition["spec"]["names"]["plural"] in CONVERTED:
            hook = {"clientConfig": at("/convert"), "conversionReviewVersions": ["v1"]}
            definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": hook}
        await api.create(CRDS, definition)
    await api.create(NAMESPACES, {"metadata": {"name": KUEUE_NAMESPACE}})
    await api.create(SECRETS, {"metadata": {"name": SECRET, "namespace": KUEUE_NAMESPACE}})
    spec = {"type": "ExternalName", "externalName": "localhost"}
    await api.create(SERVICES, {"metadata": {"name": SERVICE, "namespace": KUEUE_NAMESPACE}, "spec": spec})
    own = ["kube-system", KUEUE_NAMESPACE]
    others = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": own}
    for configuration in _objects(components / "webhook" / "manifests.yaml"):
        configuration["metadata"]["name"] = f"kueue-{configuration['metadata']['name']}"
        for hook in configuration["webhooks"]:
            hook["clientConfig"] = at(hook["clientConfig"]["service"]["path"])
            hook["namespaceSelector"] = {"matchExpressions": [others]}
        resource = next(it for it in HOOKS if it.kind == configuration["kind"])
        await api.create(resource, configuration)


def _objects(*files: Path) -> Iterator[Any]:
    for file in files:
        yield from yaml_text.load_all(file.read_text())


async def _bring_secret(api: Api, folder: Path) -> bool:
    """Write the Secret's files, as a kubelet does for a volume."""
    data = (await api.get(SECRETS, SECRET, KUEUE_NAMESPACE)).get("data") or {}
    for name, text in data.items():
        (folder / name).write_bytes(base64.b64decode(text))
    return "tls.crt" in data


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


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
            paused = "checks pause" in caplog.text
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
