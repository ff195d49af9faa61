"""The driver's records of prepared claims are damaged while it is down.

A power failure leaves files empty, cut, or full of zeros; a disk may do so at any time. The driver has then lost some
of its knowledge. It must not act without it: a device that a running pod has goes to no other one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding, Skipped
from dra_driver_test.harness.bench import Bench
from dra_driver_test.harness.crashes import kept_files
from dra_driver_test.harness.server import Use

MOST_FILES = 2
"""Files that are emptied each for itself, the newest first: every damage needs two starts of the driver."""
MOST_NAMED_FILES = 3
WAYS: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda content: b"",
    "cut in half": lambda content: content[: len(content) // 2],
    "filled with zeros": lambda content: bytes(len(content)),
}


async def _damaged(bench: Bench, *uses: Use) -> AsyncIterator[str]:
    """What was done to files of the driver between SIGKILL and a start. Raises Skipped if it keeps none.

    A claim with these devices is prepared each time, as the last one that the bench made.
    """
    await bench.prepare(await bench.use(*uses))
    files = kept_files(bench)
    if not files:
        raise Skipped("the driver keeps no files below {kubelet}")
    rounds = [("emptied", slice(number, number + 1)) for number in range(min(MOST_FILES, len(files)))]
    if len(files) > 1:
        rounds += [(way, slice(0, None)) for way in WAYS]
    else:
        rounds += [(way, slice(0, 1)) for way in list(WAYS)[1:]]
    for way, which in rounds:
        await bench.driver.kill()
        damaged = kept_files(bench)[which]
        for file in damaged:
            file.write_bytes(WAYS[way](file.read_bytes()))
        names = sorted(str(file.relative_to(bench.place.kubelet)) for file in damaged)
        more = f" and {len(names) - MOST_NAMED_FILES} more" * (len(names) > MOST_NAMED_FILES)
        yield f"{', '.join(names[:MOST_NAMED_FILES])}{more} {'were' if len(names) > 1 else 'was'} {way}"
        await bench.reset()
        await bench.ready()
        await bench.prepare(await bench.use(*uses))


@check("NOD-009", "KM-16", level=Level.SHOULD, spoils=True, waits=True)
async def lets_the_driver_start(bench: Bench) -> None:
    """The driver registers although a file that it keeps was damaged while it was down.

    Otherwise no pod of the node starts or ends until somebody removes the file.
    """
    async for what in _damaged(bench, *await bench.all_kinds()):
        try:
            await bench.start()
        except Finding as finding:
            raise Finding(f"{what} while the driver was down: {finding}") from None


@check("KM-16", "plugin-helper.md 2.1", spoils=True, waits=True)
async def gives_nothing_wrong(bench: Bench) -> None:
    """After a file was damaged while the driver was down, no claim gets a device of another, or less than it holds.

    A claim may be refused, until it is unprepared, and so may be others. Drivers that lend a device twice, and those
    that do not start with such a file, are judged by other checks.
    """
    device = await bench.device()
    try:
        await bench.refuses_devices_in_use(device)
    except Skipped:
        refuses = False
    else:
        refuses = True
    uses = [Use(device), *(use for use in await bench.all_kinds() if use.device != device)]
    wanted = sorted((use.device.pool, use.device.name) for use in uses)
    async for what in _damaged(bench, *uses):
        claim = bench.server.made()[-1]
        try:
            await bench.start()
        except Finding:
            continue
        if refuses:
            other = await bench.claim(device)
            await bench.refused(other, f"with {device.name}, which another claim holds, after {what}")
        try:
            found = sorted((one.pool, one.device) for one in await bench.prepared(claim))
        except Finding:
            continue
        if found != wanted:
            raise Finding(f"{what} while the driver was down, and of {wanted} it then prepared {found}")
