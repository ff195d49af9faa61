"""Pods of the cluster's own scheduler run with devices that they got at our scheduling gate."""

from __future__ import annotations

from typing import Any

import pytest
from dra_kube import PODS
from envtest import needs_stock_control_plane
from scene import Scene, both
from waiting import until

GATE = "dra.kopf.dev/allocate"
GATED: Any = {"schedulerName": "default-scheduler", "schedulingGates": [{"name": GATE}]}


@pytest.fixture(autouse=True)
def _with_a_scheduler(scene: Scene) -> None:
    """A bare kube-apiserver has none."""
    if scene.world.kind != "development cluster" and needs_stock_control_plane.args[0]:
        pytest.skip("needs kube-scheduler")


@both
async def test_a_gated_pod_runs_where_its_devices_are(scene: Scene) -> None:
    await scene.start_driver(nodes=2)
    await scene.create_template()
    names = ["tester-0", "tester-1"]
    for name in names:
        await scene.create_pod(scene.inline_pod(name, **GATED))
    pods = [await scene.runs(name) for name in names]
    assert {pod["spec"]["nodeName"] for pod in pods} == set(scene.node_names[:2])
    assert all("schedulingGates" not in pod["spec"] for pod in pods)
    if scene.kubelet:
        assert "user_a=b" in await scene.environment(names[0])


@both
async def test_a_gated_pod_waits_for_devices_and_runs_when_they_come(scene: Scene) -> None:
    await scene.start_driver(with_class=False)
    await scene.create_claim()
    await scene.create_pod(scene.pod(**GATED))
    await scene.pending(says=f"device class {scene.class_name} does not exist")
    (condition,) = [entry for entry in (await scene.get_pod())["status"]["conditions"] if entry["status"] == "False"]
    assert condition["reason"] == "SchedulingGated"
    await scene.create_class()
    await scene.runs()
    await scene.event("tester", "SchedulingGateRemoved")


@both
async def test_a_gated_pod_that_goes_before_it_runs_gives_its_devices_back(scene: Scene) -> None:
    """No scheduler of its name is at work."""
    await scene.start_driver()
    await scene.create_claim()
    body = scene.pod(**GATED, containers=[scene.container("with-resource", "my-claim")])
    body["spec"]["schedulerName"] = "nothing-of-this-name"
    await scene.create_pod(body)

    async def is_open() -> bool:
        return not (await scene.get_pod())["spec"].get("schedulingGates")

    await until("the gate is open", is_open)
    pod = await scene.get_pod()
    assert [consumer["uid"] for consumer in (await scene.get_claim())["status"]["reservedFor"]] == [
        pod["metadata"]["uid"]
    ]
    await scene.api.delete(PODS, "tester", scene.namespace)
    await scene.deallocated()
