"""Immediate claims have devices before pods, between pods, and beside the control plane of a cluster."""

from __future__ import annotations

import asyncio

import pytest
from dra_kube import RESOURCE_CLAIMS, Object
from envtest import missing, needs_stock_control_plane
from faults import CutAfter, CutBefore, Target
from objects import Make
from proving_ground import NAMESPACE, PATIENCE, ProvingGround
from waiting import stays, until

pytestmark = pytest.mark.timeout(300)

SCHEDULER = "dra-scheduler" if missing() else "default-scheduler"
ALL_WRITES = Target(verbs=("create", "update", "patch"))


async def add_immediate(ground: ProvingGround, *names: str) -> None:
    annotations = {"dra.kopf.dev/allocate": "immediate"}
    for name in names:
        meta = {"name": name, "namespace": NAMESPACE, "annotations": annotations}
        await ground.api.create(RESOURCE_CLAIMS, {"metadata": meta, "spec": Make.claim_spec()})


async def claims(ground: ProvingGround) -> dict[str, Object]:
    return {claim["metadata"]["name"]: claim for claim in (await ground.api.list(RESOURCE_CLAIMS, NAMESPACE))[0]}


def device(claim: Object) -> str:
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results") or [{}]
    return f"{results[0].get('pool', '')}/{results[0].get('device', '')}"


async def allocated(ground: ProvingGround, count: int, seconds: float = PATIENCE) -> dict[str, str]:
    """The devices of the claims, once so many have some."""

    async def enough() -> dict[str, str] | None:
        found = {name: device(claim) for name, claim in (await claims(ground)).items() if device(claim) != "/"}
        return found if len(found) >= count else None

    return await until(f"{count} claims have devices", enough, seconds)


async def delete_claims(ground: ProvingGround) -> None:
    for name in await claims(ground):
        await ground.api.delete(RESOURCE_CLAIMS, name, NAMESPACE)

    async def gone() -> bool:
        return not await claims(ground)

    await until("the claims are gone", gone, PATIENCE)


async def test_a_claim_keeps_its_device_from_pod_to_pod(ground: ProvingGround) -> None:
    await ground.furnish(nodes=2, devices=2)
    async with ground.operator() as operator:
        await operator.becomes_ready()
        await add_immediate(ground, "one", "two")
        before = await allocated(ground, 2)
        for _ in range(2):
            for name in before:
                await ground.add_pod(f"pod-{name}", name, schedulerName=SCHEDULER)
            await ground.bound(2)
            assert await allocated(ground, 2) == before
            await ground.emptied()

            async def is_kept() -> bool:
                return await allocated(ground, 2) == before

            await stays("the devices are kept", is_kept, 1.0)
        await delete_claims(ground)
    await ground.sound()


async def test_a_third_of_all_answers_is_lost(ground: ProvingGround) -> None:
    await ground.furnish(nodes=2, devices=5)
    async with ground.operator() as operator:
        await operator.becomes_ready()
        with ground.proxy.suffering(CutAfter(ALL_WRITES, 0.3), CutBefore(ALL_WRITES, 0.1)):
            await add_immediate(ground, *(f"claim-{number}" for number in range(12)))
            found = await allocated(ground, 10, seconds=120)
            assert len(set(found.values())) == 10
            await delete_claims(ground)
    await ground.sound()


async def test_the_operator_is_killed_while_it_allocates(ground: ProvingGround) -> None:
    await ground.furnish(nodes=2, devices=5)
    await add_immediate(ground, *(f"claim-{number}" for number in range(10)))
    for _ in range(2):
        async with ground.operator("--no-leader-elect") as operator:
            await operator.becomes_ready()
            await asyncio.sleep(0)
            await operator.kill()
    async with ground.operator("--no-leader-elect"):
        assert len(set((await allocated(ground, 10)).values())) == 10
        await delete_claims(ground)
    await ground.sound()


@needs_stock_control_plane
async def test_kube_scheduler_may_move_the_claim_to_where_its_pod_can_run(ground: ProvingGround) -> None:
    """It gives up an allocation that its pod cannot reach; the operator leaves the next one to it, and keeps that."""
    await ground.furnish(nodes=2, devices=1)
    async with ground.operator() as operator:
        await operator.becomes_ready()
        await add_immediate(ground, "claim")
        before = (await allocated(ground, 1))["claim"]
        (other,) = {"node-0", "node-1"} - {before.partition("/")[0]}
        by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [other]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [by_name]}}
        await ground.add_pod("pod", "claim", schedulerName="default-scheduler", affinity={"nodeAffinity": required})
        await ground.bound(1)
        assert (await allocated(ground, 1))["claim"] == f"{other}/dev-0"

        async def is_held() -> bool:
            return bool((await claims(ground))["claim"]["metadata"]["finalizers"] == ["dra.kopf.dev/immediate"])

        await until("the claim has our finalizer", is_held, PATIENCE)
        await ground.emptied()
        assert (await allocated(ground, 1))["claim"] == f"{other}/dev-0"
        await delete_claims(ground)
