"""Sends requests over HTTP; gives bytes, or raises the errors of ``dra_kube.errors``.

Reads and watches go through aiohttp, writes through ``sending``. Every failure of either becomes a KubeError here, so
that no caller has to know about them.
"""

from __future__ import annotations

import asyncio
import math
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import msgspec
from dra_api.codec import TOO_DEEP

from dra_kube.access.connection import Connection, proxy_and_credentials
from dra_kube.access.credentials import newest
from dra_kube.errors import (
    AnswerTooLarge,
    ApiError,
    KubeError,
    NoAnswerInTime,
    ServerError,
    TooManyRequests,
    Unreachable,
    error_of,
)

from .connections import LARGEST_OBJECT_BYTES, Sockets, TooLarge
from .sending import CONNECT_SECONDS, Guard, Sending
from .watch import WatchLine, no_event, watch_lines

Query = Mapping[str, str]
Observe = Callable[[str, str, int, float], None]
"""Gets of each request the method, the path, the status (0: no answer), and the seconds until the answer began."""

_WATCH_SECONDS = 300
"""The server ends a watch after this time. A watch that is silent for longer has lost its server."""
_WATCH_GRACE_SECONDS = 30
_KEEPALIVE_SECONDS = 20.0
"""kube-apiserver closes idle connections after 90 s, load balancers and proxies in between often after 30 to 60 s."""
SHORTEST_PAUSE_SECONDS = 1.0
"""Before a read that the server has asked to repeat, even if it asks for less."""
LONGEST_PATIENCE_SECONDS = 300.0
"""For how long such a read is repeated if a request has no limit of time, or a longer one."""


