"""The driver is stopped or killed, and comes back."""

from __future__ import annotations

import asyncio

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding, Skipped
from dra_driver_test.harness.bench import Bench, expect, ids_of
from dra_driver_test.harness.crashes import Moment, ended_amid, moments
from dra_driver_test.harness.devices import Device, too_much_together
from dra_driver_test.harness.server import ADMIN_ACCESS, Claim, Use

START_SHARE = (0.3, 0.7, 0.95)
"""Shares of the time from the start of the driver to its registration."""
MANY_CLAIMS = 16


@check("PH-05", level=Level.SHOULD, restarts=True)
async def ends_in_time(bench: Bench) -> None:
    """The driver ends after SIGTERM, within the grace period of a pod.

    Otherwise it is killed, and every update takes 30 s.
    """
    await bench.quiet()  # a driver that just began may not know yet what to do about signals
    await bench.driver.stop()


@check("NOD-009", "KM-16", restarts=True)
async def prepares_the_same_again(bench: Bench) -> None:
    """After a restart a prepared claim has the same devices, shares, requests and CDI ids, all of them."""
    claim, first = await bench.full()
    await bench.restart()
    await bench.check_same_again(claim, first, "after a restart")


@check("NOD-009", "KM-16", restarts=True)
async def prepares_the_same_after_a_kill(bench: Bench) -> None:
    """After SIGKILL and a new start a prepared claim has the same devices, shares, requests and CDI ids."""
    claim, first = await bench.full()
    await bench.restart(kill=True)
    await bench.check_same_again(claim, first, "after SIGKILL and a new start")


@check("NOD-010", "TD-03", restarts=True)
async def unprepares_what_was_prepared_before(bench: Bench) -> None:
    """A claim that was prepared before a restart is unprepared after it, with all its CDI files."""
    with bench.cdi.nothing_left("a claim was unprepared after a restart"):
        claim, _ = await bench.full()
        await bench.restart()
        await bench.unprepare(claim)


@check("NOD-010", "NOD-011", restarts=True)
async def unprepares_without_the_claim_object(bench: Bench) -> None:
    """After a restart a prepared claim whose object is gone can be unprepared, with all its CDI files."""
    with bench.cdi.nothing_left("the claim was deleted and unprepared"):
        claim, _ = await bench.full()
        await bench.driver.kill()
        await bench.server.delete(claim)
        await bench.start()
        await bench.unprepare(claim)


async def _moments(bench: Bench, *, unprepares: bool = False) -> list[Moment]:
    """When to kill the driver in calls for a claim with all that it has."""
    claim = await bench.use(*await bench.all_kinds())
    if unprepares:
        await bench.prepare(claim)
    found = await moments(bench, (bench.unprepare if unprepares else bench.prepare)(claim))
    await bench.unprepare(claim)
    return found


@check("NOD-034", "KM-13", restarts=True, waits=True)
async def may_come_while_it_prepares(bench: Bench) -> None:
    """Killed at any moment of a prepare call, the driver starts again and prepares the claim."""
    uses = await bench.all_kinds()
    for moment in await _moments(bench):
        claim = await bench.use(*uses)
        await ended_amid(bench, moment, bench.prepare(claim))
        bench.cdi.edits(ids_of(await bench.prepared(claim)))
        await bench.unprepare(claim)


@check("NOD-034", "KM-19", restarts=True, waits=True)
async def may_come_before_it_unprepares(bench: Bench) -> None:
    """Killed at any moment of a prepare call, the driver starts again, and unprepare leaves nothing of the claim.

    The pod was deleted meanwhile. A CDI file that was written before a record of the claim stays for ever, if unprepare
    goes by the record.
    """
    uses, before = await bench.all_kinds(), bench.cdi.known()
    for moment in await _moments(bench):
        claim = await bench.use(*uses)
        await ended_amid(bench, moment, bench.prepare(claim))
        await bench.unprepare(claim)
        bench.cdi.check_nothing_left(before, f"the driver was killed {moment}, and then the claim was unprepared")
        other = await bench.use(*uses)
        await bench.prepare(other)
        await bench.unprepare(other)


@check("NOD-035", "KM-19", restarts=True, waits=True)
async def may_come_while_it_unprepares(bench: Bench) -> None:
    """Killed at any moment of an unprepare call, the driver starts again and leaves nothing of the claim."""
    uses, before = await bench.all_kinds(), bench.cdi.known()
    for moment in await _moments(bench, unprepares=True):
        claim = await bench.use(*uses)
        await bench.prepare(claim)
        await ended_amid(bench, moment, bench.unprepare(claim))
        await bench.unprepare(claim)
        bench.cdi.check_nothing_left(before, f"the driver was killed {moment}")


