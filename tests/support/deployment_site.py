"""A cluster with the applied manifests, and what it does for its users.

A container is a process of this machine. For its image ``build`` puts a program into a folder of a node's search path.
It is called exactly as the pod says, writes down its command line and environment, and becomes the real program, with
flags appended for what a test tries.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import envtest
import pytest
import yaml
from command import ROOT, Kubectl, kubectl_for
from dra_api import yaml_text
from dra_devcluster.agent import AgentSettings, Backoff, NodeAgent
from dra_devcluster.agent.processes.process import why_impossible
from dra_devcluster.apiserver.rbac import Attributes
from dra_devcluster.cluster import ClusterNode, DevCluster
from dra_kube import Api, Connection, connection
from manifest_accounts import namespace_of, recorded

_STAND_IN = """#!{python}
import json, os, sys
from pathlib import Path

here = Path(sys.argv[0]).resolve()
call = {{"command": [here.name, *sys.argv[1:]], "environment": dict(os.environ)}}
with (here.parent / f"{{here.name}}.calls").open("a") as calls:
    print(json.dumps(call), file=calls)
os.execv({program!r}, [{program!r}, *sys.argv[1:], *{flags!r}])
"""


def build(folder: Path, name: str, flags: Sequence[str] = ()) -> None:
    """Put the placeholder pod for one console script into the folder."""
    program = str(Path(sys.executable).parent / name)
    (folder / name).write_text(_STAND_IN.format(python=sys.executable, program=program, flags=list(flags)))
    (folder / name).chmod(0o755)


def calls(folder: Path, name: str) -> list[dict[str, Any]]:
    """The ``command`` and ``environment`` of every start so far."""
    file = folder / f"{name}.calls"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@dataclass
class RealCluster:
    """What a test asks of a cluster; the node agents come as administrator."""

    folder: Path
    kubeconfig: Path
    nodes: list[ClusterNode] = field(default_factory=list)

    def connection(self) -> Connection:
        """How to reach the API server as administrator."""
        return connection(self.kubeconfig)


@asynccontextmanager
async def real_cluster(folder: Path, nodes: int, settings: AgentSettings) -> AsyncIterator[RealCluster]:
    """API server, kube-controller-manager and kube-scheduler as a cluster has them, and nodes node-1, node-2, ..."""
    binaries = envtest.assets()
    assert binaries is not None
    (folder / "servers").mkdir()
    with envtest.real_api_server(binaries, folder / "servers", stock=True) as kubeconfig:
        cluster = RealCluster(folder, _trusting(kubeconfig, folder))
        async with AsyncExitStack() as stack:
            for name in (f"node-{number}" for number in range(1, nodes + 1)):
                api = await stack.enter_async_context(Api(cluster.connection(), user_agent="node-agent"))
                agent = NodeAgent(api, name, root=folder / "nodes" / name, settings=settings)
                cluster.nodes.append(ClusterNode(await stack.enter_async_context(agent)))
            yield cluster


def _trusting(kubeconfig: Path, folder: Path) -> Path:
    """The same with the server's authority, which pods find beside their token."""
    config = yaml_text.load(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    del cluster["insecure-skip-tls-verify"]
    cluster["certificate-authority"] = str(kubeconfig.parent / "certs" / "apiserver.crt")
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


# --- deployment site ---

NODES = 2
WORKLOADS = ("GenericWorkload", "DRAWorkloadResourceClaims", "TopologyAwareWorkloadScheduling")
"""Gates of PodGroups."""


@dataclass
class Site:
    """A cluster with nodes that find the image's programs in ``image``, and a kubectl for it."""

    cluster: DevCluster | RealCluster
    kubectl: Kubectl
    image: Path
    requests: set[Attributes] = field(default_factory=set)

    @property
    def has_pod_groups(self) -> bool:
        """Whether the API server has the gates of workload claims on."""
        return isinstance(self.cluster, DevCluster)

    async def deploy(self, flags: Sequence[str] = (), *, components: Sequence[str] = ()) -> None:
        """Apply everything, with these of manifests/components; the operator gets these flags as well."""
        build(self.image, "dra-operator", flags)
        build(self.image, "dra-kubelet-plugin")
        await self.kubectl("apply", "--validate=strict", "-k", self._manifests(components))

    def _manifests(self, components: Sequence[str]) -> str:
        """A folder to apply: operator and simulated driver."""
        up = os.path.relpath(ROOT / "manifests", self.cluster.folder)
        content = {
            "resources": [up, f"{up}/examples/simulated-driver"],
            "components": [f"{up}/components/{name}" for name in components],
        }
        (self.cluster.folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
        return str(self.cluster.folder)

    async def runs(self) -> None:
        """Wait until operator and plugins are ready."""
        for kind, name in (("deployment", "dra-operator"), ("daemonset", "dra-plugin")):
            where = ("--namespace", namespace_of(name))
            await self.kubectl("rollout", "status", kind, name, *where, "--timeout=120s")

    async def rendered(self) -> list[dict[str, Any]]:
        return list(yaml_text.load_all(await self.kubectl("kustomize", self._manifests(()))))

    async def account(self, name: str, pod: str = "") -> Path:
        """A kubeconfig for a service account; with a token that is bound to the pod, if one is named."""
        bound = ["--bound-object-kind", "Pod", "--bound-object-name", pod] if pod else []
        token = await self.kubectl("create", "token", name, "--namespace", namespace_of(name), *bound)
        config = yaml_text.load(self.cluster.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token.strip()}
        path = self.cluster.folder / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path


@asynccontextmanager
async def deployment_site(*, real: bool = False) -> AsyncIterator[Site]:
    """An empty cluster to deploy to. Skips the test on a machine that forbids mounts."""
    if obstacle := why_impossible():
        pytest.skip(f"no mounts on this machine: {obstacle}")
    with tempfile.TemporaryDirectory(prefix="m-") as made:
        folder = Path(made)
        image = folder / "image"
        image.mkdir()
        settings = AgentSettings(
            search_path=f"{image}:/usr/local/bin:/usr/bin:/bin",
            plugin_period=0.1,
            pod_retry=0.3,
            probe_timeout=60.0,
            restart_backoff=Backoff(0.3, 1.0),
        )
        if real:
            async with real_cluster(folder, NODES, settings) as cluster:
                yield Site(cluster, kubectl_for(cluster.kubeconfig, folder), image)
            return
        with recorded() as requests:
            gates = dict.fromkeys(WORKLOADS, True)
            async with DevCluster(
                folder, nodes=NODES, agent_settings=settings, authorization="rbac", feature_gates=gates
            ) as cluster:
                yield Site(cluster, kubectl_for(cluster.kubeconfig, folder), image, requests)


# --- What a cluster with the applied manifests does for its users: gangs, preemption, and moves that make room ---

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
