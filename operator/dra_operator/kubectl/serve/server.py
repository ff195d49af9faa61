"""The server of ``fit --serve`` and ``--serve-grpc``: who may ask, and how much.

It only reads the cluster, with the rights of the person who runs it.

Everyone who may ask learns about free devices and, from the obstacles, the names of others' pods. On loopback every
user of this machine may ask. At any other address a client needs the token, and TLS keeps it from others. A web page of
another site may not ask. It can send no JSON without asking for permission first, and that is refused. A name that was
pointed at this machine stands in the header Host.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import os
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web
from dra_kube.door import is_same_secret, open_door, request_log

from dra_operator.kubectl.answer import ExitCode, Problem
from dra_operator.kubectl.serving import Crowded, NewestView, serve_until_ended
from dra_operator.kubectl.settings import Settings

from .desk import IDLE_SECONDS, MOST_QUESTION_BYTES, AnswerTookTooLong, Busy, Clerk, Desk, question_of

FIT: Final = "/v1/fit"
HEALTH: Final = "/healthz"
BODY_SECONDS: Final = 5.0
"""In which a question has to arrive."""
LIFE_SECONDS: Final = 3600.0
RENEWAL_LOOK_SECONDS: Final = 60.0
"""Between two looks whether certificate and key were renewed."""
SHORTEST_TOKEN_LETTERS: Final = 16
OWN_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def serve(options: argparse.Namespace) -> int:
    """Serve until interrupted; returns the exit code."""
    how = f"POST questions to {FIT}; " if options.serve is not None else ""
    return serve_until_ended(running(options), f"{how}end with Ctrl-C")


@asynccontextmanager
async def running(options: argparse.Namespace) -> AsyncIterator[str]:
    """The addresses, a line each, served inside the block. Raises Problem."""
    wanted = {"--serve": options.serve, "--serve-grpc": options.serve_grpc}
    places = {option: address_of(text, option) for option, text in wanted.items() if text is not None}
    hosts = {option: host for option, (host, _) in places.items()}
    token = _token(options.token_file, hosts)
    certificate = _certificate(options.tls_cert, options.tls_key, hosts)
    newest = NewestView(options, partial(Desk, settings=Settings.of(options)))
    await newest.start()
    clerk = Clerk(newest)
    try:
        async with AsyncExitStack() as stack:
            found = []
            secured = certificate.context if certificate is not None else lambda _: None
            if certificate is not None:
                await stack.enter_async_context(certificate.kept_new())
            if (place := places.get("--serve")) is not None:
                served = _http(application(newest, clerk, token), *place, secured("http/1.1"))
                found.append(await stack.enter_async_context(served))
            if (place := places.get("--serve-grpc")) is not None:
                from .grpc_door import grpc_door  # only here: loading grpc takes as long as a start

                found.append(await stack.enter_async_context(grpc_door(clerk, *place, token, secured("h2"))))
            yield "\n".join(found)
    finally:
        await newest.stop()


@asynccontextmanager
async def _http(app: web.Application, host: str, port: int, tls: ssl.SSLContext | None) -> AsyncIterator[str]:
    runner = web.AppRunner(
        app, access_log=None, logger=request_log(), keepalive_timeout=IDLE_SECONDS, handler_cancellation=True
    )
    await runner.setup()
    try:
        async with AsyncExitStack() as stack:
            try:
                found, taken = await stack.enter_async_context(
                    open_door(runner, host, port, LIFE_SECONDS, tls=tls, keeps_alive=True)
                )
            except OSError as error:
                raise Problem(f"cannot listen on {host}:{port}: {error.strerror}; choose another address") from error
            scheme = "http" if tls is None else "https"
            yield f"{scheme}://{f'[{found}]' if ':' in found else found}:{taken}"
    finally:
        await runner.cleanup()


def address_of(text: str, option: str = "--serve") -> tuple[str, int]:
    """``HOST:PORT``. Raises Problem."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise Problem(f"{option} {text}: expected HOST:PORT, such as 127.0.0.1:8484 or [::]:8484", ExitCode.USAGE)
    return host.removeprefix("[").removesuffix("]"), int(port)


def _token(path: str | None, hosts: Mapping[str, str]) -> str:
    """``hosts``: by option."""
    if path is None:
        for option, host in hosts.items():
            if not _is_loopback(host):
                remedy = "give the token that they need by --token-file"
                raise Problem(f"{option} {host}: others can reach this address: {remedy}", ExitCode.USAGE)
        return ""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"--token-file {path}: {error}", ExitCode.USAGE) from error
    if len(token) < SHORTEST_TOKEN_LETTERS or not token.isascii() or not token.isprintable():
        expected = f"expected at least {SHORTEST_TOKEN_LETTERS} printable ASCII letters"
        raise Problem(f"--token-file {path}: {expected}", ExitCode.USAGE)
    return token