@check("NOD-034", "PH-05", restarts=True, waits=True)
async def may_be_in_order_while_it_prepares(bench: Bench) -> None:
    """Stopped by SIGTERM amid a prepare call, the driver starts again, prepares the claim, and unprepares it.

    An update of the driver does not wait for a moment without calls.
    """
    uses, before = await bench.all_kinds(), bench.cdi.known()
    for moment in await _moments(bench):
        claim = await bench.use(*uses)
        await ended_amid(bench, moment, bench.prepare(claim), kill=False)
        bench.cdi.edits(ids_of(await bench.prepared(claim)))
        await bench.unprepare(claim)
        bench.cdi.check_nothing_left(before, f"the driver was stopped {moment}")


@check("NOD-034", "NOD-009", restarts=True, waits=True)
async def may_come_while_it_starts(bench: Bench) -> None:
    """Killed at any moment of its start, the driver starts again and knows what was prepared before."""
    with bench.cdi.nothing_left("the claim was unprepared"):
        claim, first = await bench.full()
        await bench.driver.kill()
        began = asyncio.get_running_loop().time()
        await bench.start()
        seconds = asyncio.get_running_loop().time() - began
        for part in START_SHARE:
            await bench.driver.kill()
            await bench.driver.start()
            await asyncio.sleep(part * seconds)
            await bench.driver.kill()
            await bench.start()
            await bench.check_same_again(claim, first, "killed at its start, and started again,")
        await bench.unprepare(claim)


@check("plugin-helper.md 2.1", "KM-16", restarts=True)
async def follows_an_allocation_made_meanwhile(bench: Bench) -> None:
    """A claim that was allocated anew while the driver was down gets the new device, or is refused."""
    old, new = await bench.devices(2)
    claim = await bench.held(old)
    await bench.driver.kill()
    await bench.server.allocate(claim, Use(new))
    await bench.start()
    try:
        prepared = await bench.prepared(claim)
    except Finding:
        return
    expect(prepared, new, "the claim now")


@check("KM-20", "NOD-011", restarts=True, waits=True)
async def keeps_devices_of_claims_apart(bench: Bench) -> None:
    """After a restart, a claim that was not prepared before is prepared beside one that was."""
    first, second = await bench.claims(2)
    before = await bench.prepared(first)
    await bench.restart(kill=True)
    await bench.prepare(second)
    await bench.unprepare(second)
    await bench.check_same_again(first, before, "after another claim came and went")


@check("NOD-002", "PH-08", restarts=True, waits=True)
async def is_not_asked_for_the_past(bench: Bench) -> None:
    """The driver starts and serves although a claim that it had prepared does not exist any more."""
    device = await bench.device()
    gone = await bench.held(device)
    await bench.driver.kill()
    await bench.server.delete(gone)
    await bench.start()
    await bench.unprepare(Claim(gone.namespace, gone.name, gone.uid))
    await bench.held(device)


@check("plugin-helper.md 2.1", "KM-16", level=Level.SHOULD, restarts=True, waits=True)
async def remembers_devices_in_use(bench: Bench) -> None:
    """Devices that a claim held before a restart are not prepared for another claim after it.

    It applies to drivers that refuse a device in use at all.
    """
    devices = [device for device in (await bench.independent())[:2] if not device.is_shared]
    await bench.refuses_devices_in_use(*devices or [await bench.device()])
    await bench.held(*devices)
    for kill in (False, True):
        await bench.restart(kill=kill)
        for device in devices:
            other = await bench.claim(device)
            await bench.refused(other, f"after a restart, with the device {device.name}, which another claim holds")


@check("KM-16", "NOD-009", restarts=True)
async def keeps_cdi_files(bench: Bench) -> None:
    """The CDI files of prepared claims are there while the driver is down, and when it runs again.

    A container of a running pod that starts anew needs them, and the kubelet does not ask the driver: it has the ids.
    """
    ids = ids_of(await bench.prepared(await bench.use(*await bench.all_kinds())))
    before = bench.cdi.edits(ids)
    await bench.driver.stop()
    bench.cdi.edits(ids)
    await bench.start()
    await bench.quiet()
    if (after := bench.cdi.edits(ids)) != before:
        raise Finding(f"{', '.join(ids)} was {before}, and after a restart it is {after}")


@check("TD-03", restarts=True, waits=True)
async def leaves_files_of_neighbours(bench: Bench) -> None:
    """A driver that starts leaves the CDI files of drivers whose names contain its own."""
    claim = await bench.claim()
    with bench.cdi.new_files() as made:
        await bench.prepare(claim)
    with bench.cdi.foreign(bench.cdi.neighbours(bench.name, made)):
        await bench.restart()
        await bench.quiet()


