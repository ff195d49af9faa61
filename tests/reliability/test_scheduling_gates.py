"""Pods of the cluster's own scheduler get their devices at our gate; that scheduler binds them where these are.

On the development cluster it is one that knows nothing of claims; on a stock control plane it is kube-scheduler, beside
kube-controller-manager.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from dra_kube import PODS, RESOURCE_CLAIMS, Object
from envtest import needs_stock_control_plane
from faults import CutAfter, CutBefore, Delay, Target
from proving_ground import NAMESPACE, PATIENCE, ProvingGround
from waiting import stays, until

pytestmark = pytest.mark.timeout(300)

GATE = "dra.kopf.dev/allocate"
THEIRS: Object = {"schedulerName": "default-scheduler"}
GATED: Object = {**THEIRS, "schedulingGates": [{"name": GATE}]}
OPENING = Target(verbs=("update",), resource="pods")
ALL_WRITES = Target(verbs=("create", "update", "patch"))


async def add_gated(ground: ProvingGround, count: int) -> None:
    await asyncio.gather(*(ground.add_pod(f"gated-{number}", **GATED) for number in range(count)))


async def are_with_their_devices(ground: ProvingGround) -> bool:
    """Every bound pod runs on the node whose devices it has."""
    claims = {claim["metadata"]["name"]: claim for claim in (await ground.api.list(RESOURCE_CLAIMS, NAMESPACE))[0]}
    bound = [pod for pod in await ground.pods() if pod["spec"].get("nodeName")]
    for pod in bound:
        for status in pod["status"]["resourceClaimStatuses"]:
            results = claims[status["resourceClaimName"]]["status"]["allocation"]["devices"]["results"]
            assert {result["pool"] for result in results} == {pod["spec"]["nodeName"]}
    return bool(bound)


async def has_written(ground: ProvingGround, writes: int) -> bool:
    return sum(ground.proxy.journal.writes().values()) >= writes


async def test_each_device_goes_to_one_pod_and_the_others_follow_when_these_are_gone(ground: ProvingGround) -> None:
    await ground.furnish(nodes=2, devices=5)
    async with ground.operator() as operator:
        await operator.becomes_ready()
        await add_gated(ground, 15)
        first = await ground.bound(10)
        assert await are_with_their_devices(ground)
        waiting = [pod for pod in await ground.pods() if not pod["spec"].get("nodeName")]
        assert [pod["spec"]["schedulingGates"] for pod in waiting] == [GATED["schedulingGates"]] * 5
        await ground.delete_pods(first)
        await ground.bound(5)
        await ground.emptied()
    await ground.sound()


async def test_a_third_of_all_answers_is_lost(ground: ProvingGround) -> None:
    await ground.furnish(nodes=2, devices=10)
    async with ground.operator() as operator:
        await operator.becomes_ready()
        with ground.proxy.suffering(CutAfter(ALL_WRITES, 0.3), CutBefore(ALL_WRITES, 0.1)):
            await add_gated(ground, 20)
            await ground.bound(20, seconds=120)
        assert await are_with_their_devices(ground)
        await ground.emptied()
    await ground.sound()


async def test_the_operator_is_killed_while_pods_are_at_the_gate(ground: ProvingGround) -> None:
    await ground.furnish(nodes=2, devices=10)
    for written in (3, 20, 40):
        async with ground.operator("--no-leader-elect") as operator:
            await operator.becomes_ready()
            if written == 3:
                await add_gated(ground, 20)
            await until(f"{written} writes", partial(has_written, ground, written), PATIENCE)
            await operator.kill()
    async with ground.operator("--no-leader-elect"):
        await ground.bound(20)
        assert await are_with_their_devices(ground)
        await ground.emptied()
    await ground.sound()


@needs_stock_control_plane
async def test_gated_pods_share_a_driver_with_pods_that_kube_scheduler_serves_itself(ground: ProvingGround) -> None:
    await ground.furnish(nodes=4, devices=10)
    async with ground.operator() as operator:
        await operator.becomes_ready()
        alone = [ground.add_pod(f"alone-{number}", **THEIRS) for number in range(10)]
        ours = [ground.add_pod(f"ours-{number}") for number in range(10)]
        await asyncio.gather(*alone, *ours, add_gated(ground, 20))
        await ground.bound(40)
        assert await are_with_their_devices(ground)
        await ground.emptied()


@needs_stock_control_plane
async def test_a_pod_whose_node_fills_up_before_it_is_bound_keeps_its_devices_and_waits(ground: ProvingGround) -> None:
    """kube-scheduler gives up claims of pods that fit only elsewhere; a pod at our gate is narrowed, so it does not."""
    await ground.furnish(nodes=2, devices=1, pods=1)
    async with ground.operator() as operator:
        await operator.becomes_ready()
        with ground.proxy.suffering(Delay(OPENING, before=(3, 3))):
            await ground.add_pod("gated", **GATED)

            async def node_of_its_devices() -> str | None:
                (claim,) = (await ground.api.list(RESOURCE_CLAIMS, NAMESPACE))[0] or [{}]
                results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results")
                return str(results[0]["pool"]) if results else None

            node = await until("its claim is allocated", node_of_its_devices, PATIENCE)
            spec = {"nodeName": node, "containers": [{"name": "main", "image": "none"}]}
            await ground.api.create(PODS, {"metadata": {"name": "filler", "namespace": NAMESPACE}, "spec": spec})

        async def waits_for_room() -> bool:
            return "Too many pods" in await ground.reason("gated") and await node_of_its_devices() == node

        await until("kube-scheduler refuses it", waits_for_room, PATIENCE)
        await stays("it keeps its devices", waits_for_room, 3.0)
        await ground.delete_pods(["filler"])

        async def is_bound() -> bool:
            return "gated" in await ground.bound_names()

        await until("it is bound", is_bound, PATIENCE)
        assert await are_with_their_devices(ground)
        await ground.emptied()
