"""The server of ``fit --serve`` and ``--serve-grpc``: who may ask, and how much.

It only reads the cluster, with the rights of who runs it.

Anyone who may ask learns what is free and, from what is in the way, the names of others' pods. On loopback every
user of this machine may; at any other address those who have the token. A web page of another site may not: it can send
no JSON without asking first, which is refused, and a name that was pointed at this machine stands in the header Host.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web
from dra_kube.door import open_door
from dra_kube.request_log import request_log

from dra_operator.kubectl.answer import ExitCode, Problem
from dra_operator.kubectl.observed.pipeline import Settings
from dra_operator.kubectl.reading.newest import NewestView
from dra_operator.kubectl.until_ended import serve_until_ended

from .clerk import IDLE_SECONDS, MOST_QUESTION_BYTES, Busy, Clerk
from .desk import Desk, TookTooLong
from .question import question_of

FIT: Final = "/v1/fit"
HEALTH: Final = "/healthz"
BODY_SECONDS: Final = 5.0
"""In which a question has to arrive."""
LIFE_SECONDS: Final = 3600.0
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
    token = _token(options.token_file, {option: host for option, (host, _) in places.items()})
    newest = NewestView(options, partial(Desk, settings=Settings.of(options)))
    await newest.start()
    clerk = Clerk(newest)
    try:
        async with AsyncExitStack() as stack:
            found = []
            if (place := places.get("--serve")) is not None:
                found.append(await stack.enter_async_context(_http(application(newest, clerk, token), *place)))
            if (place := places.get("--serve-grpc")) is not None:
                from .grpc_door import grpc_door  # only here: loading grpc takes as long as a start

                found.append(await stack.enter_async_context(grpc_door(clerk, *place, token)))
            yield "\n".join(found)
    finally:
        await newest.stop()


@asynccontextmanager
async def _http(app: web.Application, host: str, port: int) -> AsyncIterator[str]:
    runner = web.AppRunner(
        app, access_log=None, logger=request_log(), keepalive_timeout=IDLE_SECONDS, handler_cancellation=True
    )
    await runner.setup()
    try:
        async with AsyncExitStack() as stack:
            try:
                found, taken = await stack.enter_async_context(
                    open_door(runner, host, port, LIFE_SECONDS, keeps_alive=True)
                )
            except OSError as error:
                raise Problem(f"cannot listen on {host}:{port}: {error.strerror}; choose another address") from error
            yield f"http://{f'[{found}]' if ':' in found else found}:{taken}"
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
        """Whether the pods of a question would fit."""
        if refused := self._refusal(request):
            return refused
        try:
            with self._clerk.turn():
                return await self._answer(request)
        except Busy as busy:
            return _busy(str(busy))

    async def health(self, _: web.Request) -> web.Response:
        """Whether the view is not too old to answer, or was not asked for."""
        problem = self._newest.problem
        return web.Response(text="ok\n") if problem is None else web.Response(status=503, text=f"{problem}\n")

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await request.read()
        except TimeoutError:
            return _error(408, f"the question did not arrive within {BODY_SECONDS:g}s")
        try:
            reply = await self._clerk.answer(question_of(body))
        except Problem as fault:
            return _error(400, str(fault))
        except TookTooLong as error:
            return _error(504, str(error))
        return web.Response(body=msgspec.json.encode(reply), content_type="application/json")

    def _refusal(self, request: web.Request) -> web.Response | None:
        if self._token:
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
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


def _busy(text: str) -> web.Response:
    response = _error(503, text)
    response.headers["Retry-After"] = "1"
    return response
