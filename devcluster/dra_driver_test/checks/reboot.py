"""The node restarts: all processes end, ``/run`` with the CDI folder is empty, ``/var/lib/kubelet`` is kept."""

from __future__ import annotations

from dataclasses import replace

from dra_driver_test.check import check
from dra_driver_test.errors import Finding
from dra_driver_test.harness.bench import Bench, ids_of


@check("NOD-002", "PH-02", restarts=True, waits=True)
async def lets_the_driver_register(bench: Bench) -> None:
    """The driver registers again after a reboot, although its sockets of before are still there.

    It had prepared a claim, and what it remembers of that does not fit the empty CDI folder.
    """
    await bench.held()
    await bench.reboot()
    await bench.kubelet.info(bench.registration.socket)


@check("KM-16", "TD-02", restarts=True)
async def brings_cdi_files_back(bench: Bench) -> None:
    """A claim that was prepared before a reboot is prepared again, with CDI files.

    The kubelet keeps its pods and prepares their claims before it starts the containers anew. A driver that trusts
    its own checkpoint answers at once, and no container starts.
    """
    claim, _ = await bench.full()
    await bench.reboot()
    bench.cdi.edits(ids_of(await bench.prepared(claim)))


@check("KM-20", "TD-03", restarts=True)
async def lets_claims_be_unprepared(bench: Bench) -> None:
    """A claim that was prepared before a reboot is unprepared after it, although its files are gone."""
    with bench.cdi.nothing_left("a claim was unprepared after a reboot"):
        claim, _ = await bench.full()
        await bench.reboot()
        await bench.unprepare(claim)


@check("KM-16", "NOD-009", restarts=True)
async def gives_the_same_again(bench: Bench) -> None:
    """A claim that is prepared again after a reboot has all its devices, for the same requests and shares."""
    claim, first = await bench.full()
    await bench.reboot()
    second = await bench.prepared(claim)
    was, is_ = ([replace(one, cdi_ids=()) for one in answer] for answer in (first, second))
    if was != is_:
        raise Finding(f"the answer was {first}, and after a reboot it is {second}")


@check("KM-20", "TD-03", restarts=True, waits=True)
async def frees_devices(bench: Bench) -> None:
    """A device that a claim held before a reboot is prepared for another claim, once the first is unprepared."""
    device = await bench.device()
    claim = await bench.held(device)
    await bench.reboot()
    await bench.unprepare(claim)
    other = await bench.claim(device)
    bench.cdi.edits(ids_of(await bench.prepared(other)))
