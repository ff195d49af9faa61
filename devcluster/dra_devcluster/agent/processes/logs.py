"""The output of containers: log files, and the clients that follow them.

A log has lines of ``<time> <stream> <F|P> <text>``, as container runtimes write them. ``F`` is a full line, ``P`` a
part of one that was too long or had no end. Readers get the text back with the filters of ``kubectl logs``. A client
that follows sees the output from the moment in which it comes."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_MOST_PIECES = 1000


class TooSlow(Exception):
    """The client reads more slowly than the container writes."""


class LogFollowers:
    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[tuple[str, bytes] | None]] = set()
        self._is_over = False

    def write(self, stream: str, data: bytes) -> None:
        """The container wrote this; a client that is far behind gets no more."""
        for queue in list(self._queues):
            queue.put_nowait((stream, data))
            if queue.qsize() >= _MOST_PIECES:
                self._queues.discard(queue)

    def end(self) -> None:
        self._is_over = True
        for queue in self._queues:
            queue.put_nowait(None)

    @contextmanager
    def follow(self) -> Iterator[AsyncIterator[tuple[str, bytes]]]:
        """What the container writes from now on, by stream, until it ends. Raises TooSlow."""
        queue: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue()
        self._queues.add(queue)
        if self._is_over:
            queue.put_nowait(None)
        try:
            yield self._pieces(queue)
        finally:
            self._queues.discard(queue)

    async def _pieces(self, queue: asyncio.Queue[tuple[str, bytes] | None]) -> AsyncIterator[tuple[str, bytes]]:
        while (piece := await queue.get()) is not None:
            yield piece
            if queue.empty() and queue not in self._queues:
                raise TooSlow("the client reads more slowly than the container writes")


_LONGEST_PIECE_BYTES = 16 * 1024
_LOG_POLL_SECONDS = 0.1


class LogFile:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def write(self, stream: str, lines: list[tuple[str, bytes]]) -> None:
        """Append lines that came at the same moment; each with its ``F`` or ``P``."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
        head = f"{now} {stream}"
        self._file.write(b"".join(f"{head} {tag} ".encode() + text + b"\n" for tag, text in lines))

    def close(self) -> None:
        self._file.close()


class StreamToLog(asyncio.Protocol):
    """The reading end of a container's stdout or stderr; ``closed`` is done when the stream has ended."""

    def __init__(self, log: LogFile, stream: str, followers: LogFollowers) -> None:
        self._log = log
        self._stream = stream
        self._followers = followers
        self._rest = b""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def stop(self) -> None:
        """Stop reading: a process that left the group may hold the stream open."""
        if self._transport is not None:
            self._transport.close()
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._followers.write(self._stream, data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        entries = [entry for line in lines for entry in _entries(line)]
        while len(self._rest) >= _LONGEST_PIECE_BYTES:
            entries.append(("P", self._rest[:_LONGEST_PIECE_BYTES]))
            self._rest = self._rest[_LONGEST_PIECE_BYTES:]
        if entries:
            self._log.write(self._stream, entries)

    def connection_lost(self, error: Exception | None) -> None:
        self._flush()
        if not self.closed.done():
            self.closed.set_result(None)

    def _flush(self) -> None:
        if self._rest:
            self._log.write(self._stream, [("P", self._rest)])
            self._rest = b""


def _entries(line: bytes) -> Iterator[tuple[str, bytes]]:
    while len(line) > _LONGEST_PIECE_BYTES:
        yield "P", line[:_LONGEST_PIECE_BYTES]
        line = line[_LONGEST_PIECE_BYTES:]
    yield "F", line


@dataclass(frozen=True, slots=True)
class LogQuery:
    """What ``kubectl logs`` asks for; None means no limit."""

    follow: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since: datetime | None = None


async def read_log(path: Path, query: LogQuery, is_over: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The text of a log file; with ``follow`` until the container ``is_over`` and everything was read."""
    left = query.limit_bytes
    with path.open("rb") as file:
        if query.tail_lines is not None:
            _seek_tail(file.fileno(), query.tail_lines)
        rest = b""
        while True:
            over = is_over()
            *lines, rest = (rest + file.read(1 << 20)).split(b"\n")
            text = b"".join(_formatted(line, query) for line in lines)
            if left is not None:
                text, left = text[:left], max(0, left - len(text))
            if text:
                yield text
            if left == 0:
                return
            if lines:
                continue
            if over or not query.follow:
                return
            await asyncio.sleep(_LOG_POLL_SECONDS)


def _seek_tail(descriptor: int, lines: int) -> None:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        starts: deque[int] = deque(maxlen=max(lines, 1))
        position, continued = 0, False
        for line in file:
            # A part without an end (P) and what follows it are one line for a reader.
            if not continued:
                starts.append(position)
            continued = line.split(b" ", 3)[2:3] == [b"P"]
            position += len(line)
        os.lseek(descriptor, starts[0] if starts and lines else position, os.SEEK_SET)


def _formatted(line: bytes, query: LogQuery) -> bytes:
    parts = line.split(b" ", 3)
    if len(parts) < 4:
        return b""
    time, _, tag, text = parts
    if query.since is not None and datetime.fromisoformat(time[:26].decode() + "+00:00") < query.since:
        return b""
    ending = b"\n" if tag == b"F" else b""
    return (time + b" " if query.timestamps else b"") + text + ending
