"""A validating webhook for parameters of a driver: mistakes are told when a claim is created, not when a pod starts.

The API server stores opaque parameters as they are. This server is asked for each claim, template and class that has
parameters of the driver, decodes them as ``configs_for`` does, and refuses them as the driver would. Stored objects
can still be updated: only parameters that change are looked at. The certificate is read again when its file
changes, as that of a Secret does.

Any client of the webhook's port could keep a cluster from storing claims, because the API server refuses a claim
without an answer. So newcomers displace idle connections (``dra_kube.door``), a question has to arrive within
``BODY_SECONDS``, and the bytes of all questions that arrive are limited: the largest one gives way.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web
from dra_kube import KubeError
from dra_kube.door import open_door, request_log

from .commands import FLAGS
from .commands.command import failed, set_up_logging
from .errors import PluginError, SettingsError, StartError
from .monitoring import address_of
from .parameters import decode_parameters
from .process import run_to_the_end

log = logging.getLogger(__name__)

_LARGEST_REVIEW_BYTES: Final = 8 * 2**20
"""Bytes of a question: it has an object of at most 1.5 MiB twice, perhaps written out less densely."""
_MOST_ARRIVING_BYTES: Final = 64 * 2**20
"""Bytes of the questions that are arriving."""
BODY_SECONDS: Final = 5.0
"""Seconds for a question to arrive; an API server waits 10 s for the answer unless it is told otherwise."""
LIFE_SECONDS: Final = 3600.0
"""Seconds after which a connection is closed; API servers keep theirs."""
_GOODBYE_SECONDS: Final = 1.0
_LOOK_AT_CERTIFICATE_SECONDS: Final = 30.0
_CONFIGS: Final = {
    "ResourceClaim": ("spec", "devices", "config"),
    "ResourceClaimTemplate": ("spec", "spec", "devices", "config"),
    "DeviceClass": ("spec", "config"),
}
"""Path of the configuration by kind, in all versions of the API."""

Check = Callable[[Any], None]
"""Raises ValueError for parameters that do not go together."""


class ParametersWebhook:
    """Answer an API server's questions about parameters of type ``kind`` for the driver ``driver``."""

    def __init__(self, driver: str, kind: Any, *, check: Check = lambda parameters: None) -> None:
        self._driver, self._kind, self._check = driver, kind, check
        self._arriving = _Arriving(_MOST_ARRIVING_BYTES)

    def app(self) -> web.Application:
        """Return the HTTP paths: ``/validate``, and ``/healthz`` for probes."""
        app = web.Application(client_max_size=_LARGEST_REVIEW_BYTES)
        app.add_routes([web.post("/validate", self._validate), web.get("/healthz", _alive)])
        return app

    def review(self, question: Any) -> dict[str, Any]:
        """Return the AdmissionReview that answers one. Raises ValueError for other values."""
        try:
            request = question["request"]
            uid, kind = request["uid"], request["kind"]["kind"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is no AdmissionReview: {error!r}") from error
        if not isinstance(kind, str):
            raise ValueError(f"this is no AdmissionReview: the kind {kind!r} is no text")
        # A set: anyone who reaches the port may send 100,000 of them twice.
        stored = {raw for _, raw in self._parameters(kind, request.get("oldObject"))}
        for path, raw in self._parameters(kind, request.get("object")):
            if raw not in stored and (fault := self._fault(raw)):
                message = f"{path}: invalid for driver {self._driver}: {fault}"
                return _answer(question, uid, {"code": 422, "reason": "Invalid", "message": message})
        return _answer(question, uid, None)

    def _parameters(self, kind: str, obj: Any) -> Iterator[tuple[str, bytes]]:
        """Yield the parameters of the driver, with their places."""
        configs, steps = obj, _CONFIGS.get(kind, ())
        for step in steps:
            configs = configs.get(step) if isinstance(configs, dict) else None
        for index, config in enumerate(configs if steps and isinstance(configs, list) else ()):
            opaque = config.get("opaque") if isinstance(config, dict) else None
            if isinstance(opaque, dict) and opaque.get("driver") == self._driver:
                path = f"{'.'.join(steps)}[{index}].opaque.parameters"
                yield path, msgspec.json.encode(opaque.get("parameters"), order="deterministic")

    def _fault(self, raw: bytes) -> str:
        try:
            self._check(decode_parameters(raw, self._kind))
        except (ValueError, TypeError, RecursionError) as error:
            return str(error) or type(error).__name__
        return ""

    async def _validate(self, request: web.Request) -> web.Response:
        try:
            answer = self.review(msgspec.json.decode(await self._arriving.body(request)))
        except TimeoutError:
            return web.Response(status=408, text=f"the question did not arrive within {BODY_SECONDS:g} s, or gave way")
        except (ValueError, RecursionError) as error:
            return web.Response(status=400, text=str(error))
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


class _Arriving:
    """The questions that are arriving, with the bytes of each so far; ``most`` bytes together."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._sizes: dict[asyncio.Timeout, int] = {}

    async def body(self, request: web.Request) -> bytes:
        """Return the body. Raises TimeoutError if it is late or had to give way, and HTTPRequestEntityTooLarge."""
        content = bytearray()
        async with asyncio.timeout(BODY_SECONDS) as limit:
            self._sizes[limit] = 0
            try:
                async for chunk in request.content.iter_any():
                    content += chunk
                    if len(content) > _LARGEST_REVIEW_BYTES:
                        raise web.HTTPRequestEntityTooLarge(_LARGEST_REVIEW_BYTES, len(content))
                    self._grows(limit, len(chunk))
            finally:
                self._bytes -= self._sizes.pop(limit, 0)
        return bytes(content)

    def _grows(self, limit: asyncio.Timeout, size: int) -> None:
        self._sizes[limit] = self._sizes.get(limit, 0) + size
        self._bytes += size
        if self._bytes > self._most:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self._bytes -= self._sizes.pop(largest)
            if not largest.expired():  # else it ends anyway
                largest.reschedule(asyncio.get_running_loop().time())


async def _alive(request: web.Request) -> web.Response:
    return web.Response(text="ok")


def _answer(question: dict[str, Any], uid: str, refusal: dict[str, Any] | None) -> dict[str, Any]:
    response: dict[str, Any] = {"uid": uid, "allowed": refusal is None}
    if refusal:
        response["status"] = refusal
    return {
        "apiVersion": question.get("apiVersion", "admission.k8s.io/v1"),
        "kind": "AdmissionReview",
        "response": response,
    }


async def serve_webhook(webhook: ParametersWebhook, *, endpoint: str, certificate: Path, key: Path) -> None:
    """Serve until cancelled. Raises SettingsError for files or an endpoint that cannot be used, and StartError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, certificate, key)
    host, port = address_of(endpoint)
    runner = web.AppRunner(
        webhook.app(),
        access_log=None,
        logger=request_log(),
        handler_cancellation=True,
        shutdown_timeout=_GOODBYE_SECONDS,
    )
    await runner.setup()
    try:
        async with AsyncExitStack() as stack:
            door = open_door(runner, host, port, LIFE_SECONDS, tls=context, keeps_alive=True)
            try:
                address = await stack.enter_async_context(door)
            except OSError as error:
                raise StartError(f"cannot serve HTTPS on {endpoint}: {error}; choose another --endpoint") from error
            log.info("parameters are validated on https://%s", ":".join(map(str, address)))
            loaded = _version(certificate, key)
            while True:
                await asyncio.sleep(_LOOK_AT_CERTIFICATE_SECONDS)
                if (found := _version(certificate, key)) != loaded:
                    try:
                        _load(context, certificate, key)  # connections that begin from now on have it
                        loaded = found
                    except SettingsError as error:  # half of a Secret
                        log.warning("%s", error)
    finally:
        await runner.cleanup()


