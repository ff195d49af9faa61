"""``exec`` in the pod ``pod-a`` of a node, over the API server's websocket."""

from __future__ import annotations

import json
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
