"""ResourcePoolStatusRequests on a live API server, with the whole operator (E2E-005)."""

from __future__ import annotations

from dra_kube import RESOURCE_POOL_STATUS_REQUESTS, Api
from dra_operator.app.settings import OperatorSettings
from objects import Obj
from supervised import LiveCluster, Supervising
from waiting import until

OPTIONS = OperatorSettings(check_invariants=True, feature_gates="DRAResourcePoolStatus=true")


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
