"""Calls at the same time, calls that the kubelet gave up, and slow ones."""

from __future__ import annotations

import asyncio

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding
from dra_driver_test.harness.bench import Bench, expect, ids_of
from dra_driver_test.harness.waiting import attempts

RACES_ATTEMPTS = 8
"""How often a race is tried, each time a little later."""
RACING_CLAIMS = 8


@check("KM-14", "PH-10")
async def of_calls_for_one_claim(bench: Bench) -> None:
    """Two calls for one claim at the same time both succeed, with the same answer.

    The kubelet repeats a call that timed out while the driver may still work on the first.
    """
    claim = await bench.claim()
    first, second = await asyncio.gather(bench.prepared(claim), bench.prepared(claim))
    if first != second:
        raise Finding(f"two calls at the same time have the answers {first} and {second}")
    bench.cdi.edits(ids_of(first))


@check("NOD-054", "KM-14")
async def of_calls_for_different_claims(bench: Bench) -> None:
    """Calls for different claims at the same time each get their own device."""
    devices = await bench.devices(2)
    claims = [await bench.claim(device) for device in devices]
    answers = await asyncio.gather(*(bench.prepared(claim) for claim in claims))
    for device, prepared in zip(devices, answers, strict=True):
        expect(prepared, device, "a claim")


@check("NOD-054", "KM-19")
async def of_unprepare_calls(bench: Bench) -> None:
    """Calls to unprepare different claims at the same time all succeed, and leave nothing."""
    with bench.cdi.nothing_left("all claims were unprepared"):
        claims = await bench.claims(2)
        await bench.prepare(*claims)
        await asyncio.gather(*(bench.unprepare(claim) for claim in claims))


@check("NOD-054", "KM-19")
async def of_prepare_and_unprepare(bench: Bench) -> None:
    """A claim can be unprepared while another one is prepared, and nothing of it is left."""
    with bench.cdi.nothing_left("a claim was unprepared while another one was prepared, then that one as well"):
        one, other = await bench.claims(2)
        await bench.prepare(one)
        call = asyncio.create_task(bench.prepare(other))
        await asyncio.sleep(2 * bench.limits.tick)  # so that the call is under way
        await asyncio.gather(call, bench.unprepare(one))
        await bench.unprepare(other)


@check("KM-04", "kubelet-manager.md 2")
async def leaves_registration_answering(bench: Bench) -> None:
    """GetInfo is answered within 1 s while claims are prepared.

    A kubelet that starts again gives GetInfo 1 s, whatever else the driver does. One of three attempts has to succeed,
    since the machine may be busy with something else.
    """
    claim = await bench.claim()

    async def ask() -> None:
        call = asyncio.create_task(bench.prepare(claim))
        await asyncio.sleep(2 * bench.limits.tick)  # so that the call is under way
        try:
            await bench.kubelet.info(bench.registration.socket, bench.limits.info)
        finally:
            await asyncio.gather(call, return_exceptions=True)

    await attempts(ask)


@check("NOD-006", "PH-10")
async def survives_calls_that_were_given_up(bench: Bench) -> None:
    """After a call that the kubelet gave up, the same claim can be prepared, and other claims as well."""
    claim, other = await bench.claims(2)
    for number in range(RACES_ATTEMPTS):
        await bench.interrupted(claim, 0.001 * 2**number)
    await bench.prepare(claim)
    await bench.prepare(other)


@check("PH-10", "KM-19")
async def leaves_nothing_after_a_given_up_call(bench: Bench) -> None:
    """A claim that is unprepared after the kubelet gave up preparing it stays unprepared.

    Work that is still going on must not write its CDI files after the claim was unprepared: nothing would ever
    remove them, and another pod may hold the device by then.
    """
    with bench.cdi.nothing_left("every claim was unprepared"):
        device = await bench.device()
        claim = await bench.claim(device)
        began = asyncio.get_running_loop().time()
        await bench.prepare(claim)
        whole = asyncio.get_running_loop().time() - began
        await bench.unprepare(claim)
        for number in range(RACES_ATTEMPTS):
            claim = await bench.claim(device)
            await bench.interrupted(claim, max(0.001 * 2**number, whole * number / RACES_ATTEMPTS))
            await bench.unprepare(claim)
        await asyncio.sleep(bench.limits.settle)


@check("plugin-helper.md 2.1", "NOD-054", level=Level.SHOULD)
async def gives_a_device_once(bench: Bench) -> None:
    """Of two claims that hold the same device, one at most is prepared when both are asked for at the same time.

    It applies to drivers that refuse a device in use at all.
    """
    device = await bench.device()
    await bench.refuses_devices_in_use(device)
    claims = [await bench.claim(device), await bench.claim(device)]
    answers = await asyncio.gather(*(bench.prepare(claim) for claim in claims), return_exceptions=True)
    if not any(isinstance(answer, BaseException) for answer in answers):
        raise Finding(f"two claims hold {device.name}, were asked for at the same time, and both were prepared")


@check("NOD-054", "KM-16", restarts=True, waits=True)
async def is_remembered(bench: Bench) -> None:
    """Claims that were prepared at the same time are all known after SIGKILL and a new start.

    Calls that read and write one file of records at the same time lose what the other wrote.
    """
    before = bench.cdi.known()
    devices = (await bench.devices(2)) + (await bench.independent())[2:RACING_CLAIMS]
    claims = [await bench.claim(device) for device in devices]
    for again in (True, False):
        answers = await asyncio.gather(*(bench.prepared(claim) for claim in claims))
        await bench.restart(kill=True)
        for claim, answer in zip(claims, answers, strict=True):
            if again:
                await bench.check_same_again(claim, answer, "after SIGKILL and a new start")
        await asyncio.gather(*(bench.unprepare(claim) for claim in claims))
        bench.cdi.check_nothing_left(before, "claims that were prepared at the same time were unprepared")
