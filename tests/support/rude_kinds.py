"""Clients that no server should suffer from, as a process of its own.

    python tests/support/rude_kinds.py 127.0.0.1 8080 10 /healthz plain silent huge_heads

A kind of rudeness is a function in ``KINDS``. Nothing but the standard library is imported: the process has to start
a hundred times in a run of the tests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Final

HELD: Final = 150
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@cache  # to make one takes longer than a handshake: a dozen clients would come in place of hundreds
def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@dataclass
class Target:
    """``path``: what is asked of it; ``is_tls``: whether the port speaks TLS."""

    host: str
    port: int
    until: float
    path: str = "/"
    is_tls: bool = False
    random: random.Random = field(default_factory=lambda: random.Random(39))

    @property
    def is_on(self) -> bool:
        return time.monotonic() < self.until

    @asynccontextmanager
    async def open(self, *, plain: bool = False) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection, which is aborted at the end of the block."""
        context = _trusting() if self.is_tls and not plain else None
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=context, limit=4096)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    def request(self, *headers: str, method: str = "GET", path: str = "") -> bytes:
        lines = [f"{method} {path or self.path} HTTP/1.1", f"Host: localhost:{self.port}", *headers, "", ""]
        return "\r\n".join(lines).encode("utf-8", "surrogateescape")


Rudeness = Callable[[Target], Awaitable[None]]
KINDS: Final[dict[str, Rudeness]] = {}
"""By name; each is what many clients do at a time, again and again."""


def rude(number: int) -> Callable[[Rudeness], Rudeness]:
    """Make a kind of what one client does, with ``number`` clients at a time."""

    def decorate(one: Rudeness) -> Rudeness:
        async def again(target: Target) -> None:
            while target.is_on:
                with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ssl.SSLError):
                    await one(target)
                await asyncio.sleep(0)

        async def many(target: Target) -> None:
            await asyncio.gather(*(again(target) for _ in range(number)))

        KINDS[one.__name__] = many
        return one

    return decorate


async def _sent(target: Target, said: bytes, *, plain: bool = False, reads: bool = True) -> None:
    """Say something, and stay until the server closes or the time is over."""
    async with target.open(plain=plain) as (reader, writer):
        writer.write(said)
        await _until_closed(target, reader if reads else None)


async def _until_closed(target: Target, reader: asyncio.StreamReader | None) -> None:
    while target.is_on:
        if reader is None:
            await asyncio.sleep(0.1)
            continue
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                if not await reader.read(4096):
                    return


@rude(HELD)
async def silent(target: Target) -> None:
    """Connections that say nothing."""
    await _sent(target, b"")


@rude(HELD)
async def silent_before_tls(target: Target) -> None:
    """Connections without a handshake."""
    await _sent(target, b"", plain=True)


@rude(HELD)
async def half_a_head(target: Target) -> None:
    """Requests that never end."""
    await _sent(target, target.request()[:-2])


@rude(80)
async def letter_by_letter(target: Target) -> None:
    """Requests of which a letter comes now and then."""
    async with target.open() as (_, writer):
        for letter in target.request("X: " + "y" * 100):
            writer.write(bytes((letter,)))
            await writer.drain()
            await asyncio.sleep(0.05)
            if not target.is_on:
                break


@rude(80)
async def asks_now_and_then(target: Target) -> None:
    """Connections that are kept, with a request now and then."""
    async with target.open() as (reader, writer):
        while target.is_on:
            writer.write(target.request())
            await writer.drain()
            if not await reader.read(4096):
                return
            await asyncio.sleep(0.3)


@rude(HELD)
async def one_request_then_silence(target: Target) -> None:
    """Connections that are kept after an answer."""
    await _sent(target, target.request())


@rude(8)
async def again_and_again(target: Target) -> None:
    """New connections with a request, as many as possible."""
    async with target.open() as (reader, writer):
        writer.write(target.request())
        await reader.read(4096)


@rude(8)
async def gone_at_once(target: Target) -> None:
    """Requests whose client resets the connection before there is an answer."""
    async with target.open() as (_, writer):
        writer.write(target.request())
        with suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await asyncio.sleep(0.005)


@rude(HELD)
async def half_closed(target: Target) -> None:
    """Clients that say that they are done, and neither read nor close."""
    async with target.open(plain=True) as (_, writer):
        writer.write(target.request())
        writer.write_eof()
        await _until_closed(target, None)


@rude(40)
async def reads_nothing(target: Target) -> None:
    """Requests whose answers nobody reads."""
    await _sent(target, target.request(path="/metrics") * 5, reads=False)


@rude(20)
async def wrong_bytes(target: Target) -> None:
    """No HTTP at all."""
    said = target.random.randbytes(target.random.randrange(1, 2000))
    await _sent(target, target.random.choice([said, b"GET " + said, said + b"\r\n\r\n", b"A" + said + b"\r\n\r\n"]))


