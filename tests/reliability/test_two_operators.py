"""Two operators at once: one leads, the other stands by and takes over."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from command import OperatorProcess
from faults import Entry, Target
from proving_ground import ProvingGround
from waiting import until

pytestmark = pytest.mark.timeout(300)

LEADER, STANDBY = "leader", "standby"
ALLOWANCE = 5.0
"""Seconds that a busy machine may add to what is promised. A lease that is not released is free after 8.5 s."""


@asynccontextmanager
async def two(ground: ProvingGround) -> AsyncIterator[tuple[OperatorProcess, OperatorProcess]]:
    """The leader, and the one that came later."""
    async with ground.operator(client=LEADER) as leader:
        await leader.becomes_ready()
        async with ground.operator(client=STANDBY) as standby:

            async def stands_by() -> bool:
                return await standby.probe("/livez") == 200 and await standby.probe("/readyz") != 200

            await until("the second one is alive and not ready", stands_by)
            yield leader, standby


def clock() -> float:
    """The time as the proxy's journal has it."""
    return asyncio.get_running_loop().time()


def writes(ground: ProvingGround, client: str, since: float = 0.0) -> list[Entry]:
    """What an operator wrote, other than who leads."""
    entries = ground.proxy.journal.find(since=since)
    return [
        entry for entry in entries if entry.client == client and entry.call.is_write and entry.call.resource != "leases"
    ]


async def taken_over(ground: ProvingGround, since: float) -> float:
    """Seconds from this time until the second one asks for the lease and gets it; waits until it works.

    Negative if that was before: the lease is released before the process ends.
    """
    await ground.operators[-1].becomes_ready()
    lease = Target(verbs=("update",), resource="leases", client=STANDBY)
    first = next(entry for entry in ground.proxy.journal.find(lease) if entry.code == 200)
    return first.at - since


async def test_the_second_one_writes_nothing_and_is_not_ready(ground: ProvingGround) -> None:
    await ground.furnish(nodes=4, devices=10)
    async with two(ground) as (leader, standby):
        await ground.add_pods(60)
        await ground.bound(40)
        assert await leader.probe("/readyz") == 200
        assert await standby.probe("/livez") == 200
        assert await standby.probe("/readyz") == 503
        assert writes(ground, STANDBY) == []
        await ground.emptied()
    await ground.sound()


async def test_two_that_start_at_once_agree_on_one(ground: ProvingGround) -> None:
    await ground.furnish(nodes=4, devices=10)
    async with ground.operator(client=LEADER) as one, ground.operator(client=STANDBY) as other:

        async def both_live() -> bool:
            return await one.probe("/livez") == await other.probe("/livez") == 200

        await until("both are alive", both_live)
        await ground.add_pods(60)
        await ground.bound(40)
        assert not (writes(ground, LEADER) and writes(ground, STANDBY))
        await ground.emptied()
    await ground.sound()


async def killed(leader: OperatorProcess) -> None:
    await leader.kill()


async def ended(leader: OperatorProcess) -> None:
    assert await leader.stop() == 0


@pytest.mark.parametrize(("goes", "seconds"), [(killed, 15), (ended, 3)], ids=["a kill", "a clean end"])
async def test_the_second_one_takes_over_within_seconds_of(
    goes: Callable[[OperatorProcess], Awaitable[None]], seconds: float, ground: ProvingGround
) -> None:
    """The leader goes in the middle of its work."""
    await ground.furnish(nodes=4, devices=10)
    async with two(ground) as (leader, _):
        await ground.add_pods(30)
        await ground.bound(3)
        await goes(leader)
        assert await taken_over(ground, clock()) <= seconds + ALLOWANCE
        await ground.bound(30)
        await ground.emptied()
    await ground.sound()


async def test_a_leader_that_was_paused_past_its_lease_begins_no_write_when_it_wakes(ground: ProvingGround) -> None:
    """What it was sending in the moment of the pause may still arrive, and does no harm."""
    await ground.furnish(nodes=4, devices=10)
    async with two(ground) as (leader, standby):
        await ground.add_pods(30)
        await ground.bound(3)
        leader.signal(signal.SIGSTOP)
        await standby.becomes_ready()
        await ground.bound(30)
        woken = clock()
        leader.signal(signal.SIGCONT)
        await ground.add_pods(5, prefix="later")  # a reason to write
        await ground.bound(35)

        async def knows() -> bool:
            return await leader.probe("/readyz") != 200

        await until("the one that was paused knows that it does not lead", knows)
        assert ground.proxy.journal.begun_since(woken, LEADER) == []
        assert await leader.ended() == 1
        assert leader.unexplained() == []
        await ground.emptied()
    await ground.sound()
