"""One connection to an API server, for one request after the other, each a whole message with a whole answer.

httptools parses the answers. A connection is good for another request when an answer was complete, the server keeps the
connection open, and nothing else came. It keeps nothing of an answer that was given, and when it is lost nothing of
what asyncio made for it: TLS alone has 256 KiB for each, and hundreds may be lost before the next one is made.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from typing import NamedTuple

import httptools

LARGEST_OBJECT_BYTES = 32 << 20
"""Bytes of an answer about one object. kube-apiserver takes requests of 3 MB, and in its answers a character may become
six."""
_INTERIM = range(100, 200)
_FRAMED = (b"content-length", b"transfer-encoding")


class CutOff(OSError):
    """The connection ended before the answer was complete, or what came is no answer."""


class TooLarge(CutOff):
    """The answer is longer than any that is about one object."""


class Answer(NamedTuple):
    """A status with its content; ``retry_after`` is the header of that name."""

    status: int
    retry_after: str | None
    content: bytes


class Exchange(asyncio.Protocol):
    """The connection as asyncio's protocol; ``ask`` only while ``is_good``, and not before the last answer came.

    ``tls``: the settings with which it is made.
    """

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.tls = tls
        self.is_good = False
        self.is_lost = False
        self._transport: asyncio.Transport | None = None
        self._poll = select.poll()
        self._answer: asyncio.Future[Answer] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._parts: list[bytes] = []

    async def ask(self, request: bytes) -> Answer:
        """Send a request and wait for its answer. Raises OSError; the connection then is good no more.

        A wait that is cancelled ends the connection as well.
        """
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._parts = []
        self._size = 0
        self._retry_after: str | None = None
        self._has_begun = self._is_framed = False
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._answer
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = None

    def is_stale(self) -> bool:
        """Whether the other side has closed the connection, or sent what was not asked for, perhaps unseen so far.

        asyncio notices that only when the event loop has read it, which a long calculation may delay.
        """
        if not self.is_good or self._transport is None or self._transport.is_closing():
            return True
        return bool(self._poll.poll(0))

    def close(self) -> None:
        """End the connection at once, without a goodbye that the other side may never answer."""
        self.is_good = False
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands, with TLS if there is any."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._poll.register(transport.get_extra_info("socket"), select.POLLIN)
        self.is_good = True

    def data_received(self, data: bytes) -> None:
        """A piece of an answer."""
        if self._parser is None or self._answer is None or self._answer.done():
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(CutOff(f"the server did not answer in HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        """Without a length of its content, an answer ends with the connection."""
        self.is_good, self.is_lost = False, True
        if self._answer is not None and not self._answer.done():
            if self._has_begun and not self._is_framed and error is None:
                self._end()
            else:
                self._fail(CutOff(str(error) if error else "Server disconnected"))
        self._transport = self._parser = None
        self._parts = []

    # --- httptools ---

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        name = name.lower()
        if name in _FRAMED:
            self._is_framed = True
        elif name == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The content follows, if there is one."""
        self._has_begun = True

    def on_body(self, part: bytes) -> None:
        """A part of the content."""
        self._parts.append(part)
        self._size += len(part)
        if self._size > LARGEST_OBJECT_BYTES:
            self._fail(TooLarge(f"the answer is larger than {LARGEST_OBJECT_BYTES >> 20} MiB"))

    def on_message_complete(self) -> None:
        """The answer is whole, unless it says no more than that there will be one."""
        assert self._parser is not None
        if self._parser.get_status_code() in _INTERIM:
            self._has_begun = False
        elif self._answer is None or self._answer.done():  # a second one, which was not asked for
            self.close()
        else:
            self.is_good = self.is_good and self._parser.should_keep_alive()
            self._end()

    def _end(self) -> None:
        assert self._answer is not None
        assert self._parser is not None
        content, self._parts = b"".join(self._parts), []
        self._answer.set_result(Answer(self._parser.get_status_code(), self._retry_after, content))

    def _fail(self, error: OSError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self.close()
