"""What is refused is not asked again and again, and people are told of it."""

from __future__ import annotations

import asyncio

import pytest
from faults import Refuse, Target
from proving_ground import ProvingGround
from rounds import LONG
from waiting import until

pytestmark = pytest.mark.timeout(300)

CLAIM_STATUS = Target(verbs=("update", "patch"), resource="resourceclaims/status")
CLAIMS = Target(verbs=("update", "patch"), resource="resourceclaims")
BINDING = Target(verbs=("create",), resource="pods/binding")
LIMIT = 256
"""Pods that may share a claim."""


async def requests_in(ground: ProvingGround, seconds: float, target: Target) -> int:
    """How many were made in this time; events and leases are not counted."""
    since = asyncio.get_running_loop().time()
    await asyncio.sleep(seconds)
    return sum(
        1 for entry in ground.proxy.journal.find(target, since) if entry.call.resource not in ("events", "leases")
    )


async def test_refused_writes_are_repeated_ever_more_seldom(ground: ProvingGround) -> None:
    """Two pods keep failing; each failure must not wake the other."""
    await ground.furnish(nodes=1, devices=2)
    async with ground.operator() as operator:
        await operator.becomes_ready()
        with ground.proxy.suffering(Refuse(CLAIM_STATUS, code=403)):
            await ground.add_pods(2)

            async def both_were_tried() -> bool:
                return ground.proxy.journal.count(CLAIM_STATUS) >= 2

            await until("both were tried", both_were_tried)
            assert await requests_in(ground, 5, CLAIM_STATUS) <= 20
            assert await requests_in(ground, 3, CLAIM_STATUS) <= 6
        await ground.bound(2, seconds=100)
        await ground.emptied()
    await ground.sound()


@LONG
async def test_int_032_a_full_claim_is_left_alone(ground: ProvingGround) -> None:
    """Three pods more than a claim may have: their reservations are written together, the rest waits in silence.

    Without a lease: where a slow API server does not renew it in time, bindings are held back and reservations given
    back, one by one.
    """
    await ground.furnish(nodes=1, devices=1, pods=LIMIT + 10)
    await ground.add_claim("shared")
    async with ground.operator("--no-leader-elect") as operator:
        await operator.becomes_ready()
        names = await ground.add_pods(LIMIT + 3, claim="shared")
        bound = await ground.bound(LIMIT)
        journal = ground.proxy.journal
        conflicts = sum(1 for entry in journal.find(CLAIM_STATUS) if entry.code == 409)
        assert conflicts <= 5, "\n".join(journal.about({"shared"}))
        assert journal.count(CLAIM_STATUS) <= LIMIT // 2
        left = [name for name in names if name not in bound]

        async def told() -> bool:
            return all([str(LIMIT) in await ground.reason(name) and await ground.events(name) for name in left])

        await until("the pods that found no place know why", told)
        assert await requests_in(ground, 3, Target()) <= 10
        await ground.delete_pods(bound[:3])
        await ground.bound(LIMIT)
        await ground.emptied()
    await ground.sound()


@pytest.mark.parametrize("target", [CLAIM_STATUS, BINDING], ids=["allocation", "binding"])
async def test_the_time_that_the_server_asks_for_is_granted(ground: ProvingGround, target: Target) -> None:
    await ground.furnish(nodes=1, devices=2)
    async with ground.operator() as operator:
        await operator.becomes_ready()
        with ground.proxy.suffering(Refuse(target, count=1, code=429, retry_after=3)):
            await ground.add_pod("pod")
            await ground.bound(1)
    first, second, *_ = ground.proxy.journal.find(target)
    assert first.code == 429
    assert second.at - first.at >= 3
    await ground.sound()


DENIAL = 'admission webhook "quota.example.com" denied the request: no more devices for this team'
REFUSALS = [
    pytest.param(Refuse(CLAIM_STATUS, code=403, message="allocations are frozen"), id="403 for the allocation"),
    pytest.param(Refuse(CLAIM_STATUS, code=422, message="status.allocation: too odd"), id="422 for the allocation"),
    pytest.param(Refuse(CLAIM_STATUS, code=403, message=DENIAL), id="a webhook denies the allocation"),
    pytest.param(Refuse(CLAIM_STATUS, code=400, message=DENIAL), id="a webhook denies the allocation with 400"),
    pytest.param(Refuse(CLAIMS, code=403, message="finalizers are frozen"), id="403 for the finalizer"),
    pytest.param(Refuse(BINDING, code=403, message="bindings are frozen"), id="403 for the binding"),
    pytest.param(Refuse(BINDING, code=422, message="target.name: too odd"), id="422 for the binding"),
]


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_condition_and_event_name_what_was_refused(ground: ProvingGround, refusal: Refuse) -> None:
    """The claim is a user's: it gets its finalizer by a write of its own, where a generated one has it from birth."""
    await ground.furnish(nodes=1, devices=2)
    await ground.add_claim("claim")
    async with ground.operator() as operator:
        await operator.becomes_ready()
        with ground.proxy.suffering(refusal):
            await ground.add_pod("pod", "claim")

            async def condition() -> bool:
                return refusal.message in await ground.reason("pod")

            async def event() -> bool:
                return any(refusal.message in message for message in await ground.events("pod"))

            await until("the condition names it", condition)
            await until("the event names it", event)
        await ground.bound(1, seconds=100)
        await ground.emptied()
    await ground.sound()
