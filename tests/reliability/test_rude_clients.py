"""Every port of ours: an honest client is answered in time whatever others do, and the log stays short.

The honest client comes from the same address as the rude ones, which is worse than on a network. Each kind of rudeness
alone is for CI; elsewhere those of a group come together, at a third of the ports in each run.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from aiohttp import ClientSession, TCPConnector
from authority import Authority
from dra_api import yaml_text
from dra_devcluster.agent import NodeAgent
from dra_devcluster.agent.errors import NetworkError
from dra_devcluster.agent.pod_network import MOST_RELAYED_CONNECTIONS, PodNetwork
from dra_devcluster.apiserver import DevApiServer
from dra_kube import NODES, Api, Connection, connection
from dra_kubeletplugin import ParametersWebhook, serve_webhook
from dra_kubeletplugin.monitoring import Metrics, monitored
from dra_operator.app.probes import Check, serve
from dra_operator.kubectl.cli import parser
from dra_operator.kubectl.serve.server import FIT
from dra_operator.kubectl.serve.server import running as fit_running
from dra_operator.kubectl.ui.server import running as ui_running
from dra_proto.fit.v1 import api_pb2 as messages
from dra_proto.fit.v1 import api_pb2_grpc as services
from rounds import LONG, a_third
from rude_clients import PROBE_SECONDS, Fixed, Outcome, play
from rude_kinds import KINDS
from waiting import until

GROUPS = {
    "hold": ["silent", "silent_before_tls", "half_a_head", "letter_by_letter", "one_request_then_silence"],
    "ask": ["asks_now_and_then", "again_and_again", "pipelines", "gone_at_once", "half_closed", "reads_nothing"],
    "send": ["wrong_bytes", "wrong_text", "huge_heads", "huge_bodies", "slow_bodies", "websockets"],
    "speak": [
        "other_protocol",
        "http2_silent",
        "http2_streams",
        "http2_rapid_reset",
        "http2_pings",
        "http2_wrong_text",
    ],
    "question": ["large_questions"],
}
FINE = (Check("fine", []),)
FLEET = Path(__file__).parents[1] / "kubectl" / "fleet.yaml"
RUDE_SECONDS = 0.7
"""So long that some hundred rude clients come and the honest one asks five times."""
ANSWER_SECONDS = 10.0
"""That a person or a program waits where no kubelet asks."""


@dataclass
class Port:
    """``honest`` asks once, and raises if the answer is wrong; ``patience`` is its time-out in seconds."""

    host: str
    port: int
    honest: Callable[[], Awaitable[None]]
    path: str = "/"
    is_tls: bool = False
    patience: float = PROBE_SECONDS
    descriptors: int = 280
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


@asynccontextmanager
async def fit(option: str, *words: str) -> AsyncIterator[str]:
    options = parser(["fit"]).parse_args(["fit", option, "127.0.0.1:0", "--from", str(FLEET), *words])
    async with fit_running(options) as address:
        yield address


@asynccontextmanager
async def fit_http() -> AsyncIterator[Port]:
    async with fit("--serve") as address:
        yield _asking(address, None)


@asynccontextmanager
async def fit_https() -> AsyncIterator[Port]:
    authority = Authority.make("authority")
    with TemporaryDirectory() as folder:
        certificate, key = authority.files(Path(folder), "127.0.0.1")
        async with fit("--serve", "--tls-cert", str(certificate), "--tls-key", str(key)) as address:
            yield _asking(address, ssl.create_default_context(cadata=authority.pem.decode()))


def _asking(address: str, context: ssl.SSLContext | None) -> Port:
    """As a queue manager: a question with a time-out."""
    question = {"manifests": yaml_text.load_all(FLEET.with_name("pod.yaml").read_text())}

    async def ask() -> None:
        async with (
            ClientSession(connector=TCPConnector(ssl=context or True)) as http,
            http.post(f"{address}{FIT}", json=question) as got,
        ):
            assert got.status == 200
            assert (await got.json())["answer"]["fits"]

    url = urlsplit(address)
    return Port(
        url.hostname or "",
        url.port or 0,
        ask,
        FIT,
        is_tls=url.scheme == "https",
        patience=ANSWER_SECONDS,
        descriptors=280,
    )


@asynccontextmanager
async def fit_grpc() -> AsyncIterator[Port]:
    manifests = [json.dumps(one) for one in yaml_text.load_all(FLEET.with_name("pod.yaml").read_text())]
    async with fit("--serve-grpc") as address:

        async def ask() -> None:
            async with grpc.aio.insecure_channel(address) as channel:
                client: Any = services.FitStub(channel)
                assert (await client.Ask(messages.Question(manifests=manifests), timeout=ANSWER_SECONDS)).fits

        host, _, port = address.rpartition(":")
        yield Port(host, int(port), ask, FIT, patience=ANSWER_SECONDS, descriptors=3 * 192 + 40)


@asynccontextmanager
async def ui() -> AsyncIterator[Port]:
    async with ui_running(parser(["ui"]).parse_args(["ui", "--from", str(FLEET)])) as address:
        url = urlsplit(address)

        async def look() -> None:
            async with ClientSession() as http:
                for question in ("judge", "waiting?sort=-age&offset=0&limit=50"):
                    async with http.get(f"{address}api/{question}") as got:
                        assert got.status == 200

        yield Port(
            url.hostname or "", url.port or 0, look, f"{url.path}api/overview", patience=ANSWER_SECONDS, descriptors=280
        )


@asynccontextmanager
async def development_server() -> AsyncIterator[Port]:
    async with DevApiServer() as server:

        async def list_nodes() -> None:
            context = ssl.create_default_context(cafile=str(server.ca_file))
            headers = {"Authorization": f"Bearer {server.token}"}
            async with (
                ClientSession(connector=TCPConnector(ssl=context), headers=headers) as http,
                http.get(f"{server.url}/api/v1/nodes") as got,
            ):
                assert got.status == 200

        yield Port(
            server.host,
            server.port,
            list_nodes,
            "/api/v1/nodes",
            is_tls=True,
            patience=ANSWER_SECONDS,
            descriptors=900,  # it serves more connections than these clients make
        )


@asynccontextmanager
async def node_agent() -> AsyncIterator[Port]:
    with TemporaryDirectory() as folder:
        async with (
            DevApiServer() as server,
            Api(server_connection(server, Path(folder))) as api,
            NodeAgent(api, "node-1", root=Path(folder, "root")),
        ):
            port = (await api.get(NODES, "node-1"))["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]

            async def scrape() -> None:
                assert await api.raw_text("/api/v1/nodes/node-1/proxy/healthz") == "ok"

            yield Port("127.0.0.1", port, scrape, "/healthz", patience=ANSWER_SECONDS, descriptors=600)


def server_connection(server: DevApiServer, folder: Path) -> Connection:
    return connection(str(server.write_kubeconfig(folder / "kubeconfig")))


@asynccontextmanager
async def parameters_webhook() -> AsyncIterator[Port]:
    """As an API server asks before it stores a claim."""
    authority = Authority.make("authority")
    claim = {"spec": {"devices": {"config": [{"opaque": {"driver": "d.example.com", "parameters": {"a": 1}}}]}}}
    review = {"request": {"uid": "u", "kind": {"kind": "ResourceClaim"}, "object": claim}}
    context = ssl.create_default_context(cadata=authority.pem.decode())
    with TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        certificate, key = authority.files(Path(folder), "127.0.0.1")
        port = free.getsockname()[1]
        free.close()
        webhook = ParametersWebhook("d.example.com", dict[str, int])
        serving = serve_webhook(webhook, endpoint=f"127.0.0.1:{port}", certificate=certificate, key=key)

        async def ask() -> None:
            async with (
                ClientSession(connector=TCPConnector(ssl=context)) as http,
                http.post(f"https://127.0.0.1:{port}/validate", json=review) as got,
            ):
                assert (await got.json())["response"]["allowed"]

        task = asyncio.create_task(serving)
        try:
            await until("the webhook answers", partial(_answers, ask))
            yield Port("127.0.0.1", port, ask, "/validate", is_tls=True, patience=ANSWER_SECONDS)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def pod_network() -> AsyncIterator[Port]:
    """A program in the network of a pod, whose connections are relayed; probes reach it beside the relay."""
    try:
        network = await PodNetwork.open("127.0.0.1", 6443)
    except NetworkError as error:
        pytest.skip(f"no network namespaces on this machine: {error}")
    listener = network.socket()
    listener.bind(("127.0.0.1", 8081))

    async def probe() -> None:
        reader, writer = await network.connect(8081)
        try:
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert b" 200 OK\r\n" in await reader.read()
        finally:
            writer.transport.abort()

    async with await asyncio.start_server(_ok, sock=listener), network.forwarded(8081) as port:
        yield Port(
            "127.0.0.1", port, probe, descriptors=3 * MOST_RELAYED_CONNECTIONS + 40
        )  # two of each relay, one of the server
        await network.close()


async def _ok(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the first request within 5 s."""
    try:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(5):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
                await writer.drain()
    finally:
        writer.close()


