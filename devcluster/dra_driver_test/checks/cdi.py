"""CDI files and ids, by the rules of container runtimes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress

from dra_cdi import CdiError, check_device_name, check_kind
from dra_devcluster.agent.containers.container import missing_on_host
from dra_devcluster.agent.plugins.plugin import PreparedDevice

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding
from dra_driver_test.harness.bench import Bench, ids_of

SPECIFICATION = "https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md"


async def _ids(bench: Bench) -> list[str]:
    return ids_of(await _prepared(bench))


async def _prepared(bench: Bench) -> Sequence[PreparedDevice]:
    return await bench.prepared(await bench.claim())


@check("KM-17", level=Level.SHOULD)
async def ids_are_given(bench: Bench) -> None:
    """Each prepared device has a CDI id.

    A device without one is allowed, but no container sees anything of it.
    """
    for device in await _prepared(bench):
        if not device.cdi_ids:
            raise Finding(f"device {device.device} has no CDI id")


@check("KM-17", SPECIFICATION)
async def ids_are_qualified(bench: Bench) -> None:
    """CDI ids have the form ``vendor/class=name``; runtimes refuse others."""
    for id_ in await _ids(bench):
        kind, _, name = id_.partition("=")
        try:
            check_kind(kind)
            check_device_name(name)
        except CdiError as error:
            raise Finding(f"{id_!r} is not of the form vendor/class=name: {error}") from None


@check("KM-17", "TD-02")
async def ids_are_described(bench: Bench) -> None:
    """Each CDI id of an answer is described by a file of the CDI folder, before the answer is given.

    The runtime refuses to make a container with a device that it cannot resolve.
    """
    bench.cdi.edits(await _ids(bench))


@check(SPECIFICATION)
async def files_are_valid(bench: Bench) -> None:
    """Runtimes accept each file: version, kind, names, known fields, edits that are complete and not empty.

    A file that is not valid takes its devices away; some runtimes refuse all of the folder.
    """
    known = bench.cdi.faults()
    await _ids(bench)
    if faults := {name: fault for name, fault in bench.cdi.faults().items() if name not in known}:
        raise Finding("; ".join(f"{name}: {fault}" for name, fault in sorted(faults.items())))


@check(SPECIFICATION)
async def devices_are_described_once(bench: Bench) -> None:
    """No two files describe the same device; runtimes resolve neither."""
    claim = await bench.claim()
    ids = [*ids_of(await bench.prepared(claim)), *ids_of(await bench.prepared(claim))]
    if conflicts := bench.cdi.conflicts({id_.partition("=")[0] for id_ in ids}):
        raise Finding(f"several files describe {', '.join(sorted(conflicts))}")


@check(SPECIFICATION)
async def host_paths_exist(bench: Bench) -> None:
    """Device nodes and mounts name paths that exist on the host."""
    if missing := missing_on_host(bench.cdi.edits(await _ids(bench))):
        raise Finding(f"a runtime could not carry out what the CDI files say: {'; '.join(missing)}")


@check("KM-17", "TD-02")
async def ids_differ_between_devices(bench: Bench) -> None:
    """Claims with different devices do not get the same CDI ids."""
    first, second = await bench.claims(2)
    answer = await bench.prepare(first, second)
    ids = ids_of(answer[first.uid]), ids_of(answer[second.uid])
    if ids[0] and set(ids[0]) == set(ids[1]):
        raise Finding(f"two claims with different devices have the same ids: {ids[0]}")


@check("TD-03", "PH-09")
async def files_go_with_the_claim(bench: Bench) -> None:
    """After unpreparing, the folder describes no more than before preparing."""
    with bench.cdi.nothing_left("the claim was unprepared"):
        claim = await bench.held()
        await bench.unprepare(claim)


@check("TD-03", level=Level.SHOULD)
async def files_come_back(bench: Bench) -> None:
    """Preparing again writes CDI files that have vanished meanwhile, or that were emptied.

    The folder is on a temporary file system, people clean it up, and a full one cuts files.
    """
    claim = await bench.claim()
    for path in bench.cdi.describing(ids_of(await bench.prepared(claim))):
        path.unlink()
    again = ids_of(await bench.prepared(claim))
    bench.cdi.edits(again)
    for path in bench.cdi.describing(again):
        path.write_bytes(b"")
    bench.cdi.edits(ids_of(await bench.prepared(claim)))


@check(SPECIFICATION)
async def files_of_others_stay(bench: Bench) -> None:
    """The driver leaves the CDI files of other vendors alone."""
    other = bench.cdi.folder / "vendor.example.com-device.json"
    edits = {"env": ["OTHER=1"]}
    kind = {"cdiVersion": "0.6.0", "kind": "vendor.example.com/device"}
    text = json.dumps({**kind, "devices": [{"name": "other", "containerEdits": edits}]})
    claim = await bench.claim()
    with bench.cdi.foreign({other: text}):
        await bench.prepare(claim)
        await bench.unprepare(claim)


@check("TD-03")
async def files_of_neighbours_stay(bench: Bench) -> None:
    """The driver leaves the CDI files of drivers whose names contain its own, those of the same claim among them.

    gpu.example.com is how gpu.example.com-2 begins, and gpu.example.community.
    """
    claim = await bench.claim()
    with bench.cdi.new_files() as made:
        await bench.prepare(claim)
    with bench.cdi.foreign(bench.cdi.neighbours(bench.name, made)):
        await bench.prepare(claim)
        await bench.unprepare(claim)


@check("TD-02")
async def files_are_not_open_to_all(bench: Bench) -> None:
    """CDI files can be written by their owner alone: they decide what containers get to see."""
    for path, mode in await _modes(bench):
        if mode & 0o022:
            raise Finding(f"{path} has mode {mode:o}: use 600")


async def _modes(bench: Bench) -> list[tuple[str, int]]:
    """Name and mode of the files that preparing a claim brings."""
    before = set(bench.cdi.files())
    await _ids(bench)
    return [(path.name, path.stat().st_mode & 0o777) for path in sorted(set(bench.cdi.files()) - before)]


@check("TD-02", level=Level.SHOULD)
async def scrap_is_not_left(bench: Bench) -> None:
    """Nothing stays in the CDI folder but files that runtimes read."""
    before = {path.name for path in bench.cdi.folder.iterdir()}
    await bench.held()
    scrap = {path.name for path in bench.cdi.folder.iterdir()} - before - {path.name for path in bench.cdi.files()}
    if scrap:
        raise Finding(
            f"{', '.join(sorted(scrap))} in the CDI folder is not a CDI file: write what is unfinished elsewhere"
        )


@check("TD-02", level=Level.SHOULD)
async def files_appear_whole(bench: Bench) -> None:
    """A file appears under its name when it is complete: written under another, then renamed.

    A runtime that reads half of a file reports an error for a container that has nothing to do with it.
    """
    with bench.cdi.watched() as made_in_place:
        await _ids(bench)
    if made_in_place:
        raise Finding(f"{', '.join(sorted(made_in_place))} was written under its final name: rename it into place")


@check("TD-02", "TD-03", level=Level.SHOULD, restarts=True)
async def folder_comes_back(bench: Bench) -> None:
    """The driver makes the CDI folder anew if it is gone, instead of failing each claim until it is restarted."""
    claims = await bench.claims(2)
    await bench.prepare(claims[0])
    shutil.rmtree(bench.cdi.folder)
    prepared = await bench.prepared(claims[1])
    if ids_of(prepared):
        bench.cdi.edits(ids_of(prepared))


@check("TD-02", "KM-16")
async def files_outlast_failed_writes(bench: Bench) -> None:
    """A prepared claim keeps its CDI files when preparing it again fails, since the driver can open no file.

    The pod that has it goes on with them. Disks are full at times, and descriptors out; the next call succeeds.
    """
    claim = await bench.claim()
    first = await bench.prepared(claim)
    before = bench.cdi.edits(ids_of(first))
    with bench.process_without_files(), suppress(Finding):
        await bench.prepare(claim)
    if bench.cdi.edits(ids_of(first)) != before:
        raise Finding(f"the driver could open no file, and the CDI files of {ids_of(first)} changed")
    await bench.check_same_again(claim, first, "after files could be opened again")
