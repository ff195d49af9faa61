"""A plugin's process ends soon after it is told to, whatever its driver does, and says what kept it."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from dra_kubeletplugin import process
from waiting import becomes

PROGRAM = """
import asyncio, sys, threading, time
import dra_kubeletplugin as dra
from dra_kubeletplugin import process
from dra_kubeletplugin.claims import calls

process._END_SECONDS, calls._GRACE_SECONDS = 1.5, 0.1
thread = threading.Thread

class Stuck(dra.Driver):
    async def prepare(self, claim):
        return []

async def in_a_thread():
    yield []
    await asyncio.to_thread(time.sleep, 600)

async def on_the_loop():
    yield []
    await asyncio.sleep(0.5)
    print("blocks now", file=sys.stderr, flush=True)
    time.sleep(600)

async def stubborn():
    yield []
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

async def idle():
    yield []

async def broken():
    yield []
    raise ZeroDivisionError("no hardware")

async def cancelled():
    yield []
    raise asyncio.CancelledError

dra.run(Stuck(), "a.example.com", globals()[sys.argv[1]](), sys.argv[2:])
"""
KUBECONFIG = """
{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
  clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}], users: [{name: u, user: {}}]}
"""


async def start(folder: Path, devices: str) -> asyncio.subprocess.Process:
    """The process, with its log in ``log``."""
    (folder / "plugins_registry").mkdir()
    (folder / "kubeconfig").write_text(KUBECONFIG)
    flags = {"kubelet-dir": folder, "cdi-dir": folder / "cdi", "kubeconfig": folder / "kubeconfig", "node-name": "n"}
    arguments = [f"--{flag}={value}" for flag, value in flags.items()]
    with (folder / "log").open("wb") as output:
        return await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, devices, *arguments, stderr=output)


def sockets(folder: Path) -> list[Path]:
    """All below the folder."""
    return list(folder.rglob("*.sock"))


BROKEN = [("broken", "ZeroDivisionError: no hardware"), ("cancelled", "Cancelled")]
STUCK = [("idle", 0), ("in_a_thread", 1), ("on_the_loop", 1), ("stubborn", 1)]


@pytest.mark.parametrize(("devices", "code"), STUCK, ids=[case[0] for case in STUCK])
async def test_sigterm_ends_it_in_bounded_time(short_path: Path, devices: str, code: int) -> None:
    process = await start(short_path, devices)
    log = short_path / "log"
    try:
        await becomes(lambda: "serves on" in log.read_text())
        if devices == "on_the_loop":
            await becomes(lambda: "blocks now" in log.read_text())
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == code
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert time.monotonic() - began < 30
    told = "the process should have ended 2 s ago, but the driver is still at work" in log.read_text()
    assert told is bool(code)
    assert ("most recent call first" in log.read_text()) is bool(code), "where each thread is"


@pytest.mark.parametrize(
    ("devices", "error"), [("broken", "ZeroDivisionError: no hardware"), ("cancelled", "Cancelled")]
)
async def test_an_iterator_of_devices_that_raises_ends_it_with_one_line(
    short_path: Path, devices: str, error: str
) -> None:
    process = await start(short_path, devices)
    try:
        assert await asyncio.wait_for(process.wait(), 60) == 1
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    *_, last = (short_path / "log").read_text().splitlines()
    assert last.startswith(f"a.example.com: error: the driver's devices failed with {error}")
    assert "catch in their iterator what can go wrong" in last
    assert not sockets(short_path)


def test_the_log_names_the_line_that_blocks_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kubelet got no answer for a while, and nobody knew why."""
    monkeypatch.setattr(process, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(process, "_BLOCKED_SECONDS", 0.01)
    blocking = time.sleep

    async def driver() -> None:
        await asyncio.sleep(0.05)
        deadline = time.monotonic() + 60
        while "blocked" not in caplog.text and time.monotonic() < deadline:
            blocking(0.01)
        await asyncio.sleep(0.05)

    process.run_to_the_end(driver())
    record = next(record for record in caplog.records if "blocked" in record.message)
    assert "the event loop is blocked for more than 0 s" in record.message
    assert "run such work with asyncio.to_thread" in record.message
    assert "blocking(0.01)" in record.message


@pytest.mark.parametrize("is_waiting", [True, False])
def test_a_slow_machine_is_not_blamed_on_the_driver(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_waiting: bool
) -> None:
    """A loop that waits for events and does not answer lacks a processor."""
    monkeypatch.setattr(process, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(process, "_BLOCKED_SECONDS", 0.01)
    asked, ended = threading.Event(), threading.Event()

    class Silent:
        def call_soon_threadsafe(self, _: object) -> None:
            asked.set()  # nothing is ever called

    readable, writable = os.pipe()
    with selectors.DefaultSelector() as selector, open(readable, "rb") as reader, open(writable, "wb") as writer:
        selector.register(reader, selectors.EVENT_READ)
        loop = threading.Thread(target=partial(selector.select, 60) if is_waiting else reader.read)
        loop.start()
        place = "selectors" if is_waiting else "threading"  # what is below is not Python
        deadline = time.monotonic() + 60
        while sys._current_frames()[loop.ident or 0].f_globals["__name__"] != place and time.monotonic() < deadline:
            time.sleep(0.01)
        watch = threading.Thread(target=process._watch_loop, args=(Silent(), loop.ident, ended))
        watch.start()
        assert asked.wait(60)
        ended.set()
        watch.join()
        writer.close()
        loop.join()
    assert ("blocked" in caplog.text) is not is_waiting
