"""Pods leave tainted devices, with the whole operator on a live API server; fewer pods than the scenarios have
(INT-006 to INT-008). ``benchmarks/evicting.py`` has the thousand, with their time."""

from __future__ import annotations

import asyncio

import pytest
from dra_kube import DEVICE_TAINT_RULES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Api, Resource
from dra_operator.allocator import Features
from dra_operator.app.operator import Options
from dra_operator.reconcile import taint_rules
from live_cluster import LiveCluster
from objects import Obj
from supervised import QUICK, Supervising
from waiting import until

PODS_HERE, NODES_HERE = 60, 3
TAINT = {"key": "example.com/broken", "effect": "NoExecute"}
OPTIONS = Options(check_invariants=True, limits=QUICK, features=Features(taint_rules=True))


async def add_running(api: Api, number: int) -> None:
    """A pod that runs on a node, and the claim with its device."""
    name, node = f"pod-{number}", f"node-{number % NODES_HERE}"
    meta = {"name": name, "namespace": "ns", "finalizers": ["resource.kubernetes.io/delete-protection"]}
    requests = [{"name": "req", "exactly": {"deviceClassName": "gpu"}}]
    claim = await api.create(RESOURCE_CLAIMS, {"metadata": meta, "spec": {"devices": {"requests": requests}}})
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}
    entries = [{"name": "gpu", "resourceClaimName": name}]
    spec = {"nodeName": node, "containers": [container], "resourceClaims": entries}
    pod = await api.create(PODS, {"metadata": {"name": name, "namespace": "ns"}, "spec": spec})
    device = {"request": "req", "driver": "gpu.example.com", "pool": node, "device": f"dev-{number // NODES_HERE}"}
    reserved = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
    claim["status"] = {"allocation": {"devices": {"results": [device]}}, "reservedFor": [reserved]}
    await api.update(RESOURCE_CLAIMS, claim, "status")


async def furnish(cluster: LiveCluster) -> None:
    await cluster.furnish(nodes=NODES_HERE, devices=PODS_HERE // NODES_HERE)
    await asyncio.gather(*(add_running(cluster.api, number) for number in range(PODS_HERE)))


async def all_are_evicted(api: Api) -> None:
    """Every pod is being deleted, and says why."""

    async def look() -> bool:
        pods, _ = await api.list(PODS, "ns")
        return len(pods) == PODS_HERE and all("deletionTimestamp" in pod["metadata"] for pod in pods)

    await until("all pods evicted", look)
    for pod in (await api.list(PODS, "ns"))[0]:
        (condition,) = [it for it in pod["status"]["conditions"] if it["type"] == "DisruptionTarget"]
        assert condition["reason"] == "DeletionByDeviceTaintManager"


DELETIONS = "device_taint_eviction_controller_pod_deletions_total"


async def test_int_006_all_pods_on_tainted_slices_are_evicted(
    api: Api, cluster: LiveCluster, supervising: Supervising
) -> None:
    await furnish(cluster)
    async with supervising(OPTIONS) as site:
        await site.ready()
        for slice_ in (await api.list(RESOURCE_SLICES))[0]:
            for device in slice_["spec"]["devices"]:
                device["taints"] = [TAINT]
            await api.update(RESOURCE_SLICES, slice_)
        await all_are_evicted(api)
        assert site.metric(DELETIONS) == PODS_HERE


@pytest.mark.parametrize("version", ["v1alpha3", "v1beta2"])
async def test_int_007_008_a_rule_looks_first_then_evicts_and_reports_the_end(
    version: str, api: Api, cluster: LiveCluster, supervising: Supervising, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taint_rules, "PERIOD", 1.0)
    kind = DEVICE_TAINT_RULES
    rules = Resource(kind.group, (version,), kind.plural, kind.kind, kind.namespaced)

    async def reports(reason: str) -> Obj:
        async def look() -> Obj | None:
            conditions = (await api.get(rules, "rule")).get("status", {}).get("conditions", [])
            return next((it for it in conditions if it["reason"] == reason), None)

        return await until(f"the rule says {reason}", look)

    await furnish(cluster)
    async with supervising(OPTIONS) as site:
        await site.ready()
        spec = {"taint": {**TAINT, "effect": "None"}, "deviceSelector": {"driver": "gpu.example.com"}}
        await api.create(rules, {"metadata": {"name": "rule"}, "spec": spec})
        looked = await reports("NoEffect")
        assert looked["message"].startswith(
            "60 published devices selected. 60 allocated devices selected. 60 pods would be evicted in 1 namespace if "
        )
        await api.patch(rules, "rule", {"spec": {"taint": {"effect": "NoExecute"}}})
        assert (await reports("PodsPendingEviction"))["status"] == "True"
        await all_are_evicted(api)
        done = await reports("Completed")
        assert (done["status"], done["message"]) == ("False", "60 pods evicted since starting the controller.")
        assert site.metric(DELETIONS) == PODS_HERE