async def _answers(ask: Callable[[], Awaitable[None]]) -> bool:
    with suppress(OSError):
        await ask()
        return True
    return False


PORTS: dict[str, Callable[[], AbstractAsyncContextManager[Port]]] = {
    one.__name__: one
    for one in (
        operator_probes,
        plugin_probes,
        fit_http,
        fit_https,
        fit_grpc,
        ui,
        development_server,
        node_agent,
        parameters_webhook,
        pod_network,
    )
}


ALONE = [
    (port, kind)
    for at, port in enumerate(PORTS)
    for number, kind in enumerate(KINDS)
    if (at + number) % len(PORTS) == 0 or "KOPF_DRA_RUDE" in os.environ
]
"""Each kind against one port, and each port beside several kinds; all of them take a quarter of an hour."""


@pytest.mark.parametrize(("port", "group"), a_third([(port, group) for port in PORTS for group in GROUPS]))
async def test_an_honest_client_is_answered_in_time_beside_rude_ones(port: str, group: str) -> None:
    async with PORTS[port]() as tried:
        outcome = await tried.against(GROUPS[group], RUDE_SECONDS)
    assert outcome.faults(tried.descriptors) == []


@LONG
@pytest.mark.parametrize(("port", "kind"), ALONE)
async def test_an_honest_client_is_answered_in_time_beside_one_kind_of_rude_ones(port: str, kind: str) -> None:
    async with PORTS[port]() as tried:
        outcome = await tried.against([kind], RUDE_SECONDS)
    assert outcome.faults(tried.descriptors) == []


def test_each_kind_and_each_port_is_tried_alone() -> None:
    assert {kind for _, kind in ALONE} == set(KINDS)
    assert {port for port, _ in ALONE} == PORTS.keys()


def test_every_kind_is_in_a_group() -> None:
    assert sorted(kind for group in GROUPS.values() for kind in group) == sorted(KINDS)
