"""What a cluster with the applied manifests does for its users: gangs, preemption, and moves that make room.

The operator is deployed with the component for preemption. The development cluster runs the stories.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import yaml
from deployment_site import NODES, Site
from kubectl import ROOT

HALF, WHOLE = 4, 8
"""Of the devices that manifests/plugin/simulated.yaml gives a node."""


async def gangs_start_together(site: Site) -> None:
    """Two pods on one node, of which the first waits for the other, and the four that a Job makes."""
    kubectl, example = site.kubectl, ROOT / "manifests/examples/gang"
    documents = (example / "pods.yaml").read_text()
    without_the_last, _, _ = documents.rpartition("---")
    await kubectl("apply", "--validate=strict", "-f", "-", stdin=without_the_last)
    await kubectl("wait", "--for=condition=PodScheduled=false", "pod", "gang-1", "--timeout=60s")
    await kubectl("apply", "--validate=strict", "-f", "-", stdin=documents)
    await kubectl("wait", "--for=condition=Ready", "pod", "gang-1", "gang-2", "--timeout=120s")
    assert len({pod["spec"]["nodeName"] for pod in (await kubectl.read("pods"))["items"]}) == 1

    await kubectl("delete", "pod", "gang-1", "gang-2")
    await a_job_is_done(site, example / "job.yaml")
    if site.has_pod_groups:
        await kubectl("apply", "--validate=strict", "-f", str(example / "pod-group.yaml"))
        names = ("gang-of-group-0", "gang-of-group-1")
        await kubectl("wait", "--for=condition=Ready", "pod", *names, "--timeout=120s")
        assert len({(await kubectl.read("pod", name))["spec"]["nodeName"] for name in names}) == 1
        await kubectl("delete", "-f", str(example / "pod-group.yaml"), "--timeout=120s")


async def a_job_is_done(site: Site, path: Path) -> None:
    """Its four pods are a gang."""
    await site.kubectl("apply", "--validate=strict", "-f", str(path))
    await site.kubectl("wait", "--for=condition=Complete", "job", "gang-job", "--timeout=120s")
    await site.kubectl("delete", "-f", str(path), "--timeout=120s")


async def an_urgent_pod_ends_a_patient_one(site: Site) -> None:
    """All devices are in use; the urgent pod runs in the place of a patient one, whose successor waits."""
    kubectl, example = site.kubectl, "manifests/examples/preemption"
    await kubectl("apply", "--validate=strict", "-f", f"{example}/patient.yaml")
    await kubectl("rollout", "status", "deployment/patient", "--timeout=120s")
    await kubectl("apply", "--validate=strict", "-f", f"{example}/urgent.yaml")
    await kubectl("wait", "--for=condition=Ready", "pod", "urgent", "--timeout=120s")
    patient = (await kubectl.read("pods", "--selector=app=patient"))["items"]
    assert sum(pod["status"]["phase"] == "Running" for pod in patient) == NODES - 1
    events = (await kubectl.read("events"))["items"]
    assert {"Preempted", "Preempting"} <= {event["reason"] for event in events}
    await kubectl("delete", "-f", example, "--timeout=120s")


async def a_pod_is_moved_for_a_large_one(site: Site) -> None:
    """Half of the devices of each node are free; ``kubectl dra defrag`` moves a pod, and the one that needs a whole
    node runs. Who moves it has the rights that docs/defragment.md names."""
    kubectl = site.kubectl
    await kubectl("apply", "--validate=strict", "-f", "-", stdin=yaml.safe_dump_all(rights_to_move()))
    await kubectl("apply", "--validate=strict", "-f", "-", stdin=yaml.safe_dump_all([template(HALF), template(WHOLE)]))
    for node, other in (("node-1", "node-2"), ("node-2", "node-1")):
        await kubectl("cordon", other)
        await kubectl("apply", "--validate=strict", "-f", "-", stdin=yaml.safe_dump(movable(f"on-{node}")))
        await kubectl("rollout", "status", f"deployment/on-{node}", "--timeout=120s")
        await kubectl("uncordon", other)
    large = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "large"}, "spec": with_devices(WHOLE)}
    await kubectl("apply", "--validate=strict", "-f", "-", stdin=yaml.safe_dump(large))
    await kubectl("wait", "--for=condition=PodScheduled=false", "pod", "large", "--timeout=60s")
    said = await defrag(site, "--for", "pod/large", "--namespace", "default", "--apply", "--yes")
    assert "1 of 1 move made: default/large fits on node-" in said
    await kubectl("wait", "--for=condition=Ready", "pod", "large", "--timeout=120s")
    halves = (await kubectl.read("pods", "--selector=size=half", "--field-selector=status.phase=Running"))["items"]
    nodes = [pod["spec"]["nodeName"] for pod in halves if "deletionTimestamp" not in pod["metadata"]]
    assert len(nodes) == NODES
    assert len({*nodes, (await kubectl.read("pod", "large"))["spec"]["nodeName"]}) == NODES
    assert not [node for node in (await kubectl.read("nodes"))["items"] if node["spec"].get("unschedulable")]
    await kubectl("delete", "pod/large", "deployment/on-node-1", "deployment/on-node-2", "--timeout=120s")


async def defrag(site: Site, *words: str) -> str:
    """What ``kubectl dra defrag`` prints to who may move pods, which nothing refuses."""
    environment = {**os.environ, "KUBECONFIG": str(await site.account("mover"))}
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "kubectl-dra"), "defrag", *words, env=environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


def rights_to_move() -> list[dict[str, Any]]:
    """A service account with the rights of the viewer, and those to evict pods and to cordon nodes."""
    api = "rbac.authorization.k8s.io"
    meta = {"name": "mover"}
    subjects = [{"kind": "ServiceAccount", "name": "mover", "namespace": "dra-system"}]
    rules = [
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]},
    ]
    bindings = [
        {"apiVersion": f"{api}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": f"mover-{role}"},
         "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": role}, "subjects": subjects}
        for role in ("mover", "dra-viewer")
    ]  # fmt: skip
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**meta, "namespace": "dra-system"}},
        {"apiVersion": f"{api}/v1", "kind": "ClusterRole", "metadata": meta, "rules": rules},
        *bindings,
    ]


def template(devices: int) -> dict[str, Any]:
    """For a claim with so many devices of one node."""
    request = {"name": "devices", "exactly": {"deviceClassName": "simulated", "count": devices}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"take-{devices}"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def with_devices(devices: int) -> dict[str, Any]:
    """The spec of a pod with such a claim, which runs until it is told to end."""
    container = {
        "name": "main",
        "image": "busybox:1.37",
        "command": ["sh", "-c", "trap exit TERM; sleep 3600 & wait"],
        "resources": {"claims": [{"name": "devices"}]},
    }
    return {
        "schedulerName": "dra-scheduler",
        "terminationGracePeriodSeconds": 1,
        "resourceClaims": [{"name": "devices", "resourceClaimTemplateName": f"take-{devices}"}],
        "containers": [container],
    }


def movable(name: str) -> dict[str, Any]:
    """A Deployment with one pod that takes half of a node, and may be moved."""
    labels = {"app": name, "size": "half"}
    metadata = {"labels": labels, "annotations": {"dra.kopf.dev/movable": "true"}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": metadata, "spec": with_devices(HALF)},
        },
    }
