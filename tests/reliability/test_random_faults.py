"""Sixty pods while everything goes wrong now and then; afterwards every pod that can run does, and nothing is left.

The operators run as in a cluster: one leads, and what ends is started again.

``KOPF_DRA_ROUNDS=50 pytest tests/reliability/test_random_faults.py`` runs fifty seeds instead of a few.
"""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest
from command import OperatorProcess
from faults import (
    BreakStream,
    CutAfter,
    CutBefore,
    Delay,
    DelayEvents,
    DeliverLate,
    DoubleEvents,
    ErrorEvent,
    EventFault,
    Fault,
    Refuse,
    Target,
)
from proving_ground import ProvingGround, proving_ground
from rounds import rounds
from waiting import until

pytestmark = pytest.mark.timeout(300)

WRITES = Target(verbs=("create", "update", "patch", "delete"))
REQUESTS = Target(verbs=("get", "list", "create", "update", "patch", "delete"))
WATCHES = Target(verbs=("watch",))
PODS, DEVICES = 60, 40
SPELL = 6.0
"""Seconds for which the faults strike."""


def bad_weather(seed: int) -> list[Fault | EventFault]:
    """All kinds of faults, each with a probability of its own."""
    dice = random.Random(seed)

    def often(most: float) -> float:
        return dice.uniform(0, most)

    return [
        CutAfter(WRITES, often(0.15)),
        CutBefore(WRITES, often(0.1)),
        DeliverLate(WRITES, often(0.1), seconds=(0.05, 3)),
        Delay(REQUESTS, often(0.1), before=(0, 1), after=(0, 1)),
        Refuse(WRITES, often(0.05), code=409, reason="Conflict"),
        Refuse(REQUESTS, often(0.05), code=500),
        Refuse(REQUESTS, often(0.05), code=503),
        Refuse(REQUESTS, often(0.05), code=429, retry_after=1),
        Refuse(WATCHES, often(0.2), code=410),
        DelayEvents(WATCHES, often(0.1), seconds=(0, 0.5)),
        DoubleEvents(WATCHES, often(0.1)),
        BreakStream(WATCHES, often(0.03)),
        ErrorEvent(WATCHES, often(0.02), code=410),
        ErrorEvent(WATCHES, often(0.01), code=500),
    ]


async def come_and_go(ground: ProvingGround, seed: int) -> None:
    """Pods come in bursts, some of them go again."""
    dice = random.Random(seed)
    names = [f"pod-{number}" for number in range(PODS)]
    for start in range(0, PODS, 15):
        await asyncio.gather(*(ground.add_pod(name) for name in names[start : start + 15]))
        await asyncio.sleep(SPELL / 5)  # the faults are to strike at all stages
        await ground.delete_pods(dice.sample(names[: start + 15], 3))
    await asyncio.sleep(SPELL / 5)


async def comes_to_rest(ground: ProvingGround) -> None:
    """As many pods run as there are devices, then those that waited, then none; and nothing was ever wrong."""
    there = len(await ground.pods())
    await ground.bound(min(DEVICES, there))
    await ground.delete_pods((await ground.bound_names())[: there - DEVICES])
    await ground.bound(min(DEVICES, len(await ground.pods())))
    await ground.emptied()


@pytest.mark.parametrize("seed", rounds(1))
async def test_sixty_pods_survive_all_kinds_of_faults(tmp_path: Path, seed: int) -> None:
    async with proving_ground(tmp_path, seed) as ground:
        await ground.furnish(nodes=4, devices=DEVICES // 4)
        async with ground.kept_running():
            await ground.leader()
            with ground.proxy.suffering(*bad_weather(seed)):
                await come_and_go(ground, seed)
            await comes_to_rest(ground)
        await ground.sound()


@pytest.mark.parametrize("seed", rounds(1))
async def test_two_replicas_survive_faults_while_the_leader_is_lost(tmp_path: Path, seed: int) -> None:
    """In the middle of its work the leader is killed, or paused until the other one leads."""
    async with proving_ground(tmp_path, seed) as ground:
        await ground.furnish(nodes=4, devices=DEVICES // 4)
        async with ground.kept_running(client="one"), ground.kept_running(client="other"):
            leader = await ground.leader()
            with ground.proxy.suffering(*bad_weather(seed)):
                pods = asyncio.create_task(come_and_go(ground, seed))
                await ground.bound(1 + seed % 10)
                if seed % 2:
                    await leader.kill()
                else:
                    await outlasts_its_lease(ground, leader)
                await pods
            await comes_to_rest(ground)
        await ground.sound()


async def outlasts_its_lease(ground: ProvingGround, leader: OperatorProcess) -> None:
    """It is paused until another one leads. When it wakes, it begins no write, and ends."""

    led = [operator for operator in ground.operators if "leading: " in operator.text]

    async def another_leads() -> bool:
        return any("leading: " in operator.text for operator in ground.operators if operator not in led)

    leader.signal(signal.SIGSTOP)
    await until("another one leads", another_leads)
    woken = asyncio.get_running_loop().time()
    leader.signal(signal.SIGCONT)
    assert await leader.ended() == 1
    assert ground.proxy.journal.begun_since(woken, leader.client) == []
