"""The driver is stopped or killed, and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding, Skipped
from dra_driver_test.harness.bench import Bench, ids_of
from dra_driver_test.harness.server import Claim, Use

KILL_SECONDS = (0.0, 0.002, 0.005, 0.01, 0.03)
"""Seconds after the begin of a call at which the driver is killed."""


@check("PH-05", level=Level.SHOULD, restarts=True)
async def ends_in_time(bench: Bench) -> None:
    """The driver ends after SIGTERM, within the grace period of a pod.

    Otherwise it is killed, and every update takes 30 s.
    """
    await bench.quiet()  # a driver that just began may not know yet what to do about signals
    await bench.driver.stop()


@check("NOD-009", "KM-16", restarts=True)
async def prepares_the_same_again(bench: Bench) -> None:
    """After a restart a prepared claim has the same devices and CDI ids."""
    claim = await bench.claim(await bench.device())
    first = await bench.prepared(claim)
    await bench.restart()
    await bench.check_same_again(claim, first, "after a restart")


@check("NOD-009", "KM-16", restarts=True)
async def prepares_the_same_after_a_kill(bench: Bench) -> None:
    """After SIGKILL and a new start a prepared claim has the same devices and CDI ids."""
    claim = await bench.claim(await bench.device())
    first = await bench.prepared(claim)
    await bench.restart(kill=True)
    await bench.check_same_again(claim, first, "after SIGKILL and a new start")


@check("NOD-010", "TD-03", restarts=True)
async def unprepares_what_was_prepared_before(bench: Bench) -> None:
    """A claim that was prepared before a restart is unprepared after it, with all its CDI files."""
    before = bench.cdi.known()
    claim = await bench.claim(await bench.device())
    await bench.prepare(claim)
    await bench.restart()
    await bench.unprepare(claim)
    bench.cdi.check_nothing_left(before, "a claim was unprepared after a restart")


@check("NOD-010", "NOD-011", restarts=True)
async def unprepares_without_the_claim_object(bench: Bench) -> None:
    """After a restart a prepared claim whose object is gone can be unprepared, with all its CDI files."""
    before = bench.cdi.known()
    claim = await bench.claim(await bench.device())
    await bench.prepare(claim)
    await bench.driver.kill()
    await bench.server.delete(claim)
    await bench.start()
    await bench.unprepare(claim)
    bench.cdi.check_nothing_left(before, "the claim was deleted and unprepared")


@check("NOD-034", "KM-13", restarts=True)
async def may_come_while_it_prepares(bench: Bench) -> None:
    """Killed at any moment of a prepare call, the driver starts again and prepares the claim."""
    device = await bench.device()
    for moment in KILL_SECONDS:
        claim = await bench.claim(device)
        await _killed(bench, moment, bench.prepare(claim))
        bench.cdi.edits(ids_of(await bench.prepared(claim)))
        await bench.unprepare(claim)


@check("NOD-035", "KM-19", restarts=True)
async def may_come_while_it_unprepares(bench: Bench) -> None:
    """Killed at any moment of an unprepare call, the driver starts again and leaves nothing of the claim."""
    device = await bench.device()
    before = bench.cdi.known()
    for moment in KILL_SECONDS:
        claim = await bench.claim(device)
        await bench.prepare(claim)
        await _killed(bench, moment, bench.unprepare(claim))
        await bench.unprepare(claim)
        bench.cdi.check_nothing_left(before, f"killed {moment * 1000:g} ms after the call")


async def _killed(bench: Bench, moment: float, call: Awaitable[object]) -> None:
    """Kill the driver so long after a call began, and start it again."""
    running = asyncio.ensure_future(call)
    await asyncio.sleep(moment)
    await bench.driver.kill()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await bench.start()


@check("plugin-helper.md 2.1", "KM-16", restarts=True)
async def follows_an_allocation_made_meanwhile(bench: Bench) -> None:
    """A claim that was allocated anew while the driver was down gets the new device, or is refused."""
    old, new = await bench.devices(2)
    claim = await bench.claim(old)
    await bench.prepare(claim)
    await bench.driver.kill()
    await bench.server.allocate(claim, Use(new))
    await bench.start()
    try:
        found = [one.device for one in await bench.prepared(claim)]
    except Finding:
        return
    if found != [new.name]:
        raise Finding(f"the claim now holds {new.name}, and the driver prepared {found}")


@check("KM-20", "NOD-011", restarts=True)
async def keeps_devices_of_claims_apart(bench: Bench) -> None:
    """After a restart, a claim that was not prepared before is prepared beside one that was."""
    first, second = await bench.claims(2)
    before = await bench.prepared(first)
    await bench.restart(kill=True)
    await bench.prepare(second)
    await bench.unprepare(second)
    await bench.check_same_again(first, before, "after another claim came and went")


@check("NOD-002", "PH-08", restarts=True)
async def is_not_asked_for_the_past(bench: Bench) -> None:
    """The driver starts and serves although a claim that it had prepared does not exist any more."""
    device = await bench.device()
    gone = await bench.claim(device)
    await bench.prepare(gone)
    await bench.driver.kill()
    await bench.server.delete(gone)
    await bench.start()
    await bench.unprepare(Claim(gone.namespace, gone.name, gone.uid))
    await bench.prepare(await bench.claim(device))


@check("plugin-helper.md 2.1", "KM-16", level=Level.SHOULD, restarts=True)
async def remembers_devices_in_use(bench: Bench) -> None:
    """A device that a claim held before a restart is not prepared for another claim after it.

    It applies to drivers that refuse a device in use at all.
    """
    device = await bench.device()
    await bench.prepare(await bench.claim(device))
    other = await bench.claim(device)
    try:
        await bench.prepare(other)
    except Finding:
        await bench.restart()
        await bench.refused(other, f"after a restart, with the device {device.name}, which another claim holds")
    else:
        raise Skipped("the driver prepares devices in use even without a restart")


@check("KM-16", "NOD-009", restarts=True)
async def keeps_cdi_files(bench: Bench) -> None:
    """The CDI files of prepared claims are there while the driver is down, and when it runs again.

    A container of a running pod that starts anew needs them, and the kubelet does not ask the driver: it has the ids.
    """
    ids = ids_of(await bench.prepared(await bench.claim(await bench.device())))
    before = bench.cdi.edits(ids)
    await bench.driver.stop()
    bench.cdi.edits(ids)
    await bench.start()
    await bench.quiet()
    if (after := bench.cdi.edits(ids)) != before:
        raise Finding(f"{', '.join(ids)} was {before}, and after a restart it is {after}")


@check("TD-03", restarts=True)
async def leaves_files_of_neighbours(bench: Bench) -> None:
    """A driver that starts leaves the CDI files of drivers whose names contain its own."""
    claim = await bench.claim(await bench.device())
    with bench.cdi.new_files() as made:
        await bench.prepare(claim)
    with bench.cdi.foreign(bench.cdi.neighbours(bench.name, made)):
        await bench.restart()
        await bench.quiet()
