"""The kernel that plays traces places pods as the operator's own pipeline does: the same nodes, the same devices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from dra_operator.cli import main
from dra_operator.quality.policies import POLICIES
from dra_operator.quality.study import NO_NODE_NUMBER, Run
from dra_operator.quality.trace import Workload, read_nodes, read_pods, workload
from trace_objects import DEVICE_CLASS, claim_of, made_traces, node_of, pod_of, slice_of

Json = dict[str, Any]
NODE_EVERY, POD_EVERY = 35, 30
Places = list[tuple[str, str, list[str]]]
"""Pod, node, devices."""


def small(*, with_cpu: bool) -> Workload:
    """A few nodes and pods of the trace in the repository; without CPU and memory only devices decide."""
    trace = made_traces()
    with (trace / "nodes.csv").open() as nodes, (trace / "pods.csv").open() as pods:
        some_nodes, some_pods = read_nodes(nodes)[::NODE_EVERY], read_pods(pods)[::POD_EVERY]
    if not with_cpu:
        some_pods = [pod._replace(memory=0, shape=pod.shape._replace(cpu=0)) for pod in some_pods if pod.shape.gpus]
        some_nodes = [node._replace(cpu=0, memory=0) for node in some_nodes]
    return workload(some_pods, some_nodes, 1, 0)


def node_name(place: int) -> str:
    return f"n{place:03}"


def by_pipeline(run: Workload, path: Path, capsys: pytest.CaptureFixture[str]) -> Places:
    objects = [DEVICE_CLASS]
    for place, node in enumerate(run.nodes):
        objects += [node_of(node_name(place), node), slice_of(node_name(place), node)]
    for pod in run.arrivals:
        has_claim = bool(pod.shape.gpus)
        objects += [claim_of(pod.name, pod.shape)] if has_claim else []
        objects.append(pod_of(pod.name, pod, pod.name if has_claim else ""))
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
    assert found == by_pipeline(run, tmp_path / "objects.json", capsys)
    assert any(not node for _, node, _ in found)  # some pods are turned away, and both turn the same ones away
    assert len({node for _, node, _ in found}) > 4
