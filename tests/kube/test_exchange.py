"""Writes over connections of our own: whatever the other side answers, and on the way there."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from authority import Authority
from dra_kube import PODS, Api, Connection, ConnectionSettingsError, Unreachable
from dra_kube.access.credentials import client_tls
from dra_kube.http import sending, transport
from dra_kube.http.connections import Exchange, connect
from waiting import becomes

POD = {"kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}}
BODY = b'{"kind":"Pod","metadata":{"name":"p","namespace":"ns"}}'
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 55\r\n\r\n" + BODY


@dataclass
class Server:
    """Gives each request the next answer, after which it closes the connection if the answer ends with None."""

    url: str = ""
    answers: list[bytes | None] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0) if self.answers else GOOD
                writer.write(answer or b"")
                if self.answers[:1] == [None]:
                    self.answers.pop(0)
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open.discard(writer)
            writer.close()


@asynccontextmanager
async def serving(*answers: bytes | None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(answers=list(answers))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening:
        yield server
        await becomes(lambda: not server.open)


def client(url: str, **options: object) -> Api:
    return Api(Connection(url, None, lambda: None), **options)  # type: ignore[arg-type]  # handed on


READABLE = {
    "in chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n%s\r\n2e\r\n%s\r\n0\r\n\r\n" % (BODY[:9], BODY[9:]),
        1,
    ),
    "behind an interim answer": (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + GOOD, 1),
    "and says that it closes": (GOOD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), 2),
    "of the version before": (GOOD.replace(b"1.1", b"1.0"), 2),
    "with more than was asked for": (GOOD + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", 2),
}


@pytest.mark.parametrize("name", READABLE)
async def test_an_answer_is_read_and_the_connection_kept_if_it_is_good(name: str) -> None:
    answer, connections = READABLE[name]
    async with serving(answer) as server, client(server.url) as api:
        assert await api.update(PODS, POD) == POD
        assert await api.update(PODS, POD) == POD
        assert server.connections == connections
        assert await api.settle(1)


async def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    async with serving(b"HTTP/1.1 200 OK\r\n\r\n" + BODY, None) as server, client(server.url) as api:
        assert await api.update(PODS, POD) == POD
        assert await api.settle(1)


UNREADABLE = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-",
    "half a content": GOOD[:-3],
    "half a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a change of the protocol": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "an interim answer only": b"HTTP/1.1 100 Continue\r\n\r\n",
}


@pytest.mark.parametrize("name", UNREADABLE)
async def test_a_write_without_a_whole_answer_is_in_doubt_and_not_repeated(name: str) -> None:
    async with serving(UNREADABLE[name], None) as server, client(server.url) as api:
        with pytest.raises(Unreachable, match=r"PUT http://127.*/pods/p: "):
            await api.update(PODS, POD)
        assert len(server.requests) == 1
        assert not await api.settle(0)


async def test_an_answer_that_breaks_a_rule_of_http_in_its_content_is_in_doubt() -> None:
    async with serving(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n") as server:
        async with client(server.url) as api:
            with pytest.raises(Unreachable, match="did not answer in HTTP"):
                await api.update(PODS, POD)


async def test_what_is_sent() -> None:
    body = BODY.replace(b'"p"', '"a b?é"'.encode())
    async with serving(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)) as server:
        async with Api(Connection(f"{server.url}/cluster/a", None, lambda: "Bearer t")) as api:
            await api.patch(PODS, "a b?é", {"x": "é"}, "ns", kind="apply", field_manager="m&n")
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    first, *headers = head.decode().split("\r\n")
    path = "/cluster/a/api/v1/namespaces/ns/pods/a%20b%3F%C3%A9"
    assert first == f"PATCH {path}?fieldManager=m%26n&timeout=27.000s HTTP/1.1"
    assert dict(line.split(": ") for line in headers) == {
        "Host": server.url.removeprefix("http://"),
        "User-Agent": "kopf-dra",
        "Accept": "application/json",
        "Content-Type": "application/apply-patch+yaml",
        "Authorization": "Bearer t",
        "Content-Length": str(len(body)),
    }
    assert body.decode() == '{"apiVersion":"v1","kind":"Pod","x":"é"}'


async def test_credentials_with_a_line_break_are_not_sent() -> None:
    async with serving() as server:
        async with Api(Connection(server.url, None, lambda: "Bearer t\r\nX: y")) as api:
            with pytest.raises(ConnectionSettingsError, match="line break"):
                await api.update(PODS, POD)
            assert await api.settle(1)
    assert not server.requests


def hold_connections(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Events that a connection is asked for, and, to be set, that those that are asked for come about."""
    asked, comes_about = asyncio.Event(), asyncio.Event()

    async def held(connection: Connection) -> Exchange:
        asked.set()
        await comes_about.wait()
        return await connect(connection)

    monkeypatch.setattr(sending, "connect", held)
    return asked, comes_about