def _load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"cannot use the certificate {certificate} with the key {key}: {error}; mount the Secret of the webhook"
        ) from error


def _version(*files: Path) -> list[int]:
    try:
        return [file.stat().st_mtime_ns for file in files]
    except OSError:
        return []


def run_webhook(
    name: str, kind: Any, arguments: Sequence[str] | None = None, *, check: Check = lambda parameters: None
) -> None:
    """The main program of a webhook for parameters of the driver ``name``, until SIGTERM.

    ``kind`` is the type that ``configs_for`` gets, ``check`` may raise ValueError for values that do not go together.
    An error ends the process with one line, as for ``run``.
    """
    parser = argparse.ArgumentParser(description=f"Validate parameters of driver {name}. Defaults in parentheses.")
    for flag in ("--log-level", "--log-format"):
        parser.add_argument(flag, **FLAGS[flag])
    parser.add_argument("--endpoint", default=":8443", help="HOST:PORT to serve HTTPS on (:8443)")
    for flag, file in (("--tls-cert", "tls.crt"), ("--tls-key", "tls.key")):
        parser.add_argument(flag, type=Path, default=Path("/tls", file), metavar="FILE", help=f"(/tls/{file})")
    options = parser.parse_args(arguments)
    set_up_logging(options.log_level, options.log_format)
    webhook = ParametersWebhook(name, kind, check=check)

    async def serve() -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        work = asyncio.create_task(
            serve_webhook(webhook, endpoint=options.endpoint, certificate=options.tls_cert, key=options.tls_key)
        )
        end = asyncio.create_task(stopped.wait())
        await asyncio.wait([work, end], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    try:
        run_to_the_end(serve())
    except (PluginError, KubeError) as error:
        raise SystemExit(failed(name, error, options.log_format)) from None
