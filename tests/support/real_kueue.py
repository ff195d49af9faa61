"""The real Kueue beside a real API server, from the folder that ``KUEUE_ASSETS`` names.

The folder has the program ``kueue`` and Kueue's ``config/components`` of the same version as ``components``. Kueue
makes its certificates itself and writes them into its Secret, its webhooks and its definitions. What a cluster does in
between is done here: the Secret is written into Kueue's folder, and the webhooks' Service leads to the loopback.
"""

from __future__ import annotations

import asyncio
import base64
import os
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import envtest
import pytest
import yaml
from dra_kube import NAMESPACES, Api, Object, Resource
from kueue_model import CRDS
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
NAMESPACE: Final = "kueue-system"
SERVICE: Final = "kueue-webhook-service"
SECRET: Final = "kueue-webhook-server-cert"
CONVERTED: Final = ("localqueues", "clusterqueues", "cohorts", "workloads", "multikueueclusters")
"""Definitions with a conversion webhook."""


def assets() -> Path | None:
    """The folder with Kueue, if the environment names one that has it."""
    folder = Path(os.environ.get("KUEUE_ASSETS", ""))
    return folder if (folder / "kueue").exists() and (folder / "components").is_dir() else None


def missing() -> str:
    """What is missing for a real Kueue, with the remedy; empty if nothing is."""
    text = "set KUEUE_ASSETS to a folder with the program kueue and with config/components of its source as components"
    return envtest.missing() or ("" if assets() else text)


needs_kueue = pytest.mark.skipif(bool(missing()), reason=missing())


@asynccontextmanager
async def real_kueue(api: Api, kubeconfig: Path, folder: Path, device_class: str) -> AsyncIterator[Path]:
    """Kueue runs meanwhile, and counts the devices of a class as ``devices``. Yields the path of its log."""
    found = assets()
    assert found is not None, missing()
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
        "namespace": NAMESPACE,
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
        return {"service": {"namespace": NAMESPACE, "name": SERVICE, "path": path, "port": port}}

    for definition in _objects(*sorted((components / "crd" / "bases").glob("*.yaml"))):
        if definition["spec"]["names"]["plural"] in CONVERTED:
            hook = {"clientConfig": at("/convert"), "conversionReviewVersions": ["v1"]}
            definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": hook}
        await api.create(CRDS, definition)
    await api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    await api.create(SECRETS, {"metadata": {"name": SECRET, "namespace": NAMESPACE}})
    spec = {"type": "ExternalName", "externalName": "localhost"}
    await api.create(SERVICES, {"metadata": {"name": SERVICE, "namespace": NAMESPACE}, "spec": spec})
    for configuration in _objects(components / "webhook" / "manifests.yaml"):
        configuration["metadata"]["name"] = f"kueue-{configuration['metadata']['name']}"
        for hook in configuration["webhooks"]:
            hook["clientConfig"] = at(hook["clientConfig"]["service"]["path"])
            hook["namespaceSelector"] = {
                "matchExpressions": [
                    {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAMESPACE]}
                ]
            }
        resource = next(it for it in HOOKS if it.kind == configuration["kind"])
        await api.create(resource, configuration)


def _objects(*files: Path) -> Iterator[Any]:
    for file in files:
        yield from yaml.safe_load_all(file.read_text())


async def _bring_secret(api: Api, folder: Path) -> bool:
    """Write the Secret's files, as a kubelet does for a volume."""
    data = (await api.get(SECRETS, SECRET, NAMESPACE)).get("data") or {}
    for name, text in data.items():
        (folder / name).write_bytes(base64.b64decode(text))
    return "tls.crt" in data


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
