"""Rolling update: the new instance registers before the old one ends, and both serve for a while."""

from __future__ import annotations

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding
from dra_driver_test.harness.bench import Bench, expect, ids_of
from dra_driver_test.harness.kubelet import Registration
from dra_driver_test.harness.server import Use


async def _second(bench: Bench) -> tuple[Registration, Registration]:
    """Start a second instance; returns the old one and the new one."""
    old = bench.registration
    return old, await bench.start()


@check("PH-07", "KM-07", overlaps=True)
async def has_two_instances_at_once(bench: Bench) -> None:
    """Two instances are registered at the same time, each with sockets of its own, and both answer."""
    old, new = await _second(bench)
    if old.endpoint == new.endpoint or old.socket == new.socket:
        raise Finding(f"both instances use {new.socket} and {new.endpoint}")
    if old not in bench.kubelet.registrations():
        raise Finding("the old instance is not registered any more when the new one is")
    for instance in (old, new):
        await bench.kubelet.prepare(bench.kubelet.plugin(instance), [])


@check("PH-07", "KM-09", overlaps=True)
async def keeps_the_answers(bench: Bench) -> None:
    """The new instance has the same answer for a claim that the old one prepared."""
    claim, first = await bench.full()
    await _second(bench)
    await bench.check_same_again(claim, first, "from the new instance")


@check("PH-07", "KM-09", overlaps=True)
async def unprepares_what_the_old_instance_prepared(bench: Bench) -> None:
    """The new instance unprepares a claim that the old one prepared, with all its CDI files."""
    with bench.cdi.nothing_left("the new instance unprepared the claim"):
        claim, _ = await bench.full()
        await _second(bench)
        await bench.unprepare(claim)


@check("PH-07", "KM-09", overlaps=True, waits=True)
async def may_go_back_to_the_old_instance(bench: Bench) -> None:
    """A claim that the new instance unprepared, and that was allocated anew, gets its new device from the old one.

    The new instance may fail, and the kubelet then asks the old one, which remembers what it prepared itself.
    """
    first, second = await bench.devices(2)
    claim = await bench.held(first)
    old, _ = await _second(bench)
    await bench.unprepare(claim)
    await bench.server.allocate(claim, Use(second))
    prepared = (await bench.kubelet.prepare(bench.kubelet.plugin(old), [claim.ref]))[claim.uid]
    expect(prepared, second, "the claim", "the old instance")
    bench.cdi.edits(ids_of(prepared))


@check("PH-07", "PH-02", overlaps=True)
async def ends_without_harm(bench: Bench) -> None:
    """When the old instance ends, the new one goes on: its sockets stay, and it answers."""
    _, new = await _second(bench)
    claim = await bench.held()
    await bench.driver.stop()
    await bench.quiet()
    if new not in bench.kubelet.registrations():
        raise Finding("the old instance ended, and the new one is not registered any more")
    await bench.prepare(claim)


@check("PH-07", "NOD-045", overlaps=True)
async def leaves_the_slices(bench: Bench) -> None:
    """The slices are the same objects with the same generation before, during and after an update."""
    await bench.published()
    before = await _identities(bench)
    await _second(bench)
    await bench.quiet()
    during = await _identities(bench)
    await bench.driver.stop()
    await bench.quiet()
    after = await _identities(bench)
    if not before == during == after:
        raise Finding(f"uid and version of the slices were {before}, then {during}, then {after}")


async def _identities(bench: Bench) -> list[tuple[str, str]]:
    return [(one["metadata"]["uid"], one["metadata"]["resourceVersion"]) for one in await bench.slices()]


@check("PH-07", "KM-16", overlaps=True)
async def keeps_cdi_files(bench: Bench) -> None:
    """When the old instance ends, the CDI files of the claims that it prepared stay."""
    ids = ids_of(await bench.prepared(await bench.claim()))
    await _second(bench)
    await bench.driver.stop()
    await bench.quiet()
    bench.cdi.edits(ids)


@check("PH-07", "KM-16", level=Level.SHOULD, overlaps=True)
async def remembers_devices_in_use(bench: Bench) -> None:
    """The new instance does not prepare a device that a claim holds which the old one prepared.

    It applies to drivers that refuse a device in use at all.
    """
    device = await bench.device()
    await bench.refuses_devices_in_use(device)
    await bench.held(device)
    await _second(bench)
    other = await bench.claim(device)
    await bench.refused(other, f"in the new instance, with the device {device.name}, which another claim holds")
    await bench.driver.stop()
    await bench.refused(
        other, f"after the old instance ended, with the device {device.name}, which another claim holds"
    )


@check("PH-07", "KM-16", overlaps=True, waits=True)
async def keeps_what_the_new_instance_did(bench: Bench) -> None:
    """What the new instance prepared and unprepared stays so when the old one ends, and after the next start.

    An old instance that writes all it remembers when it ends undoes that.
    """
    with bench.cdi.nothing_left("all claims were unprepared"):
        first, second = await bench.devices(2)
        gone, kept = await bench.claim(first), await bench.claim(second)
        await bench.prepare(gone)
        await _second(bench)
        await bench.unprepare(gone)
        answer = await bench.prepared(kept)
        await bench.driver.stop()
        await bench.restart(kill=True)
        await bench.check_same_again(kept, answer, "after the old instance ended and the new one started again,")
        await bench.held(first)
        await bench.unprepare(*bench.server.made())
