"""Pods with ports have a network of their own, as far as the machine allows it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from dra_devcluster.agent.containers import runtime
from dra_devcluster.agent.errors import NetworkError
from dra_devcluster.agent.pod_network import MOST_RELAYED_CONNECTIONS, Network, PodNetwork, _relay, can_be_relayed
from one_node import OneNode, execute
from waiting import becomes, until

Json = dict[str, Any]
_MACHINE = os.readlink("/proc/self/ns/net") if sys.platform == "linux" else ""


@pytest.fixture
async def networks() -> None:
    """Skip a test on a machine that allows no networks."""
    try:
        await (await PodNetwork.open("127.0.0.1", 6443)).close()
    except NetworkError as error:
        pytest.skip(f"no network namespaces on this machine: {error}")


async def test_a_machine_on_which_unshare_makes_networks_has_networks_for_pods() -> None:
    """Or all tests below would be skipped by a fault of what they ask for."""
    command = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"]), "true"]
    try:
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"cannot compare with unshare: {error}")
    if done.returncode != 0:
        pytest.skip(f"no network namespaces on this machine: {done.stderr}")
    await (await PodNetwork.open("127.0.0.1", 6443)).close()


needs_networks = pytest.mark.usefixtures("networks")
SERVER = """
import socket, sys, time
server = socket.create_server(("0.0.0.0", 8081))
print("listening", flush=True)
while True:
    connection, _ = server.accept()
    with connection: connection.sendall(sys.argv[1].encode())
