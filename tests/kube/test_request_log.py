"""What a server logs of a request that it cannot read; that none shows a secret, each test of the suite checks."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from pathlib import Path

import pytest
from aiohttp import web
from command import MARK
from dra_kube.door import MOST_KINDS, REQUESTS, TOLD_SECONDS, request_log

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kube", "kubeletplugin", "operator", "devcluster")
SERVERS = (
    "devcluster/dra_devcluster/agent/server.py",
    "devcluster/dra_devcluster/apiserver/server.py",
    "kubeletplugin/dra_kubeletplugin/monitoring.py",
    "kubeletplugin/dra_kubeletplugin/webhook.py",
    "operator/dra_operator/app/probes.py",
    "operator/dra_operator/kubectl/serve/server.py",
    "operator/dra_operator/kubectl/ui/server.py",
)
"""Where one is made. A new one belongs here, behind the door, and into tests/reliability/test_rude_clients.py."""


@pytest.mark.parametrize(
    "line",
    [f"Authorization: Bearer {MARK}\x01", f"Autho rization: Bearer {MARK}", f"A: {MARK}{'x' * 10_000}"],
    ids=["a character", "a name", "a length"],
)
async def test_a_header_that_cannot_be_read_is_logged_as_a_warning_without_it(
    caplog: pytest.LogCaptureFixture, line: str
) -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        raise AssertionError("it was read")

    server = web.Server(answer, logger=REQUESTS)
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().connect_accepted_socket(server, theirs)
    reader, writer = await asyncio.open_connection(sock=ours)
    writer.write(f"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{line}\r\n\r\n".encode())
    assert b" 400 " in await reader.readline()
    await reader.read()
    writer.close()
    await writer.wait_closed()
    await server.shutdown(1)
    (record,) = [record for record in caplog.records if record.name == REQUESTS.name]
    assert record.levelname == "WARNING"
    assert "it cannot be read" in record.getMessage()
    assert record.exc_info is None


def test_each_server_of_ours_logs_so() -> None:
    sources = {
        str(path.relative_to(ROOT)): path.read_text() for name in PACKAGES for path in (ROOT / name).rglob("*.py")
    }
    server = r"(?:web\.(?:AppRunner|Server)| _Server)\((?!web)"
    made = {path: found for path, text in sources.items() if (found := len(re.findall(server, text)))}
    assert made == dict.fromkeys(SERVERS, 1)
    logging_so = rf"{server}[^=]*?access_log=None,\s*[^=]*=request_log\(\)"
    assert [path for path in made if len(re.findall(logging_so, sources[path])) != made[path]] == []


def test_a_fault_that_anyone_can_cause_is_logged_once_a_minute_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = request_log(lambda: now)
    with caplog.at_level(logging.INFO):
        for at in range(1000):
            log.error("Error handling request from %s", f"10.0.0.{at}")
        for kind in range(10):
            log.error("fault %d of another kind" + "!" * kind, kind)
        now += TOLD_SECONDS
        log.error("Error handling request from %s", "10.0.0.1")
    assert len(caplog.records) == MOST_KINDS + 1
    left_out = 999 + 10 - (MOST_KINDS - 1)
    counted = f"(before that {left_out} faults of requests were not logged)"
    assert caplog.messages[-1] == f"Error handling request from 10.0.0.1 {counted}"
