"""Many pods leave tainted devices at a time (INT-006 to INT-008). ``benchmarks/evicting.py`` has the time it takes.

Nothing runs: the pods are bound, and their claims allocated, by the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

import envtest
import pytest
from command import OperatorProcess
from dra_kube import DEVICE_TAINT_RULES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, NotServed, Object
from msgspec.structs import replace
from scene import Scene, control_plane, done_by_us
from waiting import until

pytestmark = pytest.mark.timeout(900)  # a thousand pods, on a busy machine

PODS_HERE = 1000 if envtest.assets() else 20
"""The scenarios have a thousand; here those of two rules are half of them each."""
WORKERS = 20
TAINT = {"key": "example.com/broken", "effect": "NoExecute"}
DELETIONS = "device_taint_eviction_controller_pod_deletions_total"


async def add_bound(scene: Scene, pool: str, number: int) -> None:
    """A pod on a node, and the claim with its device of the pool."""
    name = f"{pool}-{number}"
    meta = {"name": name, "namespace": scene.namespace, "finalizers": ["resource.kubernetes.io/delete-protection"]}
    claim = await scene.api.create(RESOURCE_CLAIMS, {"metadata": meta, "spec": scene.claim_spec()})
    body = scene.pod(name, [{"name": "my-claim", "resourceClaimName": name}], nodeName=scene.node_names[0])
    pod = await scene.create_pod(body)
    device = {"request": "req", "driver": scene.driver_name, "pool": pool, "device": f"dev-{number}"}
    reserved = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
    claim["status"] = {"allocation": {"devices": {"results": [device]}}, "reservedFor": [reserved]}
    await scene.api.update(RESOURCE_CLAIMS, claim, "status")


async def crowd(scene: Scene, pool: str, count: int) -> list[Object]:
    """A pool whose devices are all in use by as many pods; its slices."""
    names = [f"dev-{number}" for number in range(count)]
    parts = [names[start : start + 50] for start in range(0, count, 50)]
    described = {"name": pool, "generation": 1, "resourceSliceCount": len(parts)}
    slices = [
        await scene.create_slice(allNodes=True, pool=described, devices=[{"name": name} for name in part])
        for part in parts
    ]
    await many_at_a_time(add_bound(scene, pool, number) for number in range(count))
    return slices


async def many_at_a_time(work: Iterable[Awaitable[None]]) -> None:
    """Do all of it."""
    rest = iter(work)

    async def worker() -> None:
        for piece in rest:
            await piece

    await asyncio.gather(*(worker() for _ in range(WORKERS)))


async def all_are_evicted(scene: Scene, count: int) -> None:
    """Every pod is being deleted, and says why; then it goes."""

    async def look() -> bool:
        pods, _ = await scene.api.list(PODS, scene.namespace)
        leaving = [pod for pod in pods if "deletionTimestamp" in pod["metadata"]]
        assert len(leaving) == count
        for pod in leaving:
            reasons = [it["reason"] for it in pod["status"]["conditions"] if it["type"] == "DisruptionTarget"]
            assert reasons == ["DeletionByDeviceTaintManager"]
        return True

    await until("all pods evicted", look, 300.0)
    pods, _ = await scene.api.list(PODS, scene.namespace)
    await many_at_a_time(scene.delete_pod(pod["metadata"]["name"]) for pod in pods)  # no kubelet does it


@control_plane
@done_by_us
async def test_int_006_all_pods_on_tainted_slices_are_evicted(scene: Scene) -> None:
    slices = await crowd(scene, "pool", PODS_HERE)
    for slice_ in slices:
        for device in slice_["spec"]["devices"]:
            device["taints"] = [TAINT]
        await scene.api.update(RESOURCE_SLICES, slice_)
    await all_are_evicted(scene, PODS_HERE)


async def evict_by_rule(scene: Scene, version: str, pool: str) -> None:
    """A rule of this version looks first, then evicts the pods of the pool, and reports the end."""
    count = PODS_HERE // 2
    rules = replace(DEVICE_TAINT_RULES, versions=(version,))
    name = f"{scene.namespace}-{version}"
    selector = {"driver": scene.driver_name, "pool": pool}
    spec: Any = {"taint": {**TAINT, "effect": "None"}, "deviceSelector": selector}

    async def reports(reason: str) -> Object:
        async def look() -> Object | None:
            conditions = (await scene.api.get(rules, name)).get("status", {}).get("conditions", [])
            return next((it for it in conditions if it["reason"] == reason), None)

        return await until(f"rule {name} says {reason}", look, 300.0)

    async def looked() -> bool:
        """It looks once. If the operator has not heard of all pods by then, the rule has to be made anew."""
        await scene.api.create(rules, {"metadata": {"name": name}, "spec": spec})
        message = (await reports("NoEffect"))["message"]
        published = f"{count} published devices selected. {count} allocated devices selected. "
        if message.startswith(f"{published}{count} pods would be evicted in 1 namespace if "):
            return True
        await scene.api.delete(rules, name)
        raise AssertionError(message)

    await until(f"rule {name} has looked", looked, 300.0)
    try:
        await scene.api.patch(rules, name, {"spec": {"taint": {"effect": "NoExecute"}}})
        assert (await reports("PodsPendingEviction"))["status"] == "True"
        done = await reports("Completed")
        assert (done["status"], done["message"]) == ("False", f"{count} pods evicted since starting the controller.")
    finally:
        await scene.api.delete(rules, name)


@control_plane
async def test_int_007_008_rules_of_both_versions_look_first_then_evict_and_report_the_end(
    scene: Scene, second: OperatorProcess
) -> None:
    """Ten seconds pass between two reports of a rule."""
    pools = {"v1alpha3": "old", "v1beta2": "new"}
    for version in pools:
        try:
            await scene.api.version_of(replace(DEVICE_TAINT_RULES, versions=(version,)))
        except NotServed:
            pytest.skip(f"this API server does not serve DeviceTaintRules in {version}")
    before = await second.metric(DELETIONS)
    for pool in pools.values():
        await crowd(scene, pool, PODS_HERE // 2)
    await asyncio.gather(*(evict_by_rule(scene, version, pool) for version, pool in pools.items()))
    await all_are_evicted(scene, PODS_HERE)
    assert await second.metric(DELETIONS) - before == PODS_HERE
