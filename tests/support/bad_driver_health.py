"""The health service of the bad driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from bad_driver_claims import ClaimWork
from bad_driver_node import DEVICES, BadNode
from dra_proto.health.v1alpha1 import api_pb2 as health
from dra_proto.health.v1alpha1 import api_pb2_grpc as health_grpc

PERIOD = 0.2
TIMEOUT = 1


class HealthService(health_grpc.DRAResourceHealthServicer):
    """Tells the health of all devices, again and again."""

    def __init__(self, node: BadNode, claims: ClaimWork) -> None:
        self._node = node
        self._claims = claims
        self._streams = 0

    async def NodeWatchResources(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802  (name of the RPC)
        has = self._node.has
        self._streams += 1
        if has("health says nothing") or (self._streams > 1 and has("only the first stream gets health")):
            await asyncio.sleep(60)
        self._claims.streams += 1
        try:
            while True:
                yield health.NodeWatchResourcesResponse(devices=self._devices())
                await asyncio.sleep(60 if has("health comes once") else PERIOD)
        finally:
            self._claims.streams -= 1

    def _devices(self) -> list[Any]:
        has, names = self._node.has, list(DEVICES)
        if has("health leaves a device out"):
            names.pop()
        if has("health names an unknown device"):
            names.append("gpu-77")
        if has("health names a device twice"):
            names.append(names[0])
        return [
            health.DeviceHealth(
                device=health.DeviceIdentifier(pool_name=self._node.place.node, device_name=name),
                health=7 if has("health has an unknown value") else 1,  # type: ignore[arg-type]  # an open enum
                health_check_timeout_seconds=-1 if has("health has a negative time-out") else TIMEOUT,
                message="x" * 2000 if has("health has a long message") else "",
            )
            for name in names
        ]
