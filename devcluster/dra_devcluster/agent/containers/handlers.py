"""What probes and lifecycle hooks do: run a program in the container, ask over HTTP, TCP or gRPC, or sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import aiohttp
import grpc
from google.protobuf.wrappers_pb2 import StringValue, UInt32Value

from dra_devcluster.agent.errors import ContainerError
from dra_devcluster.agent.network.pod_network import LOOPBACK, Network
from dra_devcluster.agent.processes.process import ContainerProcess, exit_code
from dra_devcluster.agent.spec.handlers import ExecAction, GrpcAction, Handler, HttpGetAction, TcpSocketAction

_LONGEST_OUTPUT_BYTES = 10 * 1024
_SERVING_CODE = 1  # HealthCheckResponse.ServingStatus


class HandlerFailed(Exception):
    """The text says what went wrong, as the event shows it."""


@dataclass(frozen=True, slots=True)
class Target:
    """The container that a handler concerns: its process, where it listens, its ports by name."""

    process: ContainerProcess
    network: Network
    ports: Mapping[str, int]

    def port(self, port: int | str) -> int:
        """The number of a port. Raises HandlerFailed."""
        number = self.ports.get(port, port) if isinstance(port, str) else port
        if not str(number).isdecimal() or not 0 < int(number) < 2**16:
            raise HandlerFailed(f"couldn't find port: {port}")
        return int(number)


async def perform(handler: Handler, target: Target, timeout: float) -> None:
    """Carry out the handler. Raises HandlerFailed, also when it takes longer than ``timeout`` seconds."""
    try:
        async with asyncio.timeout(timeout):
            if handler.exec is not None:
                await _execute(handler.exec, target)
            elif handler.http_get is not None:
                await _get(handler.http_get, target)
            elif handler.tcp_socket is not None:
                await _connect(handler.tcp_socket, target)
            elif handler.grpc is not None:
                await _check(handler.grpc, target)
            elif handler.sleep is not None:
                await asyncio.sleep(handler.sleep.seconds)
    except TimeoutError:
        raise HandlerFailed(f"timed out after {timeout:g} s") from None
    except OSError as error:
        raise HandlerFailed(str(error)) from error


async def _execute(action: ExecAction, target: Target) -> None:
    try:
        process = await target.process.execute(action.command, stdin=False)
    except ContainerError as error:
        raise HandlerFailed(error.message) from error
    try:
        output, errors = await process.communicate()
    finally:
        target.process.leave(process)
        await process.wait()  # killed, if the time is over
    if exit_code(process.returncode or 0) != 0:
        raise HandlerFailed((output + errors)[:_LONGEST_OUTPUT_BYTES].decode(errors="replace"))


async def _connect(action: TcpSocketAction, target: Target) -> None:
    port = target.port(action.port)
    if action.host:
        _, writer = await asyncio.open_connection(action.host, port)
    else:
        _, writer = await target.network.connect(port)
    writer.close()
    with suppress(OSError):  # the connection was made: that is all that counts
        await writer.wait_closed()


async def _get(action: HttpGetAction, target: Target) -> None:
    path = action.path if action.path.startswith("/") else f"/{action.path}"
    url = f"{action.scheme.lower()}://{action.host or LOOPBACK}:{target.port(action.port)}{path}"
    network = Network() if action.host else target.network
    headers = {"User-Agent": "kube-probe/1.36", "Accept": "*/*"}
    headers |= {header.name: header.value for header in action.http_headers or ()}
    try:
        # A probe does not verify certificates: it asks whether the server answers, not who it is.
        connector = aiohttp.TCPConnector(ssl=False, socket_factory=lambda _: network.socket())
        async with aiohttp.ClientSession(connector=connector) as session, session.get(url, headers=headers) as answer:
            if not 200 <= answer.status < 400:
                raise HandlerFailed(f"HTTP probe failed with statuscode: {answer.status}")
    except aiohttp.ClientConnectorError as error:
        raise HandlerFailed(f'Get "{url}": {error.strerror}') from error
    except aiohttp.ClientError as error:
        raise HandlerFailed(f'Get "{url}": {error}') from error


async def _check(action: GrpcAction, target: Target) -> None:
    """Ask the health service of gRPC, ``grpc.health.v1``.

    Its two messages have one field each, and so look on the wire like the messages for single values.
    """
    request = StringValue(value=action.service or "")
    async with (
        target.network.forwarded(target.port(action.port)) as port,
        grpc.aio.insecure_channel(f"{LOOPBACK}:{port}") as channel,
    ):
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=StringValue.SerializeToString,
            response_deserializer=UInt32Value.FromString,
        )
        try:
            answer = await check(request)
        except grpc.aio.AioRpcError as error:
            raise HandlerFailed(f"gRPC probe failed: {error.code().name}: {error.details()}") from error
    if answer.value != _SERVING_CODE:
        raise HandlerFailed("service unhealthy (responded with another status than SERVING)")
