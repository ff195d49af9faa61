"""The kernel that plays traces places pods as the operator's own pipeline does: the same nodes, the same devices.

Nodes become ResourceSlices whose devices may be allocated several times and have ``milli: 1000``; pods become claims: a
share takes its thousandths, n GPUs are a count, and models are asked for in CEL.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from dra_operator.cli import main
from dra_operator.quality.policies.choices import POLICIES
from dra_operator.quality.run import NO_NODE_NUMBER, Run
from dra_operator.quality.trace import TraceNode, TracePod, read_nodes, read_pods
from dra_operator.quality.workload import Workload, workload

Json = dict[str, Any]
TRACE = Path(__file__).parents[2] / "examples/trace"
NODE_EVERY, POD_EVERY = 35, 30
Places = list[tuple[str, str, list[str]]]
"""Pod, node, devices."""


def small(*, with_cpu: bool) -> Workload:
    """A few nodes and pods of the trace in the repository; without CPU and memory only devices decide."""
    with (TRACE / "nodes.csv").open() as nodes, (TRACE / "pods.csv").open() as pods:
        some_nodes, some_pods = read_nodes(nodes)[::NODE_EVERY], read_pods(pods)[::POD_EVERY]
    if not with_cpu:
        some_pods = [pod._replace(memory=0, shape=pod.shape._replace(cpu=0)) for pod in some_pods if pod.shape.gpus]
    return workload(some_pods, some_nodes, 1, 0)


def node_name(place: int) -> str:
    return f"n{place:03}"


def of_node(place: int, node: TraceNode, *, with_cpu: bool) -> list[Json]:
    name = node_name(place)
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {"model": {"string": node.model}},
            "capacity": {"milli": {"value": "1000"}},
            "allowMultipleAllocations": True,
        }
        for number in range(node.gpus)
    ]
    about = {"driver": "drv", "nodeName": name, "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}}
    allocatable = {"cpu": f"{node.cpu}m", "memory": f"{node.memory}Mi"} if with_cpu else {}
    return [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": allocatable}},
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": {**about, "devices": devices},
        },
    ]


def of_pod(pod: TracePod) -> list[Json]:
    shape, objects, uses = pod.shape, [], []
    if shape.gpus:
        exactly: Json = {"deviceClassName": "gpu", "count": shape.gpus}
        exactly["capacity"] = {"requests": {"milli": str(shape.milli)}}
        if shape.spec:
            expression = f"device.attributes['drv'].model in {json.dumps(shape.spec.split('|'))}"
            exactly["selectors"] = [{"cel": {"expression": expression}}]
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        metadata = {"name": pod.name, "namespace": "default"}
        objects.append(
            {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}
        )
        uses.append({"name": "gpu", "resourceClaimName": pod.name})
    requests = {"cpu": f"{shape.cpu}m", "memory": f"{pod.memory}Mi"} if shape.cpu else {}
    containers = [{"name": "c", "image": "i", "resources": {"requests": requests}}]
    metadata = {"name": pod.name, "namespace": "default"}
    pod_spec = {"containers": containers, "resourceClaims": uses}
    return [*objects, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}]


def by_pipeline(run: Workload, path: Path, capsys: pytest.CaptureFixture[str], *, with_cpu: bool) -> Places:
    device_class = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
    objects = [device_class]
    for place, node in enumerate(run.nodes):
        objects += of_node(place, node, with_cpu=with_cpu)
    for pod in run.arrivals:
        objects += of_pod(pod)
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    assert main(["simulate", "-f", str(path), "--sequential", "-o", "json"]) == 0
    attempts = json.loads(capsys.readouterr().out)["attempts"]
    return [(it["pod"].split("/")[1], it["node"] or "", devices(it)) for it in attempts]


def devices(attempt: Json) -> list[str]:
    chosen = [node for node in attempt["nodes"] if node["node"] == attempt["node"]]
    allocations = [allocation for node in chosen for allocation in node.get("allocations", {}).values()]
    return sorted(result["device"] for it in allocations for result in it["devices"]["results"])


def by_kernel(run: Workload, policy: str) -> Places:
    found: Sequence[Any] = list(Run(run, POLICIES[policy]).placements())
    return [
        (
            it.pod.name,
            "" if it.node == NO_NODE_NUMBER else node_name(it.node),
            [f"gpu-{device}" for device in it.devices],
        )
        for it in found
    ]


@pytest.mark.parametrize(("policy", "with_cpu"), [("first-fit", False), ("emptiest", True)])
def test_the_kernel_takes_the_nodes_and_devices_that_the_pipeline_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str, with_cpu: bool
) -> None:
    run = small(with_cpu=with_cpu)
    found = by_kernel(run, policy)
    assert found == by_pipeline(run, tmp_path / "objects.json", capsys, with_cpu=with_cpu)
    assert any(not node for _, node, _ in found)  # some pods are turned away, and both turn the same ones away
    assert len({node for _, node, _ in found}) > 4
