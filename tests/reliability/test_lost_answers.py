"""Answers that are lost, writes that land late: a device is never given twice, and every device is used."""

from __future__ import annotations

import pytest
from faults import CutAfter, CutBefore, Delay, DeliverLate, Fault, Target
from proving_ground import ProvingGround

pytestmark = pytest.mark.timeout(300)

CLAIM_STATUS = Target(verbs=("update",), resource="resourceclaims/status")
ALL_WRITES = Target(verbs=("create", "update", "patch"))

FAULTS: list[object] = [
    pytest.param((CutAfter(CLAIM_STATUS),), id="every answer to an allocation is lost"),
    pytest.param((CutAfter(CLAIM_STATUS, 0.5),), id="half of the answers to allocations are lost"),
    pytest.param((DeliverLate(CLAIM_STATUS, 0.5, seconds=(0.1, 3)),), id="half of the allocations land late"),
    pytest.param(
        (
            Delay(CLAIM_STATUS, 0.3, after=(0.5, 3)),
            CutAfter(CLAIM_STATUS, 0.3),
            DeliverLate(CLAIM_STATUS, 0.5, seconds=(0.5, 3)),
        ),
        id="answers to allocations are late or lost, or the allocations are late",
    ),
    pytest.param((CutAfter(ALL_WRITES, 0.3), CutBefore(ALL_WRITES, 0.1)), id="a third of all answers is lost"),
]


@pytest.mark.parametrize("faults", FAULTS)
async def test_every_device_is_given_to_one_pod_at_a_time(ground: ProvingGround, faults: tuple[Fault, ...]) -> None:
    """Twenty of thirty pods get devices while answers are lost; the others when those have gone."""
    await ground.furnish(nodes=4, devices=5)
    async with ground.operator() as operator:
        await operator.becomes_ready()
        with ground.proxy.suffering(*faults):
            await ground.add_pods(30)
            first = await ground.bound(20, seconds=120)
        await ground.delete_pods(first)
        await ground.bound(30 - len(first))
        await ground.emptied()
    await ground.sound()
