"""How often, how late, and whether at all a request is sent: against a server that counts what arrives."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from authority import Authority
from dra_kube import PODS, Api, ApiError, Connection, KubeError, Unreachable
from dra_kube.access.credentials import client_tls
from dra_kube.http import sending
from dra_kube.http.transport import seconds_to_wait

POD = {"kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}}


@dataclass
class Server:
    """Answers each request with a pod; ``lose`` that many answers, or close without a word behind an answer."""

    url: str = ""
    requests: list[tuple[str, dict[str, str], int]] = field(default_factory=list)
    lose: int = 0
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    close_behind: bool = False
    closed: threading.Event = field(default_factory=threading.Event)
    accepted: threading.Event = field(default_factory=threading.Event)
    connections: int = 0
    ca: bytes | None = None
    hold: threading.Event | None = None
    arrived: threading.Event = field(default_factory=threading.Event)

    @property
    def methods(self) -> list[str]:
        return [method for method, _, _ in self.requests]


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(None) as state:
        yield state


@pytest.fixture(params=["http", "https"])
def any_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path if request.param == "https" else None) as state:
        yield state


@contextmanager
def serving(certificates: Path | None) -> Iterator[Server]:
    """A server in a thread, with TLS if there is a folder for its certificates."""
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            state.connections += 1
            self.number = state.connections
            state.accepted.set()

        def handle_any(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
            state.requests.append((self.command, query, self.number))
            state.arrived.set()
            if state.hold is not None:
                state.hold.wait(10)
            self.close_connection = state.close_behind or state.lose > 0
            if state.lose > 0:
                state.lose -= 1
                return
            content = b'{"kind":"Pod","metadata":{"name":"p"}}'
            self.send_response(state.status)
            for name, value in state.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = handle_any  # noqa: N815 - the standard library's names

        def finish(self) -> None:
            super().finish()
            self.connection.close()
            state.closed.set()

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Clients that break off are what is tested here."""

    http = Quiet(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{http.server_port}"
    if certificates is not None:
        authority = Authority.make("root")
        state.url, state.ca = state.url.replace("http", "https"), authority.pem
        http.socket = authority.serving(certificates, "127.0.0.1").wrap_socket(http.socket, server_side=True)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def client(server: Server, **options: object) -> Api:
    tls = None
    if server.ca is not None:
        tls = client_tls()
        tls.load_verify_locations(cadata=server.ca.decode())
    return Api(Connection(server.url, tls, lambda: None), **options)  # type: ignore[arg-type]  # handed on


WRITES: dict[str, Callable[[Api], Awaitable[object]]] = {
    "PUT": lambda api: api.update(PODS, POD),
    "POST": lambda api: api.create(PODS, POD),
    "PATCH": lambda api: api.patch(PODS, "p", {}, "ns"),
    "DELETE": lambda api: api.delete(PODS, "p", "ns"),
}
EACH_WRITE = pytest.mark.parametrize("method", WRITES)


@EACH_WRITE
@pytest.mark.parametrize("used", [False, True], ids=["new connection", "kept connection"])
async def test_a_write_whose_answer_is_lost_is_sent_once(server: Server, method: str, used: bool) -> None:
    async with client(server) as api:
        if used:
            await api.update(PODS, POD)
        server.requests.clear()
        server.lose = 10
        with pytest.raises(Unreachable, match=rf"{method} http://127\.0\.0\.1.*/pods"):
            await WRITES[method](api)
    assert server.methods == [method]


async def test_a_read_whose_answer_is_lost_is_repeated(server: Server) -> None:
    server.lose = 1
    async with client(server) as api:
        await api.get(PODS, "p", "ns")
    assert server.methods == ["GET", "GET"]


@EACH_WRITE
async def test_a_connection_closed_while_idle_costs_no_write_although_the_loop_did_not_see_it(
    any_server: Server, method: str
) -> None:
    server = any_server
    async with client(server) as api:
        server.close_behind = True
        await api.update(PODS, POD)
        assert server.closed.wait(5)  # the event loop does not run meanwhile, as in a long calculation
        await WRITES[method](api)
    assert [(name, number) for name, _, number in server.requests] == [("PUT", 1), (method, 2)]


async def test_a_good_connection_is_used_again(any_server: Server) -> None:
    async with client(any_server) as api:
        for _ in range(3):
            await api.update(PODS, POD)
    assert any_server.connections == 1


@EACH_WRITE
@pytest.mark.parametrize(
    ("allowed", "says"),
    [(math.inf, "9.000s"), (2.5, "1.250s"), (19.0, "9.000s")],
    ids=["the client's own limit", "half of what the guard gives", "the limit, half of what the guard gives is more"],
)
async def test_the_server_is_told_how_long_a_write_may_take(
    server: Server, method: str, allowed: float, says: str
) -> None:
    async with client(server, timeout=10.0, guard=lambda: allowed) as api:
        await WRITES[method](api)
        await api.get(PODS, "p", "ns")
    assert [query.get("timeout") for _, query, _ in server.requests] == [says, None]


async def test_other_parameters_survive_the_time_limit(server: Server) -> None:
    async with client(server) as api:
        await api.patch(PODS, "p", {}, "ns", kind="apply", field_manager="a b&c", force=True)
    query = server.requests[0][1]
    assert (query["fieldManager"], query["force"]) == ("a b&c", "true")


class NotNow(KubeError):
    pass


@EACH_WRITE
async def test_a_write_that_the_guard_forbids_is_never_sent_and_reads_still_are(server: Server, method: str) -> None:
    def forbid() -> float:
        raise NotNow("not now")

    async with client(server, guard=forbid) as api:
        with pytest.raises(NotNow, match="not now"):
            await WRITES[method](api)
        await api.get(PODS, "p", "ns")
    assert server.methods == ["GET"]


@EACH_WRITE
@pytest.mark.parametrize("last", [None, 3.0], ids=["forbids", "allows less than the server was told"])
async def test_the_guard_is_asked_once_more_when_the_first_byte_goes_out(
    server: Server, method: str, last: float | None
) -> None:
    """The process may have been stopped since it asked first."""
    answers = iter((9.0, last))

    def guard() -> float:
        if (seconds := next(answers)) is None:
            raise NotNow("not now")
        return seconds

    async with client(server, guard=guard) as api:
        with pytest.raises(KubeError, match=r"not now|delayed for too long") as caught:
            await WRITES[method](api)
        assert not isinstance(caught.value, Unreachable)
        await api.get(PODS, "p", "ns")
        assert await api.settle(1)
    assert server.methods == ["GET"]


@EACH_WRITE
async def test_a_write_that_the_event_loop_held_up_is_sent_while_the_server_has_the_time_that_it_is_told(
    server: Server, method: str
) -> None:
    answers = iter((9.0, 4.5))
    async with client(server, guard=lambda: next(answers)) as api:
        await WRITES[method](api)
    assert [query["timeout"] for _, query, _ in server.requests] == ["4.500s"]


async def test_the_guard_is_asked_when_the_connection_stands(server: Server) -> None:
    """Connecting may take long; what was true before may be wrong after."""
    connections_when_asked: list[int] = []

    def guard() -> float:
        server.accepted.wait(2)
        connections_when_asked.append(server.connections)
        return 1.0

    async with client(server, guard=guard) as api:
        await api.update(PODS, POD)
    assert connections_when_asked == [1, 1]


async def test_when_all_is_to_settle_writes_in_flight_end_and_no_other_one_is_sent(server: Server) -> None:
    server.hold = threading.Event()
    async with client(server, timeout=0.5) as api:
        write = asyncio.create_task(api.update(PODS, POD))
        await asyncio.to_thread(server.arrived.wait, 5)
        assert not await api.settle(0.01)
        settled = asyncio.create_task(api.settle(5))
        server.hold.set()
        await write
        assert await settled
        with pytest.raises(Unreachable):
            await api.update(PODS, POD)
        await api.get(PODS, "p", "ns")
        assert await api.settle(5)
    assert server.methods == ["PUT", "GET"]


async def test_a_write_that_was_cut_off_is_settled_only_when_its_time_on_the_server_is_over(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = 100.0
    monkeypatch.setattr(sending, "boot_time", lambda: time)
    server.hold = threading.Event()
    async with client(server, timeout=10.0) as api:
        write = asyncio.create_task(api.update(PODS, POD))
        await asyncio.to_thread(server.arrived.wait, 5)
        write.cancel()
        await asyncio.wait((write,))
        assert not await api.settle(5)
        time += 8.9
        assert not await api.settle(5)
        time += 0.1
        assert await api.settle(5)
        server.hold.set()


@pytest.mark.parametrize(
    ("status", "lose", "settled"), [(200, 0, True), (403, 0, True), (200, 1, False)], ids=["done", "refused", "lost"]
)
async def test_a_write_is_settled_when_it_was_answered(server: Server, status: int, lose: int, settled: bool) -> None:
    server.status, server.lose = status, lose
    async with client(server) as api:
        with suppress(KubeError):
            await api.update(PODS, POD)
        assert await api.settle(1) == settled


async def test_a_write_without_a_server_is_settled(unused_tcp_port: int) -> None:
    async with Api(Connection(f"http://127.0.0.1:{unused_tcp_port}", None, lambda: None)) as api:
        with pytest.raises(Unreachable):
            await api.update(PODS, POD)
        assert await api.settle(1)


@EACH_WRITE
async def test_a_redirected_write_is_not_sent_again(server: Server, method: str) -> None:
    server.status, server.headers = 307, {"Location": "/elsewhere"}
    async with client(server) as api:
        with pytest.raises(ApiError) as caught:
            await WRITES[method](api)
    assert caught.value.code == 307
    assert server.methods == [method]


@pytest.mark.parametrize("status", [429, 503, 409, 500])
async def test_the_header_that_asks_for_patience_reaches_the_caller(server: Server, status: int) -> None:
    server.status, server.headers = status, {"Retry-After": "7"}
    async with client(server) as api:
        with pytest.raises(ApiError) as caught:
            await api.update(PODS, POD)
    assert caught.value.retry_after == 7


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("5", 5.0),
        ("0", 0.0),
        (None, None),
        ("soon", None),
        ("-3", None),
        ("nan", None),
        ("inf", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Wed, 21 Oct 2015 07:28:00 -0000", 0.0),
        ("Wed, 21 Oct 99999999999999999999 07:28:00 GMT", None),
        ("Wed, 21 Oct 2015 07:28:00 +99999999999999999999", None),
    ],
)
def test_what_the_header_may_say(header: str | None, seconds: float | None) -> None:
    assert seconds_to_wait(header) == seconds


def test_a_date_is_counted_from_now() -> None:
    found = seconds_to_wait(format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True))
    assert found == pytest.approx(100, abs=5)
