"""Whichever command it is: its reader may leave, and Ctrl-C ends it while it lists the cluster."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from dra_api.console import CLOSED_EXIT_CODE, INTERRUPTED_EXIT_CODE
from dra_kube.http.pages import MOST_PAGES
from dra_operator.kubectl.cli import main
from dra_operator.kubectl.commands import COMMANDS
from dra_operator.kubectl.live import KINDS
from zoo.commanding import COMMANDS as WORDS
from zoo.commanding import MANIFEST

HERE = Path(__file__).parent
LEFT = """
import json, os, sys
from dra_operator.kubectl.cli import main
codes = {}
for words in json.loads(sys.argv[1]):
    reading, writing = os.pipe()
    os.close(reading)
    os.dup2(writing, 1)
    os.close(writing)
    sys.stdout = open(1, "w", closefd=False)
    codes[words[0]] = main(words)
print(json.dumps(codes), file=sys.stderr)
"""
OF_CLUSTER = {
    "why": ("-A",),
    "who": ("gpu-1",),
    "topology": ("gpu-1",),
    "drain": ("gpu-1",),
    "taint": ("gpu.example.com", "--dry-run"),
    "defrag": ("--for", "mix"),
    "snapshot": (),
    "claims": ("-A",),
    "lint": ("-f", str(HERE / "good.yaml")),
    "fit": ("-f", str(HERE / "pod.yaml")),
}
"""Words after a command that make it answer of ``cluster.yaml``, where it needs any."""


def test_the_reader_of_any_command_may_leave() -> None:
    """As in ``kubectl dra devices | head``."""
    source = ("--from", str(HERE / "cluster.yaml"))
    words = [[name, *OF_CLUSTER.get(name, ()), *source] for name in COMMANDS if name != "ui"]
    command = [sys.executable, "-c", LEFT, json.dumps(words)]
    done = subprocess.run(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, timeout=60, check=True)
    assert "Traceback" not in done.stderr
    assert set(json.loads(done.stderr.splitlines()[-1]).items()) == {(it[0], CLOSED_EXIT_CODE) for it in words}


@contextmanager
def _listing() -> Iterator[str]:
    """The address of a server that interrupts this process when as many lists wait for it as may."""
    loop, begun, waiting = asyncio.new_event_loop(), threading.Event(), list[web.Request]()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/version":
            waiting.clear()
            return web.json_response({"major": "1", "minor": "36"})
        if request.path.startswith("/apis/") and request.path.count("/") == 3:
            return web.json_response({"resources": [{"name": it.plural} for it in KINDS]})
        waiting.append(request)
        if len(waiting) == MOST_PAGES:
            os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
        return web.Response()

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        server = TestServer(app)
        await server.start_server()
        address.append(str(server.make_url("")).rstrip("/"))
        begun.set()
        await asyncio.Event().wait()

    address: list[str] = []
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert begun.wait(10)
    yield address[0]


def test_ctrl_c_ends_any_command_while_it_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pod.json").write_text(json.dumps(MANIFEST))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores the signal
    try:
        with _listing() as address:
            for command, words in WORDS.items():
                began = time.monotonic()
                code = main([*command.split(), *words, "-s", address, "--token", "t"])
                assert (command, code) == (command, INTERRUPTED_EXIT_CODE)
                assert time.monotonic() - began < 8, command
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr() == ("", "")
