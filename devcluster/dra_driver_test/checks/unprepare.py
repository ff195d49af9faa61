"""NodeUnprepareResources."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding
from dra_driver_test.harness.bench import Bench, expect, ids_of
from dra_driver_test.harness.driver import ProcessView
from dra_driver_test.harness.server import ADMIN_ACCESS, Claim, Use

LEAK_CLAIMS = 16
"""Claims after which a leak is seen: connections come and go as well, but not one with every second claim."""
LEAK_ATTEMPTS = 3
WARM_UP_TURNS = 3
MEMORY_ATTEMPTS = 6
MEMORY_BYTES = 256 * 1024
"""Bytes for 32 claims: 8 KiB for each."""


def _stranger() -> Claim:
    return Claim("default", "never-prepared", str(uuid.uuid4()))


@check("KM-19", "PH-09")
async def answers_a_claim(bench: Bench) -> None:
    """One prepared claim gets one answer, under its uid, without error."""
    claim = await bench.held()
    await bench.unprepare(claim)


@check("KM-19", "PH-09")
async def answers_each_claim_of_a_call(bench: Bench) -> None:
    """A call with two claims gets an answer for both; a kubelet reports missing ones as skipped, and asks again."""
    claims = await bench.claims(2)
    await bench.prepare(*claims)
    await bench.unprepare(*claims)


@check("PH-09")
async def accepts_an_empty_call(bench: Bench) -> None:
    """A call without claims is answered without claims."""
    await bench.unprepare()


@check("KM-19", "plugin-helper.md 2.1")
async def succeeds_for_an_unknown_claim(bench: Bench) -> None:
    """A claim that was never prepared is unprepared without error.

    Otherwise a pod whose preparation failed can never be deleted.
    """
    await bench.unprepare(_stranger())


@check("KM-19", "NOD-010")
async def can_be_repeated(bench: Bench) -> None:
    """A claim that is unprepared already is unprepared without error.

    When another driver of the pod fails, the kubelet asks all of them again.
    """
    claim = await bench.held()
    await bench.unprepare(claim)
    await bench.unprepare(claim)


@check("KM-19", "PH-09")
async def needs_no_claim_object(bench: Bench) -> None:
    """A prepared claim is unprepared without error after its object was deleted."""
    claim = await bench.held()
    await bench.server.delete(claim)
    await bench.unprepare(claim)


@check("KM-19", "KM-20")
async def does_known_claims_beside_unknown_ones(bench: Bench) -> None:
    """In a call with an unknown claim first, the known one is unprepared as well."""
    with bench.cdi.nothing_left("a call named an unknown claim and a prepared one"):
        claim = await bench.held()
        await bench.unprepare(_stranger(), claim)


@check("KM-18", "plugin-helper.md 2.1")
async def leaves_other_claims(bench: Bench) -> None:
    """Unpreparing one claim leaves the CDI devices of the others as they are."""
    gone, kept = await bench.claims(2)
    answer = await bench.prepare(gone, kept)
    ids = ids_of(answer[kept.uid])
    before = bench.cdi.edits(ids)
    await bench.unprepare(gone)
    if bench.cdi.edits(ids) != before:
        raise Finding(f"another claim was unprepared, and {ids} changed from {before} to {bench.cdi.edits(ids)}")


@check("KM-18", "NOD-059")
async def leaves_other_shares(bench: Bench) -> None:
    """Unpreparing one claim leaves the CDI devices of another one that has a part of the same device.

    It is skipped for a driver that cannot share the device.
    """
    shared = await bench.shared()
    await _outlives(bench, await bench.claim(shared), await bench.claim(shared))


@check("KM-18", "api.md 2")
async def of_an_administrator_leaves_the_device(bench: Bench) -> None:
    """Unpreparing a claim with admin access leaves the CDI devices of the claim that holds the device.

    Monitoring pods end while others work with the device. It is skipped for a driver that refuses admin access.
    """
    device = await bench.device()
    watching = Use(device, fields=ADMIN_ACCESS)
    watcher = await bench.server.claim(watching, namespace=await bench.server.admin_namespace())
    await _outlives(bench, watcher, await bench.claim(device))


@check("KM-18", "api.md 2", level=Level.SHOULD)
async def of_an_administrator_keeps_the_device_taken(bench: Bench) -> None:
    """After a claim with admin access was unprepared, the device is still that of the claim which holds it.

    It applies to drivers that refuse a device in use at all.
    """
    device = await bench.device()
    await bench.refuses_devices_in_use(device)
    await bench.held(device)
    watching = Use(device, fields=ADMIN_ACCESS)
    watcher = await bench.server.claim(watching, namespace=await bench.server.admin_namespace())
    await bench.prepare_beside(watcher)
    await bench.unprepare(watcher)
    why = f"with the device {device.name}, which a claim holds, when an administrator had looked at it"
    await bench.refused(await bench.claim(device), why)


async def _outlives(bench: Bench, gone: Claim, kept: Claim) -> None:
    """Prepare two claims on one device, and unprepare one. Raises Finding if the other loses anything."""
    ids = ids_of(await bench.prepared(kept))
    before = bench.cdi.edits(ids)
    await bench.prepare_beside(gone)
    await bench.unprepare(gone)
    if bench.cdi.edits(ids) != before:
        raise Finding(
            f"another claim with the same device was unprepared, and {ids} changed from {before} to "
            f"{bench.cdi.edits(ids)}"
        )


@check("KM-19", "NOD-011")
async def allows_to_prepare_again(bench: Bench) -> None:
    """A claim that was unprepared can be prepared again, with the same device.

    A pod's claim outlives the pod if it is not of a template.
    """
    device = await bench.device()
    claim = await bench.held(device)
    await bench.unprepare(claim)
    expect(await bench.prepared(claim), device, "the claim")


@check("KM-21", "KM-18")
async def goes_by_the_uid(bench: Bench) -> None:
    """Unpreparing an old claim leaves the new claim of the same name prepared.

    A kubelet that was down unprepares late, and then names the old uid.
    """
    old, new = await bench.devices(2)
    first = await bench.held(old, name="again")
    await bench.server.delete(first)
    second = await bench.claim(new, name="again")
    ids = ids_of((await bench.prepare(second))[second.uid])
    await bench.unprepare(first)
    bench.cdi.edits(ids)


@check("KM-19")
async def removes_each_claim_of_a_big_batch(bench: Bench) -> None:
    """A call with as many claims as there are devices, up to 64, leaves nothing of any of them."""
    count = max(2, min(64, len(await bench.independent())))
    with bench.cdi.nothing_left(f"{count} claims were unprepared"):
        claims = await bench.claims(count)
        await bench.prepare(*claims)
        await bench.unprepare(*claims)


@check("KM-19", "NOD-011")
async def leaks_no_descriptors(bench: Bench) -> None:
    """A driver that prepared and unprepared many claims has no more open files and sockets than before.

    One descriptor a pod ends it after a thousand pods: then no pod of the node starts or ends.
    """
    await come_and_go(bench)  # connections and threads that a driver opens once
    await check_descriptors(bench, lambda: come_and_go(bench), "came and went")


async def come_and_go(bench: Bench) -> None:
    """Prepare, unprepare and delete some claims, one after the other."""
    device = await bench.device()
    for _ in range(LEAK_CLAIMS):
        claim = await bench.held(device)
        await bench.unprepare(claim)
        await bench.server.delete(claim)


async def check_descriptors(bench: Bench, work: Callable[[], Awaitable[object]], what: str) -> None:
    """Raises Finding if each of several rounds of work with as many claims leaves descriptors."""
    await _check_growth(
        ProcessView.descriptors, bench, work, f"{what}, and the driver has {{}} more open files and sockets"
    )


async def _check_growth(
    measure: Callable[[ProcessView], int], bench: Bench, work: Callable[[], Awaitable[object]], what: str
) -> None:
    grown = 0
    for _ in range(LEAK_ATTEMPTS):
        before = measure(bench.process())
        await work()
        grown = measure(bench.process()) - before
        if grown <= LEAK_CLAIMS // 2:
            return
    raise Finding(f"{LEAK_CLAIMS} claims {what.format(grown)}")


@check("KM-19", "NOD-011", level=Level.SHOULD, waits=True)
async def leaks_no_memory(bench: Bench) -> None:
    """A driver that prepared and unprepared many claims takes no more memory than before.

    What it keeps of each claim ends it some day, at its memory limit. Caches and heaps grow at first: it is found only
    if every one of several rounds adds to it.
    """
    grown = []
    bench.process().memory()  # where it cannot be read, dozens of claims would come and go for nothing
    for _ in range(WARM_UP_TURNS):
        await come_and_go(bench)
    for _ in range(MEMORY_ATTEMPTS):
        before = bench.process().memory()
        await come_and_go(bench)
        await come_and_go(bench)
        grown.append(bench.process().memory() - before)
        if grown[-1] < MEMORY_BYTES:
            return
    raise Finding(f"of {2 * LEAK_CLAIMS} claims that came and went, the driver kept {grown} bytes, time after time")


@check("KM-19", "NOD-011", level=Level.SHOULD)
async def leaks_no_threads(bench: Bench) -> None:
    """A driver that prepared and unprepared many claims has no more threads than before."""
    await come_and_go(bench)
    what = "came and went, and the driver has {} more threads"
    await _check_growth(ProcessView.threads, bench, lambda: come_and_go(bench), what)


@check("KM-19", "NOD-011", level=Level.SHOULD)
async def leaves_no_files(bench: Bench) -> None:
    """After many claims came and went, the driver has no more files than before.

    A file for each claim that ever was fills a disk, and makes each start slower.
    """
    await come_and_go(bench)
    before = _files(bench.place.plugins)
    await come_and_go(bench)
    grown = _files(bench.place.plugins) - before
    if len(grown) > LEAK_CLAIMS // 2:
        raise Finding(
            f"{LEAK_CLAIMS} claims came and went, and the driver left {len(grown)} files: {sorted(grown)[:3]}"
        )


def _files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


@check("KM-19", "plugin-helper.md 2.1")
async def frees_each_device(bench: Bench) -> None:
    """Each device of a claim that held several is prepared for another claim, once the first is unprepared."""
    devices = await bench.devices(2)
    claim = await bench.held(*devices)
    await bench.unprepare(claim)
    await bench.prepare(*[await bench.claim(device) for device in devices])


@check("KM-19", "NOD-010", level=Level.SHOULD, restarts=True)
async def reports_what_it_cannot_remove(bench: Bench) -> None:
    """A claim whose CDI files cannot be removed is answered with an error, and the next call removes them.

    A kubelet asks again after an error. After a success nothing ever removes the files.
    """
    before = bench.cdi.known()
    claim = await bench.held()
    answer = "success"
    with bench.cdi.unreachable():
        try:
            await bench.unprepare(claim)
        except Finding:
            answer = "an error"
    if answer == "an error":
        await bench.unprepare(claim)
    bench.cdi.check_nothing_left(before, f"unprepare was answered with {answer} while the CDI folder was unreachable")


@check("KM-19", "KM-16")
async def undoes_repeated_preparations(bench: Bench) -> None:
    """A claim that was prepared several times is unprepared by one call.

    Kubelets prepare a claim for each pod that starts with it, and unprepare it once, after the last.
    """
    with bench.cdi.nothing_left("a claim was prepared three times and unprepared once"):
        device = await bench.device()
        claim = await bench.claim(device)
        for _ in range(3):
            await bench.prepare(claim)
        await bench.unprepare(claim)
    await bench.held(device)


@check("KM-19", "PH-09", level=Level.SHOULD)
async def needs_no_server(bench: Bench) -> None:
    """A prepared claim is unprepared while the API server refuses all requests of the driver.

    Pods are ended when a node is drained because something is wrong.
    """
    with bench.cdi.nothing_left("a claim was unprepared while the API server failed"):
        claim = await bench.held()
        async with bench.failing_server():
            await bench.unprepare(claim)
