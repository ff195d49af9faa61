"""Seeded random histories of one node's plugin, in one process and without waiting.

A history is a seed (``python -m campaign plugin-histories``). The plugin is the real one, from ``serve`` down to its
files; only its sockets are calls within the process, and the API server is a dict (``apiserver``). ``script`` has the
steps that people, hardware and machines take, ``stage`` carries them out. ``process`` is a process of the plugin, which
may be killed at any file operation. ``kubelet`` calls it and starts containers, ``drivers`` has the adapters that are
pulled and plugged in, and what the plugin does with them. ``judge`` knows what must never be, and what has to be when
all is quiet.

Here a history is played: its script first, then all is well again, and everything comes to rest.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import tempfile
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from dra_kubeletplugin import plugin, process
from dra_kubeletplugin.claims import calls
from dra_kubeletplugin.drivers.hostdev import hotplug
from dra_kubeletplugin.files import checkpoint
from fake_host import open_files
from history_kit.clock import VirtualLoop, in_no_time
from history_kit.game import Game, Outcome, Weather

from .drivers import scanned
from .judge import faults_of
from .process import Killed, Process
from .script import Script, script_of
from .stage import Stage

MEASURING = (hotplug,)
"""What asks the machine's clock."""
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
PATIENCE = 400.0  # seconds within which everything comes to rest
QUIET_SECONDS = 20.0


def play(
    seed: int, script: Script | None = None, only: Collection[str] | None = None, *, traced: bool = False
) -> Outcome:
    """The history of a seed, or that of another script and of fewer strikes in the same weather."""
    weather = Weather(seed, only=only)
    weather.slow = 0.1 * weather.chance("slow")

    async def main() -> Outcome:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.thread_seconds = lambda: weather.fate("thread", ()).before
        random.seed(seed)  # which spreads pauses
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            stage = Stage(Path(folder), script or script_of(seed), weather, traced=traced)
            loop.set_exception_handler(partial(_unhandled, stage))
            with _in_place(stage):
                before = open_files()
                found = [finding async for finding in _pass(stage, script or script_of(seed))]
                await loop.end_all()
                found += stage.judge.findings
                stage.close_locks()
                if after := open_files() - before:
                    found.append(f"open files are left: {sorted(after)}")
        return Outcome(tuple(found), tuple(weather.strikes), tuple(stage.trace or ()))

    outcome, complaints = in_no_time(main, "dra_kubeletplugin", MEASURING, _is_passing, logging.WARNING)
    return outcome._replace(findings=(*outcome.findings, *complaints))


async def _pass(stage: Stage, script: Script) -> AsyncIterator[str]:
    """Everything happens; what was wrong at any moment, at the end, and after all pods have ended."""
    stage.start()
    for step in script.steps:
        await _until(stage, step.at)
        stage.step(step)
    await _until(stage, asyncio.get_running_loop().time() + 1)
    stage.clear_up()
    async for finding in _rest(stage):
        yield finding
    while stage.kubelet.pods:
        ready = [pod for pod in stage.kubelet.pods if pod.is_prepared] or stage.kubelet.pods
        stage.tell(f"---- the pods {', '.join(pod.name for pod in ready)} end")
        for pod in ready:
            stage.kubelet.end(pod, gives_up=False)
        async for finding in _rest(stage):
            yield finding
        if any(pod in stage.kubelet.pods for pod in ready):
            break
    for finding in stage.judge.left_over():
        yield finding
    if stage.hardware.set_up:
        yield f"the driver has left {sorted(stage.hardware.set_up)} set up"
    await stage.finish()


async def _until(stage: Stage, moment: float) -> None:
    """Wait, and look at the files each second."""
    loop = asyncio.get_running_loop()
    while (left := moment - loop.time()) > 0:
        await asyncio.sleep(min(1.0, left))
        stage.judge.look()


async def _rest(stage: Stage) -> AsyncIterator[str]:
    """What is still wrong when everything had its time."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    found: list[str] = ["nothing was looked at"]
    while loop.time() - began < PATIENCE and (found or loop.time() - began < QUIET_SECONDS):
        await _until(stage, loop.time() + 5)
        found = list(faults_of(stage))
    for finding in found:
        yield finding


@contextmanager
def _in_place(stage: Stage) -> Iterator[None]:
    """The history's parts in place of sockets, signals, connections and the machine's boot."""

    @contextmanager
    def signals(_loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> Iterator[None]:
        Process.present().stopped = stopped
        yield

    with ExitStack() as stack:
        for owner, name, instead in (
            (process, "Api", lambda *_, **__: nullcontext(stage.server)),
            (process, "connection", lambda *_: None),
            (process, "_signals", signals),
            (plugin, "SocketServer", stage.sockets.server),
            (plugin, "is_newest", stage.sockets.is_newest),
            (checkpoint, "BOOT_ID", stage.boot_id),
            (calls, "os", _Descriptors()),
            (hotplug, "scan", scanned),
        ):
            stack.enter_context(mock.patch.object(owner, name, instead))
        stack.enter_context(stage.disk.watched())
        yield


class _Descriptors:
    """``os`` for lock files: the process has them until it closes them."""

    path = os.path

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    @staticmethod
    def open(path: Path, flags: int, mode: int) -> int:
        descriptor = os.open(path, flags, mode)
        Process.present().locks.add(descriptor)
        return descriptor

    @staticmethod
    def close(descriptor: int) -> None:
        Process.present().locks.discard(descriptor)
        os.close(descriptor)


def _unhandled(stage: Stage, _loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
    """A task has failed, and nothing asked for its result: those of killed processes do."""
    if not isinstance(error := about.get("exception"), Killed):
        stage.judge.find(f"{about['message']}: {error!r}")


def _is_passing(line: str) -> bool:
    """Whether a line of the log is no bug: it has no trace, or one that ends with an error that is meant."""
    return "Traceback" not in line or _MEANT.match(line.splitlines()[-1]) is not None


_MEANT = re.compile(r"([\w.]+\.)?(DriverFailed|Killed|OSError|ClaimError|CheckpointCorrupted|CdiError)\b")


GAME = Game(play, script_of)
