"""The operator is killed at random moments and started again at once.

``KOPF_DRA_ROUNDS=50 pytest tests/reliability/test_kills.py`` kills it fifty times instead of a few.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from operator_process import OperatorProcess
from proving_ground import ProvingGround
from rounds import rounds
from waiting import until

pytestmark = pytest.mark.timeout(900)

DEVICES = 40
SHORT = ("--leader-elect-lease-duration", "3")
"""For which the next one stands by."""


def leads(operator: OperatorProcess) -> Callable[[], Awaitable[bool]]:
    """Whether it has the lease; it lists the cluster then."""

    async def look() -> bool:
        return "leading: " in operator.text

    return look


async def test_an_operator_may_be_killed_at_any_moment(ground: ProvingGround) -> None:
    """Each time some pods come and some go; the kill hits start, placing or release."""
    dice = random.Random(0)
    await ground.furnish(nodes=4, devices=DEVICES // 4)
    for number in rounds(2):
        async with ground.operator(*SHORT) as operator:
            await until("the operator leads", leads(operator))
            if dice.random() < 0.7:
                await operator.becomes_ready()
            await ground.add_pods(6, prefix=f"pod-{number}")
            names = await ground.bound_names()
            await ground.delete_pods(dice.sample(names, min(len(names), 5)))
            await asyncio.sleep(dice.uniform(0, 0.5))
            await operator.kill()
    async with ground.kept_running(*SHORT):
        await ground.bound(min(DEVICES, len(await ground.pods())))
        await ground.emptied()
    await ground.sound()
