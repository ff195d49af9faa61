"""When the operator verifies its invariants: not while another leader may be at work already."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from dra_kube import PODS, RESOURCE_CLAIMS, Api, NotLeading, connection
from dra_operator.app.operator import Operator
from dra_operator.app.settings import OperatorSettings
from supervised import LiveCluster
from waiting import becomes, until

DEVICE = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}


async def add_running(api: Api, name: str) -> None:
    """A pod that runs, with a claim that has the only device."""
    meta = {"name": name, "namespace": "ns", "finalizers": ["resource.kubernetes.io/delete-protection"]}
    requests = [{"name": "req", "exactly": {"deviceClassName": "gpu"}}]
    claim = await api.create(RESOURCE_CLAIMS, {"metadata": meta, "spec": {"devices": {"requests": requests}}})
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
    entries = [{"name": "gpu", "resourceClaimName": name}]
    spec = {"nodeName": "node-0", "containers": [container], "resourceClaims": entries}
    pod = await api.create(PODS, {"metadata": {"name": name, "namespace": "ns"}, "spec": spec})
    reserved = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
    claim["status"] = {"allocation": {"devices": {"results": [DEVICE]}}, "reservedFor": [reserved]}
    await api.update(RESOURCE_CLAIMS, claim, "status")


async def test_a_leader_whose_lease_is_overdue_judges_its_view_only_when_it_has_renewed_it(
    api: Api, cluster: LiveCluster, kubeconfig: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.furnish(devices=1)
    for name in ("one", "other"):
        await add_running(api, name)
    renewed, asked = False, 0

    def guard() -> float:
        nonlocal asked
        asked += 1
        if not renewed:
            raise NotLeading("the lease was last renewed 60 s ago")
        return 10.0

    operator = Operator(OperatorSettings(check_invariants=True), guard=guard)
    with caplog.at_level(logging.ERROR):
        await operator.start(connection(kubeconfig), watches=True)
        try:
            await operator.control.look_at_everything()
            await becomes(lambda: asked > 2)
            assert "invariant violated" not in caplog.text
            renewed = True

            async def judged() -> bool:
                await operator.control.look_at_everything()
                return "dev-0 is allocated to claim ns/" in caplog.text

            await until("what is wrong is logged", judged)
        finally:
            await operator.stop()
