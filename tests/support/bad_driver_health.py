"""The health service of the bad driver."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
from bad_driver_claims import ClaimWork
from bad_driver_devices import devices_of
from bad_driver_node import BadNode
from dra_proto.health.v1alpha1 import api_pb2 as health

PERIOD = 0.2
TIMEOUT = 1


SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")


class HealthService:
    """Tells the health of all devices, again and again; a fault may be that of one version only."""

    def __init__(self, node: BadNode, claims: ClaimWork) -> None:
        self._node = node
        self._claims = claims
        self._streams = 0
        self._open = 0

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve each version."""
        for service in SERVICES:
            if self._node.has("health is offered and not served", f"{service} is offered and not served"):
                continue
            watch = grpc.unary_stream_rpc_method_handler(
                partial(self._watch, service),
                request_deserializer=health.NodeWatchResourcesRequest.FromString,
                response_serializer=health.NodeWatchResourcesResponse.SerializeToString,
            )
            handler = grpc.method_handlers_generic_handler(service, {"NodeWatchResources": watch})
            server.add_generic_rpc_handlers((handler,))

    async def _watch(self, service: str, _request: Any, _context: Any) -> AsyncIterator[Any]:
        has = self._node.has
        self._streams += 1
        if (
            has("health says nothing", f"{service} says nothing")
            or (self._streams > 1 and has("only the first stream gets health"))
            or (self._streams > 5 and has("streams that ended count"))
            or (self._open and has("one stream at a time gets health"))
            or (self._node.starts > 1 and has("only the first process tells health"))
        ):
            await asyncio.sleep(60)
        self._open += 1
        self._claims.streams += 1
        try:
            yield health.NodeWatchResourcesResponse(devices=self._devices(service))
            while True:
                await asyncio.sleep(60 if has("health comes once", f"{service} comes once") else PERIOD)
                devices = self._devices(service)
                yield health.NodeWatchResourcesResponse(
                    devices=devices[: 1 if has("later health is partial") else None]
                )
        finally:
            self._open -= 1
            self._claims.streams -= 1

    def _devices(self, service: str) -> list[Any]:
        has, names = self._node.has, list(devices_of(self._node))
        if has("health leaves a device out", f"{service} leaves a device out"):
            names.pop()
        if has("health names an unknown device"):
            names.append((self._node.place.node, "gpu-77"))
        if has("health names a device twice"):
            names.append(names[0])
        return [
            health.DeviceHealth(
                device=health.DeviceIdentifier(pool_name=pool, device_name=name),
                health=self._health(service),  # type: ignore[arg-type]  # an open enum
                last_updated_time=self._updated(),
                health_check_timeout_seconds=-1 if has("health has a negative time-out") else TIMEOUT,
                message="x" * 2000 if has("health has a long message") else "",
            )
            for pool, name in names
        ]

    def _updated(self) -> int:
        if self._node.has("variant: no device's health changed for a week"):
            return int(time.time()) - 7 * 86400
        return int(time.time() * (1000 if self._node.has("health has times in milliseconds") else 1))

    def _health(self, service: str) -> int:
        has = self._node.has
        if has("health has an unknown value"):
            return 7
        return 2 if has(f"{service} says otherwise") else 1