async def test_a_burst_of_writes_makes_few_connections_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way = peak = 0

    async def counted(connection: Connection) -> Exchange:
        nonlocal under_way, peak
        under_way += 1
        peak = max(peak, under_way)
        try:
            return await connect(connection)
        finally:
            under_way -= 1

    monkeypatch.setattr(sending, "connect", counted)
    async with serving() as server, client(server.url) as api:
        await asyncio.gather(*(api.update(PODS, POD) for _ in range(200)))
        assert peak == 16
        assert len(server.requests) == 200


async def test_a_connection_that_gets_free_is_taken_while_no_other_comes_about(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server, client(server.url) as api:
        await api.update(PODS, POD)
        _, comes_about = hold_connections(monkeypatch)
        writes = [asyncio.create_task(api.update(PODS, POD)) for _ in range(30)]
        await becomes(lambda: sum(write.done() for write in writes) == 14)
        waits = [write for write in writes if not write.done()]
        given_up = waits.pop()
        given_up.cancel()
        comes_about.set()
        await asyncio.gather(*waits)
        assert (await asyncio.gather(given_up, return_exceptions=True))[0].__class__ is asyncio.CancelledError
        assert len(server.requests) == 30


async def test_who_gives_up_waiting_for_a_connection_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _, comes_about = hold_connections(monkeypatch)
    async with serving() as server, client(server.url) as api:
        writes = [asyncio.create_task(api.update(PODS, POD)) for _ in range(20)]
        await asyncio.sleep(0)
        writes[17].cancel()
        comes_about.set()
        writes[16].cancel()
        answers = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(answer) for answer in answers] == [dict] * 16 + [asyncio.CancelledError] * 2 + [dict] * 2


async def test_who_gives_up_in_the_moment_of_its_turn_harms_no_other_write(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, comes_about = hold_connections(monkeypatch)
    async with serving() as server, client(server.url) as api:
        writes = [asyncio.create_task(api.update(PODS, POD)) for _ in range(20)]
        await asked.wait()
        writes[0].cancel()  # which gives its turn on in the next iteration
        writes[16].cancel()  # whose turn it would be
        writes[17].cancel()
        comes_about.set()
        answers = await asyncio.gather(*writes, return_exceptions=True)
        given_up = {0, 16, 17}
        assert [type(answer) for answer in answers] == [
            asyncio.CancelledError if number in given_up else dict for number in range(20)
        ]


async def test_a_connection_that_comes_about_after_the_end_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, comes_about = hold_connections(monkeypatch)
    async with serving() as server:
        async with client(server.url) as api:
            write = asyncio.create_task(api.update(PODS, POD))
            await asked.wait()
        comes_about.set()
        with pytest.raises(Unreachable, match="closed"):
            await write
        assert server.requests == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_connection_that_is_given_up_at_any_moment_leaves_no_socket(host: str) -> None:
    async with serving() as server:
        connection = Connection(server.url.replace("127.0.0.1", host), None, lambda: None)
        for iterations in range(40):
            connecting = asyncio.create_task(connect(connection))
            for _ in range(iterations):
                await asyncio.sleep(0)
            connecting.cancel()
            (exchange,) = await asyncio.gather(connecting, return_exceptions=True)
            if isinstance(exchange, Exchange):
                exchange.close()
    gc.collect()  # a socket that was left open is reported now


async def test_connections_that_were_idle_for_long_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(sending, "boot_time", lambda: now)
    async with serving() as server, client(server.url) as api:
        await asyncio.gather(*(api.update(PODS, POD) for _ in range(3)))
        assert server.connections == 3
        now = 60.0
        await api.update(PODS, POD)  # by the last of them, which then is the only one left
        assert server.connections == 3
        await becomes(lambda: len(server.open) == 1)
        await api.update(PODS, POD)
        assert server.connections == 3


async def test_an_open_connection_keeps_no_answer_and_a_lost_one_nothing(tmp_path: Path) -> None:
    """TLS has 256 KiB for each: a burst of writes would hold hundreds of megabytes until the next new connection."""
    root = Authority.make("root")
    (ca := tmp_path / "ca.crt").write_bytes(root.pem)
    content = b"x" * 100_000
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content
    async with serving(answer, answer, None, tls=root.serving(tmp_path, "127.0.0.1")) as server:
        trusting = Connection(server.url, client_tls(str(ca)), lambda: None)
        exchange = await connect(trusting)
        for _ in range(2):
            assert (await exchange.ask(b"PUT / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")).content == content
            assert not [found for found in gc.get_referents(exchange.__dict__) if found and isinstance(found, list)]
        await becomes(lambda: exchange.is_lost)
        kept = {type(found) for found in gc.get_referents(exchange.__dict__)}
        assert not [kind for kind in kept if issubclass(kind, asyncio.BaseTransport) or "Parser" in kind.__name__]


async def test_the_end_leaves_no_connection_open_not_even_of_a_write_without_an_answer() -> None:
    async with serving(GOOD, b"HTTP/1.1 ") as server:
        async with client(server.url) as api:
            await api.update(PODS, POD)
            write = asyncio.create_task(api.update(PODS, POD))
            await becomes(lambda: len(server.requests) == 2)
        with pytest.raises(Unreachable):
            await write


@dataclass
class Proxy:
    """Opens tunnels, refuses, or never answers; ``asked`` has the heads of the requests."""

    refusal: bytes = b""
    is_mute: bool = False
    asked: list[str] = field(default_factory=list)
    open: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            await self._answer(reader, writer)
        finally:
            self.open -= 1

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head)
        if self.is_mute:
            await reader.read()
            writer.close()
            return
        if self.refusal:
            writer.write(self.refusal)
            writer.close()
            return
        host, _, port = head.split(" ")[1].rpartition(":")
        there, on = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n")
        await asyncio.gather(self._relay(reader, on), self._relay(there, writer))

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(2**16):
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def through(proxy: Proxy, url: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Api]:
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    address = f"http://user:pass%20word@127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening:
        async with Api(Connection(url, tls, lambda: None, address)) as api:
            yield api
        await becomes(lambda: not proxy.open)