@rude(20)
async def wrong_text(target: Target) -> None:
    """Requests whose parts cannot be decoded, or mean nothing."""
    bad = "\udcff\udcfe"
    methods = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "BREW")
    names = ("Authorization", "Host", "Origin", "Content-Type", "Cookie", "Accept", "Content-Length", "Upgrade",
             "Expect", "Transfer-Encoding", "Sec-Fetch-Site", "Impersonate-User", "Sec-WebSocket-Protocol")  # fmt: skip
    paths = ["/%ff%fe", "/%00", "/\udcff", "//", "/..%2f..%2f", "*", "http://[::1", "/?%", "/\u00e9", "/" + "a" * 9000]
    paths += [f"{target.path}?{query}" for query in ("exclude=%ff", f"limit={bad}&labelSelector={bad}", "known=%ff")]
    choose = target.random.choice
    headers = [f"{choose(names)}: {choose([bad, f'Bearer {bad}', 'Basic ' + bad, '-1', 'a, b', ''])}"]
    path = choose([*paths, target.path, target.path])
    await _sent(target, target.request(*headers, method=choose(methods), path=path))


@rude(6)
async def huge_heads(target: Target) -> None:
    """Heads of a megabyte: one line, many lines, one path."""
    shapes = (
        target.request("X: " + "y" * 2**20),
        target.request(*(f"X{at}: y" for at in range(60_000))),
        target.request(path="/" + "z" * 2**20),
        target.request("X: " + "y" * 7_000, "Y: " + "y" * 7_000, "Z: " + "y" * 7_000),
    )
    await _sent(target, target.random.choice(shapes))


@rude(4)
async def huge_bodies(target: Target) -> None:
    """Bodies without an end."""
    kind = target.random.choice(["Content-Length: 10000000000", "Transfer-Encoding: chunked"])
    async with target.open() as (reader, writer):
        writer.write(target.request(kind, "Content-Type: application/json", method="POST"))
        while target.is_on and not reader.at_eof():
            writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await writer.drain()


@rude(HELD)
async def slow_bodies(target: Target) -> None:
    """Bodies that never come."""
    head = target.request("Content-Length: 100", "Content-Type: application/json", method="POST")
    await _sent(target, head + b"{")


@rude(6)
async def pipelines(target: Target) -> None:
    """Thousands of requests at a time, of which no answer is waited for."""
    await _sent(target, target.request() * 5_000)


@rude(40)
async def other_protocol(target: Target) -> None:
    """TLS to a plain port, and HTTP to one with TLS."""
    hello = bytes.fromhex("16030100c8010000c40303") + target.random.randbytes(193)
    await _sent(target, target.request() if target.is_tls else hello, plain=True)


@rude(80)
async def websockets(target: Target) -> None:
    """Requests for another protocol, and then silence."""
    ask = target.request(
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )
    await _sent(target, ask + b"\x81\xff")


def _frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + body


@rude(HELD)
async def http2_silent(target: Target) -> None:
    """HTTP/2 connections without a stream."""
    await _sent(target, _PREFACE + _frame(4, 0, 0))


# :method POST, :scheme http, :path /dra.kopf.dev.fit.v1.Fit/Ask (a literal), content-type application/grpc, te trailers
_ASK: Final = b"\x83\x86\x04\x1c/dra.kopf.dev.fit.v1.Fit/Ask\x0f\x10\x10application/grpc\x00\x02te\x08trailers"


@rude(80)
async def http2_streams(target: Target) -> None:
    """Streams that are opened and never used."""
    opened = b"".join(_frame(1, 4, 2 * at + 1, _ASK) for at in range(60))
    await _sent(target, _PREFACE + _frame(4, 0, 0) + opened)


@rude(4)
async def http2_rapid_reset(target: Target) -> None:
    """Streams that are opened and reset, thousands at a time."""
    said = b"".join(
        _frame(1, 4, 2 * at + 1, _ASK) + _frame(3, 0, 2 * at + 1, struct.pack(">I", 8)) for at in range(3_000)
    )
    await _sent(target, _PREFACE + _frame(4, 0, 0) + said)


@rude(8)
async def http2_wrong_text(target: Target) -> None:
    """A question whose token is no text."""
    head = _frame(1, 4, 1, _ASK + b"\x00\x0dauthorization\x02\xff\xfe")
    await _sent(target, _PREFACE + _frame(4, 0, 0) + head + _frame(0, 1, 1, bytes(5)))


@rude(30)
async def large_questions(target: Target) -> None:
    """Questions that take as long as they may."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [{"name": "web"}]}}
    body = json.dumps({"manifests": [pod], "max": True}).encode()
    said = target.request(f"Content-Length: {len(body)}", "Content-Type: application/json", method="POST") + body
    await _sent(target, said)


@rude(4)
async def http2_pings(target: Target) -> None:
    """Pings and settings without an end."""
    await _sent(target, _PREFACE + _frame(4, 0, 0) + (_frame(6, 0, 0, bytes(8)) + _frame(4, 0, 0)) * 5_000)


async def _main(given: argparse.Namespace) -> None:
    target = Target(given.host, given.port, time.monotonic() + given.seconds, given.path, given.tls == "tls")
    async with asyncio.timeout(given.seconds + 10):
        await asyncio.gather(*(KINDS[kind](target) for kind in given.kinds))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("path")
    parser.add_argument("tls", choices=("tls", "plain"))
    parser.add_argument("kinds", nargs="+", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    asyncio.run(_main(parser.parse_args()))