class Certificate:
    """Certificate and key of the service, read again when the files change: they are renewed while it runs."""

    def __init__(self, certificate: str, key: str) -> None:
        self._files = (certificate, key)
        self._contexts: list[ssl.SSLContext] = []
        self._seen = self._changes()

    def context(self, protocol: str) -> ssl.SSLContext:
        """For a port that speaks this protocol. Raises Problem."""
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        made.set_alpn_protocols([protocol])
        try:
            made.load_cert_chain(*self._files, password=lambda: b"")
        except (OSError, ValueError) as error:
            shown = " ".join(self._files)
            raise Problem(f"--tls-cert, --tls-key {shown}: {error}; expected PEM files", ExitCode.USAGE) from error
        self._contexts.append(made)
        return made

    @asynccontextmanager
    async def kept_new(self) -> AsyncIterator[None]:
        """Inside the block new files are taken over."""
        looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(RENEWAL_LOOK_SECONDS)
            if (changes := self._changes()) != self._seen:
                try:
                    for context in self._contexts:
                        context.load_cert_chain(*self._files, password=lambda: b"")
                    self._seen = changes
                except (OSError, ValueError):
                    pass  # one of the two is not there yet: the former ones serve until then

    def _changes(self) -> list[float]:
        with suppress(OSError):
            return [os.stat(file).st_mtime for file in self._files]
        return []


def _certificate(certificate: str | None, key: str | None, hosts: Mapping[str, str]) -> Certificate | None:
    """``hosts``: by option. Raises Problem."""
    if certificate is not None and key is not None:
        return Certificate(certificate, key)
    if certificate is not None or key is not None:
        raise Problem("--tls-cert and --tls-key go together: give both", ExitCode.USAGE)
    for option, host in hosts.items():
        if not _is_loopback(host):
            print(
                f"kubectl dra: warning: {option} {host}: the token, questions and answers cross the network in the "
                "clear; --tls-cert and --tls-key encrypt them",
                file=sys.stderr,
            )
    return None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def application(newest: NewestView[Desk], clerk: Clerk, token: str) -> web.Application:
    """``token`` is empty where all who reach the port may ask."""
    app = web.Application(middlewares=[_errors], client_max_size=MOST_QUESTION_BYTES)
    service = Service(newest, clerk, token)
    app.router.add_post(FIT, service.fit)
    app.router.add_get(HEALTH, service.health)
    return app


class Service:
    """One method for each path."""

    def __init__(self, newest: NewestView[Desk], clerk: Clerk, token: str) -> None:
        self._newest, self._clerk, self._token = newest, clerk, token

    async def fit(self, request: web.Request) -> web.Response:
        if refused := self._refusal(request):
            return refused
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await request.read()
        except TimeoutError:
            return _error(408, f"the question did not arrive within {BODY_SECONDS:g}s")
        try:
            reply = await self._clerk.answer(question_of(body), request.remote or "")
        except Problem as fault:
            return _error(400, str(fault))
        except AnswerTookTooLong as error:
            return _error(504, str(error))
        except (Busy, Crowded) as busy:
            response = _error(503, str(busy))
            response.headers["Retry-After"] = "1"
            return response
        return web.Response(body=msgspec.json.encode(reply), content_type="application/json")

    async def health(self, _: web.Request) -> web.Response:
        """Whether the view is not too old to answer, or was not asked for."""
        problem = self._newest.problem
        return web.Response(text="ok\n") if problem is None else web.Response(status=503, text=f"{problem}\n")

    def _refusal(self, request: web.Request) -> web.Response | None:
        if self._token:
            given = request.headers.get("Authorization", "")
            if not is_same_secret(given, f"Bearer {self._token}"):
                return _error(401, "send the token of --token-file as Authorization: Bearer TOKEN")
        elif request.host.rpartition(":")[0] not in OWN_NAMES:
            return _error(403, "this host is not served")
        if "Origin" in request.headers:
            return _error(403, "web pages may not ask")
        if request.content_type != "application/json":
            return _error(415, "send the question as Content-Type: application/json")
        return None


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors are JSON as well."""
    try:
        return await handler(request)
    except web.HTTPRequestEntityTooLarge:
        return _error(413, f"a question has at most {MOST_QUESTION_BYTES} bytes: ask for fewer objects at a time")
    except web.HTTPException as error:
        return _error(error.status, f"{error.reason}: POST a question to {FIT}")


def _error(status: int, text: str) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode({"error": text}), content_type="application/json")