@pytest.mark.parametrize("has_tls", [False, True], ids=["http", "https"])
async def test_a_proxy_gets_to_know_the_server_and_nothing_of_the_request(has_tls: bool, tmp_path: Path) -> None:
    authority, proxy, tls = Authority.make("root"), Proxy(), None
    if has_tls:
        tls = client_tls()
        tls.load_verify_locations(cadata=authority.pem.decode())
    async with serving(tls=authority.serving(tmp_path, "127.0.0.1") if has_tls else None) as server:
        async with through(proxy, server.url, tls) as api:
            for _ in range(2):
                assert await api.update(PODS, POD) == POD
    address = server.url.rpartition("/")[2]
    greeting = [f"CONNECT {address} HTTP/1.1", f"Host: {address}", "Proxy-Authorization: Basic dXNlcjpwYXNzIHdvcmQ="]
    assert proxy.asked == ["\r\n".join([*greeting, "", ""])]


@pytest.mark.parametrize(
    ("refusal", "says"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "the proxy 127.0.0.1 refuses: HTTP/1.1 407"),
        (b"HTTP/1.1 200", "the proxy closed the connection"),
        (b"x" * 70_000, "the proxy did not answer in HTTP"),
    ],
    ids=["refuses", "breaks off", "never ends"],
)
async def test_a_proxy_that_opens_no_tunnel_is_named_and_nothing_was_sent(refusal: bytes, says: str) -> None:
    async with serving() as server, through(Proxy(refusal), server.url) as api:
        with pytest.raises(Unreachable, match=says):
            await api.update(PODS, POD)
        assert await api.settle(1)
    assert not server.requests


@pytest.mark.parametrize("call", ["get", "update", "watch"])
async def test_a_proxy_that_never_answers_is_given_up(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (transport, sending):
        monkeypatch.setattr(module, "CONNECT_SECONDS", 0.05)

    async def ask(api: Api) -> None:
        if call == "get":
            await api.get(PODS, "p", "ns")
        elif call == "update":
            await api.update(PODS, POD)
        else:
            async for _ in api.watch(PODS, resource_version="1"):
                pass

    async with through(Proxy(is_mute=True), "https://127.0.0.1:1", client_tls()) as api:
        async with asyncio.timeout(60):
            with pytest.raises(Unreachable):
                await ask(api)


async def test_a_proxy_of_another_protocol_is_refused() -> None:
    async with Api(Connection("http://127.0.0.1:1", None, lambda: None, "socks5://127.0.0.1:1")) as api:
        with pytest.raises(Unreachable, match="only http and https proxies"):
            await api.update(PODS, POD)
