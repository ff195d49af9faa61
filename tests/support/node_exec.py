"""``exec`` and ``attach`` in the pod ``pod-a`` of a node, over the API server's websocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from one_node import OneNode

Json = dict[str, Any]


def http_client(node: OneNode) -> aiohttp.ClientSession:
    """A client with the node's own credentials, for what the API does not offer."""
    link = node.api.connection
    connector = aiohttp.TCPConnector(ssl=link.tls or True)
    return aiohttp.ClientSession(link.host, headers={"Authorization": link.authorization() or ""}, connector=connector)


async def execute(
    node: OneNode, *command: str, stdin: bytes = b"", protocol: str = "v5.channel.k8s.io", container: str = "c"
) -> tuple[bytes, Json]:
    """Standard output, and the Status at the end."""
    query = [("command", word) for word in command] + [("stdout", "true"), ("stdin", "true" if stdin else "false")]
    query.append(("container", container))
    url = "/api/v1/namespaces/default/pods/pod-a/exec"
    async with http_client(node) as session:
        async with session.ws_connect(url, params=query, protocols=[protocol]) as socket:
            assert socket.protocol == protocol
            if stdin:
                await socket.send_bytes(b"\0" + stdin)
                await socket.send_bytes(b"\xff\0")
            output: dict[int, bytes] = {}
            async for message in socket:
                output[message.data[0]] = output.get(message.data[0], b"") + message.data[1:]
            return output.get(1, b""), json.loads(output[3])


class Session:
    """A client of ``exec`` or ``attach``: types, and reads what comes."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.output = b""
        self.status: Json | None = None

    async def type(self, data: bytes) -> None:
        """Send to the standard input."""
        await self.send(0, data)

    async def send(self, channel: int, data: bytes) -> None:
        await self._socket.send_bytes(bytes([channel]) + data)

    async def resize(self, width: int, height: int) -> None:
        """The client's terminal has another size."""
        await self.send(4, json.dumps({"Width": width, "Height": height}).encode())

    async def close_input(self) -> None:
        """The client types no more."""
        await self.send(255, b"\0")

    async def until(self, text: bytes) -> bytes:
        """Read until the output has the text, which then counts as read; what came before it."""
        async with asyncio.timeout(60):
            while text not in self.output:
                assert await self._read(), f"it ended with {self.status} and {self.output!r}"
        before, _, self.output = self.output.partition(text)
        return before

    async def end(self) -> Json:
        """The status at the end; ``output`` has what was not read before."""
        async with asyncio.timeout(60):
            while await self._read():
                pass
        assert self.status
        return self.status

    async def _read(self) -> bool:
        message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            return False
        if message.data[0] == 3:
            self.status = json.loads(message.data[1:])
        else:
            self.output += message.data[1:]
        return True


@asynccontextmanager
async def session(node: OneNode, what: str, *command: str, **flags: bool) -> AsyncIterator[Session]:
    """``exec`` or ``attach`` in the container ``c`` of ``pod-a`` with these flags."""
    query = [("command", word) for word in command] + [("container", "c"), ("stdout", "true")]
    query += [(name, str(value).lower()) for name, value in flags.items()]
    url = f"/api/v1/namespaces/default/pods/pod-a/{what}"
    async with (
        http_client(node) as client,
        client.ws_connect(url, params=query, protocols=["v5.channel.k8s.io"]) as socket,
    ):
        yield Session(socket)