"""
ASK = """
import os, ssl, urllib.request
url = "https://{KUBERNETES_SERVICE_HOST}:{KUBERNETES_SERVICE_PORT}/livez".format_map(os.environ)
print(urllib.request.urlopen(url, context=ssl._create_unverified_context()).read().decode())
"""


def python(name: str, *arguments: str, **fields: Any) -> Json:
    command = [sys.executable, "-c", *arguments]
    return {"name": name, "image": "x", "command": command, "ports": [{"containerPort": 8081}]} | fields


async def logs(node: OneNode, pod: str, text: str, **query: str) -> None:
    async def reached() -> bool:
        return text in await node.log(pod, **query)

    await node.phase(pod, "Running")
    await until(f"{text} in the log of {pod}", reached)


def network_of(node: OneNode, uid: str) -> Network:
    assert node.runtime is not None
    return node.runtime.network(uid)


@pytest.fixture
async def watched(node: OneNode) -> AsyncIterator[OneNode]:
    """A node whose runtime a test can see."""
    await node.stop()
    async with runtime.LocalRuntime(node.root) as shared:
        node.runtime = shared
        await node.start()
        yield node
        await node.stop()


@needs_networks
async def test_pods_that_listen_on_the_same_port_do_not_meet(watched: OneNode) -> None:
    volumes: Json = {"volumes": [{"name": "v", "emptyDir": {}}]}
    mounted = python("c", SERVER, "two", volumeMounts=[{"name": "v", "mountPath": "/v"}])
    one = await watched.pod("pod-1", containers=[python("c", SERVER, "one")])
    two = await watched.pod("pod-2", containers=[mounted], **volumes)
    for pod, answer in ((one, b"one"), (two, b"two")):
        await logs(watched, pod["metadata"]["name"], "listening")
        reader, writer = await network_of(watched, pod["metadata"]["uid"]).connect(8081)
        assert await reader.read() == answer
        writer.close()


@needs_networks
async def test_containers_of_a_pod_share_its_network_and_reach_the_api_server(watched: OneNode) -> None:
    ask = {"name": "ask", "image": "x", "command": [sys.executable, "-c", ASK]}
    look = {"name": "look", "image": "busybox", "command": ["sh", "-c", "readlink /proc/self/ns/net; sleep 100"]}
    await watched.pod("pod-a", containers=[python("c", SERVER, "one"), look, ask], restartPolicy="Never")
    await logs(watched, "pod-a", "ok", container="ask")
    await logs(watched, "pod-a", "net:", container="look")
    seen = (await watched.log("pod-a", container="look")).strip()
    joined, _ = await execute(watched, "readlink", "/proc/self/ns/net", container="c")
    assert joined.decode().strip() == seen != _MACHINE


@needs_networks
async def test_the_network_goes_with_the_pod(watched: OneNode) -> None:
    pod = await watched.pod("pod-a", containers=[python("c", SERVER, "one")])
    await logs(watched, "pod-a", "listening")
    pause_process = network_of(watched, pod["metadata"]["uid"]).pid
    assert pause_process is not None
    await watched.delete("pod-a")
    await watched.gone("pod-a")
    await becomes(lambda: not Path(f"/proc/{pause_process}").exists())


SHARING: dict[str, Json] = {
    "no ports": {"containers": [{"name": "c", "image": "x", "command": ["sleep", "100"]}]},
    "the network of the host": {"hostNetwork": True, "containers": [python("c", "import time; time.sleep(100)")]},
}


@pytest.mark.parametrize("case", SHARING)
async def test_other_pods_share_the_network_of_the_machine(case: str, watched: OneNode) -> None:
    pod = await watched.pod("pod-a", **SHARING[case])
    await watched.phase("pod-a", "Running")
    assert network_of(watched, pod["metadata"]["uid"]).pid is None


async def test_a_machine_that_forbids_networks_says_so_and_shares_its_own(
    watched: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(host: str, port: int) -> PodNetwork:
        raise NetworkError("unshare: Operation not permitted")

    monkeypatch.setattr(PodNetwork, "open", refuse)
    await watched.pod("pod-a", containers=[python("c", "print('ran')")])
    await watched.phase("pod-a", "Succeeded")
    event = await watched.event("pod-a", "NotCarriedOut")
    assert event["message"].endswith("which forbids network namespaces: unshare: Operation not permitted")


@needs_networks
async def test_a_network_whose_pause_process_was_killed_refuses_connections() -> None:
    network = await PodNetwork.open("127.0.0.1", 6443)
    assert network.pid is not None
    os.kill(network.pid, 9)
    with pytest.raises(ConnectionError):
        for _ in range(1000):  # one more may be answered before it is dead
            network.socket().close()
    await network.close()


async def test_a_network_that_cannot_be_made_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    forbidden = [sys.executable, "-c", "import sys; sys.exit('unshare: Operation not permitted')"]
    monkeypatch.setattr("dra_devcluster.agent.pod_network.own_network", lambda control: forbidden)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(NetworkError, match="Operation not permitted"):
        await PodNetwork.open("127.0.0.1", 6443)
    monkeypatch.setattr("subprocess.Popen", Mock(side_effect=BlockingIOError(errno.EAGAIN, "no more processes")))
    with pytest.raises(NetworkError, match="no more processes"):
        await PodNetwork.open("127.0.0.1", 6443)
    assert sorted(os.listdir("/proc/self/fd")) == before


@needs_networks
async def test_a_network_for_a_server_with_an_address_that_it_lacks_says_so() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(NetworkError, match="Cannot assign requested address"):
        await PodNetwork.open("203.0.113.1", 6443)
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("host", "possible"), [("127.0.0.1", True), ("10.0.0.1", False), ("localhost", False)])
def test_only_a_server_on_loopback_can_be_reached_from_such_a_network(host: str, possible: bool) -> None:
    assert can_be_relayed(host) is possible


@pytest.mark.parametrize("port", [0, 65536])
async def test_a_number_that_no_port_has_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match="there is no port"):
        await Network().connect(port)


async def test_a_port_of_the_host_is_not_carried_out_and_an_event_says_so(watched: OneNode) -> None:
    ports = [{"containerPort": 8081, "hostPort": 8081}]
    await watched.pod("pod-a", containers=[python("c", "print('ran')", ports=ports)])
    await watched.phase("pod-a", "Succeeded")
    assert (await watched.event("pod-a", "NotCarriedOut"))["message"].endswith("without their hostPort")


@pytest.mark.parametrize("unread", [0, 64 * 1024 * 1024], ids=["idle", "a peer that reads no more"])
async def test_a_relay_that_is_cancelled_leaves_no_open_connection(unread: int) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    (client, near), (far, server) = pairs
    with client, server:
        ends = [await asyncio.open_connection(sock=end) for end in (near, far)]
        ends[1][1].write(bytes(unread))
        relay = asyncio.create_task(_relay(ends[0], ends[1]))
        server.sendall(b"x")
        client.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(client, 1) == b"x"
        relay.cancel()
        with pytest.raises(asyncio.CancelledError):
            await relay
        assert [near.fileno(), far.fileno()] == [-1, -1]


async def test_a_network_that_is_given_up_while_it_opens_leaves_no_socket() -> None:
    """As when an agent stops: the thread that waits for the first socket cannot be stopped."""
    asked, go, made = threading.Event(), threading.Event(), socket.socket()

    class Slow(PodNetwork):
        def socket(self) -> socket.socket:
            asked.set()
            assert go.wait(60)
            return made

    ours, theirs = socket.socketpair()
    process = await asyncio.to_thread(subprocess.Popen, ["sleep", "60"], stderr=subprocess.PIPE)
    network = Slow(process, ours, ("127.0.0.1", 1))
    opening = asyncio.create_task(network._listen())
    await becomes(asked.is_set)
    opening.cancel()
    await asyncio.wait((opening,))
    await network.close()
    theirs.close()
    go.set()
    await becomes(lambda: made.fileno() == -1)


@needs_networks
async def test_a_container_that_leaks_connections_loses_its_own_and_not_the_agents() -> None:
    """Each asks for much and reads nothing. A newcomer is served, and so is one that talks beside them."""
    closed = asyncio.Queue[None]()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while said := await reader.readline():
                writer.write(said if said == b"hello\n" else bytes(100_000))
                await writer.drain()
        writer.transport.abort()
        closed.put_nowait(None)

    async with await asyncio.start_server(endless, "127.0.0.1", 0) as server:
        address = server.sockets[0].getsockname()
        network = await PodNetwork.open(*address)
        before = len(os.listdir("/proc/self/fd"))
        streams = []

        async def reach() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            connection = network.socket()
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, address)
            streams.append(await asyncio.open_connection(sock=connection))
            return streams[-1]

        async def talks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
            writer.write(b"hello\n")
            return await reader.readline() == b"hello\n"

        friend = await reach()
        for _ in range(MOST_RELAYED_CONNECTIONS + 50):
            (await reach())[1].write(b"much\n" * 20)
            assert await talks(*friend)
        for _ in range(51):
            await closed.get()
        assert await talks(*await reach())
        for _, writer in streams:
            writer.transport.abort()
        await network.close()
        await becomes(lambda: len(os.listdir("/proc/self/fd")) <= before)