@check("NOD-009", "NOD-010", restarts=True, waits=True)
async def keeps_many_claims(bench: Bench) -> None:
    """After a restart all claims of the node are known, up to 16: prepared again in one call, and unprepared in one."""
    devices = (await bench.devices(2)) + (await bench.independent())[2:MANY_CLAIMS]
    with bench.cdi.nothing_left(f"{len(devices)} claims were unprepared after a restart"):
        claims = [await bench.claim(device) for device in devices]
        first = [await bench.prepared(claim) for claim in claims]
        await bench.restart(kill=True)
        again = await bench.prepare(*claims)
        for claim, answer in zip(claims, first, strict=True):
            if again[claim.uid] != answer:
                what = f"the answer was {answer}, and after a restart, asked with others, it is {again[claim.uid]}"
                raise Finding(what)
        await bench.restart()
        await bench.unprepare(*claims)


@check("NOD-059", "KM-18", restarts=True)
async def keeps_shares_apart(bench: Bench) -> None:
    """After a restart, unpreparing a claim leaves another one with a part of the same device as it was."""
    shared = await bench.shared()
    await _apart(bench, Use(shared), Use(shared), "")


@check("api.md 2", "KM-18", restarts=True)
async def keeps_administrators_apart(bench: Bench) -> None:
    """After a restart, unpreparing a claim with admin access leaves the claim that holds the device as it was.

    A claim with admin access that was prepared before the restart still holds no device.
    """
    device = await bench.device()
    namespace = await bench.server.admin_namespace()
    watched = [
        other for other in (await bench.independent())[1:2] if await _is_free_if_watched(bench, other, namespace)
    ]
    await _apart(bench, Use(device, fields=ADMIN_ACCESS), Use(device), namespace)
    for other in watched:
        try:
            await bench.held(other)
        except Finding as finding:
            raise Finding(f"a claim with admin access keeps users off the device after a restart: {finding}") from None


async def _is_free_if_watched(bench: Bench, device: Device, namespace: str) -> bool:
    """Prepare a claim with admin access. Return whether the driver gives the device to another claim beside it."""
    watcher = await bench.use(Use(device, fields=ADMIN_ACCESS), namespace=namespace)
    user = await bench.claim(device)
    try:
        await bench.prepare(watcher)
        await bench.prepare(user)
    except Finding:  # prepare.allows-admin-access judges that
        return False
    await bench.unprepare(user)
    return True


async def _apart(bench: Bench, going: Use, staying: Use, namespace: str) -> None:
    """Raises Finding if a claim loses anything when another one with its device is unprepared after a restart."""
    kept, gone = await bench.use(staying), await bench.use(going, namespace=namespace)
    first = await bench.prepared(kept)
    edits = bench.cdi.edits(ids_of(first))
    await bench.prepare_beside(gone)
    await bench.restart(kill=True)
    await bench.unprepare(gone)
    bench.cdi.edits(ids_of(first))
    await bench.check_same_again(kept, first, "after a restart, when another claim with the device had gone,")
    if (after := bench.cdi.edits(ids_of(first))) != edits:
        raise Finding(f"{', '.join(ids_of(first))} was {edits}, and when another claim had gone it is {after}")


@check("KM-17", "PH-08", restarts=True)
async def names_the_base_of_a_subrequest(bench: Bench) -> None:
    """For a device of a subrequest the answer after a restart names the same request as before: ``req``."""
    claim = await bench.use(Use(await bench.device(), "req/small"))
    first = await bench.prepared(claim)
    await bench.restart(kill=True)
    await bench.check_same_again(claim, first, "after a restart")


@check("NOD-007", "PH-05", restarts=True)
async def may_come_while_the_server_fails(bench: Bench) -> None:
    """Started while the API server refuses its requests, the driver registers and prepares once it answers again.

    It may end meanwhile, as it is started again then.
    """
    claim = await bench.claim()
    first = await bench.prepared(claim)
    await bench.driver.kill()
    async with bench.failing_server():
        before = await bench.launch()
        await bench.quiet()
    if bench.driver.why_ended():
        await bench.driver.end()
        await bench.start()
    else:
        await bench.arrived(before)
    await bench.check_same_again(claim, first, "after a start while the API server failed")


@check("plugin-helper.md 2.1", "plugin-helper.md 4.3", level=Level.SHOULD, restarts=True)
async def remembers_counters_in_use(bench: Bench) -> None:
    """After a restart a device is not prepared that draws on counters which a claim of before has used up.

    It applies to drivers that refuse such a device at all.
    """
    pair = too_much_together(await bench.published())
    if pair is None:
        raise Skipped("the driver published no two devices that exclude each other by counters")
    first, second = pair
    await bench.held(first)
    other = await bench.claim(second)
    try:
        await bench.prepare(other)
    except Finding:
        await bench.restart(kill=True)
        why = f"after a restart, with the device {second.name}, which draws on the counters of {first.name} in use"
        await bench.refused(other, why)
    else:
        raise Skipped("the driver prepares devices that draw too much even without a restart")
