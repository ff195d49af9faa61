"""The health service of a plugin on the wire, in either version, with reports to order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from dra_proto.health.v1alpha1 import api_pb2 as messages


class FakeHealth:
    """``report`` replaces the list that every stream gets; before the first report streams stay silent."""

    def __init__(self) -> None:
        self.streams = 0
        self.watching = 0
        self._list: list[dict[str, Any]] | None = None
        self._changes = 0
        self._news = asyncio.Condition()

    async def report(self, *devices: dict[str, Any]) -> None:
        """Send a full list; a device is given by ``pool``, ``device``, ``health`` and other fields of the message."""
        async with self._news:
            self._list = list(devices)
            self._changes += 1
            self._news.notify_all()

    def handler(self, service: str) -> grpc.GenericRpcHandler[Any, Any]:
        """What serves the streams, under the name of either version."""
        watch = grpc.unary_stream_rpc_method_handler(
            self._watch,
            request_deserializer=messages.NodeWatchResourcesRequest.FromString,
            response_serializer=messages.NodeWatchResourcesResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(service, {"NodeWatchResources": watch})

    async def _watch(self, request: Any, context: Any) -> AsyncIterator[messages.NodeWatchResourcesResponse]:
        self.streams += 1
        self.watching += 1
        sent = 0
        try:
            while True:
                async with self._news:
                    while self._changes == sent:
                        await self._news.wait()
                    sent, devices = self._changes, self._list or ()
                yield messages.NodeWatchResourcesResponse(devices=[_message(**device) for device in devices])
        finally:
            self.watching -= 1


def _message(pool: str = "pool", device: str = "device-0", health: str = "HEALTHY", **fields: Any) -> Any:
    identifier = messages.DeviceIdentifier(pool_name=pool, device_name=device)
    return messages.DeviceHealth(device=identifier, health=messages.HealthStatus.Value(health), **fields)
