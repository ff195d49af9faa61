"""``kopf run operator/main.py`` against the development API server."""

from __future__ import annotations

from dra_kube import PODS, RESOURCE_CLAIMS
from objects import Obj
from supervised import LiveCluster, Operating
from waiting import until


async def test_pods_get_devices_and_give_them_back(cluster: LiveCluster, operating: Operating) -> None:
    await cluster.furnish(devices=1, template=True)
    async with operating() as runner:
        await cluster.add_pod("first")
        pod = await cluster.bound("first")
        (claim,) = await cluster.claims()
        assert claim["status"]["reservedFor"][0]["uid"] == pod["metadata"]["uid"]
        assert claim["status"]["allocation"]["devices"]["results"][0]["device"] == "dev-0"
        await cluster.add_pod("second")
        await cluster.api.patch(PODS, "first", {"status": {"phase": "Succeeded"}}, "ns", subresource="status")
        await cluster.gone(RESOURCE_CLAIMS, claim["metadata"]["name"])
        assert (await cluster.bound("second"))["spec"]["nodeName"] == "node-0"
    assert runner.exit_code == 0
    assert "in sync: 1 nodes, 1 slices" in runner.output


async def test_a_pod_that_cannot_be_placed_says_why(cluster: LiveCluster, operating: Operating) -> None:
    await cluster.furnish(devices=1)
    await cluster.add_template(count=2)
    async with operating():
        await cluster.add_pod("big")

        async def refused() -> Obj | None:
            conditions = (await cluster.pod("big"))["status"].get("conditions") or ()
            return next((entry for entry in conditions if entry["type"] == "PodScheduled"), None)

        condition = await until("refused", refused)
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    assert "0/1 nodes are available" in condition["message"]
    assert "needs 2" in condition["message"]


async def test_a_selector_that_fails_on_the_only_node_is_named(cluster: LiveCluster, operating: Operating) -> None:
    await cluster.furnish(devices=1, selector='device.attributes["gpu.example.com"].healthy', template=True)
    async with operating():
        await cluster.add_pod("odd")

        async def message() -> str | None:
            conditions = (await cluster.pod("odd"))["status"].get("conditions") or ()
            return next((entry["message"] for entry in conditions if entry["type"] == "PodScheduled"), None)

        assert "CEL runtime error" in await until("a message", message)


async def test_kopf_writes_nothing_of_its_own(cluster: LiveCluster, operating: Operating) -> None:
    await cluster.furnish(template=True)
    async with operating():
        await cluster.add_pod("pod")
        pod = await cluster.bound("pod")
        (claim,) = await cluster.claims()
    for obj in (pod, claim):
        assert "kopf" not in str(obj["metadata"].get("annotations"))
        assert "kopf" not in str(obj["metadata"].get("finalizers")).replace("kopf-dra", "")
        managers = {entry["manager"] for entry in obj["metadata"].get("managedFields") or ()}
        assert managers <= {"kopf-dra", "dra-scheduler", "kube-scheduler"}
