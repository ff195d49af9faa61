"""Every port of ours: an honest client is answered in time whatever others do, and the log stays short.

The honest client comes from the same address as the rude ones, which is worse than on a network. Each kind of rudeness
alone is for CI; elsewhere those of a group come together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import pytest
from dra_kubeletplugin.monitoring import Metrics, monitored
from dra_operator.app.probes.health import Check
from dra_operator.app.probes.server import serve
from fixed_answers import Fixed
from rounds import LONG
from rude_clients import KINDS, PROBE_SECONDS, Outcome, play

GROUPS = {
    "hold": ["silent", "silent_before_tls", "half_a_head", "letter_by_letter", "one_request_then_silence"],
    "ask": ["asks_now_and_then", "again_and_again", "pipelines", "gone_at_once", "half_closed", "reads_nothing"],
    "send": ["wrong_bytes", "wrong_text", "huge_heads", "huge_bodies", "slow_bodies", "websockets"],
    "speak": ["other_protocol", "http2_silent", "http2_streams", "http2_rapid_reset", "http2_pings"],
}
FINE = (Check("fine", []),)


@dataclass
class Port:
    """``honest`` asks once, and raises if the answer is wrong; ``patience`` is its time-out in seconds."""

    host: str
    port: int
    honest: Callable[[], Awaitable[None]]
    path: str = "/"
    is_tls: bool = False
    patience: float = PROBE_SECONDS
    descriptors: int = 80
    excused: frozenset[str] = field(default_factory=frozenset)

    async def against(self, kinds: list[str], seconds: float) -> Outcome:
        return await play(
            kinds,
            self.honest,
            self.host,
            self.port,
            seconds=seconds,
            path=self.path,
            is_tls=self.is_tls,
            patience=self.patience,
        )


def probing(host: str, port: int, path: str) -> Port:
    """As a kubelet: a new connection for each probe."""

    async def probe() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read()
            assert b" 200 OK\r\n" in answer, answer
        finally:
            writer.transport.abort()

    return Port(host, port, probe, path)


@asynccontextmanager
async def operator_probes() -> AsyncIterator[Port]:
    async with serve("127.0.0.1", 0, Fixed(FINE, FINE)) as port:
        yield probing("127.0.0.1", port, "/livez")


@asynccontextmanager
async def plugin_probes() -> AsyncIterator[Port]:
    async with monitored(Metrics(), "127.0.0.1:0", "/metrics") as probes:
        host, _, port = probes.address.rpartition(":")
        yield probing(host, int(port), "/healthz")


PORTS: dict[str, Callable[[], AbstractAsyncContextManager[Port]]] = {
    one.__name__: one for one in (operator_probes, plugin_probes)
}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("port", PORTS)
async def test_an_honest_client_is_answered_in_time_beside_rude_ones(port: str, group: str) -> None:
    async with PORTS[port]() as tried:
        outcome = await tried.against(GROUPS[group], 2.0)
    assert outcome.faults(tried.descriptors) == []


@LONG
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("port", PORTS)
async def test_an_honest_client_is_answered_in_time_beside_one_kind_of_rude_ones(port: str, kind: str) -> None:
    async with PORTS[port]() as tried:
        outcome = await tried.against([kind], 3.0)
    assert outcome.faults(tried.descriptors) == []


def test_every_kind_is_in_a_group() -> None:
    assert sorted(kind for group in GROUPS.values() for kind in group) == sorted(KINDS)
