"""Answers that are lost, writes that land late: a device is never given twice, and every device is used."""

from __future__ import annotations

import asyncio

import pytest
from faults import AnswerWrongly, BreakStream, CutAfter, CutBefore, Delay, DeliverLate, Fault, Target
from faults.effects import wrong_answers
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


WRONG = tuple(wrong_answers("ResourceClaim").values())
EVERYWHERE = {
    "to writes that are not made": AnswerWrongly(ALL_WRITES, 0.5, bodies=WRONG),
    "to writes that are made": AnswerWrongly(ALL_WRITES, 0.3, bodies=WRONG, carries_out=True),
    "to reads": AnswerWrongly(Target(verbs=("get", "list")), 0.5, bodies=WRONG),
    "to watches": AnswerWrongly(Target(verbs=("watch",)), bodies=WRONG, count=40),
}


@pytest.mark.parametrize("to", EVERYWHERE)
async def test_answers_that_no_api_server_gives_are_retried_and_cost_no_traceback(
    ground: ProvingGround, to: str
) -> None:
    """A proxy says 200 and something else; watches begin anew behind it, since connections end as well."""
    await ground.furnish(nodes=4, devices=5)
    async with ground.operator() as operator:
        await operator.becomes_ready()
        with ground.proxy.suffering(EVERYWHERE[to], BreakStream(Target(), 0.2)):
            await ground.add_pods(10)
            await asyncio.sleep(10)
        await ground.bound(10, seconds=120)
        assert not operator.complaints()
        assert not operator.unexplained()
        assert len(operator.text) < 100_000
    await ground.sound()