class Transport:
    """A pool of connections to one API server. ``timeout`` is the limit in seconds for one request, watches apart.

    ``is_patient``: each read is (``request``).
    """

    def __init__(
        self,
        connection: Connection,
        timeout: float,
        user_agent: str,
        guard: Guard,
        observe: Observe,
        is_patient: bool,
    ) -> None:
        self.connection = connection
        self.is_patient = is_patient
        self._observe = observe
        # Apart from each other: aiohttp shows the address of a proxy in its errors.
        self._proxy, credentials = proxy_and_credentials(connection.proxy)
        self._proxy_headers = {"Proxy-Authorization": credentials} if credentials else {}
        self._seconds = timeout
        self._timeout = _limit(timeout)
        self._user_agent = user_agent
        self._sending = Sending(connection, timeout, _KEEPALIVE_SECONDS, guard)
        self._sockets = Sockets()
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Get ready; nothing is sent yet."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=_KEEPALIVE_SECONDS,
                socket_factory=self._sockets.make,
            ),
            timeout=self._timeout,
            headers={"User-Agent": self._user_agent},
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            await self._sockets.close()
            await self._sending.close()
            self._session = None

    async def settle(self, seconds: float) -> bool:
        """Send no more writes and wait for those in flight; whether none is left that may still take effect."""
        return await self._sending.settle(seconds)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """The content of a successful answer. Raises Unreachable, or the ApiError that the server sent.

        A read of a patient client is repeated if the server asks to come back later, for as long as one request may
        take.
        """
        if method != "GET":
            self._entered()
            return await self._write(method, path, body, query or {}, headers or {})
        end = time.monotonic() + (self.patience() if self.is_patient else 0.0)
        while True:
            try:
                return await self.read(path, query or {}, headers or {})
            except ApiError as error:
                pause = pause_after(error, end - time.monotonic())
                if pause is None:
                    raise
                await asyncio.sleep(pause)

    async def read(
        self,
        path: str,
        query: Query,
        headers: Mapping[str, str],
        *,
        largest: int = LARGEST_OBJECT_BYTES,
        seconds: float | None = None,
    ) -> bytes:
        """Ask once for the content of a successful answer. Raises as ``request`` does.

        ``largest``: the limit in bytes (else AnswerTooLarge). ``seconds``: a limit below that of the client, which is
        at most a third of it (else NoAnswerInTime); None for the client's own.
        """
        limit = _limit(self._limit_of(seconds))
        response = await self._read(path, query, headers, limit)
        return await _content(response, f"GET {self.connection.host}{path}", limit, largest)

    def patience(self, seconds: float | None = None) -> float:
        """Return for how many seconds a read with this limit is repeated if the server asks to come back later."""
        return min(self._limit_of(seconds), LONGEST_PATIENCE_SECONDS)

    def _limit_of(self, seconds: float | None) -> float:
        return self._seconds if seconds is None else min(seconds, self._seconds / 3)

    async def json(self, method: str, path: str, **options: Any) -> Any:
        """The JSON of a successful answer. Raises as ``request`` does, and Unreachable when it is no JSON."""
        return self.decoded(path, await self.request(method, path, **options))

    def decoded(self, path: str, content: bytes, type_: Any = Any) -> Any:
        """Content as JSON. Raises Unreachable for anything else: the other side is not an API server; and for an object
        that nests too deep for Python."""
        try:
            return msgspec.json.decode(content, type=type_)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self.is_no_server(path, str(error), content) from error
        except RecursionError as error:
            raise Unreachable(f"{self.connection.host}{path} holds an object that is {TOO_DEEP}") from error

    def is_no_server(self, path: str, why: str, content: bytes) -> Unreachable:
        """Return the error for a successful answer that no API server gives."""
        return Unreachable(f"{self.connection.host}{path} is not an API server: {why}: {content[:80]!r}")

    async def watch(self, path: str, query: Query, silence: float | None = None) -> AsyncIterator[list[WatchLine]]:
        """Yield the events of a watch as they come in, first none as soon as it is open, until the server ends it.

        ``silence``: seconds without a byte after which the stream is given up; None for as long as the server may keep
        a watch open. Raises as ``request`` does.
        """
        query = {**query, "watch": "true", "timeoutSeconds": str(_WATCH_SECONDS)}
        silence = _WATCH_SECONDS + _WATCH_GRACE_SECONDS if silence is None else silence
        limit = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS, sock_read=silence)
        response = await self._read(path, query, {}, limit)
        what = f"{self.connection.host}{path}"
        async with response:
            try:
                yield []
                async for lines in watch_lines(response.content, what):
                    wrong = next((number for number, line in enumerate(lines) if line.type == "ERROR"), None)
                    yield lines[:wrong]
                    if wrong is not None:
                        raise _reported(lines[wrong], what)
                    del lines  # not held while the next ones are awaited
            except (aiohttp.ClientError, TimeoutError, RuntimeError) as error:  # the last: closed before it was read
                raise Unreachable(f"the watch of {what} was interrupted: {error!r}") from error
            finally:
                # Otherwise a stream that is left early waits for the end of TLS, even after the loop has ended.
                if response.connection is not None and response.connection.transport is not None:
                    response.connection.transport.abort()

    async def _write(self, method: str, path: str, body: Any, query: Query, headers: Mapping[str, str]) -> bytes:
        content = b"" if body is None else msgspec.json.encode(body)
        sent = {"User-Agent": self._user_agent, **self._headers(), **headers}
        what = f"{method} {self.connection.host}{path}"
        began, status = time.perf_counter(), 0
        try:
            answer = await self._sending.send(method, path, query, self._with_impersonation(sent), content)
            status = answer.status
        except (TimeoutError, OSError) as error:
            raise _unreachable(what, error, self._timeout) from error
        finally:
            self._observe(method, path, status, time.perf_counter() - began)
        if status < 300:
            return answer.content
        self._tell_if_refused(status, sent)
        raise _refusal(what, status, answer.content, seconds_to_wait(answer.retry_after))

    async def _read(
        self, path: str, query: Query, headers: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        sent = {**self._headers(), **headers}
        tls = self.connection.tls
        if tls is None:
            sent |= self._proxy_headers  # no tunnel: the proxy reads the request itself
        what, url = f"GET {self.connection.host}{path}", f"{self.connection.host}{path}"
        began, status = time.perf_counter(), 0
        try:
            response = await self._entered().get(
                url,
                params=query,
                headers=self._with_impersonation(sent),
                timeout=timeout,
                ssl=newest(tls) if tls is not None else False,  # with another one aiohttp makes another connection
                proxy=self._proxy,
                proxy_headers=self._proxy_headers,
                allow_redirects=False,  # an API server never redirects; what does must not get our credentials
            )
            status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unreachable(what, error, timeout) from error
        finally:
            self._observe("GET", path, status, time.perf_counter() - began)
        if response.status < 300:
            return response
        self._tell_if_refused(status, sent)
        retry_after = seconds_to_wait(response.headers.get("Retry-After"))
        raise _refusal(what, response.status, await _content(response, what, timeout), retry_after)

    def _headers(self) -> dict[str, str]:
        sent = {"Accept": "application/json", "Content-Type": "application/json"}
        if authorization := self.connection.authorization():
            sent["Authorization"] = authorization
        return sent

    def _with_impersonation(self, headers: Mapping[str, str]) -> list[tuple[str, str]]:
        return [*headers.items(), *self.connection.impersonation]

    def _tell_if_refused(self, status: int, sent: Mapping[str, str]) -> None:
        if status == 401:
            self.connection.refused(sent.get("Authorization"))

    def _entered(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the Api must be entered first: async with Api(connection) as api")
        return self._session


def pause_after(error: ApiError, left: float) -> float | None:
    """Return the seconds after which a read is repeated because the server asks for it; None if it does not, or asks
    for more than there are ``left``."""
    asked = error.retry_after if isinstance(error, TooManyRequests | ServerError) else None
    return None if asked is None or asked > left else max(asked, SHORTEST_PAUSE_SECONDS)


def unobserved(_method: str, _path: str, _status: int, _seconds: float) -> None:
    """No one looks at the requests."""


def _limit(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, connect=min(seconds, CONNECT_SECONDS))


def _unreachable(what: str, error: Exception, timeout: aiohttp.ClientTimeout) -> Unreachable:
    kind = Unreachable
    if isinstance(error, TooLarge):
        kind = AnswerTooLarge
    elif isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
        kind = NoAnswerInTime
    return kind(f"{what}: {_words(error, timeout)}")


def _words(error: Exception, timeout: aiohttp.ClientTimeout) -> str:
    if isinstance(error, TimeoutError) and not str(error) and timeout.total is not None:
        return f"no answer within {timeout.total:g} s"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is refused: {error.verify_message}"
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return f"the proxy {error.host}:{error.port} cannot be reached: {error.os_error.strerror or error.os_error}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the name {error.host} is not known"
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, ConnectionRefusedError):
        return "the connection was refused"
    return str(error) or type(error).__name__


async def _content(
    response: aiohttp.ClientResponse, what: str, timeout: aiohttp.ClientTimeout, largest: int = LARGEST_OBJECT_BYTES
) -> bytes:
    parts: list[bytes] = []
    size = 0
    try:
        async with response:
            async for part in response.content.iter_any():
                parts.append(part)
                size += len(part)
                if size > largest:
                    raise AnswerTooLarge(f"{what}: the answer is larger than {largest >> 20} MiB")
    except TimeoutError as error:
        raise NoAnswerInTime(f"{what}: no whole answer within {timeout.total or 0:g} s") from error
    except aiohttp.ClientError as error:
        raise Unreachable(f"{what}: the response was cut off: {error!r}") from error
    return b"".join(parts)


def _reported(line: WatchLine, what: str) -> KubeError:
    """Return the error that a watch brings instead of an event."""
    try:
        status = msgspec.json.decode(line.object, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return no_event(line.object, what, str(error))
    code = status.get("code")
    return error_of(code if isinstance(code, int) and code > 0 else 500, status)


def _refusal(what: str, code: int, content: bytes, retry_after: float | None) -> ApiError:
    error = _refused(code, content, retry_after)
    error.request = what
    return error


def _refused(code: int, content: bytes, retry_after: float | None) -> ApiError:
    try:
        status = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        status = None
    if isinstance(status, dict) and status.get("kind") == "Status":
        return error_of(code, status, retry_after=retry_after)
    text = content.decode(errors="replace").strip()[:200] or f"HTTP {code}"
    if 300 <= code < 400:
        text = f"HTTP {code}, a redirect, which is not followed; set the cluster's server to the API server itself"
    return error_of(code, {}, text, retry_after)


def seconds_to_wait(header: str | None) -> float | None:
    """Return the seconds that ``Retry-After`` asks for, a number or a date; None if it says nothing usable.

    RFC 9110, 10.2.3.
    """
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        return _until(header)
    return seconds if 0 <= seconds < math.inf else None


def _until(date: str) -> float | None:
    try:
        then = parsedate_to_datetime(date)
    except (ValueError, OverflowError):  # the latter for a number of many digits
        return None
    if then.tzinfo is None:  # the zone "-0000" means UTC, origin unknown
        then = then.replace(tzinfo=UTC)
    return max(0.0, (then - datetime.now(UTC)).total_seconds())
