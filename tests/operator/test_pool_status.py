"""ResourcePoolStatusRequests on a live API server, with the whole operator (E2E-005, PRJ-005)."""

from __future__ import annotations

import pytest
from dra_kube import RESOURCE_POOL_STATUS_REQUESTS, RESOURCE_SLICES, Api
from dra_operator.allocator import Features
from dra_operator.app.operator import Options
from dra_operator.reconcile import pool_status
from live_cluster import LiveCluster
from objects import Obj
from supervised import QUICK, Supervising
from waiting import until

OPTIONS = Options(check_invariants=True, limits=QUICK, features=Features(pool_status=True))


async def ask(api: Api, name: str, **spec: str) -> Obj:
    """The status that a request gets."""
    body = {"metadata": {"name": name}, "spec": {"driver": "gpu.example.com", **spec}}
    await api.create(RESOURCE_POOL_STATUS_REQUESTS, body)

    async def look() -> Obj | None:
        found: Obj | None = (await api.get(RESOURCE_POOL_STATUS_REQUESTS, name)).get("status")
        return found

    return await until("the request is answered", look)


async def test_e2e_005_a_request_is_answered_with_what_is_free(
    api: Api, cluster: LiveCluster, supervising: Supervising
) -> None:
    await cluster.furnish(nodes=2, devices=4)
    await cluster.add_template(count=3)
    async with supervising(OPTIONS) as site:
        await site.ready()
        await cluster.add_pod("pod")
        node = (await cluster.bound("pod"))["spec"]["nodeName"]
        answer = await ask(api, "all")
        free = {pool["poolName"]: pool["availableDevices"] for pool in answer["pools"]}
        assert free == {"node-0": 4, "node-1": 4} | {node: 1}
        assert answer["conditions"][0]["type"] == "Complete"
        (only,) = (await ask(api, "one", poolName=node))["pools"]
        assert (only["totalDevices"], only["allocatedDevices"], only["nodeName"]) == (4, 3, node)


async def test_prj_005_a_permanently_incomplete_pool_is_answered_with_what_is_missing(
    api: Api, cluster: LiveCluster, supervising: Supervising, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_status, "PAUSE", 0.05)
    await cluster.furnish(nodes=1, devices=1)
    (slice_,), _ = await api.list(RESOURCE_SLICES)
    slice_["spec"]["pool"]["resourceSliceCount"] = 2
    await api.update(RESOURCE_SLICES, slice_)
    async with supervising(OPTIONS) as site:
        await site.ready()
        (pool,) = (await ask(api, "request"))["pools"]
    assert pool["validationError"] == ("pool gpu.example.com/node-0 is incomplete: observed 1/2 slices at generation 1")
    assert "availableDevices" not in pool
