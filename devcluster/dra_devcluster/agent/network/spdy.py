"""Frames of SPDY/3.1, which ``kubectl port-forward`` speaks inside a websocket. No I/O here.

Only what a port forward needs: streams with headers, data, ends, resets and pings. No flow control: the client's
library has none either. Header blocks share one compression context per direction, so they must be read in order.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

# The dictionary of the protocol: words with their lengths, then values that headers often have.
_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie "
    "keep-alive origin"
)
_VALUES = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 "
    "Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 "
    "Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept "
    "Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,"
    "application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdch"
    "charset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _prefixed(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


DICTIONARY = b"".join(_prefixed(word.replace("_", " ").encode()) for word in _WORDS.split()) + _VALUES.encode()

SYN_STREAM_CODE, SYN_REPLY_CODE, RST_STREAM_CODE, PING_CODE, GOAWAY_CODE = 1, 2, 3, 6, 7
_CONTROL_MASK, _VERSION, _FIN_MASK = 0x8000, 3, 0x01
_STREAM_ID_MASK = 0x7FFFFFFF
_LONGEST_FRAME_BYTES = 1 << 20


class SpdyError(Exception):
    """The client does not speak the protocol; the connection has to end."""


class Frame(NamedTuple):
    """``kind`` 0 is data. ``body`` is what follows the stream's id, ``fin`` that the client sends no more on it."""

    kind: int
    stream: int
    fin: bool
    body: bytes


class Reader:
    """Cuts what arrives into frames. Raises SpdyError."""

    def __init__(self) -> None:
        self._rest = b""
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with this data."""
        self._rest += data
        while len(self._rest) >= 8:
            first, flags_and_length = struct.unpack(">II", self._rest[:8])
            length = flags_and_length & 0xFFFFFF
            if length > _LONGEST_FRAME_BYTES:
                raise SpdyError(f"a frame has {length} bytes")
            if len(self._rest) < 8 + length:
                return
            body, self._rest = self._rest[8 : 8 + length], self._rest[8 + length :]
            fin = bool(flags_and_length >> 24 & _FIN_MASK)
            if not first >> 31:
                yield Frame(0, first & _STREAM_ID_MASK, fin, body)
            elif len(body) >= 4:
                yield Frame(first & 0xFFFF, struct.unpack(">I", body[:4])[0] & _STREAM_ID_MASK, fin, body[4:])

    def headers(self, syn_stream: Frame) -> dict[str, str]:
        """The headers of a new stream. Raises SpdyError."""
        try:
            block = self._inflate.decompress(syn_stream.body[6:])
            (count,), at, texts = struct.unpack(">I", block[:4]), 4, []
            for _ in range(2 * count):
                (size,) = struct.unpack(">I", block[at : at + 4])
                texts.append(block[at + 4 : at + 4 + size].decode())
                at += 4 + size
        except (zlib.error, struct.error, UnicodeDecodeError) as error:
            raise SpdyError(f"the headers of a stream cannot be read: {error}") from error
        return dict(zip(texts[::2], texts[1::2], strict=True))


class Writer:
    """Makes frames; header blocks must be sent in the order in which they were made."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def reply(self, stream: int) -> bytes:
        """Accept a stream."""
        return _control(SYN_REPLY_CODE, struct.pack(">I", stream) + self._block({}))

    def open(self, stream: int, headers: Mapping[str, str]) -> bytes:
        """Begin a stream, as a client does."""
        return _control(SYN_STREAM_CODE, struct.pack(">IIH", stream, 0, 0) + self._block(headers))

    def _block(self, headers: Mapping[str, str]) -> bytes:
        texts = [_prefixed(text.encode()) for pair in headers.items() for text in pair]
        packed = self._deflate.compress(struct.pack(">I", len(headers)) + b"".join(texts))
        return packed + self._deflate.flush(zlib.Z_SYNC_FLUSH)


def data(stream: int, content: bytes, *, fin: bool = False) -> bytes:
    """Data of a stream; ``fin`` says that it was the last."""
    return struct.pack(">II", stream, (_FIN_MASK << 24 if fin else 0) | len(content)) + content


def pong(ping: Frame) -> bytes:
    """The answer to a ping, which is the same frame."""
    return _control(PING_CODE, struct.pack(">I", ping.stream))


def _control(kind: int, body: bytes) -> bytes:
    return struct.pack(">HHI", _CONTROL_MASK | _VERSION, kind, len(body)) + body
