"""Killing a driver amid its work, at moments that matter: whenever it has finished with a file.

A killed driver leaves the files that it had written by then: its record of the claim, the CDI file, or
both. So the kit counts the files that the driver writes, renames and removes in a call that nothing disturbs, and kills
it in later calls after the first of them, after the second, and so on. Where the system does not tell of files, or the
driver keeps them elsewhere, it is killed some seconds after the begin of a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dra_devcluster.background import cancelled

from .bench import Bench

try:
    import inotify_simple  # type: ignore[import-untyped]  # the library ships no types
except ImportError:  # not a Linux system
    inotify_simple = None

_WHAT = {"CLOSE_WRITE": "written", "MOVED_TO": "renamed", "MOVED_FROM": "taken away", "DELETE": "removed"}
MOST_MOMENTS = 8
"""Each costs a start of the driver."""
KILL_SECONDS = (0.0, 0.002, 0.005, 0.01, 0.03)


@dataclass(frozen=True, slots=True)
class Moment:
    """When the driver is killed: after a number of files, or of seconds."""

    files: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.files:
            return f"after file event {self.files} of a call"
        return f"{self.seconds * 1000:g} ms after a call began"


@asynccontextmanager
async def files_seen(bench: Bench, told: Callable[[str, str], object]) -> AsyncIterator[None]:
    """Tell what happens to which file in the driver's folders and the CDI folder, in one of the words of ``_WHAT``."""
    if inotify_simple is None:
        yield
        return
    words = {getattr(inotify_simple.flags, flag): word for flag, word in _WHAT.items()}
    loop = asyncio.get_running_loop()
    with inotify_simple.INotify(nonblocking=True) as watch:
        for folder in {bench.place.cdi, *bench.place.kubelet.rglob("*")} - {bench.place.registry}:
            with suppress(OSError):
                if folder.is_dir():
                    watch.add_watch(str(folder), sum(words))

        def read() -> None:
            for event in watch.read(timeout=0):
                told(next((word for flag, word in words.items() if event.mask & flag), ""), event.name)

        loop.add_reader(watch.fileno(), read)
        try:
            yield
        finally:
            loop.remove_reader(watch.fileno())


async def moments(bench: Bench, call: Awaitable[object]) -> list[Moment]:
    """When to kill the driver in calls like this one."""
    seen: list[tuple[str, str]] = []
    async with files_seen(bench, lambda what, name: seen.append((what, name))):
        await call
        await asyncio.sleep(bench.limits.tick)
    temporary = {name for what, name in seen if what == "taken away"}
    final = [
        number
        for number, (what, name) in enumerate(seen, start=1)
        if what in ("removed", "renamed") or (what == "written" and name not in temporary)
    ]
    if not final:
        return [Moment(seconds=seconds) for seconds in KILL_SECONDS]
    step = max(1.0, len(final) / MOST_MOMENTS)
    return [
        Moment(),
        *(Moment(final[round(number * step) - 1]) for number in range(1, min(len(final), MOST_MOMENTS) + 1)),
    ]


async def ended_amid(bench: Bench, moment: Moment, call: Awaitable[object], *, kill: bool = True) -> None:
    """Kill the driver at that moment of a call, or ask it to end, and start it again."""
    reached = asyncio.Event()
    left = moment.files

    def count(what: str, name: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            reached.set()

    async with files_seen(bench, count):
        running = asyncio.ensure_future(call)
        waiting = asyncio.ensure_future(reached.wait() if moment.files else asyncio.sleep(moment.seconds))
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        await (bench.driver.kill() if kill else bench.driver.stop())
        await cancelled(running, waiting)
    await bench.start()


def kept_files(bench: Bench) -> list[Path]:
    """Return the driver's own files on the node, the newest first, without sockets and CDI files."""
    others = (bench.place.registry, bench.place.cdi)
    found = [
        path
        for path in bench.place.kubelet.rglob("*")
        if path.is_file() and path.stat().st_size and not any(folder in path.parents for folder in others)
    ]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)
